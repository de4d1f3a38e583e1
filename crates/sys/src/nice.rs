//! A higher nice value for the calling thread, for a while.
use rustix::process::{getpriority_process, setpriority_process};

/// Restores the thread's nice value when dropped, where that is permitted.
#[derive(Debug)]
pub struct Increased {
    before: i32,
}

/// Adds `increment` to the nice value of the calling thread: it gets less CPU time. Threads and processes started meanwhile
/// inherit it.
pub fn increase(increment: i32) -> Increased {
    let before = current();
    set(before + increment);
    Increased { before }
}

impl Drop for Increased {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// The nice value of the calling thread, which the kernel takes process 0 for.
fn current() -> i32 {
    getpriority_process(None).unwrap_or(0)
}

/// A failure is ignored: the thread then competes for the CPU as before.
fn set(nice: i32) {
    setpriority_process(None, nice).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nice_value_is_higher_until_it_is_dropped() {
        let before = current();
        let increased = increase(3);
        assert_eq!(current(), (before + 3).min(19));
        drop(increased);
        assert!(current() == before || current() == before + 3);
    }
}
