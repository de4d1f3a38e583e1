//! The time in initiations: TAI64N, which a responder takes only in rising order, so that an old initiation is of no use.
use std::time::Duration;

use super::message::u64_at;

pub(super) const TIMESTAMP_LEN: usize = 12;

/// 1970 in TAI64, with the ten seconds that TAI was ahead of UTC then.
const UNIX_EPOCH: u64 = (1 << 62) + 10;

/// The clock is shown in steps of 16.8 ms, so that it does not reveal how fast this host works (the kernel does the same).
const STEP_NS: u32 = 1 << 24;

/// A time as it is sent. Its bytes compare as the times do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Timestamp(pub [u8; TIMESTAMP_LEN]);

impl Timestamp {
    pub(super) fn of(unix: Duration) -> Self {
        Self::from_parts(UNIX_EPOCH.wrapping_add(unix.as_secs()), unix.subsec_nanos() & !(STEP_NS - 1))
    }

    fn from_parts(seconds: u64, nanos: u32) -> Self {
        let mut bytes = [0; TIMESTAMP_LEN];
        bytes[..8].copy_from_slice(&seconds.to_be_bytes());
        bytes[8..].copy_from_slice(&nanos.to_be_bytes());
        Self(bytes)
    }

    /// This time, or if it is not later than `last`, the first step after that. A system clock that was set back would
    /// otherwise silence this host until it has caught up.
    pub(super) fn after(self, last: Self) -> Self {
        if self > last {
            return self;
        }
        let seconds = u64_at(&last.0, 0).expect("eight bytes").swap_bytes();
        let nanos = u32::from_be_bytes(*last.0[8..].first_chunk().expect("four bytes"));
        match nanos.saturating_add(STEP_NS) {
            nanos if nanos < 1_000_000_000 => Self::from_parts(seconds, nanos),
            _ => Self::from_parts(seconds.saturating_add(1), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_and_the_steps() {
        assert_eq!(Timestamp::of(Duration::ZERO).0, [0x40, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0]);
        assert_eq!(Timestamp::of(Duration::from_nanos(1)), Timestamp::of(Duration::from_millis(16)));
        assert!(Timestamp::of(Duration::from_millis(16)) < Timestamp::of(Duration::from_millis(17)));
    }

    #[test]
    fn a_clock_that_goes_back_still_gives_later_times() {
        let mut last = Timestamp::of(Duration::new(100, 990_000_000));
        for _ in 0..200 {
            let next = Timestamp::of(Duration::from_secs(50)).after(last);
            assert!(next > last);
            last = next;
        }
        assert_eq!(last.0[7], 100 + 10 + 4, "200 steps are 3.3 s");
        let later = Timestamp::of(Duration::from_secs(1000));
        assert_eq!(later.after(last), later);
    }
}
