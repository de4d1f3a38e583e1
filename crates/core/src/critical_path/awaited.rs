//! The purpose of a sleep over descriptors, by the calls of its thread on sockets before it and after it.
use parshall_evidence::FlowId;
use parshall_evidence::timeline::{OffCpu, Op, SocketCall};

use super::index::Index;

impl Index<'_> {
    /// The last receive of a thread in a span of time that a sleep which ended at `from` may have been for. What the thread asked for
    /// itself after that sleep, and what came over a connection that was opened after it, is nothing that it slept for.
    pub fn awaited_receive(&self, tid: u32, from: u64, to: u64) -> Option<&SocketCall> {
        let asked_later = |call: &SocketCall| {
            let asks = self.socket(call.socket).filter(|socket| !socket.serves);
            asks.is_some_and(|socket| match self.last_send(call.socket, call.since_ns) {
                Some(sent) => sent.tid == tid && sent.since_ns >= from,
                None => socket.opened_ns.is_some_and(|at_ns| at_ns >= from),
            })
        };
        let calls = self.calls_within(tid, from, to).iter().rev();
        calls.filter(|call| call.op == Op::Receive).find(|call| !asked_later(call))
    }

    /// The served connection whose client a thread waits for in a sleep: it did nothing since it last sent something there, and what comes
    /// next comes from there.
    pub fn serves_in(&self, off: &OffCpu) -> Option<FlowId> {
        let before = self.calls_within(off.tid, 0, off.begin_ns).last()?;
        let next = self.next_call(off.tid, off.end_ns)?;
        let serves = before.socket == next.socket && self.socket(next.socket).is_some_and(|socket| socket.serves);
        (serves && before.op != Op::Receive && next.op == Op::Receive).then_some(next.socket)
    }

    /// The connection whose answer a thread waits for in a sleep, and for nothing else: it asked there last and hears from there next, and
    /// the call watches what it is given. A set of epoll outlives the call, and event loops watch all they have in it; who sleeps there
    /// over a request that came (`sleeps_over`) does not watch it, where it is the only thread.
    pub fn asks_in(&self, off: &OffCpu, sleeps_over: bool) -> Option<FlowId> {
        let before = self.calls_within(off.tid, 0, off.begin_ns).last().filter(|call| call.op == Op::Send)?;
        let next = self.next_call(off.tid, off.end_ns).filter(|call| call.op == Op::Receive)?;
        let pid = self.names(off.tid)?.pid;
        let one = matches!(self.syscall(off), "poll" | "ppoll" | "select" | "pselect6")
            || sleeps_over && self.has_one_thread(pid);
        let asks = before.socket == next.socket && self.socket(next.socket).is_some_and(|socket| !socket.serves);
        (one && asks).then_some(next.socket)
    }
}
