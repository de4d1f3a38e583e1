//! When a direction of a connection moves from one engine to another, and how much it reads at once.
//!
//! A direction that carries small exchanges is cheapest with one recv and one send; one that streams is cheapest through
//! a pipe, which costs two more calls per turn, two descriptors and a wake-up more while it warms up. So every direction
//! begins with copies, moves to splice when it has filled its buffer several times in a row, and back when it goes quiet.

/// The smallest read of a copy: larger than any request, small enough to stay in the first-level cache.
pub const READ_MIN: usize = 16 * 1024;
/// Reads that filled the buffer, in a row, after which a direction streams.
const FULL_READS: u8 = 4;
/// A turn of splice that moved this much is a stream's.
const STREAM_BYTES: u64 = 64 * 1024;
/// A turn that moved less than this was no stream's.
const QUIET_BYTES: u64 = 16 * 1024;
/// Quiet turns in a row after which a direction no longer streams.
const QUIET_TURNS: u8 = 8;

/// Bytes that wait in the source before a streaming direction is woken (SO_RCVLOWAT): fewer, larger turns.
///
/// Set on a direction that does not stream, it would hold small exchanges up for ever; so it is taken back when the
/// source has been silent for [`LOW_WATER_PATIENCE_NS`], which is what the tail of a stream can be late at most. Each
/// wake-up costs the relay and, by the window it opens, the sender; so a fast stream waits for more: 1 MiB instead of
/// 128 KiB saved a quarter of the CPU of the whole path at 30 Gbit/s.
const LOW_WATER_MIN: u64 = 128 * 1024;
/// How often that may double.
const LOW_WATER_DOUBLINGS: u8 = 3;
/// The low water is what arrives in this time: well within the patience.
const LOW_WATER_TIME_NS: u64 = 1_500_000;
/// Wake-ups that show that a sender can fill a low water.
const PROOF_WAKES: u16 = 4;
/// Wake-ups after which a level that did not work is tried again, doubled each time it is in vain.
const RETRY_WAKES: u16 = 32;
const IN_VAIN_MAX: u8 = 8;
/// How long less than that may wait.
pub const LOW_WATER_PATIENCE_NS: u64 = 2_000_000;
/// A direction may be late by one part in so many of the time that it has streamed without an answer, for nobody tells the
/// last part of a message from the middle of a stream: objects of a megabyte, asked for one after the other, would each be
/// late by the patience, several times what they take. So a stream runs for 50 ms before it has a low water.
const LATE_SHARE: u64 = 25;
/// It may save up so much lateness.
const LATE_MAX_NS: u64 = 10 * LOW_WATER_PATIENCE_NS;

/// What a direction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// Small exchanges, or nothing.
    #[default]
    Quiet,
    /// A stream.
    Streaming,
}

/// What a direction has done lately: a few bytes per direction, for every connection has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rhythm {
    pace: Pace,
    /// Full reads in a row while quiet, quiet turns in a row while streaming.
    run: u8,
    /// How often the read size has doubled.
    doublings: u8,
    /// The low water, as doublings of the smallest.
    level: u8,
    /// Doublings that the sender has shown to be too many: it cannot have that much on its way.
    too_high: u8,
    /// Wake-ups at this level.
    wakes: u16,
    /// How often one doubling more was tried in vain.
    in_vain: u8,
    /// By how much it may be late: earned by streaming, spent when bytes waited for the patience, lost by an answer.
    may_be_late_ns: u32,
}

impl Rhythm {
    /// What it does now.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Bytes to ask for in one read, at most `ceiling`.
    pub fn read_size(&self, ceiling: usize) -> usize {
        READ_MIN.saturating_mul(1 << self.doublings.min(16)).min(ceiling)
    }

    /// A copy has read `bytes` of at most `asked`. The size grows with what a full read shows to be waiting.
    pub fn copied(&mut self, bytes: usize, asked: usize, ceiling: usize) {
        if bytes < asked {
            self.run = 0;
            return;
        }
        if self.read_size(ceiling) < ceiling {
            self.doublings += 1;
        }
        self.run = self.run.saturating_add(1);
        if self.run >= FULL_READS {
            self.pace = Pace::Streaming;
            self.run = 0;
        }
    }

    /// A turn of splice has moved `bytes` before it had to wait for more.
    pub fn spliced(&mut self, bytes: u64) {
        let (goes_on, turns) = match self.pace {
            Pace::Quiet => (bytes >= STREAM_BYTES, FULL_READS),
            Pace::Streaming => (bytes < QUIET_BYTES, QUIET_TURNS),
        };
        self.run = if goes_on { self.run.saturating_add(1) } else { 0 };
        if self.run >= turns {
            match self.pace {
                Pace::Quiet => (self.pace, self.run) = (Pace::Streaming, 0),
                Pace::Streaming => self.calm(),
            }
        }
    }

    /// The other direction has moved bytes: what streams here are messages.
    pub fn answered(&mut self) {
        self.may_be_late_ns = 0;
    }

    /// The low water, in bytes, of a direction that streams and has moved `bytes` in the `elapsed_ns` since it last waited
    /// (none: it has not yet). 0: it is woken for every byte.
    pub fn low_water(&mut self, bytes: u64, elapsed_ns: Option<u64>) -> i32 {
        let Some(elapsed_ns) = elapsed_ns else { return 0 };
        // A longer wait was a pause, not a stream.
        let earned = elapsed_ns.min(LOW_WATER_PATIENCE_NS) / LATE_SHARE;
        self.may_be_late_ns = (u64::from(self.may_be_late_ns) + earned).min(LATE_MAX_NS) as u32;
        if u64::from(self.may_be_late_ns) < LOW_WATER_PATIENCE_NS {
            return 0;
        }
        self.wakes = self.wakes.saturating_add(1);
        if self.too_high > 0 && self.wakes >= RETRY_WAKES << self.in_vain {
            self.too_high -= 1;
        }
        let arrives = u128::from(bytes) * u128::from(LOW_WATER_TIME_NS) / u128::from(elapsed_ns.max(1));
        let times = u64::try_from(arrives).unwrap_or(u64::MAX) / LOW_WATER_MIN;
        let level = times.max(1).ilog2().min(u32::from(LOW_WATER_DOUBLINGS - self.too_high)) as u8;
        if level > self.level {
            self.wakes = 0;
        }
        self.level = level;
        (LOW_WATER_MIN << level) as i32
    }

    /// The patience with a low water has ended. If bytes were waiting, they are late, and the sender could not send more
    /// (its buffer or its window is smaller than the low water) or was held up; the first is told by a level that never
    /// worked, and avoided for longer each time.
    pub fn starved(&mut self, bytes_waited: bool) {
        if bytes_waited {
            self.may_be_late_ns = self.may_be_late_ns.saturating_sub(LOW_WATER_PATIENCE_NS as u32);
            if self.wakes < PROOF_WAKES && self.level > 0 {
                self.too_high = LOW_WATER_DOUBLINGS - (self.level - 1);
                self.in_vain = (self.in_vain + 1).min(IN_VAIN_MAX);
                self.wakes = 0;
            }
        }
        self.calm();
    }

    /// Nothing came for a while.
    pub fn calm(&mut self) {
        (self.pace, self.run, self.doublings) = (Pace::Quiet, 0, 0);
    }

    /// Splice is not to be had for this direction: it stays with copies.
    pub fn refused(&mut self) {
        self.pace = Pace::Quiet;
        self.run = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_exchanges_stay_with_small_copies() {
        let mut rhythm = Rhythm::default();
        for _ in 0..1000 {
            rhythm.copied(32, rhythm.read_size(65536), 65536);
        }
        assert_eq!((rhythm.pace(), rhythm.read_size(65536)), (Pace::Quiet, READ_MIN));
    }

    #[test]
    fn full_reads_grow_to_the_ceiling_and_then_stream() {
        let mut rhythm = Rhythm::default();
        let mut sizes = Vec::new();
        while rhythm.pace() == Pace::Quiet {
            let asked = rhythm.read_size(65536);
            sizes.push(asked);
            rhythm.copied(asked, asked, 65536);
        }
        assert_eq!(sizes, [16384, 32768, 65536, 65536]);
    }

    #[test]
    fn the_ceiling_holds_when_it_is_below_the_smallest_read() {
        let mut rhythm = Rhythm::default();
        for _ in 0..100 {
            assert_eq!(rhythm.read_size(8192), 8192);
            rhythm.copied(8192, 8192, 8192);
        }
    }

    #[test]
    fn a_direction_that_only_splices_is_found_to_stream_as_well() {
        let mut rhythm = Rhythm::default();
        for bytes in [1 << 20, 100, 1 << 20, 1 << 20, 1 << 20] {
            rhythm.spliced(bytes);
            assert_eq!(rhythm.pace(), Pace::Quiet);
        }
        rhythm.spliced(1 << 20);
        assert_eq!(rhythm.pace(), Pace::Streaming);
    }

    const MS: u64 = 1_000_000;

    /// A direction that has streamed for a second.
    fn seasoned() -> Rhythm {
        let mut rhythm = Rhythm::default();
        for _ in 0..1000 {
            rhythm.low_water(100_000, Some(MS));
        }
        rhythm
    }

    #[test]
    fn the_low_water_follows_the_rate() {
        let mut rhythm = seasoned();
        for (bytes, low_water) in
            [(100_000, 128 << 10), (400_000, 512 << 10), (4_000_000, 1 << 20), (u64::MAX, 1 << 20)]
        {
            assert_eq!(rhythm.low_water(bytes, Some(MS)), low_water);
        }
        assert_eq!(rhythm.low_water(0, Some(0)), 128 << 10);
    }

    #[test]
    fn a_stream_is_late_by_a_small_part_of_its_time() {
        let mut rhythm = Rhythm::default();
        assert_eq!(rhythm.low_water(1 << 20, None), 0);
        let first = (1..).find(|_| rhythm.low_water(1 << 20, Some(MS)) > 0);
        assert_eq!(first, Some(50), "milliseconds");
        // Objects of 1 MiB, which take 1 ms each, with a pause behind each: every low water makes one late.
        let mut late = 0;
        for _ in 0..1000 {
            rhythm.low_water(1 << 20, Some(200 * MS));
            if rhythm.low_water(1 << 20, Some(MS)) > 0 {
                rhythm.starved(true);
                late += 1;
            }
        }
        assert!((1..=1 + 1000 * 3 / 50).contains(&late), "{late} of 1000");
    }

    #[test]
    fn what_is_answered_is_never_late() {
        let mut rhythm = seasoned();
        for _ in 0..1000 {
            rhythm.answered();
            for _ in 0..10 {
                assert_eq!(rhythm.low_water(1 << 20, Some(MS)), 0);
            }
        }
    }

    #[test]
    fn silence_makes_nothing_late() {
        let mut rhythm = seasoned();
        for _ in 0..100 {
            rhythm.starved(false);
            assert!(rhythm.low_water(1 << 20, Some(MS)) > 0);
        }
    }

    /// What a fast direction does until it settles: `limit` bytes are all that the sender can have on its way.
    fn stalls(rhythm: &mut Rhythm, limit: i32, waits: u32) -> u32 {
        let mut stalls = 0;
        for _ in 0..waits {
            if rhythm.low_water(4_000_000, Some(MS)) > limit {
                rhythm.starved(true);
                stalls += 1;
            }
        }
        stalls
    }

    #[test]
    fn a_sender_with_a_small_buffer_is_rarely_made_to_stall() {
        let mut rhythm = seasoned();
        assert_eq!(stalls(&mut rhythm, 300 << 10, 4), 2, "1 MiB, 512 KiB, then 256 KiB");
        let stalled = stalls(&mut rhythm, 300 << 10, 20_000);
        assert!((1..=10).contains(&stalled), "{stalled} of 20,000 waits");
    }

    #[test]
    fn a_sender_that_is_held_up_now_and_then_keeps_its_level() {
        let mut rhythm = seasoned();
        for _ in 0..100 {
            assert_eq!(stalls(&mut rhythm, 1 << 20, 50), 0);
            rhythm.starved(true);
            assert_eq!(rhythm.low_water(4_000_000, Some(MS)), 1 << 20);
        }
    }

    #[test]
    fn a_stream_that_goes_quiet_goes_back() {
        let mut rhythm = Rhythm { pace: Pace::Streaming, run: 0, doublings: 2, ..Rhythm::default() };
        for _ in 0..QUIET_TURNS - 1 {
            rhythm.spliced(100);
        }
        rhythm.spliced(1 << 20);
        assert_eq!(rhythm.pace(), Pace::Streaming);
        for _ in 0..QUIET_TURNS {
            rhythm.spliced(100);
        }
        assert_eq!(rhythm, Rhythm::default());
    }
}
