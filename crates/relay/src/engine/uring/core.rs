//! The ring at work: completions, sends, and what a full sink leaves over.
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use parshall_core::relay::closing::Ended;
use parshall_sys::uring::{Chunk, Completion, Request, Ring, Sizes};

use super::way::{Kind, Waiting, Way, Ways, parts, tag};
use crate::engine::{Done, Outcome, Ticket, failure};

/// 4 MiB of buffers per worker, 256 KiB of them for one direction: more than a socket holds in most turns, and little
/// enough to stay in the second-level cache while a stream goes round in it.
const SIZES: Sizes = Sizes { requests: 256, completions: 4096, groups: GROUPS, buffers: 32, buffer_bytes: 8192 };
const GROUPS: u16 = 16;
/// Rounds of sends and receives before the worker sees to other things.
const ROUNDS_MAX: usize = 8;
/// Spare memory for what full sinks leave over.
const SPARE_BYTES: usize = 4 << 20;

/// A ring and the directions it moves.
#[derive(Debug)]
pub struct Core {
    ring: Ring,
    ways: Ways,
    /// Directions to which something has happened.
    changed: Vec<Ticket>,
    /// Directions whose receive begins again.
    rearm: Vec<Ticket>,
    completions: Vec<Completion>,
    accepted: Vec<Accept>,
    watched: RawFd,
    readable: bool,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

/// What came to a listener.
#[derive(Debug)]
pub struct Accept {
    pub listener: u32,
    pub request: Request,
    pub client: io::Result<OwnedFd>,
    pub more: bool,
}

fn group(slot: u32) -> u16 {
    (slot % u32::from(GROUPS)) as u16
}

impl Core {
    /// Opens the ring for this thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            ring: Ring::open(SIZES)?,
            ways: Ways::default(),
            changed: Vec::new(),
            rearm: Vec::new(),
            completions: Vec::new(),
            accepted: Vec::new(),
            watched: -1,
            readable: false,
            spare: Vec::new(),
            spare_bytes: 0,
        })
    }

    /// Begins to watch a descriptor; one, for as long as there is the ring.
    pub fn watch(&mut self, fd: RawFd) {
        if self.watched < 0 {
            self.watched = fd;
            self.ring.poll(fd, tag(Ticket { slot: 0, generation: 0 }, Kind::Watch));
        }
    }

    pub fn take_readable(&mut self) -> bool {
        std::mem::take(&mut self.readable)
    }

    pub fn accept(&mut self, socket: RawFd, listener: u32) -> Request {
        self.ring.accept(socket, tag(Ticket { slot: listener, generation: 0 }, Kind::Accept))
    }

    pub fn stop_accepting(&mut self, accept: Request) {
        self.ring.cancel(accept);
        // The kernel lets go of the listener in here, so that no client waits in one that is about to close.
        let _told_later = self.ring.enter(None);
    }

    pub fn take_accepted(&mut self) -> impl Iterator<Item = Accept> + '_ {
        self.accepted.drain(..)
    }

    /// Begins to move a direction.
    pub fn arm(&mut self, id: u64, source: RawFd, sink: RawFd) -> Ticket {
        let ticket = self.ways.insert(id, source, sink);
        self.receive(ticket);
        ticket
    }

    fn receive(&mut self, ticket: Ticket) {
        let Some(way) = self.ways.get(ticket).filter(|w| w.live && w.receive.is_none()) else { return };
        way.in_flight += 1;
        way.receive = Some(self.ring.recv(way.source, group(ticket.slot), tag(ticket, Kind::Recv)));
    }

    /// The connection is gone. Its descriptors may be closed when this returns: the kernel has taken in every request that
    /// names them, and holds the sockets themselves until the last completion.
    pub fn abandon(&mut self, ticket: Ticket) {
        if self.ways.get(ticket).is_some_and(|w| w.live) {
            self.bury(ticket);
        }
        // Also those of the other direction, or of an end that was told a moment ago.
        for _ in 0..3 {
            if !self.ring.unsubmitted() {
                break;
            }
            let _told_later = self.ring.enter(None);
        }
    }

    /// Ends what is in flight and gives back what is held.
    fn bury(&mut self, ticket: Ticket) {
        let Some(way) = self.ways.get(ticket) else { return };
        way.live = false;
        let got = std::mem::take(&mut way.got);
        let held = way.waiting.as_ref().and_then(|waiting| waiting.send);
        let (in_flight, idle) = ([way.receive, held], way.in_flight == 0);
        self.ring.recycle(got);
        for request in in_flight.into_iter().flatten() {
            self.ring.cancel(request);
        }
        if idle {
            self.ways.release(ticket);
        }
    }

    /// Waits for completions, and moves bytes until nothing more can be done without waiting.
    pub fn turn(&mut self, wait: Option<Duration>, out: &mut Vec<Done>) -> io::Result<()> {
        self.ring.enter(wait)?;
        for _ in 0..ROUNDS_MAX {
            let mut completions = std::mem::take(&mut self.completions);
            self.ring.reap(&mut completions);
            for completion in completions.drain(..) {
                self.completion(completion);
            }
            self.completions = completions;
            let sends = self.settle(out);
            self.begin_receives();
            self.ring.publish();
            if !sends {
                break;
            }
            self.ring.enter(None)?;
        }
        Ok(())
    }

    /// Those that found no buffer come first, so that a stream of the same group cannot take all of them each time.
    fn begin_receives(&mut self) {
        let mut rearm = std::mem::take(&mut self.rearm);
        for starved in [true, false] {
            for &ticket in &rearm {
                if self.ways.get(ticket).is_some_and(|w| w.starved == starved && w.receive.is_none()) {
                    self.receive(ticket);
                }
            }
        }
        rearm.clear();
        self.rearm = rearm;
    }

    fn completion(&mut self, done: Completion) {
        let Some((ticket, kind)) = parts(done.tag) else { return };
        match kind {
            Kind::Accept => return self.on_accept(ticket, done),
            Kind::Watch => {
                self.readable = true;
                if !done.more {
                    let fd = std::mem::replace(&mut self.watched, -1);
                    self.watch(fd);
                }
                return;
            }
            Kind::Recv | Kind::Send | Kind::Held => {}
        }
        let Some(way) = self.ways.get(ticket) else {
            debug_assert!(false, "a place is released with nothing in flight");
            return self.ring.recycle(done.chunks);
        };
        if !done.more {
            way.in_flight -= 1;
        }
        if !way.live {
            let over = way.in_flight == 0;
            self.ring.recycle(done.chunks);
            if over {
                self.ways.release(ticket);
            }
            return;
        }
        if !std::mem::replace(&mut way.queued, true) {
            self.changed.push(ticket);
        }
        match kind {
            Kind::Recv => self.on_received(ticket, done),
            Kind::Send => {
                let sent = usize::try_from(done.result).map_err(|_| io::Error::from_raw_os_error(-done.result));
                way.sending = false;
                self.sent(ticket, sent, done.chunks);
            }
            _ => self.on_held_sent(ticket, done),
        }
    }

    fn on_accept(&mut self, ticket: Ticket, done: Completion) {
        let client = match done.socket {
            Some(socket) => Ok(socket),
            None => Err(io::Error::from_raw_os_error(-done.result)),
        };
        self.accepted.push(Accept { listener: ticket.slot, request: done.request, client, more: done.more });
    }

    fn on_received(&mut self, ticket: Ticket, done: Completion) {
        let Some(way) = self.ways.get(ticket) else { return };
        way.starved = done.result == -libc::ENOBUFS;
        if !done.more {
            (way.receive, way.stopping) = (None, false);
        }
        match done.result {
            0 => way.end = Some(Ended::Eof),
            n if n > 0 => {
                if way.got.is_empty() {
                    way.got = done.chunks;
                } else {
                    way.got.extend(done.chunks);
                }
                return;
            }
            // No buffer, told to stop, or nothing of importance: it begins again when there is room for what comes.
            n if matches!(-n, libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            n => way.end = Some(Ended::SourceFailed(failure(&io::Error::from_raw_os_error(-n)))),
        }
        self.ring.recycle(done.chunks);
    }

    fn sent(&mut self, ticket: Ticket, result: io::Result<usize>, chunks: Vec<Chunk>) {
        let Some(way) = self.ways.get(ticket) else { return self.ring.recycle(chunks) };
        let sent = match result {
            Ok(sent) => sent,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => 0,
            Err(e) => {
                way.end = Some(Ended::SinkFailed(failure(&e)));
                return self.ring.recycle(chunks);
            }
        };
        way.moved += sent as u64;
        if sent < chunks.iter().map(Chunk::len).sum() {
            let mut bytes = self.memory();
            let mut skip = sent;
            for chunk in &chunks {
                let skipped = skip.min(chunk.len());
                bytes.extend_from_slice(&self.ring.bytes(chunk)[skipped..]);
                skip -= skipped;
            }
            if let Some(way) = self.ways.get(ticket) {
                way.waiting = Some(Box::new(Waiting { bytes: Some(bytes), ..Waiting::default() }));
            }
        }
        self.ring.recycle(chunks);
    }

    fn on_held_sent(&mut self, ticket: Ticket, done: Completion) {
        let Some(way) = self.ways.get(ticket) else { return };
        let Some(waiting) = &mut way.waiting else { return };
        (waiting.bytes, waiting.send) = (done.buffer, None);
        if done.result >= 0 {
            waiting.sent += done.result as usize;
            way.moved += done.result as u64;
        } else if !matches!(-done.result, libc::EAGAIN | libc::EINTR) {
            way.end = Some(Ended::SinkFailed(failure(&io::Error::from_raw_os_error(-done.result))));
        }
    }

    /// What follows for the directions to which something has happened. True: there is something to be sent.
    fn settle(&mut self, out: &mut Vec<Done>) -> bool {
        let mut changed = std::mem::take(&mut self.changed);
        let mut sends = false;
        let alone = changed.len() == 1;
        for ticket in changed.drain(..) {
            let Some(way) = self.ways.get(ticket).filter(|w| w.live) else { continue };
            way.queued = false;
            let mut outcome = Outcome::Armed;
            if let Some(end @ Ended::SinkFailed(_)) = way.end {
                outcome = Outcome::Ended(end);
            } else {
                sends |= self.go_on(ticket, alone);
                let Some(way) = self.ways.get(ticket) else { continue };
                if let (true, Some(end)) = (delivered(way), way.end) {
                    outcome = Outcome::Ended(end);
                }
            }
            let Some(way) = self.ways.get(ticket) else { continue };
            let (id, moved) = (way.id, std::mem::take(&mut way.moved));
            if moved > 0 || outcome != Outcome::Armed {
                out.push(Done { id, moved, outcome });
            }
            if outcome != Outcome::Armed {
                self.bury(ticket);
            }
        }
        self.changed = changed;
        sends
    }

    /// Sends what can be sent, stops or begins receiving. True: a send was queued that is done once it is taken in.
    /// `alone`: no other direction has anything to send, so that a call of its own is cheaper than a request.
    fn go_on(&mut self, ticket: Ticket, alone: bool) -> bool {
        let Some(way) = self.ways.get(ticket) else { return false };
        if way.sending {
            return false;
        }
        if let Some(mut waiting) = way.waiting.take() {
            let got = std::mem::take(&mut way.got);
            for chunk in &got {
                waiting.after.extend_from_slice(self.ring.bytes(chunk));
            }
            self.ring.recycle(got);
            if self.hold(ticket, &mut waiting) {
                self.stop_receiving(ticket);
                if let Some(way) = self.ways.get(ticket) {
                    way.waiting = Some(waiting);
                }
                return false;
            }
        }
        let Some(way) = self.ways.get(ticket) else { return false };
        if way.got.is_empty() {
            if way.receive.is_none() && way.end.is_none() {
                self.rearm.push(ticket);
            }
            return false;
        }
        let chunks = std::mem::take(&mut way.got);
        if alone {
            let result = self.ring.send_chunks_now(way.sink, &chunks);
            self.sent(ticket, result, chunks);
            let failed = self.ways.get(ticket).is_none_or(|w| matches!(w.end, Some(Ended::SinkFailed(_))));
            return !failed && self.go_on(ticket, alone);
        }
        way.in_flight += 1;
        way.sending = true;
        self.ring.send_chunks(way.sink, chunks, tag(ticket, Kind::Send));
        true
    }

    /// Goes on with what waits for room. False: nothing waits any more.
    fn hold(&mut self, ticket: Ticket, waiting: &mut Waiting) -> bool {
        let Some(mut bytes) = waiting.bytes.take() else { return true };
        if waiting.sent == bytes.len() {
            self.spare(bytes);
            bytes = std::mem::take(&mut waiting.after);
            waiting.sent = 0;
            if bytes.is_empty() {
                return false;
            }
        }
        if let Some(way) = self.ways.get(ticket) {
            way.in_flight += 1;
            waiting.send = Some(self.ring.send_buffer(way.sink, bytes, waiting.sent, tag(ticket, Kind::Held)));
        }
        true
    }

    fn stop_receiving(&mut self, ticket: Ticket) {
        let Some(way) = self.ways.get(ticket) else { return };
        if let Some(receive) = way.receive
            && !std::mem::replace(&mut way.stopping, true)
        {
            self.ring.cancel(receive);
        }
    }

    fn memory(&mut self) -> Vec<u8> {
        let bytes = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= bytes.capacity();
        bytes
    }

    fn spare(&mut self, mut bytes: Vec<u8>) {
        if self.spare_bytes + bytes.capacity() <= SPARE_BYTES {
            bytes.clear();
            self.spare_bytes += bytes.capacity();
            self.spare.push(bytes);
        }
    }

    #[cfg(test)]
    pub fn in_use(&mut self) -> usize {
        self.ring.in_flight() + self.ring.chunks_lent() + self.ways.used()
    }
}

/// Whether nothing is left of what came before the end.
fn delivered(way: &Way) -> bool {
    way.got.is_empty() && !way.sending && way.waiting.is_none()
}
