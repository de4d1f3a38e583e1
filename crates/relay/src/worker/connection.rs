//! Performs the actions of a connection's state machine, which is in [`parshall_core::relay::connection`].
use std::os::fd::AsRawFd;
use std::time::Duration;

use parshall_core::relay::connection::{Action, CloseReason, Event};
use parshall_core::relay::direction::Peer;
use parshall_core::relay::slots::SlotId;
use parshall_sys::stream_io::{is_over, shutdown_write, take_error, unsent};
use parshall_sys::stream_socket;

use super::state::Worker;
use crate::engine::failure;

impl Worker {
    /// Passes an event to the state machine of a connection and performs its actions.
    pub(super) fn event(&mut self, id: SlotId, event: Event) {
        self.advance(id, Some(event));
    }

    /// As [`Self::event`]; without an event, performs the actions that are due.
    pub(super) fn advance(&mut self, id: SlotId, mut event: Option<Event>) {
        loop {
            let Some(conn) = self.conns.get_mut(id) else { return };
            let rules = self.listeners[usize::from(conn.listener)].rules();
            if let Some(event) = event {
                conn.life.handle(event, self.now, &rules);
            }
            let Some(action) = conn.life.poll(self.now, &rules) else { return };
            event = self.perform(id, action);
        }
    }

    /// Performs an action. Its result, if there is one, is the next event.
    fn perform(&mut self, id: SlotId, action: Action) -> Option<Event> {
        match action {
            Action::Run(direction) => self.ready.push((id, direction)),
            Action::ArmTimer(at) => self.deadlines.arm(id, at),
            Action::ReadHeader => return self.read_header(id),
            Action::CountSource => {
                let conn = self.conns.get_mut(id)?;
                let limiter = &self.listeners[usize::from(conn.listener)].service.limiter;
                return Some(Event::SourceCounted(limiter.count_source(conn.client_addr)));
            }
            Action::ReleaseSource => {
                let conn = self.conns.get_mut(id)?;
                self.listeners[usize::from(conn.listener)].service.limiter.release_source(conn.client_addr);
            }
            Action::Admit => return self.admit_client(id),
            Action::OrderTargets => return self.order_targets(id),
            Action::UseTarget(position) => return self.use_target(id, position),
            Action::Connect(address) => return self.attempt(id, address),
            Action::AbandonTarget(why) => self.abandon_target(id, why),
            Action::ShutdownWrite(peer) => {
                // The direction that reads this socket handles its error.
                let _result = self.conns.get(id)?.socket(peer).map(|s| shutdown_write(s.as_raw_fd()));
            }
            Action::CheckDelivered(peer) => return Some(Event::Delivered(self.is_delivered(id, peer))),
            Action::CheckFailure(peer) => {
                let socket = self.conns.get(id)?.socket(peer)?;
                return take_error(socket.as_raw_fd()).err().map(|error| Event::PeerFailed(peer, failure(&error)));
            }
            Action::StartKeepalive(idle) => self.start_keepalive(id, idle),
            Action::Close(close) => self.close(id, close),
        }
        None
    }

    /// Turns on TCP keepalive for both sockets.
    fn start_keepalive(&mut self, id: SlotId, idle: Duration) {
        let Some(conn) = self.conns.get(id) else { return };
        let set = &self.listeners[usize::from(conn.listener)].service.config.sockets;
        for socket in Peer::ALL.into_iter().filter_map(|peer| conn.socket(peer)) {
            // A Unix socket has no keepalive, and a socket that refuses it goes on without.
            let _result = stream_socket::keep_alive(socket, idle, set.keepalive_interval, set.keepalive_count);
        }
    }

    /// Whether a peer has acknowledged all bytes sent to it.
    fn is_delivered(&self, id: SlotId, peer: Peer) -> bool {
        let socket = self.conns.get(id).and_then(|conn| conn.socket(peer));
        // True also of a closed socket, in which unsent bytes stay counted, and of one without a count (SIOCOUTQ).
        socket.is_none_or(|s| is_over(s.as_raw_fd()) || unsent(s.as_raw_fd()).map_or(true, |n| n == 0))
    }

    /// Passes expired timers on. Most connections have made progress since and arm theirs again.
    pub(super) fn run_timers(&mut self) {
        if self.accept_again.is_some_and(|at| at <= self.now) {
            self.accept_again = None;
            self.watch_all();
        }
        let mut expired = std::mem::take(&mut self.expired);
        self.deadlines.expired(self.now, &mut expired);
        for id in expired.drain(..) {
            self.event(id, Event::Timer);
        }
        self.expired = expired;
        if self.drain_until.is_some_and(|at| at <= self.now) {
            for id in self.conns.ids() {
                self.event(id, Event::Failed(CloseReason::Drained));
            }
        }
    }
}
