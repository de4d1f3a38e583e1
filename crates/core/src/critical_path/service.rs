//! The services of a timeline: their requests summed up, and where the time of these went.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use parshall_evidence::{FlowId, Hop, HopKind, Limit, PathPart, Service, Transport};

use super::connection::CUT_WITHIN;
use super::index::{Client, Index};
use super::latency::{self, Seen};
use super::path::{Paths, evenly};
use super::pieces::Reply;
use super::requests::{self, Request};
use super::{helpers, tail, walk};
use crate::sorting::{IntoOrdered as _, StableSort as _};
use crate::stats::Spans;
use parshall_evidence::timeline::{Op, Socket, SocketCall, Timeline};

/// Requests of one service whose time is followed.
const FOLLOWED_MAX: usize = 400;
/// Requests of a connection that is opened for a few at most.
const SHORT_REQUESTS_MAX: u64 = 6;
/// The same for a service that was only reached by following another.
const FOLLOWED_MAX_INNER: usize = 60;

/// A request that was cut is a long one if it took this many times the median of those that were answered.
const LONG_TIMES: u64 = 2;

/// A client that gave up sooner may not have waited.
const GIVEN_UP_NS: u64 = 100_000_000;

/// The identity of a service: sockets with the same values belong to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    /// Those that the user asked about come first.
    followed: bool,
    outbound: bool,
    udp: bool,
    port: u16,
    /// Of an outbound service.
    remote: Option<SocketAddr>,
}

/// The services that the timeline shows: those that the user asked about first.
///
/// Where an observed process serves nothing that was asked about, the requests that it sends are its services.
pub fn services(timeline: &Timeline) -> Vec<Service> {
    found(&Index::new(timeline))
}

/// As [`services`], with the lookups at hand.
pub fn found(index: &Index<'_>) -> Vec<Service> {
    let groups = groups(index);
    let built = groups.iter().filter_map(|(group, members)| service(index, *group, members));
    let mut services: Vec<Service> = built.collect();
    services.stable_sort_by_key(|s| (s.followed, std::cmp::Reverse(s.outstanding_ns), s.address));
    services
}

/// The requests of `found`, one by one: by service in the order of their ports, those of a connection one after the other, the connection
/// that waited longest first.
pub fn requests_by_connection(index: &Index<'_>) -> Vec<Request> {
    let mut all = Vec::new();
    for (_, members) in groups(index) {
        let mut connections: Vec<Vec<Request>> = members.iter().map(|id| of_connection(index, *id)).collect();
        connections.stable_sort_by_key(|requests| std::cmp::Reverse(requests.iter().map(Request::ns).sum::<u64>()));
        all.extend(connections.into_iter().flatten());
    }
    all
}

fn of_connection(index: &Index<'_>, id: FlowId) -> Vec<Request> {
    let timeline = index.timeline;
    match index.requests.get(&id) {
        Some(requests) => requests.clone(),
        None => timeline.calls.get(&id).map_or_else(Vec::new, |calls| requests::sent(id, calls, &timeline.slices)),
    }
}

fn groups(index: &Index<'_>) -> BTreeMap<Group, Vec<FlowId>> {
    let mut groups = served_groups(index);
    if !groups.iter().any(|(group, members)| !group.followed && members.iter().any(|id| has_requests(index, *id))) {
        outbound_groups(index, &mut groups);
    }
    groups
}

fn has_requests(index: &Index<'_>, id: FlowId) -> bool {
    index.requests.get(&id).is_some_and(|requests| !requests.is_empty())
}

fn asked(timeline: &Timeline, socket: &Socket, port: u16) -> bool {
    match timeline.asked_ports.as_slice() {
        [] => timeline.asked_pids.contains(&socket.pid),
        ports => ports.contains(&port),
    }
}

fn served_groups(index: &Index<'_>) -> BTreeMap<Group, Vec<FlowId>> {
    let mut groups: BTreeMap<Group, Vec<FlowId>> = BTreeMap::new();
    for id in index.requests.keys() {
        let Some(socket) = index.socket(*id) else { continue };
        let port = socket.local.port();
        let followed = !asked(index.timeline, socket, port);
        let group = Group { followed, outbound: false, udp: socket.udp, port, remote: None };
        groups.entry(group).or_default().push(*id);
    }
    groups
}

fn outbound_groups(index: &Index<'_>, groups: &mut BTreeMap<Group, Vec<FlowId>>) {
    for id in index.timeline.calls.keys() {
        let Some(socket) = index.socket(*id).filter(|s| !s.serves && s.remote.port() != 0) else { continue };
        if !asked(index.timeline, socket, socket.remote.port()) {
            continue;
        }
        let remote = Some(socket.remote);
        let group = Group { followed: false, outbound: true, udp: socket.udp, port: socket.remote.port(), remote };
        groups.entry(group).or_default().push(*id);
    }
    groups.values_mut().for_each(|members| members.sort_unstable());
}

fn service(index: &Index<'_>, group: Group, members: &[FlowId]) -> Option<Service> {
    let timeline = index.timeline;
    let mut all: Vec<Request> = members.iter().flat_map(|id| of_connection(index, *id)).collect();
    let gaps = reply_gaps(&all, &timeline.slices);
    if !group.outbound && !group.followed {
        all.extend(never_read(index, group));
    }
    all.stable_sort_by_key(|r| (r.arrived_ns, r.socket));
    if all.is_empty() {
        return None;
    }
    let pids = pids(index, &all, members);
    let since = pids.iter().filter_map(|pid| timeline.observed_pids.get(pid)).min().copied().unwrap_or(0);
    let abandoned: Vec<bool> = all.iter().map(|request| is_abandoned(index, request)).collect();
    let kept = || all.iter().zip(&abandoned).filter(|(_, abandoned)| !**abandoned).map(|(request, _)| request);
    let answered = kept().filter(|r| r.reply_tid.is_some()).count() as u64;
    let outstanding_ns = all.iter().fold(0u64, |sum, r| sum.saturating_add(r.ns()));
    let sliced = timeline.slices.len() > 1 && answered > 0;
    let little_ns = sliced.then(|| outstanding_ns as f64 / answered as f64);
    let seen = all.iter().zip(&abandoned).filter(|(r, _)| !r.cut && !may_be_rest(timeline, r, little_ns));
    let overlapping = || all.iter().filter(|r| r.overlaps);
    let estimated = latency::estimate(
        seen.map(|(r, abandoned)| Seen { ns: r.ns(), whole: r.reply_tid.is_some() && !abandoned }).collect(),
        little_ns,
    );
    let latency = if overlapping().count() * 2 > all.len() { latency::Latency::default() } else { estimated };
    let (continued, continued_ns) = continued(index, group, &all);
    let last_slice = timeline.slices.last().copied().unwrap_or_default();
    let waiting = kept().filter(|r| r.reply_tid.is_none() && r.end_ns >= last_slice.1);
    let spans: Vec<(u64, u64)> = all.iter().map(|r| (r.read_ns.min(r.end_ns), r.end_ns)).collect();
    let (followed_requests, followed_ns, path) = paths(index, group, &all);
    let workers: BTreeSet<u32> = all.iter().flat_map(|r| [Some(r.read_tid), r.reply_tid]).flatten().into_set();
    let kept_requests: Vec<Request> = kept().copied().collect();
    let tail = (!group.followed).then(|| tail::of(index, group.outbound, &kept_requests, &latency)).flatten();
    Some(Service {
        address: group.remote.unwrap_or_else(|| address(index, members, group.port)),
        transport: if group.udp { Transport::Udp } else { Transport::Tcp },
        outbound: group.outbound,
        followed: group.followed,
        waited: false,
        pids,
        requests: answered,
        unanswered: waiting.clone().count() as u64,
        unanswered_longest_ns: waiting.map(Request::ns).max().unwrap_or(0),
        abandoned: abandoned.iter().filter(|abandoned| **abandoned).count() as u64,
        connections: all.iter().map(|r| r.socket).into_set().len() as u64,
        moved: moved(&all),
        overlapping: overlapping().map(|r| r.socket).into_set().len() as u64,
        in_pieces: all.iter().filter(|r| r.in_pieces).count() as u64,
        continued,
        continued_ns,
        opened: members.iter().filter(|id| index.socket(**id).is_some_and(|s| s.opened)).count() as u64,
        observed_ns: timeline.slices.iter().map(|&(begin, end)| end.saturating_sub(begin.max(since))).sum(),
        p50_ns: latency.p50_ns,
        p99_ns: latency.p99_ns,
        outstanding_ns,
        working_ns: Spans::union(spans.clone()).covered(0, u64::MAX),
        worked_ns: spans.iter().map(|(begin, end)| end - begin).sum(),
        reply_gap_p10_ns: rank(&gaps, 0.1),
        reply_gap_p50_ns: rank(&gaps, 0.5),
        reply_gap_p90_ns: rank(&gaps, 0.9),
        workers: workers.len() as u32,
        limits: limits(index, group, &all, &path),
        followed_requests,
        followed_ns,
        path,
        tail,
    })
}

/// A reply that goes on for a shorter time is sent at once.
const CONTINUED_NS: u64 = 10_000_000;

/// How many replies went on after their first part, for longer than that took, and for how long in all.
fn continued(index: &Index<'_>, group: Group, all: &[Request]) -> (u64, u64) {
    if group.outbound || group.udp {
        return (0, 0);
    }
    let goes_on = |request: &Request| {
        let last = *Reply::of(index.timeline, request)?.sends.last()?;
        let ns = last.since_ns.saturating_sub(request.end_ns);
        (ns >= CONTINUED_NS.max(request.ns())).then_some(ns)
    };
    all.iter().filter_map(goes_on).fold((0, 0), |(n, sum), ns| (n + 1, sum + ns))
}

/// The limits of a service. That on the connections that it serves at a time comes first, where requests were seen to wait for it.
fn limits(index: &Index<'_>, group: Group, all: &[Request], path: &[PathPart]) -> Vec<Limit> {
    if group.outbound {
        return Vec::new();
    }
    let kept_out = |pair: &[Hop]| pair[0].kind == HopKind::Unread && pair[1].kind == HopKind::Worker;
    let waits = path.iter().any(|part| part.hops.windows(2).any(kept_out));
    let connections = index.limit_of_connections(group.port).filter(|_| waits && !group.udp);
    let own = connections.into_iter().chain(index.limits(group.udp, group.port)).cloned();
    own.chain(helpers::limits(index, all, path)).collect()
}

/// Whether a request that comes first on its connection in a slice may be the rest of one. Where requests take longer than a third of the
/// slice, by Little's law, that what was cut came before such a third is not known: only what was seen to follow something is whole.
fn may_be_rest(timeline: &Timeline, request: &Request, little_ns: Option<f64>) -> bool {
    let Some(slice) = timeline.slices.iter().find(|s| s.0 <= request.arrived_ns && request.arrived_ns <= s.1) else {
        return false;
    };
    let long = little_ns.is_some_and(|ns| ns * CUT_WITHIN as f64 > (slice.1 - slice.0) as f64);
    let asks = match timeline.sockets.get(&request.socket) {
        Some(socket) if socket.serves => Op::Receive,
        _ => Op::Send,
    };
    // A client may ask again in the moment in which it is answered.
    let follows = |calls: &Vec<SocketCall>| {
        let first = calls.get(calls.partition_point(|call| call.at_ns < slice.0));
        first.is_some_and(|call| call.op != asks || call.at_ns < request.read_ns)
    };
    long && !timeline.calls.get(&request.socket).is_some_and(follows)
}

/// The connection closed without a reply, or the client had closed its end before the reply.
fn is_abandoned(index: &Index<'_>, request: &Request) -> bool {
    let Some(socket) = index.socket(request.socket) else { return false };
    let client = socket.other_end.and_then(|id| index.socket(id));
    let left = client.and_then(|client| client.closed_ns).is_some_and(|at| at < request.end_ns);
    left || (request.reply_tid.is_none() && socket.closed_ns.is_some_and(|at| at <= request.end_ns))
}

/// Requests to a service that their clients, which were observed, waited for and gave up before anybody had read them: no end that
/// serves shows them. Requests that still wait when the window ends are found in the state of the sockets.
fn never_read(index: &Index<'_>, group: Group) -> Vec<Request> {
    let timeline = index.timeline;
    let mut found = Vec::new();
    let accepts = accepts(index, group.port);
    for (id, calls) in &timeline.calls {
        let Some(socket) = index.socket(*id).filter(|s| !s.serves && s.udp == group.udp) else { continue };
        let (Some(closed_ns), Some(last)) = (socket.closed_ns, calls.last().filter(|call| call.op == Op::Send)) else {
            continue;
        };
        let long = closed_ns.saturating_sub(last.at_ns) >= GIVEN_UP_NS;
        let in_slice = timeline.slices.iter().any(|s| s.0 <= last.at_ns && closed_ns <= s.1);
        if socket.remote.port() != group.port || !long || index.is_read_after(*id, last.since_ns) {
            continue;
        }
        let before = accepts[..accepts.partition_point(|accept| accept.0 <= last.at_ns)].last().or(accepts.first());
        let reader = before.map(|accept| accept.1).or_else(|| index.reader_to_be(*id).map(|(tid, _)| tid));
        let Some(reader) = reader else { continue };
        // Where a slice ends in between, its thread is seen for a part of the time only.
        let until = timeline.slices.iter().find(|s| s.0 <= last.at_ns && last.at_ns <= s.1).map_or(closed_ns, |s| s.1);
        let span = (last.at_ns, if in_slice { closed_ns } else { until });
        if span.1 > span.0 && matches!(index.waits_at(last, span), Client::Waits { .. }) {
            found.push(Request {
                socket: *id,
                arrived_ns: last.at_ns,
                accepted: None,
                read_ns: span.1,
                read_tid: reader,
                end_ns: span.1,
                reply_tid: None,
                cut: false,
                overlaps: false,
                polls: false,
                job: false,
                in_pieces: false,
            });
        }
    }
    found
}

/// When connections to a port were accepted, and by which threads.
fn accepts(index: &Index<'_>, port: u16) -> Vec<(u64, u32)> {
    let served = |id: &FlowId| index.socket(*id).is_some_and(|socket| socket.serves && socket.local.port() == port);
    let calls = index.timeline.calls.iter().filter(|(id, _)| served(id)).flat_map(|(_, calls)| calls);
    let mut found: Vec<(u64, u32)> =
        calls.filter(|call| call.op == Op::Accept).map(|call| (call.at_ns, call.tid)).collect();
    found.sort_unstable();
    found
}

/// The requests whose time is followed: those that were answered, and those that the end of a slice cut after a time that few of
/// these take. The later waits of the others do not show. If most of the time went to requests that were cut, all. Of those
/// that may have begun before their slice, what they waited for at first is not known: they are followed only where there are no others.
///
/// Without the long ones, a slice that is shorter than some requests would only tell of the others.
fn telling(all: &[Request]) -> Vec<Request> {
    let all_cut = all.iter().all(|r| r.cut);
    let begun = || all.iter().filter(|r| !r.cut || all_cut);
    let mut times: Vec<u64> = begun().filter(|r| r.reply_tid.is_some()).map(Request::ns).collect();
    times.sort_unstable();
    let whole: u64 = times.iter().sum();
    let cut: u64 = begun().map(Request::ns).sum::<u64>() - whole;
    if whole < cut {
        return begun().copied().collect();
    }
    let long = LONG_TIMES * rank(&times, 0.5);
    begun().filter(|r| r.reply_tid.is_some() || r.ns() > long).copied().collect()
}

fn paths(index: &Index<'_>, group: Group, all: &[Request]) -> (u64, u64, Vec<PathPart>) {
    let most = if group.followed { FOLLOWED_MAX_INNER } else { FOLLOWED_MAX };
    let (mut paths, mut setup) = (Paths::new(index), Paths::new(index));
    let (mut count, mut ns) = (0, 0);
    let chosen = telling(all);
    let last = if group.outbound { HashMap::new() } else { last_of_short(index, all) };
    for request in evenly(&chosen, most) {
        let serves = index.socket(request.socket).is_some_and(|socket| socket.serves);
        let pieces = match group.outbound {
            true => walk::sent(index, request),
            false if serves => walk::served(index, request),
            false => walk::never_read(index, request, index.queue_of(request.socket)),
        };
        count += 1;
        ns += pieces.iter().map(|p| p.ns).sum::<u64>();
        let before_last = last.get(&request.socket).is_some_and(|&arrived_ns| request.arrived_ns < arrived_ns);
        if before_last { &mut setup } else { &mut paths }.add(&pieces);
    }
    let setup = setup.finish().into_iter().map(|part| PathPart { setup: true, ..part });
    let mut parts: Vec<PathPart> = paths.finish().into_iter().chain(setup).collect();
    parts.stable_sort_by_key(|part| std::cmp::Reverse(part.ns));
    (count, ns, parts)
}

/// When the last request that was answered arrived, for each connection that was opened and closed for a few.
fn last_of_short(index: &Index<'_>, all: &[Request]) -> HashMap<FlowId, u64> {
    let mut last: HashMap<FlowId, (u64, u64)> = HashMap::new();
    for request in all.iter().filter(|r| r.reply_tid.is_some()) {
        if index.socket(request.socket).is_some_and(|socket| socket.opened && socket.closed_ns.is_some()) {
            let known = last.entry(request.socket).or_default();
            *known = (known.0 + 1, known.1.max(request.arrived_ns));
        }
    }
    let short = last.into_iter().filter(|(_, (count, _))| *count <= SHORT_REQUESTS_MAX);
    short.map(|(id, (_, arrived_ns))| (id, arrived_ns)).collect()
}

/// Connections whose requests were read by more than one thread.
fn moved(all: &[Request]) -> u64 {
    let mut readers: BTreeMap<FlowId, BTreeSet<u32>> = BTreeMap::new();
    for request in all {
        readers.entry(request.socket).or_default().insert(request.read_tid);
    }
    readers.values().filter(|tids| tids.len() > 1).count() as u64
}

/// The processes that read the requests, the one with most of them first.
fn pids(index: &Index<'_>, all: &[Request], members: &[FlowId]) -> Vec<u32> {
    let mut counts: HashMap<u32, u64> = HashMap::new();
    for request in all {
        let pid = index.names(request.read_tid).map(|n| n.pid);
        *counts.entry(pid.or_else(|| Some(index.socket(request.socket)?.pid)).unwrap_or(0)).or_default() += 1;
    }
    for id in members {
        counts.entry(index.socket(*id).map_or(0, |s| s.pid)).or_default();
    }
    counts.remove(&0);
    let mut pids: Vec<(u32, u64)> = counts.into_iter().collect();
    pids.stable_sort_by_key(|&(pid, n)| (std::cmp::Reverse(n), pid));
    pids.into_iter().map(|(pid, _)| pid).collect()
}

/// The local address that most of the sockets have.
fn address(index: &Index<'_>, members: &[FlowId], port: u16) -> SocketAddr {
    let mut counts: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for socket in members.iter().filter_map(|id| index.socket(*id)) {
        *counts.entry(socket.local).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|&(address, n)| (n, std::cmp::Reverse(address)));
    most.map_or_else(|| SocketAddr::from(([0, 0, 0, 0], port)), |(address, _)| address)
}

/// Fewer gaps between replies tell nothing.
const GAPS_MIN: usize = 8;

/// The times between successive replies of a slice while further requests were outstanding, sorted. Where one request is worked
/// on at a time they are alike, however many wait.
fn reply_gaps(all: &[Request], slices: &[(u64, u64)]) -> Vec<u64> {
    // +1 for each arrival, -1 for each end: how many are outstanding.
    let mut steps: Vec<(u64, i64, bool)> = Vec::with_capacity(all.len() * 2);
    for request in all {
        steps.push((request.arrived_ns, 1, false));
        steps.push((request.end_ns, -1, request.reply_tid.is_some()));
    }
    steps.sort_unstable();
    let (mut outstanding, mut last, mut gaps) = (0, None, Vec::new());
    for (at, change, is_reply) in steps {
        outstanding += change;
        if !is_reply {
            continue;
        }
        let slice = slices.partition_point(|s| s.1 < at);
        match last {
            Some((then, in_slice, true)) if in_slice == slice => gaps.push(at - then),
            _ => {}
        }
        last = Some((at, slice, outstanding > 0));
    }
    gaps.sort_unstable();
    if gaps.len() < GAPS_MIN { Vec::new() } else { gaps }
}

/// The `q` quantile of sorted values; 0 when there are none.
fn rank(sorted: &[u64], q: f64) -> u64 {
    let at = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(at.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}
