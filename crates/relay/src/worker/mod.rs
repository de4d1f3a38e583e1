//! A worker: one thread with its own listeners, connections, engines and counters. It shares nothing with the others
//! but the directory of targets, so no lock is taken where bytes move.
//!
//! One turn of its loop: wait for events; note which directions they make runnable; give those to their engines, a batch
//! per engine; see to deadlines; hand over what has ended. Sockets are watched edge-triggered and registered once in
//! their life, so a request through the relay costs one wait, one receive and one send.
//!
//! - `accept`: from the listener to a connection, or to its refusal
//! - `connection`: performs what the state machine of a connection asks for
//! - `header`: the PROXY header of a client
//! - `connect`: attempts to connect to a target
//! - `transfer`: the turns of directions
//! - `close`: the end of a connection
//! - `state`: the fields of a worker; `conn`, `setup`: those of a connection; `socket_events`: what epoll reports of its sockets
mod accept;
mod close;
mod conn;
mod connect;
mod connection;
mod header;
mod setup;
mod socket_events;
mod state;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parshall_core::relay::Ns;
use parshall_core::relay::config::Endpoint;
use parshall_core::relay::connection::Event;
use parshall_core::relay::slots::SlotId;
use parshall_sys::batch::Batch;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::epoll::{self, Events};

use self::socket_events::{CLIENT, INBOX, LISTENER};
use self::state::Listening;
pub use self::state::{Parts, Worker};
use super::command::{Assigned, Command};
use super::engine::copy::CopyEngine;

/// Events that one epoll_wait returns at most.
const EVENTS_MAX: usize = 512;
/// The longest wait of a worker with nothing to do.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Worker {
    /// Runs in the calling thread until it was asked to drain and its last connection has ended.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        self.batch = Batch::of_thread();
        loop {
            self.epoll.wait(&mut events, self.timeout())?;
            self.now = monotonic_ns();
            for (token, bits) in events.iter() {
                self.dispatch(token, bits);
            }
            self.run_ready();
            self.run_timers();
            let drained = self.drain_until.is_some() && self.conns.is_empty();
            self.pass_on_ended(drained);
            if drained {
                return Ok(());
            }
        }
    }

    /// The time until the next deadline.
    fn timeout(&self) -> Duration {
        if !self.ready.is_empty() {
            return Duration::ZERO;
        }
        let log = self.log_batching.due_at(self.ended.len());
        let next = [self.deadlines.next(), self.accept_again, self.drain_until, log].into_iter().flatten().min();
        next.map_or(WAIT_MAX, |at| Duration::from_nanos(at.saturating_sub(monotonic_ns())).min(WAIT_MAX))
    }

    fn dispatch(&mut self, token: u64, bits: u32) {
        let (id, kind) = SlotId::from_token(token);
        match kind {
            LISTENER => {
                self.accept(id.slot as usize);
            }
            INBOX => self.read_inbox(),
            CLIENT => self.client_event(id, bits),
            attempt => self.target_event(id, attempt - 1, bits),
        }
    }

    fn read_inbox(&mut self) {
        parshall_sys::eventfd::reset(&self.parts.wake);
        if self.accept_again.is_none() {
            self.watch_all();
        }
        while let Ok(command) = self.parts.inbox.try_recv() {
            match command {
                Command::Apply { listeners, drain_until, applied } => {
                    self.apply(listeners, drain_until);
                    drop(applied);
                }
                Command::Drain { until } => {
                    self.apply(Vec::new(), until);
                    self.drain_until = Some(until);
                }
            }
        }
    }

    /// Replaces the listeners. One on the same address keeps its socket, so no connection in its accept queue is lost, and
    /// its open connections go on.
    fn apply(&mut self, assigned: Vec<Assigned>, drain_until: Ns) {
        self.grow_buffers(assigned.iter().map(|a| a.service.config.buffer).max().unwrap_or(0));
        let old = self.listeners.len();
        // New listeners reuse the indices of those whose last connection has ended, so that reloads do not grow the list.
        let mut free = Vec::new();
        let mut open: HashMap<Endpoint, VecDeque<usize>> = HashMap::new();
        for (index, listening) in self.listeners.iter().enumerate() {
            match &listening.socket {
                Some(_) => open.entry(listening.service.config.listen.clone()).or_default().push_back(index),
                None if listening.active == 0 => free.push(index),
                None => {}
            }
        }
        let mut kept = HashSet::new();
        for mut new in assigned {
            let listen = new.service.config.listen.clone();
            let (socket, watched) = match new.socket.take() {
                Some(socket) => (Some(socket), false),
                None => match open.get_mut(&listen).and_then(VecDeque::pop_front) {
                    Some(before) => {
                        let before = &mut self.listeners[before];
                        (before.socket.take(), std::mem::take(&mut before.watched))
                    }
                    None => continue,
                },
            };
            kept.insert(listen);
            let mut listening = Listening::new(new, socket);
            listening.watched = watched;
            let place = free.pop().unwrap_or(self.listeners.len());
            match self.listeners.get_mut(place) {
                Some(over) => *over = listening,
                None => self.listeners.push(listening),
            }
            self.watch(place, watched);
        }
        for index in 0..old {
            let listening = &self.listeners[index];
            if listening.drain_until.is_none() && !kept.contains(&listening.service.config.listen) {
                self.retire(index, drain_until);
            }
        }
    }

    /// Replaces the copy buffer by a larger one. Held bytes are in the transfers and stay.
    fn grow_buffers(&mut self, wanted: usize) {
        if wanted > self.buffer_max {
            self.buffer_max = wanted;
            self.engines.copy = CopyEngine::new(wanted);
        }
    }

    /// Accepts what is left in the queue of a removed listener, and closes it.
    fn retire(&mut self, index: usize, drain_until: Ns) {
        self.accept_rest(index);
        // While another process has the socket too, closing it here does not remove it from epoll.
        self.unwatch(index);
        let listening = &mut self.listeners[index];
        listening.socket = None;
        listening.drain_until = Some(drain_until);
        for id in self.conns.ids() {
            if self.conns.get(id).is_some_and(|c| usize::from(c.listener) == index) {
                self.event(id, Event::RulesChanged);
            }
        }
    }

    /// Watches a listener. `watched`: it is in epoll already, under the token of its old index.
    fn watch(&mut self, index: usize, watched: bool) {
        let Some(socket) = self.listeners[index].socket.clone() else { return };
        let token = SlotId { slot: index as u32, generation: 0 }.token(LISTENER);
        let done = if watched {
            self.epoll.modify(&socket, token, epoll::READABLE)
        } else {
            self.epoll.add(&socket, token, epoll::READABLE)
        };
        self.listeners[index].watched = done.is_ok();
    }

    /// Passes ended connections on to the log thread when a batch is due, or at once if `all`. A log that does not keep up
    /// loses lines, which are counted; it never delays traffic.
    fn pass_on_ended(&mut self, all: bool) {
        if !self.log_batching.due_at(self.ended.len()).is_some_and(|at| all || at <= self.now) {
            return;
        }
        self.log_batching.passed_on(self.now);
        let batch = std::mem::take(&mut self.ended);
        if let Err(std::sync::mpsc::TrySendError::Full(batch) | std::sync::mpsc::TrySendError::Disconnected(batch)) =
            self.parts.closed.try_send(batch)
        {
            for closed in &batch {
                let listening = self.listeners.iter().find(|l| Arc::ptr_eq(&l.service, &closed.service));
                if let Some(listening) = listening {
                    listening.stats.log_lines_lost.add(1);
                }
            }
        }
    }
}
