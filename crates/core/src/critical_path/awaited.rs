//! The purpose of a sleep over descriptors, by the calls of its thread on sockets before it and after it.
use parshall_evidence::FlowId;
use parshall_evidence::timeline::{OffCpu, Op, SocketCall, Waker};

use super::attempts::Attempt;
use super::index::{GIVEN_NS, Index, RELEASED_NS};
use super::step::Task;

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

    /// The served connection whose data ended a sleep over descriptors: they had come when the thread was woken, and it read them in that turn,
    /// if only after it had done something that another thread had left to it by then.
    pub fn woken_by_client(&self, off: &OffCpu) -> Option<FlowId> {
        let turn = self.calls_within(off.tid, off.end_ns, self.turn_end(off.tid, off.end_ns));
        let came = |call: &&SocketCall| {
            let within = (off.begin_ns..=off.wake_ns).contains(&call.since_ns);
            call.op == Op::Receive && within && self.socket(call.socket).is_some_and(|socket| socket.serves)
        };
        turn.iter().find(came).map(|call| call.socket)
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

    /// The connection whose answer a thread that another one waits for slept for in futex, and when that came: the thread asked there last and
    /// hears from there next, and whoever watches the connection for it woke it when the answer was there. One that waits for a lock beside
    /// its question goes on when it has that, whenever the answer comes. A thread that answers a request itself may have asked for
    /// another one.
    pub fn asks_meanwhile(&self, off: &OffCpu, task: Task) -> Option<(FlowId, u64)> {
        let before = self.calls_within(off.tid, 0, off.begin_ns).last().filter(|call| call.op == Op::Send)?;
        let next = self.next_call(off.tid, off.end_ns).filter(|call| call.op == Op::Receive)?;
        let asks = before.socket == next.socket && self.socket(next.socket).is_some_and(|socket| !socket.serves);
        let came = off.begin_ns.max(off.wake_ns.saturating_sub(RELEASED_NS))..=off.wake_ns;
        let at_once = matches!(off.waker, Waker::Thread(_)) && came.contains(&next.since_ns);
        (asks && at_once && matches!(task, Task::Other)).then_some((next.socket, next.since_ns))
    }

    /// The socket whose answer a sleep over descriptors was for, although a timer ended it, or nothing: what the thread did last was to
    /// ask there. A name server is asked by a function that waits for nothing else; any other server may be asked by an event loop,
    /// whose timers serve other requests too. `alone` says that the thread has nothing else to do, `works` that another thread waits
    /// for it.
    pub fn awaited_answer(&self, off: &OffCpu, alone: bool, works: bool) -> Option<FlowId> {
        if off.waker != Waker::HardIrq && !off.is_open() {
            return None;
        }
        let asked = self.asked_last(off)?;
        let is_certain = alone || asked.names || works && !self.serves(off.tid);
        is_certain.then_some(asked.socket)
    }

    /// The connection that a thread tried to open in a sleep over descriptors: its process began with it in the turn of the thread before
    /// the sleep, and gave it up in the turn after it, which a timer began.
    pub fn attempted_in(&self, off: &OffCpu) -> Option<FlowId> {
        let attempts = self.attempts.get(&self.names(off.tid)?.pid).filter(|_| off.waker == Waker::HardIrq)?;
        let offs = self.timeline.off_cpu.get(&off.tid)?;
        let slept = offs[..offs.partition_point(|other| other.begin_ns < off.begin_ns)].last();
        let turn_begin = slept.inspect(|slept| self.note(slept)).map_or(0, |slept| slept.end_ns);
        let from = attempts.partition_point(|attempt| attempt.opened_ns < turn_begin);
        let to = attempts.partition_point(|attempt| attempt.opened_ns <= off.begin_ns);
        let until = self.turn_end(off.tid, off.end_ns).max(off.end_ns.saturating_add(GIVEN_NS));
        let gives_up = |attempt: &&Attempt| (off.end_ns..=until).contains(&attempt.closed_ns);
        attempts.get(from..to)?.iter().rfind(gives_up).map(|attempt| attempt.socket)
    }
}
