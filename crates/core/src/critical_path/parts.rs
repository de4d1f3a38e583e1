//! The use of a connection before its first request, and between two parts of one, as far as its calls show it.
use std::collections::HashMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Protocol, Timeline};

use super::messages::{self, Part};

/// As many waits between two parts of a request tell whether a timer ends them.
const RESTS_MIN: usize = 3;
/// They differ by less than this part of their length: no network and no program is as even.
const EVEN: u64 = 50;
/// A shorter one may be as even by chance.
const TIMER_MIN_NS: u64 = 100_000_000;

/// Of clients' connections that were opened in the window and began with a handshake of TLS: when their first request was sent.
pub fn first_asked(timeline: &Timeline) -> HashMap<FlowId, u64> {
    let begins = |id: &FlowId| {
        let socket = timeline.sockets.get(id)?;
        let first = timeline.calls.get(id)?.first().filter(|_| socket.opened && !socket.serves)?;
        let hello = first.frame.is_some_and(|f| f.protocol == Protocol::Tls && f.kind == 22);
        (first.op == Op::Send && hello).then_some(())
    };
    let mut found = HashMap::new();
    for (id, calls) in timeline.calls.iter().filter(|(id, _)| begins(id).is_some()) {
        let parts = messages::messages(calls, Op::Send, &timeline.slices).parts;
        let asks = calls.iter().zip(parts).find(|(call, part)| call.op == Op::Send && *part != Part::Control);
        found.insert(*id, asks.map_or(u64::MAX, |(call, _)| call.since_ns));
    }
    found
}

/// The length that the waits between two parts of requests have in common, if a timer of the clients ends them: then they are all alike,
/// whatever the network and the service do.
pub fn timer_between(mut rests: Vec<u64>) -> Option<u64> {
    rests.sort_unstable();
    let median = *rests.get(rests.len() / 2)?;
    let alike = rests.iter().filter(|ns| is_alike(**ns, median)).count();
    (rests.len() >= RESTS_MIN && median >= TIMER_MIN_NS && alike * 5 >= rests.len() * 4).then_some(median)
}

/// Whether a wait is as long as those that a timer ended.
pub fn is_alike(ns: u64, timer_ns: u64) -> bool {
    ns.abs_diff(timer_ns) <= timer_ns / EVEN
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;
    use parshall_evidence::timeline::{Frame, Socket, Waker};

    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    const MS: u64 = 1_000_000;
    const EPOLL: i32 = 232;

    /// 101 serves a request from 10 ms on, and asks a far server for it over a connection of TLS: the handshake takes two round trips of
    /// 30 ms, and the request a third one. Time spent on connecting, and on waiting for replies.
    fn asks_far(opened: bool, change: impl FnOnce(Script) -> Script) -> (u64, u64) {
        let script = Script::new()
            .socket(1, served_socket(7000), 101)
            .socket(2, Socket { opened, ..client_socket(853) }, 101)
            .receives(101, 1, 10 * MS, 10 * MS);
        let script = [11, 41, 71].into_iter().fold(script, |script, at| {
            let script =
                script.sends(101, 2, at * MS).sleeps(101, at * MS + 1_000, (at + 29) * MS, EPOLL, Waker::SoftIrq);
            script.receives(101, 2, (at + 29) * MS, (at + 29) * MS + 1_000)
        });
        let mut script = change(script.sends(101, 1, 101 * MS));
        script.timeline.slices = vec![(0, 200 * MS)];
        let calls = script.timeline.calls.get_mut(&2).unwrap();
        for (call, (kind, length)) in
            calls.iter_mut().zip([(22, 517), (22, 600), (22, 42), (20, 51), (23, 159), (23, 98)])
        {
            let flags = u8::from(length == 517);
            (call.bytes, call.frame) =
                (length, Some(Frame { protocol: Protocol::Tls, kind, flags, length, stream: 0 }));
        }
        let found = services(&script.timeline);
        let service = found.iter().find(|service| !service.followed).expect("a service");
        let of = |kind| {
            let parts = service.path.iter().filter(|p| p.hops.iter().any(|hop| hop.kind == kind));
            parts.map(|part| part.ns / MS).sum()
        };
        (of(HopKind::Connect), of(HopKind::Reply))
    }

    #[test]
    fn a_handshake_before_a_request_belongs_to_the_opening() {
        let (connect, reply) = asks_far(true, |script| script);
        assert!((55..=62).contains(&connect) && (25..=32).contains(&reply), "{connect} {reply}");
        // A connection that was kept: what looks like a handshake is an exchange as any other.
        let (connect, reply) = asks_far(false, |script| script);
        assert!(connect == 0 && reply >= 80, "{connect} {reply}");
    }

    #[test]
    fn a_handshake_that_the_server_is_slow_in_is_the_servers() {
        // Seen at its end, each step takes it most of the time.
        let slow = |script: Script| {
            let script = script.socket(3, served_socket(853), 201).pair(2, 3);
            [11, 41, 71].into_iter().fold(script, |script, at| {
                script.receives(201, 3, (at + 2) * MS, (at + 2) * MS).sends(201, 3, (at + 28) * MS)
            })
        };
        let (connect, reply) = asks_far(true, slow);
        assert!(connect == 0 && reply >= 80, "{connect} {reply}");
    }

    #[test]
    fn waits_of_the_same_length_are_those_of_a_timer() {
        assert_eq!(timer_between(vec![1_000 * MS, 1_001 * MS, 1_004 * MS]), Some(1_001 * MS));
        assert_eq!(timer_between(vec![1_000 * MS, 1_001 * MS]), None, "two may be so by chance");
        assert_eq!(timer_between(vec![900 * MS, 1_000 * MS, 1_100 * MS]), None, "what a client takes to go on");
        assert_eq!(timer_between(vec![40 * MS, 40 * MS, 40 * MS]), None, "a round trip");
        assert_eq!(timer_between(Vec::new()), None);
    }
}
