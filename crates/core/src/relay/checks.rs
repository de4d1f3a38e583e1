//! Active checks of one target: when to check, and whether the results so far mean that it is up.
//!
//! The caller connects and reports the result. A target begins up: a relay that has just started must not refuse clients for
//! the first `rise` checks. Times are spread by random numbers given as arguments, so that many checks do not coincide.
use super::config::Check;
use super::{Ns, ns};

/// The longest wait for the first check.
const FIRST_NS: u64 = 1_000_000_000;

/// The state of a target's checks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Checked {
    check: Check,
    up: bool,
    /// Results in a row that contradict `up`.
    against: u32,
    due: Ns,
}

impl Checked {
    /// A target that was not checked yet. The first check is due within a second, or an interval if that is shorter. `random`
    /// is any number.
    pub fn new(check: Check, now: Ns, random: u64) -> Self {
        let spread = interval_ns(&check).clamp(1, FIRST_NS);
        Self { check, up: true, against: 0, due: now.saturating_add(random % spread) }
    }

    /// When the next check is due.
    pub fn due(&self) -> Ns {
        self.due
    }

    /// Whether the target may be used.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// A check could not be made, which says nothing about the target; the next is due after the interval.
    pub fn skip(&mut self, now: Ns, random: u64) {
        let interval = interval_ns(&self.check);
        let wait = interval - interval / 10 + random % (interval / 5).max(1);
        self.due = now.saturating_add(wait.max(1));
    }

    /// A check has ended; the next is due after the interval, a tenth more or less. Returns true if the target has just gone
    /// up, and false if it has just gone down.
    pub fn result(&mut self, now: Ns, succeeded: bool, random: u64) -> Option<bool> {
        self.skip(now, random);
        if succeeded == self.up {
            self.against = 0;
            return None;
        }
        self.against = self.against.saturating_add(1);
        let needed = if self.up { self.check.fall } else { self.check.rise };
        if self.against < needed {
            return None;
        }
        self.up = succeeded;
        self.against = 0;
        Some(self.up)
    }
}

/// The interval; at most a century, so that a tenth more is no overflow.
fn interval_ns(check: &Check) -> u64 {
    ns(check.interval).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Ns = 1_000_000_000;

    fn check(rise: u32, fall: u32) -> Check {
        Check { interval: Duration::from_secs(10), timeout: Duration::from_secs(2), rise, fall }
    }

    #[test]
    fn a_check_that_could_not_be_made_counts_for_nothing() {
        let mut target = Checked::new(check(1, 2), 0, 0);
        target.result(0, false, 0);
        (1..10).for_each(|n| target.skip(n * SECOND, 0));
        assert!(target.is_up() && target.due() > 9 * SECOND);
        assert_eq!(target.result(10 * SECOND, false, 0), Some(false));
    }

    #[test]
    fn it_takes_fall_failures_and_then_rise_successes_in_a_row() {
        let mut target = Checked::new(check(2, 3), 0, 0);
        let changes: Vec<_> = [false, false, true, false, false, false, true, false, true, true, true]
            .map(|ok| target.result(0, ok, 0))
            .into_iter()
            .enumerate()
            .filter_map(|(i, change)| change.map(|up| (i, up)))
            .collect();
        assert_eq!(changes, [(5, false), (9, true)]);
        assert!(target.is_up());
    }

    #[test]
    fn many_targets_are_not_asked_at_once() {
        let first: Vec<Ns> =
            (0..10).map(|i| Checked::new(check(1, 1), 5 * SECOND, i * SECOND / 10 + 7).due()).collect();
        assert!(first.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(first.iter().all(|due| (5 * SECOND..6 * SECOND).contains(due)));
    }

    proptest! {
        #[test]
        fn the_next_is_due_within_a_tenth_of_the_interval(
            interval_ms in 1u64..100_000, now in 0u64..1 << 60, random in any::<u64>(), ok in any::<bool>(),
        ) {
            let interval = Duration::from_millis(interval_ms);
            let mut target = Checked::new(Check { interval, ..check(1, 1) }, now, random);
            prop_assert!(target.due() >= now && target.due() - now < FIRST_NS);
            target.result(now, ok, random);
            let wait = target.due() - now;
            let interval = interval_ms * 1_000_000;
            prop_assert!(wait >= interval * 9 / 10 && wait <= interval * 11 / 10);
        }

        #[test]
        fn no_argument_overflows(nanos in any::<u64>(), secs in any::<u64>(), now in any::<u64>(), random in any::<u64>()) {
            for interval in [Duration::from_nanos(nanos % 20), Duration::from_secs(secs)] {
                let mut target = Checked::new(Check { interval, timeout: interval, rise: 0, fall: 0 }, now, random);
                target.result(now, false, random);
                prop_assert!(!target.is_up() && target.due() >= now);
                prop_assert!(target.due() > now || now == Ns::MAX, "a check is never due again at once");
            }
        }
    }
}
