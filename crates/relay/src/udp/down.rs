//! From targets to clients: answers of several sessions are sent in one batch through the listener's socket.
use std::io::ErrorKind;
use std::os::fd::AsFd;

use parshall_core::relay::Ns;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::Direction;

use super::sender;
use super::up::join;
use super::worker::{BATCHES_MAX, UdpWorker};

/// Errors in a row after which a socket is not read until its next event.
const ERRORS_MAX: usize = 4;

impl UdpWorker {
    /// Receives the datagrams of a session's target.
    pub(super) fn forward_down(&mut self, event: u64, now: Ns) {
        let (mut batches, mut errors) = (0, 0);
        while batches < BATCHES_MAX && errors < ERRORS_MAX {
            let Some(listener) = self.session(event).map(|session| session.listener) else { return };
            if self.answers_of != listener || self.batch.received().len() == self.batch.slots() {
                self.flush_answers();
                self.answers_of = listener;
            }
            let Some(session) = self.sessions[(event & 0xffff_ffff) as usize].as_mut() else { return };
            let plan = &mut self.listeners[listener].plan;
            let first = self.batch.received().len();
            self.counts.receives.add(1);
            match self.batch.receive(session.socket.as_fd(), false) {
                Ok(_) => {
                    let is_first = !std::mem::replace(&mut session.answered, true);
                    session.refused = false;
                    plan.chooser.answered(session.target, now, is_first);
                    let id = session.id;
                    let answers = self.batch.received()[first..].iter().map(|one| one.datagrams() as u64).sum();
                    session.owed = session.owed.saturating_sub(answers);
                    let over = plan.responses.is_some() && session.owed == 0;
                    self.table.touch(id, now, Direction::TargetToClient);
                    self.answer(event, first);
                    if over {
                        return self.end(id, CloseReason::Finished);
                    }
                    if self.batch.received().len() < self.batch.slots() {
                        return;
                    }
                    batches += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // An ICMP error. The session stays at least until its client's next datagram: the target may come up again.
                Err(error) => {
                    errors += 1;
                    self.counts.refused.add(1);
                    session.refused = true;
                    plan.chooser.failed(session.target, now, &error);
                }
            }
        }
    }

    /// Makes messages to the client from the slots received from `first` on.
    fn answer(&mut self, event: u64, first: usize) {
        let Some(session) = self.session(event) else { return };
        let (client, local, segment_max) =
            (session.client, session.local, session.segment_max[Direction::TargetToClient]);
        let mut dropped = 0;
        let mut from = first;
        let end = self.batch.received().len();
        // Truncated slots are dropped; the runs between them are sent.
        while from < end {
            let run = self.batch.received()[from..].iter().take_while(|received| !received.truncated).count();
            let slots = (from..from + run).map(|slot| (slot, usize::MAX));
            join(&mut self.batch, slots, segment_max, |batch| batch.begin(Some(&client), local, event));
            dropped += u64::from(from + run < end);
            from += run + 1;
        }
        if dropped > 0 {
            self.listeners[self.answers_of].plan.stats.datagrams_dropped.add(dropped);
        }
    }

    /// Sends and clears the answers in the batch.
    pub(super) fn flush_answers(&mut self) {
        if !self.batch.messages().is_empty() {
            let listener = self.answers_of;
            let Some(socket) = self.listeners[listener].plan.sockets.first() else { return self.batch.clear() };
            let outcome = sender::send(&mut self.batch, socket.as_fd());
            for unsegmented in &outcome.unsegmented {
                if let Some(session) = self.session(unsegmented.tag) {
                    session.segment_max[Direction::TargetToClient] =
                        session.segment_max[Direction::TargetToClient].min(unsegmented.segment_max);
                }
            }
            let stats = &self.listeners[listener].plan.stats;
            stats.datagrams[Direction::TargetToClient].add(outcome.datagrams);
            stats.bytes[Direction::TargetToClient][0].add(outcome.bytes);
            stats.datagrams_dropped.add(outcome.dropped);
            self.counts.sends.add(outcome.calls);
            self.counts.unsegmented.add(outcome.unsegmented.len() as u64);
        }
        self.batch.clear();
    }
}
