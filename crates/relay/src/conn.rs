//! A connection through the relay and the table that holds all of a thread's.
//!
//! Kept small: ten thousand idle connections are ten thousand of these and nothing else.
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use parshall_core::relay::Ns;
use parshall_core::relay::bucket::Bucket;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::connection::closing::Closing;
use parshall_core::relay::direction::{Peer, PerDirection};
use parshall_core::relay::slots::Slots;
use parshall_core::relay::streaming::Rhythm;
use parshall_sys::stream_socket::StreamAddr;

use super::engine::Store;
use super::stats::{EngineKind, Fallback};
use super::worker::dial::Dialing;
use super::worker::greet::Greeting;

/// What moves the bytes of one direction, and how far it is.
#[derive(Debug)]
pub struct Transfer {
    /// Bytes delivered to the sink.
    pub moved: u64,
    /// What is held back.
    pub store: Store,
    /// What it has done lately.
    pub rhythm: Rhythm,
    /// What moves it now.
    pub engine: EngineKind,
    /// Which engines have moved bytes, a bit each by [`EngineKind::ALL`].
    pub engines_used: u8,
    /// The first reason for not using the engine that was asked for.
    pub fallback: Option<Fallback>,
    /// Copies first, and another engine once it streams.
    pub adaptive: bool,
    /// The source may have something to read.
    pub source_ready: bool,
    /// The source has announced its end, or an urgent byte.
    pub source_ended: bool,
    /// The sink may have room.
    pub sink_ready: bool,
    /// It stands in the list of directions to run.
    pub queued: bool,
    /// Bandwidth is used up; it may go on at this time.
    pub parked_until: Ns,
}

impl Transfer {
    /// A direction that has moved nothing.
    pub fn new(engine: EngineKind, adaptive: bool) -> Self {
        Self {
            moved: 0,
            store: Store::Empty,
            rhythm: Rhythm::default(),
            engine,
            engines_used: 0,
            fallback: None,
            adaptive,
            source_ready: false,
            source_ended: false,
            sink_ready: true,
            queued: false,
            parked_until: 0,
        }
    }

    /// Whether an engine could do something now.
    pub fn runnable(&self) -> bool {
        if self.store.is_armed() {
            return self.source_ready;
        }
        self.sink_ready && (self.source_ready || !self.store.is_empty())
    }

    /// The engine of the next turn: what is held back decides, so that engines can change at any time.
    pub fn next_engine(&self) -> EngineKind {
        match self.store {
            Store::Buffer(_) => EngineKind::Copy,
            Store::Pipe(_) => EngineKind::Splice,
            Store::Empty | Store::Armed(_) => self.engine,
        }
    }
}

/// Where a connection is in its life.
#[derive(Debug)]
pub enum Stage {
    /// The client's PROXY header is awaited.
    Greeting(Box<Greeting>),
    /// A target is being connected to.
    Dialing(Box<Dialing>),
    /// Bytes move.
    Relaying,
    /// One side is dead; the other is reset once its last bytes have left.
    Resetting(Peer, CloseReason),
}

/// A place in a list, in half the room of a usize. A worker keeps the places of removed listeners while connections that came
/// through them last, so reloads lead to far more places than listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place(u32);

impl Place {
    /// The place with this index.
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a list of 2^32 does not fit into memory"))
    }
}

impl From<Place> for usize {
    fn from(place: Place) -> Self {
        place.0 as Self
    }
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// The client's socket.
    pub client: OwnedFd,
    /// The target's, once connected.
    pub target: Option<OwnedFd>,
    /// Which attempt won: its number is in the tokens of the target's events.
    pub attempt: u8,
    /// The listener it came through, by its place in the worker.
    pub listener: Place,
    /// The target's place in the listener's list.
    pub target_index: Place,
    /// The address that was connected to.
    pub address: Option<StreamAddr>,
    /// What is left of the bandwidth of each direction.
    pub bandwidth: Option<Box<PerDirection<Bucket>>>,
    /// What moves its bytes.
    pub transfers: PerDirection<Transfer>,
    /// How it is ending.
    pub closing: Closing,
    /// Where it is in its life.
    pub stage: Stage,
    /// Who the client is, for limits and logs; of a PROXY header when there is one. None for Unix sockets.
    pub peer: Option<SocketAddr>,
    /// Its sockets are in the worker's epoll; not while a ring moves both directions.
    pub watched: bool,
    /// Its sockets probe idle peers.
    pub kept_alive: bool,
    /// The client counts against the limits of its source.
    pub counted: bool,
    /// When it was accepted.
    pub began: Ns,
    /// When bytes last moved, or the stage last changed.
    pub progress: Ns,
    /// Bytes of a PROXY header at the head of the first direction: ours, not the client's.
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

/// All connections of a thread.
pub type Connections = Slots<Box<Conn>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Conn>() <= 320, "{}", size_of::<Conn>());
    }
}
