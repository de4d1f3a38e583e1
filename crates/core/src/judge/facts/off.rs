//! The long times off the CPU of one thread.
use parshall_evidence::{OffCpu, ThreadStall};

use crate::stats::{Largest, Spans, overlap};

/// The long times off the CPU of one thread.
#[derive(Debug, Default)]
pub struct Off {
    /// Indices into the capture, in order of time.
    stalls: Vec<usize>,
    /// When each begins and ends.
    spans: Vec<(u64, u64)>,
    /// Runnable, throttled, blocked.
    pub(super) by_why: [Spans; 3],
    /// Lengths of those in which it was blocked; 0 of the others.
    blocked: Largest,
}

impl Off {
    /// `stalls` are the thread's, in order of time, with their indices.
    pub fn new(indices: Vec<usize>, stalls: &[&ThreadStall]) -> Off {
        let spans: Vec<(u64, u64)> = stalls.iter().map(|s| (s.begin_ns, s.begin_ns.saturating_add(s.ns))).collect();
        let of = |why: OffCpu| {
            let own = stalls.iter().zip(&spans).filter(|(stall, _)| stall.why == why);
            Spans::union(own.map(|(_, span)| *span).collect())
        };
        let blocked = stalls.iter().map(|stall| if stall.why == OffCpu::Blocked { stall.ns } else { 0 });
        let by_why = [of(OffCpu::Runnable), of(OffCpu::Throttled), of(OffCpu::Blocked)];
        Off { by_why, blocked: Largest::of(blocked.collect()), spans, stalls: indices }
    }

    /// The time in which it was blocked for longest within a span: how long in there, and its index in the capture.
    pub(super) fn longest_within(&self, span: (u64, u64)) -> Option<(u64, usize)> {
        // A thread is off the CPU once at a time, so its stalls are disjoint and their ends are in order too: only the first and the
        // last reach out of the span.
        let from = self.spans.partition_point(|s| s.1 <= span.0);
        let to = self.spans.partition_point(|s| s.0 < span.1).max(from);
        let inner = self.blocked.within((from + 1).min(to)..to.saturating_sub(1).max(from));
        let mut longest = None;
        for at in
            [(from < to).then_some(from), inner, to.checked_sub(1).filter(|last| *last > from)].into_iter().flatten()
        {
            let ns = if self.blocked.is_zero(at) { 0 } else { overlap(self.spans[at], span) };
            if ns > 0 && longest.is_none_or(|(most, _)| ns > most) {
                longest = Some((ns, self.stalls[at]));
            }
        }
        longest
    }
}
