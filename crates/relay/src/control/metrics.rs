//! Writes a snapshot in the OpenMetrics text format, which Prometheus reads.
use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::snapshot::{ListenerView, Snapshot};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub fn text(snapshot: Snapshot) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("parshall_relay");
    registry.register_collector(Box::new(Source(snapshot)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Source(Snapshot);

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut families = Families { encoder: &mut encoder, listeners: &self.0.listeners };
        families.of_listeners()?;
        families.of_directions()?;
        families.of_targets()?;
        families.of_process(&self.0)
    }
}

struct Families<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    listeners: &'a [ListenerView],
}

type Label<'a> = (&'static str, &'a str);

impl<'a> Families<'a, '_> {
    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = ([Label<'a>; N], u64)>,
    ) -> Result<(), Error> {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = ([Label<'a>; N], f64)>,
    ) -> Result<(), Error> {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn single(&mut self, name: &str, help: &str, value: &impl EncodeMetric) -> Result<(), Error> {
        value.encode(self.encoder.encode_descriptor(name, help, None, value.metric_type())?)
    }

    fn of_listeners(&mut self) -> Result<(), Error> {
        type Counter = (&'static str, &'static str, fn(&ListenerView) -> u64);
        const COUNTERS: [Counter; 6] = [
            ("accepted", "Connections accepted, or UDP sessions begun", |l| l.accepted),
            ("accept_pauses", "Pauses of accepting because descriptors or memory ran out", |l| l.accept_pauses),
            ("dials", "Connection attempts to targets", |l| l.dials),
            ("dial_failures", "Connection attempts to targets that failed", |l| l.dial_failures),
            ("datagrams_dropped", "Datagrams over a limit, too long or without a session", |l| l.datagrams_dropped),
            ("log_lines_unsent", "Log lines lost because the log thread was too slow", |l| l.log_lines_lost),
        ];
        let listeners = self.listeners;
        for (name, help, value) in COUNTERS {
            self.counters(name, help, listeners.iter().map(|l| ([("listener", l.name.as_str())], value(l))))?;
        }
        let active = listeners.iter().map(|l| ([("listener", l.name.as_str())], l.active as f64));
        self.gauges("active", "Connections or UDP sessions open now", active)?;
        let closed = listeners.iter().flat_map(|l| {
            l.closed.iter().map(|(reason, n)| ([("listener", l.name.as_str()), ("reason", reason.as_str())], *n))
        });
        self.counters("closed", "Connections ended, by reason", closed)?;
        let fallbacks = listeners.iter().flat_map(|l| {
            l.fallbacks.iter().map(|(reason, n)| ([("listener", l.name.as_str()), ("reason", reason.as_str())], *n))
        });
        self.counters("fallbacks", "Directions not moved by the configured engine, by reason", fallbacks)
    }

    fn of_directions(&mut self) -> Result<(), Error> {
        let listeners = self.listeners;
        let bytes = listeners.iter().flat_map(|l| {
            [("up", &l.up_bytes), ("down", &l.down_bytes)].into_iter().flat_map(move |(direction, engines)| {
                engines.iter().map(move |(engine, n)| {
                    ([("listener", l.name.as_str()), ("direction", direction), ("engine", engine.as_str())], *n)
                })
            })
        });
        self.counters("bytes", "Bytes delivered; up is from clients to targets", bytes)?;
        let datagrams = listeners.iter().flat_map(|l| {
            [("up", l.datagrams_up), ("down", l.datagrams_down)]
                .map(|(direction, n)| ([("listener", l.name.as_str()), ("direction", direction)], n))
        });
        self.counters("datagrams", "Datagrams delivered; up is from clients to targets", datagrams)
    }

    fn of_targets(&mut self) -> Result<(), Error> {
        let all = |value: fn(&super::snapshot::TargetView) -> f64| {
            self.listeners.iter().flat_map(move |l| {
                l.targets.iter().enumerate().filter_map(move |(place, t)| {
                    // A target that is configured twice has one series.
                    let again = l.targets[..place].iter().any(|before| before.target == t.target);
                    let labels = [("listener", l.name.as_str()), ("target", t.target.as_str())];
                    (!again).then(|| (labels, value(t)))
                })
            })
        };
        let (up, addresses) = (all(|t| f64::from(u8::from(t.up))), all(|t| t.addresses.len() as f64));
        self.gauges("target_up", "1 unless active checks found the target down or it has no address", up)?;
        self.gauges("target_addresses", "Addresses of the target", addresses)
    }

    fn of_process(&mut self, s: &Snapshot) -> Result<(), Error> {
        for (name, help, value) in [
            ("reloads", "Reloads that were put into force", s.reloads),
            ("reloads_refused", "Reloads that were refused", s.reloads_refused),
            ("lookups_failed", "Lookups of targets' names that failed", s.lookups_failed),
            ("checks_failed", "Checks of targets that failed", s.checks_failed),
            ("log_lines", "Log lines written", s.log_lines),
            ("log_lines_lost", "Log lines that could not be written", s.log_lines_lost),
        ] {
            self.single(name, help, &ConstCounter::new(value))?;
        }
        let cpu = ConstCounter::new(s.process.cpu_s);
        self.single("cpu_seconds", "CPU time of the process, in the kernel and outside", &cpu)?;
        let (process, draining) = (&s.process, f64::from(u8::from(s.draining)));
        for (name, help, value) in [
            ("resident_bytes", "Resident memory of the process", process.rss_bytes as f64),
            ("fds", "Open descriptors of the process", process.fds as f64),
            ("fds_max", "Descriptors that the process may have open", process.fds_max as f64),
            ("threads", "Threads of the process", process.threads as f64),
            ("uptime_seconds", "Since the start", s.uptime_s),
            ("draining", "1 once the relay accepts no more", draining),
        ] {
            self.single(name, help, &ConstGauge::new(value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::control::snapshot::TargetView;

    fn snapshot() -> Snapshot {
        let map = |pairs: &[(&str, u64)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect::<BTreeMap<_, _>>();
        let target =
            TargetView { target: "db:5432".into(), up: true, addresses: vec!["192.0.2.1:5432".into()], error: None };
        Snapshot {
            schema: "parshall.relay/1".into(),
            time: String::new(),
            uptime_s: 1.5,
            draining: false,
            process: Default::default(),
            reloads: 3,
            reloads_refused: 0,
            lookups_failed: 0,
            checks_failed: 0,
            log_lines: 0,
            log_lines_lost: 0,
            listeners: vec![ListenerView {
                name: "a \"quoted\" \\ name\n".into(),
                accepted: 7,
                closed: map(&[("finished", 5)]),
                up_bytes: map(&[("copy", 10), ("splice", 0)]),
                targets: vec![target.clone(), target],
                ..ListenerView::default()
            }],
        }
    }

    #[test]
    fn values_labels_and_escapes_are_printed() {
        let text = text(snapshot()).expect("text");
        for line in [
            r#"parshall_relay_accepted_total{listener="a \"quoted\" \\ name\n"} 7"#,
            r#"parshall_relay_closed_total{listener="a \"quoted\" \\ name\n",reason="finished"} 5"#,
            r#"parshall_relay_bytes_total{listener="a \"quoted\" \\ name\n",direction="up",engine="copy"} 10"#,
            "parshall_relay_reloads_total 3",
            "parshall_relay_uptime_seconds 1.5",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn every_series_is_unique() {
        let text = text(snapshot()).expect("text");
        let mut seen = HashSet::new();
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let series = line.rsplit_once(' ').expect("a value").0;
            assert!(seen.insert(series.to_owned()), "{series}");
        }
    }
}
