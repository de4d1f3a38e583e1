//! Whether to report that a target is down or up again: once per change, however many connections are affected.
//!
//! A target that flaps must not fill the log: six changes are reported at once, then one every ten seconds. A change that was
//! suppressed is reported with a later attempt, if the target is still in that state.
use super::Ns;
use super::bucket::Bucket;

/// The bucket gains a token a second.
const TOKENS_PER_REPORT: u64 = 10;
const REPORTS_AT_ONCE: u64 = 6;

/// The reported state of one target, which is up at first.
#[derive(Debug, Clone)]
pub struct Outage {
    /// When it was reported down; None while it is reported up.
    since: Option<Ns>,
    /// Failed attempts since the last report.
    failed: u64,
    reports: Bucket,
}

/// An outage that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// The time since the outage was reported.
    pub down_ns: Ns,
    /// Attempts that failed in this time, the reported one included.
    pub failed: u64,
}

impl Outage {
    /// A target that is up.
    pub fn new(now: Ns) -> Self {
        Self { since: None, failed: 0, reports: Bucket::new(1, REPORTS_AT_ONCE * TOKENS_PER_REPORT, now) }
    }

    /// An attempt to reach it has failed. Returns whether to report that it is down.
    pub fn failed(&mut self, now: Ns) -> bool {
        self.failed += 1;
        let reports = self.since.is_none() && self.may_report(now);
        if reports {
            (self.since, self.failed) = (Some(now), 1);
        }
        reports
    }

    /// It was reached. Returns the outage that this ends, if that is to be reported.
    pub fn reached(&mut self, now: Ns) -> Option<Recovery> {
        let since = self.since?;
        if !self.may_report(now) {
            return None;
        }
        self.since = None;
        Some(Recovery { down_ns: now.saturating_sub(since), failed: self.failed })
    }

    /// Whether it is reported down.
    pub fn is_reported(&self) -> bool {
        self.since.is_some()
    }

    fn may_report(&mut self, now: Ns) -> bool {
        self.reports.take(now, TOKENS_PER_REPORT).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Ns = 1_000_000_000;

    #[test]
    fn each_change_is_reported_once() {
        let mut outage = Outage::new(0);
        assert_eq!(outage.reached(SECOND), None, "it was never down");
        assert!(outage.failed(2 * SECOND) && outage.is_reported());
        assert!((0..9).all(|n| !outage.failed((3 + n) * SECOND)));
        assert_eq!(outage.reached(12 * SECOND), Some(Recovery { down_ns: 10 * SECOND, failed: 10 }));
        assert!(outage.reached(13 * SECOND).is_none() && !outage.is_reported());
        assert!(outage.failed(14 * SECOND));
        assert_eq!(outage.reached(15 * SECOND), Some(Recovery { down_ns: SECOND, failed: 1 }));
    }

    #[test]
    fn a_flapping_target_is_reported_at_intervals_and_its_last_state_in_the_end() {
        let mut outage = Outage::new(0);
        let mut reports = 0;
        // A failure and a success every 20 ms, for 1000 s.
        for n in 0..50_000 {
            reports += u32::from(outage.failed(n * SECOND / 50));
            reports += u32::from(outage.reached(n * SECOND / 50).is_some());
        }
        assert!((100..=107).contains(&reports), "{reports}");
        outage.failed(1000 * SECOND);
        outage.failed(1020 * SECOND);
        assert!(outage.is_reported());
        outage.reached(1040 * SECOND);
        assert!(!outage.is_reported());
    }
}
