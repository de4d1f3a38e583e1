//! A listener drops connection requests: as many connections as listen() allowed wait for accept(), and further ones are turned
//! away. Their clients try again after one second, three, seven.
//!
//! Look-alikes: SYNs lost on the path (`syn-loss`: no listener drops any), a program that is out of descriptors (`fd-limit`), which
//! fills the queue too and is then the cause.
use super::base::{Candidate, Cause, Outcome, Refused, denied, stalls};
use super::common::Waits;
use crate::judge::chain::named;
use crate::judge::denial::{Denial, count};
use crate::judge::facts::{Blame, Facts, Spent, network};
use crate::judge::record;
use crate::judge::words;
use crate::units;
use parshall_evidence::{ListenerCounters, Place, ShareOf};

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "accept-queue-overflow",
    title: "A listen queue overflows",
    test,
    symptom: dropped,
    testable: record::counters,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the listen queues were not read".to_string());
    };
    let overflowed = network::overflowed(facts);
    let Some(worst) = overflowed.iter().max_by_key(|l| l.drops) else {
        if let Some(waits) = Waits::on(facts, Spent::NotAccepted) {
            return not_accepted(facts, waits).holds();
        }
        let drops = counters.listeners.iter().fold(0u64, |n, listener| n.saturating_add(listener.drops));
        let denial = Denial::of(count(drops, "connection requests", "dropped by listeners")).beside(count(
            counters.listeners.len() as u64,
            "listeners",
            "of the subject",
        ));
        return denied(denial.because("while their queues had room"));
    };
    let drops = overflowed.iter().fold(0u64, |n, l| n.saturating_add(l.drops));
    let accepted = accepted(facts, &overflowed);
    let lost = facts.blamed(&[Blame::AcceptQueue]);
    let summary = format!(
        "The listener on {} dropped {} connection requests while {} were accepted: its queue holds {}. A client that is turned away tries \
         again after 1 s, 3 s, 7 s.",
        worst.local,
        units::count(worst.drops),
        units::count(accepted),
        units::count(worst.limit)
    );
    let mut evidence = vec![
        words::counted("connection requests dropped by the listener", worst.drops),
        words::counted("overflows of listen queues in its namespace", counters.rose("TcpExt.ListenOverflows")),
        words::counted("connections that may wait for accept()", worst.limit),
        words::counted("waiting when the window ended", worst.queued.1),
        words::counted("connections accepted", accepted),
    ];
    if lost.ns > 0.0 {
        evidence.push(stalls("waits of clients on this host whose handshake or first data was dropped", &lost));
    }
    let place =
        Place { pid: (worst.pid != 0).then_some(worst.pid), flows: lost.by_flow.len() as u64, ..Place::default() };
    let mut candidate = Candidate::new(lost.clone(), place, summary, evidence, fix(facts, worst));
    let wait_ns = (drops as f64 * network::SYN_TIMEOUT_NS).max(lost.ns);
    candidate.refused =
        Some(Refused { of_what: ShareOf::Connections, count: drops, of: drops.saturating_add(accepted), wait_ns });
    candidate.holds()
}

/// Connection requests that listeners dropped, for whatever reason.
fn dropped(facts: &Facts<'_>) -> f64 {
    facts.capture.counters.iter().flat_map(|counters| &counters.listeners).map(|listener| listener.drops as f64).sum()
}

/// Connections that these listeners took in the window. Where they were not counted by listener, all of their namespaces.
fn accepted(facts: &Facts<'_>, listeners: &[&ListenerCounters]) -> u64 {
    let capture = facts.capture;
    let at =
        |a: &&parshall_evidence::Accepted| listeners.iter().any(|l| l.netns == a.netns && l.local.port() == a.port);
    let counted = capture.net.accepted.iter().filter(at).fold(0u64, |n, a| n.saturating_add(a.count));
    if counted > 0 || capture.rung == parshall_evidence::Rung::Btf && !capture.net.accepted.is_empty() {
        return counted;
    }
    let spaces: std::collections::BTreeSet<u64> = listeners.iter().map(|l| l.netns).collect();
    let opens = |netns: u64| capture.counters.as_ref()?.namespace(netns)?.rose.get("Tcp.PassiveOpens").copied();
    spaces.into_iter().filter_map(opens).fold(0, u64::saturating_add)
}

/// Connections have waited in the queue for the whole window, and nothing was seen to keep anybody from accepting them.
fn not_accepted(facts: &Facts<'_>, waits: Waits<'_, '_>) -> Candidate {
    let leaf = waits.leaf;
    let call = units::or(&leaf.syscall, "user code");
    let port = waits.service.rec.address.port();
    let sentence = match waits.service.rec.waited {
        true => format!("Nobody accepts the connection; {} waits in {call} meanwhile.", named(leaf)),
        false => format!(
            "Clients of port {port} gave up after {} on connections that nobody had accepted, while {} served others: one of the \
             listeners of this port (SO_REUSEPORT) has nobody who accepts.",
            units::duration(waits.longest_ns()),
            named(leaf)
        ),
    };
    let summary = waits.summary(&sentence);
    let listeners = facts.capture.counters.iter().flat_map(|c| &c.listeners);
    let queued = listeners.filter(|l| l.local.port() == port).max_by_key(|l| l.queued.1);
    let evidence = queued.map(|l| words::counted("connections waiting for accept() when the window ended", l.queued.1));
    let fix = format!(
        "See why {} does not call accept(): a limit on connections or workers that is reached, or an event loop that no longer watches its \
         listener. Its threads: gdb -p {} -batch -ex 'thread apply all bt'",
        named(leaf),
        leaf.pid
    );
    waits.candidate(summary, evidence.into_iter().collect(), fix)
}

fn fix(facts: &Facts<'_>, listener: &ListenerCounters) -> String {
    let space = facts.capture.counters.as_ref().and_then(|c| c.namespace(listener.netns)?.settings);
    let somaxconn = space.map_or(0, |settings| settings.somaxconn);
    let capped = somaxconn > 0 && listener.limit >= somaxconn;
    let raise = if capped {
        format!(
            "raise both listen()'s backlog and its limit: `sysctl -w net.core.somaxconn={}`",
            somaxconn.saturating_mul(4).max(4096)
        )
    } else {
        let allowed = if somaxconn > 0 {
            format!(" (net.core.somaxconn allows {})", units::count(somaxconn))
        } else {
            String::new()
        };
        format!("give listen() a backlog of 1024 or more{allowed}")
    };
    format!(
        "Accept sooner: in a loop until EAGAIN, in a thread that does nothing else, or in several processes (SO_REUSEPORT). For bursts, \
         {raise}. Kept connections need fewer of them. Congestion control has no part in it."
    )
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, capture, listener, rose, verdict_of};

    #[test]
    fn drops_of_a_listener_outrank_what_flows_show() {
        let client = FlowBuilder::new(1, Role::Client)
            .every(250 * MS, 0, 205 * MS, FlowState::InFlight, Release::RtoTimer)
            .talks(1, 64)
            .retransmitted(4);
        let mut full = capture(vec![client], vec![]);
        let mut counters = rose(&[("TcpExt.ListenOverflows", 90), ("Tcp.PassiveOpens", 900)]);
        counters.listeners = vec![listener(7000, 90)];
        full.counters = Some(counters.clone());
        let report = crate::judge::judge(&full);
        assert_eq!(report.verdict.cause.as_deref(), Some("accept-queue-overflow"));
        assert_eq!(report.verdict.confidence, Confidence::High);
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        assert!(!report.findings[0].fix.text.contains("BBR"));
        // The flows' retransmissions are somebody else's when the listener has room.
        counters.listeners = vec![listener(7000, 0)];
        full.counters = Some(counters);
        assert_eq!(verdict_of(&full), "retransmission-timeout");
    }

    #[test]
    fn a_listener_that_nobody_connects_to_any_more_is_evidence_enough() {
        let mut full = capture(vec![], vec![]);
        let mut counters = rose(&[("TcpExt.ListenOverflows", 40)]);
        counters.listeners = vec![listener(7000, 40)];
        full.counters = Some(counters);
        assert_eq!(verdict_of(&full), "accept-queue-overflow");
    }

    #[test]
    fn a_drop_now_and_then_is_not_named() {
        let mut busy = capture(vec![FlowBuilder::new(1, Role::Server).talks(10, 100)], vec![]);
        let mut counters = rose(&[("TcpExt.ListenOverflows", 2), ("Tcp.PassiveOpens", 9000)]);
        counters.listeners = vec![listener(7000, 2)];
        busy.counters = Some(counters);
        assert_eq!(verdict_of(&busy), "healthy");
    }
}
