//! Threads that read requests ahead, and are blocked in what they ask a server for each of them: a handler that blocks the loop which reads and
//! sends. A request waits for the exchanges of others, before its own or until the loop sends its reply.
//!
//! A request for which a thread asks many things looks alike. There the thread reads no other one meanwhile, or asks as many for that, too.
use std::collections::{HashMap, VecDeque};

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, SocketCall, Timeline};

/// Calls before a request was read that are looked at, for requests that were read and wait.
const BEFORE_MAX: usize = 64;
/// Calls within a request that are looked at.
const WITHIN_MAX: usize = 512;
/// Of more that were read and not answered, such as subscriptions, the oldest are left out.
const WAITING_MAX: usize = 256;

/// How many exchanges with servers each thread has for a request, of those that serve and ask.
pub fn exchanges_each(by_thread: &HashMap<u32, Vec<SocketCall>>, timeline: &Timeline) -> HashMap<u32, usize> {
    let each = |calls: &Vec<SocketCall>| {
        let mut turns = Turns::new(1);
        calls.iter().for_each(|call| turns.see(timeline, call));
        (turns.read > 0 && turns.asked > 0).then(|| ((turns.asked + turns.read / 2) / turns.read).max(1))
    };
    by_thread.iter().filter_map(|(tid, calls)| Some((*tid, each(calls)?))).collect()
}

/// For which request a thread asks, as its calls are seen one by one.
struct Turns {
    /// Exchanges for each request.
    each: usize,
    /// Requests that were read, in order, and for which nothing was asked yet.
    waiting: VecDeque<FlowId>,
    current: Option<FlowId>,
    /// Exchanges that the current one has had.
    had: usize,
    /// The server that was asked last has answered.
    heard: bool,
    read: usize,
    asked: usize,
}

impl Turns {
    fn new(each: usize) -> Turns {
        Turns { each, waiting: VecDeque::new(), current: None, had: 0, heard: true, read: 0, asked: 0 }
    }

    fn see(&mut self, timeline: &Timeline, call: &SocketCall) {
        let Some(socket) = timeline.sockets.get(&call.socket) else { return };
        match (socket.serves, call.op) {
            (true, Op::Receive) if self.current != Some(call.socket) && !self.waiting.contains(&call.socket) => {
                if self.waiting.len() == WAITING_MAX {
                    self.waiting.pop_front();
                }
                self.waiting.push_back(call.socket);
                self.read += 1;
            }
            (true, Op::Send) => {
                self.waiting.retain(|waits| *waits != call.socket);
                self.current = self.current.filter(|current| *current != call.socket);
            }
            (false, Op::Send) if self.heard => {
                self.heard = false;
                self.asked += 1;
                if self.current.is_none() || self.had >= self.each {
                    let next = self.waiting.pop_front();
                    self.had = if next.is_some() { 0 } else { self.had };
                    self.current = next.or(self.current);
                }
                self.had += 1;
            }
            (false, Op::Receive) => self.heard = true,
            _ => {}
        }
    }
}

/// Whether a thread that read a request on `own` at `read_ns` asks for another one at `at_ns`, by all of its `calls`. It has `each` exchanges for
/// a request.
pub fn asks_for_another(
    timeline: &Timeline,
    (calls, each): (&[SocketCall], usize),
    (own, read_ns): (FlowId, u64),
    at_ns: u64,
) -> bool {
    let read = calls.partition_point(|call| call.at_ns < read_ns);
    let until = calls.partition_point(|call| call.at_ns <= at_ns);
    if until > read + WITHIN_MAX {
        return false;
    }
    let mut turns = Turns::new(each);
    let seen = calls.get(read.saturating_sub(BEFORE_MAX)..until).unwrap_or_default();
    seen.iter().for_each(|call| turns.see(timeline, call));
    turns.current.is_some_and(|current| current != own)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{OffCpu, Waker};
    use parshall_evidence::{FdKind, HopKind, Service};

    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, off, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const RECV: i32 = 45;
    const CLIENTS: u64 = 4;

    /// 101 serves four clients. In each round it reads the requests, all of them first or each before it asks, and is blocked for 25 ms in each
    /// of `each` questions to 9000 for it; the replies are sent at the end of the round, or each as soon as it is known.
    fn rounds(all_first: bool, at_once: bool, each: u64) -> Service {
        let mut script = Script::new().socket(9, client_socket(9000), 101);
        script = (1..=CLIENTS).fold(script, |script, id| script.socket(id, served_socket(7000), 101));
        let round_ns = CLIENTS * each * 25 * MS + 10 * MS;
        script.timeline.slices = vec![(0, 6 * round_ns)];
        for begin in (0..6).map(|n| n * round_ns + MS) {
            let read = |script: Script, id: u64, at: u64| script.receives(101, id, at, at + 10 * US);
            if all_first {
                script = (1..=CLIENTS).fold(script, |script, id| read(script, id, begin + 20 * id * US));
            }
            for id in 1..=CLIENTS {
                let from = begin + MS + (id - 1) * each * 25 * MS;
                if !all_first {
                    script = read(script, id, from - 200 * US);
                }
                for n in 0..each {
                    let (at, until) = (from + n * 25 * MS, from + (n + 1) * 25 * MS - 100 * US);
                    let sleep = OffCpu {
                        syscall: RECV,
                        fd: FdKind::Tcp,
                        target: 9,
                        waker: Waker::SoftIrq,
                        ..off(101, at + 20 * US, until, until)
                    };
                    script = script.sends(101, 9, at).off(sleep).receives(101, 9, until, until + 10 * US);
                }
                if at_once {
                    script = script.sends(101, id, from + each * 25 * MS - 50 * US);
                }
            }
            if !at_once {
                let end = begin + round_ns - 5 * MS;
                script = (1..=CLIENTS).fold(script, |script, id| script.sends(101, id, end + 20 * id * US));
            }
        }
        services(&script.timeline).into_iter().find(|service| service.address.port() == 7000).expect("a service")
    }

    /// The milliseconds of a request in which it waits for its turn, and in which it is asked for itself.
    fn shares(service: &Service) -> (u64, u64) {
        let ns = |is: fn(HopKind) -> bool| -> u64 {
            service
                .path
                .iter()
                .filter(|part| part.hops.first().is_some_and(|hop| is(hop.kind)))
                .map(|part| part.ns)
                .sum()
        };
        let each = |ns: u64| ns / service.followed_requests / MS;
        (each(ns(|kind| kind == HopKind::Turn)), each(ns(|kind| kind == HopKind::Reply)))
    }

    #[test]
    fn exchanges_for_others_are_their_turns() {
        for each in [1, 2] {
            let own = 24 * each;
            // Of four, one waits for three others, one for two, and so on; where all are answered at the end, each for all.
            let (turn, reply) = shares(&rounds(true, true, each));
            assert!(
                (own * 3 / 2..=own * 3 / 2 + 3).contains(&turn) && (own..=own + 2).contains(&reply),
                "{turn} {reply}"
            );
            let (turn, reply) = shares(&rounds(false, false, each));
            assert!(
                (own * 3 / 2..=own * 3 / 2 + 3).contains(&turn) && (own..=own + 2).contains(&reply),
                "{turn} {reply}"
            );
            let (turn, reply) = shares(&rounds(true, false, each));
            assert!((own * 3..=own * 3 + 6).contains(&turn) && (own..=own + 2).contains(&reply), "{turn} {reply}");
        }
    }

    #[test]
    fn a_request_that_asks_many_things_waits_for_its_own() {
        // Requests are read when the one before has its reply: what they wait for before that is no reply.
        let (turn, reply) = shares(&rounds(false, true, 3));
        assert_eq!(turn, 0);
        assert!(reply >= 70, "{reply}");
    }
}
