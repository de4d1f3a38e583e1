//! A worker: one thread with its own listeners, connections, engines and counters. It shares nothing with the others
//! but the directory of targets, so no lock is taken where bytes move.
//!
//! One turn of its loop: wait for events; note which directions they make runnable; give those to their engines, a batch
//! per engine; see to deadlines; hand over what has ended. Sockets are watched edge-triggered and registered once in
//! their life, so a request through the relay costs one wait, one receive and one send.
//!
//! - `accept`: from the listener to a connection, or to its refusal
//! - `conn`: what the worker keeps of a connection
//! - `connection`: performs what the state machine of a connection asks for
//! - `header`: the PROXY header of a client
//! - `connect`: attempts to connect to a target
//! - `transfer`: the turns of directions
//! - `close`: the end of a connection
mod accept;
mod close;
mod conn;
mod connect;
mod connection;
mod header;
#[cfg(test)]
mod tests;
mod transfer;
#[cfg(test)]
mod uring_tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use parshall_core::relay::Ns;
use parshall_core::relay::backoff::Backoff;
use parshall_core::relay::config::{Endpoint, EngineChoice, Listener};
use parshall_core::relay::connection::{Event, Rules};
use parshall_core::relay::deadlines::Deadlines;
use parshall_core::relay::direction::Direction;
use parshall_core::relay::log_batching::LogBatching;
use parshall_core::relay::scheduling::Scheduling;
use parshall_core::relay::slots::SlotId;
use parshall_sys::batch::Batch;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::epoll::{self, Epoll, Events};
use parshall_sys::uring::Request;

use self::conn::{Connections, Transfer};
use super::command::{Assigned, Command};
use super::connection_limit::ConnectionLimit;
use super::engine::copy::CopyEngine;
use super::engine::sockmap::SockmapEngine;
use super::engine::splice::SpliceEngine;
use super::engine::uring::{Accepted, UringEngine};
use super::engine::{Done, Engine};
use super::record::Closed;
use super::service::Service;
use super::stats::{EngineKind, Fallback, ListenerStats};

/// Kinds of events in the token of an epoll event; attempt n to connect to a target is n + 1.
const CLIENT: u8 = 0;
const ATTEMPTS_MAX: u8 = 200;
const LISTENER: u8 = 254;
const INBOX: u8 = 255;

/// Events that one epoll_wait returns at most.
const EVENTS_MAX: usize = 512;
/// The longest wait of a worker with nothing to do.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The arguments of [`Worker::new`].
#[derive(Debug)]
pub struct Parts {
    /// Counts the connections and sessions of all threads.
    pub connection_limit: Arc<ConnectionLimit>,
    /// The limit on pipes of this worker.
    pub pipes_max: usize,
    pub inbox: Receiver<Command>,
    /// An eventfd: readable when a command was sent, or when a connection has ended that others wait for.
    pub wake: Arc<OwnedFd>,
    /// The queue of ended connections to the log thread. While it is full, lost lines are counted.
    pub closed: SyncSender<Vec<Closed>>,
}

/// A listener in a worker.
pub(super) struct Listening {
    service: Arc<Service>,
    stats: Arc<ListenerStats>,
    /// None once the listener is removed.
    socket: Option<Arc<OwnedFd>>,
    /// Whether epoll or the ring watches the socket: not while accepting pauses.
    watched: bool,
    /// The accept of the ring, where it accepts. It is for one client, and none is begun while the limits are reached: others
    /// wait in the accept queue, as with epoll.
    accepting: Option<Request>,
    /// Clients that the ring has accepted and that wait for the connection limits: at most the one of an accept that was under
    /// way when a limit was reached.
    waiting: VecDeque<(OwnedFd, Option<SocketAddr>)>,
    /// Open connections.
    active: u32,
    /// When its connections are closed, once it is removed.
    drain_until: Option<Ns>,
}

impl Listening {
    fn new(assigned: Assigned, socket: Option<Arc<OwnedFd>>) -> Self {
        let Assigned { service, stats, .. } = assigned;
        Self {
            active: 0,
            drain_until: None,
            watched: false,
            accepting: None,
            waiting: VecDeque::new(),
            socket,
            service,
            stats,
        }
    }

    /// The part of its configuration that the state machine of a connection needs.
    fn rules(&self) -> Rules<'_> {
        let config = &self.service.config;
        Rules { timeouts: &config.timeouts, keepalive: config.sockets.keepalive, drain_until: self.drain_until }
    }
}

struct Engines {
    copy: CopyEngine,
    splice: SpliceEngine,
    uring: UringEngine,
    sockmap: SockmapEngine,
}

impl Engines {
    fn of(&mut self, kind: EngineKind) -> &mut dyn Engine {
        match kind {
            EngineKind::Copy => &mut self.copy,
            EngineKind::Splice => &mut self.splice,
            EngineKind::Uring => &mut self.uring,
            EngineKind::Sockmap => &mut self.sockmap,
        }
    }
}

pub struct Worker {
    epoll: Epoll,
    parts: Parts,
    now: Ns,
    listeners: Vec<Listening>,
    conns: Connections,
    engines: Engines,
    /// Directions that get a turn in the next run.
    ready: Vec<(SlotId, Direction)>,
    batches: [Vec<super::engine::Job>; EngineKind::ALL.len()],
    /// Epoll may have more events: the ring reports a change only.
    look_again: bool,
    done: Vec<Done>,
    accepted: Vec<Accepted>,
    deadlines: Deadlines,
    expired: Vec<SlotId>,
    ended: Vec<Closed>,
    log_batching: LogBatching,
    backoff: Backoff,
    /// When accepting resumes; None while it is not paused.
    accept_again: Option<Ns>,
    /// A listener is not watched, because of a limit or an error.
    any_unwatched: bool,
    /// A listener may have clients in `waiting`.
    any_waiting: bool,
    /// While draining: when the remaining connections are closed.
    drain_until: Option<Ns>,
    order: Vec<usize>,
    /// The size of the engines' copy buffer, in bytes.
    buffer_max: usize,
    scheduling: Scheduling,
    /// Sets SCHED_BATCH for this thread; None if that is not permitted, or another policy was set from outside.
    batch: Option<Batch>,
}

impl Worker {
    pub fn new(parts: Parts, buffer_max: usize) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&parts.wake, u64::from(INBOX), epoll::READABLE)?;
        Ok(Self {
            epoll,
            now: monotonic_ns(),
            listeners: Vec::new(),
            conns: Connections::default(),
            engines: Engines {
                copy: CopyEngine::new(buffer_max),
                splice: SpliceEngine::new(parts.pipes_max),
                uring: UringEngine::default(),
                sockmap: SockmapEngine::new(buffer_max),
            },
            look_again: false,
            done: Vec::new(),
            accepted: Vec::new(),
            ready: Vec::new(),
            batches: Default::default(),
            deadlines: Deadlines::default(),
            expired: Vec::new(),
            ended: Vec::new(),
            log_batching: LogBatching::default(),
            backoff: Backoff::default(),
            accept_again: None,
            any_unwatched: false,
            any_waiting: false,
            drain_until: None,
            order: Vec::new(),
            buffer_max,
            scheduling: Scheduling::default(),
            batch: None,
            parts,
        })
    }

    /// Runs in the calling thread until it was asked to drain and its last connection has ended.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        self.batch = Batch::of_thread();
        loop {
            self.wait(&mut events)?;
            for (token, bits) in events.iter() {
                self.dispatch(token, bits);
            }
            self.take_completed();
            self.run_ready();
            self.run_timers();
            let drained = self.drain_until.is_some() && self.conns.is_empty();
            self.pass_on_ended(drained);
            if drained {
                return Ok(());
            }
        }
    }

    /// Waits for events or the next deadline: in epoll_wait, or in io_uring_enter once a ring is open, which watches epoll.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let mut timeout = self.timeout();
        if self.engines.uring.is_open() {
            // The ring's poll is edge-triggered: epoll is asked until it has no events left.
            let wait = if self.look_again { Duration::ZERO } else { timeout };
            self.engines.uring.completed(Some(wait), &mut self.done)?;
            self.look_again |= self.engines.uring.watched_is_readable();
            timeout = Duration::ZERO;
        }
        if self.look_again || !self.engines.uring.is_open() {
            self.epoll.wait(events, timeout)?;
            self.look_again = !events.is_empty();
        } else {
            events.clear();
        }
        self.now = monotonic_ns();
        Ok(())
    }

    /// Handles the completions of the ring.
    fn take_completed(&mut self) {
        if !self.engines.uring.is_open() {
            return;
        }
        let mut done = std::mem::take(&mut self.done);
        for one in done.drain(..) {
            self.after_done(EngineKind::Uring, &one);
        }
        self.done = done;
        let mut accepted = std::mem::take(&mut self.accepted);
        self.engines.uring.accepted(&mut accepted);
        let mut unwatched: Vec<usize> = accepted.iter().map(|one| one.listener as usize).collect();
        for one in accepted.drain(..) {
            self.take_accepted(one);
        }
        self.accepted = accepted;
        if self.any_waiting {
            for index in 0..self.listeners.len() {
                if !self.listeners[index].waiting.is_empty() {
                    unwatched.push(index);
                }
                // Also at the limit: only a thread that has asked is woken when a connection ends.
                while !self.listeners[index].waiting.is_empty() && self.accept(index) {}
            }
            self.any_waiting = self.listeners.iter().any(|l| !l.waiting.is_empty());
        }
        unwatched.into_iter().for_each(|index| self.accept_next(index));
    }

    /// Opens the ring and the sockmap if a listener uses them. Where that fails, directions are copied and counted as fallbacks.
    fn open_engines(&mut self) {
        let wanted = |engine: EngineChoice| self.listeners.iter().any(|l| l.service.config.engine == engine);
        let (ring, sockmap) = (wanted(EngineChoice::Uring), wanted(EngineChoice::Sockmap));
        if sockmap {
            self.engines.sockmap.prepare();
        }
        if ring && !self.engines.uring.is_open() && self.engines.uring.open().is_ok() {
            self.engines.uring.watch(self.epoll.as_raw_fd());
            self.look_again = true;
        }
    }

    /// The time until the next deadline.
    fn timeout(&self) -> Duration {
        if !self.ready.is_empty() || self.next_waiting().is_some() {
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
            let (socket, watched, waiting) = match new.socket.take() {
                Some(socket) => (Some(socket), false, VecDeque::new()),
                None => match open.get_mut(&listen).and_then(VecDeque::pop_front) {
                    Some(before) => {
                        self.stop_accepting(before);
                        let before = &mut self.listeners[before];
                        let waiting = std::mem::take(&mut before.waiting);
                        (before.socket.take(), std::mem::take(&mut before.watched), waiting)
                    }
                    None => continue,
                },
            };
            kept.insert(listen);
            let mut listening = Listening::new(new, socket);
            listening.watched = watched;
            listening.waiting.extend(waiting);
            let place = free.pop().unwrap_or(self.listeners.len());
            match self.listeners.get_mut(place) {
                Some(over) => *over = listening,
                None => self.listeners.push(listening),
            }
            self.open_engines();
            self.watch(place, watched);
        }
        for index in 0..old {
            let listening = &self.listeners[index];
            if listening.drain_until.is_none() && !kept.contains(&listening.service.config.listen) {
                self.retire(index, drain_until);
            }
        }
    }

    /// Replaces the copy buffers of engines by larger ones. Held bytes are in the transfers and stay.
    fn grow_buffers(&mut self, wanted: usize) {
        if wanted > self.buffer_max {
            self.buffer_max = wanted;
            self.engines.copy = CopyEngine::new(wanted);
            self.engines.sockmap.grow(wanted);
        }
    }

    /// Accepts what is left in the queue of a removed listener, and closes it.
    fn retire(&mut self, index: usize, drain_until: Ns) {
        self.stop_accepting(index);
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
        if self.listeners[index].service.config.engine == EngineChoice::Uring && self.engines.uring.is_open() {
            if watched {
                // The ring accepts from now on. An error means that it was not in epoll.
                let _gone = self.epoll.remove(&socket);
                self.listeners[index].watched = false;
            }
            // At a limit the ring accepts no client: it would hold descriptors beyond the limit.
            if !self.listeners[index].waiting.is_empty() || !self.acquire(index) {
                self.any_unwatched = true;
                return;
            }
            self.release(index);
            let listening = &mut self.listeners[index];
            listening.accepting = self.engines.uring.accept(socket.as_raw_fd(), index as u32);
            listening.watched = listening.accepting.is_some();
            return;
        }
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

/// The initial state of a direction: with the configured engine, or with copies and the reason for the fallback.
fn first_transfer(config: &Listener) -> Transfer {
    let asked = match config.engine {
        EngineChoice::Splice => EngineKind::Splice,
        EngineChoice::Uring => EngineKind::Uring,
        EngineChoice::Auto | EngineChoice::Copy | EngineChoice::Sockmap => EngineKind::Copy,
    };
    let arms = matches!(config.engine, EngineChoice::Uring | EngineChoice::Sockmap);
    if arms && config.limits.bandwidth.is_some() {
        return Transfer { fallback: Some(Fallback::Bandwidth), ..Transfer::new(EngineKind::Copy, false) };
    }
    Transfer::new(asked, matches!(config.engine, EngineChoice::Auto | EngineChoice::Sockmap))
}

/// The engine of a direction that began with copies and now streams.
fn streams_with(config: &Listener) -> EngineKind {
    match config.engine {
        EngineChoice::Sockmap => EngineKind::Sockmap,
        _ => EngineKind::Splice,
    }
}
