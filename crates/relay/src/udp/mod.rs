//! The UDP path: datagrams of each client go through a socket of their own to a target, and the answers come back from
//! the address that the client wrote to.
//!
//! One worker per thread serves all UDP listeners; each thread has its own socket of every listener (SO_REUSEPORT), and the
//! kernel sends a client always to the same one. Nothing is shared between threads in the data path.
//!
//! - [`plan`]: what a worker is given, and the seams for choosing targets and admitting clients.
//! - [`sockets`]: listening sockets and sockets to targets.
//! - [`stop`]: how a worker is told to drain or end.
//! - [`worker`]: the loop, and the beginning and end of sessions.
//! - `up`, `down`, `sender`: the way of datagrams to targets, back, and out.
mod down;
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

use plan::UdpPlan;
use stop::Stop;
use worker::UdpWorker;

/// Serves the listeners of a plan in the calling thread until it is told to stop and has drained.
pub fn run(plan: UdpPlan, stop: Arc<Stop>) -> io::Result<()> {
    UdpWorker::new(plan, stop)?.run()
}
