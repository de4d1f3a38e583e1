//! Connections of which no more than a number are served at a time, each until it closes, while others lie unread: found by counting.
use std::collections::{BTreeMap, HashMap};

use parshall_evidence::timeline::{Op, SocketCall, Timeline};
use parshall_evidence::{FlowId, Limit};

use super::limit;

/// A limit is looked for where at least this many connections lie unread for this long after they were accepted.
const UNREAD_MIN: usize = 5;
const UNREAD_NS: u64 = 1_000_000;
/// One connection at a time is what a lock lets through as well.
const MOST_MIN: u32 = 2;

/// A connection that was served until it closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// When it closed.
    pub closed_ns: u64,
    /// When its first request was read.
    pub from_ns: u64,
    /// The only thread that served it.
    pub tid: u32,
    /// The served socket.
    pub socket: FlowId,
}

/// The connections of a port, as many of which are served at a time as a limit allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Places {
    /// How many are served at a time.
    pub limit: Limit,
    /// In the order in which they closed.
    closed: Vec<Kept>,
}

/// The ports at which connections wait while no more than a number of them are served.
pub fn places(timeline: &Timeline) -> HashMap<u16, Places> {
    let mut ports: BTreeMap<u16, Vec<FlowId>> = BTreeMap::new();
    for (id, socket) in timeline.sockets.iter().filter(|(_, socket)| socket.serves && !socket.udp) {
        ports.entry(socket.local.port()).or_default().push(*id);
    }
    let calls = |id: &FlowId| timeline.calls.get(id).map(Vec::as_slice);
    ports.retain(|_, ids| ids.iter().filter_map(calls).filter(|calls| lies_unread(calls)).count() >= UNREAD_MIN);
    let limited = ports.into_iter().filter_map(|(port, ids)| Some((port, of_port(timeline, &ids)?)));
    limited.collect()
}

/// Whether the first request of a connection lay there for a while after that had been accepted.
fn lies_unread(calls: &[SocketCall]) -> bool {
    let accepted = calls.first().filter(|call| call.op == Op::Accept);
    let lies = |call: &SocketCall| {
        accepted.is_some_and(|at| call.at_ns.saturating_sub(at.at_ns.max(call.since_ns)) >= UNREAD_NS)
    };
    first_read(calls).is_some_and(lies)
}

fn of_port(timeline: &Timeline, ids: &[FlowId]) -> Option<Places> {
    let (mut open, mut served, mut closed) = (Vec::new(), Vec::new(), Vec::new());
    for id in ids {
        let (Some(socket), Some(calls)) = (timeline.sockets.get(id), timeline.calls.get(id)) else { continue };
        let until = socket.closed_ns.unwrap_or(u64::MAX);
        let from = match (socket.opened_ns, calls.first()) {
            (Some(at_ns), _) => at_ns,
            (None, Some(first)) if socket.opened => first.since_ns,
            _ => 0,
        };
        for &(begin, end) in &timeline.slices {
            let within = |from: u64| Some((from.max(begin), until.min(end))).filter(|span| span.0 < span.1);
            open.extend(within(from));
            served.extend(served_from(socket.opened, calls, begin).and_then(within));
        }
        let read_by = first_read(calls).map(|call| call.at_ns).zip(only_thread(calls));
        if let (Some(closed_ns), Some((from_ns, tid))) = (socket.closed_ns, read_by) {
            closed.push(Kept { closed_ns, from_ns, tid, socket: *id });
        }
    }
    let limit = limit::found(&open, &served, None).filter(|limit| limit.most >= MOST_MIN)?;
    closed.sort_unstable();
    Some(Places { limit: Limit { by_connections: true, ..limit }, closed })
}

/// The first call on a connection that received something.
pub fn first_read(calls: &[SocketCall]) -> Option<&SocketCall> {
    calls.iter().find(|call| call.op == Op::Receive)
}

/// From when on a connection is served. One that was there before a slice was served then, unless what it brought lay there already.
fn served_from(opened: bool, calls: &[SocketCall], begin: u64) -> Option<u64> {
    let first = first_read(calls)?;
    Some(if opened || first.since_ns <= begin { first.at_ns } else { 0 })
}

/// The thread that had all calls on a connection, but for the one that accepted it.
fn only_thread(calls: &[SocketCall]) -> Option<u32> {
    let tid = first_read(calls)?.tid;
    calls.iter().all(|call| call.op == Op::Accept || call.tid == tid).then_some(tid)
}

impl Places {
    /// The connections that had closed at a time, the last one first.
    pub fn before(&self, at: u64) -> impl Iterator<Item = &Kept> {
        self.closed[..self.closed.partition_point(|kept| kept.closed_ns <= at)].iter().rev()
    }
}
