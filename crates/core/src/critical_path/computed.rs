//! Replies that are computed while they are sent: a listing of a folder, an export, the rows of a query. The first piece leaves at once,
//! and the client has what it asked for with the last one.
//!
//! What is sent as it comes, news, pictures or sounds, looks alike, and so does a large file whose client takes it slowly. There the thread
//! sleeps between the pieces, for the next one or for the client, or copies large ones all the time. Here it does neither for most of the time
//! from the first piece to the last one, and has no other client between two pieces. The reply has an end, by its protocol, or because the
//! client goes on at once when it has the last piece, or asks again.
use std::collections::{BTreeMap, HashMap};

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Frame, OffCpu, Op, Protocol, SocketCall, Timeline, Why};

use super::connection::Request;
use super::pieces::{Reply, end_with};

/// Fewer pieces are a head and what it announces.
const PIECES_MIN: usize = 4;
/// Pieces that follow each other sooner are sent at once.
const LONG_NS: u64 = 2_000_000;
/// The share of the time from the first piece to the last one in which the thread neither sleeps nor copies.
const COMPUTED: f64 = 0.6;
/// A call that sends no more costs far more than copying does.
const FEW_BYTES: u32 = 256;
/// Fewer replies may look so by chance; and at least this many of five long ones are computed.
const REPLIES_MIN: usize = 3;
const MOST_OF_5: usize = 4;
/// Of them, the clients of at least this many were seen to go on.
const GO_ON_MIN: usize = 2;
/// The time from the first piece to the last one divided by this: a client that waits for the last one goes on within that time.
const AT_ONCE: u64 = 4;

/// Lets requests whose replies are computed while they are sent end with the last piece. `found` are the requests by served socket,
/// `by_thread` all calls in order.
pub fn settle(
    found: &mut BTreeMap<FlowId, Vec<Request>>,
    by_thread: &HashMap<u32, Vec<SocketCall>>,
    timeline: &Timeline,
) {
    // Without the sleeps between the pieces every stream would look computed.
    if timeline.left_out > 0 && !timeline.has_pieces {
        return;
    }
    let mut ports: BTreeMap<u16, Vec<(FlowId, usize, Reply<'_>)>> = BTreeMap::new();
    for (id, all) in found.iter() {
        let Some(socket) = timeline.sockets.get(id).filter(|socket| !socket.udp) else { continue };
        let replies = all.iter().enumerate().filter_map(|(at, request)| {
            let reply = Reply::of(timeline, request).filter(|reply| is_long(reply.sends, request.ns()))?;
            Some((*id, at, reply))
        });
        ports.entry(socket.local.port()).or_default().extend(replies);
    }
    for replies in ports.into_values() {
        // The protocol of one connection is that of all to the same port.
        let ends = replies.iter().any(|(_, _, reply)| has_end(reply));
        // Of a reply at the end of a slice it is not known whether that was all.
        let mut whole: Vec<_> =
            replies.into_iter().filter(|(_, _, reply)| reply.next_ns.is_some() || pauses(timeline, reply)).collect();
        let seen = whole.len();
        let is_waited_for = |reply: &Reply<'_>| ends || is_awaited(reply) || reply.asks_again;
        whole.retain(|(_, _, reply)| {
            (reply.next_ns.is_none() || is_waited_for(reply)) && is_computed(timeline, by_thread, reply)
        });
        let go_on = whole.iter().filter(|(_, _, reply)| reply.next_ns.is_some()).count();
        if whole.len() < REPLIES_MIN || go_on < GO_ON_MIN || whole.len() * 5 < seen * MOST_OF_5 {
            continue;
        }
        for (id, at, reply) in whole {
            reply.sends.last().into_iter().for_each(|last| end_with(found, (id, at), last));
        }
    }
}

/// From the end of the first piece to the begin of the last one.
fn span(sends: &[SocketCall]) -> (u64, u64) {
    let (first, last) = (sends.first().map_or(0, |call| call.at_ns), sends.last().map_or(0, |call| call.since_ns));
    (first, last.max(first))
}

/// Whether sending the pieces took longer than to begin with it.
fn is_long(sends: &[SocketCall], before_ns: u64) -> bool {
    let (from, to) = span(sends);
    sends.len() >= PIECES_MIN && to - from >= LONG_NS.max(before_ns)
}

/// Whether whoever sends a reply computes for most of the time from its first piece to the last one. A runtime may move that between threads.
fn is_computed(timeline: &Timeline, by_thread: &HashMap<u32, Vec<SocketCall>>, reply: &Reply<'_>) -> bool {
    let (from, to) = span(reply.sends);
    let between = |pair: &[SocketCall]| {
        let calls = by_thread.get(&pair[0].tid).map_or(&[][..], Vec::as_slice);
        computed_ns(timeline, calls, (&pair[0], &pair[1]))
    };
    let between_ns: u64 = reply.sends.windows(2).map(between).sum();
    let small = reply.sends[1..].iter().filter(|call| call.bytes <= FEW_BYTES);
    let small_ns: u64 = small.map(|call| call.at_ns.min(to).saturating_sub(call.since_ns)).sum();
    (between_ns + small_ns) as f64 >= COMPUTED * (to - from) as f64
}

/// The time between two pieces in which the thread that sends both does not sleep; none where it has another client meanwhile. `calls` are
/// those of the thread.
fn computed_ns(timeline: &Timeline, calls: &[SocketCall], pieces: (&SocketCall, &SocketCall)) -> u64 {
    let (before, after) = pieces;
    let (from, to) = (before.at_ns, after.since_ns.max(before.at_ns));
    let serves = |call: &SocketCall| timeline.sockets.get(&call.socket).is_some_and(|socket| socket.serves);
    let mut meanwhile =
        calls[calls.partition_point(|call| call.at_ns <= from)..].iter().take_while(|call| call.at_ns < to);
    if before.tid != after.tid || meanwhile.any(|call| call.socket != after.socket && serves(call)) {
        return 0;
    }
    (to - from).saturating_sub(sleeps(timeline, after.tid, from, to).map(|off| slept(off, from, to)).sum())
}

/// Whether a reply, computed until then without a pause, pauses before its slice ends: that was all, where others end so.
fn pauses(timeline: &Timeline, reply: &Reply<'_>) -> bool {
    let (from, to) = span(reply.sends);
    let slice = timeline.slices.iter().find(|slice| slice.0 <= from && to <= slice.1);
    slice.is_some_and(|slice| to + (to - from) / AT_ONCE < slice.1)
}

/// Whether its client goes on at once when it has the last piece.
fn is_awaited(reply: &Reply<'_>) -> bool {
    let (from, to) = span(reply.sends);
    reply.next_ns.is_some_and(|next| next <= to + (to - from) / AT_ONCE)
}

/// Whether a reply has an end by its protocol: nothing is sent then until the client asks again.
fn has_end(reply: &Reply<'_>) -> bool {
    let answers = [Protocol::Postgres, Protocol::Mysql, Protocol::Redis];
    let is_response = |frame: Frame| frame.protocol == Protocol::Http1 && frame.kind == 2;
    reply.is_http1()
        || reply.sends[0].frame.is_some_and(is_response)
        || reply.read.frame.is_some_and(|frame| answers.contains(&frame.protocol))
}

/// The sleeps of a thread in a span of time. What it reads from a disk belongs to what it computes.
fn sleeps(timeline: &Timeline, tid: u32, from: u64, to: u64) -> impl Iterator<Item = &OffCpu> {
    let offs = timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
    let offs = &offs[offs.partition_point(|off| off.end_ns <= from)..];
    offs.iter().take_while(move |off| off.begin_ns < to).filter(|off| matches!(off.why, Why::Slept | Why::Stopped))
}

/// For how much of a span of time a thread slept in one sleep.
fn slept(off: &OffCpu, from: u64, to: u64) -> u64 {
    off.wake_ns.min(to).saturating_sub(off.begin_ns.max(from))
}

/// The sleeps, by thread and begin, that say of pieces which were sent one after the other that they were not computed: the longest,
/// until they are enough for that.
pub fn decisive_sleeps(timeline: &Timeline) -> Vec<(u32, u64)> {
    let mut decisive = Vec::new();
    for (id, calls) in &timeline.calls {
        if timeline.sockets.get(id).is_none_or(|socket| !socket.serves || socket.udp) {
            continue;
        }
        for sends in calls.chunk_by(|a, b| a.op == b.op).filter(|calls| calls[0].op == Op::Send && is_long(calls, 0)) {
            let (from, to) = span(sends);
            let by_one = sends.windows(2).filter(|pair| pair[0].tid == pair[1].tid);
            let between = by_one.map(|pair| (pair[0].tid, pair[0].at_ns, pair[1].since_ns));
            let mut offs: Vec<&OffCpu> = between.flat_map(|(tid, from, to)| sleeps(timeline, tid, from, to)).collect();
            offs.sort_by_key(|off| std::cmp::Reverse(slept(off, from, to)));
            let mut slept_ns = 0;
            for off in offs {
                if slept_ns as f64 > (1.0 - COMPUTED) * (to - from) as f64 {
                    break;
                }
                slept_ns += slept(off, from, to);
                decisive.push((off.tid, off.begin_ns));
            }
        }
    }
    decisive
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{Socket, Waker};
    use parshall_evidence::{HopKind, Service};

    use super::*;
    use crate::critical_path::{reduced, services};
    use crate::testkit::timeline::{Script, client_socket, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const SLEEP: i32 = 35;
    const FUTEX: i32 = 202;
    const HEAD_NS: u64 = 300 * US;
    const PIECES: u64 = 20;

    /// What is different from a listing that is computed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum But {
        Nothing,
        /// Nothing, but the form of the request is not known.
        Unknown,
        /// It is not known, and the client stays when it has the last piece.
        UnknownStays,
        /// The thread waits for a timer before each piece.
        Timed,
        /// The thread copies all the time.
        Copied,
        /// It spends that time in calls that send a few bytes each.
        Small,
        /// A runtime lets another thread go on after half of the pieces.
        Moved,
        /// The form of the request is not known, and the client asks again after a while.
        AsksAgain,
        /// Half of the clients neither ask again nor close the connection before the slice ends.
        HalfUnended,
        /// The thread answers another client between the pieces.
        Shared,
        /// The client neither asks again nor closes the connection.
        Unended,
        /// A head, and what it announces.
        OnePiece,
        /// Sleeps were left out by who did not know that they count.
        LeftOut,
    }

    /// 101 answers a request on each of eight connections: 20 pieces, a millisecond of work before each.
    fn listing(but: But) -> Timeline {
        let mut script = Script::new().socket(2, client_socket(9000), 101).socket(3, served_socket(7000), 101);
        script.timeline.slices = vec![(0, 1_000 * MS)];
        for n in 0..8_u64 {
            let (id, at) = (10 + n, (10 + 100 * n) * MS);
            let pieces = if but == But::OnePiece { 2 } else { PIECES };
            let done = at + HEAD_NS + pieces * MS;
            let stays = matches!(but, But::UnknownStays | But::AsksAgain);
            let later = if stays { 30 * MS } else { 100 * US };
            let unended = but == But::Unended || but == But::HalfUnended && n % 2 == 0;
            let closed_ns = (!unended).then_some(done + later);
            let socket = Socket { opened: true, opened_ns: Some(at), closed_ns, ..served_socket(7000) };
            script = script.socket(id, socket, 101).accepts(101, id, at, at).receives(101, id, at, at);
            script = script.sends(101, id, at + HEAD_NS);
            for piece in 1..=pieces {
                let next = at + HEAD_NS + piece * MS;
                script = script.sends(101, id, next);
                if but == But::Timed {
                    script = script.sleeps(101, next - 900 * US, next - 100 * US, SLEEP, Waker::HardIrq);
                }
                if but == But::Shared {
                    script = script.receives(101, 3, next - 500 * US, next - 500 * US).sends(101, 3, next - 400 * US);
                }
            }
            for call in &mut script.timeline.calls.get_mut(&id).expect("calls")[3..] {
                call.since_ns -= if matches!(but, But::Copied | But::Small) { 900 * US } else { 0 };
                call.bytes = if but == But::Small { 12 } else { 4_096 };
            }
            if but == But::Moved {
                let later = &mut script.timeline.calls.get_mut(&id).expect("calls")[12..];
                later.iter_mut().for_each(|call| call.tid = 102);
                let taken = later[0].at_ns - 500 * US;
                script = script.sleeps(102, at - 70 * MS * n.min(1), taken, FUTEX, Waker::Thread(101));
            }
            if but == But::AsksAgain {
                let again = done + 20 * MS;
                script = script.receives(101, id, again, again).sends(101, id, again + HEAD_NS);
            }
            let frame = Frame { protocol: Protocol::Http1, kind: 1, flags: 0, length: 0, stream: 0 };
            let known = !matches!(but, But::Unknown | But::UnknownStays | But::AsksAgain);
            script.timeline.calls.get_mut(&id).expect("calls")[1].frame = known.then_some(frame);
        }
        script.timeline.left_out = u64::from(but == But::LeftOut);
        script.timeline
    }

    fn service(timeline: &Timeline) -> Service {
        services(timeline).into_iter().next().expect("a service")
    }

    #[test]
    fn a_reply_that_is_computed_lasts_until_its_last_piece() {
        for but in [But::Nothing, But::Unknown, But::Small, But::Moved, But::HalfUnended] {
            let service = service(&listing(but));
            // The last piece ends it as soon as it is sent.
            let early = if but == But::Small { 900 * US } else { 0 };
            let whole = HEAD_NS + PIECES * MS - early;
            assert_eq!((service.p50_ns, service.in_pieces), (Some(whole), 8), "{but:?}");
            let on_cpu = service.path.iter().filter(|part| part.hops.iter().any(|hop| hop.kind == HopKind::OnCpu));
            assert!(on_cpu.map(|part| part.ns).sum::<u64>() >= 8 * 19 * MS, "{:#?}", service.path);
        }
    }

    #[test]
    fn who_asks_again_after_a_while_had_all_of_the_reply() {
        let (again, stays) = (service(&listing(But::AsksAgain)), service(&listing(But::UnknownStays)));
        assert_eq!((again.requests, again.in_pieces), (16, 8));
        assert_eq!((stays.requests, stays.in_pieces), (8, 0));
    }

    #[test]
    fn streams_copies_and_replies_without_an_end_begin_with_their_first_piece() {
        let others = [But::UnknownStays, But::Timed, But::Copied, But::Unended, But::OnePiece, But::LeftOut];
        for but in others {
            assert_eq!(service(&listing(but)).p50_ns, Some(HEAD_NS), "{but:?}");
        }
        assert!(service(&listing(But::Shared)).p50_ns < Some(MS));
    }

    #[test]
    fn a_saved_case_keeps_the_sleeps_that_tell_a_stream() {
        for but in [But::Nothing, But::Timed] {
            let whole = service(&listing(but));
            assert_eq!(service(&reduced(listing(but))).p50_ns, whole.p50_ns, "{but:?}");
        }
    }
}
