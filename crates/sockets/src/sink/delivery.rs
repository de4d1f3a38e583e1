//! The interface of slow receivers: encoded chunks pass through a queue and a spool (`delivery_queue`) to a [`Delivery`].
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::account::Fault;

/// Encoded rows that are delivered or spooled together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the dump that the rows belong to.
    pub sequence: u64,
    /// When that dump began, in nanoseconds since 1970. The lag is measured from here.
    pub at_unix_ns: u64,
    /// Rows in `bytes`.
    pub rows: u32,
    pub bytes: Payload,
}

/// A buffer, without the padding at its beginning.
#[derive(Debug, Clone)]
pub struct Payload {
    buffer: Vec<u8>,
    from: usize,
    /// Encoded bytes before these, where the sink counts them.
    pub position: u64,
    pool: Option<Arc<BufferPool>>,
}

impl Payload {
    /// The bytes of `buffer` from `from` on. Dropping the payload returns the buffer to `pool`.
    pub fn pooled(buffer: Vec<u8>, from: usize, position: u64, pool: Arc<BufferPool>) -> Self {
        debug_assert!(from <= buffer.len());
        Self { buffer, from, position, pool: Some(pool) }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(buffer: Vec<u8>) -> Self {
        Self { buffer, from: 0, position: 0, pool: None }
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
        if let Some(pool) = &self.pool {
            pool.put(std::mem::take(&mut self.buffer));
        }
    }
}

/// Buffers for reuse. Their memory is mapped and partly cached, while a new buffer costs a fault for every page.
#[derive(Debug, Default)]
pub struct BufferPool(Mutex<Vec<Vec<u8>>>);

/// As many buffers as are in use at a time when the receiver keeps up.
const POOL_MAX: usize = 4;

impl BufferPool {
    /// An empty buffer with at least this capacity: the last one returned, if there is one.
    pub fn take(&self, capacity: usize) -> Vec<u8> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = last.unwrap_or_default();
        buffer.clear();
        buffer.reserve(capacity);
        buffer
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < POOL_MAX {
            buffers.push(buffer);
        }
    }
}

impl std::ops::Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.from..]
    }
}

/// Why a chunk was not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The label of its metric: `refused`, `timeout`, `disk-full`, `too-large`, `auth`, ...
    pub kind: &'static str,
    /// The text for people.
    pub text: String,
    /// Whether another attempt can succeed. If not, the chunk is dropped and counted.
    pub retriable: bool,
}

/// The part of an accepted chunk that the receiver rejected. Sending it again would not help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// At most those of the chunk.
    pub rows: u64,
    /// The text for people.
    pub text: String,
}

/// Delivers chunks to a receiver. Runs in a thread of its own, and may block for a bounded time.
pub trait Delivery: Send {
    /// Delivers one chunk. `Ok` means that its rows were written or acknowledged, except those that were rejected.
    fn deliver(&mut self, chunk: &Chunk) -> Result<Option<Rejected>, Refusal>;

    /// Failures since the last call that did not prevent a delivery.
    fn faults(&mut self) -> Vec<Fault> {
        Vec::new()
    }

    /// Closes files and connections within `timeout`.
    fn close(&mut self, timeout: Duration);
}
