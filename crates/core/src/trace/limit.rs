//! Keeps a trace small enough for a page.
use std::collections::BTreeSet;

use super::lane::{Draft, Lane, Span};
use super::state::{KINDS, Kind, State};
use crate::sorting::IntoOrdered as _;

/// The first threshold that is tried.
const FIRST_NS: u64 = 1_000;

/// Drops the lanes with the least waits, and returns how many. Each kind may have an equal part, and what others leave.
pub fn lanes(lanes: &mut Vec<Draft>, most: usize) -> u64 {
    if lanes.len() <= most {
        return 0;
    }
    let mut order: Vec<usize> = (0..lanes.len()).collect();
    order.sort_by_cached_key(|&at| (std::cmp::Reverse(lanes[at].waits_ns()), at));
    let mut rank = [0usize; KINDS];
    // The nth of its kind competes with the nth of the others.
    let mut ranked: Vec<(usize, usize)> = Vec::with_capacity(order.len());
    for at in order {
        let kind = lanes[at].of.kind() as usize;
        ranked.push((rank[kind], at));
        rank[kind] += 1;
    }
    ranked.sort_unstable();
    let kept: BTreeSet<usize> = ranked.into_iter().take(most).map(|(_, at)| at).into_set();
    let before = lanes.len();
    let mut at = 0;
    lanes.retain(|_| {
        at += 1;
        kept.contains(&(at - 1))
    });
    (before - lanes.len()) as u64
}

/// Joins short spans of threads and leaves out short ones of others until no more than `most` are left. Returns the length below which
/// spans are not whole, 0 where all are.
pub fn spans(lanes: &mut [Lane], most: usize) -> u64 {
    let (mut below_ns, mut applied_ns) = (FIRST_NS, 0);
    while lanes.iter().map(|lane| lane.spans.len()).sum::<usize>() > most {
        for lane in lanes.iter_mut() {
            match lane.kind {
                Kind::Thread => lane.spans = joined(&lane.spans, below_ns),
                Kind::Requests | Kind::Socket | Kind::Uring => lane.spans.retain(|span| span.ns() >= below_ns),
                // Moments: a capture has only some thousands.
                Kind::Log => {}
            }
        }
        applied_ns = below_ns;
        if below_ns > u64::MAX / 2 {
            lanes.iter_mut().for_each(|lane| lane.spans.truncate(1));
            break;
        }
        below_ns *= 2;
    }
    applied_ns
}

/// Spans shorter than `below_ns` that follow each other with gaps no longer than that become one.
fn joined(spans: &[Span], below_ns: u64) -> Vec<Span> {
    let mut out: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        let short = span.ns() < below_ns || span.state == State::Many;
        match out.last_mut() {
            Some(last)
                if short
                    && (last.state == State::Many || last.ns() < below_ns)
                    && span.begin_ns.saturating_sub(last.end_ns) <= below_ns =>
            {
                let begin_ns = last.begin_ns;
                *last = Span {
                    begin_ns,
                    end_ns: span.end_ns.max(last.end_ns),
                    state: State::Many,
                    text: 0,
                    ended_by: None,
                    stack: None,
                };
            }
            _ => out.push(*span),
        }
    }
    out
}
