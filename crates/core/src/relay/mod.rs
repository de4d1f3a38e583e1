//! The decisions of the relay, which need no socket.
//!
//! They are functions and small state machines: they take an event and the time, and return what to do. The workers in
//! `crates/relay` move the bytes. Times are nanoseconds of a monotonic clock.
//!
//! - [`access`]: who may connect.
//! - [`backoff`]: accepting while descriptors or memory run out, and how many connections fit.
//! - [`balance`]: which target takes a connection, and which get none for a while after failures.
//! - [`bucket`]: limits on a rate (token bucket).
//! - [`checks`]: whether active checks find a target up.
//! - [`config`]: the validated configuration, and the parsers that make it.
//! - [`connection`]: the state machine of a connection, from accept to close.
//! - [`deadlines`]: the timers of all connections of a worker.
//! - [`direction`]: the two peers of a connection and the two directions between them.
//! - [`episode`]: what is logged once however often it happens.
//! - [`local_ports`]: which local ports of UDP sessions can serve another target, too.
//! - [`log_batching`]: when ended connections are passed on to the log.
//! - [`outage`]: when it is reported that a target is down or up again.
//! - [`own_address`]: whether a target is the listener itself.
//! - [`proxy`]: the PROXY protocol.
//! - [`recency`]: sessions in the order of their last use.
//! - [`scheduling`]: the scheduling policy of a worker thread.
//! - [`slots`]: a table whose slots are reused, and ids of its entries that are not.
//! - [`sources`]: limits on the connections of each client.
//! - [`streaming`]: when a direction moves from one engine to another, and how much it reads at once.
//! - [`udp_runs`]: which datagrams are sent in one message (GSO).
//! - [`udp_sessions`]: the sessions of UDP clients, their timeouts and limits.
pub mod access;
pub mod backoff;
pub mod balance;
pub mod bucket;
pub mod checks;
pub mod config;
pub mod connection;
pub mod deadlines;
pub mod direction;
pub mod episode;
pub mod local_ports;
pub mod log_batching;
pub mod outage;
pub mod own_address;
pub mod proxy;
pub mod recency;
pub mod scheduling;
pub mod slots;
pub mod sources;
pub mod streaming;
pub mod udp_runs;
pub mod udp_sessions;

use std::time::Duration;

/// Nanoseconds of a monotonic clock.
pub type Ns = u64;

/// A duration in nanoseconds; one of more than 584 years becomes [`Ns::MAX`].
pub fn ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}
