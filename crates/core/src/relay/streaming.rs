//! When a direction of a connection moves from one engine to another, and how much it reads at once.
//!
//! A direction that carries small exchanges is cheapest with one recv and one send; one that streams is cheapest through
//! a pipe, which costs two more calls per turn, two descriptors and a wake-up more while it warms up. So every direction
//! begins with copies, moves to splice when it has filled its buffer several times in a row, and back when it goes quiet.

/// The smallest read of a copy: larger than any request, small enough to stay in the first-level cache.
pub const READ_MIN: usize = 16 * 1024;
/// Reads that filled the buffer, in a row, after which a direction streams.
const FULL_READS: u8 = 4;
/// A turn of splice that moves this many bytes counts as streaming.
const STREAM_BYTES: u64 = 64 * 1024;
/// A turn that moves fewer bytes counts as quiet.
const QUIET_BYTES: u64 = 16 * 1024;
/// Quiet turns in a row after which a direction no longer streams.
const QUIET_SPLICES: u8 = 8;

/// Whether a direction streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// Small exchanges, or nothing.
    #[default]
    Quiet,
    /// A stream.
    Streaming,
}

/// The recent traffic of a direction. It is a few bytes long, because every connection has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rhythm {
    pace: Pace,
    /// Full reads in a row while quiet, quiet turns in a row while streaming.
    run: u8,
    /// How often the read size has doubled.
    doublings: u8,
}

impl Rhythm {
    /// Whether it streams now.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Bytes to ask for in one read, at most `ceiling`.
    pub fn read_size(&self, ceiling: usize) -> usize {
        READ_MIN.saturating_mul(1 << self.doublings.min(16)).min(ceiling)
    }

    /// A copy has read `bytes` of at most `asked`. A full read doubles the size of the next one.
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
        let (goes_on, in_a_row) = match self.pace {
            Pace::Quiet => (bytes >= STREAM_BYTES, FULL_READS),
            Pace::Streaming => (bytes < QUIET_BYTES, QUIET_SPLICES),
        };
        self.run = if goes_on { self.run.saturating_add(1) } else { 0 };
        if self.run >= in_a_row {
            match self.pace {
                Pace::Quiet => (self.pace, self.run) = (Pace::Streaming, 0),
                Pace::Streaming => self.calm(),
            }
        }
    }

    fn calm(&mut self) {
        (self.pace, self.run, self.doublings) = (Pace::Quiet, 0, 0);
    }

    /// Splice was refused for this direction.
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

    #[test]
    fn a_stream_that_goes_quiet_goes_back() {
        let mut rhythm = Rhythm { pace: Pace::Streaming, run: 0, doublings: 2 };
        for _ in 0..QUIET_SPLICES - 1 {
            rhythm.spliced(100);
        }
        rhythm.spliced(1 << 20);
        assert_eq!(rhythm.pace(), Pace::Streaming);
        for _ in 0..QUIET_SPLICES {
            rhythm.spliced(100);
        }
        assert_eq!(rhythm, Rhythm::default());
    }
}
