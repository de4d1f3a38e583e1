//! Closes a connection.
use std::os::fd::AsRawFd;

use parshall_core::relay::connection::{Close, CloseReason};
use parshall_core::relay::direction::{Direction, PerDirection};
use parshall_core::relay::slots::SlotId;
use parshall_sys::stream_io::reset_on_close;

use super::conn::Conn;
use super::setup::Setup;
use super::state::Worker;
use crate::record::{Closed, Transferred};

impl Worker {
    /// Releases all that a connection holds, and records its end. Its sockets are closed when they go out of scope.
    pub(super) fn close(&mut self, id: SlotId, close: Close) {
        let Some(mut conn) = self.conns.remove(id) else { return };
        self.deadlines.disarm(id);
        // A socket that refuses the option is closed as any other.
        let _result = close.reset.and_then(|peer| conn.socket(peer)).map(|s| reset_on_close(s.as_raw_fd()));
        if let (Some(Setup::Attempts(attempts)), true) = (&conn.setup, close.reset_attempts) {
            attempts.reset_on_close();
        }
        for transfer in conn.transfers.iter_mut() {
            let kind = transfer.next_engine();
            self.engines.of(kind).discard(std::mem::take(&mut transfer.store));
        }
        let listening = &mut self.listeners[usize::from(conn.listener)];
        listening.active -= 1;
        listening.stats.active.sub(1);
        listening.stats.closed(close.reason).add(1);
        listening.service.limiter.release(conn.client_addr, close.release_source);
        self.parts.connection_limit.release();
        if conn.target.is_some() {
            listening.service.targets[usize::from(conn.target_index)].ended();
        }
        let record = self.record(&conn, close.reason);
        self.ended.push(record);
        if self.accept_again.is_none() {
            self.watch_all();
        }
    }

    fn record(&self, conn: &Conn, reason: CloseReason) -> Closed {
        let transferred = |direction: Direction| {
            let transfer = &conn.transfers[direction];
            let header_bytes = if direction == Direction::ClientToTarget { u64::from(conn.header_bytes) } else { 0 };
            Transferred {
                bytes: transfer.moved.saturating_sub(header_bytes),
                engines: transfer.engines_used,
                fallback: transfer.fallback,
            }
        };
        Closed {
            service: self.listeners[usize::from(conn.listener)].service.clone(),
            client: conn.client_addr,
            target: conn.target.is_some().then_some(usize::from(conn.target_index)),
            address: conn.address.clone(),
            duration_ns: self.now.saturating_sub(conn.life.accepted_at()),
            transferred: PerDirection::new(transferred),
            reason,
        }
    }
}
