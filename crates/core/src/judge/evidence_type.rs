//! The types of evidence, and which of them each cause may claim: one table. Evidence of no known type stays unknown, and is never a cause.
//!
//! This module has the types of lost time of flows, how the type of a wait is told from the way to it, and the table. Requests' waits
//! have the types of [`HopKind`]. The rules by which a cause reads its evidence, and its look-alikes, are in its own file.
use parshall_evidence::{Hop, HopKind};

use HopKind::{
    AcceptQueue, Client, Close, Connect, Deadlock, Disk, Held, Idle, Kernel, Lock, Memory, NameServer, Network, OnCpu,
    OtherRequest, Pipe, Reply, RunQueue, Send, Stopped, Throttled, Timer, Turn, Unread, Unseen, Worker,
};

/// The party or the mechanism that a piece of lost time belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blame {
    /// Nagle's algorithm, for one round trip.
    Nagle,
    /// Nagle's algorithm and the peer's delayed ACK.
    NagleDelack,
    /// The peer's Nagle algorithm and our delayed ACK; the peer is not in the capture.
    PeerHeld,
    /// TCP_CORK or MSG_MORE.
    Cork,
    /// Fast recovery.
    Loss,
    /// The retransmission timer.
    Rto,
    /// A congestion window that was cut for loss.
    Cwnd,
    /// The peer's receive window.
    PeerWindow,
    /// Our own send buffer.
    Sndbuf,
    /// Pacing.
    Paced,
    /// The local qdisc.
    Qdisc,
    /// A reader of a stream that slept with data waiting.
    ReaderBlocked,
    /// A client that slept by a timer between two pieces of its reply.
    ReaderPauses,
    /// A client that slept by a timer between two pieces of what it sends.
    SenderPauses,
    /// A thread at work in user mode.
    CpuUser,
    /// A thread at work in the kernel.
    CpuKernel,
    /// A thread that waited for a CPU.
    RunQueue,
    /// A thread out of quota.
    Throttled,
    /// A thread that slept with a request to answer.
    AppBlocked,
    /// A thread that slept instead of supplying data to a stream.
    SupplyBlocked,
    /// A process that keeps pieces of a stream until a timer ends.
    HeldBack,
    /// The peer's application.
    PeerThink,
    /// A receive buffer that an application fixed.
    RcvbufLocked,
    /// A send buffer that an application fixed.
    SndbufLocked,
    /// The largest buffer that the host's settings allow.
    SysctlCap,
    /// A window that is used up once in each round trip.
    WindowPerRtt,
    /// A receive queue whose memory is far larger than its data.
    QueueCollapse,
    /// A rate limit of a local device.
    Shaper,
    /// A congestion window that begins again after a pause.
    Restart,
    /// The slowest link of the path.
    Bottleneck,
    /// A path that loses large packets without a word.
    BlackHole,
    /// A SYN, or its answer, that was lost.
    Syn,
    /// A listener that had no room for another connection.
    AcceptQueue,
    /// Opening a connection for a request or a few.
    Setup,
    /// Asking one thing after the other.
    RoundTrips,
}

impl Blame {
    /// Its name for people.
    pub fn label(self) -> &'static str {
        match self {
            Blame::Nagle => "held by Nagle",
            Blame::NagleDelack => "held by Nagle, ACK delayed",
            Blame::PeerHeld => "peer held by our delayed ACK",
            Blame::Cork => "held by cork",
            Blame::Loss => "loss recovery",
            Blame::Rto => "retransmission timeout",
            Blame::Cwnd => "congestion window",
            Blame::PeerWindow => "peer's window",
            Blame::Sndbuf => "send buffer",
            Blame::Paced => "pacing",
            Blame::Qdisc => "local qdisc",
            Blame::ReaderBlocked => "reader asleep",
            Blame::ReaderPauses => "client pausing between reads",
            Blame::SenderPauses => "client pausing between sends",
            Blame::CpuUser => "application computing",
            Blame::CpuKernel => "kernel at work for the application",
            Blame::RunQueue => "run queue",
            Blame::Throttled => "CPU quota",
            Blame::AppBlocked => "application asleep",
            Blame::SupplyBlocked => "no data supplied",
            Blame::HeldBack => "held back until a timer ends",
            Blame::PeerThink => "peer thinking",
            Blame::RcvbufLocked => "receive buffer fixed by SO_RCVBUF",
            Blame::SndbufLocked => "send buffer fixed by SO_SNDBUF",
            Blame::SysctlCap => "largest buffer of the host's settings",
            Blame::WindowPerRtt => "one window per round trip",
            Blame::QueueCollapse => "receive queue collapsed",
            Blame::Shaper => "rate limit of a local device",
            Blame::Restart => "congestion window after a pause",
            Blame::Bottleneck => "bottleneck of the path",
            Blame::BlackHole => "large packets lost",
            Blame::Syn => "SYN lost",
            Blame::AcceptQueue => "accept queue full",
            Blame::Setup => "connections being opened",
            Blame::RoundTrips => "round trips, one after the other",
        }
    }
}

/// The evidence that a cause may claim.
#[derive(Debug, Clone, Copy)]
pub struct EvidenceTypes {
    /// The cause's id.
    pub cause: &'static str,
    /// Requests' waits of these types.
    pub waits: &'static [HopKind],
    /// Requests' waits of any known type behind a wait of one of these: a lock's holder may do anything.
    pub through: &'static [HopKind],
    /// Lost time of flows.
    pub flows: &'static [Blame],
    /// Counters of the kernel, or of a process' table.
    pub counted: bool,
    /// Time of threads that no request and no flow shows.
    pub threads: bool,
}

const NONE: EvidenceTypes =
    EvidenceTypes { cause: "", waits: &[], through: &[], flows: &[], counted: false, threads: false };

/// The table: a row for each cause.
#[rustfmt::skip]
pub const TABLE: &[EvidenceTypes] = &[
    EvidenceTypes { cause: "nagle-delayed-ack", waits: &[Held], flows: &[Blame::NagleDelack, Blame::PeerHeld], ..NONE },
    EvidenceTypes { cause: "nagle-hold", flows: &[Blame::Nagle], ..NONE },
    EvidenceTypes { cause: "cork-held", flows: &[Blame::Cork], ..NONE },
    EvidenceTypes { cause: "packet-loss", flows: &[Blame::Loss, Blame::Rto, Blame::Cwnd], ..NONE },
    EvidenceTypes { cause: "retransmission-timeout", flows: &[Blame::Rto, Blame::Loss, Blame::Cwnd], ..NONE },
    EvidenceTypes { cause: "pmtu-black-hole", flows: &[Blame::BlackHole], ..NONE },
    EvidenceTypes { cause: "syn-loss", waits: &[Connect], flows: &[Blame::Syn], counted: true, ..NONE },
    EvidenceTypes { cause: "accept-queue-overflow", waits: &[AcceptQueue, Connect], flows: &[Blame::AcceptQueue], counted: true, ..NONE },
    EvidenceTypes { cause: "fd-limit", waits: &[AcceptQueue], counted: true, ..NONE },
    EvidenceTypes { cause: "port-exhaustion", counted: true, ..NONE },
    EvidenceTypes { cause: "resets", counted: true, ..NONE },
    EvidenceTypes { cause: "udp-rcvbuf-overflow", counted: true, ..NONE },
    EvidenceTypes { cause: "connection-per-request", waits: &[Connect, Reply, Network, Client, OnCpu, RunQueue], flows: &[Blame::Setup], ..NONE },
    EvidenceTypes { cause: "serial-protocol", flows: &[Blame::RoundTrips], ..NONE },
    EvidenceTypes { cause: "rcvbuf-locked", flows: &[Blame::RcvbufLocked], ..NONE },
    EvidenceTypes { cause: "sndbuf-limited", flows: &[Blame::SndbufLocked], ..NONE },
    EvidenceTypes { cause: "buffer-sysctl-cap", flows: &[Blame::SysctlCap], ..NONE },
    EvidenceTypes { cause: "rtt-window-bound", flows: &[Blame::WindowPerRtt], ..NONE },
    EvidenceTypes { cause: "receive-queue-collapse", flows: &[Blame::QueueCollapse], ..NONE },
    EvidenceTypes { cause: "slow-start-after-idle", flows: &[Blame::Restart], ..NONE },
    EvidenceTypes { cause: "local-shaper", flows: &[Blame::Shaper], ..NONE },
    EvidenceTypes { cause: "bottleneck-bandwidth", flows: &[Blame::Bottleneck], ..NONE },
    EvidenceTypes { cause: "cpu-throttled", waits: &[Throttled], flows: &[Blame::Throttled], threads: true, ..NONE },
    EvidenceTypes { cause: "handshake-per-request", waits: &[OnCpu, RunQueue], flows: &[Blame::CpuUser], threads: true, ..NONE },
    EvidenceTypes { cause: "user-cpu-bound", waits: &[OnCpu, RunQueue], flows: &[Blame::CpuUser], threads: true, ..NONE },
    EvidenceTypes { cause: "small-copy-buffer", threads: true, ..NONE },
    EvidenceTypes { cause: "slow-reader", flows: &[Blame::ReaderBlocked, Blame::ReaderPauses], ..NONE },
    EvidenceTypes { cause: "peer-window-limited", flows: &[Blame::PeerWindow], ..NONE },
    EvidenceTypes { cause: "peer-think-time", flows: &[Blame::PeerThink], ..NONE },
    EvidenceTypes { cause: "app-limited", flows: &[Blame::SupplyBlocked, Blame::SenderPauses, Blame::AppBlocked], ..NONE },
    EvidenceTypes { cause: "lock-contention", waits: &[Lock, Deadlock], through: &[Lock], ..NONE },
    EvidenceTypes { cause: "blocking-disk-io", waits: &[Disk], ..NONE },
    EvidenceTypes { cause: "blocking-downstream-call", waits: &[Reply, Close, Unread, AcceptQueue], ..NONE },
    EvidenceTypes { cause: "blocking-dns", waits: &[NameServer], ..NONE },
    EvidenceTypes { cause: "timer-wait", waits: &[Timer], flows: &[Blame::HeldBack], ..NONE },
    EvidenceTypes { cause: "concurrency-limit", waits: &[Reply, Network, OtherRequest, Idle, Timer, Worker, Pipe, Send, Connect, Client, Kernel, AcceptQueue, Unread], through: &[Turn], ..NONE },
    EvidenceTypes { cause: "serialized-service", waits: &[Timer, Worker, Kernel, Reply, OtherRequest, Unread, AcceptQueue], ..NONE },
    EvidenceTypes { cause: "workers-exhausted", waits: &[Timer, Worker, Kernel, Reply, OtherRequest, Unread, AcceptQueue], ..NONE },
    EvidenceTypes { cause: "stop-the-world", waits: &[OnCpu, RunQueue, Throttled, Lock, Worker, Timer, Disk, Memory], ..NONE },
    EvidenceTypes { cause: "hot-thread", waits: &[OnCpu, RunQueue], ..NONE },
    EvidenceTypes { cause: "run-queue-latency", waits: &[RunQueue], threads: true, ..NONE },
    EvidenceTypes { cause: "kernel-cpu-bound", waits: &[OnCpu, RunQueue], threads: true, ..NONE },
    EvidenceTypes { cause: "blocking-log-write", waits: &[Pipe, Disk], through: &[Pipe], ..NONE },
    EvidenceTypes { cause: "memory-reclaim", waits: &[Memory, Disk, OnCpu, RunQueue], ..NONE },
    EvidenceTypes { cause: "page-fault-churn", waits: &[OnCpu, RunQueue, Memory], ..NONE },
    EvidenceTypes { cause: "process-stopped", waits: &[Stopped], ..NONE },
];

/// The row of a cause.
pub fn of(cause: &str) -> Option<&'static EvidenceTypes> {
    TABLE.iter().find(|row| row.cause == cause)
}

/// The type of a wait: what its last hop waited for, unless whoever should have taken the request in was idle meanwhile, or only the other
/// end of a connection is known to owe an answer. [`HopKind::Unseen`] is unknown.
pub fn of_wait(hops: &[Hop]) -> HopKind {
    let Some((leaf, way)) = hops.split_last() else { return Unseen };
    let inner = way.iter().rposition(|hop| hop.kind == Reply);
    let asked = way.last().is_some_and(|hop| hop.kind == Reply);
    let queue = way[inner.map_or(0, |at| at + 1)..].iter().find(|hop| hop.kind.is_queue());
    match (leaf.kind, queue) {
        (Network | Idle | Client | Send | OtherRequest, Some(queue)) => queue.kind,
        (Network | Idle | Client | Send, None) if asked => Reply,
        (kind, _) => kind,
    }
}

/// Whether a cause may claim a wait.
pub fn may_claim(cause: &str, hops: &[Hop]) -> bool {
    let wait = of_wait(hops);
    let behind = |row: &EvidenceTypes| hops.iter().any(|hop| row.through.contains(&hop.kind));
    of(cause).is_some_and(|row| row.waits.contains(&wait) || behind(row))
}

/// The part of the capture in which a cause found the time that it claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the requests' paths.
    Requests,
    /// In the accounts of flows.
    Flows,
    /// In the accounts of threads.
    Threads,
    /// In counters.
    Counters,
}

/// Whether a cause may claim anything that was found there.
pub fn may_use(cause: &str, source: Source) -> bool {
    of(cause).is_some_and(|row| match source {
        Source::Requests => !row.waits.is_empty(),
        Source::Flows => !row.flows.is_empty(),
        Source::Threads => row.threads,
        Source::Counters => row.counted,
    })
}

/// Whether two causes claim evidence of the same type, so that one may be taken for the other.
pub fn are_alike(one: &str, other: &str) -> bool {
    let shared = |a: &EvidenceTypes, b: &EvidenceTypes| {
        a.waits.iter().any(|wait| b.waits.contains(wait)) || a.flows.iter().any(|flow| b.flows.contains(flow))
    };
    of(one).zip(of(other)).is_some_and(|(a, b)| shared(a, b))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Counters, FlowState, Release, Report, Role, ShareOf};
    use proptest::prelude::*;

    use super::*;
    use crate::judge::cause::CAUSES;
    use crate::judge::facts::Facts;
    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS, arb, capture, listener};

    #[test]
    fn each_cause_has_a_row_and_each_row_a_cause() {
        let mut rows: Vec<&str> = TABLE.iter().map(|row| row.cause).collect();
        let mut causes: Vec<&str> = CAUSES.iter().map(|cause| cause.id).collect();
        rows.sort_unstable();
        causes.sort_unstable();
        assert_eq!(rows, causes);
        let claims = |row: &EvidenceTypes| !row.waits.is_empty() || !row.flows.is_empty() || row.counted || row.threads;
        assert!(TABLE.iter().all(claims));
        // Unknown evidence belongs to no cause.
        assert!(TABLE.iter().all(|row| !row.waits.contains(&Unseen) && !row.through.contains(&Unseen)));
    }

    /// Ways to a leaf: it is the wait itself, or it stands behind another one.
    fn ways() -> Vec<Vec<HopKind>> {
        vec![
            vec![],
            vec![Unread],
            vec![AcceptQueue],
            vec![Reply],
            vec![Worker],
            vec![Reply, Unread],
            vec![Lock],
            vec![Pipe],
        ]
    }

    fn service(way: &[HopKind], leaf: HopKind, workers: u32, setup: bool, each_ms: f64) -> parshall_evidence::Capture {
        let mut hops = Hops::new();
        for (n, kind) in way.iter().enumerate() {
            let tid = 101 + n as u32;
            hops = hops.thread(100, tid, "app").on(*kind, "futex").target(if *kind == Reply {
                "127.0.0.1:9000"
            } else {
                ""
            });
        }
        let target = match leaf {
            Reply | Close | Connect | Send | NameServer => "10.9.0.2:5432",
            _ => "",
        };
        hops = hops.thread(100, 150, "app").on(leaf, "call").target(target);
        if leaf == RunQueue {
            hops = hops.runs("rustc", 4000);
        }
        let mut service = ServiceBuilder::new(7000).requests(60, each_ms).workers(workers).part(hops, 1.0);
        service.record.connections = 60;
        service.record.opened = if setup { 60 } else { 0 };
        let mut capture = with(service);
        capture.services[0].path.iter_mut().for_each(|part| part.setup = setup);
        // One of the listeners of its port may have nobody who accepts.
        capture.counters = Some(Counters { listeners: vec![listener(7000, 0); 2], ..Counters::default() });
        capture
    }

    /// The causes of requests that a report names.
    fn named(report: &Report) -> Vec<String> {
        report.findings.iter().filter(|f| f.share_of == ShareOf::RequestTime).map(|f| f.cause.clone()).collect()
    }

    #[test]
    fn no_cause_is_named_for_a_wait_of_a_type_that_it_may_not_claim() {
        let (mut told, mut cases) = (std::collections::BTreeSet::new(), 0);
        for leaf in HopKind::ALL {
            for way in ways() {
                for (workers, setup) in [(1, false), (8, false), (1, true)] {
                    let capture = service(&way, leaf, workers, setup, 16.0);
                    let hops = &capture.services[0].path[0].hops;
                    for cause in named(&judge(&capture)) {
                        assert!(may_claim(&cause, hops), "{cause} for {leaf:?} behind {way:?}");
                        told.insert(cause);
                    }
                    cases += 1;
                }
            }
        }
        // The test is no test if nothing is named.
        assert!(cases > 500 && told.len() >= 14, "{told:?}");
    }

    #[test]
    fn what_is_unknown_is_no_cause() {
        for way in ways().into_iter().filter(|way| !way.contains(&Lock) && !way.contains(&Pipe)) {
            let report = judge(&service(&way, Unseen, 1, false, 16.0));
            assert_eq!(named(&report), Vec::<String>::new(), "{way:?}");
        }
    }

    #[test]
    fn a_connection_that_waits_for_an_idle_thread_is_in_the_queue_and_not_on_the_way() {
        let queue = service(&[AcceptQueue], Network, 1, true, 16.0);
        assert_eq!(of_wait(&queue.services[0].path[0].hops), AcceptQueue);
        assert_eq!(named(&judge(&queue)), Vec::<String>::new());
        // Opening itself does cost round trips.
        assert_eq!(named(&judge(&service(&[], Connect, 1, true, 16.0))), ["connection-per-request"]);
        // A server that looks up its client's name waits for that, whatever the connection is opened for.
        assert_eq!(named(&judge(&service(&[], NameServer, 1, true, 16.0))), ["blocking-dns"]);
    }

    #[test]
    fn flows_lose_time_to_causes_of_its_type_only() {
        let states = [
            FlowState::Nagle,
            FlowState::Corked,
            FlowState::PeerWindow,
            FlowState::Cwnd,
            FlowState::Sndbuf,
            FlowState::Paced,
            FlowState::Qdisc,
            FlowState::Recovery,
            FlowState::Loss,
            FlowState::InFlight,
            FlowState::RxWaiting,
            FlowState::IdleAfterSend,
            FlowState::IdleAfterRecv,
        ];
        let releases = [Release::RxAck, Release::RxAckDelayed, Release::RxData, Release::AppSend, Release::Sampled];
        let mut told = std::collections::BTreeSet::new();
        for (state, release) in states.into_iter().flat_map(|state| releases.map(|release| (state, release))) {
            let flow = FlowBuilder::new(1, Role::Client).every(50 * MS, 0, 42 * MS, state, release);
            for flow in [flow.clone().talks_in_parts(20), flow.clone().streams(1000, 16_384), flow.retransmitted(20)] {
                let capture = capture(vec![flow], vec![]);
                let facts = Facts::new(&capture, &capture.services);
                for finding in judge(&capture).findings.iter().filter(|f| f.share_of == ShareOf::FlowTime) {
                    let row = of(&finding.cause).expect("a row");
                    let owns = facts.parts.iter().any(|part| row.flows.contains(&part.blame));
                    assert!(owns, "{} for {state:?} {release:?}", finding.cause);
                    told.insert(finding.cause.clone());
                }
            }
        }
        assert!(told.len() >= 6, "{told:?}");
    }

    proptest! {
        #[test]
        fn whatever_was_seen_no_cause_claims_another_type(capture in arb::capture()) {
            let facts = Facts::new(&capture, &capture.services);
            for part in facts.requests.services.iter().flat_map(|service| &service.parts) {
                let Some(cause) = part.spent.cause() else { continue };
                let row_lock = part.spent == crate::judge::facts::Spent::Lock;
                prop_assert!(row_lock || may_claim(cause, &part.rec.hops), "{cause}: {:?}", part.rec.hops);
            }
        }
    }
}
