//! The scheduling policy of a worker thread: SCHED_BATCH while it moves nothing but streams.
//!
//! A thread that wakes up preempts the one that runs on its CPU. That is right for an exchange and wrong for a stream: over
//! loopback, and wherever packets arrive on the CPU of the sender or receiver, it preempts a peer of the stream thousands of
//! times a second, while other CPUs wait for that peer's data. With SCHED_BATCH a thread does not preempt others and gets
//! longer slices (sched_runtime, Linux 6.12). Measured with one and with eight streams on two CPUs: 5 to 10 % more throughput.
use super::Ns;

/// How long a thread must have moved nothing but streams before it enters SCHED_BATCH. The next exchange may then wait for
/// the slice of another thread, up to 3 ms; so this bounds how often that happens.
const STREAMS_ONLY_NS: Ns = 50_000_000;

/// The recent traffic of a thread, and its policy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scheduling {
    /// When an exchange was last moved.
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
