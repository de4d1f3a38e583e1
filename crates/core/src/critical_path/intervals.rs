//! Waits at intervals: a thread that waits for something looks after it now and then, so that timers end its sleeps. It does not wait for
//! them. An interpreter's lock is waited for in this way: its holder is asked for it when such a sleep ends.
//!
//! A timer that a thread does wait for looks alike; after it the thread goes on by itself.
use parshall_evidence::timeline::{OffCpu, Waker};

use super::index::Index;
use crate::wait::Wait;

/// Sleeps of a wait that a thread looks after at intervals.
const LOOKS_MAX: usize = 200;
/// A thread that sleeps again within this time has done nothing in between.
const AT_ONCE_NS: u64 = 200_000;
/// The futexes of one lock are that near to each other.
const BESIDE_BYTES: u64 = 256;

impl Index<'_> {
    /// The thread that a thread waited for at intervals when it slept this sleep, which a timer ended.
    pub fn awaited_at_intervals(&self, off: &OffCpu) -> Option<u32> {
        self.woken_later(off).or_else(|| self.gave_way(off))
    }

    /// The thread that ended a wait at intervals, of which this sleep is one that a timer ended: the waiting thread slept again in the same
    /// call, did nothing with a socket in between, and was then woken by the returned one. In futex it sleeps for the same one again, and
    /// at once: so an interpreter's lock is waited for, whose holder is asked for it at intervals.
    fn woken_later(&self, off: &OffCpu) -> Option<u32> {
        let offs = self.timeline.off_cpu.get(&off.tid)?;
        let later = &offs[offs.partition_point(|next| next.begin_ns <= off.begin_ns)..];
        let is_futex = self.wait(off) == Wait::Futex;
        let mut before = off;
        for next in later.iter().take(LOOKS_MAX) {
            self.note(next);
            let works = !self.calls_within(off.tid, before.end_ns, next.begin_ns).is_empty();
            let at_once = !is_futex || next.begin_ns - before.end_ns <= AT_ONCE_NS;
            if works || !at_once {
                return None;
            }
            before = next;
            let slept_ns = next.wake_ns.saturating_sub(next.begin_ns);
            if slept_ns == 0 {
                continue;
            }
            if next.syscall != off.syscall {
                return None;
            }
            if is_futex && !is_same_futex(off, next) {
                // The lock that guards the other one is had at once.
                if slept_ns <= AT_ONCE_NS {
                    continue;
                }
                return None;
            }
            if let Waker::Thread(by) = next.waker {
                return Some(by);
            }
        }
        None
    }

    /// The thread that had a lock until a sleep in futex ended: it fell asleep then in a futex beside, and was woken by the one that has
    /// the lock since. A holder that gives it away at once leaves no time for another sleep.
    fn gave_way(&self, off: &OffCpu) -> Option<u32> {
        if self.wait(off) != Wait::Futex || off.target == 0 {
            return None;
        }
        let pid = self.names(off.tid)?.pid;
        let (from, to) = (off.wake_ns.saturating_sub(AT_ONCE_NS), off.end_ns.saturating_add(AT_ONCE_NS));
        let gives = |next: &OffCpu| {
            let beside = next.target != 0 && next.target.abs_diff(off.target) <= BESIDE_BYTES;
            beside && next.waker == Waker::Thread(off.tid) && self.wait(next) == Wait::Futex
        };
        let of_process = self.timeline.names.iter().filter(|(tid, names)| names.pid == pid && **tid != off.tid);
        let mut threads = of_process.filter_map(|(tid, _)| self.timeline.off_cpu.get(tid));
        let gave = threads.find_map(|offs| {
            let later = &offs[offs.partition_point(|next| next.begin_ns < from)..];
            later.iter().take_while(|next| next.begin_ns <= to).find(|next| gives(next))
        })?;
        self.note(gave);
        Some(gave.tid)
    }
}

/// Whether two sleeps are for the same futex, or for one of the two that a condition variable of the C library has side by side.
pub(super) fn is_same_futex(one: &OffCpu, other: &OffCpu) -> bool {
    one.target != 0 && one.target >> 3 == other.target >> 3
}
