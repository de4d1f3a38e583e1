//! Waits in futex that were for a turn to ask a server, and not for a lock: a pool of connections, a semaphore.
//!
//! A thread that gives a connection back wakes one of those that wait for one, or all of them. All but one find nothing, wait again, and
//! wake the next one by releasing the lock of the pool: a wake-up passes through many threads that had nothing to give.
use std::collections::HashMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{OffCpu, Op, Socket, SocketCall, Waker};

use super::index::{Answer, Index, RELEASED_NS};
use super::step::Task;
use super::walk::Walk;
use crate::wait::Wait;

/// Threads that a wake-up passes through at most.
const PASSED_ON_MAX: usize = 32;
/// One at a time is a lock as well.
const MOST_MIN: u32 = 2;

/// The turn that another request waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The thread whose request was answered.
    pub tid: u32,
    /// Its connection to the server.
    pub socket: FlowId,
}

impl Index<'_> {
    /// The turn that ended when this sleep in futex did, which `by` ended: its thread had just received the answer of a server that its
    /// process asks for several requests at a time and never for more, and has not asked there again. None where something else ended the
    /// sleep.
    pub fn turn_given(&self, off: &OffCpu, by: u32) -> Option<Turn> {
        let pid = self.names(off.tid)?.pid;
        if !self.limited.iter().any(|((limited, _), most)| *limited == pid && *most >= MOST_MIN) {
            return None;
        }
        let (mut tid, mut at) = (by, off.wake_ns);
        for _ in 0..PASSED_ON_MAX {
            let slept = self.last_sleep(tid, at);
            let begin = slept.map_or(0, |sleep| sleep.end_ns);
            if let Some(call) = self.heard(tid, begin.min(at.saturating_sub(RELEASED_NS)), at) {
                return Some(Turn { tid, socket: call.socket });
            }
            let sleep = slept.filter(|sleep| self.wait(sleep) == Wait::Futex && at - sleep.end_ns <= RELEASED_NS)?;
            let Waker::Thread(before) = sleep.waker else { return None };
            (tid, at) = (before, sleep.wake_ns);
        }
        None
    }

    /// The last sleep of a thread that had ended at `at`.
    pub(super) fn last_sleep(&self, tid: u32, at: u64) -> Option<&OffCpu> {
        self.timeline.last_sleep(tid, at).inspect(|off| self.note(off))
    }

    /// By process and address of a futex, the first threads that slept for it.
    pub(super) fn find_sleepers(&self) -> HashMap<(u32, u64), [(u32, u64); 2]> {
        let mut sleepers = HashMap::new();
        let sleeps = self.timeline.off_cpu.values().flatten().filter(|off| off.target != 0);
        for off in sleeps.filter(|off| self.wait(off) == Wait::Futex) {
            let Some(names) = self.names(off.tid) else { continue };
            let this = (off.tid, off.begin_ns);
            let [first, second] = sleepers.entry((names.pid, off.target)).or_insert([this; 2]);
            if first.0 != off.tid && first == second {
                *second = this;
            }
        }
        sleepers
    }

    /// Whether a thread accepted a connection in the turn that its own timer began: it had left it in the queue until then.
    pub fn timer_lets_in(&self, tid: u32, socket: FlowId) -> bool {
        let accepted = self.timeline.calls.get(&socket).and_then(|calls| calls.first());
        let at = accepted.filter(|call| call.op == Op::Accept && call.tid == tid).map(|call| call.at_ns);
        let sleep = at.and_then(|at| Some((at, self.last_sleep(tid, at)?)));
        sleep.is_some_and(|(at, off)| {
            off.waker == Waker::HardIrq && self.wait(off) == Wait::Multiplex && at - off.end_ns <= RELEASED_NS
        })
    }

    /// The last receive of a thread in a span of time, if it is from a server that its process has a limit of several requests for, and the
    /// thread has sent nothing there since.
    fn heard(&self, tid: u32, from: u64, to: u64) -> Option<&SocketCall> {
        let calls = self.calls_within(tid, from, to);
        let asks = |call: &&SocketCall| self.socket(call.socket).is_some_and(|socket| !socket.serves);
        let last = calls.iter().rfind(asks).filter(|call| call.op == Op::Receive)?;
        let next = self.socket(last.socket)?.remote;
        let most = self.limited.get(&(self.names(tid)?.pid, next))?;
        (*most >= MOST_MIN).then_some(last)
    }
}

impl Walk<'_> {
    /// Whether the reply that came with `call` was that to another request, after which this one had its turn: what is passed on has a limit,
    /// and that other one was answered in the turn in which the thread asked for this request, at `turn`. What went over this connection
    /// before that was for others too: one has it until it is answered, and may reset it before it gives it on.
    pub(super) fn is_for_another(&self, tid: u32, call: &SocketCall, socket: &Socket, turn: u64, task: Task) -> bool {
        let Task::Request { socket: own, end_ns, .. } = task else { return false };
        let span = (call.since_ns, self.index.turn_end(tid, turn));
        let answers = || self.index.answers_to_others(tid, (own, end_ns), span).next().is_some();
        self.index.limit(tid, socket).is_some() && (self.given == Some(call.socket) || answers())
    }

    /// Whether a thread that received from a server at `from` answered another request with it, before it did at `to` what this one
    /// needs: several of its kind do that for one request each.
    pub(super) fn works_for_another(&self, tid: u32, socket: &Socket, (from, to): (u64, u64), task: Task) -> bool {
        let Task::Request { socket: own, end_ns, .. } = task else { return false };
        let by_itself = |answer: &Answer| answer.tid == tid;
        self.index.limit(tid, socket).is_some_and(|most| most > 1)
            && self.index.answers_to_others(tid, (own, end_ns), (from, to)).any(by_itself)
    }

    /// Whether a thread that is to answer a request sleeps here for what it asked a server for another one, of which it asks for one at a
    /// time. It read the request after `lo`.
    pub(super) fn reads_ahead(&self, off: &OffCpu, socket: &Socket, lo: u64, task: Task) -> bool {
        let Task::Request { socket: own, reader, .. } = task else { return false };
        reader == off.tid && self.index.limit(off.tid, socket) == Some(1) && self.index.asks_for_another(off, (own, lo))
    }
}
