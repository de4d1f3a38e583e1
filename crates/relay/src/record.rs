//! What is known of a connection once it has ended: one of these becomes a line of the log.
use std::net::SocketAddr;
use std::sync::Arc;

use parshall_core::relay::Ns;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::PerDirection;
use parshall_sys::stream_socket::StreamAddr;

use super::service::Service;
use super::stats::Fallback;

/// A connection that has ended.
#[derive(Debug, Clone)]
pub struct Closed {
    /// The listener it came through.
    pub service: Arc<Service>,
    /// Who connected; None for Unix sockets.
    pub client: Option<SocketAddr>,
    /// The target's place in the listener's list; None when none was reached.
    pub target: Option<usize>,
    /// The address that was connected to.
    pub address: Option<StreamAddr>,
    /// From accept to the end.
    pub duration_ns: Ns,
    /// What was moved in each direction.
    pub transferred: PerDirection<Transferred>,
    /// Why it ended.
    pub reason: CloseReason,
}

/// What was moved in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transferred {
    /// Bytes delivered.
    pub bytes: u64,
    /// Engines that moved them, a bit each by `EngineKind::ALL`.
    pub engines: u8,
    /// Why the engine that was asked for was not used.
    pub fallback: Option<Fallback>,
}
