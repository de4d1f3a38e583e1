//! Requests that waited when the window ended: found in the state of sockets and threads, and followed to whoever should end the
//! wait. Waits that began before the window and do not end are in no other account.
//!
//! `debt` tells which ends of connections owe an answer, `follow` who holds it up. A request that its service lets wait while
//! no thread of it is blocked (a long poll, a subscription that has said nothing yet) owes nothing: from outside, it cannot be told
//! from a wait for something inside of the process, so it is counted as [`Waited::quiet`] and reported.
use crate::sorting::{IntoOrdered as _, StableSort as _};

mod debt;
mod doing;
mod follow;
mod in_turn;
mod scene;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::socket::selection::state::{ESTABLISHED, SYN_SENT};
use parshall_evidence::{
    Capture, FlowId, FlowRecord, Hop, HopKind, PathPart, Rung, Service, Transport, Waiting, WaitingEnd,
};

use self::debt::Debt;
use self::follow::{Class, Way};
use self::scene::Scene;
use crate::judge::ledger::flow_rules::{is_shut, serves};

/// A wait that began within the window and is at least this long counts too.
const LONG_NS: u64 = 1_000_000_000;
/// A request is the one that the probes saw unanswered if its age differs by no more than this.
const SAME_NS: u64 = 100_000_000;

/// The requests that waited when the window ended.
#[derive(Debug, Default)]
pub struct Waited {
    /// Requests that somebody owes an answer, by service.
    pub services: Vec<Service>,
    /// Requests that their service lets wait.
    pub quiet: Quiet,
}

/// Requests that wait while nothing that should answer them is blocked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Quiet {
    /// Their number.
    pub count: u64,
    /// For how long the longest of them has waited.
    pub longest_ns: u64,
}

/// The part of it that a verdict may rest on: ends with a request that nobody has answered, and those that they lead to.
pub fn relevant(waiting: Waiting) -> Option<Waiting> {
    let scene = Scene::new(&waiting);
    if !waiting.ends.iter().any(|end| end.subject && scene.debt(end) == Debt::Sure) {
        return None;
    }
    let open: BTreeSet<FlowId> = waiting.ends.iter().filter(|end| scene.is_open(end)).map(|end| end.id).into_set();
    let mut ends = waiting.ends;
    ends.retain(|end| open.contains(&end.id));
    let mut threads = waiting.threads;
    threads.iter_mut().for_each(|thread| thread.awaits.retain(|id| open.contains(id)));
    Some(Waiting { ends, threads, ..waiting })
}

/// One request that waits.
struct Held<'a> {
    end: &'a WaitingEnd,
    age_ns: u64,
    way: Way,
}

/// The requests that waited when the window of a capture ended; `found` are the services that the probes saw.
pub fn waited(capture: &Capture, found: &[Service]) -> Waited {
    let Some(waiting) = &capture.waiting else { return Waited::default() };
    let scene = Scene::new(waiting).knowing(capture, found);
    let mut held = Vec::new();
    let served: BTreeSet<u32> = scene.served_debts().flat_map(|end| end.pids.iter().copied()).into_set();
    for end in waiting.ends.iter().filter(|end| end.subject) {
        let age_ns = age(end);
        let way = match end.serves {
            true => {
                (scene.debt(end) == Debt::Sure).then(|| scene.served(end)).filter(|way| !streams(capture, end, way))
            }
            // A relay's own request is on the account of those for whom it asks; one that the subject serves itself, on that of the
            // service.
            false if end.pids.iter().any(|pid| served.contains(pid)) => None,
            false => scene.asked(end).filter(|_| !scene.other_end(end).is_some_and(|other| other.subject)),
        };
        if let Some(way) = way.filter(|_| counts(capture, found, end, age_ns)) {
            held.push(Held { end, age_ns, way });
        }
    }
    keep_back(capture, &scene, &mut held);
    let (quiet, owed): (Vec<Held<'_>>, Vec<Held<'_>>) = held.into_iter().partition(|h| h.way.class == Class::Quiet);
    Waited {
        services: services(capture, owed),
        quiet: Quiet { count: quiet.len() as u64, longest_ns: quiet.iter().map(|h| h.age_ns).max().unwrap_or(0) },
    }
}

/// A process that lets requests wait, and has for each of them a connection of its own on which it never sent anything, is a relay that
/// has read them and passes nothing on. A server with a pool has used its connections before.
fn keep_back(capture: &Capture, scene: &Scene<'_>, held: &mut [Held<'_>]) {
    let quiet = |held: &&mut Held<'_>| held.end.serves && held.way.class == Class::Quiet;
    let mut waits = BTreeMap::<u32, usize>::new();
    for one in held.iter_mut().filter(quiet) {
        one.end.pids.iter().for_each(|pid| *waits.entry(*pid).or_default() += 1);
    }
    let unused = |flow: &&FlowRecord| {
        let last = &flow.last;
        !serves(flow) && last.state == ESTABLISHED && last.bytes_acked <= 1 && last.bytes_received == 0
    };
    let mut opened = BTreeMap::<u32, (usize, SocketAddr)>::new();
    for flow in capture.flows.iter().filter(unused).filter(|flow| flow.pid != 0) {
        opened.entry(flow.pid).or_insert((0, flow.remote)).0 += 1;
    }
    for one in held.iter_mut().filter(quiet) {
        let keeps = |pid: &&u32| opened.get(pid).is_some_and(|(count, _)| waits.get(pid).is_some_and(|n| count >= n));
        if let Some(pid) = one.end.pids.iter().find(keeps) {
            let hop = scene.any_hop(one.end, HopKind::Idle);
            let hop = opened.get(pid).map_or(hop.clone(), |(_, remote)| follow::to(*remote, hop));
            one.way = Way { hops: vec![hop], class: Class::Owed };
        }
    }
}

/// Both ends of the connections of the subject on which a request waited and is owed an answer: what their flows lost is that wait.
pub fn flows(capture: &Capture, found: &[Service]) -> BTreeSet<FlowId> {
    let Some(waiting) = &capture.waiting else { return BTreeSet::new() };
    let scene = Scene::new(waiting).knowing(capture, found);
    let stream = |end: &WaitingEnd| {
        let served = if end.serves { scene.end(end.id) } else { scene.other_end(end) };
        served.is_some_and(|end| streams(capture, end, &scene.served(end)))
    };
    let counted =
        |end: &&WaitingEnd| scene.debt(end) == Debt::Sure && counts(capture, found, end, age(end)) && !stream(end);
    let open = waiting.ends.iter().filter(counted);
    open.flat_map(|end| [Some(end.id), scene.other_end(end).map(|other| other.id)]).flatten().into_set()
}

/// What lies unread there is a stream that its reader leaves, for a reason that does not show in its threads: its flow has that on its
/// account. One whose process is stopped or blocked waits for that, as a request does.
fn streams(capture: &Capture, end: &WaitingEnd, way: &Way) -> bool {
    let idles = way.hops.last().is_some_and(|hop| matches!(hop.kind, HopKind::Idle | HopKind::Unread));
    end.unread_bytes > 0 && idles && capture.flows.iter().any(|flow| flow.id == end.id && is_shut(flow))
}

/// How long a request at this end has waited.
fn age(end: &WaitingEnd) -> u64 {
    let since = if end.serves { end.received_ns.unwrap_or(end.acked_ns) } else { end.sent_ns.unwrap_or(0) };
    let since = if end.state == SYN_SENT { 0 } else { since };
    since.max(end.still_ns)
}

/// It waited for the whole window, or for long, and no probe has followed it.
fn counts(capture: &Capture, found: &[Service], end: &WaitingEnd, age_ns: u64) -> bool {
    if age_ns >= capture.window_ns || !end.accepted && is_deaf(capture, end) {
        return true;
    }
    let port = if end.serves { end.local.port() } else { end.remote.port() };
    let same = |s: &&Service| s.address.port() == port && s.unanswered > 0;
    let known = |s: &Service| s.unanswered_longest_ns.saturating_add(SAME_NS) >= age_ns;
    let read = end.accepted && end.unread_bytes == 0;
    let seen = capture.rung == Rung::Btf && read && found.iter().filter(same).any(known);
    age_ns >= LONG_NS && !seen
}

/// Nobody took anything out of the queue of its listener within the window, although something lay in it from the begin on. It waits behind
/// that, however short: clients that gave up have left their connections there.
fn is_deaf(capture: &Capture, end: &WaitingEnd) -> bool {
    if capture.rung != Rung::Btf || capture.window_ns < LONG_NS {
        return false;
    }
    let (netns, port) = (end.netns, end.local.port());
    let listeners = capture.counters.iter().flat_map(|counters| &counters.listeners);
    let own = listeners.filter(|listener| listener.netns == netns && listener.local.port() == port);
    let queued = own.map(|listener| listener.queued);
    let (before, after) =
        queued.fold((0u64, 0u64), |sum, queued| (sum.0.saturating_add(queued.0), sum.1.saturating_add(queued.1)));
    let came = capture.net.accepted.iter().filter(|a| a.netns == netns && a.port == port);
    before > 0 && after >= came.fold(before, |sum, a| sum.saturating_add(a.count))
}

fn services(capture: &Capture, held: Vec<Held<'_>>) -> Vec<Service> {
    let mut groups: BTreeMap<(bool, u16, Option<SocketAddr>), Vec<Held<'_>>> = BTreeMap::new();
    for one in held {
        let key = match one.end.serves {
            true => (false, one.end.local.port(), None),
            false => (true, one.end.remote.port(), Some(one.end.remote)),
        };
        groups.entry(key).or_default().push(one);
    }
    let mut services: Vec<Service> = groups.into_values().filter_map(|held| service(capture, &held)).collect();
    services.stable_sort_by_key(|s| (std::cmp::Reverse(s.unanswered), s.address));
    services
}

fn service(capture: &Capture, held: &[Held<'_>]) -> Option<Service> {
    let window_ns = capture.window_ns;
    let first = held.first()?;
    let mut path: Vec<PathPart> = Vec::new();
    let (mut pids, mut workers) = (BTreeMap::<u32, u64>::new(), BTreeSet::new());
    for one in held {
        let ns = one.age_ns.min(window_ns);
        let hops = hops(one);
        if let Some(hop) = hops.first() {
            *pids.entry(hop.pid).or_default() += 1;
            workers.insert(hop.tid);
        }
        match path.iter_mut().find(|part| part.hops == hops) {
            Some(part) => {
                (part.ns, part.requests) = (part.ns.saturating_add(ns), part.requests + 1);
                part.longest_ns = part.longest_ns.max(one.age_ns);
            }
            None => path.push(PathPart { hops, ns, requests: 1, longest_ns: one.age_ns, setup: false }),
        }
    }
    path.stable_sort_by_key(|part| std::cmp::Reverse(part.ns));
    pids.remove(&0);
    let mut pids: Vec<(u32, u64)> = pids.into_iter().collect();
    pids.stable_sort_by_key(|&(pid, n)| (std::cmp::Reverse(n), pid));
    let outstanding_ns = path.iter().map(|part| part.ns).fold(0, u64::saturating_add);
    let count = held.len() as u64;
    Some(Service {
        address: if first.end.serves { first.end.local } else { first.end.remote },
        transport: Transport::Tcp,
        outbound: !first.end.serves,
        followed: false,
        waited: true,
        pids: pids.into_iter().map(|(pid, _)| pid).collect(),
        requests: 0,
        unanswered: count,
        unanswered_longest_ns: held.iter().map(|one| one.age_ns).max().unwrap_or(0),
        abandoned: 0,
        overlapping: 0,
        in_pieces: 0,
        continued: 0,
        continued_ns: 0,
        connections: count,
        opened: 0,
        moved: 0,
        observed_ns: window_ns,
        p50_ns: None,
        p99_ns: None,
        outstanding_ns,
        working_ns: window_ns,
        worked_ns: outstanding_ns,
        reply_gap_p10_ns: 0,
        reply_gap_p50_ns: 0,
        reply_gap_p90_ns: 0,
        limits: Vec::new(),
        workers: workers.len() as u32,
        followed_requests: count,
        followed_ns: outstanding_ns,
        path,
        tail: None,
    })
}

/// The hops of a request; one whose process was not seen has one that says so.
fn hops(held: &Held<'_>) -> Vec<Hop> {
    if held.way.hops.is_empty() { vec![follow::nobody(HopKind::Unseen)] } else { held.way.hops.clone() }
}
