//! Limits on the requests that are under way at a time, found by counting: while more are outstanding than are passed on to the next
//! server, as many as ever are under way there.
//!
//! Little's law tells the rest: with one more under way, those that wait have fewer before them.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::timeline::{Op, SocketCall, Timeline};
use parshall_evidence::{FlowId, Limit};

use super::requests::{self, Request};
use crate::sorting::IntoOrdered as _;
use crate::stats::Spans;

/// A number of requests under way that is exceeded for less than this share of the time is the most: what a slice cut, and what is
/// sent as the next one is answered, may overlap for a moment.
const EXCEEDED: f64 = 0.02;
/// The limit is reached for this share of the time in which more requests are outstanding than it lets through.
const REACHED: f64 = 0.75;
/// In this share of the time with requests more are outstanding than the limit lets through.
const BEYOND: f64 = 0.25;
/// Fewer that were passed on tell no limit.
const PASSED_MIN: usize = 8;
/// From one time to another, something was under way.
type Span = (u64, u64);

/// The limits of a service: on what it reads, and on what it passes on to each server that it asks. `all` are its requests, and
/// `asking` the sockets on which its processes ask others. `passed_on` tells whether a request was answered with what a server said to
/// what it was asked for this one. `arrived` are the requests that arrived at all served sockets.
pub fn of_service(
    all: &[Request],
    asking: impl Iterator<Item = FlowId>,
    timeline: &Timeline,
    passed_on: impl Fn(&Request, SocketAddr) -> bool,
    arrived: &BTreeMap<FlowId, Vec<Request>>,
) -> Vec<Limit> {
    let outstanding: Vec<Span> = all.iter().map(|r| (r.arrived_ns, r.end_ns)).collect();
    let in_hands: Vec<Span> = all.iter().map(|r| (r.read_ns.min(r.end_ns), r.end_ns)).collect();
    let mut limits: Vec<Limit> = found(&outstanding, &in_hands, None).into_iter().collect();
    let mut passed: BTreeMap<SocketAddr, Vec<Span>> = BTreeMap::new();
    let mut connections: BTreeMap<SocketAddr, i64> = BTreeMap::new();
    let mut unclear = BTreeSet::new();
    for id in asking {
        let (Some(socket), Some(calls)) = (timeline.sockets.get(&id), timeline.calls.get(&id)) else { continue };
        let sent = requests::sent(id, calls, &timeline.slices);
        if sent.iter().any(|request| request.overlaps) {
            unclear.insert(socket.remote);
        }
        // Of several that were sent in one call, the server may have read more than the call showed.
        let there = socket.other_end.and_then(|end| arrived.get(&end)).filter(|there| there.len() > sent.len());
        let under_way = there.unwrap_or(&sent);
        // Where another one can be opened at any time, their number is no limit.
        let changes = socket.opened || socket.closed_ns.is_some();
        let known = connections.entry(socket.remote).or_default();
        *known = if changes || *known < 0 { -1 } else { *known + 1 };
        passed.entry(socket.remote).or_default().extend(under_way.iter().map(|r| (r.arrived_ns, r.end_ns)));
    }
    passed.retain(|remote, _| !unclear.contains(remote));
    limits.extend(passed.iter().filter_map(|(remote, under_way)| {
        let long_ones_are = || {
            let mean = all.iter().map(Request::ns).sum::<u64>() / (all.len() as u64).max(1);
            let long = || all.iter().filter(|r| r.reply_tid.is_some() && r.ns() >= mean);
            long().filter(|r| passed_on(r, *remote)).count() as f64 >= REACHED * long().count() as f64
        };
        let kept = || connections.get(remote).and_then(|kept| by_connections(&outstanding, under_way, *remote, *kept));
        let kept = || kept().filter(|_| long_ones_are());
        found(&outstanding, under_way, Some(*remote)).or_else(kept)
    }));
    limits
}

/// Share of the time in which a limit of one is reached that its thread spends blocked.
const BLOCKED: f64 = 0.5;

/// Whether a thread that asks a server for one request at a time is blocked in each question: it does nothing else from the question to the
/// answer, and requests that it reads later lie there unread. A thread that keeps to a limit reads them meanwhile, and has them wait for their turn.
/// `all` are the requests of its service, `asking` the calls on the sockets on which it asks, and `works` tells whether a thread had other
/// calls between two times.
pub fn is_blocked<'c>(
    limit: &Limit,
    all: &[Request],
    asking: impl Iterator<Item = &'c [SocketCall]>,
    works: impl Fn(u32, u64, u64) -> bool,
) -> bool {
    if limit.most != 1 {
        return false;
    }
    let mut unread: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for request in all {
        unread.entry(request.read_tid).or_default().push((request.arrived_ns, request.read_ns));
    }
    let unread: BTreeMap<u32, Spans> = unread.into_iter().map(|(tid, spans)| (tid, Spans::union(spans))).into_map();
    let mut blocked_ns = 0u64;
    for calls in asking {
        for pair in calls.windows(2) {
            let (asked, heard) = (&pair[0], &pair[1]);
            let is_one = (asked.op, heard.op) == (Op::Send, Op::Receive) && asked.tid == heard.tid;
            if is_one && !works(asked.tid, asked.at_ns + 1, heard.at_ns.saturating_sub(1)) {
                blocked_ns += unread.get(&asked.tid).map_or(0, |spans| spans.covered(asked.at_ns, heard.at_ns));
            }
        }
    }
    blocked_ns as f64 >= BLOCKED * limit.reached_ns as f64
}

/// A pool of `kept` connections, each of which belongs to one client for a while, idle or not.
fn by_connections(outstanding: &[Span], under_way: &[Span], next: SocketAddr, kept: i64) -> Option<Limit> {
    if kept < 1 || under_way.len() < PASSED_MIN {
        return None;
    }
    let counts = counted(outstanding, under_way);
    let ns_where = |more: i64| -> u64 { counts.iter().filter(|(_, all, _)| *all > more).map(|(ns, ..)| ns).sum() };
    let (any, beyond_ns) = (ns_where(0), ns_where(kept));
    // Connections that carry several requests at a time, as those of HTTP/2 do, belong to nobody.
    let shared = rarely_exceeded(&counts, EXCEEDED * any as f64).is_some_and(|most| most > kept);
    if shared || beyond_ns == 0 || (beyond_ns as f64) < REACHED * any as f64 || is_overtaken(outstanding, kept) {
        return None;
    }
    let beyond = counts.iter().filter(|(_, all, _)| *all > kept);
    let waiting: f64 = beyond.map(|(ns, all, _)| *ns as f64 * (all - kept) as f64).sum();
    // By Little's law, for their rate is that at which requests are answered.
    let each_ns = any.saturating_mul(kept.unsigned_abs()) / (outstanding.len() as u64).max(1);
    Some(Limit {
        next: Some(next),
        by_connections: true,
        blocks: false,
        most: u32::try_from(kept).unwrap_or(u32::MAX),
        waiting: waiting / beyond_ns as f64,
        reached_ns: beyond_ns,
        beyond_ns,
        each_ns,
    })
}

/// Whether most requests that come while more than `kept` are outstanding are answered before all of these: they did not have to wait for a
/// place, so that those wait for something else.
fn is_overtaken(outstanding: &[Span], kept: i64) -> bool {
    let kept = usize::try_from(kept).unwrap_or(0);
    let mut spans = outstanding.to_vec();
    spans.sort_unstable();
    let (mut came, mut overtook) = (0_usize, 0_usize);
    let mut open: Vec<u64> = Vec::new();
    for (begin, end) in spans {
        open.retain(|open_until| *open_until > begin);
        if open.len() > kept {
            came += 1;
            // With a place free, one of them would have had it.
            overtook += usize::from(open.iter().all(|open_until| *open_until > end));
        }
        open.push(end);
    }
    came > 0 && 2 * overtook > came
}

/// How many are outstanding, and how many of them under way, from each change to the next one.
fn counted(outstanding: &[Span], under_way: &[Span]) -> Vec<(u64, i64, i64)> {
    let mut changes: Vec<(u64, i64, i64)> = Vec::with_capacity(2 * (outstanding.len() + under_way.len()));
    for (begin, end) in outstanding {
        changes.extend([(*begin, 1, 0), (*end, -1, 0)]);
    }
    for (begin, end) in under_way {
        changes.extend([(*begin, 0, 1), (*end, 0, -1)]);
    }
    changes.sort_unstable_by_key(|change| change.0);
    let (mut all, mut passed) = (0, 0);
    let mut counts = Vec::with_capacity(changes.len());
    for (n, (at, more, more_passed)) in changes.iter().enumerate() {
        (all, passed) = (all + more, passed + more_passed);
        let until = changes.get(n + 1).map_or(*at, |next| next.0);
        counts.push((until - at, all, passed));
    }
    counts
}

/// The least number under way, from 1 on, that is exceeded for no longer than `rarely_ns`.
fn rarely_exceeded(counts: &[(u64, i64, i64)], rarely_ns: f64) -> Option<i64> {
    let mut ns_at: BTreeMap<i64, u64> = BTreeMap::new();
    for (ns, _, passed) in counts {
        *ns_at.entry(*passed).or_default() += ns;
    }
    let highest = *ns_at.keys().next_back()?;
    let mut above = 0;
    // From the highest down, to the first whose time would exceed it too long.
    let exceeds = ns_at.into_iter().rev().find(|(_, ns)| {
        above += ns;
        above as f64 > rarely_ns
    });
    let most = exceeds.map_or(1, |(passed, _)| passed).max(1);
    (highest >= 1).then_some(most)
}

/// The limit that the numbers of outstanding ones and of those under way show, if they show one.
pub fn found(outstanding: &[Span], under_way: &[Span], next: Option<SocketAddr>) -> Option<Limit> {
    if under_way.len() < PASSED_MIN {
        return None;
    }
    let counts = counted(outstanding, under_way);
    let ns_where = |holds: &dyn Fn(i64, i64) -> bool| -> u64 {
        counts.iter().filter(|(_, all, passed)| holds(*all, *passed)).map(|(ns, ..)| ns).sum()
    };
    let any = ns_where(&|all, _| all > 0);
    let most = rarely_exceeded(&counts, EXCEEDED * any as f64)?;
    let beyond_ns = ns_where(&|all, _| all > most);
    let reached = |all: i64, passed: i64| all > most && passed >= most;
    let reached_ns = ns_where(&reached);
    let is_limit = reached_ns as f64 >= REACHED * beyond_ns as f64 && beyond_ns as f64 >= BEYOND * any as f64;
    let weighted = counts.iter().filter(|(_, all, passed)| reached(*all, *passed));
    let waiting: f64 = weighted.map(|(ns, all, _)| *ns as f64 * (all - most) as f64).sum();
    let each_ns = under_way.iter().map(|(begin, end)| end.saturating_sub(*begin)).sum::<u64>() / under_way.len() as u64;
    (is_limit && reached_ns > 0).then(|| Limit {
        next,
        by_connections: false,
        blocks: false,
        most: u32::try_from(most).unwrap_or(u32::MAX),
        waiting: waiting / reached_ns as f64,
        reached_ns,
        beyond_ns,
        each_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight clients ask again at once; `at_once` of their requests are passed on at a time, for 10 each.
    fn through(at_once: usize) -> (Vec<Span>, Vec<Span>) {
        let (mut free, mut arrived) = (vec![0u64; at_once], [0u64; 8]);
        let (mut outstanding, mut under_way) = (Vec::new(), Vec::new());
        for n in 0..400 {
            let place = (0..at_once).min_by_key(|&i| free[i]).expect("a place");
            let begin = free[place].max(arrived[n % 8]);
            free[place] = begin + 10;
            under_way.push((begin, begin + 10));
            outstanding.push((arrived[n % 8], begin + 10));
            arrived[n % 8] = begin + 10;
        }
        (outstanding, under_way)
    }

    #[test]
    fn a_pool_lets_no_more_through_while_others_wait() {
        for at_once in [1, 2, 5] {
            let (outstanding, under_way) = through(at_once);
            let limit = found(&outstanding, &under_way, None).expect("a limit");
            assert_eq!(limit.most as usize, at_once);
            assert!((limit.waiting - (8 - at_once) as f64).abs() < 0.3, "{limit:?}");
            assert_eq!(limit.each_ns, 10);
        }
    }

    #[test]
    fn the_most_is_what_is_rarely_exceeded() {
        let counts = [(5, 0, 0), (80, 4, 2), (13, 4, 3), (2, 9, 9)];
        assert_eq!(rarely_exceeded(&counts, 2.0), Some(3));
        assert_eq!(rarely_exceeded(&counts, 15.0), Some(2));
        assert_eq!(rarely_exceeded(&counts, 1.0), Some(9));
        assert_eq!(rarely_exceeded(&counts, 100.0), Some(1));
        assert_eq!(rarely_exceeded(&[(5, 3, 0)], 0.0), None);
    }

    #[test]
    fn there_is_none_where_all_are_passed_on() {
        let (outstanding, under_way) = through(8);
        assert_eq!(found(&outstanding, &under_way, None), None);
    }

    #[test]
    fn what_is_asked_now_and_then_is_no_limit() {
        // Of eight that are worked on, one asks another server for a tenth of its time.
        let outstanding: Vec<Span> =
            (0..8).flat_map(|c| (0..50u64).map(move |n| (n * 10 + c, n * 10 + c + 10))).collect();
        let under_way: Vec<Span> = (0..50).map(|n| (n * 10, n * 10 + 1)).collect();
        assert_eq!(found(&outstanding, &under_way, None), None);
    }

    #[test]
    fn connections_that_are_kept_for_clients_are_a_limit_too() {
        let next = SocketAddr::from(([127, 0, 0, 1], 5432));
        let (outstanding, _) = through(2);
        // Within a transaction its client does something else for most of the time.
        let (_, under_way) = through(2);
        let under_way: Vec<Span> = under_way.iter().map(|(begin, _)| (*begin, begin + 2)).collect();
        assert_eq!(found(&outstanding, &under_way, Some(next)), None);
        let limit = by_connections(&outstanding, &under_way, next, 2).expect("a limit");
        assert!(limit.by_connections && (limit.waiting - 6.0).abs() < 0.3, "{limit:?}");
        assert_eq!(by_connections(&outstanding, &under_way, next, 8), None);
        // Three are under way on the two of them.
        let (_, three) = through(3);
        assert_eq!(by_connections(&outstanding, &three, next, 2), None);
        assert_eq!(by_connections(&outstanding, &under_way, next, -1), None);
    }

    #[test]
    fn who_is_overtaken_by_those_that_come_later_waits_for_no_connection() {
        // Five requests are held for long; others come meanwhile, and each is passed on and answered at once.
        let next = SocketAddr::from(([127, 0, 0, 1], 8000));
        let held = (0..5u64).map(|n| (n, 10_000));
        let quick = (1..200u64).map(|n| (n * 50, n * 50 + 1));
        let outstanding: Vec<Span> = held.chain(quick.clone()).collect();
        let under_way: Vec<Span> = quick.collect();
        assert_eq!(by_connections(&outstanding, &under_way, next, 2), None);
    }
}
