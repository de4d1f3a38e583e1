//! Directions: which of them may run, their turns, and what follows from how a turn went.
use std::os::fd::AsRawFd;

use parshall_core::relay::Ns;
use parshall_core::relay::connection::closing::{Ended, Next};
use parshall_core::relay::direction::{Direction, Peer};
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::streaming::Pace;
use parshall_sys::epoll::{FAILED, HUNG_UP, PEER_CLOSED, READABLE, URGENT, WRITABLE};
use parshall_sys::stream_io::shutdown_write;

use super::{Worker, look_again_at, streams_with};
use crate::conn::{Conn, Stage, Transfer};
use crate::engine::{Done, Engine, Job, Outcome, Store, TURN_BYTES};
use crate::stats::{EngineKind, Fallback, ListenerStats};

/// A direction out of bandwidth waits for this much: single bytes would cost a turn each.
const PARKED_BYTES: u64 = 16 * 1024;
/// Between two looks at whether redirected bytes have left.
const LOOK_MIN: Ns = 200_000;
const LOOK_MAX: Ns = 100_000_000;

impl Worker {
    /// A socket of a connection has changed.
    pub(super) fn socket_event(&mut self, id: SlotId, peer: Peer, bits: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let from = Direction::from(peer);
        let to = from.reverse();
        if bits & (READABLE | PEER_CLOSED | FAILED | HUNG_UP) != 0 {
            conn.transfers[from].source_ready = true;
            conn.transfers[from].source_ended |= bits & (PEER_CLOSED | URGENT | FAILED | HUNG_UP) != 0;
        }
        if bits & (WRITABLE | FAILED | HUNG_UP) != 0 {
            conn.transfers[to].sink_ready = true;
        }
        if bits & (FAILED | HUNG_UP) != 0 && conn.transfers[to].store.is_armed() {
            // Nobody writes to this sink here, so nobody would find out.
            conn.transfers[to].source_ready = true;
        }
        if matches!(conn.stage, Stage::Relaying) {
            self.offer(id, Direction::ClientToTarget);
            self.offer(id, Direction::TargetToClient);
        }
    }

    /// Puts a direction on the list if it could do something.
    pub(super) fn offer(&mut self, id: SlotId, direction: Direction) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let open = conn.closing.is_open(direction);
        let transfer = &mut conn.transfers[direction];
        if open && transfer.runnable() && !transfer.queued {
            transfer.queued = true;
            self.ready.push((id, direction));
        }
    }

    /// Gives every direction on the list one turn.
    pub(super) fn run_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        for (id, direction) in std::mem::take(&mut self.ready) {
            if let Some((engine, job)) = self.job(id, direction) {
                self.batches[engine as usize].push(job);
            }
        }
        // All turns first: what follows from one may close the sockets of a direction that another engine has yet to
        // move, and a pipe that is opened meanwhile gets their numbers.
        for kind in EngineKind::ALL {
            let batch = &mut self.batches[kind as usize];
            if !batch.is_empty() {
                let engine = self.engines.of(kind);
                debug_assert_eq!(engine.kind(), kind, "a batch goes to its own engine");
                engine.pump(batch);
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

    /// What an engine needs for a turn; None when the direction is gone or out of bandwidth.
    fn job(&mut self, id: SlotId, direction: Direction) -> Option<(EngineKind, Job)> {
        let now = self.now;
        let conn = self.conns.get_mut(id)?;
        let (client, target) = (conn.client.as_raw_fd(), conn.target.as_ref()?.as_raw_fd());
        let (source, sink) = if direction == Direction::ClientToTarget { (client, target) } else { (target, client) };
        let bucket = conn.bandwidth.as_mut().map(|b| &mut b[direction]);
        let allowance = bucket.map_or(TURN_BYTES, |b| b.available(now).min(TURN_BYTES));
        let transfer = &mut conn.transfers[direction];
        transfer.queued = false;
        if allowance == 0 {
            self.park(id, direction);
            return None;
        }
        let ceiling = self.listeners[usize::from(conn.listener)].service.config.buffer;
        // Before what is held is taken out, because it decides: a header or a full sink's rest is copied, whatever moves
        // the rest.
        let engine = transfer.next_engine();
        let job = Job {
            id: id.token(direction as u8),
            source,
            sink,
            allowance,
            granted: allowance,
            ceiling,
            source_ended: transfer.source_ended,
            adaptive: transfer.adaptive,
            store: std::mem::take(&mut transfer.store),
            rhythm: transfer.rhythm,
            moved: 0,
            outcome: Outcome::Again,
        };
        Some((engine, job))
    }

    /// Leaves a direction alone until it may move bytes again.
    fn park(&mut self, id: SlotId, direction: Direction) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Some(buckets) = conn.bandwidth.as_mut() else { return };
        let at = buckets[direction].take(self.now, PARKED_BYTES).err().unwrap_or(self.now);
        conn.transfers[direction].parked_until = at;
        self.rearm(id);
    }

    fn after_turn(&mut self, kind: EngineKind, job: Job) {
        let (id, direction) = job_of(job.id);
        if job.moved > 0 {
            self.moved(kind == EngineKind::Splice && job.rhythm.pace() == Pace::Streaming);
        }
        let Some(conn) = self.conns.get_mut(id) else {
            // The other direction's turn has ended the connection.
            self.engines.of(kind).discard(job.store);
            return;
        };
        let stats = &self.listeners[usize::from(conn.listener)].stats;
        delivered(conn, stats, kind, direction, job.moved, self.now);
        if let Some(buckets) = &mut conn.bandwidth {
            // What came in counts, not what went out: that may be more, with what was held back, and a bucket does not
            // grant more than it holds. The allowance was what it held.
            let _granted = buckets[direction].take(self.now, job.granted - job.allowance);
        }
        let transfer = &mut conn.transfers[direction];
        transfer.store = job.store;
        transfer.rhythm = job.rhythm;
        if transfer.adaptive {
            transfer.engine = match transfer.rhythm.pace() {
                Pace::Quiet => EngineKind::Copy,
                Pace::Streaming => streams_with(&self.listeners[usize::from(conn.listener)].service.config),
            };
        }
        match job.outcome {
            // What had to go before (a header) is copied; then the direction goes to its own engine.
            Outcome::SourceEmpty if kind == EngineKind::Copy && transfer.engine.arms() => {
                self.offer(id, direction);
            }
            Outcome::SourceEmpty => transfer.source_ready = false,
            Outcome::SinkFull => transfer.sink_ready = false,
            Outcome::Again => self.offer(id, direction),
            Outcome::Refused(why) => self.fall_back(id, direction, why),
            Outcome::Ended(Ended::Eof)
                if transfer.fallback == Some(Fallback::SlowSink)
                    && self.engines.sockmap.has_more(job.source, transfer.moved) =>
            {
                self.look_soon(id, direction);
            }
            Outcome::Ended(how) => self.direction_ended(id, direction, how),
            Outcome::Armed => {
                transfer.source_ready = false;
                self.armed(id, kind);
            }
            Outcome::Leaving => {
                transfer.source_ready = false;
                self.look_soon(id, direction);
            }
        }
    }

    /// A ring that moves both directions sees all that happens to the sockets: epoll would only be told the same again.
    fn armed(&mut self, id: SlotId, kind: EngineKind) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let both = conn.transfers.iter().all(|l| l.store.is_armed());
        if let (EngineKind::Uring, true, true, Some(target)) = (kind, both, conn.watched, &conn.target) {
            conn.watched = false;
            // What is not removed only costs a wake-up now and then.
            let _watched = self.epoll.remove(&conn.client).and(self.epoll.remove(target));
        }
    }

    /// The source has ended and its last bytes are on their way to the sink, with nothing to tell when they have arrived.
    fn look_soon(&mut self, id: SlotId, direction: Direction) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let waited = now.saturating_sub(conn.progress);
        let at = look_again_at(now, waited, LOOK_MIN, LOOK_MAX);
        conn.transfers[direction].parked_until = at;
        self.rearm(id);
    }

    /// Asks what armed directions have moved, of engines that say so only when asked.
    pub(super) fn refresh(&mut self, id: SlotId) {
        for direction in Direction::ALL {
            let armed = |l: &Transfer| l.engine == EngineKind::Sockmap && l.store.is_armed();
            let Some(conn) = self.conns.get_mut(id) else { return };
            if !armed(&conn.transfers[direction]) {
                continue;
            }
            if let Some((engine, mut job)) = self.job(id, direction) {
                self.engines.of(engine).pump(std::slice::from_mut(&mut job));
                self.after_turn(engine, job);
            }
        }
    }

    /// What has come of an armed direction.
    pub(super) fn after_done(&mut self, kind: EngineKind, done: &Done) {
        self.hurry();
        let (id, direction) = job_of(done.id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        let stats = &self.listeners[usize::from(conn.listener)].stats;
        delivered(conn, stats, kind, direction, done.moved, self.now);
        let transfer = &mut conn.transfers[direction];
        if let Outcome::Ended(_) | Outcome::Refused(_) = done.outcome {
            transfer.store = Store::Empty;
        }
        match done.outcome {
            Outcome::Ended(how) => self.direction_ended(id, direction, how),
            Outcome::Refused(why) => self.fall_back(id, direction, why),
            _ => {}
        }
    }

    /// Something has moved. Streams let others finish first; whatever else moves is waited for.
    fn moved(&mut self, streams: bool) {
        if !streams {
            self.hurry();
        } else if self.courtesy.streamed(self.now) && self.batch.is_some_and(|batch| batch.enter().is_err()) {
            self.batch = None;
        }
    }

    /// Somebody waits for what comes next: the thread gives way to nobody for a while.
    pub(super) fn hurry(&mut self) {
        if let (true, Some(batch)) = (self.courtesy.pressed(self.now), &self.batch) {
            // It was allowed to go there, so it is to go back.
            let _back = batch.leave();
        }
    }

    /// The direction is copied from now on: slower, never wrong.
    fn fall_back(&mut self, id: SlotId, direction: Direction, why: Fallback) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let transfer = &mut conn.transfers[direction];
        transfer.rhythm.refused();
        transfer.engine = EngineKind::Copy;
        // Pipes come back; what the sockets do not support stays so.
        if why != Fallback::NoPipes {
            transfer.adaptive = false;
        }
        if transfer.fallback.is_none() {
            transfer.fallback = Some(why);
            self.listeners[usize::from(conn.listener)].stats.fallbacks[why as usize].add(1);
        }
        transfer.source_ready = true;
        let delivered = transfer.moved;
        if let (Fallback::SlowSink, Some(source)) = (why, conn.socket(direction.source())) {
            self.engines.sockmap.copied_from(source.as_raw_fd(), delivered);
        }
        self.offer(id, direction);
    }

    fn direction_ended(&mut self, id: SlotId, direction: Direction, how: Ended) {
        self.hurry();
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.progress = self.now;
        match conn.closing.ended(direction, how) {
            Next::Wait => self.rearm(id),
            Next::HalfClose(peer) => {
                // A peer that is gone already is found by its own direction.
                let _gone = conn.socket(peer).map(|s| shutdown_write(s.as_raw_fd()));
                self.rearm(id);
            }
            Next::Close(reason) => self.finish(id, reason, None),
            Next::Reset(peer, reason) => self.begin_reset(id, peer, reason),
        }
    }
}

/// Counts what an engine has delivered of a direction.
fn delivered(conn: &mut Conn, stats: &ListenerStats, kind: EngineKind, direction: Direction, bytes: u64, now: Ns) {
    if bytes == 0 {
        return;
    }
    let transfer = &mut conn.transfers[direction];
    transfer.moved += bytes;
    transfer.engines_used |= 1 << kind as u8;
    conn.progress = now;
    stats.bytes[direction][kind as usize].add(bytes);
}

/// The connection and the direction that a job is for.
fn job_of(token: u64) -> (SlotId, Direction) {
    let (id, index) = SlotId::from_token(token);
    (id, Direction::from_index(index))
}
