//! Writes a snapshot in the OpenMetrics text format, which Prometheus reads.
use std::fmt;

use parshall_host::open_metrics::{self, Families};

use super::snapshot::{ListenerView, Snapshot, TargetView};

pub fn text(snapshot: Snapshot) -> Result<String, fmt::Error> {
    open_metrics::text("parshall_relay", move |families| {
        of_listeners(&snapshot.listeners, families)?;
        of_directions(&snapshot.listeners, families)?;
        of_targets(&snapshot.listeners, families)?;
        of_process(&snapshot, families)
    })
}

fn of_listeners(listeners: &[ListenerView], families: &mut Families<'_, '_>) -> fmt::Result {
    type Counter = (&'static str, &'static str, fn(&ListenerView) -> u64);
    const COUNTERS: [Counter; 6] = [
        ("accepted", "Connections accepted, or UDP sessions begun", |l| l.accepted),
        ("accept_pauses", "Pauses of accepting because descriptors or memory ran out", |l| l.accept_pauses),
        ("dials", "Connection attempts to targets", |l| l.dials),
        ("dial_failures", "Connection attempts to targets that failed", |l| l.dial_failures),
        ("datagrams_dropped", "Datagrams over a limit, too long or without a session", |l| l.datagrams_dropped),
        ("log_lines_unsent", "Log lines lost because the log thread was too slow", |l| l.log_lines_lost),
    ];
    for (name, help, value) in COUNTERS {
        families.counters(name, help, listeners.iter().map(|l| ([("listener", l.name.as_str())], value(l))))?;
    }
    let active = listeners.iter().map(|l| ([("listener", l.name.as_str())], l.active as f64));
    families.gauges("active", "Connections or UDP sessions open now", active)?;
    let closed = listeners.iter().flat_map(|l| {
        l.closed.iter().map(|(reason, n)| ([("listener", l.name.as_str()), ("reason", reason.as_str())], *n))
    });
    families.counters("closed", "Connections ended, by reason", closed)?;
    let fallbacks = listeners.iter().flat_map(|l| {
        l.fallbacks.iter().map(|(reason, n)| ([("listener", l.name.as_str()), ("reason", reason.as_str())], *n))
    });
    families.counters("fallbacks", "Directions not moved by the configured engine, by reason", fallbacks)
}

fn of_directions(listeners: &[ListenerView], families: &mut Families<'_, '_>) -> fmt::Result {
    let bytes = listeners.iter().flat_map(|l| {
        [("up", &l.up_bytes), ("down", &l.down_bytes)].into_iter().flat_map(move |(direction, engines)| {
            engines.iter().map(move |(engine, n)| {
                ([("listener", l.name.as_str()), ("direction", direction), ("engine", engine.as_str())], *n)
            })
        })
    });
    families.counters("bytes", "Bytes delivered; up is from clients to targets", bytes)?;
    let datagrams = listeners.iter().flat_map(|l| {
        [("up", l.datagrams_up), ("down", l.datagrams_down)]
            .map(|(direction, n)| ([("listener", l.name.as_str()), ("direction", direction)], n))
    });
    families.counters("datagrams", "Datagrams delivered; up is from clients to targets", datagrams)
}

fn of_targets(listeners: &[ListenerView], families: &mut Families<'_, '_>) -> fmt::Result {
    let all = |value: fn(&TargetView) -> f64| {
        listeners.iter().flat_map(move |l| {
            l.targets.iter().enumerate().filter_map(move |(place, t)| {
                // A target that is configured twice has one series.
                let again = l.targets[..place].iter().any(|before| before.target == t.target);
                let labels = [("listener", l.name.as_str()), ("target", t.target.as_str())];
                (!again).then(|| (labels, value(t)))
            })
        })
    };
    let (up, addresses) = (all(|t| f64::from(u8::from(t.up))), all(|t| t.addresses.len() as f64));
    families.gauges("target_up", "1 unless active checks found the target down or it has no address", up)?;
    families.gauges("target_addresses", "Addresses of the target", addresses)
}

fn of_process(s: &Snapshot, families: &mut Families<'_, '_>) -> fmt::Result {
    for (name, help, value) in [
        ("reloads", "Reloads that were put into force", s.reloads),
        ("reloads_refused", "Reloads that were refused", s.reloads_refused),
        ("lookups_failed", "Lookups of targets' names that failed", s.lookups_failed),
        ("checks_failed", "Checks of targets that failed", s.checks_failed),
        ("log_lines", "Log lines written", s.log_lines),
        ("log_lines_lost", "Log lines that could not be written", s.log_lines_lost),
    ] {
        families.counter(name, help, value)?;
    }
    families.counter_s("cpu_seconds", "CPU time of the process, in the kernel and outside", s.process.cpu_s)?;
    let (process, draining) = (&s.process, f64::from(u8::from(s.draining)));
    for (name, help, value) in [
        ("resident_bytes", "Resident memory of the process", process.rss_bytes as f64),
        ("fds", "Open descriptors of the process", process.fds as f64),
        ("fds_max", "Descriptors that the process may have open", process.fds_max as f64),
        ("threads", "Threads of the process", process.threads as f64),
        ("uptime_seconds", "Since the start", s.uptime_s),
        ("draining", "1 once the relay accepts no more", draining),
    ] {
        families.gauge(name, help, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;

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
