//! The ring at work: completions, sends, and what a full sink leaves over.
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use parshall_core::relay::closing::Ended;
use parshall_sys::uring::{Chunk, Completion, Ring, Sizes};

use super::way::{Kind, Waiting, Way, Ways, parts, tag};
use crate::relay::engine::{Done, Outcome, Ticket, failure};

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
    accepted: Vec<(Ticket, io::Result<OwnedFd>, bool)>,
    /// Calls of `accept` so far.
    accepts: u32,
    watched: RawFd,
    readable: bool,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
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
            accepts: 0,
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
            self.ring.poll(fd, tag(Ticket { slot: 0, generation: 0 }, Kind::Watch, 0));
        }
    }

    pub fn take_readable(&mut self) -> bool {
        std::mem::take(&mut self.readable)
    }

    pub fn accept(&mut self, socket: RawFd, listener: u32) -> u32 {
        self.accepts = self.accepts.wrapping_add(1) & (u32::MAX >> 1);
        self.ring.accept(socket, tag(Ticket { slot: listener, generation: self.accepts }, Kind::Accept, 0));
        self.accepts
    }

    pub fn stop_accepting(&mut self, ticket: Ticket) {
        self.ring.cancel_accept(tag(ticket, Kind::Accept, 0), tag(ticket, Kind::Cancel, 0));
        // The kernel lets go of the listener in here, so that no client waits in one that is about to close.
        let _told_later = self.ring.enter(None);
    }

    pub fn take_accepted(&mut self) -> impl Iterator<Item = (Ticket, io::Result<OwnedFd>, bool)> + '_ {
        self.accepted.drain(..)
    }

    /// Begins to move a direction.
    pub fn arm(&mut self, id: u64, source: RawFd, sink: RawFd) -> Ticket {
        let ticket = self.ways.insert(id, source, sink);
        self.receive(ticket);
        ticket
    }

    fn receive(&mut self, ticket: Ticket) {
        let Some(way) = self.ways.get(ticket).filter(|w| w.live && !w.receiving) else { return };
        way.receiving = true;
        way.in_flight += 1;
        self.ring.recv(way.source, group(ticket.slot), tag(ticket, Kind::Recv, group(ticket.slot)));
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
        let (got, out) = (std::mem::take(&mut way.got), std::mem::take(&mut way.out));
        let sends = way.waiting.as_ref().is_some_and(|w| w.bytes.is_none());
        let (receives, idle) = (way.receiving, way.in_flight == 0);
        self.ring.recycle(got);
        // A send of chunks may not have been taken in yet.
        if out.is_empty() {
            self.ring.recycle(out);
        } else if let Some(way) = self.ways.get(ticket) {
            way.out = out;
        }
        let cancel = tag(ticket, Kind::Cancel, 0);
        if receives {
            self.ring.cancel(tag(ticket, Kind::Recv, group(ticket.slot)), cancel);
        }
        if sends {
            self.ring.cancel(tag(ticket, Kind::Held, 0), cancel);
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
                if self.ways.get(ticket).is_some_and(|w| w.starved == starved && !w.receiving) {
                    self.receive(ticket);
                }
            }
        }
        rearm.clear();
        self.rearm = rearm;
    }

    fn completion(&mut self, done: Completion) {
        let (ticket, kind) = parts(done.tag);
        match kind {
            Kind::Cancel => return,
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
            let (over, out) = (way.in_flight == 0, std::mem::take(&mut way.out));
            if kind == Kind::Send {
                self.ring.recycle(out);
            } else {
                way.out = out;
            }
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
                self.sent(ticket, sent);
            }
            _ => self.on_held_sent(ticket, done),
        }
    }

    fn on_accept(&mut self, ticket: Ticket, done: Completion) {
        let client = match done.socket {
            Some(socket) => Ok(socket),
            None => Err(io::Error::from_raw_os_error(-done.result)),
        };
        self.accepted.push((ticket, client, done.more));
    }

    fn on_received(&mut self, ticket: Ticket, done: Completion) {
        let Some(way) = self.ways.get(ticket) else { return };
        way.receiving = done.more;
        way.starved = done.result == -libc::ENOBUFS;
        if !done.more {
            way.stopping = false;
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

    fn sent(&mut self, ticket: Ticket, result: io::Result<usize>) {
        let Some(way) = self.ways.get(ticket) else { return };
        let chunks = std::mem::take(&mut way.out);
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
        waiting.bytes = done.buffer;
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
        if !way.out.is_empty() {
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
            if !way.receiving && way.end.is_none() {
                self.rearm.push(ticket);
            }
            return false;
        }
        way.out = std::mem::take(&mut way.got);
        if alone {
            let result = self.ring.send_chunks_now(way.sink, &way.out);
            self.sent(ticket, result);
            let failed = self.ways.get(ticket).is_none_or(|w| matches!(w.end, Some(Ended::SinkFailed(_))));
            return !failed && self.go_on(ticket, alone);
        }
        way.in_flight += 1;
        self.ring.send_chunks(way.sink, &way.out, tag(ticket, Kind::Send, 0));
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
            self.ring.send_buffer(way.sink, bytes, waiting.sent, tag(ticket, Kind::Held, 0));
        }
        true
    }

    fn stop_receiving(&mut self, ticket: Ticket) {
        let Some(way) = self.ways.get(ticket) else { return };
        if way.receiving && !std::mem::replace(&mut way.stopping, true) {
            self.ring.cancel(tag(ticket, Kind::Recv, group(ticket.slot)), tag(ticket, Kind::Cancel, 0));
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
    way.got.is_empty() && way.out.is_empty() && way.waiting.is_none()
}
