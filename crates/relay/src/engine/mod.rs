//! Engines move the bytes of a direction.
//!
//! An engine gets a batch of [`Job`]s, one for each direction with a turn. It moves what it can without waiting, and sets
//! each job's outcome. Jobs carry the bytes that an engine holds (a buffer, a pipe), so an engine knows no connections and is
//! tested with socket pairs. An engine reports the end of a direction only when it has delivered all bytes before it.
pub mod copy;
pub mod splice;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::RawFd;

use parshall_core::relay::connection::{self, Ended, Failure};
use parshall_core::relay::streaming::Rhythm;
use parshall_sys::stream_io::Pipe;

use super::stats::Fallback;

/// Bytes that a direction may move in one turn.
pub const TURN_BYTES: u64 = 2 << 20;

/// The bytes of a direction that an engine holds because the sink was full.
#[derive(Debug, Default)]
pub enum Store {
    /// Nothing is held, as in every idle connection.
    #[default]
    Empty,
    Buffer(Box<Held>),
    Pipe(Box<Piped>),
}

impl Store {
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Whether bytes are held, as the state machine names it.
    pub fn held(&self) -> connection::Held {
        match self {
            Self::Empty => connection::Held::Nothing,
            Self::Buffer(_) | Self::Pipe(_) => connection::Held::Bytes,
        }
    }
}

/// Bytes that wait until the sink is writable.
#[derive(Debug)]
pub struct Held {
    /// Those before `sent` are sent.
    pub bytes: Vec<u8>,
    pub sent: usize,
}

/// A pipe with bytes that wait until the sink is writable.
#[derive(Debug)]
pub struct Piped {
    pub pipe: Pipe,
    /// Bytes in the pipe.
    pub bytes: usize,
    /// How the source has ended, if it has; the bytes in the pipe are its last.
    pub end: Option<Ended>,
}

/// A direction's turn.
#[derive(Debug)]
pub struct Job {
    /// The connection and direction; the engine does not change it.
    pub id: u64,
    /// The socket to read.
    pub source: RawFd,
    /// The socket to write.
    pub sink: RawFd,
    /// Bytes that may still be read from the source in this turn.
    pub allowance: u64,
    /// The initial allowance.
    pub granted: u64,
    /// The largest copy buffer, in bytes.
    pub ceiling: usize,
    /// The end of the source or an urgent byte was seen, so that more can follow a short read: the kernel ends a read in
    /// front of an urgent byte, and a splice does not go beyond it.
    pub source_ended: bool,
    /// The turn ends when the direction begins or ceases to stream, for another engine.
    pub adaptive: bool,
    pub store: Store,
    pub rhythm: Rhythm,
    /// Bytes delivered in this turn.
    pub moved: u64,
    pub outcome: Outcome,
}

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The source has nothing more.
    SourceEmpty,
    /// The sink takes no more; bytes are held.
    SinkFull,
    /// More can be moved: the allowance is used up, or another engine is to go on.
    Again,
    /// The direction has ended.
    Ended(Ended),
    /// The engine cannot move this direction; nothing was taken.
    Refused(Fallback),
}

pub trait Engine {
    /// Gives each job a turn.
    fn pump(&mut self, jobs: &mut [Job]);

    /// Releases what a closed connection held. Its descriptors may be closed when this returns.
    fn discard(&mut self, store: Store);
}

pub fn failure(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN) => {
            Failure::Lost
        }
        _ => Failure::Reset,
    }
}

pub fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
