//! The fields of a worker, and how it begins. The files beside this one implement what it does.
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use parshall_core::relay::Ns;
use parshall_core::relay::backoff::Backoff;
use parshall_core::relay::connection::Rules;
use parshall_core::relay::deadlines::Deadlines;
use parshall_core::relay::direction::Direction;
use parshall_core::relay::log_batching::LogBatching;
use parshall_core::relay::scheduling::Scheduling;
use parshall_core::relay::slots::SlotId;
use parshall_sys::batch::Batch;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::epoll::{self, Epoll};

use super::conn::Connections;
use super::socket_events::INBOX;
use crate::command::{Assigned, Command};
use crate::connection_limit::ConnectionLimit;
use crate::engine::copy::CopyEngine;
use crate::engine::splice::SpliceEngine;
use crate::engine::{Engine, Job};
use crate::record::Closed;
use crate::service::Service;
use crate::stats::{EngineKind, ListenerStats};

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
    pub(super) service: Arc<Service>,
    pub(super) stats: Arc<ListenerStats>,
    /// None once the listener is removed.
    pub(super) socket: Option<Arc<OwnedFd>>,
    /// Whether epoll watches the socket: not while accepting pauses.
    pub(super) watched: bool,
    /// Open connections.
    pub(super) active: u32,
    /// When its connections are closed, once it is removed.
    pub(super) drain_until: Option<Ns>,
}

impl Listening {
    pub(super) fn new(assigned: Assigned, socket: Option<Arc<OwnedFd>>) -> Self {
        let Assigned { service, stats, .. } = assigned;
        Self { active: 0, drain_until: None, watched: false, socket, service, stats }
    }

    /// The part of its configuration that the state machine of a connection needs.
    pub(super) fn rules(&self) -> Rules<'_> {
        let config = &self.service.config;
        Rules { timeouts: &config.timeouts, keepalive: config.sockets.keepalive, drain_until: self.drain_until }
    }
}

pub(super) struct Engines {
    pub(super) copy: CopyEngine,
    pub(super) splice: SpliceEngine,
}

impl Engines {
    pub(super) fn of(&mut self, kind: EngineKind) -> &mut dyn Engine {
        match kind {
            EngineKind::Copy => &mut self.copy,
            EngineKind::Splice => &mut self.splice,
        }
    }
}

pub struct Worker {
    pub(super) epoll: Epoll,
    pub(super) parts: Parts,
    pub(super) now: Ns,
    pub(super) listeners: Vec<Listening>,
    pub(super) conns: Connections,
    pub(super) engines: Engines,
    /// Directions that get a turn in the next run.
    pub(super) ready: Vec<(SlotId, Direction)>,
    pub(super) batches: [Vec<Job>; EngineKind::ALL.len()],
    pub(super) deadlines: Deadlines,
    pub(super) expired: Vec<SlotId>,
    pub(super) ended: Vec<Closed>,
    pub(super) log_batching: LogBatching,
    pub(super) backoff: Backoff,
    /// When accepting resumes; None while it is not paused.
    pub(super) accept_again: Option<Ns>,
    /// A listener is not watched, because of a limit or an error.
    pub(super) any_unwatched: bool,
    /// While draining: when the remaining connections are closed.
    pub(super) drain_until: Option<Ns>,
    pub(super) order: Vec<usize>,
    /// The size of the copy buffer, in bytes.
    pub(super) buffer_max: usize,
    pub(super) scheduling: Scheduling,
    /// Sets SCHED_BATCH for this thread; None if that is not permitted, or another policy was set from outside.
    pub(super) batch: Option<Batch>,
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
            engines: Engines { copy: CopyEngine::new(buffer_max), splice: SpliceEngine::new(parts.pipes_max) },
            ready: Vec::new(),
            batches: Default::default(),
            deadlines: Deadlines::default(),
            expired: Vec::new(),
            ended: Vec::new(),
            log_batching: LogBatching::default(),
            backoff: Backoff::default(),
            accept_again: None,
            any_unwatched: false,
            drain_until: None,
            order: Vec::new(),
            buffer_max,
            scheduling: Scheduling::default(),
            batch: None,
            parts,
        })
    }
}
