//! Deadlines and ends.
use std::os::fd::AsRawFd;
use std::time::Duration;

use parshall_core::relay::config::Timeouts;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::{Direction, Peer, PerDirection};
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::{Ns, ns};
use parshall_sys::stream_io::{is_over, reset_on_close, unsent};
use parshall_sys::stream_socket;

use super::{Worker, look_again_at};
use crate::conn::{Conn, Stage};
use crate::engine::Engine;
use crate::record::{Closed, Transferred};

/// Between two looks at whether a side has taken its last bytes before it is reset.
const RESET_LOOK_MIN: Ns = 1_000_000;
const RESET_LOOK_MAX: Ns = 100_000_000;
/// So old a connection probes its peers, at the latest.
const PROBES_LATEST: Ns = 5_000_000_000;

/// When a connection has been quiet for too long, and what that is called.
fn quiet_until(conn: &Conn, timeouts: &Timeouts) -> Option<(Ns, CloseReason)> {
    let (limit, reason) = match &conn.stage {
        Stage::Greeting(_) => (timeouts.header, CloseReason::BadHeader),
        Stage::Dialing(_) => return None,
        Stage::Relaying if conn.closing.is_half_closed() => (timeouts.linger, CloseReason::LingerTimeout),
        Stage::Relaying => (timeouts.idle, CloseReason::IdleTimeout),
        Stage::Resetting(_, reason) => (timeouts.linger, *reason),
    };
    (limit > Duration::ZERO).then(|| (conn.progress.saturating_add(ns(limit)), reason))
}

/// When the connection's sockets are made to probe peers that are idle for how long, if they are to be and do not yet. Most
/// connections end before: to switch probes on at once is two system calls and four moves of a timer for each of them, 3 %
/// of what a short one costs.
fn probes_from(conn: &Conn, idle: Option<Duration>) -> Option<(Ns, Duration)> {
    let idle = idle.filter(|_| !conn.kept_alive && matches!(conn.stage, Stage::Relaying))?;
    Some((conn.began.saturating_add((ns(idle) / 2).min(PROBES_LATEST)), idle))
}

impl Worker {
    /// When the connection must next be looked at.
    fn due_at(&mut self, id: SlotId) -> Option<Ns> {
        let now = self.now;
        let conn = self.conns.get_mut(id)?;
        let listening = &self.listeners[usize::from(conn.listener)];
        let config = &listening.service.config;
        let quiet = quiet_until(conn, &config.timeouts).map(|(at, _)| at);
        let probes = probes_from(conn, config.sockets.keepalive).map(|(at, _)| at);
        let own = match &conn.stage {
            Stage::Dialing(dialing) => Some(dialing.due_at()),
            Stage::Resetting(..) => {
                let waited = now.saturating_sub(conn.progress);
                Some(look_again_at(now, waited, RESET_LOOK_MIN, RESET_LOOK_MAX))
            }
            Stage::Relaying => conn.transfers.iter().map(|l| l.parked_until).filter(|&at| at > 0).min(),
            Stage::Greeting(_) => None,
        };
        [quiet, own, probes, listening.drain_until].into_iter().flatten().min()
    }

    /// Makes sure that the connection is looked at in time.
    pub(super) fn rearm(&mut self, id: SlotId) {
        if let Some(at) = self.due_at(id) {
            self.deadlines.arm(id, at);
        }
    }

    /// Sees to every connection whose time has come. Entries are lazy: most have made progress since and are put off.
    pub(super) fn see_to_deadlines(&mut self) {
        if self.accept_again.is_some_and(|at| at <= self.now) {
            self.accept_again = None;
            self.watch_all();
        }
        let mut expired = std::mem::take(&mut self.expired);
        self.deadlines.expired(self.now, &mut expired);
        for id in expired.drain(..) {
            self.look_at(id);
        }
        self.expired = expired;
        if self.drain_until.is_some_and(|at| at <= self.now) {
            for id in self.conns.ids() {
                self.finish(id, CloseReason::Drained, None);
            }
        }
    }

    fn look_at(&mut self, id: SlotId) {
        self.refresh(id);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let listening = &self.listeners[usize::from(conn.listener)];
        if listening.drain_until.is_some_and(|at| at <= now) {
            return self.finish(id, CloseReason::Drained, None);
        }
        let quiet = quiet_until(conn, &listening.service.config.timeouts).filter(|(at, _)| *at <= now);
        match (&conn.stage, quiet) {
            (Stage::Resetting(peer, reason), _) => {
                let (peer, reason, late) = (*peer, *reason, quiet.is_some());
                if late || self.has_left(id, peer) {
                    return self.finish(id, reason, Some(peer));
                }
            }
            (_, Some((_, reason))) => return self.finish(id, reason, None),
            (Stage::Dialing(_), None) => self.dial(id),
            (Stage::Relaying, None) => {
                self.keep_alive(id);
                self.unpark(id);
            }
            (Stage::Greeting(_), None) => {}
        }
        self.rearm(id);
    }

    /// Has its sockets probe idle peers, once it is old enough.
    fn keep_alive(&mut self, id: SlotId) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let keepalive = self.listeners[usize::from(conn.listener)].service.config.sockets.keepalive;
        let Some((_, idle)) = probes_from(conn, keepalive).filter(|(at, _)| *at <= now) else { return };
        for socket in Peer::ALL.into_iter().filter_map(|peer| conn.socket(peer)) {
            // A Unix socket has none, and a connection that cannot be told goes on without.
            let _told = stream_socket::keep_alive(socket, idle);
        }
        conn.kept_alive = true;
    }

    fn unpark(&mut self, id: SlotId) {
        for direction in Direction::ALL {
            let now = self.now;
            let Some(conn) = self.conns.get_mut(id) else { return };
            let parked = &mut conn.transfers[direction].parked_until;
            if *parked > 0 && *parked <= now {
                *parked = 0;
                self.offer(id, direction);
            }
        }
    }

    /// One side is dead: the other is reset, once it has acknowledged what was sent to it. A reset throws away what has
    /// not left yet, and the peer should see what came before it.
    pub(super) fn begin_reset(&mut self, id: SlotId, peer: Peer, reason: CloseReason) {
        if self.has_left(id, peer) {
            return self.finish(id, reason, Some(peer));
        }
        let now = self.now;
        if let Some(conn) = self.conns.get_mut(id) {
            conn.stage = Stage::Resetting(peer, reason);
            conn.progress = now;
        }
        self.rearm(id);
    }

    fn has_left(&mut self, id: SlotId, peer: Peer) -> bool {
        let Some(conn) = self.conns.get_mut(id) else { return true };
        let socket = conn.socket(peer);
        // A socket that is dead, or that cannot tell, has nothing that could be waited for: what a dead one had to send
        // still counts as unsent.
        socket.is_none_or(|s| is_over(s.as_raw_fd()) || unsent(s.as_raw_fd()).map_or(true, |n| n == 0))
    }

    /// Ends a connection; closing its sockets is what the kernel does when they go out of scope.
    pub(super) fn finish(&mut self, id: SlotId, reason: CloseReason, reset: Option<Peer>) {
        let Some(mut conn) = self.conns.remove(id) else { return };
        self.deadlines.disarm(id);
        // One that cannot be told ends as any other.
        let _told = reset.and_then(|peer| conn.socket(peer)).map(|s| reset_on_close(s.as_raw_fd()));
        if let (Stage::Dialing(dialing), CloseReason::ClientGone) = (&conn.stage, reason) {
            dialing.reset_on_close();
        }
        for transfer in conn.transfers.iter_mut() {
            let kind = transfer.next_engine();
            transfer.moved += self.engines.of(kind).untold(&transfer.store);
            self.engines.of(kind).discard(std::mem::take(&mut transfer.store));
        }
        for socket in Peer::ALL.into_iter().filter_map(|peer| conn.socket(peer)) {
            self.engines.sockmap.forget(socket.as_raw_fd());
        }
        let listening = &mut self.listeners[usize::from(conn.listener)];
        listening.active -= 1;
        listening.stats.active.sub(1);
        listening.stats.closed(reason).add(1);
        listening.service.gate.leave(conn.peer, conn.counted);
        self.parts.room.give_back();
        if conn.target.is_some() {
            listening.service.targets[usize::from(conn.target_index)].ended();
        }
        let record = self.record(&conn, reason);
        self.ended.push(record);
        if self.accept_again.is_none() {
            self.watch_all();
        }
    }

    fn record(&self, conn: &Conn, reason: CloseReason) -> Closed {
        let transferred = |direction: Direction| {
            let transfer = &conn.transfers[direction];
            let ours = if direction == Direction::ClientToTarget { u64::from(conn.header_bytes) } else { 0 };
            Transferred {
                bytes: transfer.moved.saturating_sub(ours),
                engines: transfer.engines_used,
                fallback: transfer.fallback,
            }
        };
        Closed {
            service: self.listeners[usize::from(conn.listener)].service.clone(),
            client: conn.peer,
            target: conn.target.is_some().then_some(usize::from(conn.target_index)),
            address: conn.address.clone(),
            duration_ns: self.now.saturating_sub(conn.began),
            transferred: PerDirection::new(transferred),
            reason,
        }
    }
}
