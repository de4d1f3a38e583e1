//! Requests of which a part comes late, and whose time that is.
//!
//! One kind is a message of two writes between two sockets of this host, of which the second leaves the sender late: Nagle's algorithm
//! holds it until the first is acknowledged, and who has read the first has nothing to send that would carry the ACK.
//!
//! What tells it from a slow client: the second write was done long before its data arrived, and the data of the first arrived at once. On
//! a long path both take their time; a cork holds the first as well; a full window holds what comes after more than a segment.
use parshall_evidence::HopKind;
use parshall_evidence::timeline::{Op, SocketCall};

use super::index::{Client, Index, Rest};
use super::requests::Request;
use super::step::{Step, Target, Task};
use super::walk::Walk;

/// Data that lies in the sender for less long may be on a path.
const HELD_NS: u64 = 5_000_000;
/// From this time on a retransmission timer may have sent it (TCP_RTO_MIN).
const RETRANSMITTED_NS: u64 = 190_000_000;
/// Data of the first write arrives at once: within this time of the call.
const AT_ONCE_NS: u64 = 1_000_000;
/// A longer write is no partial segment, even on the loopback device.
const PARTIAL_BYTES: u32 = 65_536;

impl Index<'_> {
    /// The write whose data a receive brought, if the sender's socket held them meanwhile.
    pub fn held_by_sender(&self, received: &SocketCall) -> Option<SocketCall> {
        let socket = self.socket(received.socket).filter(|socket| !socket.udp)?;
        let sent = self.timeline.calls.get(&socket.other_end?)?;
        let sent = &sent[..sent.partition_point(|call| call.at_ns <= received.since_ns)];
        let [.., first, second] = sent else { return None };
        if first.op != Op::Send || second.op != Op::Send || second.bytes >= PARTIAL_BYTES {
            return None;
        }
        let lay_ns = received.since_ns - second.at_ns;
        if !(HELD_NS..RETRANSMITTED_NS).contains(&lay_ns) {
            return None;
        }
        // An answer in between would have carried the ACK.
        let calls = self.timeline.calls.get(&received.socket)?;
        let before = calls[..calls.partition_point(|call| call.at_ns < received.at_ns)].last()?;
        let at_once = (first.since_ns..=first.at_ns.saturating_add(AT_ONCE_NS)).contains(&before.since_ns);
        (before.op == Op::Receive && at_once).then_some(*second)
    }

    /// The part of a request that its sender's socket held, after the part that was read before it.
    pub fn held_part(&self, request: &Request) -> Option<Rest> {
        let calls = self.timeline.calls.get(&request.socket)?;
        let from = calls.partition_point(|call| call.at_ns < request.read_ns);
        let to = calls.partition_point(|call| call.at_ns <= request.end_ns);
        calls.get(from..to)?.windows(2).find_map(|pair| {
            let [before, last] = [pair[0], pair[1]];
            let held = (last.op == Op::Receive).then(|| self.held_by_sender(&last))??;
            Some(Rest { before, last, held: Some(held) })
        })
    }

    /// The write of a server whose data ended a client's wait at `until`, if the server's socket held them meanwhile.
    pub fn held_reply(&self, client: u64, until: u64) -> Option<SocketCall> {
        let calls = self.timeline.calls.get(&client)?;
        let next = calls.get(calls.partition_point(|call| call.at_ns < until))?;
        let arrives = next.op == Op::Receive && next.since_ns <= until.saturating_add(AT_ONCE_NS);
        arrives.then(|| self.held_by_sender(next)).flatten()
    }
}

impl Walk<'_> {
    /// The time between two parts of a request: the client's, unless its own thread waits for the service meanwhile.
    pub(super) fn rest(&mut self, rest: &Rest) {
        let Rest { before, last, held } = *rest;
        let socket = before.socket;
        let from = before.at_ns;
        let arrived = last.since_ns.clamp(from, last.at_ns);
        let step = Step::new(before.tid, HopKind::Client);
        let unread = Step::new(last.tid, HopKind::Unread);
        if let Some(sent) = held {
            self.within(step, |w| w.emit(Step::held(&sent), arrived - from));
            return self.within(unread, |w| w.thread(last.tid, arrived, last.at_ns, Task::Unread { socket }));
        }
        let client = self.index.client_of(socket, (from, arrived));
        let waits = match client {
            Client::Waits { tid, .. } => Some(tid),
            Client::Works | Client::Unseen => None,
        };
        let timer = client != Client::Works && self.index.is_timer_between(rest, waits);
        match client {
            Client::Waits { .. } | Client::Unseen if timer => {
                self.within(step, |w| w.emit(Step::new(waits.unwrap_or(0), HopKind::Timer), arrived - from));
            }
            Client::Works => self.emit(step.to(Target::Remote(socket)), arrived - from),
            Client::Waits { tid, socket } => {
                let waits = Step::new(tid, HopKind::Reply).to(Target::Remote(socket));
                self.within(step, |w| w.emit(waits, arrived - from));
            }
            Client::Unseen => self.within(step, |w| w.emit(Step::new(0, HopKind::Unseen), arrived - from)),
        }
        self.within(unread, |w| w.thread(last.tid, arrived, last.at_ns, Task::Unread { socket }));
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::Waker;
    use parshall_evidence::{HopKind, PathPart, Service};

    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const EPOLL: i32 = 232;

    /// How the back end's client (101) sends a request, in ms after it began: its two writes, and their arrivals.
    #[derive(Clone, Copy)]
    struct Parts {
        sent: [u64; 2],
        arrive: [u64; 2],
        answered_between: bool,
    }

    const NAGLE: Parts = Parts { sent: [0, 0], arrive: [0, 40], answered_between: false };

    /// 101 serves socket 1 and asks 201 over socket 2 (its end) and 3 for each of 20 requests.
    fn chain(parts: Parts) -> Service {
        let mut script = Script::new()
            .socket(1, served_socket(7000), 101)
            .socket(2, client_socket(6379), 101)
            .socket(3, served_socket(6379), 201)
            .pair(2, 3);
        script.timeline.slices = vec![(0, 2_100 * MS)];
        script.timeline.asked_ports = vec![7000];
        for n in 0..20 {
            let at = (10 + 100 * n) * MS;
            let [first, second] = parts.sent.map(|ms| at + ms * MS + 100 * US);
            let [one, two] = parts.arrive.map(|ms| at + ms * MS + 110 * US);
            script = script.receives(101, 1, at, at + 50 * US).sends(101, 2, first).sends(101, 2, second + 5 * US);
            script = script.receives(201, 3, one, one + 50 * US);
            if parts.answered_between {
                script = script.sends(201, 3, one + 60 * US).receives(101, 2, one + 60 * US, one + 70 * US);
            }
            script = script.receives(201, 3, two, two + 50 * US).sends(201, 3, two + 100 * US);
            script = script.sleeps(201, one + 70 * US, two + 10 * US, EPOLL, Waker::SoftIrq);
            script = script.sleeps(101, one + 80 * US, two + 130 * US, EPOLL, Waker::SoftIrq);
            script = script.receives(101, 2, two + 110 * US, two + 150 * US).sends(101, 1, two + 200 * US);
        }
        services(&script.timeline).into_iter().find(|service| service.address.port() == 7000).expect("a service")
    }

    fn held_ms(service: &Service) -> u64 {
        let held = |part: &&PathPart| part.hops.last().is_some_and(|leaf| leaf.kind == HopKind::Held);
        service.path.iter().filter(held).map(|part| part.ns / MS).sum()
    }

    #[test]
    fn what_was_written_long_before_it_arrives_was_held() {
        let service = chain(NAGLE);
        assert!((780..=800).contains(&held_ms(&service)), "{:#?}", service.path);
        let leaf = service.path[0].hops.last().expect("a leaf");
        assert_eq!((leaf.pid, leaf.target.as_str()), (100, "127.0.0.1:6379"), "it belongs to who writes");
    }

    #[test]
    fn look_alikes_are_not_held() {
        let late = Parts { sent: [0, 40], ..NAGLE };
        assert_eq!(held_ms(&chain(late)), 0, "the client sends the rest late");
        let corked = Parts { arrive: [40, 40], ..NAGLE };
        assert_eq!(held_ms(&chain(corked)), 0, "a cork, or a long path, holds the first write too");
        let lost = Parts { arrive: [0, 60], sent: [0, 58], answered_between: false };
        assert_eq!(held_ms(&chain(lost)), 0, "too short");
        let answered = Parts { answered_between: true, ..NAGLE };
        assert_eq!(held_ms(&chain(answered)), 0, "the answer carries the ACK");
    }
}
