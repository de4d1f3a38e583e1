//! Accepts connections, and begins or refuses them.
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use parshall_core::relay::bucket::Bucket;
use parshall_core::relay::connection::{CloseReason, Connection, Event};
use parshall_core::relay::direction::{Peer, PerDirection};
use parshall_core::relay::slots::SlotId;
use parshall_sys::stream_socket;

use super::conn::{Conn, Index32, Transfer};
use super::socket_events::{CLIENT, WATCHED, socket_state};
use super::state::Worker;
use crate::record::Closed;

/// Connections accepted from one listener before other events are handled.
const ACCEPTS_MAX: usize = 64;

impl Worker {
    /// Accepts all that is left in the queue of a listener that is about to close; the kernel would reset it.
    pub(super) fn accept_rest(&mut self, index: usize) {
        while self.accept(index) {}
    }

    /// Accepts from a listener. Returns whether its queue may hold more.
    pub(super) fn accept(&mut self, index: usize) -> bool {
        for _ in 0..ACCEPTS_MAX {
            if index >= self.listeners.len() {
                return false;
            }
            if !self.acquire(index) {
                // Clients wait in the accept queue until a connection ends.
                self.report_limit(index);
                self.unwatch(index);
                return false;
            }
            let Some(socket) = &self.listeners[index].socket else {
                self.release(index);
                return false;
            };
            match stream_socket::accept(socket.as_raw_fd()) {
                Ok((client, peer)) => {
                    self.backoff.accepted(self.now);
                    self.admit(index, client, peer);
                }
                Err(e) => {
                    self.release(index);
                    if e.kind() == io::ErrorKind::WouldBlock || !self.accept_failed(index, &e) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Counts a connection that is about to be accepted against the limits of the process and of the listener. At a limit
    /// this thread is woken once a connection has ended, in whichever thread.
    fn acquire(&self, index: usize) -> bool {
        let (process, listener) = (&self.parts.connection_limit, &self.listeners[index].service.limiter.connections);
        let acquired = process.acquire(&self.parts.wake);
        if acquired && !listener.acquire(&self.parts.wake) {
            process.release();
            return false;
        }
        acquired
    }

    /// Logs once that clients wait because a limit is reached.
    fn report_limit(&self, index: usize) {
        let (process, service) = (&self.parts.connection_limit, &self.listeners[index].service);
        let listener = &service.limiter.connections;
        let (limit, setting) = match process.has_free() {
            true => (&**listener, "limits.connections"),
            false => (&**process, "max-connections or the limit of open files"),
        };
        if limit.at_limit.begins(self.now) {
            let (name, max) = (&service.config.name, limit.max());
            tracing::warn!("{name}: {max} connections are open, as many as {setting} allows: further clients wait");
        }
    }

    /// Takes back what [`Self::acquire`] has counted.
    fn release(&self, index: usize) {
        self.listeners[index].service.limiter.connections.release();
        self.parts.connection_limit.release();
    }

    /// Whether to go on accepting after an error.
    fn accept_failed(&mut self, index: usize, error: &io::Error) -> bool {
        match error.raw_os_error() {
            // Errors of the connection that was to be accepted (accept(2), "Error handling").
            Some(
                libc::EINTR
                | libc::ECONNABORTED
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
                | libc::EPERM,
            ) => true,
            // No descriptors or memory. The listener stays readable, so watching it would spin.
            _ => {
                let pause = self.backoff.failed(self.now);
                self.listeners[index].stats.accept_pauses.add(1);
                if pause.log {
                    tracing::warn!("cannot accept: {error}; pausing, {} connections go on", self.conns.len());
                }
                self.accept_again = Some(pause.until);
                for index in 0..self.listeners.len() {
                    self.unwatch(index);
                }
                false
            }
        }
    }

    /// Begins the connection of a client that [`Self::acquire`] has counted, or closes it at once.
    fn admit(&mut self, index: usize, client: OwnedFd, peer: Option<SocketAddr>) {
        let now = self.now;
        self.expect_exchange();
        let listening = &mut self.listeners[index];
        let service = &listening.service;
        listening.stats.accepted.add(1);
        if let Err(reason) = service.receives(peer, now) {
            return self.refuse(index, peer, reason, false);
        }
        let buckets = |rate: u64| Box::new(PerDirection::new(|_| Bucket::new(rate, (rate / 10).max(64 * 1024), now)));
        let expects_header = service.config.proxy_in;
        let conn = Box::new(Conn {
            life: Connection::new(now, expects_header),
            client,
            target: None,
            address: None,
            attempt: 0,
            listener: Index32::new(index),
            target_index: Index32::default(),
            transfers: PerDirection::new(|_| Transfer::of_choice(service.config.engine)),
            bandwidth: service.config.limits.bandwidth.map(buckets),
            setup: None,
            client_addr: peer,
            header_bytes: 0,
        });
        let Some(id) = self.conns.insert(conn) else {
            return self.refuse(index, peer, CloseReason::RelayFailed, !expects_header);
        };
        let listening = &mut self.listeners[index];
        listening.active += 1;
        listening.stats.active.add(1);
        let watched = self.conns.get(id).map(|c| self.epoll.add(&c.client, id.token(CLIENT), WATCHED));
        let failed = !matches!(watched, Some(Ok(())));
        self.advance(id, failed.then_some(Event::Failed(CloseReason::RelayFailed)));
    }

    /// Refuses a client before a byte is read. The caller drops its socket.
    fn refuse(&mut self, index: usize, peer: Option<SocketAddr>, reason: CloseReason, counted: bool) {
        let listening = &self.listeners[index];
        listening.service.limiter.release(peer, counted);
        self.parts.connection_limit.release();
        listening.stats.closed(reason).add(1);
        self.ended.push(Closed {
            service: listening.service.clone(),
            client: peer,
            target: None,
            address: None,
            duration_ns: 0,
            transferred: PerDirection::default(),
            reason,
        });
    }

    pub(super) fn unwatch(&mut self, index: usize) {
        let listening = &mut self.listeners[index];
        if let (true, Some(socket)) = (listening.watched, &listening.socket)
            && self.epoll.remove(socket).is_ok()
        {
            listening.watched = false;
            self.any_unwatched = true;
        }
    }

    /// Watches all listeners again.
    pub(super) fn watch_all(&mut self) {
        if !std::mem::take(&mut self.any_unwatched) {
            return;
        }
        for index in 0..self.listeners.len() {
            if !self.listeners[index].watched {
                self.watch(index, false);
            }
        }
    }

    /// Handles an epoll event of a client's socket.
    pub(super) fn client_event(&mut self, id: SlotId, bits: u32) {
        self.event(id, Event::Socket(Peer::Client, socket_state(bits)));
    }
}
