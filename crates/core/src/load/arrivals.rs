//! The schedule of an open loop.

/// How requests are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// At equal distances.
    Constant,
    /// At independent distances with an exponential distribution, as from many independent users.
    Poisson,
    /// So many at one moment, then none until the next burst.
    Burst(u32),
}

/// The times at which requests are due, ascending, in ns since the load began.
#[derive(Debug, Clone)]
pub struct Arrivals {
    pattern: Pattern,
    /// Mean distance of two requests, or the distance of two bursts.
    gap_ns: f64,
    begin_ns: f64,
    /// Gaps behind the beginning: a product does not drift as a sum would.
    gaps: f64,
    left_in_burst: u32,
    random: fastrand::Rng,
}

impl Arrivals {
    /// `per_s` requests per second (above 0) on average, from `begin_ns` on.
    pub fn new(pattern: Pattern, per_s: f64, begin_ns: u64, seed: u64) -> Self {
        let burst = match pattern {
            Pattern::Burst(count) => count.max(1),
            Pattern::Constant | Pattern::Poisson => 1,
        };
        let mut arrivals = Self {
            pattern,
            gap_ns: 1e9 / per_s.max(1e-6) * f64::from(burst),
            begin_ns: begin_ns as f64,
            gaps: 0.0,
            left_in_burst: burst,
            random: fastrand::Rng::with_seed(seed),
        };
        if pattern == Pattern::Poisson {
            arrivals.gaps = arrivals.distance();
        }
        arrivals
    }

    /// The share of one of `threads` threads in such a schedule. Their requests alternate, and together they are as many.
    pub fn share(pattern: Pattern, per_s: f64, seed: u64, thread: u32, threads: u32) -> Self {
        let threads = threads.max(1);
        let offset_ns = match pattern {
            Pattern::Constant => 1e9 / per_s.max(1e-6) * f64::from(thread),
            Pattern::Poisson | Pattern::Burst(_) => 0.0,
        };
        // A burst is split: each thread sends its part of it at the same moment.
        let (pattern, per_s) = match pattern {
            Pattern::Burst(count) => {
                let count = count.max(1);
                let part = count / threads + u32::from(thread < count % threads);
                (Pattern::Burst(part.max(1)), per_s * f64::from(part.max(1)) / f64::from(count))
            }
            other => (other, per_s / f64::from(threads)),
        };
        Self::new(pattern, per_s, offset_ns as u64, seed.wrapping_add(u64::from(thread)))
    }

    /// When the next request is due.
    pub fn next_ns(&self) -> u64 {
        (self.begin_ns + self.gaps * self.gap_ns) as u64
    }

    /// Takes the next request if it is due by `now_ns`, and returns since when.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = self.next_ns();
        if due_ns > now_ns {
            return None;
        }
        match self.pattern {
            Pattern::Constant => self.gaps += 1.0,
            Pattern::Poisson => self.gaps += self.distance(),
            Pattern::Burst(count) => {
                self.left_in_burst -= 1;
                if self.left_in_burst == 0 {
                    self.left_in_burst = count.max(1);
                    self.gaps += 1.0;
                }
            }
        }
        Some(due_ns)
    }

    /// From an exponential distribution with mean 1.
    fn distance(&mut self) -> f64 {
        // `f64` is below 1, so the logarithm is finite.
        -(1.0 - self.random.f64()).ln()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn taken(arrivals: &mut Arrivals, until_ns: u64) -> Vec<u64> {
        std::iter::from_fn(|| arrivals.take(until_ns)).collect()
    }

    #[test]
    fn equal_distances_do_not_drift() {
        let mut arrivals = Arrivals::new(Pattern::Constant, 3.0, 0, 1);
        let due = taken(&mut arrivals, HOUR_NS - 1);
        assert_eq!(due.len(), 3 * 3600);
        assert_eq!((due[0], due[3], due[10_797]), (0, 1_000_000_000, HOUR_NS - 1_000_000_000));
    }

    #[test]
    fn independent_arrivals_have_the_rate_and_the_spread_of_their_distribution() {
        let due = taken(&mut Arrivals::new(Pattern::Poisson, 1000.0, 0, 5), 100_000_000_000);
        assert!((99_000..101_000).contains(&due.len()), "{}", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // The standard deviation of an exponential distribution is its mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn a_burst_comes_at_one_moment() {
        let mut arrivals = Arrivals::new(Pattern::Burst(3), 30.0, 0, 1);
        assert_eq!(taken(&mut arrivals, 100_000_000), [0, 0, 0, 100_000_000, 100_000_000, 100_000_000]);
        assert_eq!(arrivals.next_ns(), 200_000_000);
    }

    proptest! {
        #[test]
        fn threads_together_keep_the_rate(
            per_s in 10.0..10_000.0f64,
            threads in 1u32..9,
            pattern in prop_oneof![Just(Pattern::Constant), (8u32..64).prop_map(Pattern::Burst)],
        ) {
            let mut count = 0;
            for thread in 0..threads {
                let due = taken(&mut Arrivals::share(pattern, per_s, 7, thread, threads), 60_000_000_000);
                prop_assert!(due.is_sorted());
                count += due.len();
            }
            let burst = if let Pattern::Burst(count) = pattern { f64::from(count) } else { 1.0 };
            // The first are due at once.
            prop_assert!((count as f64 - per_s * 60.0).abs() <= burst * f64::from(threads) + 1.0, "{count}");
        }
    }
}
