//! A selection of lost time, summed up.
use super::{Facts, Part};
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
    /// Median length of an interval in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

impl Lost {
    /// Sums the parts that `take` chooses.
    pub fn of(facts: &Facts<'_>, take: impl Fn(&Part) -> bool) -> Lost {
        let mut by_flow = vec![0.0; facts.flows.len()];
        let mut lengths = Vec::new();
        let mut lost = Lost::default();
        let mut count = 0.0;
        for part in facts.parts.iter().filter(|p| take(p)) {
            let ledger = &facts.flows[part.flow].ledger;
            by_flow[part.flow] += part.ns;
            lost.ns += part.ns;
            lost.seen = lost.seen.saturating_add(part.count);
            lost.scaled |= ledger.scaled;
            count += part.count as f64 * ledger.scale.max(1.0);
            lengths.push((part.each_ns, part.count.max(1) as f64));
        }
        lost.count = count.round() as u64;
        lost.p50_ns = weighted_quantile(&lengths, 0.5).unwrap_or(0.0);
        lost.p99_ns = weighted_quantile(&lengths, 0.99).unwrap_or(0.0);
        lost.by_flow = by_flow.into_iter().enumerate().filter(|(_, ns)| *ns > 0.0).collect();
        lost.by_flow.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        lost
    }

    /// The flows that lost something worth naming: 5 % of the time in which they could have moved data.
    pub fn affected(&self, facts: &Facts<'_>) -> Vec<usize> {
        let worth = |&&(flow, ns): &&(usize, f64)| ns >= 0.05 * facts.flows[flow].could_ns;
        let named: Vec<usize> = self.by_flow.iter().filter(worth).map(|(flow, _)| *flow).collect();
        if named.is_empty() { self.by_flow.iter().map(|(flow, _)| *flow).collect() } else { named }
    }

    /// Share of the time in which the affected flows could have moved data, 0..=1.
    pub fn share(&self, facts: &Facts<'_>) -> f64 {
        let affected = self.affected(facts);
        let could: f64 = affected.iter().map(|&f| facts.flows[f].could_ns).sum();
        let lost: f64 = self.by_flow.iter().filter(|(f, _)| affected.contains(f)).map(|(_, ns)| ns).sum();
        ratio(lost, could).min(1.0)
    }

    /// Lost time averaged over the affected flows, in milliseconds; never more than the window.
    pub fn mean_ms(&self, facts: &Facts<'_>) -> f64 {
        let affected = self.affected(facts);
        let lost: f64 = self.by_flow.iter().filter(|(f, _)| affected.contains(f)).map(|(_, ns)| ns).sum();
        ratio(lost, affected.len() as f64).min(facts.capture.window_ns as f64) / 1e6
    }

    /// The flow that lost most.
    pub fn worst(&self) -> Option<usize> {
        self.by_flow.first().map(|(flow, _)| *flow)
    }
}
