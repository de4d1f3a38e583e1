//! A selection of lost time, summed up.
use parshall_evidence::Release;

use super::part::{Blame, Part};
use super::prepared::Facts;
use crate::sorting::StableSort as _;
use crate::stats::{ratio, weighted_quantile};

/// Lost time of some parts, with what a finding says of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lost {
    /// In all, over all flows.
    pub ns: f64,
    /// By flow (index into [`Facts::flows`]), most first.
    pub by_flow: Vec<(usize, f64)>,
    /// Intervals, scaled to the window.
    pub count: u64,
    /// Intervals as observed.
    pub seen: u64,
    /// The count was scaled.
    pub scaled: bool,
    /// Median length of an interval in nanoseconds. An interval that a slice's begin or end cut tells only that it was
    /// longer: it counts where what was seen of it is longer than the median of those seen whole, or none was.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

impl Lost {
    /// Sums the parts that `take` chooses.
    pub fn of(facts: &Facts<'_>, take: impl Fn(&Part) -> bool) -> Lost {
        let mut by_flow = vec![0.0; facts.flows.len()];
        let (mut whole, mut cut) = (Vec::new(), Vec::new());
        let mut lost = Lost::default();
        let mut count = 0.0;
        for part in facts.parts.iter().filter(|p| take(p)) {
            let ledger = &facts.flows[part.flow].ledger;
            by_flow[part.flow] += part.ns;
            lost.ns += part.ns;
            lost.seen = lost.seen.saturating_add(part.count);
            lost.scaled |= ledger.scaled;
            count += part.count as f64 * ledger.scale.max(1.0);
            let lengths = if was_cut(facts, part) { &mut cut } else { &mut whole };
            lengths.push((part.each_ns, part.count.max(1) as f64));
        }
        let usual = weighted_quantile(&whole, 0.5).unwrap_or(0.0);
        let lengths: Vec<(f64, f64)> = whole.into_iter().chain(cut.into_iter().filter(|(ns, _)| *ns > usual)).collect();
        lost.count = count.round() as u64;
        lost.p50_ns = weighted_quantile(&lengths, 0.5).unwrap_or(0.0);
        lost.p99_ns = weighted_quantile(&lengths, 0.99).unwrap_or(0.0);
        lost.by_flow = by_flow.into_iter().enumerate().filter(|(_, ns)| *ns > 0.0).collect();
        lost.by_flow.stable_sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        lost
    }

    /// The flows that lost something worth naming: 5 % of the time in which they could have moved data.
    pub fn affected(&self, facts: &Facts<'_>) -> Vec<usize> {
        self.of_affected(facts).into_iter().map(|(flow, _)| flow).collect()
    }

    /// The same, with what each lost in nanoseconds.
    pub fn of_affected(&self, facts: &Facts<'_>) -> Vec<(usize, f64)> {
        let worth = |&&(flow, ns): &&(usize, f64)| ns >= 0.05 * facts.flows[flow].could_ns;
        let named: Vec<(usize, f64)> = self.by_flow.iter().filter(worth).copied().collect();
        if named.is_empty() { self.by_flow.clone() } else { named }
    }

    /// Share of the time in which the affected flows could have moved data, 0..=1.
    pub fn share(&self, facts: &Facts<'_>) -> f64 {
        let affected = self.of_affected(facts);
        let could: f64 = affected.iter().map(|&(flow, _)| facts.flows[flow].could_ns).sum();
        let lost: f64 = affected.iter().map(|(_, ns)| ns).sum();
        ratio(lost, could).min(1.0)
    }

    /// Lost time averaged over the affected flows, in milliseconds; never more than the window.
    pub fn mean_ms(&self, facts: &Facts<'_>) -> f64 {
        let affected = self.of_affected(facts);
        let lost: f64 = affected.iter().map(|(_, ns)| ns).sum();
        ratio(lost, affected.len() as f64).min(facts.capture.window_ns as f64) / 1e6
    }

    /// The flow that lost most.
    pub fn worst(&self) -> Option<usize> {
        self.by_flow.first().map(|(flow, _)| *flow)
    }
}

impl Facts<'_> {
    /// The lost time of the parts that `take` chooses.
    pub fn lost(&self, take: impl Fn(&Part) -> bool) -> Lost {
        Lost::of(self, take)
    }

    /// The lost time with one of these blames.
    pub fn blamed(&self, blames: &[Blame]) -> Lost {
        self.lost(|p| blames.contains(&p.blame))
    }
}

/// Its begin or its end is that of a slice, not its own.
fn was_cut(facts: &Facts<'_>, part: &Part) -> bool {
    // Slices come one after the other; there may be many, and this is asked of every part by every cause.
    let at_begin = |begin_ns| facts.capture.slices.spans.binary_search_by_key(&begin_ns, |slice| slice.0).is_ok();
    part.release == Release::Cut || part.span.is_some_and(|(begin_ns, _)| at_begin(begin_ns))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use super::*;
    use crate::testkit::{FlowBuilder, MS, capture};

    /// Lengths, of a flow whose holds are `stalls` (begin, length, what ended it), seen in slices of 100 ms.
    fn lengths_ms(stalls: &[(u64, u64, Release)]) -> (f64, f64) {
        let flow = stalls.iter().fold(FlowBuilder::new(1, Role::Client).talks_in_parts(100), |flow, stall| {
            flow.stall(stall.0 * MS, stall.1 * MS, FlowState::Nagle, stall.2)
        });
        let mut capture = capture(vec![flow], vec![]);
        capture.slices.spans = vec![(0, 100 * MS), (500 * MS, 100 * MS)];
        let lost = Lost::of(&Facts::new(&capture, &capture.services), |part| {
            matches!(part.blame, Blame::Nagle | Blame::NagleDelack)
        });
        assert_eq!(lost.seen, stalls.len() as u64);
        (lost.p50_ns / MS as f64, lost.p99_ns / MS as f64)
    }

    #[test]
    fn what_a_slice_cut_says_nothing_of_shorter_lengths() {
        use Release::{Cut, RxAckDelayed};
        let cut = [(0, 11, RxAckDelayed), (93, 7, Cut), (500, 15, RxAckDelayed), (557, 43, Cut)];
        let whole = [(12, 40, RxAckDelayed), (52, 41, RxAckDelayed)];
        assert_eq!(lengths_ms(&[&cut[..], &whole[..]].concat()), (41.0, 43.0));
        assert_eq!(lengths_ms(&cut), (11.0, 43.0), "better than nothing");
        // A wait that is longer than a slice is never seen whole, and must not vanish behind short ones.
        assert_eq!(lengths_ms(&[(10, 5, RxAckDelayed), (20, 80, Cut), (500, 100, Cut)]), (80.0, 100.0));
    }
}
