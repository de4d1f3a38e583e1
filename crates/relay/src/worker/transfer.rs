//! Runs the engines: makes a job for each direction with a turn, and passes the outcome on to the state machine.
use std::os::fd::AsRawFd;

use parshall_core::relay::Ns;
use parshall_core::relay::connection::{Event, Turn};
use parshall_core::relay::direction::Direction;
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::streaming::Pace;

use super::conn::Conn;
use super::state::{Listening, Worker};
use crate::engine::{Job, Outcome, TURN_BYTES};
use crate::stats::{EngineKind, Fallback};

/// A direction over its bandwidth waits until it may move this many bytes: single bytes would cost a turn each.
const PAUSE_BYTES: u64 = 16 * 1024;

impl Worker {
    /// Gives every direction on the list one turn.
    pub(super) fn run_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.ready);
        for (id, direction) in ready.drain(..) {
            if let Some((engine, job)) = self.job(id, direction) {
                self.batches[engine as usize].push(job);
            }
        }
        debug_assert!(self.ready.is_empty(), "a direction over its bandwidth gets no turn");
        self.ready = ready;
        // All turns come before any outcome: an outcome may close the sockets of a direction that another engine has yet to
        // move, and a pipe opened meanwhile would get their descriptor numbers.
        for kind in EngineKind::ALL {
            let batch = &mut self.batches[kind as usize];
            if !batch.is_empty() {
                self.engines.of(kind).pump(batch);
            }
        }
        for kind in EngineKind::ALL {
            let mut batch = std::mem::take(&mut self.batches[kind as usize]);
            for job in batch.drain(..) {
                self.after_turn(kind, job);
            }
            self.batches[kind as usize] = batch;
        }
    }

    /// The job of a direction's turn; None when the direction has ended or is over its bandwidth.
    fn job(&mut self, id: SlotId, direction: Direction) -> Option<(EngineKind, Job)> {
        let now = self.now;
        let conn = self.conns.get_mut(id)?;
        if !conn.life.begin_turn(direction) {
            return None;
        }
        let source = conn.socket(direction.source())?.as_raw_fd();
        let sink = conn.socket(direction.sink())?.as_raw_fd();
        let mut bucket = conn.bandwidth.as_mut().map(|b| &mut b[direction]);
        let allowance = bucket.as_mut().map_or(TURN_BYTES, |b| b.available(now).min(TURN_BYTES));
        let transfer = &mut conn.transfers[direction];
        if let (0, Some(bucket)) = (allowance, bucket) {
            let until = bucket.take(now, PAUSE_BYTES).err().unwrap_or(now);
            let held = transfer.store.held();
            self.event(id, Event::Turn(direction, held, Turn::OutOfBandwidth(until)));
            return None;
        }
        // Asked before the store is taken: held bytes (a header, the rest of a full sink) are copied, whichever engine moves
        // the bytes after them.
        let engine = transfer.next_engine();
        let job = Job {
            id: id.token(direction as u8),
            source,
            sink,
            allowance,
            granted: allowance,
            ceiling: self.listeners[usize::from(conn.listener)].service.config.buffer,
            source_ended: conn.life.source_ended(direction),
            adaptive: transfer.adaptive,
            store: std::mem::take(&mut transfer.store),
            rhythm: transfer.rhythm,
            moved: 0,
            outcome: Outcome::Again,
        };
        Some((engine, job))
    }

    fn after_turn(&mut self, kind: EngineKind, job: Job) {
        let (id, direction) = job_of(job.id);
        if job.moved > 0 {
            self.moved(kind == EngineKind::Splice && job.rhythm.pace() == Pace::Streaming);
        }
        let Some(conn) = self.conns.get_mut(id) else {
            // The outcome of the other direction has closed the connection.
            self.engines.of(kind).discard(job.store);
            return;
        };
        let listening = &self.listeners[usize::from(conn.listener)];
        delivered(conn, listening, kind, direction, job.moved, self.now);
        if let Some(buckets) = &mut conn.bandwidth {
            // Received bytes count. Sent bytes can be more, with those that were held, and a bucket grants no more than its
            // level; the allowance was at most that.
            let _granted = buckets[direction].take(self.now, job.granted - job.allowance);
        }
        let transfer = &mut conn.transfers[direction];
        transfer.store = job.store;
        transfer.rhythm = job.rhythm;
        if transfer.adaptive {
            transfer.engine = match transfer.rhythm.pace() {
                Pace::Quiet => EngineKind::Copy,
                Pace::Streaming => EngineKind::Splice,
            };
        }
        let held = transfer.store.held();
        let turn = match job.outcome {
            Outcome::SourceEmpty => Turn::SourceEmpty,
            Outcome::SinkFull => Turn::SinkFull,
            Outcome::Again => Turn::Again,
            Outcome::Refused(why) => return self.fall_back(id, direction, why),
            Outcome::Ended(how) => Turn::Ended(how),
        };
        if let Turn::Ended(_) = turn {
            self.expect_exchange();
        }
        self.event(id, Event::Turn(direction, held, turn));
    }

    /// Bytes have moved. A thread that moves only streams enters SCHED_BATCH; an exchange leaves it.
    fn moved(&mut self, streams: bool) {
        if !streams {
            self.expect_exchange();
        } else if self.scheduling.stream_moved(self.now) && self.batch.is_some_and(|batch| batch.enter().is_err()) {
            self.batch = None;
        }
    }

    /// An exchange is under way: leaves SCHED_BATCH, so that the thread is scheduled at once.
    pub(super) fn expect_exchange(&mut self) {
        if let (true, Some(batch)) = (self.scheduling.exchange_expected(self.now), &self.batch) {
            // The policy could be set, so it can be set back.
            let _back = batch.leave();
        }
    }

    /// The direction is copied from now on.
    fn fall_back(&mut self, id: SlotId, direction: Direction, why: Fallback) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let transfer = &mut conn.transfers[direction];
        transfer.rhythm.refused();
        transfer.engine = EngineKind::Copy;
        // Pipes become free again; for any other reason splice would be refused again.
        if why != Fallback::NoPipes {
            transfer.adaptive = false;
        }
        if transfer.fallback.is_none() {
            transfer.fallback = Some(why);
            self.listeners[usize::from(conn.listener)].stats.fallbacks[why as usize].add(1);
        }
        let held = transfer.store.held();
        self.event(id, Event::Turn(direction, held, Turn::Again));
    }
}

/// Counts bytes that an engine has delivered.
fn delivered(conn: &mut Conn, listening: &Listening, kind: EngineKind, direction: Direction, bytes: u64, now: Ns) {
    if bytes == 0 {
        return;
    }
    let transfer = &mut conn.transfers[direction];
    transfer.moved += bytes;
    transfer.engines_used |= 1 << kind as u8;
    conn.life.handle(Event::Progress, now, &listening.rules());
    listening.stats.bytes[direction][kind as usize].add(bytes);
}

/// The connection and the direction of a job's id.
fn job_of(token: u64) -> (SlotId, Direction) {
    let (id, index) = SlotId::from_token(token);
    (id, Direction::from_index(index))
}
