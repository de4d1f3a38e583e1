//! The account of the time of a service's requests: each request is followed backwards from its reply, through whoever ended each
//! wait, to its arrival.
//!
//! The evidence is a [`parshall_evidence::Timeline`]. `requests` cuts requests out of it, `walk` finds the critical path of one (for
//! the method see wPerf, OSDI 2018, which does it for all threads of one process), `path` adds many up, and [`services`] puts
//! the whole together. [`clients`] finds what clients wait for beside that. [`reduced`] is the part of a timeline that the same services
//! can be found in.
mod ahead;
mod answered;
#[cfg(test)]
mod asked;
mod attempts;
mod awaited;
mod bringers;
pub mod clients;
mod computed;
mod connection;
mod heartbeat;
mod held;
mod held_part;
mod helpers;
mod index;
mod intervals;
#[cfg(test)]
mod jobs;
mod kept;
mod latency;
mod limit;
mod local_queue;
mod messages;
mod news;
mod one_way;
mod overlap;
mod paced;
mod pairing;
mod parts;
mod path;
mod pieces;
mod places;
mod polls;
mod reduce;
mod requests;
#[cfg(test)]
mod rest;
mod service;
mod shared;
#[cfg(test)]
mod sliced;
mod step;
mod tail;
#[cfg(test)]
mod tests;
mod turn;
mod until_closed;
mod walk;

pub use connection::Request;
pub use heartbeat::{may_be_beats, may_be_signs};
pub use helpers::waits_for_helper;
pub use index::Index;
pub use news::may_be_news;
pub use reduce::{clipped, reduced};
pub use requests::is_owed_nothing;
pub use service::{requests_by_connection, services};

use parshall_evidence::Service;

/// The services of a timeline, and what observed clients waited for outside of requests.
pub fn all(index: &Index<'_>) -> (Vec<Service>, Vec<clients::ClientWait>) {
    (service::found(index), clients::found(index))
}
