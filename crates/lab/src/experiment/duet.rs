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

/// Where two trials wait for each other.
#[derive(Debug, Default)]
pub struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

/// A trial was ended because the one beside it had failed.
#[derive(Debug)]
pub struct Deserted;

impl std::error::Error for Deserted {}

impl fmt::Display for Deserted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the trial beside it failed")
    }
}

/// A trial that is going to a meeting, or has been there. One that ends without having met lets the other one go on.
#[derive(Debug)]
pub struct Guest<'a>(&'a Meeting);

impl Meeting {
    pub fn guest(&self) -> Guest<'_> {
        Guest(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest<'_> {
    /// Waits for the other one.
    pub fn meet(&self) {
        let mut state = self.0.state();
        state.arrived += 1;
        self.0.changed.notify_all();
        let missing = |state: &mut State| state.arrived < 2 && !state.left;
        drop(self.0.changed.wait_while(state, missing).unwrap_or_else(PoisonError::into_inner));
    }

    /// Tells the other one that this trial failed: alone it measures nothing, and may wait for this one.
    pub fn fail(&self) {
        self.0.state().failed = true;
    }

    /// Whether a trial failed.
    pub fn is_deserted(&self) -> bool {
        self.0.state().failed
    }
}

impl Drop for Guest<'_> {
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
        let (meeting, late) = (Meeting::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                meeting.guest().meet();
                assert!(late.load(SeqCst));
            });
            std::thread::sleep(Duration::from_millis(30));
            late.store(true, SeqCst);
            meeting.guest().meet();
        });
    }

    #[test]
    fn nobody_waits_for_one_that_failed() {
        let meeting = Meeting::default();
        drop(meeting.guest());
        meeting.guest().meet();
    }
}
