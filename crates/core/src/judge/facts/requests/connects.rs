//! Connections that a process of the subject wanted to open and that nobody answered: neither accepted nor refused.
use std::collections::BTreeMap;
use std::net::SocketAddr;

use parshall_evidence::socket::selection::state::{CLOSE, SYN_SENT};
use parshall_evidence::{Capture, FlowRecord, PathPart};

use crate::judge::ledger::flow_rules::{same_address, serves};
use crate::stats::ratio;

/// A process that gave up sooner may have had reasons of its own, and the answer may still have been on the way.
const GIVEN_UP_NS: u64 = 100_000_000;
/// Fewer are an anecdote.
const COUNT_MIN: u64 = 3;

/// The connections to one server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unanswered {
    /// The server.
    pub to: SocketAddr,
    /// Their number.
    pub count: u64,
    /// For how long a process waited for them, in sum.
    pub ns: f64,
}

impl Unanswered {
    /// Those of a process to the server for which it waited longest.
    pub fn of(capture: &Capture, pid: u32) -> Option<Unanswered> {
        let mut all: BTreeMap<SocketAddr, (u64, f64)> = BTreeMap::new();
        for flow in capture.flows.iter().filter(|flow| flow.pid == pid && is_unanswered(flow)) {
            let sums = all.entry(flow.remote).or_default();
            (sums.0, sums.1) = (sums.0 + 1, sums.1 + flow.wall_ns() as f64);
        }
        let found = all.into_iter().map(|(to, (count, ns))| Unanswered { to, count, ns });
        found.filter(|of| of.count >= COUNT_MIN).max_by(|a, b| a.ns.total_cmp(&b.ns))
    }

    /// How long it waited for each of them, nanoseconds.
    pub fn each_ns(&self) -> f64 {
        ratio(self.ns, self.count as f64)
    }
}

fn is_unanswered(flow: &FlowRecord) -> bool {
    let opening = matches!(flow.last.state, SYN_SENT | CLOSE) && flow.last.segs_in == 0;
    let asked = flow.last.bytes_received == 0 && flow.merged.is_none() && !serves(flow);
    opening && asked && flow.wall_ns() >= GIVEN_UP_NS
}

/// A connection within a host that takes so long was asked for again: the first time is after a second (TCP_TIMEOUT_INIT), and some are
/// not turned away.
const ASKED_AGAIN_NS: f64 = 250e6;

/// How many connection requests queues of other listeners than the observed ones turned away, where the wait of this part is for one of
/// them: it connects to this very host, which takes far longer than the way there, SYNs were repeated meanwhile, and queues overflowed.
pub fn drops_of_others(capture: &Capture, part: &PathPart) -> Option<u64> {
    let leaf = part.hops.last()?;
    let to = leaf.object.peer()?;
    if ratio(part.ns as f64, part.requests as f64) < ASKED_AGAIN_NS {
        return None;
    }
    let opens = |flow: &&FlowRecord| flow.pid == leaf.pid && flow.remote == to && !serves(flow);
    let flow = capture.flows.iter().find(opens)?;
    let counters = capture.counters.as_ref().filter(|_| same_address(flow))?;
    let space = counters.namespace(flow.netns)?;
    let own = counters.listeners.iter().filter(|listener| listener.netns == flow.netns);
    let own = own.fold(0u64, |n, listener| n.saturating_add(listener.drops));
    let others = space.rose("TcpExt.ListenOverflows").saturating_sub(own);
    (others > 0 && space.rose("TcpExt.TCPSynRetrans") > 0).then_some(others)
}
