//! Requests, cut out of the calls on a socket: what was received is a request until something is sent, if nothing more is known.
//!
//! Where the calls show the messages of a protocol (`messages`), what is neither a request nor a reply is left out, and replies belong to
//! their requests by number or in order (`pairing`). Where they show that several requests are under way and not which reply is whose
//! (`overlap`), each is paired with the oldest: the sum of their times is that of the true ones, and no single time is known.
//!
//! A slice shows only a part of the time. A request that it cut at its end counts as outstanding until then, and one that had no
//! reply when its connection closed until that. Of one that it cut at its begin only the rest is known ([`Request::cut`]).
use std::collections::{BTreeMap, BTreeSet, HashMap};

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Protocol, Socket, SocketCall, Timeline};

pub use super::connection::Request;
use super::connection::{CUT_WITHIN, Seen, Slice, View, begun, replied, under_way};
use super::messages::{self, Messages, Part};
use super::{heartbeat, overlap, pairing, polls};
use crate::sorting::StableSort as _;

fn each_slice(slices: &[(u64, u64)]) -> impl Iterator<Item = Slice> {
    slices.iter().map(|&(begin, end)| {
        let cut_until = if slices.len() > 1 { begin + end.saturating_sub(begin) / CUT_WITHIN } else { begin };
        Slice { begin, end, cut_until }
    })
}

/// The requests and other data that arrived at a served socket.
#[derive(Debug, Clone, Default)]
pub struct Arrived {
    /// The requests, in order of their arrival.
    pub requests: Vec<Request>,
    /// All data that was received until something was sent: messages that are no requests, such as those of a handshake, are waited for,
    /// too. None where all of it is requests.
    pub exchanges: Option<Vec<Request>>,
}

/// Finds the requests and exchanges that arrived at a served socket. `slices` are in order and disjoint.
pub fn arrived(id: FlowId, socket: &Socket, calls: &[SocketCall], slices: &[(u64, u64)]) -> Arrived {
    if socket.udp {
        let mut requests = Vec::new();
        for slice in each_slice(slices) {
            datagrams(id, &calls[in_slice(calls, slice)], slice, &mut requests);
        }
        return Arrived { requests, exchanges: None };
    }
    if !calls.iter().any(|call| call.op == Op::Receive) {
        return Arrived::default();
    }
    let mut messages = messages::messages(calls, Op::Receive, slices);
    let seen = |messages: &Messages, find: fn(&Seen<'_>) -> Vec<Request>| {
        in_slices(id, View::Served, (calls, messages), slices, socket.closed_ns, find)
    };
    let of_data = || seen(&Messages::of_data(calls.len()), stream);
    let exchanges = messages.parts.contains(&Part::Control).then(of_data);
    heartbeat::mark(calls, Op::Receive, &mut messages);
    Arrived { requests: seen(&messages, requests), exchanges }
}

/// The requests of [`arrived`].
#[cfg(test)]
pub fn served(id: FlowId, socket: &Socket, calls: &[SocketCall], slices: &[(u64, u64)]) -> Vec<Request> {
    arrived(id, socket, calls, slices).requests
}

/// The requests that a socket of a client sent: each goes from the first byte sent to the first byte of the reply. `read_tid`
/// is the thread that sent it, and `reply_tid` the one that received the reply.
pub fn sent(id: FlowId, calls: &[SocketCall], slices: &[(u64, u64)]) -> Vec<Request> {
    if !calls.iter().any(|call| call.op == Op::Send) {
        return Vec::new();
    }
    let mut messages = messages::messages(calls, Op::Send, slices);
    heartbeat::mark(calls, Op::Send, &mut messages);
    in_slices(id, View::Sent, (calls, &messages), slices, None, requests)
}

/// Whether a client has sent something on a connection, and nothing that is owed an answer, by a protocol in which either end sends when it
/// likes: answers to pings, and what a standby says of itself.
pub fn is_owed_nothing(timeline: &Timeline, id: FlowId) -> bool {
    let client = timeline.sockets.get(&id).filter(|socket| !socket.serves && !socket.udp);
    let Some(calls) = client.and_then(|_| timeline.calls.get(&id)) else { return false };
    let messages = messages::messages(calls, Op::Send, &timeline.slices);
    let mut sent = calls.iter().zip(&messages.parts).filter(|(call, _)| call.op == Op::Send).peekable();
    matches!(messages.protocol, Some(Protocol::WebSocket | Protocol::Postgres))
        && sent.peek().is_some()
        && sent.all(|(_, part)| *part == Part::Control)
}

/// Collects the requests of each slice of a connection.
fn in_slices(
    id: FlowId,
    view: View,
    (calls, messages): (&[SocketCall], &Messages),
    slices: &[(u64, u64)],
    closed_ns: Option<u64>,
    find: fn(&Seen<'_>) -> Vec<Request>,
) -> Vec<Request> {
    let in_one = |slice: Slice| {
        let within = in_slice(calls, slice);
        let end = closed_ns.map_or(slice.end, |at| at.clamp(slice.begin, slice.end));
        find(&Seen {
            id,
            view,
            slice: Slice { end, ..slice },
            closes: closed_ns.is_some_and(|at| at <= slice.end),
            calls: &calls[within.clone()],
            parts: &messages.parts[within.clone()],
            surplus: &messages.surplus[within],
            protocol: messages.protocol,
        })
    };
    each_slice(slices).flat_map(in_one).collect()
}

fn in_slice(calls: &[SocketCall], slice: Slice) -> std::ops::Range<usize> {
    let from = calls.partition_point(|c| c.at_ns < slice.begin);
    let to = calls.partition_point(|c| c.at_ns <= slice.end);
    from..to.max(from)
}

/// The requests that the parts of the protocol or the times of the calls show; those of a serial protocol, if they show nothing.
fn requests(seen: &Seen<'_>) -> Vec<Request> {
    match seen.protocol {
        Some(Protocol::Http2 | Protocol::Kafka) => return pairing::numbered(seen),
        Some(Protocol::Http1) => return serial(seen),
        Some(Protocol::Postgres | Protocol::Mysql | Protocol::Redis | Protocol::Mqtt) => {
            if let Some(requests) = pairing::in_order(seen) {
                return requests;
            }
        }
        _ => {}
    }
    let apart = overlap::apart(&seen.moves(), seen.parts);
    if let Some(pushes) = overlap::pushes(&apart) {
        let replied = |r: &Request| r.reply_tid.is_some() && pushes.is_reply(&apart, r.arrived_ns, r.end_ns);
        return serial(seen).into_iter().filter(replied).collect();
    }
    if overlap::overlaps(&apart) {
        return pairing::overlapping(seen, &apart);
    }
    let mut requests = serial(seen);
    if let Some(ends) = overlap::late_ends(&apart).filter(|_| seen.view == View::Served) {
        ends.into_iter().for_each(|one| end_later(&mut requests, &seen.calls[one.call]));
    }
    if let Some(open) = requests.pop_if(|last| last.reply_tid.is_none()) {
        let acknowledges =
            apart.iter().rev().find(|one| one.asks).is_some_and(|one| overlap::is_acknowledgement(&apart, one));
        requests.extend((!acknowledges).then_some(open));
    }
    requests
}

/// The last part of a reply, for which its client waits, ends the request.
fn end_later(requests: &mut [Request], call: &SocketCall) {
    let begun = requests.partition_point(|request| request.arrived_ns < call.since_ns);
    if let Some(request) = requests[..begun].last_mut().filter(|request| request.reply_tid.is_some()) {
        *request = Request { polls: request.polls, job: true, ..replied(*request, call) };
    }
}

/// The requests of a protocol that has one at a time.
fn serial(seen: &Seen<'_>) -> Vec<Request> {
    match seen.view {
        View::Served => stream(seen),
        View::Sent => asked(seen),
    }
}

fn stream(seen: &Seen<'_>) -> Vec<Request> {
    let (id, Slice { begin, end, cut_until }) = (seen.id, seen.slice);
    let mut requests = Vec::new();
    let mut open: Option<Request> = None;
    let mut accepted: Option<(u64, u64, u32)> = None;
    // The handshake of a connection is asked for, too, where it waited to be accepted.
    let mut greets = false;
    // When what was read last of the request that was answered last had arrived.
    let (mut last_since, mut answered_since) = (None, None);
    for (n, call) in seen.calls.iter().enumerate() {
        let is_first = last_since.is_none();
        if call.op == Op::Receive {
            last_since = Some(call.since_ns);
            // Data that had come with the last request and was read after its reply is the rest of that one, unless it is answered, too.
            open = open.filter(|request| answered_since != Some(request.arrived_ns) || answered_since == last_since);
        }
        match call.op {
            Op::Accept => accepted = Some((call.since_ns, call.at_ns, call.tid)),
            Op::Receive
                if is_first && open.is_none() && seen.parts[n] == Part::Control && is_kept_out(accepted, call) =>
            {
                greets = true;
                let (established_ns, at_ns, tid) = accepted.take().unwrap_or_default();
                let request = begun(id, call, begin);
                let arrived_ns = request.arrived_ns.max(established_ns);
                open = Some(Request { arrived_ns, accepted: Some((at_ns, tid)), ..request });
            }
            _ if seen.parts[n] == Part::Control && !(greets && call.op == Op::Send) => {}
            Op::Receive if open.is_none() => {
                let mut request = begun(id, call, begin);
                request.cut = seen.slice.cuts(n, request.arrived_ns) || call.since_ns < begin && begin < cut_until;
                request.polls = polls::asks(seen.calls, n);
                if let Some((established_ns, at_ns, tid)) = accepted.take() {
                    // A request that arrives with the end of the handshake waits for accept() too.
                    request.arrived_ns = request.arrived_ns.max(established_ns.max(begin));
                    request.accepted = (at_ns > request.arrived_ns).then_some((at_ns, tid));
                }
                open = Some(request);
            }
            Op::Receive => {}
            Op::Send => {
                let cut = seen.slice.cuts(n, begin).then(|| under_way(id, call, begin));
                // A server that speaks first answers the connection: its greeting is what the client waits for.
                if let Some((established_ns, at_ns, tid)) = accepted.take().filter(|_| last_since.is_none()) {
                    let at = established_ns.max(begin);
                    let accepted = (at_ns > at).then_some((at_ns, tid));
                    let greeted = Request {
                        arrived_ns: at,
                        read_ns: at_ns.max(at),
                        read_tid: tid,
                        accepted,
                        ..begun(id, call, begin)
                    };
                    open = open.or(Some(greeted));
                }
                greets = false;
                answered_since = last_since.filter(|_| open.is_some());
                requests.extend(open.take().or(cut).map(|request| replied(request, call)));
            }
        }
    }
    let is_rest = |request: &Request| answered_since == Some(request.arrived_ns);
    let open = open.filter(|request| !is_rest(request));
    requests.extend(open.map(|request| Request { end_ns: end.max(request.read_ns), ..request }));
    requests
}

/// A connection that waits for less is accepted at once.
const KEPT_OUT_NS: u64 = 1_000_000;

/// Whether what a call received, the first of its connection, had waited for that to be accepted. That of TLS opens a connection, and
/// the request comes behind it.
fn is_kept_out(accepted: Option<(u64, u64, u32)>, call: &SocketCall) -> bool {
    let opens = call.frame.is_some_and(|frame| frame.protocol == Protocol::Tls);
    !opens
        && accepted.is_some_and(|(established_ns, at_ns, _)| {
            at_ns.saturating_sub(established_ns.max(call.since_ns)) >= KEPT_OUT_NS
        })
}

fn asked(seen: &Seen<'_>) -> Vec<Request> {
    let (id, Slice { begin, end, .. }) = (seen.id, seen.slice);
    let mut requests = Vec::new();
    let mut open: Option<Request> = None;
    for (n, call) in seen.calls.iter().enumerate().filter(|(n, _)| seen.parts[*n] != Part::Control) {
        match call.op {
            Op::Send if open.is_none() => {
                let request = View::Sent.begun(id, call, begin);
                open = Some(Request { cut: seen.slice.cuts(n, request.arrived_ns), ..request });
            }
            Op::Receive => {
                let cut = seen.slice.cuts(n, begin).then(|| under_way(id, call, begin));
                requests.extend(open.take().or(cut).map(|request| View::Sent.ended(request, call)));
            }
            _ => {}
        }
    }
    requests.extend(open.map(|request| Request { end_ns: end.max(request.arrived_ns), ..request }));
    requests
}

/// Each datagram received is a request. The peer's address pairs it with its reply; where it is unknown, replies come in order. If all
/// are of DNS, the number of the question does; and where some are owed no reply, the thread does that has one in its hands at a time.
fn datagrams(id: FlowId, calls: &[SocketCall], slice: Slice, requests: &mut Vec<Request>) {
    let Slice { begin, end, .. } = slice;
    let first = requests.len();
    let mut open: HashMap<(u64, u32), std::collections::VecDeque<usize>> = HashMap::new();
    let dns = |call: &SocketCall| call.frame.filter(|frame| frame.protocol == Protocol::Dns);
    let numbered = calls.iter().all(|call| dns(call).is_some_and(|frame| (frame.kind == 1) == (call.op == Op::Send)));
    if let Some(mut found) = (!numbered).then(|| by_thread(id, calls, slice)).flatten() {
        return requests.append(&mut found);
    }
    let key = |call: &SocketCall| (call.peer, dns(call).filter(|_| numbered).map_or(0, |frame| frame.stream));
    for call in calls {
        match call.op {
            Op::Receive => {
                open.entry(key(call)).or_default().push_back(requests.len());
                requests.push(Request { end_ns: end, ..begun(id, call, begin) });
            }
            Op::Send => {
                if let Some(index) = open.get_mut(&key(call)).and_then(std::collections::VecDeque::pop_front) {
                    requests[index] = replied(requests[index], call);
                }
            }
            Op::Accept => {}
        }
    }
    requests[first..].stable_sort_by_key(|r| r.arrived_ns);
}

/// Fewer replies do not show who replies to what.
const BY_THREAD_MIN: usize = 5;
/// Of this many datagrams at least one is owed no reply.
const UNANSWERED_IN: usize = 5;

/// The requests of a service whose threads answer what they read last, and nothing else, while many datagrams are read that have no reply
/// (acknowledgements): in order, those would be the oldest ones ever after. None where it does not look so.
fn by_thread(id: FlowId, calls: &[SocketCall], slice: Slice) -> Option<Vec<Request>> {
    let mut read: BTreeMap<u32, &SocketCall> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let (mut requests, mut received, mut least) = (Vec::new(), 0, u32::MAX);
    for call in calls {
        match call.op {
            Op::Receive => {
                received += 1;
                seen.insert(call.tid);
                read.insert(call.tid, call);
            }
            // It has it from before the slice.
            Op::Send if !seen.contains(&call.tid) => {}
            Op::Send => {
                let asked = read.remove(&call.tid).filter(|asked| asked.peer == call.peer)?;
                least = least.min(asked.bytes);
                requests.push(replied(begun(id, asked, slice.begin), call));
            }
            Op::Accept => {}
        }
    }
    let unanswered = received - requests.len();
    if requests.len() < BY_THREAD_MIN || unanswered * UNANSWERED_IN < received {
        return None;
    }
    // A message that a thread has in its hands at the end may be a request if it is as long as one.
    let open = read.into_values().filter(|asked| asked.bytes >= least);
    requests.extend(open.map(|asked| Request { end_ns: slice.end.max(asked.at_ns), ..begun(id, asked, slice.begin) }));
    requests.stable_sort_by_key(|request| request.arrived_ns);
    Some(requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::timeline::{client_socket, served_socket};

    fn call(op: Op, since_ns: u64, at_ns: u64) -> SocketCall {
        SocketCall { socket: 1, tid: 7, op, since_ns, at_ns, bytes: 10, peer: 0, frame: None }
    }

    #[test]
    fn a_client_that_answers_pings_is_owed_nothing() {
        use parshall_evidence::timeline::Frame;

        use crate::testkit::timeline::{Script, client_socket};
        // A message of the server each second, and what the client sends behind it.
        let owed_nothing = |kind: u8, protocol: Protocol| {
            let mut script = Script::new().socket(1, client_socket(8082), 101);
            script.timeline.slices = vec![(0, 4_000_000_000)];
            for n in 1..4 {
                let at = n * 1_000_000_000;
                script = script.receives(101, 1, at, at + 10_000).sends(101, 1, at + 20_000);
            }
            for call in script.timeline.calls.values_mut().flatten() {
                let asks = call.op == Op::Send;
                let (kind, flags, length) = if asks { (kind, 1, 6) } else { (9, 0, 2) };
                call.bytes = length;
                call.frame = Some(Frame { protocol, kind, flags, length, stream: 0 });
            }
            is_owed_nothing(&script.timeline, 1)
        };
        assert!(owed_nothing(10, Protocol::WebSocket));
        // A message with content, and control messages behind which replies may be owed.
        assert!(!owed_nothing(1, Protocol::WebSocket));
        assert!(!owed_nothing(4, Protocol::Http2));
    }

    #[test]
    fn a_request_goes_from_its_arrival_to_its_reply() {
        let calls = [
            call(Op::Receive, 10, 15),
            call(Op::Receive, 16, 17),
            call(Op::Send, 30, 31),
            call(Op::Send, 32, 33),
            call(Op::Receive, 50, 50),
        ];
        let requests = served(1, &served_socket(7000), &calls, &[(0, 100)]);
        let times: Vec<_> = requests.iter().map(|r| (r.arrived_ns, r.read_ns, r.end_ns, r.reply_tid)).collect();
        assert_eq!(times, [(10, 15, 30, Some(7)), (50, 50, 100, None)]);
    }

    #[test]
    fn a_greeting_answers_the_connection() {
        let calls =
            [call(Op::Accept, 5, 40), call(Op::Send, 70, 71), call(Op::Receive, 80, 81), call(Op::Send, 90, 91)];
        let requests = served(1, &served_socket(3306), &calls, &[(0, 100)]);
        let times: Vec<_> = requests.iter().map(|r| (r.arrived_ns, r.read_ns, r.end_ns, r.accepted)).collect();
        assert_eq!(times, [(5, 40, 70, Some((40, 7))), (80, 81, 90, None)]);
    }

    #[test]
    fn a_server_that_gives_a_silent_client_up_answers_nothing() {
        let of = |calls: &[SocketCall]| served(1, &served_socket(8080), calls, &[(0, 100)]).len();
        let given_up = [call(Op::Accept, 5, 6), call(Op::Send, 70, 71)];
        assert_eq!(of(&given_up), 0);
        // A client that speaks then has waited for a greeting.
        assert_eq!(of(&[&given_up[..], &[call(Op::Receive, 80, 81)]].concat()), 2);
    }

    #[test]
    fn what_came_with_a_request_and_is_read_after_its_reply_is_its_rest() {
        let rest = [call(Op::Receive, 10, 15), call(Op::Send, 30, 31), call(Op::Receive, 10, 32)];
        let times = |calls: &[SocketCall]| {
            let requests = served(1, &served_socket(7000), calls, &[(0, 100)]);
            requests.iter().map(|r| (r.arrived_ns, r.end_ns, r.reply_tid.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(times(&rest), [(10, 30, true)]);
        // The next request begins when it comes.
        let next = [call(Op::Receive, 50, 51), call(Op::Send, 60, 61)];
        assert_eq!(times(&[&rest[..], &next].concat()), [(10, 30, true), (50, 60, true)]);
        // A second one that came with the first is answered.
        assert_eq!(times(&[&rest[..], &next[1..]].concat()), [(10, 30, true), (10, 60, true)]);
    }

    #[test]
    fn what_slices_cut_is_not_joined() {
        // Of what came before the second slice only the rest is known.
        let calls = [call(Op::Receive, 90, 92), call(Op::Send, 210, 211), call(Op::Receive, 190, 230)];
        let requests = served(1, &served_socket(7000), &calls, &[(0, 100), (200, 300)]);
        let times: Vec<_> = requests.iter().map(|r| (r.arrived_ns, r.end_ns, r.reply_tid, r.cut)).collect();
        assert_eq!(times, [(90, 100, None, false), (200, 210, Some(7), true), (200, 300, None, true)]);
    }

    #[test]
    fn data_that_came_before_accept_waited_for_it() {
        let calls = [call(Op::Accept, 5, 40), call(Op::Receive, 6, 45), call(Op::Send, 50, 51)];
        let requests = served(1, &served_socket(7000), &calls, &[(0, 100)]);
        assert_eq!(requests[0].accepted, Some((40, 7)));
        assert_eq!(requests[0].arrived_ns, 6);
        let late = [call(Op::Accept, 5, 6), call(Op::Receive, 20, 45), call(Op::Send, 50, 51)];
        assert_eq!(served(1, &served_socket(7000), &late, &[(0, 100)])[0].accepted, None);
    }

    #[test]
    fn datagrams_pair_by_peer() {
        let socket = Socket { udp: true, ..served_socket(53) };
        let from = |peer, op, at| SocketCall { peer, ..call(op, at, at) };
        let calls = [
            from(1, Op::Receive, 10),
            from(2, Op::Receive, 20),
            from(2, Op::Send, 30),
            from(1, Op::Send, 40),
            from(1, Op::Receive, 50),
        ];
        let requests = served(1, &socket, &calls, &[(0, 100)]);
        let times: Vec<_> = requests.iter().map(|r| (r.arrived_ns, r.end_ns, r.reply_tid.is_some())).collect();
        assert_eq!(times, [(10, 40, true), (20, 30, true), (50, 100, false)]);
    }

    #[test]
    fn a_thread_that_has_one_datagram_in_its_hands_answers_that_one() {
        let socket = Socket { udp: true, ..served_socket(5060) };
        let of = |tid, op, since, at| SocketCall { tid, peer: 9, ..call(op, since, at) };
        // Two threads; each call of their only client is acknowledged when it is answered, and waits until a thread has time.
        let mut calls = Vec::new();
        for n in 0..6_u64 {
            for tid in [7, 8] {
                let at = n * 1_000 + u64::from(tid) * 10;
                calls.extend([of(tid, Op::Receive, at.saturating_sub(500), at), of(tid, Op::Send, at + 600, at + 601)]);
                calls.push(SocketCall { bytes: 4, ..of(tid, Op::Receive, at + 650, at + 700) });
            }
        }
        calls.sort_by_key(|call| call.at_ns);
        let times = |calls: &[SocketCall]| -> Vec<(u64, bool)> {
            let requests = served(1, &socket, calls, &[(0, 10_000)]);
            requests.iter().map(|r| (r.end_ns - r.read_ns, r.reply_tid.is_some())).collect()
        };
        assert_eq!(times(&calls), vec![(600, true); 12]);
        // A loop that reads several before it answers them has more than one in its hands: they come in order.
        let several: Vec<SocketCall> = (0..8_u64)
            .flat_map(|n| {
                let at = n * 1_000;
                [of(7, Op::Receive, at, at), of(7, Op::Receive, at + 1, at + 1), of(7, Op::Send, at + 90, at + 90)]
                    .into_iter()
                    .chain([of(7, Op::Send, at + 95, at + 95)])
            })
            .collect();
        assert_eq!(times(&several), [(90, true), (94, true)].repeat(8));
    }

    #[test]
    fn a_handshake_that_waits_to_be_accepted_is_waited_for() {
        use parshall_evidence::timeline::{Frame, Protocol};
        const MS: u64 = 1_000_000;
        let pg = |op, since, at, kind, flags, length| {
            let frame = Some(Frame { protocol: Protocol::Postgres, kind, flags, length, stream: 0 });
            SocketCall { frame, bytes: length, ..call(op, since * MS, at * MS) }
        };
        // Asks for encryption, begins a session, and asks.
        let session = |accepted: u64| {
            let no = SocketCall { bytes: 1, ..call(Op::Send, (accepted + 1) * MS, (accepted + 1) * MS) };
            [
                call(Op::Accept, 10 * MS, accepted * MS),
                pg(Op::Receive, 10, accepted, 0, 1, 8),
                no,
                pg(Op::Receive, accepted + 2, accepted + 2, 0, 0, 37),
                pg(Op::Send, accepted + 3, accepted + 3, b'R', 0, 9),
            ]
        };
        let times = |calls: &[SocketCall]| -> Vec<_> {
            let requests = served(1, &served_socket(5432), calls, &[(0, 1_000 * MS)]);
            requests.iter().map(|r| (r.arrived_ns / MS, r.end_ns / MS, r.accepted.is_some())).collect()
        };
        assert_eq!(times(&session(200)), [(10, 201, true), (202, 203, false)]);
        // One that is accepted at once asks for nothing before its session, and that of TLS asks for nothing at all.
        assert_eq!(times(&session(10)), [(12, 13, false)]);
        let tls = |op, at, kind| SocketCall {
            frame: Some(Frame { protocol: Protocol::Tls, kind, flags: 0, length: 90, stream: 0 }),
            ..call(op, 10 * MS, at * MS)
        };
        let secured = [
            call(Op::Accept, 10 * MS, 200 * MS),
            tls(Op::Receive, 200, 22),
            SocketCall { frame: None, ..tls(Op::Receive, 200, 22) },
            tls(Op::Send, 201, 22),
            tls(Op::Receive, 203, 23),
            tls(Op::Send, 205, 23),
        ];
        assert_eq!(times(&secured).len(), 1);
    }

    #[test]
    fn a_client_waits_from_what_it_sent_to_what_arrives() {
        let calls =
            [call(Op::Send, 10, 12), call(Op::Send, 13, 14), call(Op::Receive, 60, 70), call(Op::Receive, 71, 72)];
        assert!(!client_socket(7000).serves);
        let requests = sent(1, &calls, &[(0, 100)]);
        assert_eq!(requests.iter().map(|r| (r.arrived_ns, r.end_ns)).collect::<Vec<_>>(), [(10, 60)]);
    }

    #[test]
    fn questions_of_dns_have_their_own_number() {
        use parshall_evidence::timeline::{Frame, Protocol};
        let socket = Socket { udp: true, ..served_socket(53) };
        let dns = |op, number, at| {
            let kind = u8::from(op == Op::Send);
            let frame = Some(Frame { protocol: Protocol::Dns, kind, flags: 0, length: 0, stream: number });
            SocketCall { frame, ..call(op, at, at) }
        };
        let calls = [dns(Op::Receive, 1, 10), dns(Op::Receive, 2, 20), dns(Op::Send, 2, 30), dns(Op::Send, 1, 90)];
        let times = |calls: &[SocketCall]| -> Vec<_> {
            served(1, &socket, calls, &[(0, 100)]).iter().map(|r| (r.arrived_ns, r.end_ns)).collect()
        };
        assert_eq!(times(&calls), [(10, 90), (20, 30)]);
        // With one that is no message of DNS they come in order.
        let others = [calls.as_slice(), &[call(Op::Receive, 95, 95)]].concat();
        assert_eq!(times(&others), [(10, 30), (20, 90), (95, 100)]);
    }

    #[test]
    fn what_a_client_sends_to_a_server_that_pushes_is_a_request_only_if_it_is_answered_soon() {
        const MS: u64 = 1_000_000;
        let socket = served_socket(7000);
        let mut calls = Vec::new();
        for n in 0..30_u64 {
            let at = n * 100 * MS;
            calls.push(call(Op::Send, at, at));
            // Acknowledges at times, and asks for something once in a while.
            let asked = at + (5 + n * 37 % 80) * MS;
            if n % 3 == 1 {
                calls.push(call(Op::Receive, asked, asked));
            }
            if n % 15 == 1 {
                calls.push(call(Op::Send, asked + 2 * MS, asked + 2 * MS));
            }
        }
        let requests = served(1, &socket, &calls, &[(0, 3_010 * MS)]);
        assert_eq!(requests.iter().map(Request::ns).collect::<Vec<_>>(), [2 * MS, 2 * MS]);
        // A pong after the last of two pushes.
        let pong = SocketCall { bytes: 6, ..call(Op::Receive, 151 * MS, 151 * MS) };
        let pushes = [call(Op::Send, 50 * MS, 50 * MS), call(Op::Send, 150 * MS, 150 * MS), pong];
        assert_eq!(served(1, &socket, &pushes, &[(0, 1_000 * MS)]), []);
    }
}
