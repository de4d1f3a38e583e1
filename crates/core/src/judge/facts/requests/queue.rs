//! Waits of requests for others: in front of which process, and for which limit.
use std::collections::{BTreeMap, BTreeSet};

use parshall_evidence::{Capture, DescriptorUse, FdKind, FlowRecord, Hop, HopKind, Limit, PathPart, Service};

use crate::critical_path::waits_for_helper;
use crate::judge::ledger::flow_rules::serves;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;
use crate::wait::Wait;

/// The service whose requests a process reads.
fn service_of(services: &[Service], pid: u32) -> Option<&Service> {
    services.iter().find(|service| !service.outbound && service.pids.contains(&pid))
}

/// The first hop in front of which requests lie unread, and how many its service works on at a time: by the limit that was counted, or
/// else by the threads that read or answer; or, where it accepts only when another connection is served, by the processes that have one
/// each; or, where it is asked over a UNIX socket, by the threads that serve one at a time each there. None where no other queue of a known
/// service is on the way.
pub fn queue_of<'h>(services: &[Service], hops: &'h [Hop], capture: &Capture) -> Option<(&'h Hop, u32)> {
    let at = hops.iter().position(|hop| hop.kind.is_queue())?;
    let hop = &hops[at];
    if queued_locally(hops).is_some_and(|local| std::ptr::eq(local, hop)) {
        return Some((hop, hop.threads.max(1)));
    }
    let service = service_of(services, hop.pid)?;
    let at_a_time = limit_in_hands(services, hop.pid).map_or(service.workers, |limit| limit.most);
    let in_turn = hop.kind == HopKind::AcceptQueue && hops.get(at + 1).is_some_and(|next| next.kind == HopKind::Client);
    if !in_turn {
        return Some((hop, at_a_time));
    }
    let held = connections_of(capture, service.address.port());
    let one_each = held.values().filter(|connections| **connections == 1).count();
    Some((hop, at_a_time.max(u32::try_from(one_each).unwrap_or(u32::MAX))))
}

/// The hop in front of which requests wait behind others that its process serves one at a time, where it is asked over a UNIX socket.
pub fn queued_locally(hops: &[Hop]) -> Option<&Hop> {
    let mut pairs = hops.windows(2).filter(|pair| pair[0].kind == HopKind::Pipe && pair[1].kind == HopKind::Unread);
    pairs.find_map(|pair| (pair[0].pid != pair[1].pid).then_some(&pair[1]))
}

/// The limit on what the service of a process has in its hands, if it has one.
pub fn limit_in_hands(services: &[Service], pid: u32) -> Option<&Limit> {
    service_of(services, pid)?.limits.iter().find(|limit| limit.next.is_none())
}

/// Whether the requests lie unread at a process that serves a number of connections at a time, each until it closes.
pub fn keeps_connections(services: &[Service], hops: &[Hop]) -> bool {
    let queue = hops.iter().find(|hop| hop.kind.is_queue());
    queue.and_then(|hop| limit_in_hands(services, hop.pid)).is_some_and(|limit| limit.by_connections)
}

/// Where a request waits for its turn to be passed on.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// The hop at which it waits.
    pub hop: &'a Hop,
    /// How many are passed on at a time.
    pub limit: &'a Limit,
    /// The hop of the helper that asks the server, where the process of `hop` does not do so itself.
    pub helper: Option<&'a Hop>,
}

impl<'a> Turn<'a> {
    fn own(hop: &'a Hop, limit: &'a Limit) -> Turn<'a> {
        Turn { hop, limit, helper: None }
    }
}

/// The hop at which a request waits for its turn to be passed on, and the limit that it waits for: the walk has seen whose turn it was,
/// or threads of a process that has such a limit wait for each other while one of them waits for that server, or the process waits for
/// helpers that ask that server for longer than that takes.
pub fn turn_of<'a>(services: &'a [Service], part: &'a PathPart) -> Option<Turn<'a>> {
    let hops = part.hops.as_slice();
    // Whoever has it has asked nothing for it yet, and what it waits for is not seen in it: others have their turn.
    let asked = hops.iter().rposition(|hop| hop.kind == HopKind::Reply);
    let since = &hops[asked.map_or(0, |asked| asked + 1)..];
    let quiet = |leaf: &&Hop| matches!(leaf.kind, HopKind::OtherRequest | HopKind::Network | HopKind::Idle);
    if let Some(first) = since.first().filter(|_| since.last().is_some_and(|leaf| quiet(&leaf))) {
        let limits = service_of(services, first.pid).map_or(&[][..], |service| &service.limits);
        if let Some(limit) = limits.iter().find(|limit| limit.next.is_some()) {
            return Some(Turn::own(first, limit));
        }
    }
    hops.windows(2)
        .find_map(|pair| {
            let (hop, after) = (&pair[0], &pair[1]);
            let limit = service_of(services, hop.pid)?.limits.iter().find(|limit| is_to(limit, after))?;
            let asks = after.kind == HopKind::Reply && after.pid == hop.pid;
            match hop.kind {
                HopKind::Turn => Some(Turn::own(hop, limit)),
                // One at a time is a lock as well.
                HopKind::Lock | HopKind::Worker if asks && limit.most > 1 => Some(Turn::own(hop, limit)),
                _ => None,
            }
        })
        .or_else(|| turn_of_helper(services, part))
}

/// From this multiple of the time of a helper's question on, a request has waited for others first.
const BEYOND: f64 = 1.5;

/// The hop at which a request waits until a helper of its service asks a server for it: longer than the helper takes, so others have their
/// turn first.
fn turn_of_helper<'a>(services: &'a [Service], part: &'a PathPart) -> Option<Turn<'a>> {
    // Whoever waits until another thread has asked the helper waits for a lock.
    let mut pairs = part.hops.windows(2).take_while(|pair| pair[0].kind != HopKind::Lock);
    let [hop, helper] = pairs.find(|pair| waits_for_helper(pair))? else { return None };
    // It waits in whichever process of the service asks the helper.
    let service = services.iter().find(|service| service.path.iter().any(|own| std::ptr::eq(own, part)))?;
    let limit = service.limits.iter().find(|limit| is_to(limit, helper))?;
    let each_ns = ratio(part.ns as f64, part.requests as f64);
    (each_ns >= BEYOND * limit.each_ns as f64).then_some(Turn { hop, limit, helper: Some(helper) })
}

/// The hop at which a thread is blocked in a question of another request, and the limit of one that it makes.
pub fn blocked_in<'a>(services: &'a [Service], hops: &'a [Hop]) -> Option<Turn<'a>> {
    let first = hops.first().filter(|hop| hop.kind.is_queue())?;
    let limits = &service_of(services, first.pid)?.limits;
    let asks = |hop: &&Hop| hop.kind == HopKind::Reply && hop.pid == first.pid;
    hops.iter()
        .filter(asks)
        .find_map(|hop| Some(Turn::own(hop, limits.iter().find(|limit| limit.blocks && is_to(limit, hop))?)))
}

fn is_to(limit: &Limit, hop: &Hop) -> bool {
    limit.next.is_some() && limit.next == hop.object.peer()
}

/// From this share of its descriptors on, a process may keep the rest in reserve.
const RESERVE: f64 = 0.75;

/// Requests wait to be accepted by a process that has time and watches its listener no longer.
pub fn is_full(part: &PathPart) -> bool {
    let hops = part.hops.as_slice();
    matches!(hops, [.., queue, leaf] if queue.kind == HopKind::AcceptQueue && leaf.kind == HopKind::Idle)
}

/// Whether requests wait to be accepted until a timer of the thread that accepts ends its wait for events: it has left its listener alone.
pub fn accepts_at_timer(hops: &[Hop]) -> bool {
    matches!(hops, [.., queue, leaf] if queue.kind == HopKind::AcceptQueue && queue.tid == leaf.tid && watches_many(leaf))
}

/// A wait for any of many things.
pub fn watches_many(leaf: &Hop) -> bool {
    Wait::of(&leaf.syscall, FdKind::None, 0) == Wait::Multiplex
}

/// The descriptors of a process that has hardly more open than it allows itself.
pub fn short_of_descriptors(capture: &Capture, pid: u32) -> Option<&DescriptorUse> {
    let all = capture.counters.iter().flat_map(|counters| &counters.descriptors);
    all.filter(|used| used.pid == pid && used.limit > 0).find(|used| used.open as f64 >= RESERVE * used.limit as f64)
}

/// Whether the kernel deals the connections of a port to several listeners (SO_REUSEPORT).
pub fn has_several_listeners(capture: &Capture, port: u16) -> bool {
    let mut held: BTreeMap<u64, u32> = BTreeMap::new();
    for listener in capture.counters.iter().flat_map(|counters| &counters.listeners) {
        if listener.local.port() == port {
            *held.entry(listener.netns).or_default() += 1;
        }
    }
    held.values().any(|listeners| *listeners > 1)
}

/// Connections at a port that are open when the window ends, by the process that has them.
pub fn connections_of(capture: &Capture, port: u16) -> BTreeMap<u32, u64> {
    let mut held = BTreeMap::new();
    let open = |flow: &&FlowRecord| serves(flow) && flow.local.port() == port && flow.end_ns >= capture.window_ns;
    for flow in capture.flows.iter().filter(open).filter(|flow| flow.pid != 0) {
        *held.entry(flow.pid).or_default() += flow.connections();
    }
    held
}

/// Workers that each keep one connection open, and how many they are.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'s> {
    /// Their service.
    pub by: &'s Service,
    /// The workers, and their connections.
    pub workers: u64,
}

/// The service that answers at the port at which requests wait to be accepted, if each of its workers keeps one connection open. Where a
/// worker ends with its connection, there are at most as many connections at a time, also while others take the place of those that close.
pub fn workers_keep_one_each<'s>(waited: &Service, services: &'s [Service], capture: &Capture) -> Option<Kept<'s>> {
    let port = waited.address.port();
    let by = services.iter().find(|s| !s.waited && !s.outbound && s.address.port() == port && s.workers > 0)?;
    let of_it = |flow: &&FlowRecord| serves(flow) && flow.local.port() == port && by.pids.contains(&flow.pid);
    let (open, closed): (Vec<&FlowRecord>, Vec<&FlowRecord>) =
        capture.flows.iter().filter(of_it).partition(|flow| flow.end_ns >= capture.window_ns);
    let workers = open.iter().map(|flow| flow.connections()).fold(0, u64::saturating_add);
    let threads: BTreeSet<u32> = open.iter().map(|flow| flow.last_tid).into_set();
    let take_turns = !closed.is_empty() && threads.len() as u64 == workers && most_at_a_time(&open, &closed) <= workers;
    let is_limit = workers == u64::from(by.workers) || workers > 1 && take_turns;
    is_limit.then_some(Kept { by, workers })
}

fn most_at_a_time(open: &[&FlowRecord], closed: &[&FlowRecord]) -> u64 {
    let begins = open.iter().chain(closed).map(|flow| (flow.begin_ns, true, flow.connections()));
    let ends = closed.iter().map(|flow| (flow.end_ns, false, flow.connections()));
    let mut all: Vec<(u64, bool, u64)> = begins.chain(ends).collect();
    all.sort_unstable();
    let mut now = 0_u64;
    let counts = all.into_iter().map(|(_, begins, n)| {
        now = if begins { now.saturating_add(n) } else { now.saturating_sub(n) };
        now
    });
    counts.max().unwrap_or(0)
}

/// More at a time would only wait for this instead.
pub fn needs_what_is_scarce(leaf: &Hop) -> bool {
    use HopKind::{Disk, Lock, Memory, NameServer, OnCpu, RunQueue, Stopped, Throttled};
    matches!(leaf.kind, OnCpu | RunQueue | Throttled | Stopped | Disk | Memory | NameServer | Lock)
}
