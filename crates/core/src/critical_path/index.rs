//! Lookups in a timeline: by thread, by socket, by time.
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use parshall_evidence::{FlowId, HopKind};

use super::requests::{self, Request};
use crate::wait::Wait;
use parshall_evidence::timeline::{Holder, Names, OffCpu, Op, Socket, SocketCall, Timeline, Waker, Why};

/// The longest time in which a runtime gives what is ready to another thread.
const GIVEN_NS: u64 = 500_000;

/// A shorter wait for a CPU is what a turn of any other thread takes.
const LONG_WAIT_NS: u64 = 4_000_000;
/// Threads that are looked at for who had a CPU.
const RAN_BEFORE_MAX: usize = 16;

/// A timeline and what is derived from it once.
pub struct Index<'a> {
    /// What was observed.
    pub timeline: &'a Timeline,
    /// Requests that arrived at served sockets, in order.
    pub requests: BTreeMap<FlowId, Vec<Request>>,
    calls: HashMap<u32, Vec<SocketCall>>,
    /// Threads that read or answered requests.
    serving: HashSet<u32>,
    /// The last call on the sockets that are served at an address.
    last_served: HashMap<SocketAddr, SocketCall>,
    /// By process, its sockets that are not served and on which something moved.
    asking: HashMap<u32, Vec<FlowId>>,
    /// Threads of each process.
    threads: HashMap<u32, usize>,
    /// By process, the connections that it opened, in the order of the first sends on them.
    first_sends: HashMap<u32, Vec<(u64, FlowId)>>,
    /// By process, the thread that ended most of the time its threads slept in futex.
    usual_wakers: BTreeMap<u32, u32>,
    /// Processes that were out of quota at times.
    throttled: HashSet<u32>,
    /// Times off the CPU that something was concluded from, by thread and begin; None where nobody asks for them.
    used: Option<RefCell<HashSet<(u32, u64)>>>,
}

impl<'a> Index<'a> {
    /// Cuts the requests out of the calls, and sorts the calls by thread.
    pub fn new(timeline: &'a Timeline) -> Index<'a> {
        let mut by_thread: HashMap<u32, Vec<SocketCall>> = HashMap::new();
        let mut found = BTreeMap::new();
        let mut first_sends: HashMap<u32, Vec<(u64, FlowId)>> = HashMap::new();
        let (mut last_served, mut asking) = (HashMap::new(), HashMap::<u32, Vec<FlowId>>::new());
        for (id, calls) in &timeline.calls {
            for call in calls {
                by_thread.entry(call.tid).or_default().push(*call);
            }
            let Some(socket) = timeline.sockets.get(id) else { continue };
            if socket.serves {
                found.insert(*id, requests::served(*id, socket, calls, &timeline.slices));
                let Some(last) = calls.last() else { continue };
                let known = last_served.entry(socket.local).or_insert(*last);
                if last.at_ns >= known.at_ns {
                    *known = *last;
                }
            } else {
                asking.entry(socket.pid).or_default().push(*id);
                if let Some(first) = calls.first().filter(|call| socket.opened && call.op == Op::Send) {
                    first_sends.entry(socket.pid).or_default().push((first.at_ns, *id));
                }
            }
        }
        by_thread.values_mut().for_each(|calls| calls.sort_by_key(|c| (c.at_ns, c.socket)));
        first_sends.values_mut().for_each(|sends| sends.sort_unstable());
        let requests = || found.values().flatten();
        let serving = requests().flat_map(|r: &Request| [Some(r.read_tid), r.reply_tid]).flatten().collect();
        let usual_wakers = timeline.usual_wakers.clone();
        let mut threads: HashMap<u32, usize> = HashMap::new();
        timeline.names.values().for_each(|names| *threads.entry(names.pid).or_default() += 1);
        let mut index = Index {
            timeline,
            requests: found,
            calls: by_thread,
            serving,
            last_served,
            asking,
            threads,
            first_sends,
            usual_wakers,
            throttled: throttled(timeline),
            used: None,
        };
        if timeline.left_out == 0 {
            index.usual_wakers = index.find_usual_wakers();
        }
        index
    }

    /// As [`Index::new`], and notes which times off the CPU are used.
    pub fn noting(timeline: &'a Timeline) -> Index<'a> {
        Index { used: Some(RefCell::default()), ..Index::new(timeline) }
    }

    /// Something was concluded from this time off the CPU.
    pub fn note(&self, off: &OffCpu) {
        if let Some(used) = &self.used {
            used.borrow_mut().insert((off.tid, off.begin_ns));
        }
    }

    /// The times off the CPU that were noted, by thread and begin, and who usually ends sleeps in futex.
    pub fn into_noted(self) -> (HashSet<(u32, u64)>, BTreeMap<u32, u32>) {
        (self.used.map(RefCell::into_inner).unwrap_or_default(), self.usual_wakers)
    }

    fn find_usual_wakers(&self) -> BTreeMap<u32, u32> {
        let mut slept: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for off in self.timeline.off_cpu.values().flatten().filter(|off| self.wait(off) == Wait::Futex) {
            if let (Waker::Thread(by), Some(names)) = (off.waker, self.names(off.tid)) {
                *slept.entry((names.pid, by)).or_default() += off.wake_ns.saturating_sub(off.begin_ns);
            }
        }
        let mut usual: HashMap<u32, (u64, u32)> = HashMap::new();
        for ((pid, by), ns) in slept {
            let most = usual.entry(pid).or_default();
            *most = (*most).max((ns, by));
        }
        usual.into_iter().map(|(pid, (_, by))| (pid, by)).collect()
    }

    /// Who would probably have ended this sleep in futex, which the end of a slice cut: whoever ended most of the others of the
    /// process.
    pub fn usual_waker(&self, off: &OffCpu) -> Option<u32> {
        let by = *self.usual_wakers.get(&self.names(off.tid)?.pid)?;
        (by != off.tid).then_some(by)
    }

    /// Of a thread that was made after this connection had been accepted by another one: that one, and when it was made.
    pub fn maker(&self, reader: u32, socket: FlowId) -> Option<(u32, u64)> {
        let made = *self.timeline.observed_pids.get(&self.names(reader)?.pid)?;
        let accepted = self.timeline.calls.get(&socket)?.iter().find(|c| c.op == Op::Accept)?;
        (accepted.tid != reader && accepted.at_ns < made).then_some((accepted.tid, made))
    }

    /// The connection that was established when a thread goes on at `from`: the one on which it sends for the first time next, or
    /// another thread of its process does at once, to which a runtime gave it.
    pub fn connected_by(&self, tid: u32, from: u64) -> Option<FlowId> {
        let sends = self.first_sends.get(&self.names(tid)?.pid)?;
        let next = sends.get(sends.partition_point(|(at_ns, _)| *at_ns < from))?;
        match self.next_call(tid, from) {
            Some(call) if call.op == Op::Send && call.at_ns <= next.0 => (call.socket == next.1).then_some(next.1),
            _ => (next.0 - from <= GIVEN_NS).then_some(next.1),
        }
    }

    /// Who held the mutex for which a thread slept when the window ended, if this is that sleep.
    pub fn mutex_owner(&self, off: &OffCpu) -> Option<u32> {
        let last = self.timeline.off_cpu.get(&off.tid)?.last()?;
        self.note(last);
        (last.begin_ns == off.begin_ns).then(|| self.timeline.mutex_owners.get(&off.tid).copied())?
    }

    /// Who had the CPU that a thread waited for, 0 when unknown: whoever ran there before it. If the wait is long, and that one had waited
    /// for the CPU itself for most of it, it is whoever ran before that one. Where a quota is used up, waits do not tell: all threads have them.
    pub fn ran_instead(&self, off: &OffCpu) -> u32 {
        let ready = off.wake_ns.clamp(off.begin_ns, off.end_ns);
        let (mut tid, mut until) = (off.ran_instead_tid, off.end_ns);
        let is_throttled = self.names(off.tid).is_some_and(|names| self.throttled.contains(&names.pid));
        // A case of an earlier version has no more than the waits of followed requests: who waited beside them is not known.
        let is_partial = self.timeline.left_out > 0 && !self.timeline.has_tails;
        if off.end_ns - ready < LONG_WAIT_NS || is_throttled || is_partial {
            return tid;
        }
        for _ in 0..RAN_BEFORE_MAX {
            let Some(offs) = self.timeline.off_cpu.get(&tid).filter(|_| until > ready) else { break };
            let Some(last) = offs[..offs.partition_point(|other| other.end_ns < until)].last() else { break };
            self.note(last);
            let waited_ns = last.end_ns.saturating_sub(last.wake_ns.max(ready));
            let before = last.ran_instead_tid;
            let mostly = waited_ns.saturating_mul(2) > off.end_ns - ready;
            if last.why == Why::Stopped || !mostly || before == 0 || before == off.tid {
                break;
            }
            (tid, until) = (before, last.end_ns);
        }
        tid
    }

    /// Whether a process has a single thread, as far as was seen.
    pub fn has_one_thread(&self, pid: u32) -> bool {
        self.threads.get(&pid) == Some(&1)
    }

    /// The process at the other end of a socket, if it is one of this host.
    pub fn peer(&self, id: FlowId) -> Option<Holder> {
        let observed = self.socket(id).and_then(|s| self.socket(s.other_end?)).filter(|other| other.pid != 0);
        match observed {
            Some(other) => {
                let process = self.names(other.pid).map(|n| n.process.clone()).unwrap_or_default();
                Some(Holder { pid: other.pid, process })
            }
            None => self.timeline.unobserved_ends.get(&id).cloned(),
        }
    }

    /// A thread's times off the CPU; None when it was not observed at `from`.
    pub fn off_cpu(&self, tid: u32, from: u64) -> Option<&'a [OffCpu]> {
        let since = self.timeline.observed_pids.get(&self.names(tid)?.pid)?;
        (*since <= from).then(|| self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice))
    }

    /// Whether a thread read or answered requests.
    pub fn serves(&self, tid: u32) -> bool {
        self.serving.contains(&tid)
    }

    /// What is known of a thread's names.
    pub fn names(&self, tid: u32) -> Option<&'a Names> {
        self.timeline.names.get(&tid)
    }

    /// What is known of a socket.
    pub fn socket(&self, id: FlowId) -> Option<&'a Socket> {
        self.timeline.sockets.get(&id)
    }

    /// What a sleep was for, by its system call.
    pub fn wait(&self, off: &OffCpu) -> Wait {
        Wait::of(self.syscall(off), off.fd, off.syscall)
    }

    /// The name of the system call of a sleep; empty for none.
    pub fn syscall(&self, off: &OffCpu) -> &'a str {
        self.timeline.syscalls.get(&off.syscall).map_or("", String::as_str)
    }

    /// The calls of a thread that were done in a span of time, both ends included.
    fn calls_within(&self, tid: u32, from: u64, to: u64) -> &[SocketCall] {
        let calls = self.calls.get(&tid).map_or(&[][..], Vec::as_slice);
        let begin = calls.partition_point(|c| c.at_ns < from);
        let end = calls.partition_point(|c| c.at_ns <= to);
        calls.get(begin..end).unwrap_or(&[])
    }

    /// The last receive of a thread in a span of time.
    pub fn last_receive(&self, tid: u32, from: u64, to: u64) -> Option<&SocketCall> {
        self.calls_within(tid, from, to).iter().rev().find(|c| c.op == Op::Receive)
    }

    /// The first call of a thread on any socket from some time on.
    pub fn next_call(&self, tid: u32, from: u64) -> Option<&SocketCall> {
        self.calls_within(tid, from, u64::MAX).first()
    }

    /// Whether a thread had calls on other sockets than this one in a span of time.
    pub fn serves_others(&self, tid: u32, socket: FlowId, from: u64, to: u64) -> bool {
        self.calls_within(tid, from, to).iter().any(|c| c.socket != socket)
    }

    /// Whether a thread had calls on other served sockets than this one in a span of time.
    pub fn serves_another(&self, tid: u32, socket: FlowId, from: u64, to: u64) -> bool {
        let other = |c: &SocketCall| c.socket != socket && self.socket(c.socket).is_some_and(|s| s.serves);
        self.calls_within(tid, from, to).iter().any(other)
    }

    /// The thread that should read what was sent on a socket, and what the data waits in meanwhile: whoever read from the other end
    /// before, or another thread that serves the same port.
    pub fn reader_to_be(&self, id: FlowId) -> Option<(u32, HopKind)> {
        let socket = self.socket(id)?;
        let queue = if socket.other_end.is_some() { HopKind::Unread } else { HopKind::AcceptQueue };
        let before = socket.other_end.and_then(|end| self.timeline.calls.get(&end)?.last());
        before.or_else(|| self.last_served.get(&socket.remote)).map(|call| (call.tid, queue))
    }

    /// The last send on a socket that began before `before`.
    pub fn last_send(&self, socket: FlowId, before: u64) -> Option<&'a SocketCall> {
        let calls = self.timeline.calls.get(&socket)?;
        let later = calls.partition_point(|c| c.at_ns <= before);
        // A send that was under way then is the next one or later.
        let under_way = calls[later..].iter().take_while(|c| c.since_ns <= before).filter(|c| c.op == Op::Send).last();
        under_way.or_else(|| calls[..later].iter().rev().find(|c| c.op == Op::Send))
    }

    /// Whether anything was received on a socket after `from` in the slice to which `at` belongs.
    pub fn receives_after(&self, socket: FlowId, from: u64, at: u64) -> bool {
        let slices = &self.timeline.slices;
        let slice_end = slices.get(slices.partition_point(|slice| slice.1 < at)).map_or(u64::MAX, |slice| slice.1);
        let calls = self.timeline.calls.get(&socket).map_or(&[][..], Vec::as_slice);
        let later = calls[calls.partition_point(|c| c.at_ns <= from)..].iter();
        later.take_while(|c| c.at_ns <= slice_end).any(|c| c.op == Op::Receive)
    }

    /// A connection of the process of `tid` on which a request was sent after `from` and not answered by `to`.
    pub fn unanswered_send(&self, tid: u32, from: u64, to: u64) -> Option<&'a SocketCall> {
        let pid = self.names(tid)?.pid;
        let own = self.asking.get(&pid)?.iter();
        own.filter_map(|id| {
            let calls = self.timeline.calls.get(id)?;
            calls[..calls.partition_point(|c| c.at_ns <= to)].last().filter(|c| c.op == Op::Send && c.since_ns >= from)
        })
        .min_by_key(|c| (c.since_ns, c.socket))
    }

    /// When thread `tid`, which ran at `at`, was last woken by another thread before that, and by which.
    pub fn last_wake(&self, tid: u32, at: u64) -> Option<(u64, u32)> {
        let offs = self.timeline.off_cpu.get(&tid)?;
        let upto = offs.partition_point(|o| o.wake_ns <= at);
        offs[..upto].iter().rev().find_map(|off| match off.waker {
            Waker::Thread(by) => {
                self.note(off);
                Some((off.wake_ns, by))
            }
            _ => None,
        })
    }

    /// The end of what a thread did without sleeping from `from` on.
    pub fn turn_end(&self, tid: u32, from: u64) -> u64 {
        let offs = self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let next = &offs[offs.partition_point(|o| o.begin_ns < from)..];
        let sleep = next.iter().find(|o| self.wait(o) == Wait::Multiplex || o.wake_ns > o.begin_ns);
        sleep.inspect(|off| self.note(off)).map_or(u64::MAX, |off| off.begin_ns)
    }
}

fn throttled(timeline: &Timeline) -> HashSet<u32> {
    let out_of_quota = timeline.off_cpu.values().flatten().filter(|off| off.why == Why::Throttled);
    out_of_quota.filter_map(|off| timeline.names.get(&off.tid)).map(|names| names.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::timeline::{Script, off};

    const US: u64 = 1_000;

    #[test]
    fn a_cpu_is_had_by_who_ran_on_it_for_most_of_the_wait() {
        // 901 has the CPU; then 102, which had waited for it, runs, and 101 next, which had waited since 200.
        let waits =
            |tid, end_us: u64, ran_instead_tid| OffCpu { ran_instead_tid, ..off(tid, 200 * US, 200 * US, end_us * US) };
        let of = |ran_from: u64, until: u64, change: &dyn Fn(&mut Timeline)| {
            let wait = waits(101, until, 102);
            let mut timeline = Script::new().off(wait).off(waits(102, ran_from, 901)).timeline;
            change(&mut timeline);
            Index::new(&timeline).ran_instead(&wait)
        };
        let nothing = |_: &mut Timeline| {};
        assert_eq!(of(7_000, 8_000, &nothing), 901);
        assert_eq!(of(4_000, 8_000, &nothing), 102, "it ran for most of the wait");
        assert_eq!(of(3_000, 3_500, &nothing), 102, "a short wait");
        let throttled = |timeline: &mut Timeline| {
            let out = OffCpu { why: Why::Throttled, ..off(102, 0, 100 * US, 100 * US) };
            timeline.off_cpu.entry(102).or_default().insert(0, out);
        };
        assert_eq!(of(7_000, 8_000, &throttled), 102, "its quota is used up at times");
        assert_eq!(of(7_000, 8_000, &|timeline: &mut Timeline| timeline.left_out = 1), 102, "an earlier version");
    }
}
