//! The seam of the sinks that may be slow: encoded chunks go through a queue and a spool (`outlet`) to one of these.
use std::time::Duration;

/// Encoded rows that are delivered or kept as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the dump that the rows belong to.
    pub sequence: u64,
    /// When that dump began, in nanoseconds since 1970: what the lag is measured from.
    pub at_unix_ns: u64,
    /// How many rows the bytes hold.
    pub rows: u32,
    /// What the encoder wrote.
    pub bytes: Vec<u8>,
}

/// Why a chunk was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of failure it was, as metrics count it: `refused`, `timeout`, `disk-full`, `too-large`, `auth`, ...
    pub kind: &'static str,
    /// The failure, as it may be shown.
    pub text: String,
    /// Whether trying again can help. If not, the chunk is dropped and counted.
    pub again: bool,
}

/// Brings chunks to where they should be. Runs in a thread of its own, may block, and must come back in bounded time.
pub trait Delivery: Send {
    /// Delivers one chunk. When this returns `Ok`, the rows are there for good (written, acknowledged).
    fn deliver(&mut self, chunk: &Chunk) -> Result<(), Refusal>;

    /// Ends: closes files, says good-bye. No longer than `patience`.
    fn close(&mut self, patience: Duration);
}
