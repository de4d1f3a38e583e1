//! From clients to targets: a batch is received, sorted by session, and leaves session by session.
use std::io::ErrorKind;
use std::os::fd::AsFd;

use parshall_core::relay::Ns;
use parshall_core::relay::direction::Direction;
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::udp_runs::{Piece, Run};
use parshall_core::relay::udp_sessions::Key;
use parshall_sys::udp_batch::{DatagramBatch, Received};

use super::groups::LAST;
use super::sender;
use super::worker::{BATCHES_MAX, UdpWorker};

/// Makes messages of slots, each with the number of bytes to send. Neighbours are joined in one GSO message where possible.
pub(super) fn join(
    batch: &mut DatagramBatch,
    slots: impl Iterator<Item = (usize, usize)>,
    segment_max: usize,
    mut begin: impl FnMut(&mut DatagramBatch),
) {
    let mut run: Option<Run> = None;
    for (slot, bytes) in slots {
        let received = batch.received()[slot];
        let piece = Piece { bytes: bytes.min(received.bytes), segment: received.segment };
        if !run.as_mut().is_some_and(|run| run.join(piece, segment_max)) {
            if let Some(done) = run {
                batch.end(done.segment());
            }
            begin(batch);
            run = Some(Run::new(piece));
        }
        batch.attach(slot, bytes);
    }
    if let Some(done) = run {
        batch.end(done.segment());
    }
}

impl UdpWorker {
    /// Forwards the datagrams of one of a listener's sockets, for a few batches.
    pub(super) fn forward_up(&mut self, listener: usize, socket: usize, now: Ns) {
        self.flush_answers();
        for _ in 0..BATCHES_MAX {
            self.batch.clear();
            let Some(socket) = self.listeners[listener].plan.sockets.get(socket) else { break };
            self.counts.receives.add(1);
            let got = match self.batch.receive(socket.as_fd(), true) {
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Other errors concern single datagrams. The kernel clears an error when it returns it.
                Err(_) => break,
            };
            self.sort(listener, now);
            self.send_groups(listener, now);
            if got < self.batch.slots() {
                break;
            }
        }
        self.batch.clear();
    }

    /// Finds or begins the session of each slot, or drops the slot.
    fn sort(&mut self, listener: usize, now: Ns) {
        self.groups.begin();
        let mut before: Option<(Key, Option<SlotId>)> = None;
        let mut dropped = 0;
        for slot in 0..self.batch.received().len() {
            let received = self.batch.received()[slot];
            let key = Key { listener: listener as u32, client: received.peer, local: received.local };
            // Neighbours are mostly of one client: it is looked up, or refused, once.
            let known = match before {
                Some((last, id)) if last == key => id,
                _ => self.table.find(&key).filter(|&id| self.keeps_target(id, now)),
            };
            let refused = known.is_none() && (before == Some((key, None)) || !self.allowed(&key));
            let passing = if refused || received.truncated { None } else { self.passing(&key, &received, now) };
            let id = passing.and_then(|_| known.or_else(|| self.begin(key, now)));
            // A client that is only over its rate stays known: later datagrams may be below it.
            before = Some((key, id.or(known)));
            let session = id.and_then(|id| self.sessions[id.slot as usize].as_mut());
            match passing.zip(session) {
                Some((bytes, session)) => {
                    self.groups.add(session.id, &mut session.group, slot, bytes);
                    dropped += (received.bytes - bytes).div_ceil(received.segment) as u64;
                }
                None => dropped += received.datagrams() as u64,
            }
        }
        if dropped > 0 {
            self.listeners[listener].plan.stats.datagrams_dropped.add(dropped);
        }
    }

    /// The bytes of a slot within the source's rate; None if that is no datagram.
    fn passing(&mut self, key: &Key, received: &Received, now: Ns) -> Option<usize> {
        let passed = self.table.pass(key, received.datagrams() as u32, now) as usize;
        (passed > 0).then(|| received.bytes.min(passed.saturating_mul(received.segment)))
    }

    fn send_groups(&mut self, listener: usize, now: Ns) {
        let plan = &mut self.listeners[listener].plan;
        for group in &self.groups.list {
            // A session that was begun later in this batch may have ended this one, and have its slot.
            let known = self.sessions[group.id.slot as usize].as_mut().filter(|session| session.id == group.id);
            let (next, bytes) = (&self.groups.next, &self.groups.bytes);
            let follow = |slot: &usize| Some(next[*slot]).filter(|&slot| slot != LAST);
            let slots = std::iter::successors(Some(group.first), follow).map(|slot| (slot, bytes[slot]));
            let Some(session) = known else {
                let received = self.batch.received();
                let dropped = slots.map(|(slot, bytes)| bytes.div_ceil(received[slot].segment.max(1)).max(1) as u64);
                plan.stats.datagrams_dropped.add(dropped.sum());
                continue;
            };
            self.batch.clear_messages();
            join(&mut self.batch, slots, session.segment_max[Direction::ClientToTarget], |batch| {
                batch.begin(None, None, 0)
            });
            let outcome = sender::send(&mut self.batch, session.socket.as_fd());
            for unsegmented in &outcome.unsegmented {
                session.segment_max[Direction::ClientToTarget] =
                    session.segment_max[Direction::ClientToTarget].min(unsegmented.segment_max);
            }
            plan.stats.datagrams[Direction::ClientToTarget].add(outcome.datagrams);
            plan.stats.bytes[Direction::ClientToTarget][0].add(outcome.bytes);
            plan.stats.datagrams_dropped.add(outcome.dropped);
            self.counts.sends.add(outcome.calls);
            self.counts.unsegmented.add(outcome.unsegmented.len() as u64);
            self.table.touch(group.id, now, Direction::ClientToTarget);
            session.owed = session.owed.saturating_add(outcome.datagrams * u64::from(plan.responses.unwrap_or(0)));
            if outcome.refused > 0 {
                self.counts.refused.add(outcome.refused);
                session.refused = true;
                if let Some(error) = &outcome.error {
                    plan.chooser.failed(session.target, now, error);
                }
            }
        }
    }
}
