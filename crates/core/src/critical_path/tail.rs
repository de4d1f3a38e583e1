//! The slowest requests of a service, followed apart from the others: what they wait for is not what most requests wait for, and among
//! a few hundred evenly chosen ones it hardly shows.
//!
//! A request that a slice cut belongs to them if what was seen of it is long enough; how much longer it took is not known.
use std::collections::BTreeMap;

use parshall_evidence::{FlowId, Tail};

use super::index::Index;
use super::latency::Latency;
use super::path::{Paths, evenly};
use super::requests::Request;
use super::step::Piece;
use super::walk;
use crate::sorting::{IntoOrdered as _, StableSort as _};
use crate::stats::Spans;

/// Of fewer requests none is told apart from the others.
const REQUESTS_MIN: usize = 40;
/// The tail has at least this many requests.
const SLOWEST_MIN: usize = 10;
/// Those that take this many times the median or longer are the tail, where there are such and they are fewer than 5 %.
const SLOW_TIMES: u64 = 10;
/// Requests whose time is followed.
const FOLLOWED_MAX: usize = 200;
/// A request waits behind one other if that was worked on for this part of its wait.
const BEHIND_ONE: f64 = 0.5;
/// Blockers that are named.
const BLOCKERS_MAX: usize = 3;

/// The tail of a service's requests, without those that were abandoned; None where too few were seen.
pub fn of(index: &Index<'_>, outbound: bool, requests: &[Request], latency: &Latency) -> Option<Tail> {
    let timeline = index.timeline;
    if timeline.left_out > 0 && !timeline.has_tails {
        return None;
    }
    let from_ns = threshold(requests, latency)?;
    let slowest: Vec<Request> = requests.iter().filter(|r| r.ns() >= from_ns).copied().collect();
    let ns = slowest.iter().fold(0, |sum: u64, r| sum.saturating_add(r.ns()));
    // Those that only make up the number tell nothing of when and where it is slow.
    let slow = || slowest.iter().filter(|r| r.ns().saturating_mul(2 * slowest.len() as u64) >= ns);
    let spans = Spans::union(slow().map(|r| (r.arrived_ns, r.end_ns)).collect());
    let mut tail = Tail {
        from_ns,
        requests: slowest.len() as u64,
        connections: slow().map(|r| r.socket).into_set().len() as u64,
        moments: spans.len() as u64,
        ns,
        ..Tail::default()
    };
    let reads = Reads::new(requests);
    let mut paths = Paths::new(index);
    let mut blockers: BTreeMap<FlowId, u64> = BTreeMap::new();
    for request in evenly(&slowest, FOLLOWED_MAX) {
        let pieces = if outbound { walk::sent(index, request) } else { walk::served(index, request) };
        tail.followed_requests += 1;
        tail.followed_ns += pieces.iter().map(|p| p.ns).sum::<u64>();
        paths.add(&pieces);
        let queued_ns: u64 = pieces.iter().filter(|p| is_queued(p)).map(|p| p.ns).sum();
        let behind = if outbound || queued_ns == 0 { None } else { reads.behind_one(request) };
        if let Some(blocker) = behind {
            tail.behind_one += 1;
            tail.behind_one_ns += queued_ns;
            if let Some(socket) = blocker {
                *blockers.entry(socket).or_default() += queued_ns;
            }
        }
    }
    tail.path = paths.finish();
    tail.blockers = named(index, blockers);
    Some(tail)
}

/// The time from which on a request belongs to the tail.
fn threshold(requests: &[Request], latency: &Latency) -> Option<u64> {
    let mut times: Vec<u64> = requests.iter().filter(|r| !r.cut).map(Request::ns).collect();
    if times.len() < REQUESTS_MIN {
        return None;
    }
    times.sort_unstable_by(|a, b| b.cmp(a));
    let tenth = times[SLOWEST_MIN - 1];
    let p95 = latency.p95_ns.unwrap_or(times[times.len() / 20]);
    let slow = latency.p50_ns?.saturating_mul(SLOW_TIMES);
    let from = if slow <= times[0] { p95.max(slow) } else { p95 };
    Some(from.min(tenth).max(1))
}

/// It lay in the service's own socket meanwhile, and not in that of a service behind it.
fn is_queued(piece: &Piece) -> bool {
    piece.steps.first().is_some_and(|step| step.kind.is_queue())
}

/// The other ends of the connections behind whose requests others waited, and the processes that hold them where these are known.
fn named(index: &Index<'_>, blockers: BTreeMap<FlowId, u64>) -> Vec<String> {
    let mut sockets: Vec<(FlowId, u64)> = blockers.into_iter().collect();
    sockets.stable_sort_by_key(|&(id, ns)| (std::cmp::Reverse(ns), id));
    let name = |(id, _): (FlowId, u64)| {
        let remote = index.socket(id)?.remote;
        Some(match index.peer(id) {
            Some(peer) if !peer.process.is_empty() => format!("{remote} ({} {})", peer.process, peer.pid),
            _ => remote.to_string(),
        })
    };
    sockets.into_iter().filter_map(name).take(BLOCKERS_MAX).collect()
}

/// When each thread read requests, in order, and until when it had each of them.
struct Reads {
    by_thread: BTreeMap<u32, Vec<(u64, u64, FlowId)>>,
}

impl Reads {
    fn new(requests: &[Request]) -> Reads {
        let mut by_thread: BTreeMap<u32, Vec<(u64, u64, FlowId)>> = BTreeMap::new();
        for request in requests {
            by_thread.entry(request.read_tid).or_default().push((request.read_ns, request.end_ns, request.socket));
        }
        by_thread.values_mut().for_each(|reads| reads.sort_unstable());
        Reads { by_thread }
    }

    /// Whether the thread that read a request read no other one for most of the time for which that one lay unread, so that what it
    /// did was one thing. If that was a request, its connection: the one that it had read last and not answered by then.
    fn behind_one(&self, request: &Request) -> Option<Option<FlowId>> {
        let reads = self.by_thread.get(&request.read_tid)?;
        let (lo, hi) = (request.arrived_ns, request.read_ns);
        let first = reads.partition_point(|&(at, ..)| at <= lo).saturating_sub(1);
        let end = reads.partition_point(|&(at, ..)| at < hi);
        let within = reads.get(first..end).unwrap_or(&[]);
        let until = |i: usize| within.get(i + 1).map_or(hi, |&(at, ..)| at);
        let own = |i: usize| until(i).saturating_sub(within[i].0.max(lo));
        let (mut longest, mut blocker) = (within.first().map_or(hi - lo, |&(at, ..)| at.saturating_sub(lo)), None);
        for (i, &(at, ended, socket)) in within.iter().enumerate() {
            if own(i) > longest {
                longest = own(i);
                // It may have been answered before the wait began.
                let worked_on = ended.min(until(i)).saturating_sub(at.max(lo));
                blocker = (worked_on * 2 >= longest && socket != request.socket).then_some(socket);
            }
        }
        (longest as f64 >= BEHIND_ONE * (hi - lo) as f64).then_some(blocker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(socket: FlowId, arrived_ns: u64, read_ns: u64, end_ns: u64) -> Request {
        Request {
            socket,
            arrived_ns,
            accepted: None,
            read_ns,
            read_tid: 7,
            end_ns,
            reply_tid: Some(7),
            cut: false,
            overlaps: false,
            polls: false,
            job: false,
            in_pieces: false,
        }
    }

    /// A request after the other, of these lengths.
    fn of_lengths(lengths: impl IntoIterator<Item = u64>) -> Vec<Request> {
        let mut at = 0;
        let next = |ns| {
            at += 2 * ns + 1;
            request(1, at - ns, at - ns, at)
        };
        lengths.into_iter().map(next).collect()
    }

    fn from(lengths: impl IntoIterator<Item = u64>, p50_ns: u64, p95_ns: Option<u64>) -> Option<u64> {
        threshold(&of_lengths(lengths), &Latency { p50_ns: Some(p50_ns), p95_ns, p99_ns: None })
    }

    #[test]
    fn the_tail_is_what_is_much_slower_and_ten_requests_at_least() {
        assert_eq!(from(1..=39, 20, None), None, "too few");
        assert_eq!(from(1..=40, 20, None), Some(31), "the slowest ten");
        assert_eq!(from(1..=1_000, 500, None), Some(950), "the slowest 5 %");
        assert_eq!(from(1..=1_000, 500, Some(970)), Some(970), "as estimated with those that were cut");
        // 20 of 1,000 take ten times as long and longer.
        let some = || (0..1_000).map(|n| if n < 20 { 50 + n } else { 1 });
        assert_eq!(from(some(), 1, None), Some(10));
        // Of five such requests and others, the slowest ten.
        let few = || (0..1_000).map(|n| if n < 5 { 5_000 } else { 50 + n });
        assert_eq!(from(few(), 400, None), Some(1_045));
    }

    #[test]
    fn what_was_cut_at_its_begin_does_not_move_the_threshold() {
        let mut requests = of_lengths(1..=1_000);
        let latency = Latency { p50_ns: Some(500), ..Latency::default() };
        requests.iter_mut().for_each(|request| request.cut = request.ns() > 960);
        assert_eq!(threshold(&requests, &latency), Some(912));
    }

    #[test]
    fn one_request_that_is_worked_on_for_most_of_the_wait() {
        let behind = |requests: Vec<Request>, waits: Request| Reads::new(&requests).behind_one(&waits);
        let waits = request(1, 100, 1_000, 1_010);
        // 2 is worked on all the time.
        assert_eq!(behind(vec![request(2, 50, 60, 990), waits], waits), Some(Some(2)));
        // 3 was read before 2 and is answered after it: it is not what the thread worked on.
        let others = vec![request(3, 40, 50, 995), request(2, 50, 60, 990), waits];
        assert_eq!(behind(others, waits), Some(Some(2)));
        // Many short ones.
        let many = (0..9).map(|n| request(10 + n, 100, 100 + 100 * n, 190 + 100 * n)).chain([waits]).collect();
        assert_eq!(behind(many, waits), None);
        // Something else than a request, after one that was answered.
        assert_eq!(behind(vec![request(2, 50, 60, 110), waits], waits), Some(None));
        assert_eq!(behind(vec![waits], waits), Some(None));
    }
}
