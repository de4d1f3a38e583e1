//! Replies in pieces, each of which another server is asked for: a page whose parts are fetched one after the other. The head leaves at
//! once, and the client waits for the last piece.
//!
//! Streams look alike: news, pictures and sounds, lines of a log. A server sends them when they are there, asks nobody for each of them,
//! and their client stays. Here each piece follows an answer that was asked for after the piece before, which took most of the time
//! between them, and the client goes on at once when it has the last one. Only a protocol that answers once for each request (HTTP/1) is
//! looked at: others may send news at any time.
use std::collections::{BTreeMap, HashMap};

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Protocol, SocketCall, Timeline};

use super::connection::{Request, replied};
use super::requests;

/// A piece that comes sooner after the one before belongs to it.
const APART_NS: u64 = 1_000_000;
/// Fewer pieces behind the first one are a head and what it announces.
const LATE_MIN: usize = 2;
/// The share of the time between two pieces that a question takes.
const ASKED: f64 = 0.6;
/// At least this many of five pieces follow a question, and at least this many of five replies have such pieces.
const MOST_OF_5: usize = 4;
/// Fewer replies may look so by chance.
const REPLIES_MIN: usize = 5;
/// The time between two pieces divided by this: a client that waits for the last one goes on within that time.
const AT_ONCE: u64 = 4;

/// A reply in pieces.
struct Pieces {
    socket: FlowId,
    /// The place of its request among those of the connection.
    at: usize,
    /// The process that serves it.
    pid: u32,
    /// From the end of each piece to the begin of the next one.
    gaps: Vec<(u64, u64)>,
    /// The last piece.
    last: SocketCall,
    /// When its client went on.
    next_ns: Option<u64>,
}

/// Lets requests whose replies come in pieces that others are asked for end with the last piece. `found` are the requests by served socket.
pub fn settle(found: &mut BTreeMap<FlowId, Vec<Request>>, timeline: &Timeline) {
    let mut ports: BTreeMap<u16, Vec<Pieces>> = BTreeMap::new();
    for (id, all) in found.iter() {
        let Some(socket) = timeline.sockets.get(id).filter(|socket| !socket.udp) else { continue };
        let pieces = (0..all.len()).filter_map(|at| in_pieces(timeline, all, at));
        ports.entry(socket.local.port()).or_default().extend(pieces);
    }
    ports.retain(|_, all| all.len() >= REPLIES_MIN);
    if ports.is_empty() {
        return;
    }
    let questions = questions(timeline);
    for all in ports.into_values() {
        let of_pid = |pid: u32| questions.get(&pid).map_or(&[][..], Vec::as_slice);
        let seen = all.len();
        let whole: Vec<Pieces> =
            all.into_iter().filter(|one| one.is_awaited() && one.are_asked(of_pid(one.pid))).collect();
        if whole.len() < REPLIES_MIN || whole.len() * 5 < seen * MOST_OF_5 {
            continue;
        }
        whole.iter().for_each(|one| end_with(found, (one.socket, one.at), &one.last));
    }
}

/// Lets the request at a place of its connection end with this send.
pub fn end_with(found: &mut BTreeMap<FlowId, Vec<Request>>, (socket, at): (FlowId, usize), last: &SocketCall) {
    let request = found.get_mut(&socket).and_then(|all| all.get_mut(at));
    request.into_iter().for_each(|request| {
        *request = Request { in_pieces: true, ..replied(*request, last) };
    });
}

/// Whether a client that went on at `next_ns` waited for the last send, before which nothing was sent during `gap`.
pub fn is_awaited(next_ns: Option<u64>, last: &SocketCall, gap: (u64, u64)) -> bool {
    next_ns.is_some_and(|next| next.saturating_sub(last.at_ns) <= (gap.1 - gap.0) / AT_ONCE)
}

/// What was sent for a request from the begin of its reply on, up to the next request.
pub struct Reply<'a> {
    /// What was received with the begin of the request.
    pub read: &'a SocketCall,
    /// The pieces, at least one.
    pub sends: &'a [SocketCall],
    /// When the client went on: it asked again, or an end closed the connection.
    pub next_ns: Option<u64>,
    /// It asked again.
    pub asks_again: bool,
}

impl<'a> Reply<'a> {
    /// The reply to a request, if all of it was sent in a slice.
    pub fn of(timeline: &'a Timeline, request: &Request) -> Option<Reply<'a>> {
        let calls = timeline.calls.get(&request.socket)?;
        let socket = timeline.sockets.get(&request.socket)?;
        request.reply_tid.filter(|_| !request.cut && !request.overlaps && !request.polls)?;
        let read = calls.get(calls.partition_point(|call| call.at_ns < request.read_ns)..)?;
        let read = read.iter().take_while(|call| call.at_ns == request.read_ns).find(|call| call.op == Op::Receive)?;
        let later = calls.partition_point(|call| call.at_ns < request.end_ns);
        let first = later + calls[later..].iter().position(|call| call.op == Op::Send)?;
        let slice = timeline.slices.get(timeline.slices.partition_point(|slice| slice.1 < request.end_ns))?;
        let sends = calls[first..].iter().take_while(|call| call.op == Op::Send).count();
        let sends = &calls[first..first + sends];
        // From a change of the protocol on (101), either end may say what it likes.
        if sends[0].frame.is_some_and(|frame| frame.protocol == Protocol::Http1 && frame.kind == 4) {
            return None;
        }
        sends.last().filter(|last| last.at_ns <= slice.1)?;
        let asks = calls.get(first + sends.len()).map(|call| call.since_ns);
        let other = socket.other_end.and_then(|id| timeline.sockets.get(&id)).and_then(|other| other.closed_ns);
        let next_ns = [asks, socket.closed_ns, other].into_iter().flatten().min().filter(|at| *at <= slice.1);
        Some(Reply { read, sends, next_ns, asks_again: next_ns.is_some() && next_ns == asks })
    }

    /// Whether its request is one of HTTP/1.
    pub fn is_http1(&self) -> bool {
        self.read.frame.is_some_and(|frame| frame.protocol == Protocol::Http1 && frame.kind == 1)
    }
}

/// The pieces of a reply, if there are several with some time between them, and all were seen.
fn in_pieces(timeline: &Timeline, all: &[Request], at: usize) -> Option<Pieces> {
    let socket = all[at].socket;
    let Reply { sends, next_ns, .. } = Reply::of(timeline, &all[at]).filter(Reply::is_http1)?;
    let gaps = sends.windows(2).map(|pair| (pair[0].at_ns, pair[1].since_ns));
    let gaps: Vec<(u64, u64)> = gaps.filter(|gap| gap.1.saturating_sub(gap.0) >= APART_NS).collect();
    let (pid, last) = (timeline.sockets.get(&socket)?.pid, *sends.last()?);
    (gaps.len() >= LATE_MIN).then_some(Pieces { socket, at, pid, gaps, last, next_ns })
}

/// By process, from when to when it waited for an answer, in order.
fn questions(timeline: &Timeline) -> HashMap<u32, Vec<(u64, u64)>> {
    let mut found: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    for (id, calls) in &timeline.calls {
        let Some(socket) = timeline.sockets.get(id).filter(|socket| !socket.serves) else { continue };
        let sent = requests::sent(*id, calls, &timeline.slices);
        let answered = sent.iter().filter(|request| request.reply_tid.is_some() && !request.polls);
        found.entry(socket.pid).or_default().extend(answered.map(|request| (request.arrived_ns, request.end_ns)));
    }
    found.values_mut().for_each(|spans| spans.sort_unstable());
    found
}

impl Pieces {
    /// Whether its client waited for the last piece: it asks again at once, or closes the connection.
    fn is_awaited(&self) -> bool {
        is_awaited(self.next_ns, &self.last, self.gaps.last().copied().unwrap_or_default())
    }

    /// Whether the time before nearly every later piece is that of a question that was asked after the piece before.
    fn are_asked(&self, questions: &[(u64, u64)]) -> bool {
        let is_asked = |gap: &&(u64, u64)| {
            let later = &questions[questions.partition_point(|asked| asked.0 < gap.0)..];
            let within = later.iter().take_while(|asked| asked.0 < gap.1).filter(|asked| asked.1 <= gap.1);
            within.map(|asked| asked.1 - asked.0).max().unwrap_or(0) as f64 >= ASKED * (gap.1 - gap.0) as f64
        };
        self.gaps.iter().filter(is_asked).count() * 5 >= self.gaps.len() * MOST_OF_5
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{Frame, OffCpu, Socket, Waker};
    use parshall_evidence::{HopKind, PathPart, Service};

    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, off, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const EPOLL: i32 = 232;
    const SLEEP: i32 = 35;

    /// What is different from a page whose parts are fetched.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum But {
        Nothing,
        /// A timer lets each piece wait.
        Timed,
        /// It asks once, and the other server sends piece by piece.
        Relayed,
        /// The client stays when the last piece has come.
        Stays,
        /// Its protocol is not known.
        Unknown,
        /// The first reply changes the protocol.
        Upgraded,
        /// A head, and what it announces.
        OnePiece,
    }

    /// 101 serves connections with one request each. The head leaves at once, and three pieces 16 ms apart, before each of which 9000 is
    /// asked and takes 15 ms.
    fn page(but: But) -> Service {
        let mut script = Script::new().socket(2, client_socket(9000), 101);
        script.timeline.slices = vec![(0, 1_000 * MS)];
        for n in 0..8_u64 {
            let (id, at) = (10 + n, (10 + 100 * n) * MS);
            let pieces = if but == But::OnePiece { 1 } else { 3 };
            let done = at + 300 * US + pieces * 16 * MS;
            let closed_ns = Some(done + if but == But::Stays { 12 * MS } else { MS });
            let socket = Socket { opened: true, opened_ns: Some(at), closed_ns, ..served_socket(7000) };
            script = script.socket(id, socket, 101).accepts(101, id, at, at).receives(101, id, at, at);
            script = script.sends(101, id, at + 300 * US);
            for piece in 0..pieces {
                let from = at + 300 * US + piece * 16 * MS;
                let asks = but != But::Timed && (but != But::Relayed || piece == 0);
                script = if asks { script.sends(101, 2, from + 200 * US) } else { script };
                let (call, waker) = if but == But::Timed { (SLEEP, Waker::HardIrq) } else { (EPOLL, Waker::SoftIrq) };
                script = script.sleeps(101, from + 300 * US, from + 15_500 * US, call, waker);
                if but != But::Timed {
                    script = script.receives(101, 2, from + 15_490 * US, from + 15_510 * US);
                }
                script = script.sends(101, id, from + 16 * MS);
            }
            let head = &mut script.timeline.calls.get_mut(&id).expect("calls")[1];
            let frame = Frame { protocol: Protocol::Http1, kind: 1, flags: 0, length: 0, stream: 0 };
            head.frame = (but != But::Unknown).then_some(frame);
            let reply = &mut script.timeline.calls.get_mut(&id).expect("calls")[2];
            reply.frame = (but == But::Upgraded).then_some(Frame { kind: 4, ..frame });
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    #[test]
    fn a_reply_whose_pieces_are_asked_for_lasts_until_the_last_one() {
        let service = page(But::Nothing);
        assert_eq!(service.p50_ns, Some(300 * US + 48 * MS));
        let reply = service.path.iter().filter(|part| part.hops.iter().any(|hop| hop.kind == HopKind::Reply));
        let ns: u64 = reply.map(|part| part.ns).sum();
        assert!(ns >= 8 * 44 * MS, "{:#?}", service.path);
    }

    #[test]
    fn streams_and_news_are_replies_from_their_first_piece_on() {
        for but in [But::Timed, But::Relayed, But::Stays, But::Unknown, But::Upgraded, But::OnePiece] {
            assert_eq!(page(but).p50_ns, Some(300 * US), "{but:?}");
        }
    }

    #[test]
    fn who_is_woken_for_an_answer_that_another_thread_watches_waits_for_that() {
        // 101 waits for 102, which asks 9000 and sleeps in futex until 103, which watches the connection, wakes it.
        let of = |came: u64| {
            let sleep = |tid, from, to, by| OffCpu { waker: Waker::Thread(by), ..off(tid, from, to, to) };
            let mut script = Script::new()
                .socket(1, served_socket(7000), 101)
                .socket(2, client_socket(9000), 102)
                .receives(101, 1, MS, MS)
                .off(sleep(101, 2 * MS, 32 * MS, 102))
                .sends(102, 2, 2 * MS + 500 * US)
                .off(sleep(102, 3 * MS, 30 * MS, 103))
                .sleeps(103, MS, 30 * MS - 50 * US, EPOLL, Waker::SoftIrq)
                .receives(102, 2, came, 31 * MS)
                .sends(101, 1, 33 * MS);
            script.timeline.slices = vec![(0, 100 * MS)];
            let service = services(&script.timeline).into_iter().next().expect("a service");
            let is = |part: &&PathPart| part.hops.iter().any(|hop| hop.kind == HopKind::Reply);
            service.path.iter().filter(is).map(|part| part.ns / US).sum::<u64>()
        };
        assert_eq!(of(30 * MS - 60 * US), 27_000 - 60);
        // The answer had been there, and something else was waited for.
        assert_eq!(of(10 * MS), 0);
    }
}
