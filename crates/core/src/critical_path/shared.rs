//! Connections to a server that several threads share, each with a question of its own: clients of gRPC, and of HTTP/2 in general, that block
//! their thread. The questions have numbers. A thread waits for the reply to its own, whoever receives that: such threads take turns at
//! watching the connection, and hand that on to each other, which looks like a lock that goes around.
//!
//! Look-alike: an event loop, which has several questions under way by itself. What it sleeps for its calls tell.
use std::collections::HashMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Protocol, Timeline};

use super::requests;
use crate::sorting::IntoOrdered as _;

/// What a thread asked over a connection that it shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// When it was sent.
    pub from_ns: u64,
    /// When its reply had come.
    pub to_ns: u64,
    /// The connection.
    pub socket: FlowId,
}

/// By thread, its questions in order; of those that have one at a time, on connections that others use too.
pub fn questions(timeline: &Timeline) -> HashMap<u32, Vec<Question>> {
    let mut found: HashMap<u32, Vec<Question>> = HashMap::new();
    for (id, calls) in &timeline.calls {
        let asks = timeline.sockets.get(id).is_some_and(|socket| !socket.serves && !socket.udp);
        if !asks || !calls.iter().filter_map(|call| call.frame).any(|frame| frame.protocol == Protocol::Http2) {
            continue;
        }
        let sent = requests::sent(*id, calls, &timeline.slices);
        if sent.iter().map(|request| request.read_tid).into_set().len() < 2 {
            continue;
        }
        for request in sent.iter().filter(|request| request.reply_tid.is_some() && !request.cut) {
            let question = Question { from_ns: request.arrived_ns, to_ns: request.end_ns, socket: *id };
            found.entry(request.read_tid).or_default().push(question);
        }
    }
    found.values_mut().for_each(|all| all.sort_unstable_by_key(|question| question.from_ns));
    found.retain(|_, all| all.windows(2).all(|pair| pair[0].to_ns <= pair[1].from_ns));
    found
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{Frame, Op, Waker};
    use parshall_evidence::{HopKind, Service};

    use super::*;
    use crate::critical_path::{reduced, services};
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const EPOLL: i32 = 232;
    const FUTEX: i32 = 202;
    const SLEEP: i32 = 35;
    const ROUNDS: u64 = 4;

    /// 101 to 103 each serve a client and ask 201 over one connection, which sleeps 10 ms with each question in turn. 102 watches the
    /// connection first, and then 103.
    fn turns(numbered: bool) -> Timeline {
        let mut script =
            Script::new().socket(20, client_socket(9000), 101).socket(21, served_socket(9000), 201).pair(20, 21);
        script.timeline.slices = vec![(0, ROUNDS * 40 * MS)];
        for n in 1..=3 {
            script = script.socket(n, served_socket(7000), 101);
        }
        for round in 0..ROUNDS {
            let at = round * 40 * MS + MS;
            for n in 1..=3_u64 {
                let (tid, asks) = (100 + n as u32, at + n * 100 * US);
                script = script.receives(tid, n, at, at + n * 90 * US).sends(tid, 20, asks).receives(
                    201,
                    21,
                    asks,
                    asks + 10 * US,
                );
            }
            let answer = |n: u64| at + n * 10 * MS;
            for (n, by) in [(1, 102), (2, 102), (3, 103)] {
                script = script.sleeps(201, answer(n) - 9 * MS - 500 * US, answer(n) - 100 * US, SLEEP, Waker::HardIrq);
                script = script.sends(201, 21, answer(n)).receives(by, 20, answer(n) + 10 * US, answer(n) + 20 * US);
                script = script.sends(100 + n as u32, n, answer(n) + 200 * US);
            }
            script = script.sleeps(101, at + 150 * US, answer(1) + 100 * US, FUTEX, Waker::Thread(102));
            script = script.sleeps(102, at + 250 * US, answer(1) + 10 * US, EPOLL, Waker::SoftIrq);
            script = script.sleeps(102, answer(1) + 150 * US, answer(2) + 10 * US, EPOLL, Waker::SoftIrq);
            script = script.sleeps(103, at + 350 * US, answer(2) + 15 * US, FUTEX, Waker::Thread(102));
            script = script.sleeps(103, answer(2) + 150 * US, answer(3) + 10 * US, EPOLL, Waker::SoftIrq);
        }
        for (id, asks) in [(20, Op::Send), (21, Op::Receive)] {
            let (mut asked, mut answered) = (1, 1);
            for call in script.timeline.calls.get_mut(&id).expect("calls") {
                let stream = if call.op == asks { &mut asked } else { &mut answered };
                call.frame = numbered.then_some(Frame {
                    protocol: Protocol::Http2,
                    kind: 1,
                    flags: 4,
                    length: 40,
                    stream: *stream,
                });
                *stream += 2;
            }
        }
        script.timeline
    }

    fn share(service: &Service, kind: HopKind) -> f64 {
        let of = service.path.iter().filter(|part| part.hops[0].kind == kind);
        of.map(|part| part.ns).sum::<u64>() as f64 / service.followed_ns as f64
    }

    #[test]
    fn threads_that_share_a_connection_wait_for_their_own_replies() {
        let service = |timeline: &Timeline| services(timeline).into_iter().next().expect("a service");
        for timeline in [turns(true), reduced(turns(true))] {
            let service = service(&timeline);
            assert_eq!(service.address.port(), 7000);
            assert!(share(&service, HopKind::Reply) > 0.9, "{:#?}", service.path);
            assert!(share(&service, HopKind::Lock) < 0.01, "{:#?}", service.path);
        }
        // Without numbers it is not known whose reply somebody receives.
        assert!(share(&service(&turns(false)), HopKind::Reply) < 0.9);
    }
}
