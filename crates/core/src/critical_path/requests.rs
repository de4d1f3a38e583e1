//! Requests, cut out of the calls on a socket: what was received is a request until something is sent.
//!
//! A slice shows only a part of the time. A request that it cut at its end counts as outstanding until then, and one that had no
//! reply when its connection closed until that. Of one that it cut at its begin only the rest is known ([`Request::cut`]).
use std::collections::HashMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Socket, SocketCall};

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
    /// It may have begun before the slice: how long it took, and for what, is not known.
    pub cut: bool,
}

/// The part of a slice in whose beginning the first data on a socket may be the rest of a request: slices are at least three times as
/// long as requests take (`observe::slice`).
const CUT_WITHIN: u64 = 3;

/// One of several slices.
#[derive(Debug, Clone, Copy)]
struct Slice {
    begin: u64,
    end: u64,
    /// Data that arrives up to here may continue what began before the slice. The window's only slice sees nearly all from their begin.
    cut_until: u64,
}

impl Slice {
    /// The `n`-th call on a socket in this slice, which moved what came at `at`, may continue what began before.
    fn cuts(self, n: usize, at: u64) -> bool {
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
    let mut requests = Vec::new();
    let asked = calls.iter().any(|call| call.op == Op::Receive);
    for slice in each_slice(slices) {
        let within = in_slice(calls, slice);
        let until = socket.closed_ns.map_or(slice.end, |at| at.clamp(slice.begin, slice.end));
        if socket.udp {
            datagrams(id, within, slice, &mut requests);
        } else if asked {
            stream(id, within, Slice { end: until, ..slice }, &mut requests);
        }
    }
    requests
}

fn in_slice(calls: &[SocketCall], slice: Slice) -> &[SocketCall] {
    let from = calls.partition_point(|c| c.at_ns < slice.begin);
    let to = calls.partition_point(|c| c.at_ns <= slice.end);
    calls.get(from..to).unwrap_or(&[])
}

fn stream(id: FlowId, calls: &[SocketCall], slice: Slice, requests: &mut Vec<Request>) {
    let Slice { begin, end, cut_until } = slice;
    let mut open: Option<Request> = None;
    let mut accepted: Option<(u64, u64, u32)> = None;
    for (n, call) in calls.iter().enumerate() {
        match call.op {
            Op::Accept => accepted = Some((call.since_ns, call.at_ns, call.tid)),
            Op::Receive if open.is_none() => {
                let mut request = begun(id, call, begin);
                request.cut = slice.cuts(n, request.arrived_ns) || call.since_ns < begin && begin < cut_until;
                if let Some((established_ns, at_ns, tid)) = accepted.take() {
                    // What arrives with the end of the handshake waits for accept() too.
                    request.arrived_ns = request.arrived_ns.max(established_ns.max(begin));
                    request.accepted = (at_ns > request.arrived_ns).then_some((at_ns, tid));
                }
                open = Some(request);
            }
            Op::Receive => {}
            Op::Send => {
                let cut = slice.cuts(n, begin).then(|| under_way(id, call, begin));
                requests.extend(open.take().or(cut).map(|request| replied(request, call)));
            }
        }
    }
    requests.extend(open.map(|request| Request { end_ns: end.max(request.read_ns), ..request }));
}

/// A request that was under way when the slice began, by the call that ended it.
fn under_way(id: FlowId, call: &SocketCall, begin: u64) -> Request {
    Request { arrived_ns: begin, read_ns: begin, end_ns: begin, cut: true, ..begun(id, call, begin) }
}

/// Each datagram received is a request. The peer's address pairs it with its reply; where it is unknown, replies come in order.
fn datagrams(id: FlowId, calls: &[SocketCall], slice: Slice, requests: &mut Vec<Request>) {
    let Slice { begin, end, .. } = slice;
    let first = requests.len();
    let mut open: HashMap<u64, std::collections::VecDeque<usize>> = HashMap::new();
    for call in calls {
        match call.op {
            Op::Receive => {
                open.entry(call.peer).or_default().push_back(requests.len());
                requests.push(Request { end_ns: end, ..begun(id, call, begin) });
            }
            Op::Send => {
                if let Some(index) = open.get_mut(&call.peer).and_then(std::collections::VecDeque::pop_front) {
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
    }
}

fn replied(request: Request, call: &SocketCall) -> Request {
    Request { end_ns: call.since_ns.max(request.read_ns), reply_tid: Some(call.tid), ..request }
}

/// The requests that a socket of a client sent: each goes from the first byte sent to the first byte of the reply. `read_tid`
/// is the thread that sent it, and `reply_tid` the one that received the reply.
pub fn sent(id: FlowId, calls: &[SocketCall], slices: &[(u64, u64)]) -> Vec<Request> {
    let mut requests = Vec::new();
    let asks = calls.iter().any(|call| call.op == Op::Send);
    for slice in each_slice(slices) {
        let Slice { begin, end, .. } = slice;
        let mut open: Option<Request> = None;
        for (n, call) in in_slice(calls, slice).iter().enumerate() {
            match call.op {
                Op::Send if open.is_none() => {
                    let at = call.since_ns.max(begin);
                    let cut = slice.cuts(n, at);
                    open = Some(Request { arrived_ns: at, read_ns: at, cut, ..begun(id, call, begin) });
                }
                Op::Receive => {
                    let cut = (asks && slice.cuts(n, begin)).then(|| under_way(id, call, begin));
                    requests.extend(open.take().or(cut).map(|request| {
                        let end_ns = call.since_ns.max(request.arrived_ns);
                        Request { end_ns, reply_tid: Some(call.tid), ..request }
                    }));
                }
                _ => {}
            }
        }
        requests.extend(open.map(|request| Request { end_ns: end.max(request.arrived_ns), ..request }));
    }
    requests
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
}
