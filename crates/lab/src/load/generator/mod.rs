//! Generators of load: requests in closed and open loops, bulk transfers, packets, with one server for all of them.
//!
//! `args` declares the kinds; each is lowered to a [`Load`]. `client` and `server` are the two ends, `requests`, `bulk` and `packets`
//! what they do, `phase` counts it. What decides is [`parshall_core::load`].
mod args;
mod bulk;
mod client;
mod packets;
mod pair;
mod phase;
mod requests;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parshall_core::load::Mode;

pub use args::Kind;

use super::socket::{Ends, SocketArgs};
use super::{Clock, Outcome, print_ready};
use bulk::BulkCalls;
use packets::Packets;
use requests::Requests;

/// What a generator does.
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
    fn buffers_set(&self) -> bool {
        self.socket.buffers.rcvbuf.is_some() || self.socket.buffers.sndbuf.is_some()
    }

    /// Requests or packets per second of an open loop.
    fn offered_per_s(&self) -> Option<f64> {
        let schedule = match (&self.requests, &self.packets) {
            (Some(requests), _) => requests.schedule,
            (None, packets) => packets.as_ref()?.schedule,
        };
        schedule.map(|(_, per_s)| per_s)
    }
}

/// Runs the ends that the load selects. Both ends are two processes: each has its own CPU time.
pub fn run(load: &Load, clock: &Clock) -> anyhow::Result<Outcome> {
    if let Some(target) = load.ends.connect {
        return client::run(load, "connect", target, clock);
    }
    if let Some(address) = load.ends.serve {
        return serve(load, address, clock);
    }
    let server = pair::Server::start(load)?;
    client::run(load, "both", server.address(), clock)
}

fn serve(load: &Load, address: SocketAddr, clock: &Clock) -> anyhow::Result<Outcome> {
    let counters = Arc::default();
    let address = server::start(address, load.threads, &load.socket, load.calls, clock, &counters)?;
    print_ready(load.kind, "serve", Some(address.port()));
    clock.sleep_until_over(|| false);
    let counts = counters.read();
    let bytes = counts.received + counts.sent;
    Ok(Outcome::new(load.kind, "serve", Some(address.port()), clock, counts.operations, bytes))
}
