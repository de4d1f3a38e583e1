//! Waits in futex of threads that have a connection and may not serve it yet: as many are served at a time as are allowed, and one must be
//! closed first.
//!
//! A lock looks alike, whose holder wakes the next one while its own connection stays open; so does a queue of jobs, whose threads sleep
//! before there is a job. What tells them apart is counted: connections lie unread while as many as ever, two or more, are served.
use parshall_evidence::timeline::{OffCpu, Op, Waker};
use parshall_evidence::{FlowId, HopKind, Limit};

use super::index::{Index, RELEASED_NS};
use super::places::{Kept, first_read};
use super::step::{Step, Task};
use super::walk::Walk;
use crate::wait::Wait;

/// Threads that a wake-up passes through at most.
const PASSED_ON_MAX: usize = 32;

impl Index<'_> {
    /// The limit on the connections of a port that are served at a time, if others wait for it.
    pub fn limit_of_connections(&self, port: u16) -> Option<&Limit> {
        self.places.get(&port).map(|places| &places.limit)
    }

    /// The connection whose end let a thread that has one begin with its own after a sleep in futex, which `by` ended: the thread that ends
    /// the wait, or passes the wake-up on, had just closed one of the same port.
    pub fn place_given(&self, off: &OffCpu, by: u32, task: Task) -> Option<Kept> {
        let Task::Unread { socket } = task else { return None };
        let places = self.places.get(&self.socket(socket)?.local.port())?;
        let calls = self.timeline.calls.get(&socket)?;
        // It had the connection before the sleep, and reads from it for the first time and before all else.
        let accepted = calls.first().filter(|call| call.op == Op::Accept)?;
        let next = self.next_call(off.tid, off.end_ns).filter(|next| first_read(calls) == Some(*next))?;
        if accepted.at_ns > off.begin_ns || next.socket != socket {
            return None;
        }
        let (mut tid, mut at) = (by, off.wake_ns);
        for _ in 0..PASSED_ON_MAX {
            let slept = self.last_sleep(tid, at);
            let begin = slept.map_or(0, |sleep| sleep.end_ns).min(at.saturating_sub(RELEASED_NS));
            let mut just = places.before(at).take_while(|kept| kept.closed_ns >= begin);
            if let Some(kept) = just.find(|kept| kept.tid == tid) {
                return Some(*kept);
            }
            let sleep = slept.filter(|sleep| self.wait(sleep) == Wait::Futex && at - sleep.end_ns <= RELEASED_NS)?;
            let Waker::Thread(before) = sleep.waker else { return None };
            (tid, at) = (before, sleep.wake_ns);
        }
        None
    }

    /// The connection whose end let the thread begin that served this one.
    fn place_before(&self, kept: &Kept) -> Option<Kept> {
        let places = self.places.get(&self.socket(kept.socket)?.local.port())?;
        let before = places.before(kept.from_ns).next()?;
        (kept.from_ns - before.closed_ns <= RELEASED_NS && before.from_ns < kept.from_ns).then_some(*before)
    }

    /// The connection whose client a thread that serves it waited for in a sleep over descriptors, although nothing came: the client
    /// closed it. What lies unread at the thread meanwhile waits for that too, or until the thread has waited long enough and closes it.
    pub fn closes_after(&self, off: &OffCpu, task: Task) -> Option<FlowId> {
        let replied = self.calls_within(off.tid, 0, off.begin_ns).last().filter(|call| call.op == Op::Send)?;
        let served = self.socket(replied.socket)?;
        let ends = match task {
            Task::Request { socket, reader, .. } => {
                replied.socket == socket && reader == off.tid && off.waker == Waker::SoftIrq
            }
            Task::Unread { socket } => {
                replied.socket != socket && served.serves && matches!(off.waker, Waker::SoftIrq | Waker::HardIrq)
            }
            _ => false,
        };
        let closed_ns = served.closed_ns.filter(|_| ends)?;
        let at_once = (off.wake_ns..=off.end_ns.saturating_add(RELEASED_NS)).contains(&closed_ns);
        (at_once && self.calls_within(off.tid, off.end_ns, closed_ns).is_empty()).then_some(replied.socket)
    }
}

impl Walk<'_> {
    /// A sleep of a thread until a connection was closed: what was done on that one meanwhile, and on the one before it.
    pub(super) fn kept_out(&mut self, off: &OffCpu, kept: Kept, (begin, wake): (u64, u64)) {
        let index = self.index;
        self.within(Step::of(off, HopKind::Worker), |w| {
            let (mut at, mut holder) = (wake, Some(kept));
            while let Some(kept) = holder.filter(|_| at > begin) {
                let from = kept.from_ns.clamp(begin, at);
                let (tid, socket) = (kept.tid, kept.socket);
                w.thread(tid, from, at, Task::Request { socket, reader: tid, turn_end: from, end_ns: at });
                at = from;
                holder = index.place_before(&kept);
            }
            w.emit_here(at - begin);
        });
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::Socket;
    use parshall_evidence::{PathPart, Service};

    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, off, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const EPOLL: i32 = 232;
    const ACCEPTOR: u32 = 109;
    const END: u64 = 1_900 * MS;

    /// What the threads of [`listener`] do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Ends {
        /// The client closes its connection, then the thread does, and wakes one that waits.
        Closes,
        /// A thread wakes one that waits, and its connection stays.
        Stays,
        /// A thread closes its connection and wakes one that sleeps for want of one.
        Idle,
    }

    /// Six clients keep a connection for two pages and think for 40 ms after each. A thread for each connection waits in futex until one of
    /// `most` is free.
    fn listener(most: usize, ends: Ends) -> Service {
        let mut script = Script::new();
        script.timeline.slices = vec![(0, END)];
        let mut waits: Vec<(u64, u32)> = (1..=6).map(|n| (u64::from(n) * 100 * US, n)).collect();
        let mut free: Vec<(u64, u32)> = vec![(0, 0); most];
        for id in 1.. {
            free.sort_unstable();
            let (at, by) = free.remove(0);
            if at > END - 100 * MS {
                break;
            }
            let (opened, client) = waits.remove(0);
            let (tid, begin) = (100 + client, at.max(opened) + 150 * US);
            let closed_ns = (ends != Ends::Stays).then_some(begin + 80 * MS);
            let socket = Socket { opened: true, opened_ns: Some(opened), closed_ns, ..served_socket(7000) };
            let accepted = if ends == Ends::Idle { at.max(opened) + 10 * US } else { opened + 50 * US };
            script = script.socket(id, socket, tid).accepts(ACCEPTOR, id, opened, accepted);
            if at > opened {
                let sleep = off(tid, opened + 100 * US, at + 80 * US, at + 90 * US);
                script = script.off(OffCpu { waker: Waker::Thread(by), target: 64, ..sleep });
            }
            for (page, since) in [(begin, opened + 60 * US), (begin + 40 * MS, begin + 40 * MS)] {
                script = script.receives(tid, id, since, page).sends(tid, id, page + 300 * US);
                script = script.sleeps(tid, page + 310 * US, page + 40 * MS - 10 * US, EPOLL, Waker::SoftIrq);
            }
            free.push((begin + 80 * MS, tid));
            waits.push((begin + 80 * MS + 100 * US, client));
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    fn share(service: &Service, holds: impl Fn(&[HopKind]) -> bool) -> f64 {
        let kinds = |part: &PathPart| part.hops.iter().map(|hop| hop.kind).collect::<Vec<_>>();
        let ns: u64 = service.path.iter().filter(|part| holds(&kinds(part))).map(|part| part.ns).sum();
        ns as f64 / service.followed_ns as f64
    }

    fn is_locked(kinds: &[HopKind]) -> bool {
        kinds.contains(&HopKind::Lock)
    }

    #[test]
    fn who_waits_until_a_connection_is_closed_waits_for_a_worker() {
        for most in [2, 3] {
            let service = listener(most, Ends::Closes);
            let waits = [HopKind::Unread, HopKind::Worker, HopKind::Client];
            let (kept, locked) = (share(&service, |kinds| kinds == waits), share(&service, is_locked));
            assert!(kept > 0.9 && locked < 0.01, "{most}: {kept} {locked}: {:#?}", service.path);
            let limit = service.limits.first().expect("a limit");
            assert!(limit.by_connections && limit.next.is_none() && limit.most as usize == most, "{limit:?}");
            assert!((limit.waiting - (6 - most) as f64).abs() < 0.5, "{limit:?}");
        }
    }

    #[test]
    fn a_lock_is_none() {
        // One at a time, and those who let others in while their connection stays.
        for (most, ends) in [(1, Ends::Closes), (2, Ends::Stays)] {
            let service = listener(most, ends);
            assert!(share(&service, is_locked) > 0.5, "{most} {ends:?}: {:#?}", service.path);
            assert!(!service.limits.iter().any(|limit| limit.by_connections), "{:?}", service.limits);
        }
    }

    #[test]
    fn a_thread_that_sleeps_for_want_of_a_connection_waits_for_no_place() {
        let service = listener(3, Ends::Idle);
        assert_eq!(share(&service, |kinds| kinds.contains(&HopKind::Worker)), 0.0, "{:#?}", service.path);
        // Where there is a place for each, nobody waits.
        let service = listener(6, Ends::Closes);
        assert!(service.limits.iter().all(|limit| !limit.by_connections), "{:?}", service.limits);
    }

    /// A thread answers a client, which closes its connection after 200 ms, and reads then what came on the next one meanwhile. `waker` ends
    /// its sleep, and it closes the first connection or keeps it.
    fn next_in_turn(waker: Waker, closes: bool) -> Service {
        let mut script = Script::new();
        script.timeline.slices = vec![(0, END)];
        for n in 0..8 {
            let (id, at) = (n + 1, n * 200 * MS);
            let closed_ns = closes.then_some(at + 190 * MS + 30 * US);
            let socket =
                Socket { opened: true, opened_ns: Some(at.saturating_sub(150 * MS)), closed_ns, ..served_socket(7000) };
            let came = at.saturating_sub(140 * MS);
            script = script.socket(id, socket, 101).accepts(ACCEPTOR, id, came, came + US);
            script = script.receives(101, id, came + 2 * US, at).sends(101, id, at + 300 * US);
            script = script.sleeps(101, at + 310 * US, at + 190 * MS, EPOLL, waker);
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    #[test]
    fn what_lies_unread_waits_until_the_thread_has_done_with_its_client() {
        let kept = |kinds: &[HopKind]| kinds == [HopKind::Unread, HopKind::Client];
        for waker in [Waker::SoftIrq, Waker::HardIrq] {
            let service = next_in_turn(waker, true);
            assert!(share(&service, kept) > 0.8, "{waker:?}: {:#?}", service.path);
        }
        let service = next_in_turn(Waker::SoftIrq, false);
        assert_eq!(share(&service, kept), 0.0, "{:#?}", service.path);
    }
}
