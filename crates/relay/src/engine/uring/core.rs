//! The ring: handles completions, submits receives and sends, and keeps the bytes that full sinks do not take.
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use parshall_core::relay::connection::Ended;
use parshall_core::relay::slots::{SlotId, Slots};
use parshall_sys::uring::{Chunk, Completion, Request, Ring, Sizes};

use super::transfer::{Kind, Transfer, Waiting, parts, tag};
use crate::engine::{Done, Outcome, failure};

/// 4 MiB of buffers per worker, 256 KiB of them in a direction's group: more than most sockets hold, and few enough to stay
/// in the second-level cache.
const SIZES: Sizes = Sizes { requests: 256, completions: 4096, groups: GROUPS, buffers: 32, buffer_bytes: 8192 };
const GROUPS: u16 = 16;
/// Rounds of sends and receives before other events are handled.
const ROUNDS_MAX: usize = 8;
/// Bytes of free heap buffers that are kept for full sinks.
const SPARE_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub struct Core {
    ring: Ring,
    transfers: Slots<Transfer>,
    /// Directions with completions to handle.
    changed: Vec<SlotId>,
    /// Directions whose receive is to be submitted again.
    rearm: Vec<SlotId>,
    completions: Vec<Completion>,
    accepted: Vec<Accept>,
    watched: RawFd,
    readable: bool,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

/// A completion of a listener's accept.
#[derive(Debug)]
pub struct Accept {
    pub listener: u32,
    pub request: Request,
    pub client: io::Result<OwnedFd>,
}

fn group(slot: u32) -> u16 {
    (slot % u32::from(GROUPS)) as u16
}

impl Core {
    /// Opens a ring for the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            ring: Ring::open(SIZES)?,
            transfers: Slots::default(),
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

    /// Polls a descriptor as long as the ring exists. Only one can be polled.
    pub fn watch(&mut self, fd: RawFd) {
        if self.watched < 0 {
            self.watched = fd;
            self.ring.poll(fd, tag(SlotId { slot: 0, generation: 0 }, Kind::Watch));
        }
    }

    pub fn take_readable(&mut self) -> bool {
        std::mem::take(&mut self.readable)
    }

    pub fn accept(&mut self, socket: RawFd, listener: u32) -> Request {
        self.ring.accept(socket, tag(SlotId { slot: listener, generation: 0 }, Kind::Accept))
    }

    pub fn stop_accepting(&mut self, accept: Request) {
        self.ring.cancel(accept);
        // The kernel releases the listener within this call: no client may be left in one that is about to close.
        let _errors_come_as_completions = self.ring.enter(None);
    }

    pub fn take_accepted(&mut self) -> impl Iterator<Item = Accept> + '_ {
        self.accepted.drain(..)
    }

    /// Arms a direction.
    pub fn arm(&mut self, job: u64, source: RawFd, sink: RawFd) -> Option<SlotId> {
        let id = self.transfers.insert(Transfer::new(job, source, sink))?;
        self.receive(id);
        Some(id)
    }

    fn receive(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get_mut(id).filter(|w| w.live && w.receive.is_none()) else { return };
        transfer.in_flight += 1;
        transfer.receive = Some(self.ring.recv(transfer.source, group(id.slot), tag(id, Kind::Recv)));
    }

    /// Ends the directions of a closed connection. Its descriptors may be closed when this returns: all requests with them
    /// are submitted, and the kernel holds the sockets until the last completion.
    pub fn abandon(&mut self, id: SlotId) {
        if self.transfers.get_mut(id).is_some_and(|w| w.live) {
            self.close(id);
        }
        // Also requests of the other direction and of one whose end was just reported.
        for _ in 0..3 {
            if !self.ring.unsubmitted() {
                break;
            }
            let _errors_come_as_completions = self.ring.enter(None);
        }
    }

    /// Cancels requests in flight and releases buffers.
    fn close(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.live = false;
        let got = std::mem::take(&mut transfer.got);
        let held = transfer.waiting.as_ref().and_then(|waiting| waiting.send);
        let (in_flight, idle) = ([transfer.receive, held], transfer.in_flight == 0);
        self.ring.recycle(got);
        for request in in_flight.into_iter().flatten() {
            self.ring.cancel(request);
        }
        if idle {
            self.release(id);
        }
    }

    /// Removes a transfer without requests in flight: a later completion would reach the next user of its slot.
    fn release(&mut self, id: SlotId) {
        let removed = self.transfers.remove(id);
        debug_assert!(removed.is_none_or(|t| !t.live && t.in_flight == 0), "requests are in flight");
    }

    /// Waits for completions, and moves bytes until that would block.
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

    /// Submits receives again. Those that found no buffer come first, so that a stream of the same group cannot take all of
    /// them each time.
    fn begin_receives(&mut self) {
        let mut rearm = std::mem::take(&mut self.rearm);
        for starved in [true, false] {
            for &id in &rearm {
                if self.transfers.get_mut(id).is_some_and(|w| w.starved == starved && w.receive.is_none()) {
                    self.receive(id);
                }
            }
        }
        rearm.clear();
        self.rearm = rearm;
    }

    fn completion(&mut self, done: Completion) {
        let Some((id, kind)) = parts(done.tag) else { return };
        match kind {
            Kind::Accept => return self.on_accept(id, done),
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
        let Some(transfer) = self.transfers.get_mut(id) else {
            debug_assert!(false, "a place is released with nothing in flight");
            return self.ring.recycle(done.chunks);
        };
        if !done.more {
            transfer.in_flight -= 1;
        }
        if !transfer.live {
            let over = transfer.in_flight == 0;
            self.ring.recycle(done.chunks);
            if over {
                self.release(id);
            }
            return;
        }
        if !std::mem::replace(&mut transfer.queued, true) {
            self.changed.push(id);
        }
        match kind {
            Kind::Recv => self.on_received(id, done),
            Kind::Send => {
                let sent = usize::try_from(done.result).map_err(|_| io::Error::from_raw_os_error(-done.result));
                transfer.sending = false;
                self.sent(id, sent, done.chunks);
            }
            _ => self.on_held_sent(id, done),
        }
    }

    fn on_accept(&mut self, id: SlotId, done: Completion) {
        let client = match done.socket {
            Some(socket) => Ok(socket),
            None => Err(io::Error::from_raw_os_error(-done.result)),
        };
        self.accepted.push(Accept { listener: id.slot, request: done.request, client });
    }

    fn on_received(&mut self, id: SlotId, done: Completion) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.starved = done.result == -libc::ENOBUFS;
        if !done.more {
            (transfer.receive, transfer.stopping) = (None, false);
        }
        match done.result {
            0 => transfer.end = Some(Ended::Eof),
            n if n > 0 => {
                if transfer.got.is_empty() {
                    transfer.got = done.chunks;
                } else {
                    transfer.got.extend(done.chunks);
                }
                return;
            }
            // No buffer (ENOBUFS), cancelled or interrupted: it is submitted again once a buffer is free.
            n if matches!(-n, libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            n => transfer.end = Some(Ended::SourceFailed(failure(&io::Error::from_raw_os_error(-n)))),
        }
        self.ring.recycle(done.chunks);
    }

    fn sent(&mut self, id: SlotId, result: io::Result<usize>, chunks: Vec<Chunk>) {
        let Some(transfer) = self.transfers.get_mut(id) else { return self.ring.recycle(chunks) };
        let sent = match result {
            Ok(sent) => sent,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => 0,
            Err(e) => {
                transfer.end = Some(Ended::SinkFailed(failure(&e)));
                return self.ring.recycle(chunks);
            }
        };
        transfer.moved += sent as u64;
        if sent < chunks.iter().map(Chunk::len).sum() {
            let mut bytes = self.memory();
            let mut skip = sent;
            for chunk in &chunks {
                let skipped = skip.min(chunk.len());
                bytes.extend_from_slice(&self.ring.bytes(chunk)[skipped..]);
                skip -= skipped;
            }
            if let Some(transfer) = self.transfers.get_mut(id) {
                transfer.waiting = Some(Box::new(Waiting { bytes: Some(bytes), ..Waiting::default() }));
            }
        }
        self.ring.recycle(chunks);
    }

    fn on_held_sent(&mut self, id: SlotId, done: Completion) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        let Some(waiting) = &mut transfer.waiting else { return };
        (waiting.bytes, waiting.send) = (done.buffer, None);
        if done.result >= 0 {
            waiting.sent += done.result as usize;
            transfer.moved += done.result as u64;
        } else if !matches!(-done.result, libc::EAGAIN | libc::EINTR) {
            transfer.end = Some(Ended::SinkFailed(failure(&io::Error::from_raw_os_error(-done.result))));
        }
    }

    /// Handles the directions with completions. True: there are bytes to send.
    fn settle(&mut self, out: &mut Vec<Done>) -> bool {
        let mut changed = std::mem::take(&mut self.changed);
        let mut sends = false;
        let alone = changed.len() == 1;
        for id in changed.drain(..) {
            let Some(transfer) = self.transfers.get_mut(id).filter(|w| w.live) else { continue };
            transfer.queued = false;
            let mut outcome = Outcome::Armed;
            if let Some(end @ Ended::SinkFailed(_)) = transfer.end {
                outcome = Outcome::Ended(end);
            } else {
                sends |= self.go_on(id, alone);
                let Some(transfer) = self.transfers.get_mut(id) else { continue };
                if let (true, Some(end)) = (transfer.delivered(), transfer.end) {
                    outcome = Outcome::Ended(end);
                }
            }
            let Some(transfer) = self.transfers.get_mut(id) else { continue };
            let (job, moved) = (transfer.id, std::mem::take(&mut transfer.moved));
            if moved > 0 || outcome != Outcome::Armed {
                out.push(Done { id: job, moved, outcome });
            }
            if outcome != Outcome::Armed {
                self.close(id);
            }
        }
        self.changed = changed;
        sends
    }

    /// Sends, and cancels or submits the receive. True: a send was queued, which completes at submission. `alone`: no other
    /// direction has bytes to send, so that a system call is cheaper than a request.
    fn go_on(&mut self, id: SlotId, alone: bool) -> bool {
        let Some(transfer) = self.transfers.get_mut(id) else { return false };
        if transfer.sending {
            return false;
        }
        if let Some(mut waiting) = transfer.waiting.take() {
            let got = std::mem::take(&mut transfer.got);
            for chunk in &got {
                waiting.after.extend_from_slice(self.ring.bytes(chunk));
            }
            self.ring.recycle(got);
            if self.hold(id, &mut waiting) {
                self.stop_receiving(id);
                if let Some(transfer) = self.transfers.get_mut(id) {
                    transfer.waiting = Some(waiting);
                }
                return false;
            }
        }
        let Some(transfer) = self.transfers.get_mut(id) else { return false };
        if transfer.got.is_empty() {
            if transfer.receive.is_none() && transfer.end.is_none() {
                self.rearm.push(id);
            }
            return false;
        }
        let chunks = std::mem::take(&mut transfer.got);
        if alone {
            let result = self.ring.send_chunks_now(transfer.sink, &chunks);
            self.sent(id, result, chunks);
            let failed = self.transfers.get_mut(id).is_none_or(|w| matches!(w.end, Some(Ended::SinkFailed(_))));
            return !failed && self.go_on(id, alone);
        }
        transfer.in_flight += 1;
        transfer.sending = true;
        self.ring.send_chunks(transfer.sink, chunks, tag(id, Kind::Send));
        true
    }

    /// Sends bytes that wait for the sink. False: none wait any more.
    fn hold(&mut self, id: SlotId, waiting: &mut Waiting) -> bool {
        let Some(mut bytes) = waiting.bytes.take() else { return true };
        if waiting.sent == bytes.len() {
            self.spare(bytes);
            bytes = std::mem::take(&mut waiting.after);
            waiting.sent = 0;
            if bytes.is_empty() {
                return false;
            }
        }
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.in_flight += 1;
            waiting.send = Some(self.ring.send_buffer(transfer.sink, bytes, waiting.sent, tag(id, Kind::Held)));
        }
        true
    }

    fn stop_receiving(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if let Some(receive) = transfer.receive
            && !std::mem::replace(&mut transfer.stopping, true)
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
        self.ring.in_flight() + self.ring.chunks_lent() + self.transfers.len()
    }
}
