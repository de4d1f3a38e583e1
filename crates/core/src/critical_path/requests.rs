//! Requests, cut out of the calls on a socket: what was received is a request until something is sent, if nothing more is known.
//!
//! Where the calls show the messages of a protocol (`messages`), what is neither a request nor a reply is left out, and replies belong to
//! their requests by number or in order (`pairing`). Where they show that several requests are under way and not which reply is whose
//! (`overlap`), each is paired with the oldest: the sum of their times is that of the true ones, and no single time is known.
//!
//! A slice shows only a part of the time. A request that it cut at its end counts as outstanding until then, and one that had no
//! reply when its connection closed until that. Of one that it cut at its begin only the rest is known ([`Request::cut`]).
use std::collections::HashMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Protocol, Socket, SocketCall};

use super::messages::{self, Part};
use super::overlap;
use super::pairing;

/// One request of a served socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The socket on which it arrived.
    pub socket: FlowId,
    /// When its first byte arrived.
    pub arrived_ns: u64,
    /// When the connection was accepted and by which thread, if it waited for that.
    pub accepted: Option<(u64, u32)>,
    /// When a thread had read the first of it.
    pub read_ns: u64,
    /// That thread.
    pub read_tid: u32,
    /// When the reply began, or when the slice ended before it.
    pub end_ns: u64,
    /// The thread that replied; None when no reply was seen.
    pub reply_tid: Option<u32>,
    /// How long it took, and for what, is not known: it may have begun before the slice, or it is not known which reply is its own.
    pub cut: bool,
    /// Several requests are under way on its connection, and it is not known which reply is whose.
    pub overlaps: bool,
}

/// The part of a slice in whose beginning the first data on a socket may be the rest of a request: slices are at least three times as
/// long as requests take (`observe::slice`).
const CUT_WITHIN: u64 = 3;

/// One of several slices.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    /// When it began.
    pub begin: u64,
    /// When it ended, or when the connection closed.
    pub end: u64,
    /// Data that arrives up to here may continue what began before the slice. The window's only slice sees nearly all from their begin.
    pub cut_until: u64,
}

/// Whose requests are looked for on a connection: those that arrive, or those that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// From the arrival of the request to the begin of the reply.
    Served,
    /// From the first byte sent to the first byte of the reply.
    Sent,
}

impl View {
    /// The operation by which requests move.
    fn asks(self) -> Op {
        match self {
            View::Served => Op::Receive,
            View::Sent => Op::Send,
        }
    }

    /// The request that a call begins.
    pub fn begun(self, id: FlowId, call: &SocketCall, begin: u64) -> Request {
        let request = begun(id, call, begin);
        match self {
            View::Served => request,
            View::Sent => {
                let at = call.since_ns.max(begin);
                Request { arrived_ns: at, read_ns: at, ..request }
            }
        }
    }

    /// The request with the reply that a call begins.
    pub fn ended(self, request: Request, call: &SocketCall) -> Request {
        match self {
            View::Served => replied(request, call),
            View::Sent => {
                Request { end_ns: call.since_ns.max(request.arrived_ns), reply_tid: Some(call.tid), ..request }
            }
        }
    }
}

/// The calls on a connection in a slice, and what is known of them.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The socket.
    pub id: FlowId,
    /// Whose requests are looked for.
    pub view: View,
    /// The slice.
    pub slice: Slice,
    /// The calls in it.
    pub calls: &'a [SocketCall],
    /// What each of them is.
    pub parts: &'a [Part],
    /// Whether a further message may follow within each of them.
    pub surplus: &'a [bool],
    /// The protocol, where it is known.
    pub protocol: Option<Protocol>,
}

impl Seen<'_> {
    /// Whether a call moved a request, or a part of one.
    pub fn asks(&self, call: &SocketCall) -> bool {
        call.op == self.view.asks()
    }

    /// The requests that the parts of the protocol or the times of the calls show; those of a serial protocol, if they show nothing.
    fn requests(&self) -> Vec<Request> {
        match self.protocol {
            Some(Protocol::Http2 | Protocol::Kafka) => return pairing::numbered(self),
            Some(Protocol::Http1) => return self.serial(),
            Some(Protocol::Postgres | Protocol::Mysql | Protocol::Redis) => {
                if let Some(requests) = pairing::in_order(self) {
                    return requests;
                }
            }
            _ => {}
        }
        let apart = overlap::apart(&self.moves(), self.parts);
        if let Some(pushes) = overlap::pushes(&apart) {
            let replied = |r: &Request| r.reply_tid.is_some() && pushes.is_reply(&apart, r.arrived_ns, r.end_ns);
            return self.serial().into_iter().filter(replied).collect();
        }
        if overlap::overlaps(&apart) {
            return pairing::overlapping(self, &apart);
        }
        let mut requests = self.serial();
        if let Some(open) = requests.pop_if(|last| last.reply_tid.is_none()) {
            let acknowledges =
                apart.iter().rev().find(|one| one.asks).is_some_and(|one| overlap::is_acknowledgement(&apart, one));
            requests.extend((!acknowledges).then_some(open));
        }
        requests
    }

    fn moves(&self) -> Vec<overlap::Move> {
        let of = |(n, call): (usize, &SocketCall)| overlap::Move {
            asks: self.asks(call),
            since_ns: call.since_ns.max(self.slice.begin),
            at_ns: call.at_ns,
            bytes: call.bytes,
            call: n,
        };
        self.calls.iter().enumerate().filter(|(_, call)| call.op != Op::Accept).map(of).collect()
    }

    /// The requests of a protocol that has one at a time.
    fn serial(&self) -> Vec<Request> {
        match self.view {
            View::Served => stream(self),
            View::Sent => asked(self),
        }
    }
}

impl Slice {
    /// The `n`-th call on a socket in this slice, which moved what came at `at`, may continue what began before.
    pub fn cuts(self, n: usize, at: u64) -> bool {
        n == 0 && at < self.cut_until
    }
}

fn each_slice(slices: &[(u64, u64)]) -> impl Iterator<Item = Slice> {
    slices.iter().map(|&(begin, end)| {
        let cut_until = if slices.len() > 1 { begin + end.saturating_sub(begin) / CUT_WITHIN } else { begin };
        Slice { begin, end, cut_until }
    })
}

impl Request {
    /// From its arrival to its reply.
    pub fn ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.arrived_ns)
    }
}

/// The requests that arrived at a served socket, in order of their arrival. `slices` are in order and disjoint.
pub fn served(id: FlowId, socket: &Socket, calls: &[SocketCall], slices: &[(u64, u64)]) -> Vec<Request> {
    if socket.udp {
        let mut requests = Vec::new();
        for slice in each_slice(slices) {
            datagrams(id, &calls[in_slice(calls, slice)], slice, &mut requests);
        }
        return requests;
    }
    found(id, View::Served, calls, slices, socket.closed_ns)
}

/// The requests that a socket of a client sent: each goes from the first byte sent to the first byte of the reply. `read_tid`
/// is the thread that sent it, and `reply_tid` the one that received the reply.
pub fn sent(id: FlowId, calls: &[SocketCall], slices: &[(u64, u64)]) -> Vec<Request> {
    found(id, View::Sent, calls, slices, None)
}

fn found(id: FlowId, view: View, calls: &[SocketCall], slices: &[(u64, u64)], closed_ns: Option<u64>) -> Vec<Request> {
    if !calls.iter().any(|call| call.op == view.asks()) {
        return Vec::new();
    }
    let messages = messages::messages(calls, view.asks());
    let mut requests = Vec::new();
    for slice in each_slice(slices) {
        let within = in_slice(calls, slice);
        let end = closed_ns.map_or(slice.end, |at| at.clamp(slice.begin, slice.end));
        let seen = Seen {
            id,
            view,
            slice: Slice { end, ..slice },
            calls: &calls[within.clone()],
            parts: &messages.parts[within.clone()],
            surplus: &messages.surplus[within],
            protocol: messages.protocol,
        };
        requests.extend(seen.requests());
    }
    requests
}

fn in_slice(calls: &[SocketCall], slice: Slice) -> std::ops::Range<usize> {
    let from = calls.partition_point(|c| c.at_ns < slice.begin);
    let to = calls.partition_point(|c| c.at_ns <= slice.end);
    from..to.max(from)
}

fn stream(seen: &Seen<'_>) -> Vec<Request> {
    let (id, Slice { begin, end, cut_until }) = (seen.id, seen.slice);
    let mut requests = Vec::new();
    let mut open: Option<Request> = None;
    let mut accepted: Option<(u64, u64, u32)> = None;
    for (n, call) in seen.calls.iter().enumerate() {
        match call.op {
            Op::Accept => accepted = Some((call.since_ns, call.at_ns, call.tid)),
            _ if seen.parts[n] == Part::Control => {}
            Op::Receive if open.is_none() => {
                let mut request = begun(id, call, begin);
                request.cut = seen.slice.cuts(n, request.arrived_ns) || call.since_ns < begin && begin < cut_until;
                if let Some((established_ns, at_ns, tid)) = accepted.take() {
                    // What arrives with the end of the handshake waits for accept() too.
                    request.arrived_ns = request.arrived_ns.max(established_ns.max(begin));
                    request.accepted = (at_ns > request.arrived_ns).then_some((at_ns, tid));
                }
                open = Some(request);
            }
            Op::Receive => {}
            Op::Send => {
                let cut = seen.slice.cuts(n, begin).then(|| under_way(id, call, begin));
                requests.extend(open.take().or(cut).map(|request| replied(request, call)));
            }
        }
    }
    requests.extend(open.map(|request| Request { end_ns: end.max(request.read_ns), ..request }));
    requests
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

/// A request that was under way when the slice began, by the call that ended it.
pub fn under_way(id: FlowId, call: &SocketCall, begin: u64) -> Request {
    Request { arrived_ns: begin, read_ns: begin, end_ns: begin, cut: true, ..begun(id, call, begin) }
}

/// Each datagram received is a request. The peer's address pairs it with its reply; where it is unknown, replies come in order. If all
/// are of DNS, the number of the question does.
fn datagrams(id: FlowId, calls: &[SocketCall], slice: Slice, requests: &mut Vec<Request>) {
    let Slice { begin, end, .. } = slice;
    let first = requests.len();
    let mut open: HashMap<(u64, u32), std::collections::VecDeque<usize>> = HashMap::new();
    let dns = |call: &SocketCall| call.frame.filter(|frame| frame.protocol == Protocol::Dns);
    let numbered = calls.iter().all(|call| dns(call).is_some_and(|frame| (frame.kind == 1) == (call.op == Op::Send)));
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
    requests[first..].sort_by_key(|r| r.arrived_ns);
}

fn begun(id: FlowId, call: &SocketCall, begin: u64) -> Request {
    Request {
        socket: id,
        arrived_ns: call.since_ns.clamp(begin, call.at_ns.max(begin)),
        accepted: None,
        read_ns: call.at_ns,
        read_tid: call.tid,
        end_ns: call.at_ns,
        reply_tid: None,
        cut: false,
        overlaps: false,
    }
}

fn replied(request: Request, call: &SocketCall) -> Request {
    Request { end_ns: call.since_ns.max(request.read_ns), reply_tid: Some(call.tid), ..request }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::timeline::{client_socket, served_socket};

    fn call(op: Op, since_ns: u64, at_ns: u64) -> SocketCall {
        SocketCall { socket: 1, tid: 7, op, since_ns, at_ns, bytes: 10, peer: 0, frame: None }
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
