//! Signs of life: a byte or two that each end of a connection sends at intervals of its own, such as the heart-beats of STOMP.
//!
//! They look like a request that a timer answers. A thread that reads a request and answers it is one and the same, or hands over
//! more than two bytes; a sign of life is read by one thread, and the next one is written by another one, which a timer wakes.
//!
//! Longer ones, such as those of AMQP and BGP, and those of a process with one thread are told by their times ([`settle`]): how long after
//! the other end's a sign of life is sent depends on when each of them began, and not on who sends it.
use std::collections::BTreeMap;

use parshall_evidence::timeline::{Op, Protocol, Socket, SocketCall, Timeline};
use parshall_evidence::{FlowId, Service};

use super::connection::Request;
use super::messages::{self, Messages, Part};

/// A sign of life has room for no number and no content.
const BYTES_MAX: u32 = 2;
/// They are sent less often than requests of a byte by a loop.
const APART_NS: u64 = 100_000_000;

/// Marks the signs of life among the calls of a connection as no part of requests, where nothing else tells its messages. `asks` moves
/// requests.
pub fn mark(calls: &[SocketCall], asks: Op, messages: &mut Messages) {
    if messages.protocol == Some(Protocol::WebSocket) {
        return mark_answered(calls, asks, messages);
    }
    if messages.protocol.is_some() {
        return;
    }
    let mut found = false;
    let (mut open, mut last_at): (Option<&SocketCall>, Option<u64>) = (None, None);
    for call in calls.iter().filter(|call| call.op != Op::Accept) {
        if call.op == asks {
            // More than one message, or one that is longer, is something else.
            let is_one = open.is_none() && call.bytes <= BYTES_MAX;
            if is_one && last_at.is_some_and(|at| call.at_ns.saturating_sub(at) < APART_NS) {
                return;
            }
            open = is_one.then_some(call);
            last_at = if is_one { Some(call.at_ns) } else { last_at };
        } else if let Some(asked) = open.take() {
            found |= call.tid != asked.tid && call.bytes <= BYTES_MAX;
        }
    }
    // Not each of them is followed by one of the other end, nor seen where nothing is looked at.
    for (part, call) in messages.parts.iter_mut().zip(calls).filter(|(_, call)| found && call.op != Op::Accept) {
        if call.bytes <= BYTES_MAX {
            *part = Part::Control;
        }
    }
}

/// A sign of life is answered at once: the time to the next one divided by this.
const AT_ONCE: u64 = 4;

/// Marks the signs of life of a protocol in which either end may begin. Who serves sends one after a time, and the other end answers at
/// once. A request of a client comes when the client likes, and is what the service answers.
fn mark_answered(calls: &[SocketCall], asks: Op, messages: &mut Messages) {
    let is_sign = |call: &SocketCall| content(call).is_some_and(|bytes| (1..=BYTES_MAX).contains(&bytes));
    let (mut answered, mut begun): (usize, Option<&SocketCall>) = (0, None);
    for (n, call) in calls.iter().enumerate().filter(|(_, call)| call.op != Op::Accept) {
        if call.op != asks {
            begun = Some(call).filter(|call| is_sign(call));
            continue;
        }
        // The first one seen may answer what was sent before anything was seen.
        let is_first = answered == 0 && begun.is_none() && !calls[..n].iter().any(|call| call.op != Op::Accept);
        if !is_sign(call) || is_first {
            continue;
        }
        let Some(begun) = begun.take() else { return };
        let took = call.since_ns.saturating_sub(begun.at_ns);
        let next = calls[n..].iter().find(|next| next.op != asks).map(|next| next.since_ns.saturating_sub(call.at_ns));
        // Where nothing more was seen, it was answered faster than such signs follow each other.
        let waits = next.unwrap_or(APART_NS);
        if waits < APART_NS || took.saturating_mul(AT_ONCE) > waits {
            return;
        }
        answered += 1;
    }
    for (part, _) in messages.parts.iter_mut().zip(calls).filter(|(_, call)| answered > 0 && is_sign(call)) {
        *part = Part::Control;
    }
}

/// The bytes of a message of WebSocket without its header, if a call moved it whole: two bytes, and four that a client's is masked with.
fn content(call: &SocketCall) -> Option<u32> {
    let frame = call.frame.filter(|frame| frame.protocol == Protocol::WebSocket && frame.length == call.bytes)?;
    frame.length.checked_sub(if frame.flags == 1 { 6 } else { 2 })
}

/// Signs of life that are told by their times alone are no longer.
const SHORT_BYTES: u32 = 32;
/// Fewer of one end show no rhythm.
const BEATS_MIN: usize = 3;
/// A timer's intervals differ by this share at most.
const REGULAR: f64 = 0.1;
/// From this share of the interval on, the times from one end's to the other's are not alike.
const UNLIKE: f64 = 0.3;
/// Connections that show whether these times differ from one to the next.
const CONNECTIONS_MIN: usize = 3;
/// Fewer that cross do so by chance.
const CROSSED_MIN: usize = 3;

/// What both ends of a connection send, at intervals of their own as far as can be seen.
struct Beats {
    id: FlowId,
    bytes: (u32, u32),
    interval_ns: u64,
    /// The shortest and the longest time from what is received to what is sent next.
    after_ns: (u64, u64),
    /// Of one end no more than two were seen, as far apart as those of the other one.
    few: bool,
    /// How often the client sent its own before it had read the one of the service that was under way or lay unread.
    crossed: usize,
}

/// Takes the requests of connections away on which both ends send signs of life only. `found` are the requests by served socket.
pub fn settle(found: &mut BTreeMap<FlowId, Vec<Request>>, timeline: &Timeline) {
    let mut services: BTreeMap<(u32, u16), Vec<Beats>> = BTreeMap::new();
    for (id, requests) in found.iter().filter(|(_, requests)| !requests.is_empty()) {
        let (Some(socket), Some(calls)) = (timeline.sockets.get(id), timeline.calls.get(id)) else { continue };
        if !socket.udp && requests.len() >= BEATS_MIN - 1 {
            let client = socket.other_end.and_then(|id| timeline.calls.get(&id)).map_or(&[][..], Vec::as_slice);
            services.entry(socket.service()).or_default().extend(beats(*id, calls, client));
        }
    }
    for all in services.values() {
        for one in all.iter().filter(|one| one.is_by_itself() || one.differs_from(all) || one.crosses_in(all)) {
            found.insert(one.id, Vec::new());
        }
    }
}

/// The short messages of one length for each end, each of them sent as by a timer; None where there is anything else.
fn beats(id: FlowId, calls: &[SocketCall], client: &[SocketCall]) -> Option<Beats> {
    let of = |op: Op| calls.iter().filter(move |call| call.op == op);
    let one_length = |op: Op| {
        let bytes = of(op).next()?.bytes;
        of(op).all(|call| call.bytes == bytes).then_some(bytes)
    };
    // What is like a message of a protocol in one direction only is none.
    if messages::protocol(calls, Op::Receive).is_some_and(|protocol| protocol != Protocol::WebSocket) {
        return None;
    }
    let bytes = (one_length(Op::Receive)?, one_length(Op::Send)?);
    if bytes.0.max(bytes.1) > SHORT_BYTES {
        return None;
    }
    let times =
        |op: Op| of(op).map(|call| if op == Op::Receive { call.since_ns } else { call.at_ns }).collect::<Vec<u64>>();
    let (received, sent) = (times(Op::Receive), times(Op::Send));
    let (interval_ns, few) = match (regular(&received), regular(&sent)) {
        (Some(one), Some(other)) => (one.min(other), false),
        (Some(interval), None) if fits(&sent, interval) => (interval, true),
        (None, Some(interval)) if fits(&received, interval) => (interval, true),
        _ => return None,
    };
    let next = |at: &u64| sent.get(sent.partition_point(|sent| sent < at)).map(|sent| sent - at);
    let after: Vec<u64> = received.iter().filter_map(next).collect();
    let after_ns = (*after.iter().min()?, *after.iter().max()?);
    Some(Beats { id, bytes, interval_ns, after_ns, few, crossed: crossed(&sent, client) })
}

/// See [`Beats::crossed`]. `sent` are the times of what the service sent.
fn crossed(sent: &[u64], client: &[SocketCall]) -> usize {
    let reads_at: Vec<u64> = client.iter().filter(|call| call.op == Op::Receive).map(|call| call.at_ns).collect();
    let is_unread = |at: u64| {
        let Some(last) = sent[..sent.partition_point(|sent| *sent <= at)].last() else { return false };
        let read = reads_at.get(reads_at.partition_point(|read| read < last));
        read.is_some_and(|read| *read > at && read - last < APART_NS)
    };
    client.iter().filter(|call| call.op == Op::Send && is_unread(call.since_ns)).count()
}

/// Signs of life of a protocol whose messages have a checksum or are encrypted are no longer.
const SEALED_BYTES: u32 = 128;
/// A service sends them no more often.
const SELDOM_NS: u64 = 500_000_000;

/// The share of the time from messages of clients to those of their service that is between signs of life, as far as is known.
const SIGNS: f64 = 0.8;

/// Whether what most of a service's time goes by for may be signs of life that it asks for: it sends one after a time, and its clients
/// answer at once. Nothing in their times tells them from requests of clients that ask again at once, each of which waits for a timer.
pub fn may_be_signs(timeline: &Timeline, service: &Service) -> bool {
    let (mut all_ns, mut by_bytes) = (0u64, BTreeMap::<(u32, u32), u64>::new());
    for (_, turns) in of_service(timeline, service) {
        let answers = turns.windows(2).filter(|pair| pair[0].op == Op::Receive);
        let ns = answers.map(|pair| pair[1].at_ns.saturating_sub(pair[0].at_ns)).sum();
        all_ns = all_ns.saturating_add(ns);
        if let Some(bytes) = seldom_and_alike(&turns) {
            *by_bytes.entry(bytes).or_default() += ns;
        }
    }
    by_bytes.values().any(|ns| *ns > 0 && *ns as f64 >= SIGNS * all_ns as f64)
}

/// Whether what goes over a connection may be signs of life that its ends send each other: several short messages of one length each way,
/// now and then.
pub fn may_be_beats(timeline: &Timeline, id: FlowId) -> bool {
    let Some(calls) = timeline.calls.get(&id) else { return false };
    let turns = turns(calls);
    let several = |op: Op| turns.iter().filter(|turn| turn.op == op).count() >= BEATS_MIN - 1;
    several(Op::Receive) && several(Op::Send) && seldom_and_alike(&turns).is_some()
}

/// What goes over each connection of a service.
pub(super) fn of_service<'t>(
    timeline: &'t Timeline,
    service: &'t Service,
) -> impl Iterator<Item = (FlowId, Vec<Turn>)> + 't {
    let port = service.address.port();
    let own = move |socket: &Socket| socket.serves && socket.local.port() == port && service.pids.contains(&socket.pid);
    let ids = timeline.sockets.iter().filter(move |(_, socket)| own(socket)).map(|(id, _)| *id);
    ids.filter_map(|id| Some((id, turns(timeline.calls.get(&id)?))))
}

/// The bytes of all messages of each end, where these are short, of one length and sent now and then.
fn seldom_and_alike(turns: &[Turn]) -> Option<(u32, u32)> {
    // What the window cut at either end may have more parts.
    are_seldom_and_alike(turns).or_else(|| are_seldom_and_alike(turns.get(1..turns.len().checked_sub(1)?)?))
}

fn are_seldom_and_alike(turns: &[Turn]) -> Option<(u32, u32)> {
    let of = |op: Op| turns.iter().filter(move |turn| turn.op == op);
    let one_length = |op: Op| {
        let bytes = of(op).next()?.bytes;
        of(op).all(|turn| turn.bytes == bytes && turn.is_free && bytes <= SEALED_BYTES).then_some(bytes)
    };
    let sent: Vec<u64> = of(Op::Send).map(|turn| turn.at_ns).collect();
    let seldom = sent.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) >= SELDOM_NS);
    Some((one_length(Op::Receive)?, one_length(Op::Send)?)).filter(|_| seldom)
}

/// What one end of a connection sends before the other one does.
pub(super) struct Turn {
    pub op: Op,
    /// When it began.
    pub at_ns: u64,
    pub bytes: u32,
    is_free: bool,
}

fn turns(calls: &[SocketCall]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for call in calls.iter().filter(|call| call.op != Op::Accept) {
        match turns.last_mut() {
            Some(turn) if turn.op == call.op => {
                turn.bytes = turn.bytes.saturating_add(call.bytes);
                turn.is_free &= is_free(call);
            }
            _ => turns.push(Turn { op: call.op, at_ns: call.at_ns, bytes: call.bytes, is_free: is_free(call) }),
        }
    }
    turns
}

/// Whether two are as far apart as this interval says.
fn fits(times: &[u64], interval_ns: u64) -> bool {
    times.len() == 2 && (times[1] - times[0]).abs_diff(interval_ns) as f64 <= REGULAR * interval_ns as f64
}

/// Nothing says that the message is a request or a reply.
fn is_free(call: &SocketCall) -> bool {
    call.frame.is_none_or(|frame| frame.protocol == Protocol::WebSocket)
}

/// The interval of what happened at these times, if it is regular and long enough.
fn regular(times: &[u64]) -> Option<u64> {
    let gaps = || times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let (shortest, longest) = (gaps().min()?, gaps().max()?);
    let alike = (longest - shortest) as f64 <= REGULAR * longest as f64;
    (times.len() >= BEATS_MIN && alike && shortest >= APART_NS).then_some(shortest)
}

impl Beats {
    /// Two timers: one end keeps its interval, however long ago the other one sent.
    fn is_by_itself(&self) -> bool {
        !self.few && (self.after_ns.1 - self.after_ns.0) as f64 >= UNLIKE * self.interval_ns as f64
    }

    /// Those of the same kind, this one too.
    fn alike<'a>(&self, all: &'a [Beats]) -> impl Iterator<Item = &'a Beats> {
        let (bytes, interval_ns) = (self.bytes, self.interval_ns);
        all.iter().filter(move |one| one.bytes == bytes && one.interval_ns.abs_diff(interval_ns) < APART_NS)
    }

    /// Clients do not wait for what the service sends: those that ask again after each reply have read it before. A client whose own timer
    /// asks crosses a reply by chance only.
    fn crosses_in(&self, all: &[Beats]) -> bool {
        self.alike(all).map(|one| one.crossed).sum::<usize>() >= CROSSED_MIN
    }

    /// A service takes as long for the same request from one client as from another one. Two timers that began at different times do not.
    fn differs_from(&self, all: &[Beats]) -> bool {
        let after: Vec<u64> = self.alike(all).map(|one| one.after_ns.0).collect();
        let (Some(least), Some(most)) = (after.iter().min(), after.iter().max()) else { return false };
        after.len() >= CONNECTIONS_MIN && (most - least) as f64 >= UNLIKE * self.interval_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::Frame;

    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    /// Connections of a process with one thread: each client sends `bytes.0` every `every_ms.0` from its own begin on, and the service
    /// `bytes.1` every `every_ms.1`, `after` that of the n-th client.
    fn requests(bytes: (u32, u32), every_ms: (u64, u64), after: impl Fn(u64, u64) -> u64) -> u64 {
        requests_until(10_000, bytes, every_ms, after)
    }

    /// The same in a window of `window_ms`.
    fn requests_until(window_ms: u64, bytes: (u32, u32), every_ms: (u64, u64), after: impl Fn(u64, u64) -> u64) -> u64 {
        let mut script = Script::new();
        for n in 0..5 {
            let begin = 20 + 170 * n;
            let calls = (0..5).flat_map(|k| {
                let (asked, answered) = (begin + k * every_ms.0, begin + after(n, k) + k * every_ms.1);
                [(101, Op::Receive, asked * MS, asked * MS), (101, Op::Send, answered * MS, answered * MS)]
            });
            let mut calls: Vec<_> = calls.collect();
            calls.retain(|call| call.3 < window_ms * MS);
            calls.sort_by_key(|call| call.3);
            script = script.socket(n + 1, served_socket(7000), 101).calls(n + 1, calls);
            for call in script.timeline.calls.get_mut(&(n + 1)).expect("calls") {
                call.bytes = if call.op == Op::Receive { bytes.0 } else { bytes.1 };
            }
        }
        script.timeline.slices = vec![(0, window_ms * MS)];
        services(&script.timeline).iter().map(|service| service.requests + service.unanswered).sum()
    }

    #[test]
    fn heartbeats_of_two_timers_are_told_by_when_they_began() {
        // Each client began at another time; the frames of both ends have eight bytes.
        assert_eq!(requests((8, 8), (1000, 1000), |n, _| 150 + 190 * n), 0);
        // The two ends have intervals of their own: the one comes sooner or later after the other.
        assert_eq!(requests((19, 21), (1000, 700), |_, _| 40), 0);
        // A service that lets each client wait for the same time.
        assert_eq!(requests((8, 8), (1000, 1000), |_, _| 400), 25);
        // One whose times vary from request to request, and with them those of its replies.
        assert_eq!(requests((8, 8), (1000, 1000), |n, k| 100 + 190 * ((n + 2 * k) % 4)), 25);
        // Replies that have content.
        assert_eq!(requests((8, 80), (1000, 1000), |n, _| 150 + 190 * n), 25);
        // A client that asks again and again.
        assert_eq!(requests((8, 8), (50, 50), |n, _| 5 + 9 * n), 25);
    }

    /// Of five connections whose ends send 8 bytes each second, the client `before_us` microseconds before it reads the service's.
    fn requests_crossing(before_us: u64) -> u64 {
        let mut script = Script::new();
        for n in 1..=5 {
            let socket = Socket { other_end: Some(n + 10), ..served_socket(7000) };
            let client = Socket { other_end: Some(n), ..client_socket(7000) };
            script = script.socket(n, socket, 101).socket(n + 10, client, 201);
            for beat in 1..5 {
                let at = (beat * 1000 + n) * MS;
                let read = at + 200_000;
                let asked = read + 50_000 - before_us * 1000;
                script = script.sends(101, n, at).receives(201, n + 10, at + 20_000, read).sends(201, n + 10, asked);
                script = script.receives(101, n, asked + 20_000, at + 400_000);
            }
        }
        for call in script.timeline.calls.values_mut().flatten() {
            call.bytes = 8;
            // The empty frame of AMQP, which is like the begin of a message of Kafka.
            let looks = Frame { protocol: Protocol::Kafka, kind: 0, flags: 0, length: 12, stream: 1 << 25 };
            call.frame = (call.tid == 101 && call.op == Op::Send).then_some(looks);
        }
        script.timeline.calls.values_mut().for_each(|calls| calls.sort_by_key(|call| call.at_ns));
        script.timeline.slices = vec![(0, 10_000 * MS)];
        let served = services(&script.timeline).into_iter().filter(|service| !service.outbound);
        served.map(|service| service.requests + service.unanswered).sum()
    }

    #[test]
    fn ends_that_send_before_they_have_read_do_not_answer() {
        assert_eq!(requests_crossing(100), 0);
        // Clients that ask again as soon as they have their reply.
        assert!(requests_crossing(0) >= 15);
    }

    #[test]
    fn two_of_one_end_are_enough_where_connections_differ() {
        // All clients hear at the same time: of the service two were seen each, of the clients three.
        let together = |n: u64, _: u64| 900 - 170 * n;
        assert_eq!(requests_until(2_750, (4, 4), (1000, 1000), together), 0);
        // They are answered after the same time each.
        assert_ne!(requests_until(2_750, (4, 4), (1000, 1000), |_, _| 100), 0);
    }

    #[test]
    fn short_messages_now_and_then_may_be_signs_that_the_service_asks_for() {
        // Five clients are sent two messages of 52 bytes each second, and answer each of them with `bytes` after 1 ms.
        let may_be = |bytes: u32, every_ms: u64| {
            let script = (1..=5).fold(Script::new(), |script, id| script.socket(id, served_socket(7000), 101));
            let mut script = (1..=5).fold(script, |script, id| {
                let at = |n: u64| (10 * id + n * every_ms) * MS;
                (0..3).fold(script, |script, n| {
                    let script = script.sends(101, id, at(n)).sends(101, id, at(n) + 1);
                    (1..=2).fold(script, |script, k| script.receives(101, id, at(n) + k * MS, at(n) + k * MS))
                })
            });
            for call in script.timeline.calls.values_mut().flatten() {
                call.bytes = if call.op == Op::Receive { bytes } else { 52 };
            }
            script.timeline.slices = vec![(0, 3_000 * MS)];
            let services = services(&script.timeline);
            services.iter().any(|service| may_be_signs(&script.timeline, service))
        };
        assert!(may_be(36, 1_000));
        // Content, and requests of a client that is answered soon.
        assert!(!may_be(400, 1_000));
        assert!(!may_be(36, 100));
    }

    #[test]
    fn what_the_window_cuts_may_have_more_parts() {
        let turns = |bytes: &[u32]| -> Vec<Turn> {
            let turn = |(n, bytes): (usize, &u32)| {
                let op = if n % 2 == 0 { Op::Send } else { Op::Receive };
                Turn { op, at_ns: n as u64 * 600 * MS, bytes: *bytes, is_free: true }
            };
            bytes.iter().enumerate().map(turn).collect()
        };
        assert_eq!(seldom_and_alike(&turns(&[19, 19, 19])), Some((19, 19)));
        assert_eq!(seldom_and_alike(&turns(&[8, 19, 19, 8])), Some((19, 19)));
        assert_eq!(seldom_and_alike(&turns(&[19, 19, 19, 8, 19])), None);
        assert_eq!(seldom_and_alike(&turns(&[19])), None);
    }

    const MS: u64 = 1_000_000;

    fn call(op: Op, tid: u32, at_ms: u64, bytes: u32) -> SocketCall {
        SocketCall { socket: 1, tid, op, since_ns: at_ms * MS, at_ns: at_ms * MS, bytes, peer: 0, frame: None }
    }

    fn marked(calls: &[SocketCall]) -> Vec<usize> {
        let mut messages = Messages::of_data(calls.len());
        mark(calls, Op::Receive, &mut messages);
        messages.parts.iter().enumerate().filter(|(_, part)| **part == Part::Control).map(|(n, _)| n).collect()
    }

    #[test]
    fn bytes_of_two_timers_are_no_requests() {
        let beats = |reads: u32, writes: u32, bytes: u32, every_ms: u64| {
            let beat = move |n: u64| {
                let at = n * every_ms;
                [call(Op::Receive, reads, at, bytes), call(Op::Send, writes, at + every_ms / 3, bytes)]
            };
            (0..3).flat_map(beat).collect::<Vec<_>>()
        };
        assert_eq!(marked(&beats(7, 8, 1, 1000)), [0, 1, 2, 3, 4, 5]);
        // A request of one byte that its reader answers, however late.
        assert!(marked(&beats(7, 7, 1, 1000)).is_empty());
        // One that is handed to another thread and has content.
        assert!(marked(&beats(7, 8, 3, 1000)).is_empty());
        // A loop that asks again and again.
        assert!(marked(&beats(7, 8, 1, 20)).is_empty());
    }

    /// Messages of WebSocket: who sends, when, and how many bytes of content.
    fn marked_messages(of: &[(Op, u64, u32)]) -> Vec<usize> {
        let one = |&(op, at_ms, content): &(Op, u64, u32)| {
            let (flags, length) = if op == Op::Receive { (1, content + 6) } else { (0, content + 2) };
            let frame = Frame { protocol: Protocol::WebSocket, kind: 1, flags, length, stream: 0 };
            SocketCall { frame: Some(frame), ..call(op, 7, at_ms, length) }
        };
        let calls: Vec<SocketCall> = of.iter().map(one).collect();
        let mut messages = Messages { protocol: Some(Protocol::WebSocket), ..Messages::of_data(calls.len()) };
        mark(&calls, Op::Receive, &mut messages);
        messages.parts.iter().enumerate().filter(|(_, part)| **part == Part::Control).map(|(n, _)| n).collect()
    }

    #[test]
    fn a_client_that_answers_signs_of_life_asks_for_nothing() {
        use Op::{Receive, Send};
        // Each second the service sends one; the last one comes at the end of what was seen.
        let pings = [(Send, 8, 1), (Receive, 9, 1), (Send, 1_009, 1), (Receive, 1_012, 1), (Send, 2_012, 1)];
        assert_eq!(marked_messages(&pings), [0, 1, 2, 3, 4]);
        assert_eq!(marked_messages(&[(Send, 8, 1), (Receive, 9, 1)]), [0, 1]);
        assert_eq!(marked_messages(&[(Receive, 3, 1), (Send, 1_003, 1), (Receive, 1_004, 1)]), [0, 1, 2]);
        // Messages with content between them stay.
        let beside =
            [(Send, 8, 1), (Receive, 9, 1), (Receive, 300, 40), (Send, 500, 60), (Send, 1_009, 1), (Receive, 1_010, 1)];
        assert_eq!(marked_messages(&beside), [0, 1, 4, 5]);
        // What is asked and answered has content.
        let asked = [(Send, 8, 1), (Receive, 9, 30), (Send, 1_009, 1), (Receive, 1_010, 30), (Send, 2_012, 1)];
        assert!(marked_messages(&asked).is_empty());
        let told = [(Send, 8, 30), (Receive, 9, 1), (Send, 1_009, 30), (Receive, 1_010, 1)];
        assert!(marked_messages(&told).is_empty());
        // The client asks when it likes, and waits.
        let asks = [(Receive, 8, 1), (Send, 400, 1), (Receive, 1_300, 1), (Send, 1_700, 1), (Receive, 2_400, 1)];
        assert!(marked_messages(&asks).is_empty());
        // It asks again and again, and is answered soon.
        let often = [(Send, 8, 1), (Receive, 9, 1), (Send, 29, 1), (Receive, 30, 1), (Send, 50, 1)];
        assert!(marked_messages(&often).is_empty());
    }

    #[test]
    fn messages_between_them_stay() {
        let calls = [
            call(Op::Receive, 7, 0, 1),
            call(Op::Send, 8, 300, 1),
            call(Op::Receive, 7, 400, 80),
            call(Op::Send, 8, 500, 40),
            call(Op::Receive, 7, 1000, 1),
            call(Op::Receive, 7, 1400, 80),
            call(Op::Receive, 7, 2000, 1),
        ];
        assert_eq!(marked(&calls), [0, 1, 4, 6]);
    }
}
