//! Scheduling priority of the calling thread, lowered for a while.

/// Puts the thread's priority back when dropped, where that is permitted.
#[derive(Debug)]
pub struct Lowered {
    before: i32,
}

/// Lowers the priority of the calling thread by `steps` of nice(2). Threads and processes started meanwhile inherit it.
pub fn lower(steps: i32) -> Lowered {
    // SAFETY: getpriority takes plain numbers; 0 is the calling thread.
    let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    set(before + steps);
    Lowered { before }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// Failure leaves the priority as it is, which costs nothing but courtesy.
fn set(nice: i32) {
    // SAFETY: setpriority takes plain numbers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowers() {
        // SAFETY: getpriority takes plain numbers.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let lowered = lower(3);
        assert_eq!(nice(), (before + 3).min(19));
        drop(lowered);
        assert!(nice() == before || nice() == before + 3);
    }
}
