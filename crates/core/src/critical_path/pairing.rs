//! Pairs replies with requests on a connection that has several under way: by the numbers of the exchanges, in order, or, where neither
//! is known, each with the oldest.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parshall_evidence::timeline::{Op, Protocol, SocketCall};

use super::connection::{Request, Seen, under_way};
use super::messages::Part;
use super::overlap::Move;
use super::polls;
use crate::sorting::{IntoOrdered as _, StableSort as _};

/// [`Protocol::Http2`]: the kind of what a client begins a connection with.
const PREFACE: u8 = 255;

/// The requests of a protocol whose messages have the number of their exchange.
///
/// Only the first message of a call is seen. Of HTTP/2, whose calls often move several, a request that was hidden in a call shows by its
/// reply, as the numbers of streams rise; of a request whose reply is hidden only the bounds are known.
pub fn numbered(seen: &Seen<'_>) -> Vec<Request> {
    let mut pairs = Numbered {
        seen,
        open: BTreeMap::new(),
        answered: BTreeSet::new(),
        newest: None,
        asked: Vec::new(),
        replied: Vec::new(),
    };
    let mut requests = Vec::new();
    for (n, call) in seen.calls.iter().enumerate().filter(|(_, call)| call.op != Op::Accept) {
        let asks = seen.asks(call);
        match seen.parts[n] {
            Part::Numbered { stream, begins } if asks => pairs.ask(stream, begins, n),
            Part::Numbered { stream, begins } => requests.extend(pairs.reply(stream, begins, call)),
            _ => {}
        }
        if seen.surplus[n] {
            let begins = call.frame.is_some_and(|frame| frame.protocol == Protocol::Http2 && frame.kind == PREFACE);
            if asks && begins {
                // Nothing is older.
                pairs.newest = pairs.newest.or(Some(0));
            }
            if asks { pairs.asked.push((pairs.newest, n)) } else { pairs.replied.push(n) }
        }
    }
    requests.extend(pairs.without_reply());
    requests.stable_sort_by_key(|request| request.arrived_ns);
    requests
}

/// The exchanges of a connection in a slice.
struct Numbered<'a> {
    seen: &'a Seen<'a>,
    /// By number, those without a reply, with the time of the call that began them.
    open: BTreeMap<u32, (Request, u64)>,
    /// Numbers that had a reply.
    answered: BTreeSet<u32>,
    /// The highest number of a request; None before the first is known.
    newest: Option<u32>,
    /// Calls that may have moved further requests, with the newest one then.
    asked: Vec<(Option<u32>, usize)>,
    /// Calls that may have moved further replies.
    replied: Vec<usize>,
}

impl Numbered<'_> {
    fn streams_rise(&self) -> bool {
        self.seen.protocol == Some(Protocol::Http2)
    }

    fn ask(&mut self, stream: u32, begins: bool, n: usize) {
        let call = &self.seen.calls[n];
        // A client has odd numbers, and what has an older one are the trailers of a request.
        if !begins
            || self.streams_rise() && (stream.is_multiple_of(2) || self.newest.is_some_and(|newest| stream <= newest))
        {
            return;
        }
        let begin = self.seen.slice.begin;
        let begun = self.seen.view.begun(self.seen.id, call, begin);
        let request = Request { cut: call.since_ns < begin, polls: polls::asks(self.seen.calls, n), ..begun };
        self.open.insert(stream, (request, call.at_ns));
        self.newest = Some(stream);
    }

    /// The request that this call begins to answer.
    fn reply(&mut self, stream: u32, begins: bool, call: &SocketCall) -> Option<Request> {
        let Seen { view, slice, id, .. } = *self.seen;
        let again = self.streams_rise() && !self.answered.insert(stream);
        if let Some((request, at_ns)) = self.open.remove(&stream) {
            if !self.streams_rise() {
                // One that is answered in order and was passed over has no reply.
                self.open.retain(|_, (_, asked_ns)| *asked_ns > at_ns);
            }
            // Data come after the begin of the reply: that was hidden.
            let hidden = !begins && self.first_reply_after(at_ns, call.at_ns).is_some();
            return Some(Request { cut: request.cut || hidden, ..view.ended(request, call) });
        }
        if again {
            return None;
        }
        if let Some(asked) = self.hidden(stream).map(|n| &self.seen.calls[n]) {
            let request = view.begun(id, asked, slice.begin);
            return match self.first_reply_after(asked.at_ns, call.at_ns) {
                // Its begin was hidden, too.
                Some(first) if !begins => Some(Request { cut: true, ..view.ended(request, first) }),
                _ => begins.then(|| view.ended(request, call)),
            };
        }
        let before_slice =
            begins && self.newest.is_none_or(|newest| stream < newest) && call.since_ns < slice.cut_until;
        before_slice.then(|| view.ended(under_way(id, call, slice.begin), call))
    }

    /// The call in which the request of this number was hidden: the last that may have moved more than older ones.
    fn hidden(&mut self, stream: u32) -> Option<usize> {
        if !self.streams_rise() || stream.is_multiple_of(2) {
            return None;
        }
        // Before the first known number, what has a reply may be older than the slice.
        let behind = self.asked.partition_point(|(newest, _)| newest.is_none_or(|newest| newest < stream));
        self.asked[..behind].last().filter(|(newest, _)| newest.is_some()).map(|(_, call)| *call)
    }

    /// The first call after `from` and before `to` in which a reply may have been hidden.
    fn first_reply_after(&self, from: u64, to: u64) -> Option<&SocketCall> {
        let calls = self.replied.iter().map(|n| &self.seen.calls[*n]);
        calls.skip_while(|call| call.at_ns <= from).take_while(|call| call.at_ns < to).next()
    }

    /// The requests of which no reply was seen: some have one that was hidden, and when that came is not known.
    fn without_reply(&self) -> Vec<Request> {
        let end = self.seen.slice.end;
        let of = |(request, at_ns): &(Request, u64)| match self.first_reply_after(*at_ns, u64::MAX) {
            Some(call) if self.streams_rise() => Request { cut: true, ..self.seen.view.ended(*request, call) },
            _ => Request { end_ns: end.max(request.read_ns), ..*request },
        };
        self.open.values().map(of).collect()
    }
}

/// The requests of a protocol that answers in order, where several were under way and each has a reply that was seen; else None. A
/// request that is read in pieces, or a reply that is sent in pieces, has one head; two that are moved by one call show as one, and then
/// nobody knows which reply is whose.
pub fn in_order(seen: &Seen<'_>) -> Option<Vec<Request>> {
    let mut open: VecDeque<Request> = VecDeque::new();
    let (mut requests, mut most) = (Vec::new(), 0);
    let heads = seen.calls.iter().zip(seen.parts).enumerate().filter(|(_, (_, part))| **part == Part::Head);
    for (n, (call, _)) in heads {
        if seen.asks(call) {
            let request = seen.view.begun(seen.id, call, seen.slice.begin);
            open.push_back(Request { cut: seen.slice.cuts(n, request.arrived_ns), ..request });
            most = most.max(open.len());
        } else {
            requests.push(seen.view.ended(open.pop_front()?, call));
        }
    }
    (most > 1 && open.is_empty()).then_some(requests)
}

/// The requests of a connection on which several are under way and no reply is known to be whose: each ends with the oldest one's.
/// The sum of their times and their number are true, the single times are not.
///
/// Data that a client sends and needs no reply for (settings, acknowledgements) would be the oldest request ever after. It shows by the
/// number of open requests, which never falls below what it was then.
pub fn overlapping(seen: &Seen<'_>, apart: &[Move]) -> Vec<Request> {
    let unanswered = unanswered(apart);
    let last_reply = apart.iter().rposition(|one| !one.asks).unwrap_or(0);
    let mut open: VecDeque<Request> = VecDeque::new();
    let mut requests = Vec::new();
    let owed = apart.iter().enumerate().filter(|(n, _)| !unanswered.contains(n) || *n > last_reply);
    for (_, one) in owed {
        let call = &seen.calls[one.call];
        if one.asks {
            let request = seen.view.begun(seen.id, call, seen.slice.begin);
            open.push_back(Request { cut: true, overlaps: true, ..request });
        } else if let Some(request) = open.pop_front() {
            requests.push(seen.view.ended(request, call));
        }
    }
    // Data that is sent before a connection closes needs no reply either.
    if !seen.closes {
        let end = seen.slice.end;
        requests.extend(open.into_iter().map(|request| Request { end_ns: end.max(request.read_ns), ..request }));
    }
    requests
}

/// The moves of requests, by their place, after which never again as few requests were open as before them.
fn unanswered(apart: &[Move]) -> BTreeSet<usize> {
    let mut open = Vec::new();
    for (n, one) in apart.iter().enumerate() {
        if one.asks {
            open.push(n);
        } else {
            open.pop();
        }
    }
    open.into_iter().into_set()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{Frame, Socket};

    use super::*;
    use crate::critical_path::requests::{sent, served};
    use crate::testkit::timeline::served_socket;

    const R: Op = Op::Receive;
    const S: Op = Op::Send;
    const MS: u64 = 1_000_000;

    fn call(op: Op, at_ms: u64, bytes: u32, protocol: Protocol, kind: u8, (length, stream): (u32, u32)) -> SocketCall {
        let frame = Some(Frame { protocol, kind, flags: 0, length, stream });
        SocketCall { socket: 1, tid: 7, op, since_ns: at_ms * MS, at_ns: at_ms * MS + 5_000, bytes, peer: 0, frame }
    }

    /// When each request arrived and ended in ms, whether it has a reply, and whether its time is unknown.
    fn times(requests: &[Request]) -> Vec<(u64, u64, bool, bool)> {
        requests.iter().map(|r| (r.arrived_ns / MS, r.end_ns / MS, r.reply_tid.is_some(), r.cut)).collect()
    }

    fn of_service(calls: &[SocketCall]) -> Vec<(u64, u64, bool, bool)> {
        times(&served(1, &served_socket(7000), calls, &[(0, 1_000 * MS)]))
    }

    fn h2(op: Op, at_ms: u64, bytes: u32, kind: u8, stream: u32) -> SocketCall {
        let length = if kind == 255 { 24 } else { 40 };
        call(op, at_ms, bytes, Protocol::Http2, kind, (length, stream))
    }

    #[test]
    fn streams_of_http2_are_requests_of_their_own() {
        let calls = [
            h2(R, 0, 24, 255, 0),
            h2(S, 1, 40, 4, 0),
            h2(R, 10, 40, 1, 1),
            h2(R, 20, 40, 1, 3),
            h2(R, 21, 40, 6, 0),
            h2(S, 22, 40, 6, 0),
            h2(S, 30, 40, 1, 3),
            h2(S, 31, 40, 0, 3),
            h2(R, 40, 40, 1, 5),
            h2(S, 90, 40, 1, 1),
            h2(R, 95, 40, 8, 0),
        ];
        assert_eq!(of_service(&calls), [(10, 90, true, false), (20, 30, true, false), (40, 1_000, false, false)]);
        // The client sees the same of its end.
        let mirrored: Vec<SocketCall> =
            calls.iter().map(|call| SocketCall { op: if call.op == R { S } else { R }, ..*call }).collect();
        let requests = sent(1, &mirrored, &[(0, 1_000 * MS)]);
        assert_eq!(times(&requests), [(10, 90, true, false), (20, 30, true, false), (40, 1_000, false, false)]);
    }

    #[test]
    fn a_request_that_was_hidden_in_a_call_shows_by_its_reply() {
        // The first request came with the preface, and two more with that of stream 3.
        let calls = [
            h2(R, 0, 150, 255, 0),
            h2(S, 5, 40, 1, 1),
            h2(R, 10, 120, 1, 3),
            h2(R, 12, 40, 1, 9),
            h2(S, 20, 40, 1, 5),
            h2(S, 30, 40, 1, 7),
            h2(S, 40, 40, 1, 3),
            h2(S, 50, 40, 1, 9),
        ];
        let expected = [
            (0, 5, true, false),
            (10, 20, true, false),
            (10, 30, true, false),
            (10, 40, true, false),
            (12, 50, true, false),
        ];
        assert_eq!(of_service(&calls), expected);
    }

    #[test]
    fn a_request_that_was_hidden_with_the_begin_of_its_reply_is_counted_once() {
        let calls = [
            h2(R, 0, 40, 1, 1),
            h2(S, 5, 40, 1, 1),
            // With a ping.
            h2(R, 10, 80, 6, 0),
            h2(S, 20, 80, 6, 0),
            h2(S, 21, 40, 0, 3),
            h2(S, 50, 40, 0, 3),
            h2(R, 60, 40, 1, 5),
            h2(S, 70, 40, 1, 5),
        ];
        assert_eq!(of_service(&calls), [(0, 5, true, false), (10, 20, true, true), (60, 70, true, false)]);
    }

    #[test]
    fn what_a_stream_brings_that_is_older_than_the_slice_is_no_reply() {
        // Data of stream 1 come all the time; something was hidden in the first call.
        let calls =
            [h2(R, 10, 80, 8, 0), h2(S, 20, 40, 0, 1), h2(R, 30, 40, 1, 9), h2(S, 40, 40, 0, 1), h2(S, 50, 40, 1, 9)];
        assert_eq!(of_service(&calls), [(30, 50, true, false)]);
    }

    #[test]
    fn a_request_whose_reply_was_hidden_is_neither_long_nor_without_a_reply() {
        let calls = [
            h2(R, 0, 24, 255, 0),
            h2(R, 10, 40, 1, 1),
            h2(R, 11, 40, 1, 3),
            // With the reply to 3 may come that to 1, and with this one the begin of the reply to 5.
            h2(S, 20, 200, 1, 3),
            h2(R, 30, 40, 1, 5),
            h2(R, 31, 40, 1, 7),
            h2(S, 40, 200, 1, 7),
            h2(S, 90, 40, 0, 5),
        ];
        let expected = [(10, 20, true, true), (11, 20, true, false), (30, 90, true, true), (31, 40, true, false)];
        assert_eq!(of_service(&calls), expected);
    }

    #[test]
    fn replies_without_the_number_of_a_request_are_of_another_protocol() {
        // As ZooKeeper: behind the length comes the number of a request in a place in which Kafka has that of the function, and what Kafka
        // has as the number is the function.
        let calls: Vec<SocketCall> = (0..6)
            .flat_map(|n: u32| {
                let at = u64::from(n) * 100;
                let kafka = |op, at, number| call(op, at, 64, Protocol::Kafka, 0, (64, number));
                [kafka(R, at, 5), kafka(S, at + 40, 12 + n)]
            })
            .collect();
        let expected: Vec<_> = (0..6).map(|n| (n * 100, n * 100 + 40, true, false)).collect();
        assert_eq!(of_service(&calls), expected);
    }

    #[test]
    fn replies_of_kafka_have_the_number_of_their_request() {
        let kafka = |op, at, number| call(op, at, 64, Protocol::Kafka, 1, (64, number));
        let calls = [
            kafka(R, 0, 1),
            kafka(R, 10, 2),
            kafka(S, 20, 1),
            kafka(R, 30, 3),
            kafka(S, 90, 2),
            // Requests that need no reply are passed over.
            kafka(R, 100, 4),
            kafka(R, 110, 5),
            kafka(S, 120, 3),
            kafka(S, 130, 5),
        ];
        let expected = [(0, 20, true, false), (10, 90, true, false), (30, 120, true, false), (110, 130, true, false)];
        assert_eq!(of_service(&calls), expected);
    }

    #[test]
    fn pipelined_requests_are_answered_in_order() {
        let redis = |op, at| call(op, at, 30, Protocol::Redis, if op == R { b'*' } else { b'+' }, (0, 0));
        let calls = [redis(R, 0), redis(R, 10), redis(S, 20), redis(R, 30), redis(S, 40), redis(S, 70)];
        assert_eq!(of_service(&calls), [(0, 20, true, false), (10, 40, true, false), (30, 70, true, false)]);
        // Two replies in one call: which is whose is not known, and they are one request as before.
        let calls = [redis(R, 0), redis(R, 10), redis(S, 20), redis(R, 30), redis(S, 40)];
        assert_eq!(of_service(&calls), [(0, 20, true, false), (30, 40, true, false)]);
    }

    #[test]
    fn the_parts_of_one_request_of_a_database_are_one_request() {
        let pg = |op, at, kind| call(op, at, 30, Protocol::Postgres, kind, (30, 0));
        // Parse, bind and execute in calls of their own, and one reply.
        let calls = [pg(R, 0, b'P'), pg(R, 1, b'B'), pg(R, 2, b'E'), pg(S, 20, b'1'), pg(R, 50, b'Q'), pg(S, 60, b'T')];
        assert_eq!(of_service(&calls), [(0, 20, true, false), (50, 60, true, false)]);
    }

    #[test]
    fn what_overlaps_without_a_known_protocol_has_a_sum_and_no_times() {
        let plain = |op, at_ms: u64| SocketCall { frame: None, ..call(op, at_ms, 30, Protocol::Tls, 0, (0, 0)) };
        let mut calls = Vec::new();
        for round in 0..6 {
            let at = round * 30;
            calls.extend([plain(R, at), plain(R, at + 3), plain(S, at + 8), plain(R, at + 10)]);
            calls.extend([plain(S, at + 14), plain(S, at + 18), plain(R, at + 20), plain(S, at + 27)]);
        }
        let requests = served(1, &served_socket(7000), &calls, &[(0, 1_000 * MS)]);
        assert_eq!(requests.len(), 24);
        assert!(requests.iter().all(|r| r.cut && r.overlaps && r.reply_tid.is_some()));
        let sum = |requests: &[Request]| requests.iter().map(Request::ns).sum::<u64>() / MS;
        assert_eq!(sum(&requests), 6 * (8 + 11 + 8 + 7));
        // The data that the client sends first and last has no reply: neither makes the others longer.
        calls.iter_mut().for_each(|call| (call.since_ns, call.at_ns) = (call.since_ns + 50 * MS, call.at_ns + 50 * MS));
        calls.insert(0, plain(R, 40));
        calls.push(plain(R, 400));
        let open = served(1, &served_socket(7000), &calls, &[(0, 1_000 * MS)]);
        let (answered, last) = open.split_at(24);
        assert_eq!((sum(answered), last.len(), last[0].reply_tid), (6 * (8 + 11 + 8 + 7), 1, None));
        let closed = Socket { closed_ns: Some(500 * MS), ..served_socket(7000) };
        assert_eq!(served(1, &closed, &calls, &[(0, 1_000 * MS)]).len(), 24);
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::*;
        use crate::testkit::timeline::client_socket;

        fn frame() -> impl Strategy<Value = Option<Frame>> {
            let kinds = prop_oneof![any::<u8>(), Just(1), Just(22), Just(23), Just(b'Q'), Just(b'*'), Just(255)];
            let lengths = prop_oneof![0..200_u32, any::<u32>()];
            let fields = (0..Protocol::ALL.len(), kinds, 0..3_u8, lengths, prop_oneof![0..20_u32, any::<u32>()]);
            let of = |(protocol, kind, flags, length, stream)| {
                let protocol = Protocol::ALL[protocol];
                Frame { protocol, kind, flags, length, stream }
            };
            proptest::option::of(fields.prop_map(of))
        }

        /// Calls of a connection, which has one protocol or none.
        fn calls() -> impl Strategy<Value = Vec<SocketCall>> {
            let one = (0..3_u8, 0..5 * MS, 0..2 * MS, prop_oneof![0..300_u32, any::<u32>()], frame());
            let protocol = proptest::option::of(0..Protocol::ALL.len());
            (vec(one, 0..60), protocol).prop_map(|(calls, protocol)| {
                let mut at_ns = 0;
                let of = |(op, after_ns, took_ns, bytes, frame): (u8, u64, u64, u32, Option<Frame>)| {
                    at_ns += after_ns;
                    let op = [R, S, Op::Accept][usize::from(op)];
                    let one = |frame: Frame| Frame {
                        protocol: protocol.map_or(frame.protocol, |n| Protocol::ALL[n]),
                        ..frame
                    };
                    let since_ns = at_ns.saturating_sub(took_ns);
                    SocketCall { socket: 1, tid: 7, op, since_ns, at_ns, bytes, peer: 0, frame: frame.map(one) }
                };
                calls.into_iter().map(of).collect()
            })
        }

        proptest! {
            #[test]
            fn whatever_calls_show_a_request_ends_after_it_arrived_and_within_its_slice(calls in calls(), closes in proptest::option::of(0..300 * MS)) {
                let slices = [(0, 50 * MS), (60 * MS, 200 * MS)];
                let socket = Socket { closed_ns: closes, ..served_socket(7000) };
                let asked = calls.iter().filter(|call| call.op == R).count();
                let found = served(1, &socket, &calls, &slices);
                prop_assert!(found.len() <= asked + slices.len() + calls.len(), "{found:?}");
                let both = found.iter().chain(&sent(1, &calls, &slices)).copied().collect::<Vec<_>>();
                for request in both {
                    let within = slices.iter().any(|(begin, end)| *begin <= request.arrived_ns && request.end_ns <= *end);
                    prop_assert!(request.arrived_ns <= request.end_ns && within, "{request:?}");
                }
                // A datagram socket takes them in another way.
                let udp = Socket { udp: true, ..client_socket(53) };
                served(1, &udp, &calls, &slices);
            }
        }
    }
}
