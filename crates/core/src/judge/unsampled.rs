//! Connections that the kernel counted and no probe saw. Where the state of sockets is only read from time to time, a connection
//! that begins and ends between two readings leaves no other trace.
use parshall_evidence::{Role, Rung};

use super::facts::Facts;
use super::rank::SEEN_MIN;
use crate::stats::ratio;
use crate::units;

/// Fewer new connections a second than this are no load that could be slow.
const RATE_MIN: f64 = 1.0;

/// A process that accepts or opens a connection uses a CPU for longer than this: socket(), connect() or accept(), and close() alone
/// take more.
const CONNECTION_CPU_NS: u64 = 5_000;

/// Why nothing can be said of the connections, if too many of them were not seen. The counters are those of a network namespace,
/// so the connections may be another process's, unless the subject had not the CPU time for them; what is not known of them is not
/// called healthy.
pub fn unsampled(facts: &Facts<'_>) -> Option<String> {
    if facts.capture.rung == Rung::Btf {
        return None;
    }
    let counters = facts.capture.counters.as_ref()?;
    let serves = |netns: u64| counters.listeners.iter().any(|listener| listener.netns == netns);
    let opened: u64 = counters
        .namespaces
        .iter()
        .map(|space| if serves(space.netns) { "Tcp.PassiveOpens" } else { "Tcp.ActiveOpens" }.to_owned())
        .zip(&counters.namespaces)
        .map(|(name, space)| space.rose.get(&name).copied().unwrap_or(0))
        .fold(0, u64::saturating_add);
    let server = counters.namespaces.iter().any(|space| serves(space.netns));
    let role = if server { Role::Server } else { Role::Client };
    let new = |flow: &&super::facts::FlowFact<'_>| flow.rec.begin_ns > 0 && flow.rec.role == role;
    let seen: u64 = facts.flows.iter().filter(new).map(|flow| flow.rec.connections()).sum();
    let able = match &facts.capture.threads[..] {
        [] => u64::MAX,
        threads => threads.iter().map(|thread| thread.cpu_ns).fold(0, u64::saturating_add) / CONNECTION_CPU_NS,
    };
    let unseen = opened.saturating_sub(seen).min(able);
    let all: u64 = facts.flows.iter().map(|flow| flow.rec.connections()).sum();
    let share = ratio(unseen as f64, unseen as f64 + all as f64);
    let few = (unseen as f64) < RATE_MIN * facts.window_s();
    (share > 1.0 - SEEN_MIN && !few).then(|| {
        format!(
            "{} opened that no reading of the sockets' state saw: they were shorter than the time between two readings, or of other \
             processes in the network namespace. {}",
            units::plural(unseen, "connection was", "connections were"),
            facts.advice("run it as root, where BPF programs see each connection", "`parshall doctor` says what the better rung needs.")
        )
    })
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Counters, ListenerCounters, NamespaceCounters};

    use super::*;
    use crate::testkit::{FlowBuilder, ThreadBuilder, capture, verdict_of};
    use parshall_evidence::Capture;

    /// An idle connection to port 7000, and what the kernel counted in the window.
    fn observed(rung: Rung, opens: &[(&str, u64)], listens: bool) -> Capture {
        let mut capture = capture(vec![FlowBuilder::new(1, Role::Server)], vec![]);
        capture.rung = rung;
        let rose = opens.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let listener = ListenerCounters {
            local: "127.0.0.1:7000".parse().unwrap(),
            netns: 1,
            pid: 100,
            drops: 0,
            queued: (0, 0),
            limit: 128,
        };
        capture.counters = Some(Counters {
            elapsed_ns: capture.window_ns,
            namespaces: vec![NamespaceCounters { netns: 1, rose, ..NamespaceCounters::default() }],
            listeners: if listens { vec![listener] } else { vec![] },
            ..Counters::default()
        });
        capture
    }

    #[test]
    fn short_connections_that_were_never_sampled_are_not_healthy() {
        for rung in [Rung::Procfs, Rung::Tracepoint] {
            let served = observed(rung, &[("Tcp.PassiveOpens", 60)], true);
            assert_eq!(verdict_of(&served), "insufficient-evidence", "{rung:?}");
            let asked = observed(rung, &[("Tcp.ActiveOpens", 60)], false);
            assert_eq!(verdict_of(&asked), "insufficient-evidence", "{rung:?}");
        }
    }

    #[test]
    fn what_every_probe_saw_or_nobody_opened_is_healthy() {
        let every = observed(Rung::Btf, &[("Tcp.PassiveOpens", 60)], true);
        assert_eq!(verdict_of(&every), "healthy");
        for rung in [Rung::Procfs, Rung::Tracepoint] {
            assert_eq!(verdict_of(&observed(rung, &[], true)), "healthy");
            // Nobody is slow because of what a server asks others.
            assert_eq!(verdict_of(&observed(rung, &[("Tcp.ActiveOpens", 60)], true)), "healthy");
        }
    }

    #[test]
    fn who_had_no_time_for_them_did_not_open_them() {
        let with_cpu = |us: u64| {
            let mut served = observed(Rung::Procfs, &[("Tcp.PassiveOpens", 2_000)], true);
            served.threads.push(ThreadBuilder::new(100).record);
            served.threads[0].cpu_ns = us * 1_000;
            verdict_of(&served)
        };
        assert_eq!(with_cpu(0), "healthy");
        assert_eq!(with_cpu(30_000), "insufficient-evidence");
    }

    #[test]
    fn connections_that_were_sampled_count_as_seen() {
        let mut sampled = observed(Rung::Procfs, &[("Tcp.PassiveOpens", 10)], true);
        let window = sampled.window_ns;
        for id in 2..11 {
            let mut flow = FlowBuilder::new(id, Role::Server).record;
            (flow.begin_ns, flow.end_ns) = (window / 2, window);
            sampled.flows.push(flow);
        }
        assert_eq!(verdict_of(&sampled), "healthy", "one of eleven was not seen");
        sampled.counters.as_mut().unwrap().namespaces[0].rose.insert("Tcp.PassiveOpens".into(), 100);
        assert_eq!(verdict_of(&sampled), "insufficient-evidence");
    }
}
