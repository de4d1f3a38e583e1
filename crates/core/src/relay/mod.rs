//! What the relay decides: everything about a forwarder that needs no socket.
//!
//! Rules are functions and small state machines that are passed what happened and the time, and return what to do. The
//! workers in `crates/relay` move the bytes. Times are nanoseconds of a monotonic clock.
//!
//! - [`access`]: who may connect.
//! - [`backoff`]: accepting while descriptors or memory run out, and how many connections fit.
//! - [`balance`]: which target takes a connection, and which are left alone after failures.
//! - [`bucket`]: limits on a rate.
//! - [`checks`]: whether active checks find a target up.
//! - [`config`]: the validated configuration, and the parsers that make it.
//! - [`connection`]: a connection's life from accept to close.
//! - [`deadlines`]: timers of very many connections.
//! - [`direction`]: the two peers of a connection and the two directions between them.
//! - [`gathering`]: when ended connections are handed over to the log.
//! - [`outage`]: when it is reported that a target is down or up again.
//! - [`proxy`]: the PROXY protocol.
//! - [`scheduling`]: the scheduling policy of a worker thread.
//! - [`slots`]: a table whose slots are reused, and names for its entries that are not.
//! - [`sources`]: limits on each client.
//! - [`streaming`]: when a direction moves from one engine to another, and how much it reads at once.
//! - [`udp_runs`]: which datagrams leave in one message.
//! - [`udp_sessions`]: whose datagrams belong together, for how long, and who may have a session.
pub mod access;
pub mod backoff;
pub mod balance;
pub mod bucket;
pub mod checks;
pub mod config;
pub mod connection;
pub mod deadlines;
pub mod direction;
pub mod gathering;
pub mod outage;
pub mod proxy;
pub mod scheduling;
pub mod slots;
pub mod sources;
pub mod streaming;
pub mod udp_runs;
pub mod udp_sessions;

use std::time::Duration;

/// Nanoseconds of a monotonic clock.
pub type Ns = u64;

/// A length of time; what does not fit is for ever.
pub fn ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}
