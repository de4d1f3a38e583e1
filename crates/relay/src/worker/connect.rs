//! Connects to targets. `core` decides (balance, connection) which target and address to try, and when.
//!
//! The epoll token of an attempt has the connection's id and the number of the attempt, so that the one that connects stays
//! in epoll as it is.
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use parshall_core::relay::connection::happy_eyeballs::Outcome;
use parshall_core::relay::connection::{CloseReason, Event};
use parshall_core::relay::direction::{Direction, Peer};
use parshall_core::relay::slots::SlotId;
use parshall_sys::epoll::{FAILED, HUNG_UP, WRITABLE};
use parshall_sys::limits::{exhausted, is_local};
use parshall_sys::stream_io::{self, take_error};
use parshall_sys::stream_socket::{self, Options, StreamAddr};

use super::conn::Index32;
use super::header::header_for;
use super::setup::{Attempts, Setup};
use super::socket_events::{ATTEMPTS_MAX, WATCHED, socket_state};
use super::state::Worker;
use crate::engine::{Held, Store};

impl Worker {
    /// Orders the targets to try.
    pub(super) fn order_targets(&mut self, id: SlotId) -> Option<Event> {
        let conn = self.conns.get_mut(id)?;
        let service = &self.listeners[usize::from(conn.listener)].service;
        let client = conn.client_addr.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |p| p.ip());
        service.order_targets(client, self.now, &mut self.order);
        let header = conn.take_header();
        conn.setup = Some(Setup::Attempts(Box::new(Attempts {
            order: self.order.clone(),
            addresses: Arc::from([]),
            running: Vec::new(),
            next_number: 0,
            error: None,
            only_local: false,
            header,
        })));
        Some(Event::TargetsOrdered(self.order.len()))
    }

    /// Takes the target at this position of the order.
    pub(super) fn use_target(&mut self, id: SlotId, position: usize) -> Option<Event> {
        let conn = self.conns.get_mut(id)?;
        let Some(Setup::Attempts(attempts)) = &mut conn.setup else { return None };
        let target = *attempts.order.get(position)?;
        conn.target_index = Index32::new(target);
        attempts.addresses = self.listeners[usize::from(conn.listener)].service.targets[target].addresses();
        attempts.error = None;
        attempts.only_local = !attempts.addresses.is_empty();
        Some(Event::AddressesKnown(attempts.addresses.len()))
    }

    /// Begins to connect to an address of the current target.
    pub(super) fn attempt(&mut self, id: SlotId, address: usize) -> Option<Event> {
        let conn = self.conns.get_mut(id)?;
        let Some(Setup::Attempts(attempts)) = &mut conn.setup else { return None };
        let listening = &self.listeners[usize::from(conn.listener)];
        listening.stats.dials.add(1);
        let from = if listening.service.config.transparent {
            conn.client_addr.map(|p| SocketAddr::new(p.ip(), 0))
        } else {
            listening.service.config.source.map(|ip| SocketAddr::new(ip, 0))
        };
        // With fast open the SYN leaves with the first data: a target that speaks first would never get it.
        let config = &listening.service.config;
        let has_data = || {
            config.proxy_out.is_some()
                || !conn.transfers[Direction::ClientToTarget].store.is_empty()
                || stream_io::unread(conn.client.as_raw_fd()).is_ok_and(|n| n > 0)
        };
        let asked = listening.service.options;
        let options = Options { fast_open: asked.fast_open && has_data(), ..asked };
        let number = attempts.next_number;
        let begun = if number < ATTEMPTS_MAX {
            stream_socket::connect(&attempts.addresses[address], from, &options)
        } else {
            Err(io::Error::from(io::ErrorKind::TimedOut))
        };
        let watched = begun.and_then(|(socket, connected)| {
            self.epoll.add(&socket, id.token(number + 1), WATCHED)?;
            Ok((socket, connected))
        });
        match watched {
            Ok((socket, connected)) => {
                attempts.next_number += 1;
                attempts.only_local = false;
                attempts.running.push((number, address, socket));
                if connected { self.connected(id, number) } else { None }
            }
            Err(error) => {
                listening.stats.dial_failures.add(1);
                // Without descriptors no other address can be tried.
                if exhausted(&error) {
                    if listening.service.limiter.connections.shortages.begins(self.now) {
                        tracing::warn!("{}: cannot connect to a target: {error}", listening.service.config.name);
                    }
                    return Some(Event::Failed(CloseReason::RelayFailed));
                }
                let local = is_local_failure(&attempts.addresses[address], &error);
                attempts.only_local &= local;
                attempts.error = Some((address, error));
                Some(if local { Event::AttemptImpossible(address) } else { Event::AttemptFailed(address) })
            }
        }
    }

    /// Reports that the current target cannot be reached, and closes the attempts.
    pub(super) fn abandon_target(&mut self, id: SlotId, why: Outcome) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Some(Setup::Attempts(attempts)) = &mut conn.setup else { return };
        let listening = &mut self.listeners[usize::from(conn.listener)];
        let (service, target) = (&listening.service, usize::from(conn.target_index));
        let endpoint = &service.config.targets[target].endpoint;
        let reason = attempts.reason(why, endpoint, service.config.timeouts.connect);
        if !attempts.only_local {
            service.target_failed(target, self.now, &reason);
        } else if service.limiter.connections.shortages.begins(self.now) {
            let name = &service.config.name;
            tracing::warn!("{name}: this host has no local address or port for a connection to {endpoint}: {reason}");
        }
        listening.stats.dial_failures.add(attempts.running.len() as u64);
        attempts.running.clear();
    }

    /// An event of a target's socket.
    pub(super) fn target_event(&mut self, id: SlotId, number: u8, bits: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Some(Setup::Attempts(attempts)) = &mut conn.setup else {
            // Events of attempts that were closed are ignored.
            if conn.target.is_some() && number == conn.attempt {
                self.event(id, Event::Socket(Peer::Target, socket_state(bits)));
            }
            return;
        };
        let Some(index) = attempts.running.iter().position(|a| a.0 == number) else { return };
        // EPOLLERR: SO_ERROR has the reason.
        let failed = bits & FAILED != 0;
        let error = if failed { take_error(attempts.running[index].2.as_raw_fd()).err() } else { None };
        if failed && (bits & HUNG_UP != 0 || error.is_some()) {
            let (_, address, _) = attempts.running.swap_remove(index);
            attempts.error = error.map(|error| (address, error)).or(attempts.error.take());
            self.listeners[usize::from(conn.listener)].stats.dial_failures.add(1);
            self.event(id, Event::AttemptFailed(address));
        } else if bits & WRITABLE != 0 {
            if let Some(event) = self.connected(id, number) {
                self.event(id, event);
            }
            self.event(id, Event::Socket(Peer::Target, socket_state(bits)));
        }
    }

    /// An attempt has connected: bytes may move.
    fn connected(&mut self, id: SlotId, number: u8) -> Option<Event> {
        let conn = self.conns.get_mut(id)?;
        let Some(Setup::Attempts(mut attempts)) = conn.setup.take() else { return None };
        let index = attempts.running.iter().position(|a| a.0 == number)?;
        let (_, address, socket) = attempts.running.swap_remove(index);
        conn.target = Some(socket);
        conn.attempt = number;
        conn.address = attempts.addresses.get(address).cloned();
        let service = &self.listeners[usize::from(conn.listener)].service;
        let target = usize::from(conn.target_index);
        service.target_succeeded(target, self.now);
        service.targets[target].began();
        if let Some(version) = service.config.proxy_out {
            let header = header_for(version, conn, attempts.header.take());
            conn.header_bytes = header.len() as u32;
            let store = &mut conn.transfers[Direction::ClientToTarget].store;
            *store = prepend(header, std::mem::take(store));
        }
        Some(Event::Connected(conn.transfers[Direction::ClientToTarget].store.held()))
    }
}

/// Whether an attempt to connect has failed for a reason on this host.
fn is_local_failure(address: &StreamAddr, error: &io::Error) -> bool {
    matches!(address, StreamAddr::Ip(_)) && is_local(error)
}

/// Puts bytes in front of those that are held.
fn prepend(mut first: Vec<u8>, held: Store) -> Store {
    if let Store::Buffer(rest) = held {
        first.extend_from_slice(&rest.bytes[rest.sent..]);
    }
    Store::Buffer(Box::new(Held { bytes: first, sent: 0 }))
}
