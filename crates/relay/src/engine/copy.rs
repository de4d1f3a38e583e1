//! recv and send through a buffer.
//!
//! All directions of a thread share one buffer. Bytes that a full sink does not take are moved to a buffer from a pool until
//! they are sent, so an idle connection holds no memory.
use std::io;

use parshall_core::relay::connection::Ended;
use parshall_core::relay::streaming::Pace;
use parshall_sys::stream_io::{recv, send};

use super::{Engine, Held, Job, Outcome, Store, failure, would_block};

/// Bytes of free buffers that a thread keeps.
const POOL_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub struct CopyEngine {
    scratch: Vec<u8>,
    pool: Vec<Vec<u8>>,
    pooled_bytes: usize,
}

impl CopyEngine {
    /// The shared buffer has `ceiling` bytes.
    pub fn new(ceiling: usize) -> Self {
        Self { scratch: vec![0; ceiling], pool: Vec::new(), pooled_bytes: 0 }
    }

    fn turn(&mut self, job: &mut Job) -> Outcome {
        if let Some(outcome) = self.deliver_held(job) {
            return outcome;
        }
        let ceiling = job.ceiling.min(self.scratch.len());
        loop {
            let asked = job.rhythm.read_size(ceiling).min(usize::try_from(job.allowance).unwrap_or(usize::MAX));
            if asked == 0 {
                return Outcome::Again;
            }
            let got = match recv(job.source, &mut self.scratch[..asked]) {
                Ok(0) => return Outcome::Ended(Ended::Eof),
                Ok(n) => n,
                Err(e) if would_block(&e) => return Outcome::SourceEmpty,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Outcome::Ended(Ended::SourceFailed(failure(&e))),
            };
            job.allowance -= got as u64;
            job.rhythm.copied(got, asked, ceiling);
            if let Some(outcome) = self.deliver(job, got) {
                return outcome;
            }
            // A short read has emptied the socket. Epoll reports more bytes, so the read that would block is saved.
            if got < asked && !job.source_ended {
                return Outcome::SourceEmpty;
            }
            if job.allowance == 0 || (job.adaptive && job.rhythm.pace() == Pace::Streaming) {
                return Outcome::Again;
            }
        }
    }

    /// Sends received bytes and holds those that the sink does not take. None: all are sent.
    fn deliver(&mut self, job: &mut Job, got: usize) -> Option<Outcome> {
        let mut sent = 0;
        while sent < got {
            match send(job.sink, &self.scratch[sent..got]) {
                Ok(n) => {
                    sent += n;
                    job.moved += n as u64;
                }
                Err(e) if would_block(&e) => {
                    job.store = Store::Buffer(Box::new(Held { bytes: self.filled(sent, got), sent: 0 }));
                    return Some(Outcome::SinkFull);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Some(Outcome::Ended(Ended::SinkFailed(failure(&e)))),
            }
        }
        None
    }

    /// Sends bytes that an earlier turn held. None: all are sent.
    fn deliver_held(&mut self, job: &mut Job) -> Option<Outcome> {
        let mut held = match std::mem::take(&mut job.store) {
            Store::Buffer(held) => held,
            other => {
                debug_assert!(other.is_empty(), "a pipe belongs to the splice engine");
                return None;
            }
        };
        while held.sent < held.bytes.len() {
            match send(job.sink, &held.bytes[held.sent..]) {
                Ok(n) => {
                    held.sent += n;
                    job.moved += n as u64;
                }
                Err(e) if would_block(&e) => {
                    job.store = Store::Buffer(held);
                    return Some(Outcome::SinkFull);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.recycle(held.bytes);
                    return Some(Outcome::Ended(Ended::SinkFailed(failure(&e))));
                }
            }
        }
        self.recycle(held.bytes);
        None
    }

    fn filled(&mut self, from: usize, to: usize) -> Vec<u8> {
        let mut bytes = self.pool.pop().unwrap_or_default();
        self.pooled_bytes -= bytes.capacity();
        bytes.extend_from_slice(&self.scratch[from..to]);
        bytes
    }

    fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.pooled_bytes + bytes.capacity() <= POOL_BYTES {
            bytes.clear();
            self.pooled_bytes += bytes.capacity();
            self.pool.push(bytes);
        }
    }
}

impl Engine for CopyEngine {
    fn pump(&mut self, jobs: &mut [Job]) {
        for job in jobs {
            job.outcome = self.turn(job);
        }
    }

    fn discard(&mut self, store: Store) {
        if let Store::Buffer(held) = store {
            self.recycle(held.bytes);
        }
    }
}
