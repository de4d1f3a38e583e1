//! Orders of the main thread to a worker.
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use parshall_core::relay::Ns;

use super::service::Service;
use super::stats::ListenerStats;

/// An order to a worker.
#[derive(Debug)]
pub enum Command {
    /// These are the listeners from now on. Connections of others finish by themselves, until the time given.
    Apply {
        /// All listeners.
        listeners: Vec<Assigned>,
        /// When connections of removed listeners are cut.
        drain_until: Ns,
        /// Dropped once they are: nothing is ever sent.
        applied: Sender<Infallible>,
    },
    /// Accept no more, and end when the last connection has, or at this time.
    Drain {
        /// When what is left is cut.
        until: Ns,
    },
}

/// A listener given to a worker.
#[derive(Debug)]
pub struct Assigned {
    /// What it is.
    pub service: Arc<Service>,
    /// This worker's counters for it.
    pub stats: Arc<ListenerStats>,
    /// Its socket; None keeps the one that the worker has on the same address.
    pub socket: Option<OwnedFd>,
}
