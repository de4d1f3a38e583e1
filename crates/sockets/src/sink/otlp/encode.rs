//! Aggregates as OTLP metrics (opentelemetry-proto, collector/metrics/v1 and metrics/v1), in requests of bounded size.
use parshall_core::sockets::Dump;
use parshall_core::sockets::aggregate::{COUNTERS, DISTRIBUTIONS, Distribution, LEVELS, Label, Series, Snapshot};
use parshall_evidence::socket::Kind;
use parshall_evidence::socket::selection::state_name;

use crate::wire::{MessageReader, MessageWriter, Value};

/// Series in one request: at most a megabyte.
const SERIES_MAX: usize = 200;
/// AGGREGATION_TEMPORALITY_CUMULATIVE.
const CUMULATIVE: u64 = 2;

/// A request, and the number of its data points.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub bytes: Vec<u8>,
    pub points: u32,
}

/// The requests with a snapshot.
pub fn requests(snapshot: &Snapshot, dump: &Dump) -> Vec<Request> {
    let part = |series: &[Series]| {
        let mut writer = Writer { labels: &snapshot.labels, series, at: dump.at_unix_ns, points: 0 };
        let mut request = MessageWriter::default();
        request.message(1, |resource_metrics| {
            resource_metrics.message(1, |resource| {
                attribute(resource, 1, "service.name", "parshall-sockets");
                attribute(resource, 1, "host.name", &dump.host);
            });
            resource_metrics.message(2, |scope_metrics| {
                scope_metrics.message(1, |scope| {
                    scope.bytes(1, "parshall.sockets");
                    scope.bytes(2, env!("CARGO_PKG_VERSION"));
                });
                writer.metrics(scope_metrics);
            });
        });
        Request { bytes: request.0, points: writer.points }
    };
    snapshot.series.chunks(SERIES_MAX).map(part).collect()
}

fn attribute(message: &mut MessageWriter, number: u32, key: &str, value: &str) {
    message.message(number, |m| {
        m.bytes(1, key);
        m.message(2, |any| any.always(1, value));
    });
}

struct Writer<'a> {
    labels: &'a [Label],
    series: &'a [Series],
    at: u64,
    points: u32,
}

impl Writer<'_> {
    fn metrics(&mut self, out: &mut MessageWriter) {
        out.message(2, |metric| {
            head(metric, "open", "{socket}", "Open sockets, by kind and state");
            metric.message(5, |gauge| self.open(gauge));
        });
        for (i, level) in LEVELS.iter().enumerate() {
            out.message(2, |metric| {
                head(metric, level.name, level.unit, level.help);
                metric.message(5, |gauge| self.numbers(gauge, |series| series.levels[i]));
            });
        }
        for (i, counter) in COUNTERS.iter().enumerate() {
            out.message(2, |metric| {
                head(metric, counter.name, counter.unit, counter.help);
                metric.message(7, |sum| {
                    self.numbers(sum, |series| series.counters[i]);
                    sum.uint(2, CUMULATIVE);
                    sum.uint(3, 1);
                });
            });
        }
        for (i, distribution) in DISTRIBUTIONS.iter().enumerate() {
            out.message(2, |metric| {
                head(metric, distribution.name, distribution.unit, distribution.help);
                metric.message(9, |histogram| self.histogram(histogram, i, distribution));
            });
        }
    }

    fn attributes(&self, point: &mut MessageWriter, number: u32, series: &Series) {
        for (label, value) in self.labels.iter().zip(series.labels.iter()) {
            attribute(point, number, label.name(), value);
        }
    }

    /// A `NumberDataPoint` without attributes.
    fn number(&mut self, point: &mut MessageWriter, series: &Series, value: u64) {
        self.points += 1;
        point.fixed64(2, series.start_unix_ns);
        point.fixed64(3, self.at);
        point.fixed64(6, value);
    }

    fn open(&mut self, gauge: &mut MessageWriter) {
        for series in self.series {
            for (kind, states) in Kind::ALL.into_iter().zip(&series.sockets) {
                for (state, count) in states.iter().enumerate().filter(|(_, n)| **n > 0) {
                    gauge.message(1, |point| {
                        self.number(point, series, u64::from(*count));
                        self.attributes(point, 7, series);
                        attribute(point, 7, "kind", kind.name());
                        attribute(point, 7, "state", state_name(state as u8));
                    });
                }
            }
        }
    }

    fn numbers(&mut self, out: &mut MessageWriter, value: impl Fn(&Series) -> u64) {
        for series in self.series {
            out.message(1, |point| {
                self.number(point, series, value(series));
                self.attributes(point, 7, series);
            });
        }
    }

    fn histogram(&mut self, out: &mut MessageWriter, i: usize, distribution: &Distribution) {
        for series in self.series {
            let histogram = &series.histograms[i];
            self.points += 1;
            out.message(1, |point| {
                point.fixed64(2, series.start_unix_ns);
                point.fixed64(3, self.at);
                point.fixed64(4, histogram.buckets.iter().sum());
                point.fixed64(5, (histogram.sum as f64 / distribution.scale).to_bits());
                point.packed_fixed64(6, histogram.buckets.iter().copied());
                let bounds = distribution.bounds.iter().map(|b| (*b as f64 / distribution.scale).to_bits());
                point.packed_fixed64(7, bounds);
                self.attributes(point, 9, series);
            });
        }
        out.uint(2, CUMULATIVE);
    }
}

fn head(metric: &mut MessageWriter, name: &str, unit: &str, help: &str) {
    metric.bytes(1, format!("parshall.sockets.{name}"));
    metric.bytes(2, help);
    metric.bytes(3, unit);
}

/// `rejected_data_points` and the message of an `ExportMetricsServiceResponse`; zero and empty if it has none.
pub fn rejected(response: &[u8]) -> (u64, String) {
    let mut rejected = (0, String::new());
    let Some(Value::Bytes(partial)) = MessageReader(response).find(1) else { return rejected };
    if let Some(Value::Number(n)) = MessageReader(partial).find(1) {
        rejected.0 = n;
    }
    if let Some(Value::Bytes(text)) = MessageReader(partial).find(2) {
        rejected.1 = String::from_utf8_lossy(text).chars().take(200).collect();
    }
    rejected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_and_any_bytes_are_accepted() {
        assert_eq!(rejected(&[]), (0, String::new()));
        let mut response = MessageWriter::default();
        response.message(1, |m| {
            m.uint(1, 300);
            m.bytes(2, "too old");
        });
        assert_eq!(rejected(&response.0), (300, "too old".into()));
        for cut in 0..response.0.len() {
            rejected(&response.0[..cut]);
        }
        rejected(&[0xff; 20]);
    }
}
