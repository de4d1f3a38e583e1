//! The state of the main thread, and the events that it waits for.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use parshall_core::relay::config::Config;
use parshall_core::relay::{Ns, ns};
use parshall_sys::clock::monotonic_ns;

use crate::control::Control;
use crate::control::resolve::Resolved;
use crate::control::status::Status;
use crate::log::Log;
use crate::management::{Management, Opened};
use crate::serve::{Prepared, ProcessLimits, Relay};
use crate::service::Service;
use crate::upgrade::Program;

#[derive(Debug)]
pub(super) enum Event {
    Signal(i32),
    WorkerEnded,
    /// The successor is ready (its pid), or why it failed.
    Successor(Result<u32, String>),
    /// The file of a reload was read.
    Read(anyhow::Result<Box<NewConfig>>),
    /// The names of a configuration were looked up.
    Resolved(Resolved),
}

/// The state of the main thread.
pub(super) struct Main {
    pub(super) config: Config,
    pub(super) source: Option<PathBuf>,
    pub(super) program: Program,
    pub(super) threads: usize,
    pub(super) limits: ProcessLimits,
    /// `max-connections` and `max-sessions` at the start.
    pub(super) most: (Option<u32>, Option<u32>),
    pub(super) relay: Relay,
    /// The first configuration, until it is started.
    pub(super) opened: Option<(Prepared, Opened)>,
    pub(super) management: Management,
    pub(super) status: Arc<Status>,
    pub(super) control: Option<Control>,
    pub(super) log: Option<Log>,
    pub(super) events: (Sender<Event>, Receiver<Event>),
    pub(super) reloading: Option<Reloading>,
    /// SIGHUP came during a reload: the file may have changed again.
    pub(super) reload_again: bool,
    /// A successor has been started.
    pub(super) upgrading: bool,
    /// A successor has the listeners.
    pub(super) handed_over: bool,
    pub(super) draining: bool,
    /// Connections that reloads had closed at the drain timeout when draining began.
    pub(super) drained_before: u64,
}

/// A configuration that was read, with its log, metrics and control socket.
#[derive(Debug)]
pub(super) struct NewConfig {
    pub(super) config: Config,
    pub(super) opened: Opened,
}

/// A reload under way.
pub(super) enum Reloading {
    /// The file is being read.
    Reading,
    /// Its names are being resolved.
    Resolving(Box<Ready>),
}

/// A configuration whose listeners are open; the addresses of its names are missing.
pub(super) struct Ready {
    pub(super) config: Config,
    pub(super) opened: Opened,
    pub(super) prepared: Prepared,
    pub(super) services: Vec<Arc<Service>>,
}

/// The end of a time that begins now.
pub(super) fn after(time: Duration) -> Ns {
    monotonic_ns().saturating_add(ns(time))
}
