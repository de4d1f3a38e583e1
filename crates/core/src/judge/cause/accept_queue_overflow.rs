//! A listener drops connection requests: as many connections as listen() allowed wait for accept(), and further ones are turned
//! away. Their clients try again after one second, three, seven.
//!
//! Look-alikes: SYNs lost on the path (`syn-loss`: no listener drops any), a program that is out of descriptors (`fd-limit`), which
//! fills the queue too and is then the cause.
use super::base::{Candidate, Cause, Outcome, Refused, denied, stalls};
use super::common::Waits;
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, count};
use crate::judge::facts::requests::{drops_of_others, has_several_listeners};
use crate::judge::facts::{Blame, Facts, Lost, Spent, network};
use crate::judge::record;
use crate::judge::words;
use crate::sorting::IntoOrdered as _;
use crate::units;
use crate::wait::blocked_share;
use parshall_evidence::{ListenerCounters, Place, ShareOf};

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "accept-queue-overflow",
    title: "A listen queue overflows",
    test,
    symptom: turned_away,
    testable: record::counters,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the listen queues were not read".to_string());
    };
    let overflowed = network::overflowed(facts);
    let Some(worst) = overflowed.iter().max_by_key(|l| l.drops) else {
        if let Some(waits) = Waits::on(facts, Spent::TurnedAway) {
            return turned_away_by_server(facts, waits).holds();
        }
        if let Some(waits) = Waits::on(facts, Spent::NotAccepted) {
            return not_accepted(facts, waits).holds();
        }
        if let Some(unserved) = unserved(facts) {
            return unserved.candidate().holds();
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
        "The listener on {} dropped {} while {} accepted: its queue holds {}. A client that is turned away tries \
         again after 1 s, 3 s, 7 s.",
        worst.local,
        units::plural(worst.drops, "connection request", "connection requests"),
        units::plural(accepted, "was", "were"),
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

/// Connections that were dropped, and those that nobody accepted.
fn turned_away(facts: &Facts<'_>) -> f64 {
    dropped(facts) + unserved(facts).map_or(0.0, |unserved| unserved.grown as f64)
}

/// Fewer connections on top of a queue are one that its process is about to accept.
const GROWN_MIN: u64 = 4;

/// Listeners of one port that have a queue each, one of which nobody accepts from.
struct Unserved<'a> {
    listener: &'a ListenerCounters,
    /// By how many connections its queue has grown within the window.
    grown: u64,
    /// Connections that the others took.
    accepted: u64,
    /// How many the others are.
    others: u64,
    window_ns: f64,
}

/// The kernel spreads connections over the listeners of a port (SO_REUSEPORT) evenly. One whose queue had something in it and has
/// grown by more than half of its part is not accepted from, or hardly; connections stay there even when their clients have given up. Its
/// process waits for work meanwhile: one that computes, or waits for somebody else, is slow and not deaf. The kernel counts the queue, so
/// that it is known on every rung, and however little of the time its probes see.
fn unserved<'a>(facts: &Facts<'a>) -> Option<Unserved<'a>> {
    let listeners = &facts.capture.counters.as_ref()?.listeners;
    let of_group = |a: &ListenerCounters, b: &ListenerCounters| a.netns == b.netns && a.local == b.local;
    let grown = |l: &ListenerCounters| l.queued.1.saturating_sub(l.queued.0);
    let stuck = |l: &&ListenerCounters| l.queued.0 > 0 && grown(l) >= GROWN_MIN;
    let found = |listener: &'a ListenerCounters| {
        let group: Vec<&ListenerCounters> = listeners.iter().filter(|l| of_group(l, listener)).collect();
        let accepted = accepted(facts, &group);
        let all = group.iter().map(|l| grown(l)).fold(accepted, u64::saturating_add);
        let fair = all / (group.len() as u64).max(1);
        let served = group.iter().filter(|l| !stuck(l)).count() as u64;
        let deaf = served > 0 && accepted > 0 && grown(listener) * 2 > fair && waits_for_work(facts, listener.pid);
        deaf.then(|| Unserved {
            listener,
            grown: grown(listener),
            accepted,
            others: group.len() as u64 - 1,
            window_ns: facts.capture.window_ns as f64,
        })
    };
    listeners.iter().filter(stuck).filter_map(found).max_by_key(|unserved| unserved.grown)
}

/// Share of its time that a thread spends in waits for work when it has none.
const WAITS_FOR_WORK: f64 = 0.5;

fn waits_for_work(facts: &Facts<'_>, pid: u32) -> bool {
    facts.threads_of(pid).any(|thread| blocked_share(thread.rec, |wait, _| wait.is_for_new_work()) >= WAITS_FOR_WORK)
}

impl Unserved<'_> {
    fn candidate(&self) -> Candidate {
        let Self { listener, grown, accepted, others, window_ns } = self;
        let summary = format!(
            "Nobody accepts the connections of one of the listeners on {}: {} in its queue than when the window began, while {} on the same \
             port (SO_REUSEPORT) took {}.",
            listener.local,
            units::plural(*grown, "more waits", "more wait"),
            units::plural(*others, "other", "others"),
            units::count(*accepted)
        );
        let evidence = vec![
            words::counted("connections that came into its queue and stayed there", *grown),
            words::counted("waiting there when the window ended", listener.queued.1),
            words::counted("connections that were accepted", *accepted),
        ];
        let fix = "Accept from every listener of the port, or close those that nobody serves: a process that inherited one by fork() or exec() \
                   and never uses it keeps its part of the connections. `ss -tlnp` shows a line for each, with its queue and its processes."
            .to_string();
        let place = Place { pid: (listener.pid != 0).then_some(listener.pid), ..Place::default() };
        let mut candidate = Candidate::new(Lost::default(), place, summary, evidence, fix);
        // Those who came in the middle of the window have waited for half of it.
        let wait_ns = *grown as f64 * window_ns / 2.0;
        let of = accepted.saturating_add(*grown);
        candidate.refused = Some(Refused { of_what: ShareOf::Connections, count: *grown, of, wait_ns });
        candidate
    }
}

/// Connection requests that listeners dropped, for whatever reason.
fn dropped(facts: &Facts<'_>) -> f64 {
    facts.capture.counters.iter().flat_map(|counters| &counters.listeners).map(|listener| listener.drops as f64).sum()
}

/// Connections that these listeners took in the window. Where they were not counted by listener, all of their namespaces.
fn accepted(facts: &Facts<'_>, listeners: &[&ListenerCounters]) -> u64 {
    let capture = facts.capture;
    let at =
        |a: &&parshall_evidence::AtListener| listeners.iter().any(|l| l.netns == a.netns && l.local.port() == a.port);
    let counted = capture.net.accepted.iter().filter(at).fold(0u64, |n, a| n.saturating_add(a.count));
    if counted > 0 || capture.rung == parshall_evidence::Rung::Btf && !capture.net.accepted.is_empty() {
        return counted;
    }
    let spaces: std::collections::BTreeSet<u64> = listeners.iter().map(|l| l.netns).into_set();
    let opens = |netns: u64| capture.counters.as_ref()?.namespace(netns)?.rose.get("Tcp.PassiveOpens").copied();
    spaces.into_iter().filter_map(opens).fold(0, u64::saturating_add)
}

/// A server on this host that is asked over new connections turns some of them away. It is not observed, so it is found by elimination.
fn turned_away_by_server(facts: &Facts<'_>, waits: Waits<'_, '_>) -> Candidate {
    let leaf = waits.leaf;
    let parts = waits.service.lost_to(Spent::TurnedAway);
    let dropped = parts.filter_map(|part| drops_of_others(facts.capture, part.rec)).max().unwrap_or(0);
    let summary = waits.summary(&format!(
        "{} connects to {}, whose listen queue is full at times: queues on this host, and not those of what is observed, dropped {}. A \
         client that is turned away tries again after 1 s, 3 s, 7 s; that is {} a request.",
        named(leaf),
        leaf.target,
        units::plural(dropped, "connection request", "connection requests"),
        waits.each()
    ));
    let evidence = vec![words::counted("connection requests dropped by other listeners", dropped)];
    let port = leaf.object.peer().map_or(0, |to| to.port());
    let fix = format!(
        "Give listen() of the server at {} a backlog of 1024 or more (net.core.somaxconn allows no more than it says), let it accept sooner, or \
         keep connections to it. Its queue, and how long that may be: `ss -ltn sport = :{port}`",
        leaf.target
    );
    let mut candidate = waits.candidate(summary, evidence, fix);
    candidate
        .gaps
        .push(Gap::Inferred("that it is this server's queue which overflows follows from all others having room"));
    candidate
}

/// Connections have waited in the queue for the whole window, and nothing was seen to keep anybody from accepting them.
fn not_accepted(facts: &Facts<'_>, waits: Waits<'_, '_>) -> Candidate {
    let leaf = waits.leaf;
    let call = units::or(&leaf.syscall, "user code");
    let port = waits.service.rec.address.port();
    let sentence = match waits.service.rec.waited {
        true => format!("Nobody accepts the connection; {} waits in {call} meanwhile.", named(leaf)),
        false if !has_several_listeners(facts.capture, port) => format!(
            "Clients of port {port} gave up after {} on connections that nobody had accepted.",
            units::duration(waits.longest_ns())
        ),
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
         listener. Its threads: `gdb -p {} -batch -ex 'thread apply all bt'`",
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
    use parshall_evidence::{Confidence, FdKind, FlowState, HopKind, ListenerCounters, Release, Role};

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, WINDOW_NS, capture, listener, rose, verdict_of};

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
    fn a_server_that_is_not_observed_turns_connections_away() {
        // Each request of a proxy opens a connection to a server of this host, which takes 700 ms, where queues overflowed.
        let report = |overflows: u64, each_ms: f64| {
            let way = Hops::new().thread(100, 101, "proxy").on(HopKind::Connect, "epoll_wait").target("127.0.0.1:9000");
            let mut capture = with(ServiceBuilder::new(8080).requests(20, each_ms).part(way, 0.9).cpu(0.1));
            let mut flow = FlowBuilder::new(1, Role::Client).owner(100, 101);
            (flow.record.local, flow.record.remote) =
                ("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:9000".parse().unwrap());
            capture.flows.push(flow.fill().record);
            let mut counters = rose(&[("TcpExt.ListenOverflows", overflows), ("TcpExt.TCPSynRetrans", 27)]);
            counters.listeners = vec![listener(8080, 0)];
            capture.counters = Some(counters);
            crate::judge::judge(&capture).verdict
        };
        let full = report(80, 800.0);
        assert_eq!(full.cause.as_deref(), Some("accept-queue-overflow"), "{full:?}");
        assert_eq!(full.confidence, Confidence::Medium, "{full:?}");
        assert!(full.summary.contains("connects to 127.0.0.1:9000, whose listen queue is full"), "{full:?}");
        // No queue overflowed: they are lost on the way. And connections that were not asked for again.
        assert_eq!(report(0, 800.0).cause.as_deref(), Some("syn-loss"));
        assert_eq!(report(80, 80.0).cause.as_deref(), Some("connection-per-request"));
    }

    #[test]
    fn a_listener_that_nobody_connects_to_any_more_is_evidence_enough() {
        let mut full = capture(vec![], vec![]);
        let mut counters = rose(&[("TcpExt.ListenOverflows", 40)]);
        counters.listeners = vec![listener(7000, 40)];
        full.counters = Some(counters);
        assert_eq!(verdict_of(&full), "accept-queue-overflow");
    }

    /// Three listeners of a port, the first of which had `queued` waiting at the begin and the end, and the connections of a window.
    fn group(queued: (u64, u64), accepted: u64) -> parshall_evidence::Capture {
        let idle = ThreadBuilder::new(101).blocked(0, WINDOW_NS, "accept4", FdKind::Tcp).fill();
        let mut found = capture(vec![FlowBuilder::new(1, Role::Server).talks(10, 100)], vec![idle]);
        let mut counters = rose(&[("Tcp.PassiveOpens", accepted)]);
        counters.listeners =
            vec![ListenerCounters { queued, ..listener(7000, 0) }, listener(7000, 0), listener(7000, 0)];
        found.counters = Some(counters);
        found
    }

    #[test]
    fn a_listener_of_a_group_from_which_nobody_accepts_is_seen_by_its_queue() {
        let report = crate::judge::judge(&group((10, 34), 50));
        assert_eq!(report.verdict.cause.as_deref(), Some("accept-queue-overflow"), "{:?}", report.verdict);
        assert!(report.verdict.summary.contains("SO_REUSEPORT"), "{}", report.verdict.summary);
        // One whose process is busy for a moment, and one that takes most of what comes.
        assert_eq!(verdict_of(&group((0, 5), 50)), "healthy");
        assert_eq!(verdict_of(&group((3, 9), 900)), "healthy");
        // Connections that wait in a queue that grows no more are owed nothing: their clients are gone.
        assert_eq!(verdict_of(&group((34, 34), 50)), "healthy");
        // A worker that waits for somebody else, or computes, is slow and not deaf.
        let mut asks = group((10, 34), 50);
        asks.threads = vec![ThreadBuilder::new(101).blocked(0, WINDOW_NS, "recvfrom", FdKind::Tcp).fill().record];
        assert_eq!(verdict_of(&asks), "healthy");
        // A single listener is busy, or its process is: others say why.
        let mut alone = group((10, 34), 50);
        alone.counters.as_mut().unwrap().listeners.truncate(1);
        assert_eq!(verdict_of(&alone), "healthy");
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
