//! Commands from the main thread to a worker.
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use parshall_core::relay::Ns;

use super::service::Service;
use super::stats::ListenerStats;

#[derive(Debug)]
pub enum Command {
    /// Replaces the listeners. Connections of removed ones may finish until `drain_until`.
    Apply {
        listeners: Vec<Assigned>,
        drain_until: Ns,
        /// Dropped once the listeners are in force; nothing is sent.
        applied: Sender<Infallible>,
    },
    /// Accepts no more connections, and ends with the last one.
    Drain {
        /// When the remaining connections are closed.
        until: Ns,
    },
}

/// A listener for a worker.
#[derive(Debug)]
pub struct Assigned {
    pub service: Arc<Service>,
    /// This worker's counters for it.
    pub stats: Arc<ListenerStats>,
    /// Its socket; None to keep the one that the worker has on the same address.
    pub socket: Option<Arc<OwnedFd>>,
}
