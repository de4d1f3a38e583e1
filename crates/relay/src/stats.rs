//! Counters. Each worker writes its own, without contention; readers add them up.
use std::sync::atomic::{AtomicU64, Ordering};

use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::PerDirection;

/// An engine, as metrics and logs name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// recv and send through a buffer.
    Copy,
    /// splice through a pipe.
    Splice,
}

impl EngineKind {
    /// In the order of the discriminants.
    pub const ALL: [Self; 2] = [Self::Copy, Self::Splice];

    /// The name in logs and metrics and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Splice => "splice",
        }
    }
}

/// Why a direction was not moved by the configured engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// EINVAL: the sockets do not support it.
    Unsupported,
    /// EPERM: not permitted, or the user's budget of pipe pages is used up.
    NotPermitted,
    /// EMFILE, ENFILE: no descriptors left.
    NoDescriptors,
    /// The thread has as many pipes as it may.
    NoPipes,
    Other,
}

impl Fallback {
    /// In the order of the discriminants.
    pub const ALL: [Self; 5] = [Self::Unsupported, Self::NotPermitted, Self::NoDescriptors, Self::NoPipes, Self::Other];

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::NotPermitted => "not-permitted",
            Self::NoDescriptors => "no-descriptors",
            Self::NoPipes => "no-pipes",
            Self::Other => "other",
        }
    }
}

/// A counter that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Only the writing thread calls this.
    pub fn add(&self, n: u64) {
        // One writer: a load and a store need no locked instruction.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Only the writing thread calls this.
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(n), Ordering::Relaxed);
    }

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
    /// Directions that were copied instead, by [`Fallback::ALL`].
    pub fallbacks: [Count; Fallback::ALL.len()],
    /// Pauses of accepting because descriptors or memory ran out.
    pub accept_pauses: Count,
    /// Log lines lost because the log thread was too slow.
    pub log_lines_lost: Count,
    /// Connection attempts to targets.
    pub dials: Count,
    pub dial_failures: Count,
    /// Datagrams sent to targets and to clients.
    pub datagrams: PerDirection<Count>,
    /// Datagrams dropped: over a limit, too long for a socket, or without a session.
    pub datagrams_dropped: Count,
}

impl ListenerStats {
    pub fn closed(&self, reason: CloseReason) -> &Count {
        let index = CloseReason::ALL.iter().position(|r| *r == reason);
        &self.closed[index.expect("every reason is in the list")]
    }
}
