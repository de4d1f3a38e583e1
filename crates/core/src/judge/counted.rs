//! The events that count into the figures of a report: which stalls of sockets, which times of requests and which waits of threads.
//!
//! This module has the choice, in the words of the evidence. The trace decides where these events are drawn. Figures that the
//! kernel counts, and times on a CPU, have no single events.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::{Finding, FlowId, FlowState, Hop, HopKind, Report, Service, ShareOf};

use super::evidence_type;
use super::facts::requests::{ServiceFact, is_network};
use super::facts::{Facts, Part};
use super::ledger::thread;
use crate::report::Basis;
use crate::sorting::IntoOrdered as _;

/// Events of a capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Events {
    /// Stalls of sockets: the socket, and when the stall began.
    pub stalls: BTreeSet<(FlowId, u64)>,
    /// Times of requests.
    pub requests: Vec<RequestTimes>,
    /// Waits of threads; where there are `requests`, only while one of these was outstanding.
    pub waits: BTreeSet<ThreadWait>,
}

/// Parts of the times of a service's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTimes {
    /// The service, as in [`Service::address`].
    pub address: SocketAddr,
    /// See [`Service::outbound`].
    pub outbound: bool,
    /// Only of requests that took so long.
    pub least_ns: u64,
    /// These parts.
    pub phases: BTreeSet<Phase>,
}

/// A part of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Its connection waited for accept().
    AcceptQueue,
    /// It lay in the socket.
    Unread,
    /// It had been read.
    Worked,
}

/// A kind of wait of the threads of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadWait {
    /// The process; None for any.
    pub pid: Option<u32>,
    /// The kind, where it is no sleep.
    pub held: Option<Held>,
    /// The system call in which it slept.
    pub syscall: String,
}

/// The state that keeps a thread from running although it is not asleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// Others ran on its CPU.
    RunQueue,
    /// Its control group was out of quota.
    Throttled,
    /// It was stopped.
    Stopped,
}

/// The events behind the figures of a report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    verdict: Events,
    findings: Vec<Events>,
    requests: BTreeMap<String, Events>,
    flows: BTreeMap<String, Events>,
    threads: BTreeMap<String, Events>,
}

impl Counted {
    /// Those of a figure; None where it has no single events.
    pub fn of(&self, basis: &Basis) -> Option<&Events> {
        let events = match basis {
            Basis::None => None,
            Basis::Verdict => Some(&self.verdict),
            Basis::Finding(at) => self.findings.get(*at),
            Basis::Requests(state) => self.requests.get(state),
            Basis::Flows(state) => self.flows.get(state),
            Basis::Threads(state) => self.threads.get(state),
        };
        events.filter(|events| !events.is_empty())
    }

    /// Those of all figures of a report.
    pub(super) fn new(facts: &Facts<'_>, report: &Report) -> Counted {
        let findings: Vec<Events> = report.findings.iter().map(|finding| of_finding(facts, finding)).collect();
        let service = report.service.as_ref().and_then(|shown| {
            let is_shown = |s: &&ServiceFact<'_>| {
                s.rec.outbound == shown.outbound && s.rec.address.to_string() == shown.address && !s.rec.followed
            };
            facts.requests.services.iter().find(is_shown)
        });
        let requests = service.map_or_else(BTreeMap::new, |service| of_requests(facts, service));
        let all = [Phase::AcceptQueue, Phase::Unread, Phase::Worked];
        let requests_of = |service: &ServiceFact<'_>| times(service.rec, 0, BTreeSet::from(all));
        let verdict = match (findings.first(), service) {
            (Some(first), _) if report.verdict.cause.is_some() => first.clone(),
            (_, Some(service)) => Events { requests: vec![requests_of(service)], ..Events::default() },
            (_, None) => Events { stalls: stalls(facts, facts.parts.iter()), ..Events::default() },
        };
        Counted { verdict, findings, requests, flows: of_flows(facts), threads: of_threads(facts) }
    }
}

impl Events {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stalls.is_empty() && self.requests.is_empty() && self.waits.is_empty()
    }
}

fn times(service: &Service, least_ns: u64, phases: BTreeSet<Phase>) -> RequestTimes {
    RequestTimes { address: service.address, outbound: service.outbound, least_ns, phases }
}

fn stalls<'p>(facts: &Facts<'_>, parts: impl Iterator<Item = &'p Part>) -> BTreeSet<(FlowId, u64)> {
    let known = parts.filter_map(|part| facts.capture.flow_stalls.get(part.stall?));
    known.map(|stall| (stall.flow, stall.begin_ns)).into_set()
}

/// The events that the cause claims: lost time of flows of its types, and requests' waits of its types.
fn of_finding(facts: &Facts<'_>, finding: &Finding) -> Events {
    let Some(row) = evidence_type::of(&finding.cause) else { return Events::default() };
    let claimed = |part: &&Part| row.flows.contains(&part.blame);
    if finding.share_of != ShareOf::RequestTime {
        let waits = if finding.share_of == ShareOf::ThreadTime { held_threads(finding) } else { BTreeSet::new() };
        return Events { stalls: stalls(facts, facts.parts.iter().filter(claimed)), requests: Vec::new(), waits };
    }
    let mut events = Events::default();
    for service in facts.requests.services.iter().filter(|service| service.counted) {
        let tail = service.rec.tail.as_ref().filter(|_| finding.tail);
        // With the cause that claimed each, if one did. Of the tail no account is kept: what the cause may claim there is what it claimed.
        let ways: Vec<(&[Hop], Option<&str>)> = match tail {
            Some(tail) => tail.path.iter().map(|part| (part.hops.as_slice(), None)).collect(),
            None => {
                let lost = service.parts.iter().filter(|part| part.spent.is_lost());
                lost.map(|part| (part.rec.hops.as_slice(), part.spent.cause())).collect()
            }
        };
        let mut phases = BTreeSet::new();
        for (hops, claimed_by) in ways {
            if claimed_by.map_or_else(|| evidence_type::may_claim(&finding.cause, hops), |cause| cause == finding.cause)
            {
                phases.extend(hops.iter().map(phase));
                events.waits.extend(hops.iter().filter_map(wait));
            }
        }
        if !phases.is_empty() {
            events.requests.push(times(service.rec, tail.map_or(0, |tail| tail.from_ns), phases));
        }
    }
    events
}

/// The threads of a cause that neither a request nor a flow shows: when they could not run.
fn held_threads(finding: &Finding) -> BTreeSet<ThreadWait> {
    let row = evidence_type::of(&finding.cause);
    let kinds = row.into_iter().flat_map(|row| row.waits);
    let of_place = |kind: &HopKind| {
        held(*kind).map(|held| ThreadWait { pid: finding.place.pid, held: Some(held), syscall: String::new() })
    };
    kinds.filter_map(of_place).into_set()
}

fn held(kind: HopKind) -> Option<Held> {
    match kind {
        HopKind::RunQueue => Some(Held::RunQueue),
        HopKind::Throttled => Some(Held::Throttled),
        HopKind::Stopped => Some(Held::Stopped),
        _ => None,
    }
}

fn phase(hop: &Hop) -> Phase {
    match hop.kind {
        HopKind::AcceptQueue => Phase::AcceptQueue,
        HopKind::Unread => Phase::Unread,
        _ => Phase::Worked,
    }
}

/// The wait of the hop's threads; None where it is none, or nothing is known of them.
fn wait(hop: &Hop) -> Option<ThreadWait> {
    let none = matches!(
        hop.kind,
        HopKind::AcceptQueue | HopKind::Unread | HopKind::OnCpu | HopKind::Network | HopKind::Unseen
    );
    (!none && hop.pid != 0).then(|| ThreadWait {
        pid: Some(hop.pid),
        held: held(hop.kind),
        syscall: if held(hop.kind).is_some() { String::new() } else { hop.syscall.clone() },
    })
}

/// By the ids of [`Basis::Requests`].
fn of_requests(facts: &Facts<'_>, service: &ServiceFact<'_>) -> BTreeMap<String, Events> {
    let mut waits: BTreeMap<HopKind, BTreeSet<ThreadWait>> = BTreeMap::new();
    for part in &service.parts {
        waits.entry(part.row()).or_default().extend(part.rec.hops.first().and_then(wait));
    }
    let events = |phase: Phase, waits: BTreeSet<ThreadWait>| Events {
        requests: vec![times(service.rec, 0, BTreeSet::from([phase]))],
        waits,
        stalls: BTreeSet::new(),
    };
    let client = waits.remove(&HopKind::Client).unwrap_or_default();
    // These have rows of their own.
    waits.retain(|kind, _| !kind.is_queue());
    let mut all = BTreeMap::from([
        (Basis::ACCEPT_QUEUE.to_owned(), events(Phase::AcceptQueue, BTreeSet::new())),
        (Basis::UNREAD.to_owned(), events(Phase::Unread, BTreeSet::new())),
        (Basis::INCOMPLETE.to_owned(), events(Phase::Worked, client)),
        (Basis::WORKING.to_owned(), events(Phase::Worked, BTreeSet::new())),
    ]);
    all.extend(waits.into_iter().map(|(kind, waits)| (kind.id().to_owned(), events(Phase::Worked, waits))));
    let served = |part: &&Part| {
        let flow = facts.flows[part.flow].rec;
        let end = if service.rec.outbound { flow.remote } else { flow.local };
        is_network(part.blame) && end.port() == service.rec.address.port()
    };
    let unsent = Events { stalls: stalls(facts, facts.parts.iter().filter(served)), ..Events::default() };
    all.insert(Basis::REPLY_UNSENT.to_owned(), unsent);
    all
}

/// By the ids of the ledger's states.
fn of_flows(facts: &Facts<'_>) -> BTreeMap<String, Events> {
    let mut all: BTreeMap<String, Events> = BTreeMap::new();
    for interval in facts.flows.iter().flat_map(|flow| &flow.ledger.intervals) {
        let Some(stall) = interval.stall.and_then(|at| facts.capture.flow_stalls.get(at)) else { continue };
        all.entry(interval.state.id().to_owned()).or_default().stalls.insert((stall.flow, stall.begin_ns));
    }
    all
}

/// By the ids of the ledger's states. A thread is blocked with work waiting while data is unread that its process is to read.
fn of_threads(facts: &Facts<'_>) -> BTreeMap<String, Events> {
    let any = |held: Held| Events {
        waits: BTreeSet::from([ThreadWait { pid: None, held: Some(held), syscall: String::new() }]),
        ..Events::default()
    };
    let unread = facts.capture.flow_stalls.iter().filter(|stall| stall.state == FlowState::RxWaiting);
    let unread = Events { stalls: unread.map(|stall| (stall.flow, stall.begin_ns)).into_set(), ..Events::default() };
    BTreeMap::from([
        (thread::State::Runnable.id().to_owned(), any(Held::RunQueue)),
        (thread::State::Throttled.id().to_owned(), any(Held::Throttled)),
        (thread::State::BlockedWorkAvailable.id().to_owned(), unread),
    ])
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Release, Role};

    use super::*;
    use crate::judge::judged;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS, capture};

    #[test]
    fn a_finding_of_flows_counts_the_stalls_that_it_names_and_no_others() {
        let held = (0..20).fold(FlowBuilder::new(1, Role::Client).talks_in_parts(100), |flow, i| {
            flow.stall(i * 50 * MS, 41 * MS, FlowState::Nagle, Release::RxAckDelayed)
        });
        let held = held.stall(999 * MS, MS, FlowState::Cwnd, Release::RxAck);
        let idle = FlowBuilder::new(2, Role::Client).stall(0, 2 * MS, FlowState::InFlight, Release::RxAck);
        let capture = capture(vec![held.fill(), idle.fill()], vec![]);
        let judged = judged(&capture);
        assert_eq!(judged.report.verdict.cause.as_deref(), Some("nagle-delayed-ack"));
        let expected: BTreeSet<(FlowId, u64)> = (0..20).map(|i| (1, i * 50 * MS)).collect();
        let found = judged.counted.of(&Basis::Finding(0)).expect("it has events");
        assert_eq!(found.stalls, expected);
        assert_eq!(judged.counted.of(&Basis::Verdict), Some(found));
        let row = Basis::Flows("held-by-nagle-delayed-ack".to_owned());
        assert_eq!(judged.counted.of(&row).expect("the row has them too").stalls, expected);
    }

    #[test]
    fn a_finding_of_requests_counts_their_waits_on_the_way_to_it() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Disk, "fsync");
        let service = ServiceBuilder::new(7000).requests(60, 16.0).part(way, 0.9).cpu(0.1);
        let capture = with(service);
        let judged = judged(&capture);
        assert_eq!(judged.report.verdict.cause.as_deref(), Some("blocking-disk-io"));
        let found = judged.counted.of(&Basis::Finding(0)).expect("it has events");
        assert_eq!(found.requests.len(), 1);
        assert_eq!(found.requests[0].phases, BTreeSet::from([Phase::Worked]));
        let fsync = ThreadWait { pid: Some(100), held: None, syscall: "fsync".to_owned() };
        assert_eq!(found.waits, BTreeSet::from([fsync.clone()]));
        let row = judged.counted.of(&Basis::Requests("disk".to_owned())).expect("the row has them too");
        assert_eq!(row.waits, BTreeSet::from([fsync]));
        assert!(judged.counted.of(&Basis::Requests("lock".to_owned())).is_none());
    }

    #[test]
    fn a_queue_counts_the_time_in_it_and_not_what_comes_behind() {
        let queued = Hops::new()
            .thread(100, 101, "app")
            .on(HopKind::Unread, "")
            .thread(100, 101, "app")
            .on(HopKind::Disk, "fsync");
        let capture = with(ServiceBuilder::new(7000).requests(60, 16.0).part(queued, 1.0));
        let judged = judged(&capture);
        let row = judged.counted.of(&Basis::Requests(Basis::UNREAD.to_owned())).expect("it has events");
        assert_eq!(row.requests[0].phases, BTreeSet::from([Phase::Unread]));
        assert!(row.waits.is_empty());
    }
}
