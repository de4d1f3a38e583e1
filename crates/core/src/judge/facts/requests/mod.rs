//! The account of requests: for each service, what the time of its requests was spent on, and which of it was lost.
//!
//! Each part of a path belongs to exactly one [`Spent`]; so causes never share time, and what no cause claims stays visible. The
//! account supersedes those parts of the flows' lost time that are the same wait seen from a socket ([`supersede`]).
mod classify;
mod code;
mod connects;
pub mod crypto;
mod fact;
mod hot;
mod memory;
mod pool;
mod queue;
pub mod served;
mod spent;
pub mod tail;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use parshall_evidence::{Capture, HopKind, Service};

use super::flow::{FlowFact, Shape};
use super::part::{Blame, Part};
use crate::judge::ledger::flow_rules::is_shut;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

pub use classify::{BACKGROUND_SHARE, is_collector, writes};
pub use code::Code;
pub use connects::{Unanswered, drops_of_others};
pub use fact::{FLOOR_NS, PartFact, ServiceFact};
pub use memory::thrashing;
pub use pool::{UsedUp, given_up, gives_nothing, used_up};
pub use queue::{
    Kept, Turn, blocked_in, connections_of, has_several_listeners, is_full, limit_in_hands, queue_of,
    short_of_descriptors, turn_of, watches_many, workers_keep_one_each,
};
use served::{ByService, Served};
pub use spent::Spent;

/// The services of a capture.
#[derive(Debug, Default)]
pub struct Requests<'a> {
    /// In the order of the capture.
    pub services: Vec<ServiceFact<'a>>,
    /// Their records.
    pub all: &'a [Service],
    /// Processes that answer requests on the account.
    pids: BTreeSet<u32>,
    /// What all processes of the capture ran.
    pub code: Arc<Code<'a>>,
}

impl<'a> Requests<'a> {
    /// Prepares the services that were found in a capture.
    pub fn new(capture: &'a Capture, services: &'a [Service], flows: &[FlowFact<'_>], parts: &[Part]) -> Requests<'a> {
        let code = Code::new(capture);
        let streams = Streams::new(flows);
        let network = NetworkTime::new(flows, parts);
        let facts = services.iter().map(|rec| {
            let counted = rec.waited || !rec.followed && (answers_in_pieces(rec) || !streams.is_stream(rec));
            let mut fact = ServiceFact::new(rec, counted, capture.window_ns as f64);
            classify::classify(&mut fact, services, capture, &code);
            if !rec.waited {
                fact.leave_to_flows(&network);
            }
            let lost: f64 = fact.parts.iter().filter(|p| p.spent.is_lost()).map(|p| p.ns).sum();
            fact.slow = ratio(lost, fact.requests) >= FLOOR_NS;
            fact
        });
        let services_of = facts.collect();
        let mut requests =
            Requests { services: services_of, all: services, pids: BTreeSet::new(), code: Arc::new(code) };
        let seen = requests.counted().filter(|s| !s.rec.waited);
        requests.pids = seen.flat_map(|s| &s.rec.pids).copied().into_set();
        requests
    }

    /// Services whose time is on the account.
    pub fn counted(&self) -> impl Iterator<Item = &ServiceFact<'a>> {
        self.services.iter().filter(|s| s.counted)
    }

    /// Whether there is no account of single requests; those that only waited are none.
    pub fn is_empty(&self) -> bool {
        self.counted().all(|s| s.rec.waited)
    }

    /// Requests that waited when the window ended and that somebody owes an answer, by service.
    pub fn waited(&self) -> impl Iterator<Item = &ServiceFact<'a>> {
        self.counted().filter(|s| s.rec.waited)
    }

    /// Time of all requests on the account.
    pub fn time_ns(&self) -> f64 {
        self.counted().map(|s| s.time_ns).sum()
    }

    /// Of it, what was lost, in services that are slow.
    pub fn lost_ns(&self) -> f64 {
        self.counted().map(ServiceFact::lost_ns).sum()
    }

    /// Of the requests' time, the share that was spent on this, lost or not.
    pub fn share(&self, spent: Spent) -> f64 {
        let ns: f64 = self.counted().flat_map(|s| &s.parts).filter(|p| p.spent == spent).map(|p| p.ns).sum();
        ratio(ns, self.time_ns()).min(1.0)
    }

    /// Share of the requests' time that was not seen, where that is long enough to matter.
    pub fn unseen_share(&self) -> f64 {
        let unseen = |s: &ServiceFact<'_>| {
            let ns = s.unseen_ns + s.parts.iter().filter(|p| p.spent == Spent::Unseen).map(|p| p.ns).sum::<f64>();
            if ratio(ns, s.requests) >= FLOOR_NS { ns } else { 0.0 }
        };
        ratio(self.counted().map(unseen).sum(), self.time_ns()).min(1.0)
    }

    /// Whether a process answers requests on the account, so that its threads' time is on it.
    pub fn covers(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }
}

impl ServiceFact<'_> {
    /// A wait for a reply that the network delays is on the account of the flow that carried it.
    fn leave_to_flows(&mut self, network: &NetworkTime) {
        let mut pool = network.all;
        for part in self.parts.iter_mut().filter(|p| p.spent == Spent::Network) {
            let explained = part.ns.min(pool);
            pool -= explained;
            // The distance between the subject and the service that it asks is its flows' matter.
            let own_distance = self.rec.outbound && part.rec.hops.len() <= 2;
            if own_distance || explained >= 0.5 * part.ns {
                part.spent = Spent::Flow;
            } else if part.rec.hops.iter().rev().nth(1).is_some_and(|h| h.kind == HopKind::Reply) {
                // The distance to the server that was asked.
                part.spent = Spent::Downstream;
            }
        }
        for part in self.parts.iter_mut().filter(|p| p.spent == Spent::Downstream) {
            let Some(remote) = part.rec.hops.last().and_then(|h| h.object.peer()) else { continue };
            let explained = network.by_remote.get(&remote).copied().unwrap_or(0.0);
            // Of a question on a new connection, the opening is one of two round trips: the other one is not lost.
            if explained >= 0.4 * part.ns {
                part.spent = Spent::Flow;
            }
        }
    }
}

/// Whether the long replies of a service come in pieces that their clients wait for: to a flow they look like a stream. Of those that go on
/// when a slice ends that is not known.
fn answers_in_pieces(service: &Service) -> bool {
    service.in_pieces > 0 && service.in_pieces >= service.continued
}

/// Fewer sends and receives do not make a stream.
const STREAM_CALLS_MIN: u64 = 10;

fn calls(flow: &parshall_evidence::FlowRecord) -> u64 {
    flow.calls.sends.saturating_add(flow.calls.recvs)
}

/// How many connections are in use, and how many of them stream.
#[derive(Debug, Default, Clone, Copy)]
struct InUse {
    all: u64,
    streams: u64,
}

impl std::ops::AddAssign for InUse {
    fn add_assign(&mut self, more: InUse) {
        self.all += more.all;
        self.streams += more.streams;
    }
}

/// Connections in use, by their service.
#[derive(Debug, Default)]
struct Streams {
    served: ByService<InUse>,
    /// Those of clients, by the address that they are connected to.
    asked: BTreeMap<(std::net::IpAddr, u16), InUse>,
}

impl Streams {
    fn new(flows: &[FlowFact<'_>]) -> Streams {
        let mut streams = Streams::default();
        for flow in flows.iter().filter(|f| f.shape != Shape::Idle || is_shut(f.rec)) {
            // A few calls may be the begin of a request that waits for its reply.
            let is_stream =
                flow.shape != Shape::RequestReply && calls(flow.rec) >= STREAM_CALLS_MIN || is_shut(flow.rec);
            let one = InUse { all: 1, streams: u64::from(is_stream) };
            streams.served.add(flow.rec, one);
            let remote = flow.rec.remote;
            *streams.asked.entry((remote.ip().to_canonical(), remote.port())).or_default() += one;
        }
        streams
    }

    /// Data that keeps arriving and is owed no reply is no request. Of a service that was followed, only its clients' ends are flows
    /// of the subject.
    fn is_stream(&self, service: &Service) -> bool {
        let mut own = self.served.of(service);
        let address = (service.address.ip().to_canonical(), service.address.port());
        own += self.asked.get(&address).copied().unwrap_or_default();
        own.streams > 0 && own.streams * 2 > own.all
    }
}

/// The time in ns that flows lost to the network.
#[derive(Debug, Default)]
struct NetworkTime {
    all: f64,
    by_remote: BTreeMap<SocketAddr, f64>,
}

impl NetworkTime {
    fn new(flows: &[FlowFact<'_>], lost: &[Part]) -> NetworkTime {
        let mut time = NetworkTime::default();
        for part in lost.iter().filter(|part| is_network(part.blame)) {
            time.all += part.ns;
            *time.by_remote.entry(flows[part.flow].rec.remote).or_default() += part.ns;
        }
        time
    }
}

/// Lost time that the network or the kernel's TCP is responsible for.
pub fn is_network(blame: Blame) -> bool {
    !matches!(
        blame,
        Blame::ReaderBlocked
            | Blame::ReaderPauses
            | Blame::SenderPauses
            | Blame::CpuUser
            | Blame::CpuKernel
            | Blame::RunQueue
            | Blame::Throttled
            | Blame::AppBlocked
            | Blame::SupplyBlocked
            | Blame::HeldBack
            | Blame::PeerThink
    )
}

/// A client that pauses between two pieces of its reply takes it as fast as it wants, as what plays a stream does, and one that pauses
/// between two pieces of what it sends sends as fast as it wants; unless requests wait on the way meanwhile, for at least this share of their
/// time.
const HELD_UP: f64 = 0.3;

/// Removes from the flows' lost time what is a wait of a request on the account: time in which a served flow's request is unread
/// or unanswered, the same wait as its client sees it, and a wait of a serving process for a reply that is in a path.
///
/// `waited` are flows on which a request waited all the time: what was lost there is that wait, too.
pub fn supersede(
    requests: &Requests<'_>,
    flows: &[FlowFact<'_>],
    parts: &mut Vec<Part>,
    waited: &BTreeSet<parshall_evidence::FlowId>,
) {
    parts.retain(|part| is_network(part.blame) || !waited.contains(&flows[part.flow].rec.id));
    if requests.share(Spent::Network) < HELD_UP {
        parts.retain(|part| !matches!(part.blame, Blame::ReaderPauses | Blame::SenderPauses));
    }
    if requests.is_empty() {
        return;
    }
    let seen = || requests.services.iter().filter(|service| !service.rec.waited);
    let all = Served::by(seen().map(|service| service.rec));
    // Unread data of a connection on which hardly anything moved is the begin of a request, too.
    let few = |f: &FlowFact<'_>| calls(f.rec) < STREAM_CALLS_MIN && !is_shut(f.rec);
    let talks = |f: &FlowFact<'_>| f.shape == Shape::RequestReply || few(f);
    let served: Vec<bool> = flows.iter().map(|f| talks(f) && all.holds(f.rec)).collect();
    // The opening of their connections is on the account of the requests that come first.
    let opens = |service: &&ServiceFact<'_>| service.lost_to(Spent::Setup).next().is_some();
    let opening = Served::by(seen().filter(opens).map(|service| service.rec));
    // By who asked whom: time of these waits that is on the account of requests, and time that is left to the flow.
    let mut asked: BTreeMap<(u32, SocketAddr), (f64, f64)> = BTreeMap::new();
    for part in requests.counted().flat_map(|s| &s.parts) {
        for (pid, peer) in part.rec.hops.iter().filter_map(|hop| Some((hop.pid, hop.object.peer()?))) {
            let sums = asked.entry((pid, peer)).or_default();
            *(if part.spent == Spent::Flow { &mut sums.1 } else { &mut sums.0 }) += part.ns;
        }
    }
    let on_account = |pid: u32, remote: SocketAddr| asked.get(&(pid, remote)).is_some_and(|(here, flow)| here >= flow);
    parts.retain(|part| {
        let flow = &flows[part.flow];
        let waits = flow.pair.is_some_and(|other| served[other]) || on_account(flow.rec.pid, flow.rec.remote);
        match part.blame {
            Blame::SupplyBlocked | Blame::SenderPauses | Blame::HeldBack => true,
            Blame::PeerThink => !waits,
            Blame::Setup => !opening.holds(flow.rec) && !flow.pair.is_some_and(|other| opening.holds(flows[other].rec)),
            blame => is_network(blame) || !served[part.flow],
        }
    });
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, FdKind, FlowState, HopKind, Release, Role, Status};

    use super::*;
    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, empty_capture, verdict_of};

    /// Both ends of a connection whose server sleeps 20 of 25 ms with each request.
    fn both_ends() -> Capture {
        let client = FlowBuilder::new(1, Role::Client)
            .owner(300, 301)
            .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks(40, 100);
        let server = FlowBuilder::new(2, Role::Server)
            .to(&client)
            .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterRecv, Release::AppSend)
            .talks(40, 100);
        let thread = ThreadBuilder::new(101).sleeps(25 * MS, 0, 20 * MS, "clock_nanosleep", FdKind::None);
        let mut capture = capture(vec![client, server], vec![thread]);
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Timer, "clock_nanosleep");
        capture.services = vec![ServiceBuilder::new(7000).requests(40, 20.0).part(way, 0.98).cpu(0.02).build()];
        capture
    }

    #[test]
    fn a_wait_that_flows_show_too_counts_once() {
        let report = judge(&both_ends());
        assert_eq!(report.verdict.cause.as_deref(), Some("timer-wait"));
        assert_eq!(report.findings.len(), 1, "{report:#?}");
        assert!(report.findings[0].lost_share > 0.99, "{report:#?}");
    }

    /// The process at the other end of an idle connection may be busy with others.
    #[test]
    fn an_idle_subject_is_not_accused_of_what_others_wait_for() {
        let busy = both_ends().services.remove(0);
        let mut capture = capture(vec![FlowBuilder::new(1, Role::Server)], vec![]);
        capture.services = vec![parshall_evidence::Service { followed: true, ..busy }];
        let report = judge(&capture);
        assert_eq!(report.verdict.status, Status::Healthy, "{report:#?}");
        assert!(report.service.is_none(), "{report:#?}");
        capture.services[0].followed = false;
        assert_eq!(judge(&capture).verdict.cause.as_deref(), Some("timer-wait"));
    }

    #[test]
    fn replies_in_pieces_that_clients_wait_for_are_no_stream() {
        // A service whose replies are computed in 3,000 pieces each: as a flow, it sends and hardly receives.
        let judged = |in_pieces: u64, continued: u64| {
            let mut flow = FlowBuilder::new(1, Role::Server).fill();
            flow.record.calls.sends = 60_000;
            (flow.record.calls.recvs, flow.record.calls.exchanges) = (20, 20);
            flow.record.last.bytes_acked += 720_000;
            flow.record.last.bytes_received += 2_000;
            let mut capture = with(ServiceBuilder::new(7000).requests(20, 30.0).cpu(1.0));
            capture.threads = vec![ThreadBuilder::new(101).samples(90, 10).fill().record];
            capture.flows = vec![flow.record];
            (capture.services[0].in_pieces, capture.services[0].continued) = (in_pieces, continued);
            capture.services[0].continued_ns = continued * 300 * MS;
            judge(&capture)
        };
        assert_eq!(judged(16, 4).verdict.cause.as_deref(), Some("user-cpu-bound"));
        let (pushes, unknown) = (judged(0, 0), judged(4, 16));
        assert_eq!((pushes.verdict.status, pushes.verdict.confidence), (Status::Healthy, Confidence::High));
        assert_eq!((unknown.verdict.status, unknown.verdict.confidence), (Status::Healthy, Confidence::Medium));
    }

    #[test]
    fn the_network_of_a_served_flow_still_competes() {
        let mut capture = both_ends();
        let held = FlowBuilder::new(4, Role::Server)
            .every(45 * MS, 0, 40 * MS, FlowState::Nagle, Release::RxAckDelayed)
            .talks_in_parts(22);
        let held = crate::testkit::capture(vec![held], vec![]);
        capture.flows.extend(held.flows);
        capture.flow_stalls.extend(held.flow_stalls);
        let report = judge(&capture);
        let named: Vec<&str> = report.findings.iter().map(|f| f.cause.as_str()).collect();
        assert_eq!(named, ["nagle-delayed-ack", "timer-wait"], "{report:#?}");
        let time = report.service.expect("a service").time;
        assert!(time.reply_unsent > 0.4 && time.working > 0.4, "{time:?}");
    }

    #[test]
    fn time_that_was_not_seen_is_not_called_healthy() {
        let unseen = |share| {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::Unseen, "");
            let disk = Hops::new().thread(100, 101, "app").on(HopKind::Disk, "fsync");
            with(ServiceBuilder::new(7000).requests(100, 10.0).part(way, share).part(disk, 0.4).cpu(0.6 - share))
        };
        let mut half = unseen(0.55);
        assert_eq!(judge(&half).verdict.confidence, Confidence::Medium);
        half.services[0].path.remove(1);
        assert_eq!(verdict_of(&half), "insufficient-evidence");
        let report = judge(&unseen(0.1));
        assert_eq!(
            (report.verdict.status, report.verdict.confidence),
            (Status::Cause, Confidence::High),
            "{report:#?}"
        );
        // A short time was measured to be short, whatever it was spent on.
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Unseen, "");
        assert_eq!(verdict_of(&with(ServiceBuilder::new(7000).requests(100, 0.15).part(way, 1.0))), "healthy");
    }

    #[test]
    fn what_no_cause_claims_is_not_called_healthy() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Kernel, "ioctl");
        let report = judge(&with(ServiceBuilder::new(7000).requests(100, 10.0).part(way, 0.9).cpu(0.1)));
        assert_eq!(report.verdict.status, Status::NoDominantCause);
        assert!(report.verdict.summary.contains("blocked otherwise"), "{}", report.verdict.summary);
    }

    #[test]
    fn a_queue_behind_cheap_requests_is_a_thread_at_capacity() {
        let queue = Hops::new().thread(100, 101, "redis-server").on(HopKind::Unread, "").on(HopKind::OnCpu, "");
        let service = ServiceBuilder::new(6379).requests(20_000, 2.5).part(queue, 0.98).cpu(0.02);
        let mut capture = with(service);
        capture.threads = vec![ThreadBuilder::new(101).samples(60, 40).fill().record];
        let report = judge(&capture);
        assert_eq!(report.verdict.status, Status::AtCapacity, "{report:#?}");
        assert!(report.verdict.summary.contains("thread 101"), "{}", report.verdict.summary);
    }

    #[test]
    fn a_reply_that_the_sender_itself_holds_back_is_on_the_account_of_its_flow() {
        let upstream = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .every(45 * MS, 0, 40 * MS, FlowState::Nagle, Release::RxAckDelayed)
            .talks_in_parts(22);
        let mut capture =
            capture(vec![upstream], vec![ThreadBuilder::new(101).blocked(0, 900 * MS, "recvfrom", FdKind::Tcp)]);
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Reply, "recvfrom").target("10.0.0.2:7000");
        capture.services = vec![ServiceBuilder::new(8000).requests(22, 44.0).part(way, 0.97).cpu(0.03).build()];
        assert_eq!(verdict_of(&capture), "nagle-delayed-ack");
    }

    #[test]
    fn a_client_of_a_host_that_was_not_seen_has_its_flows_to_tell() {
        let flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks(40, 100);
        let mut capture = capture(vec![flow], vec![]);
        let way = Hops::new().thread(100, 101, "curl").on(HopKind::Reply, "recvfrom").target("10.0.0.2:7000");
        let mut service = ServiceBuilder::new(7000).requests(40, 20.0).part(way, 1.0);
        service.record.outbound = true;
        service.record.address = "10.0.0.2:7000".parse().expect("an address");
        capture.services = vec![service.clone().build()];
        assert_eq!(verdict_of(&capture), "peer-think-time");
        // Where the server was followed, its wait is named instead.
        let way = Hops::new().thread(100, 101, "curl").on(HopKind::Reply, "recvfrom").target("10.0.0.2:7000");
        let followed = way.thread(200, 201, "server").on(HopKind::Disk, "fsync");
        let mut deep = ServiceBuilder::new(7000).requests(40, 20.0).part(followed, 1.0);
        (deep.record.outbound, deep.record.address) = (true, service.record.address);
        capture.services = vec![deep.build()];
        assert_eq!(verdict_of(&capture), "blocking-disk-io");
    }

    #[test]
    fn an_upload_is_no_request() {
        let upload = FlowBuilder::new(1, Role::Server)
            .every(25 * MS, 0, 20 * MS, FlowState::RxWaiting, Release::AppRecv)
            .drains(40, 16_384);
        let thread = ThreadBuilder::new(101).sleeps(25 * MS, 0, 20 * MS, "clock_nanosleep", FdKind::None);
        let mut capture = capture(vec![upload], vec![thread]);
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Timer, "clock_nanosleep");
        capture.services = vec![ServiceBuilder::new(7000).unanswered(1, 1000.0).part(way, 1.0).build()];
        assert_eq!(verdict_of(&capture), "slow-reader");
    }

    #[test]
    fn a_udp_service_needs_no_flow() {
        let mut capture = empty_capture();
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Disk, "fsync");
        capture.services = vec![ServiceBuilder::new(53).requests(100, 8.0).part(way, 0.9).cpu(0.1).build()];
        assert_eq!(verdict_of(&capture), "blocking-disk-io");
    }
}
