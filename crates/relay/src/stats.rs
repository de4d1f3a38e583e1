//! What the relay counts. Each worker writes its own counters, so nothing is contended; readers add them up.
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::PerDirection;

/// What moves the bytes of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// recv and send through a buffer.
    Copy,
    /// splice through a pipe.
    Splice,
    /// io_uring.
    Uring,
    /// Redirection in the kernel.
    Sockmap,
}

impl EngineKind {
    /// All of them; a kind's place is its index.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Splice, Self::Uring, Self::Sockmap];

    /// Whether it moves directions by itself, once they were given to it.
    pub fn arms(self) -> bool {
        matches!(self, Self::Uring | Self::Sockmap)
    }

    /// Its name in logs, metrics and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Splice => "splice",
            Self::Uring => "uring",
            Self::Sockmap => "sockmap",
        }
    }
}

/// Why a direction was not moved by the engine that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// EINVAL: the sockets do not support it.
    Unsupported,
    /// EPERM: not permitted, or the user's budget of pipe pages is used up.
    NotPermitted,
    /// EMFILE, ENFILE: no descriptors left.
    NoDescriptors,
    /// The relay's own share of descriptors for pipes is used up.
    NoPipes,
    /// An urgent byte waited, half read, when the kernel's redirection was to begin.
    BytesQueued,
    /// The connection has a bandwidth, which engines that move bytes by themselves do not keep.
    Bandwidth,
    /// The sink was too slow for redirection in the kernel, which has no end to what it takes.
    SlowSink,
    /// The kernel redirects the other direction of the connection, and can only do one.
    OtherDirection,
    /// Anything else.
    Other,
}

impl Fallback {
    /// All of them; a reason's place is its index.
    pub const ALL: [Self; 9] = [
        Self::Unsupported,
        Self::NotPermitted,
        Self::NoDescriptors,
        Self::NoPipes,
        Self::BytesQueued,
        Self::Bandwidth,
        Self::SlowSink,
        Self::OtherDirection,
        Self::Other,
    ];

    /// What an error of the kernel's means when an engine was to be used.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            Some(libc::EMFILE | libc::ENFILE) => Self::NoDescriptors,
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOPROTOOPT | libc::ENOSYS) => Self::Unsupported,
            None if error.kind() == io::ErrorKind::PermissionDenied => Self::NotPermitted,
            _ => Self::Other,
        }
    }

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::NotPermitted => "not-permitted",
            Self::NoDescriptors => "no-descriptors",
            Self::NoPipes => "no-pipes",
            Self::BytesQueued => "bytes-queued",
            Self::Bandwidth => "bandwidth",
            Self::SlowSink => "slow-sink",
            Self::OtherDirection => "other-direction",
            Self::Other => "other",
        }
    }
}

/// A number that one worker writes and others read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds; only the owner calls this.
    pub fn add(&self, n: u64) {
        // One writer: a load and a store need no locked instruction.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes away; only the owner calls this.
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(n), Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one listener in one worker.
#[derive(Debug, Default)]
pub struct ListenerStats {
    /// Connections accepted, or UDP sessions begun.
    pub accepted: Count,
    /// Open now.
    pub active: Count,
    /// Ended, by [`CloseReason::ALL`].
    pub closed: [Count; CloseReason::ALL.len()],
    /// Bytes delivered, by [`EngineKind::ALL`].
    pub bytes: PerDirection<[Count; EngineKind::ALL.len()]>,
    /// Directions that fell back, by [`Fallback::ALL`].
    pub fallbacks: [Count; Fallback::ALL.len()],
    /// Times that accepting paused because descriptors or memory ran out.
    pub accept_pauses: Count,
    /// Lines of ended connections that a slow log has lost.
    pub log_lines_lost: Count,
    /// Connection attempts to targets.
    pub dials: Count,
    /// Attempts that failed.
    pub dial_failures: Count,
    /// Datagrams sent on.
    pub datagrams: PerDirection<Count>,
    /// Datagrams dropped: over a limit, too long for a socket, or without a session.
    pub datagrams_dropped: Count,
}

impl ListenerStats {
    /// The counter of connections that ended for this reason.
    pub fn closed(&self, reason: CloseReason) -> &Count {
        let index = CloseReason::ALL.iter().position(|r| *r == reason);
        &self.closed[index.expect("every reason is in the list")]
    }
}
