//! A listener that is open: its service, its sockets in all workers and its counters.
use std::sync::Arc;

use parshall_core::relay::config::Protocol;

use super::open::Sockets;
use super::service::Service;
use super::stats::ListenerStats;

#[derive(Debug, Clone)]
pub struct RunningListener {
    pub service: Arc<Service>,
    /// The counters of each worker.
    pub stats: Vec<Arc<ListenerStats>>,
    /// The address it listens on, with the port that the kernel chose.
    pub bound: String,
    /// The workers' sockets, by worker. A successor gets them.
    pub sockets: Arc<Sockets>,
}

impl RunningListener {
    /// Whether it accepts connections; otherwise it receives datagrams.
    pub fn is_tcp(&self) -> bool {
        self.service.config.protocol == Protocol::Tcp
    }
}
