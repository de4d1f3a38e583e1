//! Prometheus: the aggregates of the last dump and the collector's own metrics in the OpenMetrics text format, which the
//! [`endpoint`] serves.
pub mod endpoint;
mod profile;
pub mod self_metrics;
pub mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parshall_core::sockets::aggregate::{
    Aggregator, COUNTERS, DISTRIBUTIONS, LEVELS, Label, Series, Settings, Snapshot,
};
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;
use parshall_evidence::socket::Kind;
use parshall_evidence::socket::selection::state_name;
use parshall_host::open_metrics::{self, Families};
use prometheus_client::encoding::NoLabelSet;
use prometheus_client::metrics::MetricType;

use self::self_metrics::Status;
use super::account::{Account, Sink};

/// The prefix of every name.
pub const PREFIX: &str = "parshall_sockets";

/// Stores the aggregates of each dump in the [`Status`].
#[derive(Debug)]
pub struct PrometheusSink {
    aggregator: Aggregator,
    status: Arc<Status>,
    rows: u64,
}

impl PrometheusSink {
    /// Needs complete dumps with the groups of `aggregate::groups()`.
    pub fn new(settings: Settings, status: Arc<Status>) -> Self {
        Self { aggregator: Aggregator::new(settings), status, rows: 0 }
    }
}

impl Sink for PrometheusSink {
    fn name(&self) -> &str {
        "prometheus"
    }

    fn rows(&mut self, _: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()> {
        self.rows += rows.len() as u64;
        rows.iter().for_each(|row| self.aggregator.add(row));
        Ok(())
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()> {
        self.status.aggregates(Arc::new(self.aggregator.end(dump.at_unix_ns, completeness)));
        Ok(())
    }

    fn account(&self) -> Account {
        Account { rows_in: self.rows, rows_out: self.rows, ..Account::default() }
    }

    fn close(self: Box<Self>, _: Duration) -> Account {
        self.account()
    }
}

/// All metrics as text.
///
/// # Errors
/// Those of the encoder.
pub fn text(status: &Status) -> Result<String, fmt::Error> {
    let (state, snapshot) = status.read();
    open_metrics::text(PREFIX, move |families| {
        snapshot.as_ref().map_or(Ok(()), |snapshot| aggregates(snapshot, families))?;
        self_metrics::encode(&state, families)
    })
}

/// Names and values of labels.
type Labels<'a> = Vec<(&'static str, &'a str)>;

fn labels<'a>(names: &[Label], series: &'a Series) -> Labels<'a> {
    names.iter().map(|label| label.name()).zip(series.labels.iter().map(|value| &**value)).collect()
}

fn aggregates(snapshot: &Snapshot, families: &mut Families<'_, '_>) -> fmt::Result {
    let names = &snapshot.labels;
    let all = || snapshot.series.iter();
    let open = all().flat_map(|series| {
        let counts = Kind::ALL.into_iter().zip(&series.sockets);
        counts.flat_map(move |(kind, states)| {
            let there = states.iter().enumerate().filter(|(_, n)| **n > 0);
            there.map(move |(state, n)| {
                let mut labels = labels(names, series);
                labels.extend([("kind", kind.name()), ("state", state_name(state as u8))]);
                (labels, f64::from(*n))
            })
        })
    });
    families.gauges("open", "Open sockets, by kind and state", open)?;
    for (i, level) in LEVELS.iter().enumerate() {
        families.gauges(level.name, level.help, all().map(|s| (labels(names, s), s.levels[i] as f64)))?;
    }
    for (i, counter) in COUNTERS.iter().enumerate() {
        families.counters(counter.name, counter.help, all().map(|s| (labels(names, s), s.counters[i])))?;
    }
    for (i, distribution) in DISTRIBUTIONS.iter().enumerate() {
        let help = format!("{}; each established socket counts once in each dump", distribution.help);
        let mut family = families.encoder.encode_descriptor(distribution.name, &help, None, MetricType::Histogram)?;
        let bounds = || distribution.bounds.iter().map(|b| *b as f64 / distribution.scale).chain([f64::INFINITY]);
        for series in all() {
            let histogram = &series.histograms[i];
            let buckets: Vec<(f64, u64)> = bounds().zip(histogram.buckets.iter().copied()).collect();
            let sum = histogram.sum as f64 / distribution.scale;
            let count = histogram.buckets.iter().sum();
            let labels = labels(names, series);
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use parshall_evidence::socket::SocketRecord;

    use super::self_metrics::DumpCost;
    use super::*;
    use crate::testkit::peers::python;

    fn status() -> Arc<Status> {
        let status = Status::new(None);
        let mut sink = PrometheusSink::new(Settings::default(), status.clone());
        let dump = Dump { at_unix_ns: 1, sequence: 1, host: "h".into(), backend: "walk" };
        let record = |bytes_sent| {
            let mut record = SocketRecord {
                family: 2,
                protocol: 6,
                state: 1,
                local_port: 443,
                rtt_us: 100,
                rqueue_bytes: 9,
                bytes_sent,
                ..Default::default()
            };
            record.remote_address[..4].copy_from_slice(&[10, 1, 2, 3]);
            record
        };
        for bytes in [10, 25] {
            let record = record(bytes);
            let row = Row { socket: 7, cgroup: "/a\"b\\c\nd", ..Row::bare(&record) };
            sink.rows(&dump, &[row]).unwrap();
            sink.end(&dump, &Completeness::default()).unwrap();
        }
        let completeness = Completeness { expected: 3, emitted: 2, torn: 1, ..Default::default() };
        status.dumped("walk", DumpCost { cpu_ns: 2_000_000, wall_ns: 1, completeness });
        let account = Account { rows_in: 2, errors: [("refused", 3)].into(), lag_ms: 1500, ..sink.account() };
        status.sinks(vec![("kafka".into(), account)]);
        status
    }

    #[test]
    fn values_labels_and_escapes() {
        let text = text(&status()).unwrap();
        let labels = r#"cgroup="/a\"b\\c\nd",local_port="443",peer="10.1.2.0/24""#;
        for line in [
            format!("parshall_sockets_open{{{labels},kind=\"tcp\",state=\"established\"}} 1.0"),
            format!("parshall_sockets_sent_bytes_total{{{labels}}} 15"),
            format!("parshall_sockets_receive_queue_bytes{{{labels}}} 9.0"),
            format!("parshall_sockets_rtt_seconds_bucket{{le=\"0.000128\",{labels}}} 2"),
            format!("parshall_sockets_rtt_seconds_count{{{labels}}} 2"),
            "parshall_sockets_collector_records_total{result=\"torn\"} 1".into(),
            "parshall_sockets_collector_last_dump_cpu_seconds_per_socket 0.001".into(),
            "parshall_sockets_sink_errors_total{sink=\"kafka\",kind=\"refused\"} 3".into(),
            "parshall_sockets_sink_lag_seconds{sink=\"kafka\"} 1.5".into(),
            "# EOF".into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    /// The parser of Prometheus' Python client reads all types and names.
    #[test]
    fn prometheus_reads_it() {
        let Some(mut reader) = python("python", "prometheus_read.py", &[], "metrics by Prometheus' own parser") else {
            return;
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text(&status()).unwrap()).unwrap();
        let output = reader.arg(file.path()).output().unwrap();
        let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{wrong}");
        let labels = r#"cgroup=/a"b\\c\nd,"#;
        for line in [
            format!("counter parshall_sockets_sent_bytes_total {labels}local_port=443,peer=10.1.2.0/24 15"),
            format!(
                "histogram parshall_sockets_rtt_seconds_bucket {labels}le=0.000128,local_port=443,peer=10.1.2.0/24 2"
            ),
            "gauge parshall_sockets_sink_lag_seconds sink=kafka 1.5".to_owned(),
        ] {
            assert!(said.lines().any(|l| l == line), "{line} is not in\n{said}");
        }
    }

    #[test]
    fn no_series_comes_twice() {
        let text = text(&status()).unwrap();
        let mut seen = HashSet::new();
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let series = line.rsplit_once(' ').expect("a value").0;
            assert!(seen.insert(series.to_owned()), "{series}");
        }
    }
}
