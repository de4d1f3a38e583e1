//! Replies that a timer lets out in portions, as servers do that limit the rate of a connection: with a bucket that is filled at each tick, or
//! with a sleep after each portion. The first portion leaves at once, and the client has what it asked for with the last one.
//!
//! Streams look alike, of pictures or of measurements. Their client stays, or leaves at any time; here it goes on at once when it has the last
//! portion, or that is the rest of what was let out in equal portions. What a server says at intervals while it works, such as how far it is,
//! fits into a segment; a portion does not, but for the first, which may be a head or what was left in a bucket, and the last.
use std::collections::BTreeMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{OffCpu, SocketCall, Timeline, Waker};

use super::connection::Request;
use super::pieces::{self, end_with, is_awaited};

/// What is sent later than this after the send before is another portion.
const APART_NS: u64 = 2_000_000;
/// Fewer portions are a head and what it announces.
const PORTIONS_MIN: usize = 3;
/// The payload of a full segment of Ethernet, with timestamps.
const SEGMENT_BYTES: u64 = 1_448;
/// Fewer replies may look so by chance; and at least this many of five in portions are let out by timers, and so are as many of five portions.
const REPLIES_MIN: usize = 3;
const MOST_OF_5: usize = 4;
/// Portions of one length differ by less than this part of it; and a rest is shorter by more than this one.
const ALIKE: u64 = 100;
const SHORTER: u64 = 20;

/// What is sent without a wait.
struct Portion {
    /// From the end of the one before to its begin.
    gap: (u64, u64),
    tid: u32,
    bytes: u64,
}

/// A reply in portions.
struct Reply {
    /// The connection, and the place of the request there.
    at: (FlowId, usize),
    portions: Vec<Portion>,
    last: SocketCall,
    /// Its client goes on at once when it has the last portion.
    awaited: bool,
}

/// Lets requests whose replies timers let out in portions end with the last one. `found` are the requests by served socket.
pub fn settle(found: &mut BTreeMap<FlowId, Vec<Request>>, timeline: &Timeline) {
    let mut ports: BTreeMap<u16, Vec<Reply>> = BTreeMap::new();
    for (id, all) in found.iter() {
        let Some(socket) = timeline.sockets.get(id).filter(|socket| !socket.udp) else { continue };
        let replies = all.iter().enumerate().filter_map(|(at, request)| in_portions(timeline, request, (*id, at)));
        ports.entry(socket.local.port()).or_default().extend(replies);
    }
    for replies in ports.into_values() {
        let is_whole = |reply: &&Reply| reply.awaited || ends_with_rest(reply, &replies);
        let paced: Vec<&Reply> = replies.iter().filter(is_whole).filter(|r| are_timed(timeline, &r.portions)).collect();
        if paced.len() < REPLIES_MIN || paced.len() * 5 < replies.len() * MOST_OF_5 {
            continue;
        }
        paced.iter().for_each(|reply| end_with(found, reply.at, &reply.last));
    }
}

fn in_portions(timeline: &Timeline, request: &Request, at: (FlowId, usize)) -> Option<Reply> {
    // Of a reply at the end of a slice it is not known whether that was all.
    let reply = pieces::Reply::of(timeline, request).filter(|reply| reply.next_ns.is_some())?;
    let portions = portions(reply.sends);
    let last = *reply.sends.last().filter(|_| portions.len() >= PORTIONS_MIN)?;
    let awaited = is_awaited(reply.next_ns, &last, portions.last()?.gap);
    Some(Reply { at, portions, last, awaited })
}

fn portions(sends: &[SocketCall]) -> Vec<Portion> {
    let mut portions: Vec<Portion> = Vec::new();
    let mut until = 0;
    for call in sends {
        match portions.last_mut().filter(|_| call.since_ns < until + APART_NS) {
            Some(portion) => portion.bytes += u64::from(call.bytes),
            None => portions.push(Portion { gap: (until, call.since_ns), tid: call.tid, bytes: u64::from(call.bytes) }),
        }
        until = call.at_ns;
    }
    portions
}

/// Whether the last portion is what was left over: those before it have one length, but for the first, and it is shorter. A reply in three
/// portions has only one such length; it is no chance where others from the same port have it too.
fn ends_with_rest(reply: &Reply, all: &[Reply]) -> bool {
    let Some((whole, last)) = whole_ones(&reply.portions) else { return false };
    let alike = |other: &&Reply| {
        let lengths = whole.iter().chain(whole_ones(&other.portions).map_or(&[][..], |(whole, _)| whole));
        let (shortest, longest) = range(lengths);
        (longest - shortest) * ALIKE <= longest
    };
    let (shortest, longest) = range(whole.iter());
    let is_shorter = last.bytes + longest / SHORTER < shortest;
    // The others are looked at last, and no more of them than it takes.
    let have_it = || whole.len() >= 2 || all.iter().filter(alike).take(REPLIES_MIN).count() == REPLIES_MIN;
    is_shorter && alike(&reply) && have_it()
}

/// The portions between the first and the last one, and the last one.
fn whole_ones(portions: &[Portion]) -> Option<(&[Portion], &Portion)> {
    let [_, whole @ .., last] = portions else { return None };
    (!whole.is_empty()).then_some((whole, last))
}

fn range<'a>(portions: impl Iterator<Item = &'a Portion> + Clone) -> (u64, u64) {
    let bytes = portions.map(|portion| portion.bytes);
    (bytes.clone().min().unwrap_or(0), bytes.max().unwrap_or(0))
}

/// Whether a timer ended what its thread did before nearly every later portion, and the portions are no short messages.
fn are_timed(timeline: &Timeline, portions: &[Portion]) -> bool {
    let later = &portions[1..];
    let timed = later.iter().filter(|portion| timer_before(timeline, portion).is_some()).count();
    let whole = later.iter().rev().skip(1).all(|portion| portion.bytes >= SEGMENT_BYTES);
    whole && timed * 5 >= later.len() * MOST_OF_5
}

/// The sleep before a portion that a timer ended, if its thread slept last for that.
fn timer_before<'a>(timeline: &'a Timeline, portion: &Portion) -> Option<&'a OffCpu> {
    let last = timeline.last_sleep(portion.tid, portion.gap.1)?;
    (last.waker == Waker::HardIrq && last.end_ns > portion.gap.0).then_some(last)
}

/// The sleeps, by thread and begin, that say of a reply that timers let it out.
pub fn decisive_sleeps(timeline: &Timeline) -> Vec<(u32, u64)> {
    let served = timeline.calls.iter().filter(|(id, _)| timeline.sockets.get(id).is_some_and(|s| s.serves && !s.udp));
    let replies = served.flat_map(|(_, calls)| calls.chunk_by(|a, b| a.op == b.op));
    let portions = replies.map(portions).filter(|portions| portions.len() >= PORTIONS_MIN);
    let later = portions.flat_map(|portions| portions.into_iter().skip(1));
    later.filter_map(|portion| timer_before(timeline, &portion).map(|off| (off.tid, off.begin_ns))).collect()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::Socket;
    use parshall_evidence::{HopKind, Service};

    use super::*;
    use crate::critical_path::{reduced, services};
    use crate::testkit::timeline::{Script, served_socket};

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const EPOLL: i32 = 232;
    const HEAD_NS: u64 = 200 * US;

    /// What is different from a download whose rate the server limits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum But {
        Nothing,
        /// The client thinks when it has the last portion.
        Thinks,
        /// It does, and the last portion is a shorter one, as the first is.
        Rest,
        /// The same in three portions: only the replies together show what is a whole one.
        RestOfThree,
        /// The same, and the second portion of each reply has another length.
        Unequal,
        /// The network wakes the thread: the client has taken what was sent before.
        Room,
        /// Another thread does.
        Given,
        /// What is sent at each tick is a line.
        Lines,
        /// All leaves in two portions.
        Two,
    }

    /// 101 sends each of eight clients five portions, one each 20 ms.
    fn downloads(but: But) -> Timeline {
        let mut script = Script::new();
        script.timeline.slices = vec![(0, 1_000 * MS)];
        let waker = match but {
            But::Room => Waker::SoftIrq,
            But::Given => Waker::Thread(102),
            _ => Waker::HardIrq,
        };
        for n in 0..8_u64 {
            let (id, at) = (10 + n, (10 + 110 * n) * MS);
            let portions = match but {
                But::Two => 2,
                But::RestOfThree | But::Unequal => 3,
                _ => 5,
            };
            let done = at + HEAD_NS + (portions - 1) * 20 * MS;
            let thinks = matches!(but, But::Thinks | But::Rest | But::RestOfThree | But::Unequal);
            let closed_ns = Some(done + if thinks { 15 * MS } else { MS });
            let socket = Socket { opened: true, opened_ns: Some(at), closed_ns, ..served_socket(7000) };
            script = script.socket(id, socket, 101).accepts(101, id, at, at).receives(101, id, at, at);
            for portion in 0..portions {
                let next = at + HEAD_NS + portion * 20 * MS;
                script = script.sends(101, id, next).sends(101, id, next + 10 * US);
                if portion + 1 < portions {
                    script = script.sleeps(101, next + 50 * US, next + 20 * MS - 50 * US, EPOLL, waker);
                }
            }
            for call in &mut script.timeline.calls.get_mut(&id).expect("calls")[2..] {
                call.bytes = if but == But::Lines { 80 } else { 1_000 };
            }
            if matches!(but, But::Rest | But::RestOfThree | But::Unequal) {
                let calls = script.timeline.calls.get_mut(&id).expect("calls");
                let last = calls.len() - 1;
                (calls[2].bytes, calls[3].bytes, calls[last].bytes) = (100, 100, 200);
                calls[4].bytes += if but == But::Unequal { 500 * n as u32 } else { 0 };
            }
        }
        script.timeline
    }

    fn service(timeline: &Timeline) -> Service {
        services(timeline).into_iter().next().expect("a service")
    }

    #[test]
    fn a_reply_that_timers_let_out_lasts_until_its_last_portion() {
        for (but, portions) in [(But::Nothing, 5), (But::Rest, 5), (But::RestOfThree, 3)] {
            let service = service(&downloads(but));
            let (p50_ns, later_ns) = (service.p50_ns.expect("requests"), (portions - 1) * 20 * MS);
            assert_eq!((p50_ns / MS, service.continued), ((HEAD_NS + later_ns) / MS, 0), "{but:?}");
            let timed = service.path.iter().filter(|part| part.hops.iter().any(|hop| hop.kind == HopKind::Timer));
            assert!(timed.map(|part| part.ns).sum::<u64>() >= 8 * (later_ns - MS), "{but:?}: {:#?}", service.path);
        }
    }

    #[test]
    fn streams_and_slow_clients_begin_with_their_first_portion() {
        for but in [But::Thinks, But::Unequal, But::Room, But::Given, But::Lines, But::Two] {
            let service = service(&downloads(but));
            assert_eq!(service.p50_ns, Some(HEAD_NS), "{but:?}");
            // What is counted is not all that a client may wait for.
            let last = match but {
                But::Two => 20,
                But::Unequal => 40,
                _ => 80,
            };
            let each = service.continued_ns / 8;
            assert_eq!((service.continued, each / MS), (8, last), "{but:?}");
        }
    }

    #[test]
    fn a_saved_case_keeps_the_sleeps_that_tell_it() {
        let timeline = downloads(But::Nothing);
        let whole = service(&timeline);
        assert_eq!(service(&reduced(timeline)).p50_ns, whole.p50_ns);
    }
}
