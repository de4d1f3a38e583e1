//! A connection through the relay and the table that holds all of a thread's.
//!
//! Kept small: ten thousand idle connections are ten thousand of these and nothing else.
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use parshall_core::relay::bucket::Bucket;
use parshall_core::relay::closing::{CloseReason, Closing, Side};
use parshall_core::relay::streaming::Rhythm;
use parshall_core::relay::{Ns, deadlines};
use parshall_sys::stream_socket::StreamAddr;

use super::engine::Store;
use super::stats::{EngineKind, Fallback};
use super::worker::dial::Dialing;
use super::worker::greet::Greeting;

/// One direction.
#[derive(Debug)]
pub struct Lane {
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

impl Lane {
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
    Resetting(Side, CloseReason),
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
    pub bandwidth: Option<Box<[Bucket; 2]>>,
    /// Index 0 reads from the client.
    pub lanes: [Lane; 2],
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
    /// The socket of a side, if it is connected.
    pub fn socket(&self, side: Side) -> Option<&OwnedFd> {
        match side {
            Side::Client => Some(&self.client),
            Side::Target => self.target.as_ref(),
        }
    }
}

/// The place of a direction in its connection.
pub fn lane_of(from: Side) -> usize {
    match from {
        Side::Client => 0,
        Side::Target => 1,
    }
}

/// The side a direction reads from.
pub fn side_of(lane: usize) -> Side {
    if lane == 0 { Side::Client } else { Side::Target }
}

/// A connection's name: its place in the table, and how often the place was used, so that an event which was on its
/// way when the connection ended does not reach the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Place in the table; below 2^24.
    pub index: u32,
    /// Use of the place; below 2^32.
    pub generation: u32,
}

impl ConnId {
    /// As the timers name it.
    pub fn timer(self) -> deadlines::Id {
        deadlines::Id { slot: self.index, generation: self.generation }
    }

    /// As a number, with 8 bits of room for what kind of event it names.
    pub fn token(self, kind: u8) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index) << 8 | u64::from(kind)
    }

    /// Back from a number.
    pub fn of(token: u64) -> (Self, u8) {
        (Self { index: (token >> 8) as u32 & 0xff_ffff, generation: (token >> 32) as u32 }, token as u8)
    }
}

/// The most connections of one thread: what a token has room for.
pub const CONNS_MAX: usize = deadlines::MAX_SLOTS as usize;

/// All connections of a thread.
#[derive(Debug, Default)]
pub struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    conn: Option<Box<Conn>>,
}

impl Table {
    /// How many are open.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Adds one; None when the table is full.
    pub fn insert(&mut self, conn: Box<Conn>) -> Option<ConnId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < CONNS_MAX => {
                self.slots.push(Slot { generation: 0, conn: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.conn = Some(conn);
        self.open += 1;
        Some(ConnId { index, generation: slot.generation })
    }

    /// The connection of this name, if it is still the one.
    pub fn get(&mut self, id: ConnId) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.conn.as_deref_mut() } else { None }
    }

    /// Takes it out.
    pub fn remove(&mut self, id: ConnId) -> Option<Box<Conn>> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let conn = slot.conn.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        self.open -= 1;
        Some(conn)
    }

    /// The names of all.
    pub fn ids(&self) -> Vec<ConnId> {
        let name = |(index, slot): (usize, &Slot)| {
            slot.conn.as_ref().map(|_| ConnId { index: index as u32, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_back() {
        let id = ConnId { index: 0xab_cdef, generation: 0xfedc_ba98 };
        assert_eq!(ConnId::of(id.token(7)), (id, 7));
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Conn>() <= 320, "{}", size_of::<Conn>());
    }
}
