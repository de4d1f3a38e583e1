//! From the choice of a target to a connection to it.
//!
//! Which target, which of its addresses and when the next attempt begins is decided in `core` (balance, dial); here the
//! attempts are made. All attempts of a connection are watched under its own name, each with its number, so that the
//! one that wins needs no further call.
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parshall_core::relay::config::Endpoint;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::connection::happy_eyeballs::{Dial, Outcome, Step};
use parshall_core::relay::direction::{Direction, Peer};
use parshall_core::relay::proxy::Header;
use parshall_core::relay::slots::SlotId;
use parshall_core::relay::{Ns, ns};
use parshall_sys::epoll::{FAILED, HUNG_UP, WRITABLE};
use parshall_sys::limits::exhausted;
use parshall_sys::stream_io::{self, take_error};
use parshall_sys::stream_socket::{self, Options, StreamAddr};

use super::accept::WATCHED;
use super::{ATTEMPTS_MAX, Worker};
use crate::conn::{Place, Stage};
use crate::engine::{Held, Store};

/// Attempts at the addresses of one target at a time.
const ATTEMPTS_AT_ONCE: u8 = 3;

/// A connection to a target in the making.
#[derive(Debug)]
pub struct Dialing {
    /// Targets to try, the best first.
    order: Vec<usize>,
    /// Which of them is tried.
    position: usize,
    addresses: Arc<[StreamAddr]>,
    plan: Dial,
    /// Number, address and socket of the attempts under way.
    attempts: Vec<(u8, usize, OwnedFd)>,
    /// Number of the next one.
    next_attempt: u8,
    due_at: Ns,
    timed_out: bool,
    /// The last address of the current target that failed, and its error.
    error: Option<(usize, io::Error)>,
    /// What the client's proxy said of it, to be passed on.
    header: Option<Box<Header>>,
}

impl Dialing {
    /// Has targets learn of a reset too: an attempt may have been accepted before its event was seen here.
    pub fn reset_on_close(&self) {
        for (_, _, socket) in &self.attempts {
            // One that cannot be told ends as any other.
            let _told = stream_io::reset_on_close(socket.as_raw_fd());
        }
    }

    /// Why the current target cannot be reached, for people.
    fn reason(&self, why: Outcome, target: &Endpoint, timeout: Duration) -> String {
        let address = |place: &usize| match (target, self.addresses.get(*place)) {
            (Endpoint::Name(..), Some(address)) => format!("{address}: "),
            _ => String::new(),
        };
        match (why, &self.error) {
            (Outcome::TimedOut, _) => format!("no answer within {} s", timeout.as_secs_f64()),
            (Outcome::Failed, Some((place, error))) => format!("{}{error}", address(place)),
            (Outcome::Failed, None) if self.addresses.is_empty() => "its name has no address".to_owned(),
            (Outcome::Failed, None) => "the connection was closed at once".to_owned(),
        }
    }

    /// When there is something to do without an event.
    pub fn due_at(&self) -> Ns {
        self.due_at
    }
}

impl Worker {
    /// Chooses the targets to try and begins with the first.
    pub(super) fn begin_dial(&mut self, id: SlotId, header: Option<Box<Header>>) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let service = &self.listeners[usize::from(conn.listener)].service;
        let client = conn.peer.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |p| p.ip());
        service.order_targets(client, now, &mut self.order);
        conn.progress = now;
        conn.stage = Stage::Dialing(Box::new(Dialing {
            order: self.order.clone(),
            position: 0,
            addresses: Arc::from([]),
            plan: Dial::new(0, now, 0, ATTEMPTS_AT_ONCE),
            attempts: Vec::new(),
            next_attempt: 0,
            due_at: now,
            timed_out: false,
            error: None,
            header,
        }));
        self.try_target(id);
    }

    /// Begins with the target that is next in the order.
    fn try_target(&mut self, id: SlotId) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Stage::Dialing(dialing) = &mut conn.stage else { return };
        let service = &self.listeners[usize::from(conn.listener)].service;
        let Some(&target) = dialing.order.get(dialing.position) else {
            let reason = if dialing.timed_out { CloseReason::ConnectTimeout } else { CloseReason::ConnectRefused };
            return self.finish(id, reason, Some(Peer::Client));
        };
        conn.target_index = Place::new(target);
        dialing.addresses = service.targets[target].addresses();
        dialing.error = None;
        let timeout = ns(service.config.timeouts.connect);
        dialing.plan = Dial::new(dialing.addresses.len(), now, timeout, ATTEMPTS_AT_ONCE);
        self.dial(id);
        self.rearm(id);
    }

    /// Goes on with the attempts: after an event, or when the time has come for the next.
    pub(super) fn dial(&mut self, id: SlotId) {
        loop {
            let now = self.now;
            let Some(conn) = self.conns.get_mut(id) else { return };
            let Stage::Dialing(dialing) = &mut conn.stage else { return };
            match dialing.plan.next(now) {
                Step::Start(address) => self.attempt(id, address),
                Step::WaitUntil(at) => {
                    dialing.due_at = at;
                    return;
                }
                Step::GiveUp(why) => return self.target_failed(id, why),
            }
        }
    }

    /// Begins one attempt.
    fn attempt(&mut self, id: SlotId, address: usize) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Stage::Dialing(dialing) = &mut conn.stage else { return };
        let listening = &self.listeners[usize::from(conn.listener)];
        listening.stats.dials.add(1);
        let from = if listening.service.config.transparent {
            conn.peer.map(|p| SocketAddr::new(p.ip(), 0))
        } else {
            listening.service.config.source.map(|ip| SocketAddr::new(ip, 0))
        };
        let to = &dialing.addresses[address];
        // With fast open nothing is sent before there is data to send: a target that speaks first would never be asked.
        let config = &listening.service.config;
        let speaks = || {
            config.proxy_out.is_some()
                || !conn.transfers[Direction::ClientToTarget].store.is_empty()
                || stream_io::unread(conn.client.as_raw_fd()).is_ok_and(|n| n > 0)
        };
        let asked = listening.service.options;
        let options = Options { fast_open: asked.fast_open && speaks(), ..asked };
        let number = dialing.next_attempt;
        let begun = if number < ATTEMPTS_MAX {
            stream_socket::connect(to, from, &options)
        } else {
            Err(io::Error::from(io::ErrorKind::TimedOut))
        };
        let watched = begun.and_then(|(socket, made)| {
            self.epoll.add(&socket, id.token(number + 1), WATCHED)?;
            Ok((socket, made))
        });
        match watched {
            Ok((socket, made)) => {
                dialing.next_attempt += 1;
                dialing.attempts.push((number, address, socket));
                if made {
                    self.connected(id, number);
                }
            }
            Err(error) => {
                listening.stats.dial_failures.add(1);
                // Without descriptors no address is any better.
                if exhausted(&error) {
                    return self.finish(id, CloseReason::RelayFailed, None);
                }
                dialing.plan.failed(address);
                dialing.error = Some((address, error));
            }
        }
    }

    /// The current target cannot be reached: the next one's turn.
    fn target_failed(&mut self, id: SlotId, why: Outcome) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Stage::Dialing(dialing) = &mut conn.stage else { return };
        let listening = &mut self.listeners[usize::from(conn.listener)];
        let (service, target) = (&listening.service, usize::from(conn.target_index));
        let reason = dialing.reason(why, &service.config.targets[target].endpoint, service.config.timeouts.connect);
        service.target_failed(target, now, &reason);
        dialing.timed_out = why == Outcome::TimedOut;
        listening.stats.dial_failures.add(dialing.attempts.len() as u64);
        dialing.attempts.clear();
        dialing.position += 1;
        self.try_target(id);
    }

    /// An event of a target's socket.
    pub(super) fn target_event(&mut self, id: SlotId, number: u8, bits: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let attempt = conn.attempt;
        match &mut conn.stage {
            Stage::Dialing(dialing) => {
                let Some(place) = dialing.attempts.iter().position(|a| a.0 == number) else { return };
                // A socket with an error says so among its events.
                let failed = bits & FAILED != 0;
                let error = if failed { take_error(dialing.attempts[place].2.as_raw_fd()).err() } else { None };
                if failed && (bits & HUNG_UP != 0 || error.is_some()) {
                    let (_, address, _) = dialing.attempts.swap_remove(place);
                    dialing.plan.failed(address);
                    dialing.error = error.map(|error| (address, error)).or(dialing.error.take());
                    self.listeners[usize::from(conn.listener)].stats.dial_failures.add(1);
                    self.dial(id);
                    self.rearm(id);
                } else if bits & WRITABLE != 0 {
                    self.connected(id, number);
                    self.socket_event(id, Peer::Target, bits);
                }
            }
            _ if number == attempt => self.socket_event(id, Peer::Target, bits),
            // An attempt that lost.
            _ => {}
        }
    }

    /// An attempt has won: bytes may move.
    fn connected(&mut self, id: SlotId, number: u8) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let stage = std::mem::replace(&mut conn.stage, Stage::Relaying);
        let Stage::Dialing(mut dialing) = stage else { return };
        let Some(place) = dialing.attempts.iter().position(|a| a.0 == number) else { return };
        let (_, address, socket) = dialing.attempts.swap_remove(place);
        conn.target = Some(socket);
        conn.attempt = number;
        conn.address = dialing.addresses.get(address).cloned();
        conn.progress = now;
        let listening = &mut self.listeners[usize::from(conn.listener)];
        listening.service.target_succeeded(usize::from(conn.target_index), now);
        listening.service.targets[usize::from(conn.target_index)].began();
        if let Some(version) = listening.service.config.proxy_out {
            let ours = super::greet::header_for(version, conn, dialing.header.take());
            conn.header_bytes = ours.len() as u32;
            conn.transfers[Direction::ClientToTarget].store =
                prepend(ours, std::mem::take(&mut conn.transfers[Direction::ClientToTarget].store));
        }
        for transfer in conn.transfers.iter_mut() {
            // Engines that move bytes by themselves are given the direction before there are any.
            transfer.source_ready |= transfer.engine.arms();
        }
        self.offer(id, Direction::ClientToTarget);
        self.offer(id, Direction::TargetToClient);
        self.rearm(id);
    }
}

/// Bytes to go out before those that are held.
fn prepend(mut first: Vec<u8>, held: Store) -> Store {
    if let Store::Buffer(rest) = held {
        first.extend_from_slice(&rest.bytes[rest.sent..]);
    }
    Store::Buffer(Box::new(Held { bytes: first, sent: 0 }))
}
