//! Whether a connection carries one request at a time, judged by when its calls were, where nothing is known of the messages.
//!
//! A call that is near to the call before in the same direction belongs to it: requests are read and replies are sent in pieces. Of calls
//! that are apart, a protocol with one request at a time shows in turns some of one direction and some of the other, as many as there are
//! pieces: the two numbers have nothing to do with each other. Where several requests are under way, every reply belongs to a request,
//! so the numbers differ from turn to turn and are the same in sum.
//!
//! A server may also send by itself (pushes, subscriptions). Data that a client sends meanwhile is no request then, if the server's next
//! data comes when it would have come anyway.
use super::messages::Part;
use crate::sorting::IntoOrdered as _;

/// A call this long after the call before in its direction is apart from it.
const APART_NS: u64 = 100_000;
/// Turns of either direction that tell something.
const TURNS_MIN: usize = 4;
/// Turns of several moves: in all, and those with more in one direction, for each direction.
const SEVERAL_MIN: usize = 3;
const UNEVEN_MIN: usize = 3;
/// See [`returns`].
const RETURNS: i64 = 2;
/// Replies that tell whether a server sends by itself.
const UNASKED_MIN: usize = 4;
const ASKED_MIN: usize = 2;
const PERIODS_MIN: usize = 8;
/// An acknowledgement of a push has no more bytes.
const ACKNOWLEDGEMENT_MAX: u32 = 32;

/// A call that moved a request or a reply, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// In the direction of requests.
    pub asks: bool,
    /// When its first byte arrived, or when the call that sent it began.
    pub since_ns: u64,
    /// When the call was done.
    pub at_ns: u64,
    /// Bytes moved.
    pub bytes: u32,
    /// The number of the call.
    pub call: usize,
}

/// The moves that are apart from those before in the same direction.
pub fn apart(moves: &[Move], parts: &[Part]) -> Vec<Move> {
    let mut kept = Vec::new();
    let mut before: Option<Move> = None;
    for one in moves.iter().filter(|one| !matches!(parts[one.call], Part::Control)) {
        let rest = parts[one.call] == Part::Rest;
        let goes_on =
            |last: Move| last.asks == one.asks && (rest || one.since_ns < last.at_ns.saturating_add(APART_NS));
        if !before.is_some_and(goes_on) {
            kept.push(*one);
        }
        before = Some(*one);
    }
    kept
}

/// Whether several requests are under way on a connection of which these moves were seen in a slice.
pub fn overlaps(apart: &[Move]) -> bool {
    let turns = turns(apart);
    let several: Vec<(i64, i64)> = turns.iter().copied().filter(|(asked, replied)| asked.max(replied) > &1).collect();
    if turns.len() < TURNS_MIN || several.len() < SEVERAL_MIN {
        return false;
    }
    let uneven = several.iter().filter(|(asked, replied)| asked != replied).count();
    if uneven * 4 <= several.len() {
        // Batches of different sizes, each answered before the next one.
        let sizes = several.iter().filter(|(asked, replied)| asked == replied).map(|(asked, _)| *asked);
        return sizes.into_set().len() > 1;
    }
    let more = |asks: bool| several.iter().filter(|(a, r)| if asks { a > r } else { r > a }).count();
    more(true) >= UNEVEN_MIN && more(false) >= UNEVEN_MIN && returns(&turns)
}

/// Whether the number of open requests comes back again and again. Numbers of pieces, which have nothing to do with each other, add up to
/// a random walk: after steps whose squares sum to S its range is larger than the root of S / 2 nearly always.
fn returns(turns: &[(i64, i64)]) -> bool {
    let (mut open, mut least, mut most, mut squares) = (0_i64, 0, 0, 0);
    for (asked, replied) in turns {
        let step = asked - replied;
        open += step;
        squares += step * step;
        (least, most) = (least.min(open), most.max(open));
    }
    let range: i64 = most - least;
    range * range * RETURNS <= squares
}

/// How many moves of either direction followed each other, in turns. A connection that begins with what the server sends has that left
/// out: nothing is known of what it belongs to.
fn turns(apart: &[Move]) -> Vec<(i64, i64)> {
    let mut turns: Vec<(i64, i64)> = Vec::new();
    for one in apart.iter().skip_while(|one| !one.asks) {
        match (one.asks, turns.last_mut()) {
            (true, Some(turn)) if turn.1 == 0 => turn.0 += 1,
            (true, _) => turns.push((1, 0)),
            (false, Some(turn)) => turn.1 += 1,
            (false, None) => {}
        }
    }
    turns
}

/// How a server sends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushes {
    /// The usual time between two of them.
    pub interval_ns: u64,
}

impl Pushes {
    /// Whether what the server sent at `at_ns` answers what the client sent at `asked_ns`: soon after it, and not when a push was due.
    pub fn is_reply(self, apart: &[Move], asked_ns: u64, at_ns: u64) -> bool {
        let before = apart.iter().rev().find(|one| !one.asks && one.since_ns < at_ns);
        let due =
            before.is_some_and(|before| (at_ns - before.since_ns).abs_diff(self.interval_ns) * 5 <= self.interval_ns);
        at_ns.saturating_sub(asked_ns) < self.interval_ns / 4 && !due
    }
}

/// Whether what the server sends is independent of what the client sends.
pub fn pushes(apart: &[Move]) -> Option<Pushes> {
    let mut intervals: Vec<(u64, bool)> = Vec::new();
    let mut waits = Vec::new();
    let (mut last, mut asked): (Option<u64>, Option<u64>) = (None, None);
    let asked_for = apart.iter().filter(|one| one.asks).count();
    let replies = apart.len() - asked_for;
    let small = apart.iter().filter(|one| one.asks).all(|one| one.bytes <= ACKNOWLEDGEMENT_MAX);
    for one in apart {
        if one.asks {
            asked = asked.or(Some(one.since_ns));
            continue;
        }
        intervals.extend(last.map(|last| (one.since_ns.saturating_sub(last), asked.is_some())));
        waits.extend(asked.take().map(|asked| one.since_ns.saturating_sub(asked)));
        last = Some(one.since_ns);
    }
    let of = |asked: bool| sorted(intervals.iter().filter(|(_, of)| *of == asked).map(|(ns, _)| *ns));
    let (unasked, after_request, all) = (of(false), of(true), sorted(intervals.iter().map(|(ns, _)| *ns)));
    let waits = sorted(waits.into_iter());
    let pushed = Pushes { interval_ns: at(&all, 50) };
    // As often without a request before, and no sooner with one. A reply in pieces may look so, too, but then it comes a certain time after
    // its request.
    let alike = |a: u64, b: u64| a <= b + b / 2 && b <= a + a / 2;
    let unlike_replies = spread(&waits) * 2 >= at(&waits, 50) || small;
    let regardless = unasked.len() >= UNASKED_MIN
        && unasked.len() >= after_request.len()
        && after_request.len() >= ASKED_MIN
        && replies >= 2 * asked_for
        && alike(at(&unasked, 50), at(&after_request, 50))
        && unlike_replies;
    // The intervals are more even than the times since requests: a reply is at least as uneven as what it waits for. Replies of a server
    // that looks for requests at certain times are so, too.
    let even = small
        && all.len() >= PERIODS_MIN
        && waits.len() >= PERIODS_MIN
        && spread(&all) * 5 <= at(&all, 50)
        && spread(&all) * 2 < spread(&waits);
    (regardless || even).then_some(pushed)
}

/// A move of the client that no reply is owed for: it acknowledges one of several pushes, and nothing was ever replied.
pub fn is_acknowledgement(apart: &[Move], one: &Move) -> bool {
    let before = apart.iter().take_while(|other| other.call < one.call);
    let pushes = before.filter(|other| !other.asks).count();
    let replies = apart.windows(2).any(|two| two[0].asks && !two[1].asks);
    one.bytes <= ACKNOWLEDGEMENT_MAX && pushes >= 2 && !replies
}

/// The last part of a reply comes so long after the one before, at least.
const LATE_NS: u64 = 10_000_000;
/// Fewer replies in two parts may be so by chance.
const LATE_MIN: usize = 5;
/// The wait for the last part divided by this: a request that follows at once comes within that time.
const AT_ONCE: u64 = 10;

/// The last moves of the replies, where a reply only says at first that its request has come, and its client waits for the rest: nearly
/// every reply has two parts with a long time between them, and the next request follows the last part at once. A server that sends by
/// itself is not asked again when it has, and parts of what is sent piece by piece are near to each other.
pub fn late_ends(apart: &[Move]) -> Option<Vec<Move>> {
    let (mut ends, mut turns) = (Vec::new(), 0);
    let mut begin = apart.iter().position(|one| one.asks)?;
    while let Some(next) = apart[begin..].iter().position(|one| !one.asks).map(|n| begin + n) {
        let after = apart[next..].iter().position(|one| one.asks).map_or(apart.len(), |n| next + n);
        let Some(asked) = apart.get(after) else { break };
        turns += 1;
        let (first, last) = (apart[next], apart[after - 1]);
        let late = last.since_ns.saturating_sub(apart[(after - 1).max(next + 1) - 1].at_ns);
        let at_once = |from: u64, to: u64| to.saturating_sub(from) <= late / AT_ONCE;
        let waits = after - next >= 2 && late >= LATE_NS && at_once(apart[begin].since_ns, first.since_ns);
        if waits && at_once(last.at_ns, asked.since_ns) {
            ends.push(last);
        }
        begin = after;
    }
    (ends.len() >= LATE_MIN && ends.len() * 5 >= turns * 4).then_some(ends)
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values
}

/// The value at this per cent of sorted values; 0 of none.
fn at(sorted: &[u64], percent: usize) -> u64 {
    sorted.get((sorted.len().saturating_sub(1)) * percent / 100).copied().unwrap_or(0)
}

fn spread(sorted: &[u64]) -> u64 {
    at(sorted, 90) - at(sorted, 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Moves in turns: requests (`r`) and replies (`s`), with the milliseconds at which they are; a quarter as short pieces (`.`) behind.
    fn moves(of: impl IntoIterator<Item = (char, f64)>) -> Vec<Move> {
        let of = of.into_iter().enumerate().map(|(call, (direction, at_ms))| {
            let at = (at_ms * MS as f64) as u64;
            Move { asks: direction == 'r', since_ns: at, at_ns: at + 5_000, bytes: 100, call }
        });
        let all: Vec<Move> = of.collect();
        apart(&all, &vec![Part::Data; all.len()])
    }

    /// Repeats a pattern every `period_ms`.
    fn repeated(pattern: &[(char, f64)], period_ms: f64, times: usize) -> Vec<(char, f64)> {
        let round = |n: usize| pattern.iter().map(move |&(direction, at)| (direction, at + n as f64 * period_ms));
        (0..times).flat_map(round).collect()
    }

    #[test]
    fn replies_that_belong_to_several_requests_overlap() {
        // Two or three requests are answered in turn, and every reply comes 7 to 20 ms after its request.
        let pattern =
            [('r', 0.0), ('r', 3.0), ('s', 8.0), ('r', 10.0), ('s', 14.0), ('s', 18.0), ('r', 20.0), ('s', 27.0)];
        assert!(overlaps(&moves(repeated(&pattern, 30.0, 6))));
        // Batches of different sizes.
        let batch = |n: usize, at: f64| {
            (0..n).map(move |i| ('r', at + i as f64)).chain((0..n).map(move |i| ('s', at + 20.0 + i as f64)))
        };
        let batches = [2, 5, 3, 1, 4, 2].into_iter().enumerate().flat_map(|(n, size)| batch(size, n as f64 * 50.0));
        assert!(overlaps(&moves(batches)));
    }

    #[test]
    fn one_request_at_a_time_does_not_overlap_however_it_is_cut() {
        let serial = |pattern: &[(char, f64)]| !overlaps(&moves(repeated(pattern, 40.0, 20)));
        assert!(serial(&[('r', 0.0), ('s', 10.0)]));
        // A request in pieces, one of them late; a reply in pieces; both.
        assert!(serial(&[('r', 0.0), ('r', 5.0), ('r', 9.0), ('s', 20.0)]));
        assert!(serial(&[('r', 0.0), ('s', 10.0), ('s', 12.0), ('s', 14.0)]));
        assert!(serial(&[('r', 0.0), ('r', 5.0), ('s', 10.0), ('s', 15.0)]));
        // Uploads of different lengths, each with one reply.
        let upload = |n: usize| (0..n).map(|i| ('r', i as f64 * 2.0)).chain([('s', 30.0)]).collect::<Vec<_>>();
        let uploads = [3, 5, 2, 7, 4].iter().enumerate().flat_map(|(n, size)| {
            repeated(&upload(*size), 0.0, 1).into_iter().map(move |(d, at)| (d, at + n as f64 * 50.0))
        });
        assert!(!overlaps(&moves(uploads)));
        // Short requests, and some with a body that have a reply in two pieces.
        let mixed = [('r', 0.0), ('s', 2.0), ('r', 10.0), ('r', 12.0), ('s', 20.0), ('s', 25.0)];
        assert!(serial(&mixed));
    }

    #[test]
    fn pieces_of_requests_and_replies_are_no_overlap_however_many() {
        // A linear congruential generator: the numbers of pieces of both directions are independent.
        let mut seed = 1_u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let mut found = 0;
        for _ in 0..1_000 {
            let (most, turns) = (2 + next(3), 10 + next(200));
            let mut at = 0.0;
            let mut all = Vec::new();
            for _ in 0..turns {
                for direction in ['r', 's'] {
                    for _ in 0..=next(most) {
                        at += 2.0 + next(10) as f64;
                        all.push((direction, at));
                    }
                }
            }
            found += u32::from(overlaps(&moves(all)));
        }
        assert!(found <= 20, "{found} of 1000");
    }

    #[test]
    fn many_requests_side_by_side_overlap() {
        // Four at a time at most, each of which takes 5 to 90 ms.
        let mut seed = 1_u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let mut all: Vec<(char, f64)> = Vec::new();
        let mut slots = [0.0_f64; 4];
        for _ in 0..200 {
            let slot = (0..4).min_by(|a, b| slots[*a].total_cmp(&slots[*b])).expect("four");
            let asked = slots[slot] + 2.0 + next(40) as f64;
            let replied = asked + 5.0 + next(85) as f64;
            slots[slot] = replied;
            all.extend([('r', asked), ('s', replied)]);
        }
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        let all = moves(all);
        assert!(overlaps(&all) && pushes(&all).is_none());
    }

    #[test]
    fn a_reader_of_single_bytes_reads_one_request() {
        let byte = |n: u64, at: u64| Move { asks: true, since_ns: at, at_ns: at + n * 2_000, bytes: 1, call: 0 };
        let mut all = Vec::new();
        for round in 0..20_u64 {
            let at = round * 10 * MS;
            // All had arrived with the first.
            all.extend((0..60).map(|n| byte(n, at)));
            all.push(Move { asks: false, since_ns: at + MS, at_ns: at + MS, bytes: 10, call: 0 });
        }
        let apart = apart(&all, &[Part::Data]);
        assert_eq!(apart.len(), 40);
        assert!(!overlaps(&apart));
    }

    #[test]
    fn a_server_that_sends_at_its_own_times_pushes() {
        // Every 100 ms, and the client says something at times.
        let of = |n: usize| {
            [('s', n as f64 * 100.0)]
                .into_iter()
                .chain((n % 3 == 1).then_some(('r', n as f64 * 100.0 + (n * 37 % 90) as f64)))
        };
        let pushed = pushes(&moves((0..30).flat_map(of))).expect("pushes");
        assert_eq!(pushed.interval_ns, 100 * MS);
        // An answer to each push, after a time that differs: the pushes are even and the times since the answers are not.
        let of = |n: usize| [('s', n as f64 * 100.0), ('r', n as f64 * 100.0 + 5.0 + (n * 37 % 80) as f64)];
        let mut answered = moves((0..30).flat_map(of));
        assert_eq!(pushes(&answered), None, "a server may look for requests every 100 ms");
        answered.iter_mut().filter(|one| one.asks).for_each(|one| one.bytes = 6);
        assert!(pushes(&answered).is_some());
    }

    #[test]
    fn replies_are_no_pushes_however_even_or_cut() {
        // A client that asks again at once or after a while, of a server that takes a certain time.
        let even = repeated(&[('r', 0.2), ('s', 100.0)], 100.0, 30);
        assert_eq!(pushes(&moves(even)), None);
        let mut at = 0.0;
        let thinks = (0..30).flat_map(|n| {
            at += 5.0 + f64::from(n * 37 % 80);
            let asked = at;
            at += 30.0;
            [('r', asked), ('s', asked + 30.0)]
        });
        assert_eq!(pushes(&moves(thinks.collect::<Vec<_>>())), None);
        // Replies in many pieces, the first of which takes longer, or as long as the others.
        let pieces = |first: f64| {
            let pattern: Vec<_> =
                [('r', 0.0)].into_iter().chain((0..6).map(|n| ('s', first + f64::from(n) * 5.0))).collect();
            repeated(&pattern, first + 26.0, 20)
        };
        for first in [5.0, 40.0, 200.0] {
            assert_eq!(pushes(&moves(pieces(first))), None, "{first}");
        }
        // A single download.
        assert_eq!(pushes(&moves(pieces(50.0).into_iter().take(7))), None);
    }

    #[test]
    fn what_follows_pushes_may_be_an_acknowledgement() {
        let mut seen = moves([('s', 0.0), ('s', 50.0), ('r', 51.0)]);
        assert!(!is_acknowledgement(&seen, &seen[2]), "it is long");
        seen[2].bytes = 6;
        assert!(is_acknowledgement(&seen, &seen[2]));
        let mut replied = moves([('r', 0.0), ('s', 5.0), ('s', 50.0), ('r', 51.0)]);
        replied[3].bytes = 6;
        assert!(!is_acknowledgement(&replied, &replied[3]), "the client asks for things");
        let mut first = moves([('s', 0.0), ('r', 51.0)]);
        first[1].bytes = 6;
        assert!(!is_acknowledgement(&first, &first[1]), "a server that greets");
    }

    #[test]
    fn a_reply_whose_client_waits_for_its_last_part_ends_with_that() {
        let all = |moves: Vec<Move>| {
            let parts = vec![Part::Data; moves.len()];
            late_ends(&apart(&moves, &parts)).map(|ends| ends.len())
        };
        // A job is accepted at once, and its result comes 50 ms later.
        let jobs = |next: f64| {
            moves((0..8).flat_map(|n| {
                let at = f64::from(n) * (50.5 + next);
                [('r', at), ('s', at + 0.3), ('s', at + 50.0)]
            }))
        };
        assert_eq!(all(jobs(0.2)), Some(7));
        // The client asks at times of its own: what came last may have been a push.
        assert_eq!(all(jobs(30.0)), None);
        // A reply in two parts that are near to each other, and one that comes late as a whole.
        let near = (0..8).flat_map(|n| {
            [('r', f64::from(n) * 60.0), ('s', f64::from(n) * 60.0 + 50.0), ('s', f64::from(n) * 60.0 + 52.0)]
        });
        assert_eq!(all(moves(near)), None);
        let whole = (0..8).flat_map(|n| [('r', f64::from(n) * 60.0), ('s', f64::from(n) * 60.0 + 59.0)]);
        assert_eq!(all(moves(whole)), None);
    }
}
