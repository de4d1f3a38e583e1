//! The calls on a connection in a slice, as those who look for requests see them, and what a request is.
use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Protocol, SocketCall};

use super::messages::Part;
use super::overlap;

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
    /// It asks for what is yet to come: see `polls`.
    pub polls: bool,
    /// It is a job: its server said at once that it has it, and its client waits for the result, which came later.
    pub job: bool,
    /// Its reply came in pieces, and it ends with the last one.
    pub in_pieces: bool,
}

/// The part of a slice in whose beginning the first data on a socket may be the rest of a request: slices are at least three times as
/// long as requests take (`observe::slice`).
pub const CUT_WITHIN: u64 = 3;

/// Redis: bytes of a reply that says that nothing came, `*-1` with the end of the line. A key that is not there is another one.
const NOTHING_BYTES: u32 = 5;
/// A request that is answered sooner did not wait.
const WAITED_NS: u64 = 20_000_000;

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

/// The requests that are looked for on a connection: those that arrive, or those that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// From the arrival of the request to the begin of the reply.
    Served,
    /// From the first byte sent to the first byte of the reply.
    Sent,
}

impl View {
    /// The operation by which requests move.
    pub fn asks(self) -> Op {
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
                let end_ns = call.since_ns.max(request.arrived_ns);
                let polls = request.polls || found_nothing(call, end_ns.saturating_sub(request.arrived_ns));
                Request { end_ns, reply_tid: Some(call.tid), polls, ..request }
            }
        }
    }
}

/// The calls on a connection in a slice, and what is known of them.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The socket.
    pub id: FlowId,
    /// The requests that are looked for.
    pub view: View,
    /// The slice.
    pub slice: Slice,
    /// The connection closed in it.
    pub closes: bool,
    /// The calls in it.
    pub calls: &'a [SocketCall],
    /// The part of a message that each of them moves.
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

    /// The calls that moved something.
    pub fn moves(&self) -> Vec<overlap::Move> {
        let of = |(n, call): (usize, &SocketCall)| overlap::Move {
            asks: self.asks(call),
            since_ns: call.since_ns.max(self.slice.begin),
            at_ns: call.at_ns,
            bytes: call.bytes,
            call: n,
        };
        self.calls.iter().enumerate().filter(|(_, call)| call.op != Op::Accept).map(of).collect()
    }
}

impl Slice {
    /// The `n`-th call on a socket in this slice, which moved what came at `at`, may continue what began before.
    pub fn cuts(self, n: usize, at: u64) -> bool {
        n == 0 && at < self.cut_until
    }
}

impl Request {
    /// From its arrival to its reply.
    pub fn ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.arrived_ns)
    }
}

/// A request that was under way when the slice began, by the call that ended it.
pub fn under_way(id: FlowId, call: &SocketCall, begin: u64) -> Request {
    Request { arrived_ns: begin, read_ns: begin, end_ns: begin, cut: true, ..begun(id, call, begin) }
}

pub fn begun(id: FlowId, call: &SocketCall, begin: u64) -> Request {
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
        polls: false,
        job: false,
        in_pieces: false,
    }
}

pub fn replied(request: Request, call: &SocketCall) -> Request {
    let end_ns = call.since_ns.max(request.read_ns);
    let polls = request.polls || found_nothing(call, end_ns.saturating_sub(request.arrived_ns));
    Request { end_ns, reply_tid: Some(call.tid), polls, ..request }
}

/// Whether the reply to a request of this length says that nothing came.
fn found_nothing(reply: &SocketCall, waited_ns: u64) -> bool {
    let nothing = reply.frame.is_some_and(|f| f.protocol == Protocol::Redis && f.kind == b'*');
    nothing && reply.bytes == NOTHING_BYTES && waited_ns >= WAITED_NS
}
