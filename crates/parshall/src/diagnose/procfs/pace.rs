//! How often to sample, so that sampling stays below its share of a core. Pure.
use std::time::Duration;

/// A sampler's rhythm.
#[derive(Debug, Clone)]
pub struct Pace {
    floor_ns: u64,
    share: f64,
    /// Moving average of the CPU time of a round.
    cost_ns: f64,
}

/// Weight of the newest round in the average.
const WEIGHT: f64 = 0.2;

impl Pace {
    /// Rounds at least `floor` apart that cost at most `share` of a core.
    pub fn new(floor: Duration, share: f64) -> Self {
        Self { floor_ns: floor.as_nanos() as u64, share, cost_ns: 0.0 }
    }

    /// Accounts a round.
    pub fn spent(&mut self, cpu_ns: u64) {
        let cost = cpu_ns as f64;
        self.cost_ns = if self.cost_ns == 0.0 { cost } else { self.cost_ns + WEIGHT * (cost - self.cost_ns) };
    }

    /// Time until the next round.
    pub fn interval_ns(&self) -> u64 {
        self.floor_ns.max((self.cost_ns / self.share) as u64)
    }

    /// Rounds are further apart than asked for.
    pub fn stretched(&self) -> bool {
        self.interval_ns() > self.floor_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_floor_when_cheap_and_the_share_when_not() {
        let mut pace = Pace::new(Duration::from_millis(5), 0.01);
        pace.spent(20_000);
        assert_eq!(pace.interval_ns(), 5_000_000);
        for _ in 0..100 {
            pace.spent(1_000_000);
        }
        assert!((95_000_000..=100_000_000).contains(&pace.interval_ns()), "{}", pace.interval_ns());
        assert!(pace.stretched());
    }
}
