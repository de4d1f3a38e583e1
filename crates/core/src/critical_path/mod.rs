//! Where the time of a service's requests went: each request is followed backwards from its reply, through whoever ended each
//! wait, to its arrival.
//!
//! [`timeline`] is what was observed, `requests` cuts requests out of it, `walk` finds the critical path of one (for the
//! method see wPerf, OSDI 2018, which does it for all threads of one process), `path` adds many up, and [`services`] puts
//! the whole together.
mod index;
mod path;
mod requests;
mod service;
#[cfg(test)]
mod tests;
pub mod timeline;
mod walk;

pub use service::services;
