//! Whether work in the background (SCHED_IDLE) makes progress, or must leave the background.
//!
//! Loading the probes takes 70 to 130 ms of CPU time. It yields to every other thread where CPUs are idle now and then; where
//! none ever is, it would never end.

/// Nanoseconds on any steady clock.
pub type Ns = u64;

/// Interval between two measurements of the work.
pub const EVERY_NS: Ns = 50_000_000;
/// Share of the time below which work that is ready to run stands still. Where the CPUs are half busy it runs half of the time.
const STARVED: f64 = 0.3;
/// The least share of the time that the work must have been ready to run. Work that sleeps for most of it is in no hurry.
const READY: f64 = 0.5;
/// That share over [`INTERVALS_WINDOW`] of the window. While the probes' records wait to be read, their buffer fills up.
const READY_LONG: f64 = 0.2;
const INTERVALS_WINDOW: usize = 4;
/// How long the work may stand still before the window. A saturated service (nginx) left it a tenth of the time, and lost 12 ms of its
/// own to it; at the weight of others the same work took 96 ms from the service. Attaching may take half a second.
const INTERVALS_PREPARING: usize = 9;
/// How long it may stand still after the window. The verdict is due 1.5 s after it.
const INTERVALS_FINISHING: usize = 14;
/// The most intervals that are looked at.
pub const INTERVALS: usize = INTERVALS_FINISHING;

/// The phase that the work is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It loads and attaches the probes.
    Preparing,
    /// It reads the probes' records, and begins and ends slices.
    Window,
    /// It judges. Nothing is lost by waiting.
    Finishing,
}

/// The work between two measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interval {
    /// Its length.
    pub elapsed: Ns,
    /// The time that the work ran.
    pub ran: Ns,
    /// The time that it waited for a CPU.
    pub waited: Ns,
}

/// Whether to leave the background after these intervals of the phase, the newest last.
pub fn gives_up(phase: Phase, intervals: &[Interval]) -> bool {
    let starved = |newest: usize, ready: f64| {
        let Some(from) = intervals.len().checked_sub(newest) else { return false };
        let sum = intervals[from..].iter().fold(Interval::default(), |sum, next| Interval {
            elapsed: sum.elapsed + next.elapsed,
            ran: sum.ran + next.ran,
            waited: sum.waited + next.waited,
        });
        sum.is_starved(ready)
    };
    match phase {
        Phase::Preparing => starved(INTERVALS_PREPARING, READY),
        Phase::Window => starved(1, READY) || starved(INTERVALS_WINDOW, READY_LONG),
        Phase::Finishing => starved(INTERVALS_FINISHING, READY),
    }
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
        for phase in [Phase::Preparing, Phase::Window, Phase::Finishing] {
            assert!(!gives_up(phase, &[interval(25, 25); INTERVALS]));
        }
    }

    #[test]
    fn a_saturated_host_is_one_within_the_window() {
        let gives_up = |intervals: &[Interval]| gives_up(Phase::Window, intervals);
        assert!(gives_up(&[interval(0, 50)]));
        assert!(gives_up(&[interval(9, 41)]));
        // It has little to do and waits for each turn, again and again.
        assert!(gives_up(&[interval(1, 12); INTERVALS_WINDOW]));
    }

    #[test]
    fn before_and_after_the_window_it_waits_longer() {
        for (phase, most) in [(Phase::Preparing, INTERVALS_PREPARING), (Phase::Finishing, INTERVALS_FINISHING)] {
            assert!(!gives_up(phase, &vec![interval(5, 45); most - 1]), "{phase:?}");
            assert!(gives_up(phase, &vec![interval(5, 45); most]), "{phase:?}");
        }
        assert!(INTERVALS_PREPARING as Ns * EVERY_NS < 500 * MS && INTERVALS_FINISHING as Ns * EVERY_NS < 1500 * MS);
    }

    #[test]
    fn a_single_turn_that_it_waits_for_is_not() {
        let [rare, often] = [interval(1, 4), interval(1, 12)];
        assert!(!gives_up(Phase::Window, &[often]) && !gives_up(Phase::Window, &[rare, rare, rare, often]));
    }

    #[test]
    fn work_that_sleeps_is_not_starved() {
        assert!(!gives_up(Phase::Window, &[interval(0, 0); INTERVALS]));
        // It works for a moment whenever it is measured.
        assert!(!gives_up(Phase::Window, &[interval(1, 4); INTERVALS]));
    }
}
