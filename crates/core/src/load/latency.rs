//! Latencies and their percentiles.
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies in ns, with three significant digits, up to a minute; longer ones count as a minute. Recording does not allocate.
#[derive(Debug, Clone)]
pub struct Latencies {
    ns: Histogram<u64>,
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { ns: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid") }
    }
}

impl Latencies {
    /// Adds one.
    pub fn record(&mut self, ns: u64) {
        self.ns.saturating_record(ns);
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Self) {
        self.ns.add(&other.ns).expect("all have the same bounds");
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.ns.len()
    }

    /// The percentiles; None if there is no latency.
    pub fn summary(&self) -> Option<Latency> {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(self.ns.value_at_quantile(quantile));
        (!self.ns.is_empty()).then(|| Latency {
            count: self.ns.len(),
            mean_us: self.ns.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.ns.max()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_list(mut ns in proptest::collection::vec(1u64..30_000_000_000, 1..500)) {
            let mut latencies = Latencies::default();
            let mut second = Latencies::default();
            for (i, one) in ns.iter().enumerate() {
                if i % 2 == 0 { latencies.record(*one) } else { second.record(*one) }
            }
            latencies.add(&second);
            ns.sort_unstable();
            let found = latencies.summary().expect("not empty");
            prop_assert_eq!(found.count, ns.len() as u64);
            for (quantile, us) in [(0.5, found.p50_us), (0.9, found.p90_us), (0.99, found.p99_us), (1.0, found.max_us)] {
                let rank = ((quantile * ns.len() as f64).ceil() as usize).max(1);
                let exact = ns[rank - 1] as f64 / 1e3;
                prop_assert!((us / exact - 1.0).abs() < 2e-3, "{quantile}: {us} {exact}");
            }
        }
    }

    #[test]
    fn what_is_too_long_counts_as_a_minute() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.summary(), None);
        latencies.record(u64::MAX);
        assert!(latencies.summary().is_some_and(|found| (59e6..61e6).contains(&found.max_us)));
    }
}
