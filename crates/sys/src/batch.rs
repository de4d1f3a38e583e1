//! SCHED_BATCH for the calling thread: it does not preempt the thread that runs where it wakes up.
use std::io;

use crate::scheduling::{ordinary, set};

/// The longest slice that is requested, ns: the kernel allows 0.1 to 100 ms.
const SLICE_NS: u64 = 20_000_000;

/// How the calling thread was scheduled when this was made.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    before: libc::sched_attr,
}

impl Batch {
    /// None if the policy is not SCHED_OTHER: one that was chosen on purpose stays.
    pub fn of_thread() -> Option<Self> {
        ordinary().map(|before| Self { before })
    }

    /// From now on the calling thread waits until the running thread has used its slice (SCHED_BATCH), and has longer slices
    /// itself (Linux 6.12; older kernels ignore it).
    pub fn enter(&self) -> io::Result<()> {
        set(0, &libc::sched_attr { sched_policy: libc::SCHED_BATCH as u32, sched_runtime: SLICE_NS, ..self.before })
    }

    /// Restores the policy and slice of before.
    pub fn leave(&self) -> io::Result<()> {
        set(0, &self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::ask;

    #[test]
    fn sets_and_restores_the_policy() {
        let Some(batch) = Batch::of_thread() else {
            return parshall_testkit::skip("SCHED_BATCH and back", "this thread is not scheduled as SCHED_OTHER");
        };
        batch.enter().unwrap();
        let there = ask(0).unwrap();
        assert_eq!((there.sched_policy, there.sched_nice), (libc::SCHED_BATCH as u32, batch.before.sched_nice));
        assert!(Batch::of_thread().is_none(), "what was chosen stays");
        batch.leave().unwrap();
        let back = ask(0).unwrap();
        assert_eq!(back.sched_policy, libc::SCHED_OTHER as u32);
        assert_eq!((back.sched_nice, back.sched_runtime), (batch.before.sched_nice, batch.before.sched_runtime));
    }
}
