//! Where the time of a service's requests went: each request is followed backwards from its reply, through whoever ended each
//! wait, to its arrival.
//!
//! The evidence is a [`parshall_evidence::Timeline`]. `requests` cuts requests out of it, `walk` finds the critical path of one (for
//! the method see wPerf, OSDI 2018, which does it for all threads of one process), `path` adds many up, and [`services`] puts
//! the whole together. [`reduced`] is the part of a timeline that the same services can be found in.
mod connection;
mod index;
mod latency;
mod messages;
mod overlap;
mod pairing;
mod path;
mod reduce;
mod requests;
mod service;
#[cfg(test)]
mod sliced;
#[cfg(test)]
mod tests;
mod walk;

pub use reduce::{clipped, reduced};
pub use service::services;
