//! The scheduling policy of a worker thread: SCHED_BATCH while it moves nothing but streams.
//!
//! A thread that wakes up takes the CPU from whoever runs there, which is right for an exchange and wrong for a stream: over
//! loopback, and wherever packets arrive on the sender's or the receiver's own CPU, whom it interrupts is the stream's
//! own end, thousands of times a second, while the other CPUs are idle for want of what that end would have sent. A thread
//! that moves nothing but streams asks not to interrupt (SCHED_BATCH) and has longer turns in exchange (sched_runtime,
//! Linux 6.12); with one stream or with eight on two CPUs that is worth 5 to 10 % of the throughput.
use super::Ns;

/// A thread has moved nothing but streams for so long before it gives way. An exchange that finds it giving way waits
/// until whoever runs has had its slice, up to 3 ms, so this bounds what that costs exchanges that come now and then.
const STREAMS_ONLY_NS: Ns = 50_000_000;

/// What a thread has moved lately, and its policy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scheduling {
    /// When something was last moved that must not be late.
    exchange_at: Ns,
    is_batch: bool,
}

impl Scheduling {
    /// The thread moves an exchange or accepts a connection, which must not be late. True if it must leave SCHED_BATCH.
    pub fn exchange_expected(&mut self, now: Ns) -> bool {
        self.exchange_at = now;
        std::mem::take(&mut self.is_batch)
    }

    /// The thread moves a stream. True if it must enter SCHED_BATCH.
    pub fn stream_moved(&mut self, now: Ns) -> bool {
        let begins = !self.is_batch && now.saturating_sub(self.exchange_at) >= STREAMS_ONLY_NS;
        self.is_batch |= begins;
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn a_thread_with_streams_alone_is_batch_once() {
        let mut scheduling = Scheduling::default();
        scheduling.exchange_expected(1000 * MS);
        let began: Vec<Ns> = (1000..2000).filter(|ms| scheduling.stream_moved(ms * MS)).collect();
        assert_eq!(began, [1050]);
    }

    #[test]
    fn an_exchange_ends_it_at_once_and_for_a_while() {
        let mut scheduling = Scheduling::default();
        assert!(scheduling.stream_moved(1000 * MS));
        assert!(scheduling.exchange_expected(1001 * MS));
        assert!(!scheduling.exchange_expected(1002 * MS), "reported once");
        assert!(!scheduling.stream_moved(1051 * MS));
        assert!(scheduling.stream_moved(1052 * MS));
    }

    #[test]
    fn exchanges_beside_a_stream_keep_it_from_giving_way() {
        let mut scheduling = Scheduling::default();
        for ms in 1000..3000 {
            if ms % 40 == 0 {
                assert!(!scheduling.exchange_expected(ms * MS));
            }
            assert!(!scheduling.stream_moved(ms * MS));
        }
    }
}
