//! Exponential backoff for sinks that failed, with jitter so that many hosts do not retry at the same time.

/// Nanoseconds.
type Ns = u64;

/// The range of the backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The pause after the first failure.
    pub first_ns: Ns,
    /// The maximum of a pause.
    pub longest_ns: Ns,
}

impl Default for Retry {
    /// From 0.1 s to 30 s.
    fn default() -> Self {
        Self { first_ns: 100_000_000, longest_ns: 30_000_000_000 }
    }
}

impl Retry {
    /// The pause after this many failures in a row (from 1). `random` chooses it between half of the doubled pause and all
    /// of it.
    pub fn pause_ns(&self, failures: u32, random: u64) -> Ns {
        let doublings = failures.saturating_sub(1).min(63);
        let doubled = u128::from(self.first_ns) << doublings;
        let whole = u64::try_from(doubled).unwrap_or(u64::MAX).min(self.longest_ns);
        let half = whole / 2;
        whole - half + ((u128::from(half) * u128::from(random)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound() {
        let retry = Retry { first_ns: 100, longest_ns: 1000 };
        let whole: Vec<Ns> = [1, 2, 3, 4, 5, 64, u32::MAX].iter().map(|n| retry.pause_ns(*n, u64::MAX)).collect();
        assert_eq!(whole, [99, 199, 399, 799, 999, 999, 999]);
        let half: Vec<Ns> = [0, 1, 2, 5].iter().map(|n| retry.pause_ns(*n, 0)).collect();
        assert_eq!(half, [50, 50, 100, 500]);
    }

    #[test]
    fn no_bounds_overflow() {
        let retry = Retry { first_ns: u64::MAX, longest_ns: u64::MAX };
        assert!(retry.pause_ns(u32::MAX, u64::MAX) >= u64::MAX / 2);
        assert_eq!(Retry { first_ns: 0, longest_ns: 0 }.pause_ns(9, 7), 0);
    }
}
