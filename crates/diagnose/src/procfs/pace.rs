//! How often to sample, so that sampling stays below its share of a core. Pure.
use std::time::Duration;

/// The interval of a sampler.
#[derive(Debug, Clone)]
pub struct Pace {
    floor_ns: u64,
    share: f64,
    /// Moving average of the CPU time of a round.
    cost_ns: f64,
    /// Factor on the interval for what the rounds themselves do not account for.
    stretch: f64,
    random: u32,
    rounds: u64,
}

/// Weight of the newest round in the average.
const WEIGHT: f64 = 0.2;
/// The longest time between two rounds, whatever they cost: with fewer of them nothing is seen at all.
const CEILING_NS: f64 = 1e9;

impl Pace {
    /// Rounds at least `floor` apart that cost at most `share` of a core.
    pub fn new(floor: Duration, share: f64) -> Self {
        Self { floor_ns: floor.as_nanos() as u64, share, cost_ns: 0.0, stretch: 1.0, random: 1, rounds: 0 }
    }

    /// Accounts a round.
    pub fn spent(&mut self, cpu_ns: u64) {
        self.rounds += 1;
        let cost = cpu_ns as f64;
        self.cost_ns = if self.cost_ns == 0.0 { cost } else { self.cost_ns + WEIGHT * (cost - self.cost_ns) };
    }

    /// Time until the next round.
    pub fn interval_ns(&self) -> u64 {
        let interval = (self.floor_ns as f64).max(self.cost_ns / self.share) * self.stretch;
        interval.min(CEILING_NS.max(self.floor_ns as f64)) as u64
    }

    /// How often rounds were made in a window of this length, in words.
    pub fn how_often(&self, window_ns: u64) -> String {
        match self.rounds {
            0 => "never".to_owned(),
            1 => "once".to_owned(),
            n => format!("every {:.1} ms", window_ns as f64 / 1e6 / n as f64),
        }
    }

    /// Slows down when all work of this process costs more than `allowed` of a core, and recovers slowly.
    pub fn govern(&mut self, used: f64, allowed: f64) {
        self.stretch = (self.stretch * (used / allowed).clamp(0.9, 1.5)).clamp(1.0, 100.0);
    }

    /// The same, longer or shorter by up to a quarter: samples in step with a periodic service would always see the same state.
    pub fn next_ns(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let interval = self.interval_ns();
        interval - interval / 4 + ((interval / 2 * u64::from(self.random >> 16)) >> 16)
    }

    /// Whether rounds are further apart than requested.
    pub fn stretched(&self) -> bool {
        self.interval_ns() > self.floor_ns + self.floor_ns / 5
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

    #[test]
    fn rounds_that_cost_too_much_are_made_once_a_second_all_the_same() {
        let mut pace = Pace::new(Duration::from_millis(5), 0.01);
        assert_eq!(pace.how_often(3_000_000_000), "never");
        pace.spent(30_000_000);
        (0..20).for_each(|_| pace.govern(1.0, 0.02));
        assert_eq!((pace.interval_ns(), pace.how_often(3_000_000_000)), (1_000_000_000, "once".to_owned()));
        pace.spent(30_000_000);
        assert_eq!(pace.how_often(3_000_000_000), "every 1500.0 ms");
    }

    #[test]
    fn the_governor_slows_and_recovers() {
        let mut pace = Pace::new(Duration::from_millis(5), 0.01);
        pace.govern(0.03, 0.02);
        assert_eq!(pace.interval_ns(), 7_500_000);
        for _ in 0..10 {
            pace.govern(0.001, 0.02);
        }
        assert_eq!(pace.interval_ns(), 5_000_000);
    }

    #[test]
    fn jitter_keeps_the_mean() {
        let mut pace = Pace::new(Duration::from_millis(8), 0.01);
        let all: Vec<u64> = (0..1000).map(|_| pace.next_ns()).collect();
        assert!(all.iter().all(|ns| (6_000_000..=10_000_000).contains(ns)));
        assert!((7_800_000..=8_200_000).contains(&(all.iter().sum::<u64>() / 1000)));
    }
}
