//! The state of one direction that the ring moves, and the tags of its requests.
use std::os::fd::RawFd;

use parshall_core::relay::connection::Ended;
use parshall_core::relay::slots::SlotId;
use parshall_sys::uring::{Chunk, Request};

/// The kind of a request: the lowest bits of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The multishot receive of a direction.
    Recv = 0,
    /// Chunks sent without waiting.
    Send = 1,
    /// Bytes that wait until the sink is writable.
    Held = 2,
    /// The accept of a listener.
    Accept = 3,
    /// The worker's epoll.
    Watch = 4,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Recv, Self::Send, Self::Held, Self::Accept, Self::Watch];
}

/// The tag of a request of this kind.
pub fn tag(id: SlotId, kind: Kind) -> u64 {
    id.token(kind as u8)
}

/// The transfer and the kind of request that a tag names.
pub fn parts(tag: u64) -> Option<(SlotId, Kind)> {
    let (id, kind) = SlotId::from_token(tag);
    Some((id, Kind::ALL.get(usize::from(kind)).copied()?))
}

/// Bytes that a full sink did not take, on the heap, so that the ring's buffers are free.
#[derive(Debug, Default)]
pub struct Waiting {
    /// None while the ring has them.
    pub bytes: Option<Vec<u8>>,
    /// The request that sends them, while it is in flight.
    pub send: Option<Request>,
    pub sent: usize,
    /// Bytes received before the receive was cancelled.
    pub after: Vec<u8>,
}

/// An armed direction.
#[derive(Debug)]
pub struct Transfer {
    /// False once its end is reported or its connection is closed. It is removed when no request is in flight.
    pub live: bool,
    /// The id of the worker's job.
    pub id: u64,
    pub source: RawFd,
    pub sink: RawFd,
    /// Requests whose last completion has not come.
    pub in_flight: u8,
    /// The receive request, while it is in flight.
    pub receive: Option<Request>,
    /// The receive was cancelled, because the sink is full.
    pub stopping: bool,
    /// The receive ended with ENOBUFS before it got a buffer.
    pub starved: bool,
    /// It is in the list of directions with completions.
    pub queued: bool,
    /// Chunks received and not yet sent.
    pub got: Vec<Chunk>,
    /// Chunks in flight to the sink.
    pub sending: bool,
    /// Bytes that the sink did not take.
    pub waiting: Option<Box<Waiting>>,
    /// How the source has ended; reported once all bytes before the end are sent.
    pub end: Option<Ended>,
    /// Bytes delivered and not yet reported.
    pub moved: u64,
}

impl Transfer {
    pub fn new(id: u64, source: RawFd, sink: RawFd) -> Self {
        Self {
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
        }
    }

    /// Whether all that was received has been sent.
    pub fn delivered(&self) -> bool {
        self.got.is_empty() && !self.sending && self.waiting.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_decoded_as_it_was_encoded() {
        let id = SlotId { slot: 0xab_cdef, generation: 0xfedc_ba98 };
        for kind in Kind::ALL {
            assert_eq!(parts(tag(id, kind)), Some((id, kind)));
        }
    }
}
