//! Whether a thread lets others finish before it runs.
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

/// What a thread has moved lately.
#[derive(Debug, Clone, Copy, Default)]
pub struct Courtesy {
    /// When something was moved that must not be late.
    pressed_at: Ns,
    gives_way: bool,
}

impl Courtesy {
    /// The thread does something that must not be late: an exchange, or a new connection. Says whether it gave way until now.
    pub fn pressed(&mut self, now: Ns) -> bool {
        self.pressed_at = now;
        std::mem::take(&mut self.gives_way)
    }

    /// The thread moves a stream. Says whether it gives way from now on and did not before.
    pub fn streamed(&mut self, now: Ns) -> bool {
        let begins = !self.gives_way && now.saturating_sub(self.pressed_at) >= STREAMS_ONLY_NS;
        self.gives_way |= begins;
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn a_thread_with_streams_alone_gives_way_once() {
        let mut courtesy = Courtesy::default();
        courtesy.pressed(1000 * MS);
        let began: Vec<Ns> = (1000..2000).filter(|ms| courtesy.streamed(ms * MS)).collect();
        assert_eq!(began, [1050]);
    }

    #[test]
    fn an_exchange_ends_it_at_once_and_for_a_while() {
        let mut courtesy = Courtesy::default();
        assert!(courtesy.streamed(1000 * MS));
        assert!(courtesy.pressed(1001 * MS));
        assert!(!courtesy.pressed(1002 * MS), "told once");
        assert!(!courtesy.streamed(1051 * MS));
        assert!(courtesy.streamed(1052 * MS));
    }

    #[test]
    fn exchanges_beside_a_stream_keep_it_from_giving_way() {
        let mut courtesy = Courtesy::default();
        for ms in 1000..3000 {
            if ms % 40 == 0 {
                assert!(!courtesy.pressed(ms * MS));
            }
            assert!(!courtesy.streamed(ms * MS));
        }
    }
}
