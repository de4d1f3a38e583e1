//! The seam of the sinks that may be slow: encoded chunks go through a queue and a spool (`delivery_queue`) to one of these.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Fault;

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
    pub bytes: Payload,
}

/// Bytes that need not begin where their buffer does.
#[derive(Debug, Clone)]
pub struct Payload {
    buffer: Vec<u8>,
    from: usize,
    /// How many bytes the sink had offered before, where it counts them.
    pub position: u64,
    home: Option<Arc<Spare>>,
}

impl Payload {
    /// The bytes of `buffer` from `from` on. The buffer goes `home` when they are delivered or given up.
    pub fn placed(buffer: Vec<u8>, from: usize, position: u64, home: Arc<Spare>) -> Self {
        debug_assert!(from <= buffer.len());
        Self { buffer, from, position, home: Some(home) }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(buffer: Vec<u8>) -> Self {
        Self { buffer, from: 0, position: 0, home: None }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Payload {}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.put(std::mem::take(&mut self.buffer));
        }
    }
}

/// Buffers that were used and will be again: their memory is there and partly still in a cache, while a new one costs a page
/// fault for every page.
#[derive(Debug, Default)]
pub struct Spare(Mutex<Vec<Vec<u8>>>);

/// As many as are filled, written and waiting at a time when all goes well.
const SPARE_MAX: usize = 4;

impl Spare {
    /// An empty buffer with at least this capacity, the one that was used last if there is one.
    pub fn take(&self, capacity: usize) -> Vec<u8> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = last.unwrap_or_default();
        buffer.clear();
        buffer.reserve(capacity);
        buffer
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    }
}

impl std::ops::Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.from..]
    }
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

    /// What went wrong since the last call without holding up a chunk.
    fn faults(&mut self) -> Vec<Fault> {
        Vec::new()
    }

    /// Ends: closes files, says good-bye. No longer than `timeout`.
    fn close(&mut self, timeout: Duration);
}
