//! Whether work in the background (SCHED_IDLE) makes progress, or must leave the background.
//!
//! Loading the probes takes 70 to 130 ms of CPU time. It yields to every other thread where CPUs are idle now and then; where
//! none ever is, it would never end.

/// Nanoseconds on any steady clock.
pub type Ns = u64;

/// Interval between two measurements of the work.
pub const EVERY_NS: Ns = 50_000_000;
/// Share of the time below which work that is ready to run stands still. Where the CPUs are half busy it runs half of the time;
/// with less than this, loading would take half a second.
const STARVED: f64 = 0.3;
/// The least share of one interval that the work must have been ready to run. Work that sleeps for most of it is in no hurry.
const READY: f64 = 0.5;
/// That share over all of the last [`INTERVALS`]. While the probes' records wait to be read, their buffer fills up.
const READY_LONG: f64 = 0.2;
/// The intervals that are looked at.
pub const INTERVALS: usize = 4;

/// What the work did between two measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interval {
    /// Its length.
    pub elapsed: Ns,
    /// The time that the work ran.
    pub ran: Ns,
    /// The time that it waited for a CPU.
    pub waited: Ns,
}

/// Whether to leave the background after these intervals, the newest last.
pub fn gives_up(intervals: &[Interval]) -> bool {
    let all = intervals.iter().fold(Interval::default(), |sum, next| Interval {
        elapsed: sum.elapsed + next.elapsed,
        ran: sum.ran + next.ran,
        waited: sum.waited + next.waited,
    });
    intervals.last().is_some_and(|newest| newest.is_starved(READY))
        || (intervals.len() >= INTERVALS && all.is_starved(READY_LONG))
}

impl Interval {
    /// It was ready to run for at least this share, and hardly ran.
    fn is_starved(&self, ready: f64) -> bool {
        let wanted = (self.ran + self.waited) as f64;
        wanted >= ready * self.elapsed as f64 && (self.ran as f64) < STARVED * wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    fn interval(ran: Ns, waited: Ns) -> Interval {
        Interval { elapsed: 50 * MS, ran: ran * MS, waited: waited * MS }
    }

    #[test]
    fn a_host_that_is_half_busy_is_no_reason_to_give_up() {
        assert!(!gives_up(&[interval(25, 25)]));
    }

    #[test]
    fn a_saturated_host_is() {
        assert!(gives_up(&[interval(0, 50)]));
        assert!(gives_up(&[interval(9, 41)]));
        // It has little to do and waits for each turn, again and again.
        assert!(gives_up(&[interval(1, 12); INTERVALS]));
    }

    #[test]
    fn a_single_turn_that_it_waits_for_is_not() {
        let [rare, often] = [interval(1, 4), interval(1, 12)];
        assert!(!gives_up(&[often]) && !gives_up(&[rare, rare, rare, often]));
    }

    #[test]
    fn work_that_sleeps_is_not_starved() {
        assert!(!gives_up(&[interval(0, 0); INTERVALS]));
        // It works for a moment whenever it is measured.
        assert!(!gives_up(&[interval(1, 4); INTERVALS]));
    }
}
