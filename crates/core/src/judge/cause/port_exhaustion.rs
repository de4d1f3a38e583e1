//! All ephemeral ports to one destination are taken, most of them in TIME_WAIT: connect() fails with EADDRNOTAVAIL until one is free.
//!
//! Look-alikes: a destination that does not answer (`syn-loss`); many open connections that are in use, which are a matter of the
//! number of clients.
use parshall_evidence::{Place, ShareOf};

use super::base::{Candidate, Cause, Outcome, Refused, denied};
use crate::judge::denial::{Denial, count, count_of};
use crate::judge::facts::{Facts, Lost};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "port-exhaustion",
    title: "No ephemeral port is left",
    test,
    symptom: half_taken,
    testable: record::counters,
};

/// The kernel hands out odd ports first and searches long before it gives up, so the last few are hardly ever taken.
const USED_UP: f64 = 0.95;
/// A range with as many ports is not worth widening: 10000 to 60999 has 51,000.
const WIDE_RANGE: u16 = 50_000;

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the ephemeral ports were not counted".to_string());
    };
    if counters.namespaces.iter().all(|n| n.settings.is_none()) {
        return Outcome::Untested("the range of ephemeral ports could not be read".to_string());
    }
    let Some(fullest) = counters.ports.iter().max_by(|a, b| share(a).total_cmp(&share(b))) else {
        return denied(Denial::of(count(0, "destinations", "to which half of the ephemeral ports are taken")));
    };
    let taken = format!(
        "{} of {} ephemeral ports taken to {}",
        units::count(fullest.taken),
        units::count(fullest.of),
        fullest.remote
    );
    if share(fullest) < USED_UP {
        let what = format!("taken to {}", fullest.remote);
        return denied(Denial::of(count_of(fullest.taken, fullest.of, "ephemeral ports", what)));
    }
    let summary = format!(
        "{taken}, {} of them in TIME_WAIT: connect() to it fails with EADDRNOTAVAIL until one is free again, 60 s after its connection ended.",
        units::count(fullest.time_wait)
    );
    let opened = counters.namespace(fullest.netns).map_or(0, |space| space.rose("Tcp.ActiveOpens"));
    let evidence = vec![
        words::counted("ephemeral ports taken", fullest.taken),
        words::counted("ports in the range (net.ipv4.ip_local_port_range)", fullest.of),
        words::counted("of these, in TIME_WAIT", fullest.time_wait),
        words::counted("connections opened in the window", opened),
    ];
    let settings = counters.namespace(fullest.netns).and_then(|n| n.settings);
    let mut until = Vec::new();
    if settings.is_none_or(|s| s.local_ports.1.saturating_sub(s.local_ports.0) < WIDE_RANGE) {
        until.push("`sysctl -w net.ipv4.ip_local_port_range=\"10000 60999\"`");
    }
    let loopback = fullest.remote.ip().to_canonical().is_loopback();
    if settings.is_none_or(|s| s.tw_reuse == 0 || s.tw_reuse == 2 && !loopback) {
        until.push("`sysctl -w net.ipv4.tcp_tw_reuse=1` (takes ports in TIME_WAIT after a second)");
    }
    until.push("further addresses for the destination or the client");
    let fix = format!("Keep connections and use them again (keep-alive, a pool). Until then: {}.", until.join(", or "));
    let mut candidate = Candidate::new(Lost::default(), Place::default(), summary, evidence, fix);
    // Nobody counts the calls of connect() that fail; at least one caller has waited for the whole window.
    let blocked = (fullest.taken as f64 - opened as f64).max(1.0) as u64;
    candidate.refused = Some(Refused {
        of_what: ShareOf::Connections,
        count: blocked,
        of: fullest.taken.max(blocked),
        wait_ns: facts.capture.window_ns as f64,
    });
    candidate.holds()
}

/// Destinations to which half of the ephemeral ports or more are taken.
fn half_taken(facts: &Facts<'_>) -> f64 {
    let ports = facts.capture.counters.iter().flat_map(|counters| &counters.ports);
    ports.filter(|ports| share(ports) >= 0.5).count() as f64
}

fn share(ports: &parshall_evidence::PortUse) -> f64 {
    ratio(ports.taken as f64, ports.of as f64)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{PortUse, Role};

    use crate::testkit::{FlowBuilder, capture, settings, verdict_of};

    #[test]
    fn every_port_is_taken() {
        let ports = |taken| PortUse {
            netns: 1,
            remote: "10.0.0.2:80".parse().expect("an address"),
            taken,
            time_wait: taken - 2,
            of: 60,
        };
        let mut counters = settings(|_| {});
        counters.ports = vec![ports(60)];
        let mut none_left = capture(vec![], vec![]);
        none_left.counters = Some(counters.clone());
        assert_eq!(verdict_of(&none_left), "port-exhaustion");
        counters.ports = vec![ports(40)];
        let mut some_left = capture(vec![FlowBuilder::new(1, Role::Client).talks(10, 100)], vec![]);
        some_left.counters = Some(counters);
        assert_eq!(verdict_of(&some_left), "healthy");
    }
}
