//! Directions: which of them may run, their turns, and what follows from how a turn went.
use std::os::fd::AsRawFd;

use parshall_core::relay::Ns;
use parshall_core::relay::closing::{Action, Ended, Side};
use parshall_core::relay::streaming::Pace;
use parshall_sys::epoll::{FAILED, HUNG_UP, PEER_CLOSED, READABLE, URGENT, WRITABLE};
use parshall_sys::stream_io::shutdown_write;

use super::{Worker, look_again_at, streams_with};
use crate::conn::{Conn, ConnId, Lane, Stage, lane_of, side_of};
use crate::engine::{Done, Engine, Job, Outcome, Store, TURN_BYTES};
use crate::stats::{EngineKind, Fallback, ListenerStats};

/// A direction out of bandwidth waits for this much: single bytes would cost a turn each.
const PARKED_BYTES: u64 = 16 * 1024;
/// Between two looks at whether redirected bytes have left.
const LOOK_MIN: Ns = 200_000;
const LOOK_MAX: Ns = 100_000_000;

impl Worker {
    /// A socket of a connection has changed.
    pub(super) fn socket_event(&mut self, id: ConnId, side: Side, bits: u32) {
        let Some(conn) = self.conns.get(id) else { return };
        let (from, to) = (lane_of(side), lane_of(side.other()));
        if bits & (READABLE | PEER_CLOSED | FAILED | HUNG_UP) != 0 {
            conn.lanes[from].source_ready = true;
            conn.lanes[from].source_ended |= bits & (PEER_CLOSED | URGENT | FAILED | HUNG_UP) != 0;
        }
        if bits & (WRITABLE | FAILED | HUNG_UP) != 0 {
            conn.lanes[to].sink_ready = true;
        }
        if bits & (FAILED | HUNG_UP) != 0 && conn.lanes[to].store.is_armed() {
            // Nobody writes to this sink here, so nobody would find out.
            conn.lanes[to].source_ready = true;
        }
        if matches!(conn.stage, Stage::Relaying) {
            self.offer(id, 0);
            self.offer(id, 1);
        }
    }

    /// Puts a direction on the list if it could do something.
    pub(super) fn offer(&mut self, id: ConnId, lane: usize) {
        let Some(conn) = self.conns.get(id) else { return };
        let open = conn.closing.is_open(side_of(lane));
        let lane_state = &mut conn.lanes[lane];
        if open && lane_state.runnable() && !lane_state.queued {
            lane_state.queued = true;
            self.ready.push((id, lane as u8));
        }
    }

    /// Gives every direction on the list one turn.
    pub(super) fn run_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        for (id, lane) in std::mem::take(&mut self.ready) {
            if let Some((engine, job)) = self.job(id, lane) {
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
    fn job(&mut self, id: ConnId, lane_index: u8) -> Option<(EngineKind, Job)> {
        let now = self.now;
        let conn = self.conns.get(id)?;
        let (client, target) = (conn.client.as_raw_fd(), conn.target.as_ref()?.as_raw_fd());
        let (source, sink) = if lane_index == 0 { (client, target) } else { (target, client) };
        let bucket = conn.bandwidth.as_mut().map(|b| &mut b[usize::from(lane_index)]);
        let allowance = bucket.map_or(TURN_BYTES, |b| b.available(now).min(TURN_BYTES));
        let lane = &mut conn.lanes[usize::from(lane_index)];
        lane.queued = false;
        if allowance == 0 {
            self.park(id, lane_index);
            return None;
        }
        let ceiling = self.listeners[usize::from(conn.listener)].service.config.buffer;
        // Before what is held is taken out, because it decides: a header or a full sink's rest is copied, whatever moves
        // the rest.
        let engine = lane.next_engine();
        let job = Job {
            id: id.token(lane_index),
            source,
            sink,
            allowance,
            granted: allowance,
            ceiling,
            source_ended: lane.source_ended,
            adaptive: lane.adaptive,
            store: std::mem::take(&mut lane.store),
            rhythm: lane.rhythm,
            moved: 0,
            outcome: Outcome::Again,
        };
        Some((engine, job))
    }

    /// Leaves a direction alone until it may move bytes again.
    fn park(&mut self, id: ConnId, lane: u8) {
        let Some(conn) = self.conns.get(id) else { return };
        let Some(buckets) = conn.bandwidth.as_mut() else { return };
        let at = buckets[usize::from(lane)].take(self.now, PARKED_BYTES).err().unwrap_or(self.now);
        conn.lanes[usize::from(lane)].parked_until = at;
        self.rearm(id);
    }

    fn after_turn(&mut self, kind: EngineKind, job: Job) {
        let (id, lane_index) = ConnId::of(job.id);
        if job.moved > 0 {
            self.moved(kind == EngineKind::Splice && job.rhythm.pace() == Pace::Streaming);
        }
        let Some(conn) = self.conns.get(id) else {
            // The other direction's turn has ended the connection.
            self.engines.of(kind).discard(job.store);
            return;
        };
        let stats = &self.listeners[usize::from(conn.listener)].stats;
        delivered(conn, stats, kind, lane_index, job.moved, self.now);
        if let Some(buckets) = &mut conn.bandwidth {
            // What came in counts, not what went out: that may be more, with what was held back, and a bucket does not
            // grant more than it holds. The allowance was what it held.
            let _granted = buckets[usize::from(lane_index)].take(self.now, job.granted - job.allowance);
        }
        let lane = &mut conn.lanes[usize::from(lane_index)];
        lane.store = job.store;
        lane.rhythm = job.rhythm;
        if lane.adaptive {
            lane.engine = match lane.rhythm.pace() {
                Pace::Quiet => EngineKind::Copy,
                Pace::Streaming => streams_with(&self.listeners[usize::from(conn.listener)].service.config),
            };
        }
        match job.outcome {
            // What had to go before (a header) is copied; then the direction goes to its own engine.
            Outcome::SourceEmpty if kind == EngineKind::Copy && lane.engine.arms() => {
                self.offer(id, usize::from(lane_index));
            }
            Outcome::SourceEmpty => lane.source_ready = false,
            Outcome::SinkFull => lane.sink_ready = false,
            Outcome::Again => self.offer(id, usize::from(lane_index)),
            Outcome::Refused(why) => self.fall_back(id, usize::from(lane_index), why),
            Outcome::Ended(Ended::Eof)
                if lane.fallback == Some(Fallback::SlowSink)
                    && self.engines.sockmap.has_more(job.source, lane.moved) =>
            {
                self.look_soon(id, lane_index);
            }
            Outcome::Ended(how) => self.lane_ended(id, side_of(usize::from(lane_index)), how),
            Outcome::Armed => {
                lane.source_ready = false;
                self.armed(id, kind);
            }
            Outcome::Leaving => {
                lane.source_ready = false;
                self.look_soon(id, lane_index);
            }
        }
    }

    /// A ring that moves both directions sees all that happens to the sockets: epoll would only be told the same again.
    fn armed(&mut self, id: ConnId, kind: EngineKind) {
        let Some(conn) = self.conns.get(id) else { return };
        let both = conn.lanes.iter().all(|l| l.store.is_armed());
        if let (EngineKind::Uring, true, true, Some(target)) = (kind, both, conn.watched, &conn.target) {
            conn.watched = false;
            // What is not removed only costs a wake-up now and then.
            let _watched = self.epoll.remove(&conn.client).and(self.epoll.remove(target));
        }
    }

    /// The source has ended and its last bytes are on their way to the sink, with nothing to tell when they have arrived.
    fn look_soon(&mut self, id: ConnId, lane: u8) {
        let now = self.now;
        let Some(conn) = self.conns.get(id) else { return };
        let waited = now.saturating_sub(conn.progress);
        let at = look_again_at(now, waited, LOOK_MIN, LOOK_MAX);
        conn.lanes[usize::from(lane)].parked_until = at;
        self.rearm(id);
    }

    /// Asks what armed directions have moved, of engines that say so only when asked.
    pub(super) fn refresh(&mut self, id: ConnId) {
        for lane in 0..2 {
            let armed = |l: &Lane| l.engine == EngineKind::Sockmap && l.store.is_armed();
            let Some(conn) = self.conns.get(id) else { return };
            if !armed(&conn.lanes[usize::from(lane)]) {
                continue;
            }
            if let Some((engine, mut job)) = self.job(id, lane) {
                self.engines.of(engine).pump(std::slice::from_mut(&mut job));
                self.after_turn(engine, job);
            }
        }
    }

    /// What has come of an armed direction.
    pub(super) fn after_done(&mut self, kind: EngineKind, done: &Done) {
        self.hurry();
        let (id, lane_index) = ConnId::of(done.id);
        let Some(conn) = self.conns.get(id) else { return };
        let stats = &self.listeners[usize::from(conn.listener)].stats;
        delivered(conn, stats, kind, lane_index, done.moved, self.now);
        let lane = &mut conn.lanes[usize::from(lane_index)];
        if let Outcome::Ended(_) | Outcome::Refused(_) = done.outcome {
            lane.store = Store::Empty;
        }
        match done.outcome {
            Outcome::Ended(how) => self.lane_ended(id, side_of(usize::from(lane_index)), how),
            Outcome::Refused(why) => self.fall_back(id, usize::from(lane_index), why),
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
    fn fall_back(&mut self, id: ConnId, lane_index: usize, why: Fallback) {
        let Some(conn) = self.conns.get(id) else { return };
        let lane = &mut conn.lanes[lane_index];
        lane.rhythm.refused();
        lane.engine = EngineKind::Copy;
        // Pipes come back; what the sockets do not support stays so.
        if why != Fallback::NoPipes {
            lane.adaptive = false;
        }
        if lane.fallback.is_none() {
            lane.fallback = Some(why);
            self.listeners[usize::from(conn.listener)].stats.fallbacks[why as usize].add(1);
        }
        lane.source_ready = true;
        let delivered = lane.moved;
        if let (Fallback::SlowSink, Some(source)) = (why, conn.socket(side_of(lane_index))) {
            self.engines.sockmap.copied_from(source.as_raw_fd(), delivered);
        }
        self.offer(id, lane_index);
    }

    fn lane_ended(&mut self, id: ConnId, from: Side, how: Ended) {
        self.hurry();
        let Some(conn) = self.conns.get(id) else { return };
        conn.progress = self.now;
        match conn.closing.ended(from, how) {
            Action::Wait => self.rearm(id),
            Action::HalfClose(side) => {
                // A side that is gone already is found by its own direction.
                let _gone = conn.socket(side).map(|s| shutdown_write(s.as_raw_fd()));
                self.rearm(id);
            }
            Action::Close(reason) => self.finish(id, reason, None),
            Action::Reset(side, reason) => self.begin_reset(id, side, reason),
        }
    }
}

/// Counts what an engine has delivered of a direction.
fn delivered(conn: &mut Conn, stats: &ListenerStats, kind: EngineKind, lane_index: u8, bytes: u64, now: Ns) {
    if bytes == 0 {
        return;
    }
    let lane = &mut conn.lanes[usize::from(lane_index)];
    lane.moved += bytes;
    lane.engines_used |= 1 << kind as u8;
    conn.progress = now;
    let counts = if lane_index == 0 { &stats.bytes_up } else { &stats.bytes_down };
    counts[kind as usize].add(bytes);
}
