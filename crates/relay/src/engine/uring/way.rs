//! Directions that the ring moves: what is known of each, and the names under which its requests come back.
use std::os::fd::RawFd;

use parshall_core::relay::closing::Ended;
use parshall_sys::uring::{Chunk, Request};

use crate::engine::Ticket;

/// What a request is; the lowest bits of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The multishot receive of a direction.
    Recv = 0,
    /// Chunks sent without waiting.
    Send = 1,
    /// Bytes that wait for room in the sink.
    Held = 2,
    /// The multishot accept of a listener.
    Accept = 3,
    /// The worker's epoll.
    Watch = 4,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Recv, Self::Send, Self::Held, Self::Accept, Self::Watch];
}

/// A request's tag: kind, place, generation, from the lowest bit on.
pub fn tag(ticket: Ticket, kind: Kind) -> u64 {
    u64::from(ticket.generation) << 32 | u64::from(ticket.slot) << 8 | kind as u64
}

/// Back from a tag.
pub fn parts(tag: u64) -> Option<(Ticket, Kind)> {
    let kind = Kind::ALL.get((tag & 0xff) as usize).copied()?;
    Some((Ticket { slot: (tag >> 8) as u32 & 0xff_ffff, generation: (tag >> 32) as u32 }, kind))
}

/// Bytes that a full sink has left over, in memory of their own so that the ring's buffers are free for others.
#[derive(Debug, Default)]
pub struct Waiting {
    /// None while the ring has them.
    pub bytes: Option<Vec<u8>>,
    /// The send of them, while it is in flight.
    pub send: Option<Request>,
    /// How many of them are sent.
    pub sent: usize,
    /// What was received before the source could be stopped.
    pub after: Vec<u8>,
}

/// A direction.
#[derive(Debug)]
pub struct Way {
    /// Use of this place.
    pub generation: u32,
    /// False once its end is told or its connection is gone; the place is used again when nothing is in flight.
    pub live: bool,
    /// The worker's name for it.
    pub id: u64,
    /// Where bytes come from.
    pub source: RawFd,
    /// Where they go.
    pub sink: RawFd,
    /// Requests whose last completion has not come.
    pub in_flight: u8,
    /// The receive, while it is in flight.
    pub receive: Option<Request>,
    /// It was told to end, because the sink is full.
    pub stopping: bool,
    /// It ended for want of buffers before it got any.
    pub starved: bool,
    /// It stands in the list of directions to settle.
    pub queued: bool,
    /// Received, not yet sent.
    pub got: Vec<Chunk>,
    /// Chunks are being sent; the ring has them.
    pub sending: bool,
    /// What the sink had no room for.
    pub waiting: Option<Box<Waiting>>,
    /// How the source has ended; told once nothing is left.
    pub end: Option<Ended>,
    /// Bytes delivered and not yet told.
    pub moved: u64,
}

/// All directions of a ring.
#[derive(Debug, Default)]
pub struct Ways {
    list: Vec<Way>,
    free: Vec<u32>,
}

impl Ways {
    /// Adds one.
    pub fn insert(&mut self, id: u64, source: RawFd, sink: RawFd) -> Ticket {
        let way = |generation| Way {
            generation,
            live: true,
            id,
            source,
            sink,
            in_flight: 0,
            receive: None,
            stopping: false,
            starved: false,
            queued: false,
            got: Vec::new(),
            sending: false,
            waiting: None,
            end: None,
            moved: 0,
        };
        match self.free.pop() {
            Some(slot) => {
                let generation = self.list[slot as usize].generation.wrapping_add(1);
                self.list[slot as usize] = way(generation);
                Ticket { slot, generation }
            }
            None => {
                self.list.push(way(0));
                Ticket { slot: self.list.len() as u32 - 1, generation: 0 }
            }
        }
    }

    /// The direction of this name, if it is still the one.
    pub fn get(&mut self, ticket: Ticket) -> Option<&mut Way> {
        self.list.get_mut(ticket.slot as usize).filter(|w| w.generation == ticket.generation)
    }

    /// The place of one that is over may be used again. Only with nothing in flight.
    pub fn release(&mut self, ticket: Ticket) {
        if let Some(way) = self.get(ticket) {
            debug_assert!(!way.live && way.in_flight == 0, "a completion could reach the next one");
            // Late completions find nothing.
            way.generation = way.generation.wrapping_add(1);
            self.free.push(ticket.slot);
        }
    }

    /// Places in use.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.list.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_read_back() {
        let ticket = Ticket { slot: 0xab_cdef, generation: 0xfedc_ba98 };
        for kind in Kind::ALL {
            assert_eq!(parts(tag(ticket, kind)), Some((ticket, kind)));
        }
    }

    #[test]
    fn a_place_that_is_used_again_has_another_name() {
        let mut ways = Ways::default();
        let first = ways.insert(1, 0, 0);
        ways.get(first).expect("live").live = false;
        ways.release(first);
        let second = ways.insert(2, 0, 0);
        assert_eq!((first.slot, ways.used()), (second.slot, 1));
        assert!(ways.get(first).is_none() && ways.get(second).is_some());
    }
}
