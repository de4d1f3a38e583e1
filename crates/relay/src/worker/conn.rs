//! A connection as the worker keeps it: its sockets and what belongs to them. Where it is in its life is known to
//! [`Connection`].
//!
//! Kept small: ten thousand idle connections are ten thousand of these and nothing else.
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use parshall_core::relay::bucket::Bucket;
use parshall_core::relay::config::EngineChoice;
use parshall_core::relay::connection::Connection;
use parshall_core::relay::direction::{Peer, PerDirection};
use parshall_core::relay::slots::Slots;
use parshall_core::relay::streaming::Rhythm;
use parshall_sys::stream_socket::StreamAddr;

use super::setup::Setup;
use crate::engine::Store;
use crate::stats::{EngineKind, Fallback};

/// The state of one direction: its engine, what it holds and what it has moved.
#[derive(Debug)]
pub struct Transfer {
    /// Bytes delivered to the sink.
    pub moved: u64,
    pub store: Store,
    pub rhythm: Rhythm,
    /// The engine in use.
    pub engine: EngineKind,
    /// Engines that have moved bytes, a bit each by [`EngineKind::ALL`].
    pub engines_used: u8,
    /// The first reason for not using the configured engine.
    pub fallback: Option<Fallback>,
    /// Begins with copies and is spliced while it streams.
    pub adaptive: bool,
}

impl Transfer {
    fn new(engine: EngineKind, adaptive: bool) -> Self {
        Self {
            moved: 0,
            store: Store::Empty,
            rhythm: Rhythm::default(),
            engine,
            engines_used: 0,
            fallback: None,
            adaptive,
        }
    }

    /// The initial state of a direction with the configured engine.
    pub fn of_choice(choice: EngineChoice) -> Self {
        match choice {
            EngineChoice::Auto => Self::new(EngineKind::Copy, true),
            EngineChoice::Copy => Self::new(EngineKind::Copy, false),
            EngineChoice::Splice => Self::new(EngineKind::Splice, false),
        }
    }

    /// The engine of the next turn: that of the held bytes if there are any, so that engines can change at any time.
    pub fn next_engine(&self) -> EngineKind {
        match self.store {
            Store::Buffer(_) => EngineKind::Copy,
            Store::Pipe(_) => EngineKind::Splice,
            Store::Empty => self.engine,
        }
    }
}

/// An index in half the size of a usize. A worker keeps the slots of removed listeners while connections that came through
/// them last, so reloads lead to far more slots than listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Index32(u32);

impl Index32 {
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a list of 2^32 does not fit into memory"))
    }
}

impl From<Index32> for usize {
    fn from(index: Index32) -> Self {
        index.0 as Self
    }
}

#[derive(Debug)]
pub struct Conn {
    /// The state machine.
    pub life: Connection,
    pub client: OwnedFd,
    /// The target's socket, once connected.
    pub target: Option<OwnedFd>,
    /// The number of the attempt that connected: it is in the tokens of the target's events.
    pub attempt: u8,
    /// The listener that accepted it, by its index in the worker.
    pub listener: Index32,
    /// The target's index in the listener's configuration.
    pub target_index: Index32,
    /// The address that was connected to.
    pub address: Option<StreamAddr>,
    /// The token bucket of each direction, with `limits.bandwidth`.
    pub bandwidth: Option<Box<PerDirection<Bucket>>>,
    pub transfers: PerDirection<Transfer>,
    /// None once connected.
    pub setup: Option<Setup>,
    /// The client's address, for limits and logs; that of the PROXY header when there is one. None for Unix sockets.
    pub client_addr: Option<SocketAddr>,
    /// Bytes of the PROXY header that the relay sends to the target: they do not count as the client's.
    pub header_bytes: u32,
}

impl Conn {
    /// The socket of a peer, if it is connected.
    pub fn socket(&self, peer: Peer) -> Option<&OwnedFd> {
        match peer {
            Peer::Client => Some(&self.client),
            Peer::Target => self.target.as_ref(),
        }
    }
}

pub type Connections = Slots<Box<Conn>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Conn>() <= 320, "{}", size_of::<Conn>());
    }
}
