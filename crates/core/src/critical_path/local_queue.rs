//! Queues in front of a server that is asked over a UNIX socket: its calls there are not seen, but whom it wakes is.
//!
//! A thread that sleeps for an answer, and whose waker meanwhile woke others that had slept for theirs since before, waited behind these.
//! What tells it from a server that works on many at a time: between them it asks one thing at a time of the servers that it needs itself,
//! or is blocked for each of them in a call that waits for nothing else.
use std::collections::{HashMap, HashSet};

use parshall_evidence::HopKind;
use parshall_evidence::timeline::{OffCpu, Op, Waker};

use super::index::Index;
use super::step::{Step, Task};
use super::walk::Walk;
use crate::wait::Wait;

/// A shorter sleep for events is part of a turn.
const SHORT_NS: u64 = 1_000_000;

impl Index<'_> {
    /// By thread, when it woke others that slept for something on a pipe or a UNIX socket, in order, and whom.
    pub(super) fn find_local_wakes(&self) -> HashMap<u32, Vec<(u64, u32)>> {
        let mut wakes: HashMap<u32, Vec<(u64, u32)>> = HashMap::new();
        for off in self.timeline.off_cpu.values().flatten() {
            if let Waker::Thread(by) = off.waker
                && self.waits_locally(off)
            {
                wakes.entry(by).or_default().push((off.wake_ns, off.tid));
            }
        }
        wakes.values_mut().for_each(|wakes| wakes.sort_unstable());
        wakes
    }

    fn waits_locally(&self, off: &OffCpu) -> bool {
        match self.wait(off) {
            Wait::Pipe => true,
            Wait::SocketReceive => self.socket(off.target).is_none(),
            _ => false,
        }
    }

    /// When the thread `by` had answered those that it served before it served the one that slept in `span`, if it serves one at a time.
    fn served_others_until(&self, off: &OffCpu, by: u32, (begin, wake): (u64, u64)) -> Option<u64> {
        let wakes = self.local_wakes.get(&by)?;
        let within = &wakes[wakes.partition_point(|w| w.0 <= begin)..wakes.partition_point(|w| w.0 < wake)];
        let own = self.names(off.tid)?.pid;
        let is_other = |tid: u32| self.names(tid).is_some_and(|names| names.pid != own);
        let &(until, other) = within.iter().rfind(|(_, tid)| *tid != off.tid && is_other(*tid))?;
        // A saved case keeps what shows that others were served.
        let offs = self.off_cpu(other, 0)?;
        let earlier = offs[..offs.partition_point(|one| one.wake_ns <= until)].last()?;
        self.note(earlier);
        (self.has_one_in_hand(by, (begin, wake))).then_some(until)
    }

    /// Whether a thread has one thing in hand at a time: it never waits for two servers, and never for events without having asked one.
    fn has_one_in_hand(&self, tid: u32, (from, to): (u64, u64)) -> bool {
        let calls = self.calls_within(tid, from, to);
        let mut asked: HashSet<u64> = HashSet::new();
        // In the order in which they end.
        let mut waits: Vec<(u64, u64)> = Vec::new();
        for call in calls.iter().filter(|call| self.socket(call.socket).is_some_and(|socket| !socket.serves)) {
            // A last word needs no answer: the connection is closed.
            let is_open = |id: &u64| self.socket(*id).is_some_and(|s| s.closed_ns.is_none_or(|at| at > call.at_ns));
            asked.retain(is_open);
            match call.op {
                Op::Send => _ = asked.insert(call.socket),
                Op::Receive => {
                    let sent = self.last_send(call.socket, call.since_ns).map_or(from, |sent| sent.since_ns);
                    waits.push((sent, call.at_ns));
                    asked.remove(&call.socket);
                }
                Op::Accept => {}
            }
            if asked.len() > 1 {
                return false;
            }
        }
        // Each begins with the earliest of those that end no sooner: so one comparison tells whether any covers a sleep.
        let mut earliest = u64::MAX;
        for wait in waits.iter_mut().rev() {
            earliest = earliest.min(wait.0);
            wait.0 = earliest;
        }
        let Some(offs) = self.off_cpu(tid, from) else { return false };
        let begin = offs.partition_point(|off| off.end_ns <= from);
        offs[begin..].iter().take_while(|off| off.begin_ns < to).all(|off| {
            self.note(off);
            let (begin, wake) = (off.begin_ns.max(from), off.wake_ns.min(to));
            let is_long = self.wait(off) == Wait::Multiplex && wake.saturating_sub(begin) >= SHORT_NS;
            let wait = waits.get(waits.partition_point(|wait| wait.1 < wake));
            !is_long || wait.is_some_and(|wait| wait.0 <= begin)
        })
    }
}

impl Walk<'_> {
    /// A sleep for an answer over a UNIX socket: the time in which its server served others first, and then its own. False if there were none.
    pub(super) fn queued_locally(&mut self, off: &OffCpu, by: u32, (begin, wake): (u64, u64)) -> bool {
        let Some(until) = self.index.served_others_until(off, by, (begin, wake)) else { return false };
        self.within(Step::over_descriptor(off, HopKind::Pipe), |w| {
            w.within(Step::new(by, HopKind::Unread), |w| w.thread(by, begin, until, Task::Other));
            w.thread(by, until, wake, Task::Other);
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{OffCpu, Socket, Waker};
    use parshall_evidence::{FdKind, HopKind, PathPart, Service};

    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, off, served_socket};

    const MS: u64 = 1_000_000;
    const EPOLL: i32 = 232;
    const READ: i32 = 0;
    const SLEEP: i32 = 35;

    /// Two threads of processes of their own (101, 201) take a request each at the same time and ask 301 over a UNIX socket, every 100 ms. It
    /// answers the first after 20 ms and the second after 40 ms.
    fn pair(server: impl Fn(Script, u64) -> Script) -> Service {
        let mut script = Script::new()
            .socket(1, served_socket(7000), 101)
            .socket(2, Socket { local: "127.0.0.1:7000".parse().expect("an address"), ..served_socket(7000) }, 201)
            .socket(3, client_socket(1143), 301)
            .socket(4, client_socket(1143), 301);
        script.timeline.slices = vec![(0, 2_000 * MS)];
        script.timeline.asked_ports = vec![7000];
        script.timeline.syscalls.insert(READ, "read".to_string());
        for n in 0..19 {
            let at = (10 + 100 * n) * MS;
            for (tid, socket, after) in [(101, 1, 20), (201, 2, 40)] {
                let wake = at + after * MS;
                let sleep = off(tid, at + 10_000, wake, wake + 10_000);
                script = script.receives(tid, socket, at, at + 5_000).sends(tid, socket, wake + 20_000);
                script = script.off(OffCpu {
                    waker: Waker::Thread(301),
                    syscall: READ,
                    fd: FdKind::Unix,
                    fd_number: 9,
                    ..sleep
                });
            }
            script = server(script, at);
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    fn queued_ms(service: &Service) -> u64 {
        let queued = |part: &&PathPart| part.hops.iter().any(|hop| hop.kind == HopKind::Unread && hop.pid == 300);
        service.path.iter().filter(queued).map(|part| part.ns).sum::<u64>() / MS
    }

    fn asks(script: Script, socket: u64, (from, to): (u64, u64)) -> Script {
        script.sends(301, socket, from).receives(301, socket, to - 100_000, to - 50_000)
    }

    #[test]
    fn who_asks_for_one_after_the_other_has_a_queue() {
        let service = pair(|script, at| {
            let script = asks(script, 3, (at + 15_000, at + 20 * MS));
            let script = script.sleeps(301, at + 20_000, at + 20 * MS - 200_000, EPOLL, Waker::SoftIrq);
            let script = asks(script, 4, (at + 20 * MS + 15_000, at + 40 * MS));
            script.sleeps(301, at + 20 * MS + 20_000, at + 40 * MS - 200_000, EPOLL, Waker::SoftIrq)
        });
        assert!((375..=385).contains(&queued_ms(&service)), "{}: {:#?}", queued_ms(&service), service.path);
        // It sleeps for each of them.
        let service = pair(|script, at| {
            let script = script.sleeps(301, at + 15_000, at + 20 * MS - 20_000, SLEEP, Waker::HardIrq);
            script.sleeps(301, at + 20 * MS + 15_000, at + 40 * MS - 20_000, SLEEP, Waker::HardIrq)
        });
        assert!((375..=385).contains(&queued_ms(&service)), "{:#?}", service.path);
    }

    #[test]
    fn who_works_on_several_at_a_time_has_none() {
        // It has asked for both before it hears the first answer.
        let service = pair(|script, at| {
            let script = asks(script, 3, (at + 15_000, at + 20 * MS));
            let script = asks(script, 4, (at + 16_000, at + 40 * MS));
            let script = script.sleeps(301, at + 20_000, at + 20 * MS - 200_000, EPOLL, Waker::SoftIrq);
            script.sleeps(301, at + 20 * MS + 20_000, at + 40 * MS - 200_000, EPOLL, Waker::SoftIrq)
        });
        assert_eq!(queued_ms(&service), 0, "{:#?}", service.path);
        // It waits for events, such as timers of both.
        let service = pair(|script, at| {
            let script = script.sleeps(301, at + 15_000, at + 20 * MS - 20_000, EPOLL, Waker::HardIrq);
            script.sleeps(301, at + 20 * MS + 15_000, at + 40 * MS - 20_000, EPOLL, Waker::HardIrq)
        });
        assert_eq!(queued_ms(&service), 0, "{:#?}", service.path);
    }
}
