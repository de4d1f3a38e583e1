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
/// The least share of the time that the work must have been ready to run. What sleeps for more of it is in no hurry. While the
/// probes' records wait to be read, their buffer fills up, and 10 ms are enough for that on a busy host.
const READY: f64 = 0.2;

/// Whether to leave the background: between two measurements, `elapsed` apart, the work ran for `ran` and waited for a CPU for
/// `waited`.
pub fn gives_up(elapsed: Ns, ran: Ns, waited: Ns) -> bool {
    let ready = (ran + waited) as f64;
    ready >= READY * elapsed as f64 && (ran as f64) < STARVED * ready
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn a_host_that_is_half_busy_is_no_reason_to_give_up() {
        assert!(!gives_up(50 * MS, 25 * MS, 25 * MS));
    }

    #[test]
    fn a_saturated_host_is() {
        assert!(gives_up(50 * MS, 0, 50 * MS));
        assert!(gives_up(50 * MS, 9 * MS, 41 * MS));
        // It has little to do and waits for each turn.
        assert!(gives_up(50 * MS, MS, 12 * MS));
    }

    #[test]
    fn work_that_sleeps_is_not_starved() {
        assert!(!gives_up(50 * MS, 0, 0));
        // It works for a moment whenever it is measured.
        assert!(!gives_up(50 * MS, MS, 4 * MS));
    }
}
