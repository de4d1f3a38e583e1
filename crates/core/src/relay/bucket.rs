//! Rate limits: a token bucket in integers.
//!
//! The level is kept in billionths of a token, so that a nanosecond at `rate` tokens a second adds exactly `rate` of them.
//! Nothing is rounded, so the rate is exact over any time. No argument can make it overflow.
use super::Ns;

/// The units of a level in one token.
const UNITS: i128 = 1_000_000_000;

/// A bucket that holds `burst` tokens and gains `rate` a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    rate: u64,
    burst: u64,
    /// In billionths of a token; below zero after more was taken than the bucket holds.
    level: i128,
    /// The time of the level.
    at: Ns,
}

impl Bucket {
    /// A full bucket. A burst of zero would let nothing through and counts as one; with a rate of zero it never refills.
    pub fn new(rate: u64, burst: u64, now: Ns) -> Self {
        let burst = burst.max(1);
        Self { rate, burst, level: i128::from(burst) * UNITS, at: now }
    }

    /// Takes `n` tokens, or returns when they will be available ([`Ns::MAX`] for never).
    ///
    /// More tokens than `burst` are granted when the bucket is full. They make the level negative, and nothing is granted until
    /// it has risen again: a large request waits instead of never being granted, and the rate still holds.
    pub fn take(&mut self, now: Ns, n: u64) -> Result<(), Ns> {
        self.refill(now);
        let needed = i128::from(n.min(self.burst)) * UNITS;
        if self.level >= needed {
            self.level -= i128::from(n) * UNITS;
            return Ok(());
        }
        Err(self.when(needed))
    }

    /// The whole tokens that can be taken now.
    pub fn available(&mut self, now: Ns) -> u64 {
        self.refill(now);
        u64::try_from(self.level.max(0) / UNITS).unwrap_or(u64::MAX)
    }

    /// Adds the tokens since the last call; none if the clock went backwards.
    fn refill(&mut self, now: Ns) {
        let elapsed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let missing = (i128::from(self.burst) * UNITS - self.level).unsigned_abs();
        let gained = u128::from(elapsed) * u128::from(self.rate);
        // At most `missing`, which is below 2^96.
        self.level += gained.min(missing) as i128;
    }

    /// When the level will have risen to `needed`.
    fn when(&self, needed: i128) -> Ns {
        let missing = (needed - self.level).unsigned_abs();
        match self.rate {
            0 => Ns::MAX,
            rate => {
                u64::try_from(missing.div_ceil(u128::from(rate))).map_or(Ns::MAX, |wait| self.at.saturating_add(wait))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Ns = 1_000_000_000;

    #[test]
    fn a_rate_that_divides_no_nanosecond_does_not_drift() {
        let mut bucket = Bucket::new(3, 1, 0);
        let (mut now, mut taken) = (0, 0);
        while now < 1000 * SECOND {
            match bucket.take(now, 1) {
                Ok(()) => taken += 1,
                Err(when) => now = when,
            }
        }
        assert_eq!(taken, 1 + 3 * 1000 - 1, "the burst and three a second, the last one due at the end");
    }

    #[test]
    fn more_than_the_burst_waits_for_a_full_bucket_and_makes_later_calls_wait() {
        let mut bucket = Bucket::new(10, 10, 0);
        assert_eq!(bucket.take(0, 30), Ok(()));
        assert_eq!(bucket.available(2 * SECOND), 0);
        assert_eq!(bucket.take(2 * SECOND, 1), Err(2 * SECOND + SECOND / 10));
        assert_eq!(bucket.take(2 * SECOND, 30), Err(3 * SECOND));
        assert_eq!(bucket.available(3 * SECOND), 10);
    }

    #[test]
    fn with_a_rate_of_0_only_the_burst_is_granted() {
        let mut bucket = Bucket::new(0, 2, 0);
        assert_eq!((bucket.take(0, 2), bucket.take(Ns::MAX, 1)), (Ok(()), Err(Ns::MAX)));
        assert_eq!(Bucket::new(5, 0, 0).take(0, 1), Ok(()));
    }

    proptest! {
        #[test]
        fn nothing_overflows(
            rate in any::<u64>(), burst in any::<u64>(),
            calls in prop::collection::vec((any::<u64>(), any::<u64>()), 1..20),
        ) {
            let mut bucket = Bucket::new(rate, burst, calls[0].0);
            for (now, n) in calls {
                prop_assert!(bucket.available(now) <= burst.max(1));
                if let Err(when) = bucket.take(now, n) {
                    prop_assert!(when > now || when == Ns::MAX || bucket.at > now);
                }
            }
        }

        #[test]
        fn the_returned_time_is_the_first_at_which_the_tokens_are_granted(
            rate in 1u64..10_000_000, burst in 1u64..1_000_000,
            takes in prop::collection::vec((0u64..SECOND, 1u64..2_000_000), 1..50),
        ) {
            let mut bucket = Bucket::new(rate, burst, 0);
            let (mut now, mut taken, mut largest) = (0, 0u128, 0u128);
            for (pause, n) in takes {
                now += pause;
                if let Err(when) = bucket.take(now, n) {
                    prop_assert!(when > now);
                    prop_assert!(bucket.clone().take(when - 1, n).is_err());
                    now = when;
                    prop_assert_eq!(bucket.take(now, n), Ok(()));
                }
                taken += u128::from(n);
                largest = largest.max(u128::from(n));
                let allowed = u128::from(burst).max(largest) + u128::from(now) * u128::from(rate) / u128::from(SECOND);
                prop_assert!(taken <= allowed, "{} of {}", taken, allowed);
            }
        }
    }
}
