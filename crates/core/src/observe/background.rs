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

/// Whether to leave the background: between two measurements, `elapsed` apart, the work ran for `ran`, and it was `ready` to run
/// at both. Work that mostly sleeps is not starved.
pub fn gives_up(elapsed: Ns, ran: Ns, ready: bool) -> bool {
    ready && (ran as f64) < STARVED * elapsed as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn a_host_that_is_half_busy_is_no_reason_to_give_up() {
        assert!(!gives_up(50 * MS, 25 * MS, true));
    }

    #[test]
    fn a_saturated_host_is() {
        assert!(gives_up(50 * MS, 0, true));
        assert!(gives_up(50 * MS, 9 * MS, true));
    }

    #[test]
    fn work_that_sleeps_is_not_starved() {
        assert!(!gives_up(50 * MS, 0, false));
    }
}
