//! What moves the bytes of a direction.
//!
//! The seam: an engine gets a batch of [`Job`]s, one for each direction that may have something to move, moves what it
//! can without waiting, and leaves in each job how it went. Jobs carry what an engine holds back (a buffer, a pipe), so
//! an engine knows no connections and is tested with socket pairs. An engine reports an end only when nothing that came
//! before it is left with it.
//!
//! Some engines move a direction by themselves once they were given it: they answer [`Outcome::Armed`], keep a
//! [`Store::Armed`] in the job, and report what came of it in [`Engine::completed`]. A job of an armed direction asks them to
//! look at it again.
pub mod copy;
pub mod sockmap;
pub mod splice;
#[cfg(test)]
mod tests;
pub mod uring;

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use parshall_core::relay::connection::{self, Ended, Failure};
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::streaming::Rhythm;
use parshall_sys::stream_io::Pipe;

use super::stats::{EngineKind, Fallback};

/// Bytes a direction may move before others have their turn.
pub const TURN_BYTES: u64 = 2 << 20;

/// What an engine holds back of a direction because its sink was full.
#[derive(Debug, Default)]
pub enum Store {
    /// Nothing: what an idle connection costs.
    #[default]
    Empty,
    /// Bytes of a buffer that are not yet sent.
    Buffer(Box<Held>),
    /// A pipe with bytes in it.
    Pipe(Box<Piped>),
    /// The engine moves the direction by itself, under this name.
    Armed(SlotId),
}

impl Store {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// What of it decides when the direction can go on.
    pub fn held(&self) -> connection::Held {
        match self {
            Self::Empty => connection::Held::Nothing,
            Self::Buffer(_) | Self::Pipe(_) => connection::Held::Bytes,
            Self::Armed(_) => connection::Held::Armed,
        }
    }

    /// Whether an engine moves the direction by itself.
    pub fn is_armed(&self) -> bool {
        matches!(self, Self::Armed(_))
    }
}

/// Bytes that wait until the sink is writable.
#[derive(Debug)]
pub struct Held {
    /// The bytes; those before `sent` are gone.
    pub bytes: Vec<u8>,
    /// How many are sent.
    pub sent: usize,
}

/// A pipe with bytes that wait until the sink is writable.
#[derive(Debug)]
pub struct Piped {
    /// The pipe.
    pub pipe: Pipe,
    /// Bytes in it.
    pub bytes: usize,
    /// How the source has ended; what is in the pipe is the last.
    pub end: Option<Ended>,
}

/// One direction, given to an engine.
#[derive(Debug)]
pub struct Job {
    /// Whose it is; the engine returns it as it was.
    pub id: u64,
    /// Where bytes come from.
    pub source: RawFd,
    /// Where they go.
    pub sink: RawFd,
    /// Bytes it may take from the source in this turn; counts down.
    pub allowance: u64,
    /// What the allowance was at first.
    pub granted: u64,
    /// Ceiling of a copy buffer, bytes.
    pub ceiling: usize,
    /// The source's end or an urgent byte has been seen: a short read is not the last word. The kernel ends a read in
    /// front of an urgent byte, and a splice stops there for good.
    pub source_ended: bool,
    /// The direction is to leave this engine once it streams (or streams no more).
    pub adaptive: bool,
    /// What is held back.
    pub store: Store,
    /// What the direction has done lately.
    pub rhythm: Rhythm,
    /// Bytes delivered in this turn.
    pub moved: u64,
    /// How it went.
    pub outcome: Outcome,
}

/// How a turn went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The source has nothing more.
    SourceEmpty,
    /// The sink takes no more; something is held back.
    SinkFull,
    /// There is more to do: the allowance is used up, or another engine should go on.
    Again,
    /// The direction is over.
    Ended(Ended),
    /// The engine cannot move this direction; nothing was taken.
    Refused(Fallback),
    /// The engine moves it by itself from now on.
    Armed,
    /// As `Armed`, and the source has ended: it is to be looked at again soon, for the last bytes are on their way.
    Leaving,
}

/// What came of an armed direction.
#[derive(Debug)]
pub struct Done {
    /// Of the job that armed it.
    pub id: u64,
    /// Bytes delivered since the last one of these.
    pub moved: u64,
    /// `Armed`, `Ended`, or `Refused`. After an end or a refusal the engine knows the direction no more.
    pub outcome: Outcome,
}

/// Moves bytes.
pub trait Engine {
    /// Which it is.
    fn kind(&self) -> EngineKind;

    /// Gives each job a turn.
    fn pump(&mut self, jobs: &mut [Job]);

    /// Takes back what a closed connection held. When this returns, its descriptors may be closed.
    fn discard(&mut self, store: Store);

    /// Bytes that an armed direction has delivered and that were not reported. Called when a connection is closed.
    fn unreported(&mut self, _store: &Store) -> u64 {
        0
    }

    /// A direction that it refused is copied from now on, and has delivered so many bytes so far.
    fn copied_from(&mut self, _source: RawFd, _delivered: u64) {}

    /// Whether bytes of a source at whose end copying has arrived are still on their way into its queue, after so many
    /// were delivered.
    fn has_more(&mut self, _source: RawFd, _delivered: u64) -> bool {
        false
    }

    /// A socket is about to be closed.
    fn forget(&mut self, _socket: RawFd) {}

    /// Appends what has come of armed directions, waiting at most this long for something to happen. Engines that arm
    /// nothing neither wait nor answer.
    fn completed(&mut self, _wait: Option<Duration>, _out: &mut Vec<Done>) -> io::Result<()> {
        Ok(())
    }

    /// Requests in flight, buffers lent and directions known; none once every direction has ended.
    #[cfg(test)]
    fn in_use(&mut self) -> usize {
        0
    }
}

/// What an error of a socket means for the connection.
pub fn failure(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN) => {
            Failure::Lost
        }
        _ => Failure::Reset,
    }
}

/// Whether a call would have had to wait.
pub fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
