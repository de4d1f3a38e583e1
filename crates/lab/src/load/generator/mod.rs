//! Generators of load: requests in closed and open loops, bulk transfers, packets, with one server for all of them.
//!
//! `args` declares the kinds; each is lowered to a [`Load`] (`load`). `client` and `server` are the two ends, `requests`, `bulk` and `packets`
//! what they do, `phase` counts it, and `report` has what the server reports. The decisions are [`parshall_core::load`]'s.
mod args;
pub mod bulk;
mod client;
mod load;
mod packets;
mod pair;
pub mod phase;
mod report;
pub mod requests;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

use super::common::{Clock, print_ready};
use super::outcome::Outcome;
pub use args::Kind;
use load::Load;

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
