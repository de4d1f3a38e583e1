//! `parshall tunnel`: carries packets between a TUN device and WireGuard peers.
//!
//! Everything that is decided is in `parshall_core::tunnel`; this crate has the command ([`up`]), the device with its addresses
//! and routes ([`interface`]), the sockets, what loops do with packets ([`worker`]), the loop ([`plain`]), and the thread that
//! `wg` talks to ([`control`]).
#![forbid(unsafe_code)]
// Not a library for others: a doc comment stands where it says more than the name.
#![allow(missing_docs)]

pub mod cli;
pub mod control;
pub mod counters;
pub mod counts;
mod interface;
pub mod plain;
pub mod request;
mod sockets;
pub mod system_random;
mod trains;
mod up;
pub mod worker;

use std::process::ExitCode;

use request::TunnelRequest;

/// `parshall tunnel`.
pub fn tunnel(request: &TunnelRequest) -> anyhow::Result<ExitCode> {
    match request {
        TunnelRequest::Up(request) => up::up(request),
    }
}
