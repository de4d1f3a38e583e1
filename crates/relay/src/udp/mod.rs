//! UDP: each client has a session with a socket of its own to a target. Answers leave from the address to which the client
//! has sent.
//!
//! One worker per thread serves all UDP listeners. Each has its own socket of every listener (SO_REUSEPORT), several after an
//! upgrade to fewer threads, and the kernel sends the datagrams of a client always to the same one, so that threads share
//! nothing in the data path.
//!
//! - [`plan`]: the listeners of a worker, with the interfaces for choosing targets and admitting clients.
//! - [`sockets`]: listening sockets and sockets to targets.
//! - [`stop`]: orders to a worker.
//! - [`worker`]: the event loop, and the beginning and end of sessions.
//! - `up`, `down`: forwarding to targets and to clients. `groups`: a batch by session. `sender`: sending a batch.
mod down;
mod groups;
pub mod plan;
mod sender;
pub mod sockets;
pub mod stop;
#[cfg(test)]
mod tests;
mod up;
pub mod worker;

use std::io;
use std::sync::Arc;

use stop::Stop;
use worker::{UdpPlan, UdpWorker};

/// Runs a worker in the calling thread until it was asked to stop and has drained.
pub fn run(plan: UdpPlan, stop: Arc<Stop>) -> io::Result<()> {
    UdpWorker::new(plan, stop)?.run()
}
