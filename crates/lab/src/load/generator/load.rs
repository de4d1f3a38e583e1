//! A generated load, to which the flags of each kind are lowered.
use std::time::Duration;

use parshall_core::load::Mode;

use super::super::socket::{Ends, SocketArgs};
use super::bulk::BulkCalls;
use super::packets::Packets;
use super::requests::Requests;

/// A load as the flags describe it.
#[derive(Debug, Clone)]
pub struct Load {
    pub kind: &'static str,
    pub ends: Ends,
    pub socket: SocketArgs,
    /// Threads of this end.
    pub threads: u16,
    /// Time before the measured window.
    pub warm_up: Duration,
    /// The measured window.
    pub time: Duration,
    pub requests: Option<Requests>,
    pub bulk: Option<Bulk>,
    /// The calls of bulk transfers, at this end.
    pub calls: BulkCalls,
    pub packets: Option<Packets>,
}

/// Bulk transfers.
#[derive(Debug, Clone, Copy)]
pub struct Bulk {
    pub connections: u32,
    pub mode: Mode,
}

impl Load {
    pub fn buffers_set(&self) -> bool {
        self.socket.buffers.rcvbuf.is_some() || self.socket.buffers.sndbuf.is_some()
    }

    /// Requests or packets per second of an open loop.
    pub fn offered_per_s(&self) -> Option<f64> {
        let schedule = match (&self.requests, &self.packets) {
            (Some(requests), _) => requests.schedule,
            (None, packets) => packets.as_ref()?.schedule,
        };
        schedule.map(|(_, per_s)| per_s)
    }
}
