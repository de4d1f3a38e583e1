//! The record of an ended connection, which becomes a line of the log.
use std::net::SocketAddr;
use std::sync::Arc;

use parshall_core::relay::Ns;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::PerDirection;
use parshall_sys::stream_socket::StreamAddr;

use super::service::Service;
use super::stats::Fallback;

#[derive(Debug, Clone)]
pub struct Closed {
    /// The listener that accepted it.
    pub service: Arc<Service>,
    /// None for Unix sockets.
    pub client: Option<SocketAddr>,
    /// The target's index in the listener's configuration; None if none was connected.
    pub target: Option<usize>,
    /// The address that was connected to.
    pub address: Option<StreamAddr>,
    /// From accept to close.
    pub duration_ns: Ns,
    pub transferred: PerDirection<Transferred>,
    pub reason: CloseReason,
}

/// The bytes of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transferred {
    /// Bytes delivered.
    pub bytes: u64,
    /// The engines that moved them: a bit for each of `EngineKind::ALL`.
    pub engines: u8,
    /// Why the configured engine was not used.
    pub fallback: Option<Fallback>,
}
