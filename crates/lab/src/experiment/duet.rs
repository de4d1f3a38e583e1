//! Two trials whose commands start at the same moment (duet benchmarking: Bulej et al., ICPE 2020): what others on the host do slows
//! both down alike.
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    arrived: usize,
    left: bool,
    failed: bool,
}

/// The barrier at which two trials wait for each other.
#[derive(Debug, Default)]
pub struct Duet {
    state: Mutex<State>,
    changed: Condvar,
}

/// A trial was ended because the one beside it had failed.
#[derive(Debug)]
pub struct PartnerFailed;

impl std::error::Error for PartnerFailed {}

impl fmt::Display for PartnerFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the trial beside it failed")
    }
}

/// A trial of a duet. If it ends without having come to the barrier, the other one goes on alone.
#[derive(Debug)]
pub struct Partner<'a>(&'a Duet);

impl Duet {
    /// Two trials take part.
    pub fn partner(&self) -> Partner<'_> {
        Partner(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Partner<'_> {
    /// Waits until both have called this, or the other one has ended.
    pub fn wait_for_other(&self) {
        let mut state = self.0.state();
        state.arrived += 1;
        self.0.changed.notify_all();
        let missing = |state: &mut State| state.arrived < 2 && !state.left;
        drop(self.0.changed.wait_while(state, missing).unwrap_or_else(PoisonError::into_inner));
    }

    /// Reports to the other one that this trial failed: alone it measures nothing, and may wait for this one.
    pub fn fail(&self) {
        self.0.state().failed = true;
    }

    /// Returns whether one of the two has failed.
    pub fn has_failed(&self) -> bool {
        self.0.state().failed
    }
}

impl Drop for Partner<'_> {
    fn drop(&mut self) {
        self.0.state().left = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use super::*;

    #[test]
    fn both_wait_for_each_other() {
        let (duet, late) = (Duet::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                duet.partner().wait_for_other();
                assert!(late.load(SeqCst));
            });
            std::thread::sleep(Duration::from_millis(30));
            late.store(true, SeqCst);
            duet.partner().wait_for_other();
        });
    }

    #[test]
    fn a_trial_that_failed_is_not_waited_for() {
        let duet = Duet::default();
        drop(duet.partner());
        duet.partner().wait_for_other();
    }
}
