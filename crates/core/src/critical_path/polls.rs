//! Requests for what is yet to come (long polls): their server answers when something comes, or when a time is over that the client chose.
//! Nobody is slow meanwhile.
//!
//! Only what a protocol says tells them from requests that a server lets wait: a reply that says that nothing came, or a request by its
//! kind. Of the latter, one that goes on waiting although something came is served late.
use std::collections::BTreeMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Protocol, SocketCall, Timeline};

use super::connection::Request;

/// Kafka: the functions of requests.
const KAFKA_PRODUCE: u8 = 0;
const KAFKA_FETCH: u8 = 1;
/// Data that came before is passed on within this time, or the request still waits for more of it.
const PASSED_ON_NS: u64 = 50_000_000;

/// Whether the request that begins with the `n`-th call, at either end, asks for what is yet to come. Its length may be moved first.
pub fn asks(calls: &[SocketCall], n: usize) -> bool {
    let mut run = calls[n..].iter().take_while(|call| call.op == calls[n].op).take(2);
    run.any(|call| is_kafka(call, KAFKA_FETCH))
}

fn is_kafka(call: &SocketCall, function: u8) -> bool {
    call.frame.is_some_and(|f| f.protocol == Protocol::Kafka && f.kind == function)
}

/// Whether replies on its connection have the number of this call, if any have one: that of something else means nothing.
fn is_request(call: &SocketCall, calls: &[SocketCall]) -> bool {
    let kafka = |c: &&SocketCall| c.op == Op::Send && c.frame.is_some_and(|f| f.protocol == Protocol::Kafka);
    let mut replies = calls.iter().filter(kafka).filter_map(|c| c.frame).map(|f| f.stream).peekable();
    replies.peek().is_none() || replies.any(|number| call.frame.is_some_and(|f| f.stream == number))
}

/// Notes that a request polls that is still open, if the one before it on its connection did. Forgets of requests that they poll where
/// something came and they went on waiting. `found` are the requests by served socket.
pub fn settle(found: &mut BTreeMap<FlowId, Vec<Request>>, timeline: &Timeline) {
    let mut came: BTreeMap<(u32, u16), Vec<u64>> = BTreeMap::new();
    for (id, calls) in &timeline.calls {
        let Some(socket) = timeline.sockets.get(id).filter(|socket| socket.serves) else { continue };
        let received = calls.iter().filter(|call| call.op == Op::Receive && is_kafka(call, KAFKA_PRODUCE));
        let produced = received.filter(|call| is_request(call, calls));
        came.entry(socket.service()).or_default().extend(produced.map(|call| call.since_ns));
    }
    came.values_mut().for_each(|times| times.sort_unstable());
    for requests in found.values_mut() {
        if let [.., before, last] = requests.as_mut_slice() {
            let is_next = last.reply_tid.is_none() && last.ns() <= before.ns() + before.ns() / 4;
            last.polls |= is_next && before.polls && before.reply_tid.is_some();
        }
    }
    for (id, requests) in found {
        let Some(times) = timeline.sockets.get(id).and_then(|socket| came.get(&socket.service())) else { continue };
        for request in requests.iter_mut().filter(|request| request.polls) {
            let first = times.partition_point(|at| *at <= request.arrived_ns);
            let late = |at: &u64| at.saturating_add(PASSED_ON_NS) < request.end_ns;
            request.polls = !times.get(first).is_some_and(late);
        }
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{Frame, OffCpu, Socket, Waker};
    use parshall_evidence::{FdKind, FlowState, HopKind, Release, Role, Service};

    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, off, served_socket};
    use crate::testkit::{FlowBuilder, capture, verdict_of};

    const MS: u64 = 1_000_000;
    const EPOLL: i32 = 232;

    fn frame(script: &mut Script, protocol: Protocol, socket: FlowId, n: usize, kind: u8, bytes: u32) {
        let call = &mut script.timeline.calls.get_mut(&socket).expect("a socket")[n];
        call.bytes = bytes;
        call.frame = Some(Frame { protocol, kind, flags: 0, length: bytes, stream: 1 });
    }

    /// Time of the service's requests that ended in this kind of hop.
    fn spent(script: &Script, kind: HopKind) -> u64 {
        let all: Vec<Service> = services(&script.timeline);
        let parts = all.iter().flat_map(|service| &service.path);
        parts.filter(|part| part.hops.last().is_some_and(|hop| hop.kind == kind)).map(|part| part.ns).sum()
    }

    /// 101 reads a request, and a timer ends its sleep 500 ms later, when it answers.
    fn waits(protocol: Protocol, asked: u8, replied: (u8, u32)) -> Script {
        let mut script = Script::new()
            .socket(1, served_socket(9092), 101)
            .receives(101, 1, MS, 2 * MS)
            .sleeps(101, 3 * MS, 502 * MS, EPOLL, Waker::HardIrq)
            .sends(101, 1, 503 * MS);
        script.timeline.slices = vec![(0, 1_000 * MS)];
        frame(&mut script, protocol, 1, 0, asked, 90);
        frame(&mut script, protocol, 1, 1, replied.0, replied.1);
        script
    }

    #[test]
    fn a_reply_that_says_that_nothing_came_ends_a_wait_for_it() {
        let idle = waits(Protocol::Redis, b'*', (b'*', 5));
        assert_eq!(spent(&idle, HopKind::Timer), 0);
        assert!(spent(&idle, HopKind::OtherRequest) >= 490 * MS);
        // The next one is still open when the window ends; had it waited for longer, it would be another matter.
        let next = |until: u64| {
            let mut script = waits(Protocol::Redis, b'*', (b'*', 5)).receives(101, 1, 510 * MS, 511 * MS);
            script = script.sleeps(101, 512 * MS, until * MS, EPOLL, Waker::HardIrq);
            script.timeline.slices = vec![(0, until * MS)];
            spent(&script, HopKind::Timer)
        };
        assert_eq!(next(900), 0);
        assert!(next(1_900) >= 1_300 * MS);
        // A key that is not there, and a reply with something in it, were let wait.
        assert!(spent(&waits(Protocol::Redis, b'*', (b'$', 5)), HopKind::Timer) >= 490 * MS);
        let late = waits(Protocol::Redis, b'*', (b'$', 40));
        assert!(spent(&late, HopKind::Timer) >= 490 * MS);
        assert_eq!(spent(&late, HopKind::OtherRequest), 0);
    }

    #[test]
    fn a_fetch_waits_for_what_is_produced_and_no_longer() {
        let idle = waits(Protocol::Kafka, KAFKA_FETCH, (0, 156));
        assert_eq!(spent(&idle, HopKind::Timer), 0);
        // Another function of the same protocol, which the server lets wait.
        assert!(spent(&waits(Protocol::Kafka, 9, (0, 156)), HopKind::Timer) >= 490 * MS);
        let produced = |at: u64| {
            let mut script = waits(Protocol::Kafka, KAFKA_FETCH, (0, 156));
            script =
                script.socket(2, served_socket(9092), 102).receives(102, 2, at, at + MS).sends(102, 2, at + 2 * MS);
            frame(&mut script, Protocol::Kafka, 2, 0, KAFKA_PRODUCE, 120);
            frame(&mut script, Protocol::Kafka, 2, 1, 0, 58);
            script
        };
        // A request whose number no reply of its connection has produces nothing.
        let mut stray = produced(100 * MS);
        stray.timeline.calls.get_mut(&2).unwrap()[0].frame.as_mut().unwrap().stream = 7;
        assert_eq!(spent(&stray, HopKind::Timer), 0);
        // It came, and was passed on at once; or the fetch waits for more of it until its time is over.
        assert_eq!(spent(&produced(490 * MS), HopKind::Timer), 0);
        assert!(spent(&produced(100 * MS), HopKind::Timer) >= 390 * MS);
    }

    /// 201 asks a server elsewhere, and sleeps in a receive until the reply comes 500 ms later.
    fn asks(protocol: Protocol, asked: u8, replied: (u8, u32)) -> Script {
        let elsewhere = Socket { remote: "10.0.0.2:9092".parse().expect("an address"), ..client_socket(9092) };
        let recv = OffCpu { syscall: 45, fd: FdKind::Tcp, target: 2, ..off(201, 3 * MS, 502 * MS, 502 * MS) };
        let mut script = Script::new()
            .socket(2, elsewhere, 201)
            .sends(201, 2, 2 * MS)
            .off(OffCpu { waker: Waker::SoftIrq, ..recv })
            .receives(201, 2, 502 * MS, 503 * MS);
        script.timeline.slices = vec![(0, 1_000 * MS)];
        script.timeline.asked_ports = vec![9092];
        frame(&mut script, protocol, 2, 0, asked, 90);
        frame(&mut script, protocol, 2, 1, replied.0, replied.1);
        script
    }

    #[test]
    fn a_client_that_asks_for_what_is_yet_to_come_waits_for_no_server() {
        for (protocol, asked, replied) in [(Protocol::Kafka, KAFKA_FETCH, (0, 156)), (Protocol::Redis, b'*', (b'*', 5))]
        {
            let polls = asks(protocol, asked, replied);
            assert!(spent(&polls, HopKind::OtherRequest) >= 490 * MS, "{protocol:?}");
            assert_eq!(spent(&polls, HopKind::Network) + spent(&polls, HopKind::Reply), 0, "{protocol:?}");
        }
        // It asks for something that is there.
        for (protocol, asked, replied) in [(Protocol::Kafka, 9, (0, 156)), (Protocol::Redis, b'*', (b'$', 40))] {
            assert_eq!(spent(&asks(protocol, asked, replied), HopKind::OtherRequest), 0, "{protocol:?}");
        }
    }

    #[test]
    fn a_consumer_of_a_broker_elsewhere_does_not_accuse_it() {
        let verdict = |asked: u8| {
            let timeline = asks(Protocol::Kafka, asked, (0, 156)).timeline;
            let flow = FlowBuilder::new(2, Role::Client).owner(200, 201).remote_host();
            let mut flow =
                flow.every(1_000 * MS, 2 * MS, 500 * MS, FlowState::IdleAfterSend, Release::RxData).talks(40, 90);
            flow.record.remote = "10.0.0.2:9092".parse().expect("an address");
            let mut capture = capture(vec![flow], vec![]);
            capture.timeline = Some(timeline);
            verdict_of(&capture)
        };
        assert_eq!(verdict(KAFKA_FETCH), "healthy");
        assert_eq!(verdict(9), "peer-think-time");
    }
}
