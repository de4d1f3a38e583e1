//! Metrics in the OpenMetrics text format, which Prometheus reads. Callers supply the families of metrics.
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The media type of the format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The families that `write` writes, with `prefix` and an underscore before their names.
///
/// # Errors
/// Those of the encoder.
pub fn text<W>(prefix: &str, write: W) -> Result<String, fmt::Error>
where
    W: Fn(&mut Families<'_, '_>) -> fmt::Result + Send + Sync + 'static,
{
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(Source(write)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Source<W>(W);

impl<W> fmt::Debug for Source<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl<W> Collector for Source<W>
where
    W: Fn(&mut Families<'_, '_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Families { encoder: &mut encoder })
    }
}

/// Writes families of metrics.
#[derive(Debug)]
pub struct Families<'a, 'e> {
    /// For what the methods do not offer.
    pub encoder: &'a mut DescriptorEncoder<'e>,
}

impl Families<'_, '_> {
    /// A family of counters.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A family of gauges.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.single(name, help, &ConstCounter::new(value))
    }

    /// A counter of seconds without labels.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn counter_s(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.single(name, help, &ConstCounter::new(value))
    }

    /// A gauge without labels.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.single(name, help, &ConstGauge::new(value))
    }

    fn single(&mut self, name: &str, help: &str, value: &impl EncodeMetric) -> fmt::Result {
        value.encode(self.encoder.encode_descriptor(name, help, None, value.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_a_type_a_prefix_and_escaped_labels() {
        let text = text("parshall_test", |families| {
            families.counters("bytes", "Bytes", [([("name", "a \"quoted\" \\ name\n")], 7)])?;
            families.gauges("open", "Open sockets", [([("name", "a")], 0.5)])?;
            families.counter_s("cpu_seconds", "CPU time", 1.5)
        })
        .expect("text");
        let expected = [
            "# HELP parshall_test_bytes Bytes",
            "# TYPE parshall_test_bytes counter",
            r#"parshall_test_bytes_total{name="a \"quoted\" \\ name\n"} 7"#,
            "# HELP parshall_test_open Open sockets",
            "# TYPE parshall_test_open gauge",
            r#"parshall_test_open{name="a"} 0.5"#,
            "# HELP parshall_test_cpu_seconds CPU time",
            "# TYPE parshall_test_cpu_seconds counter",
            "parshall_test_cpu_seconds_total 1.5",
            "# EOF",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
