//! Scheduling priority of the calling thread, lowered for a while.
use rustix::process::{getpriority_process, setpriority_process};

/// Puts the thread's priority back when dropped, where that is permitted.
#[derive(Debug)]
pub struct Lowered {
    before: i32,
}

/// Lowers the priority of the calling thread by `steps` of nice(2). Threads and processes started meanwhile inherit it.
pub fn lower(steps: i32) -> Lowered {
    let before = current();
    set(before + steps);
    Lowered { before }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// Of the calling thread: to the kernel, process 0 is the thread that asks.
fn current() -> i32 {
    getpriority_process(None).unwrap_or(0)
}

/// Failure leaves the priority as it is: the work then competes with others as any thread does.
fn set(nice: i32) {
    setpriority_process(None, nice).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowers() {
        let before = current();
        let lowered = lower(3);
        assert_eq!(current(), (before + 3).min(19));
        drop(lowered);
        assert!(current() == before || current() == before + 3);
    }
}
