//! `parshall tunnel`: carries packets between a TUN device and WireGuard peers.
//!
//! Everything that is decided is in `parshall_core::tunnel`. A tunnel is two processes: the one that was started sets the interface
//! up and undoes everything at the end ([`up`], [`interface`], [`undo`]) and says what it was ([`summary`]); the one that moves packets ([`child`]) has the sockets, what loops
//! do with packets ([`data_path`], [`worker`]), the loops ([`syscall`], [`threads`], [`uring`]) with what they have read ([`frames`]), the thread that `wg` talks to ([`control`]), the one that watches routes ([`route_watch`]), and no privileges but
//! CAP_NET_ADMIN and CAP_NET_BIND_SERVICE.
#![forbid(unsafe_code)]
// Not a library for others: a doc comment stands where it says more than the name.
#![allow(missing_docs)]

mod child;
pub mod cli;
pub mod control;
pub mod counters;
pub mod counts;
mod daemon;
pub mod data_path;
pub mod engine;
mod frames;
mod gso_sender;
mod hand_over;
mod hook;
mod interface;
mod ip;
mod names;
mod nft;
mod own_user;
mod ready;
mod receive_queue;
pub mod request;
mod route_watch;
mod rp_filter;
mod show;
mod sockets;
mod state;
pub mod summary;
mod syscall;
pub mod system_random;
mod threads;
mod undo;
mod up;
pub mod uring;
pub mod worker;

use std::process::ExitCode;

use request::TunnelRequest;

/// `parshall tunnel`.
pub fn tunnel(request: &TunnelRequest) -> anyhow::Result<ExitCode> {
    match request {
        TunnelRequest::Up(request) => up::up(request),
        TunnelRequest::Down(interface) => state::end(interface).map(|()| ExitCode::SUCCESS),
        TunnelRequest::Show(request) => show::show(request),
        TunnelRequest::Work(request) => child::run(request),
    }
}
