//! Requests that wait for what other clients send: workers for jobs, members of a chat for messages. Each sleeps in a thread of the server,
//! and the thread that serves such a client wakes one of them.
//!
//! The holder of a lock looks alike: it wakes who waits when it lets the lock go, also at the request of a client that had let it wait. What
//! tells them apart: a holder took the lock with an earlier request of the same connection, which woke nobody, and waits for the lock
//! of others at times. Nor does it sleep for its clients meanwhile, where a thread that serves nobody waits for it.
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;

use parshall_evidence::timeline::{OffCpu, Op, SocketCall, Waker};
use parshall_evidence::{FlowId, HopKind};

use super::index::{EndedSleep, Index, RELEASED_NS};
use super::intervals::is_same_futex;
use super::requests::Request;
use super::step::{Next, Step, Task};
use super::walk::Walk;
use crate::wait::Wait;

/// A shorter sleep is part of a turn.
const SHORT_NS: u64 = 1_000_000;

/// Fewer requests of a connection show no habit.
const REQUESTS_MIN: usize = 2;
/// At least this share of the requests of a connection wakes somebody. Of a client that takes locks, at most half of them do.
const WAKING_SHARE: f64 = 0.75;

impl Index<'_> {
    /// By thread, the sleeps that it ended of others that had a request, or may have had one since before the slice, in order.
    pub(super) fn find_ended_sleeps(&self) -> HashMap<u32, Vec<EndedSleep>> {
        let mut ended: HashMap<u32, Vec<EndedSleep>> = HashMap::new();
        for off in self.timeline.off_cpu.values().flatten() {
            if let Waker::Thread(by) = off.waker
                && off.wake_ns.saturating_sub(off.begin_ns) >= SHORT_NS
                && matches!(self.wait(off), Wait::Futex | Wait::Multiplex)
                && (self.is_at_work(off.tid, off.wake_ns) || self.is_cut(off))
            {
                ended.entry(by).or_default().push(EndedSleep { at_ns: off.wake_ns, sleep: (off.tid, off.begin_ns) });
            }
        }
        ended.values_mut().for_each(|ended| ended.sort_unstable());
        ended
    }

    /// When the request arrived with which `by` ended a sleep of a thread that has a request, if that had to wait for it: the client had sent
    /// nothing when the sleep began, and nearly all that it sends ends the sleep of some thread. A sleep that has not ended is for the next one
    /// of those, if it is for the same as an earlier one.
    pub fn brought_at(&self, off: &OffCpu, by: u32) -> Option<u64> {
        if off.is_open() {
            let before = self.ended_for_the_same(off, by)?;
            return self.brought_at(before, by).map(|_| off.wake_ns);
        }
        let last = self.calls_within(by, 0, off.wake_ns).iter().rfind(|call| call.op == Op::Receive)?;
        let socket = self.socket(last.socket).filter(|socket| socket.serves)?;
        // What a thread does that serves nobody, others bring to it.
        if !self.serves(off.tid) && self.waits_for_its_clients(by, off.begin_ns, last) {
            return Some(last.since_ns);
        }
        let arrived = |request: &&Request| request.read_tid == by && request.read_ns <= off.wake_ns;
        let request = self.exchanges(last.socket).iter().rfind(arrived)?;
        let answered_ns = request.end_ns.saturating_add(RELEASED_NS);
        // What is not answered may itself be the answer to what this server sent there.
        let is_late = request.arrived_ns > off.begin_ns && answered_ns >= off.wake_ns && !self.brings(by, off.wake_ns);
        if !is_late || self.waits_for_others(by) {
            return None;
        }
        let is_new = socket.opened_ns.is_some_and(|at| at > off.begin_ns);
        (is_new || self.wakes_with_each(last.socket)).then_some(request.arrived_ns)
    }

    /// Whether a thread slept for its clients after `begin_ns`, until this call received something. It holds nothing meanwhile that others need:
    /// it would have left it to its clients when it is let go.
    fn waits_for_its_clients(&self, tid: u32, begin_ns: u64, call: &SocketCall) -> bool {
        let slept = self.last_sleep(tid, call.at_ns).filter(|off| self.wait(off) == Wait::Multiplex);
        slept.is_some_and(|off| off.end_ns > begin_ns) && call.since_ns > begin_ns
    }

    fn is_cut(&self, off: &OffCpu) -> bool {
        self.timeline.slices.binary_search_by_key(&off.begin_ns, |slice| slice.0).is_ok()
    }

    /// The sleep of a thread before this one, for the same futex, that `by` ended.
    fn ended_for_the_same(&self, off: &OffCpu, by: u32) -> Option<&OffCpu> {
        let offs = self.timeline.off_cpu.get(&off.tid)?;
        let before = offs[..offs.partition_point(|one| one.begin_ns < off.begin_ns)].iter();
        let same = |one: &&OffCpu| one.waker == Waker::Thread(by) && is_same_futex(one, off);
        before.rev().find(same).inspect(|one| self.note(one))
    }

    pub(super) fn wakes_with_each(&self, socket: FlowId) -> bool {
        known_or(&self.habits.wakes_with_each, socket, || self.is_waking(socket))
    }

    fn is_waking(&self, socket: FlowId) -> bool {
        let answered = self.exchanges(socket).iter().filter(|request| request.reply_tid.is_some());
        let (mut waking, mut all) = (0, 0);
        for request in answered {
            all += 1;
            waking += usize::from(self.wakes(request));
        }
        all >= REQUESTS_MIN && waking as f64 >= WAKING_SHARE * all as f64
    }

    /// Whether the thread that read a request ended, until it had answered, the sleep of another one that has a request too.
    fn wakes(&self, request: &Request) -> bool {
        let ended = self.ended_sleeps.get(&request.read_tid).map_or(&[][..], Vec::as_slice);
        let until = request.end_ns.saturating_add(RELEASED_NS);
        let first = ended[ended.partition_point(|one| one.at_ns < request.read_ns)..].first();
        first.filter(|one| one.at_ns <= until).inspect(|one| self.note_sleep(one.sleep)).is_some()
    }

    /// Whether a thread that has a request sleeps at times until another one wakes it.
    pub(super) fn waits_for_others(&self, tid: u32) -> bool {
        known_or(&self.habits.waits_for_others, tid, || self.is_woken_at_work(tid))
    }

    fn is_woken_at_work(&self, tid: u32) -> bool {
        let offs = self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let waits = |off: &&OffCpu| {
            off.wake_ns.saturating_sub(off.begin_ns) >= SHORT_NS
                && matches!(off.waker, Waker::Thread(_))
                && self.wait(off) == Wait::Futex
                && self.is_at_work(tid, off.wake_ns)
        };
        offs.iter().find(waits).inspect(|off| self.note(off)).is_some()
    }
}

/// What is known of `key`, or is found out now and known from now on.
fn known_or<K: Copy + Eq + Hash>(known: &RefCell<HashMap<K, bool>>, key: K, find: impl FnOnce() -> bool) -> bool {
    let before = known.borrow().get(&key).copied();
    before.unwrap_or_else(|| {
        let found = find();
        known.borrow_mut().insert(key, found);
        found
    })
}

impl Walk<'_> {
    /// A sleep until another client sent something, which the thread that ended it passed on.
    pub(super) fn brought(&mut self, off: &OffCpu, (begin, wake): (u64, u64)) -> Option<Next> {
        let by = match off.waker {
            Waker::Thread(by) => by,
            _ if off.is_open() && self.index.wait(off) == Wait::Futex => self.index.usual_waker(off)?,
            _ => return None,
        };
        let arrived_ns = self.index.brought_at(off, by)?.clamp(begin, wake);
        self.within(Step::of(off, HopKind::Worker), |w| w.thread(by, arrived_ns, wake, Task::Other));
        self.emit(Step::of(off, HopKind::OtherRequest), arrived_ns - begin);
        Some(Next::Before(begin))
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{PathPart, Service};

    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, off, served_socket};

    const MS: u64 = 1_000_000;
    const FUTEX: i32 = 202;
    const EPOLL: i32 = 232;
    const NANOSLEEP: i32 = 35;
    const END: u64 = 1_000 * MS;

    /// What the client of 109 does every 100 ms, so that 109 wakes one of three threads that sleep with a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Sends {
        /// One request.
        One,
        /// A request, after which 109 wakes nobody, and a second one 50 ms later.
        Two,
        /// One request for which 109 itself waits until another one wakes it.
        Queued,
        /// One request, which 109 works on from before the threads sleep.
        Long,
        /// One message, which is not answered.
        Unanswered,
    }

    fn server(what: Sends, call: i32) -> Service {
        let mut script = Script::new().socket(9, served_socket(7000), 109).socket(8, served_socket(7000), 108);
        script.timeline.slices = vec![(0, END)];
        script = (1..=3u32).fold(script, |script, n| script.socket(u64::from(n), served_socket(7000), 100 + n));
        let sleep = |tid: u32, begin, end, waker| OffCpu {
            syscall: call,
            target: u64::from(tid) * 64,
            waker,
            ..off(tid, begin, end, end)
        };
        for n in 1..10u64 {
            let (at, turn) = (n * 100 * MS, n % 3 + 1);
            let tid = 100 + turn as u32;
            let asked = if n > 3 { at - 297 * MS } else { MS };
            let begin = if what == Sends::Long { at - 40 * MS } else { asked + MS };
            script = script.receives(tid, turn, asked, asked).off(sleep(tid, begin, at + MS, Waker::Thread(109)));
            script = script.sends(tid, turn, at + 2 * MS);
            if n > 6 {
                // Its next request is still open at the end.
                script = script.receives(tid, turn, at + 3 * MS, at + 3 * MS);
                script = script.off(sleep(tid, at + 4 * MS, END, Waker::Unknown));
            }
            if what == Sends::Two {
                script = script.receives(109, 9, at - 50 * MS, at - 50 * MS).sends(109, 9, at - 49 * MS);
                script = script.sleeps(109, at - 48 * MS, at, EPOLL, Waker::SoftIrq);
            }
            let from = at - if what == Sends::Long { 90 * MS } else { 0 };
            script = script.receives(109, 9, from, from);
            if what == Sends::Queued {
                script = script.receives(108, 8, from, from).sends(108, 8, at + 900_000);
                script = script.sleeps(109, at - 2 * MS, at, FUTEX, Waker::Thread(108));
            }
            script = if what == Sends::Unanswered { script } else { script.sends(109, 9, at + 3 * MS / 2) };
            script = script.sleeps(109, at + 2 * MS, at + 8 * MS, EPOLL, Waker::SoftIrq);
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    /// The share of the time that the three threads spent in a kind of wait.
    fn share(service: &Service, kind: HopKind) -> f64 {
        let has = |part: &&PathPart| part.hops.iter().any(|hop| hop.kind == kind && hop.tid != 109);
        service.path.iter().filter(has).map(|part| part.ns).sum::<u64>() as f64 / service.followed_ns as f64
    }

    #[test]
    fn who_waits_for_what_another_client_sends_waits_for_no_lock() {
        // What an open sleep over descriptors is for is not known.
        for (call, brought) in [(FUTEX, 0.9), (EPOLL, 0.7)] {
            let service = server(Sends::One, call);
            assert_eq!(share(&service, HopKind::Lock), 0.0, "{:#?}", service.path);
            assert!(share(&service, HopKind::OtherRequest) > brought, "{:#?}", service.path);
        }
    }

    #[test]
    fn a_lock_that_a_client_had_taken_is_one() {
        for sends in [Sends::Two, Sends::Queued, Sends::Long] {
            let service = server(sends, FUTEX);
            assert!(share(&service, HopKind::Lock) > 0.05, "{sends:?}: {:#?}", service.path);
            assert_eq!(share(&service, HopKind::OtherRequest), 0.0, "{sends:?}: {:#?}", service.path);
        }
    }

    #[test]
    fn what_is_not_answered_is_no_request_of_another_client() {
        let service = server(Sends::Unanswered, EPOLL);
        assert_eq!(share(&service, HopKind::OtherRequest), 0.0, "{:#?}", service.path);
    }

    /// 101 and 109 pass what they read on to 105, which serves nobody and sleeps in futex until one of them wakes it. What the client of 101 asks
    /// is answered when that of 109 has sent its second message. `loops`: 109 sleeps for its clients until then, and not for something else.
    fn inner(loops: bool) -> Service {
        let mut script = Script::new().socket(1, served_socket(7000), 101).socket(9, served_socket(7000), 109);
        script.timeline.slices = vec![(0, END)];
        let futex = |begin, end, by| OffCpu {
            syscall: FUTEX,
            target: 64,
            waker: Waker::Thread(by),
            ..off(105, begin, end, end)
        };
        for n in 1..10u64 {
            let at = n * 100 * MS;
            script = script.receives(101, 1, at - 90 * MS, at - 90 * MS).off(futex(at - 95 * MS, at - 89 * MS, 101));
            // While 105 is awake, a message of the other client is answered.
            script = script.receives(109, 9, at - 89 * MS, at - 89 * MS).sends(109, 9, at - 88 * MS);
            script = script.off(futex(at - 88 * MS, at, 109));
            let (call, waker) = if loops { (EPOLL, Waker::SoftIrq) } else { (NANOSLEEP, Waker::HardIrq) };
            script = script.sleeps(109, at - 87 * MS, at - MS / 20, call, waker);
            script = script.receives(109, 9, at - MS / 10, at - MS / 50);
            script = script.sleeps(101, at - 88 * MS, at + MS / 10, EPOLL, Waker::Thread(105));
            script = script.sends(101, 1, at + MS / 5).sends(109, 9, at + MS / 5);
            script = script.sleeps(109, at + MS / 4, at + 10 * MS, EPOLL, Waker::SoftIrq);
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    #[test]
    fn a_thread_inside_waits_for_what_the_others_bring_to_it() {
        let service = inner(true);
        assert_eq!(share(&service, HopKind::Lock), 0.0, "{:#?}", service.path);
        assert!(share(&service, HopKind::OtherRequest) > 0.8, "{:#?}", service.path);
        // One that is kept from its clients meanwhile may hold what is waited for.
        let service = inner(false);
        assert!(share(&service, HopKind::Lock) > 0.8, "{:#?}", service.path);
    }
}
