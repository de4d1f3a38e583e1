//! What the relay decides: everything about a forwarder that needs no socket.
//!
//! Rules are functions and small state machines that are told what happened and the time, and answer what to do. The
//! workers in the binary's `relay` room move the bytes and ask. Times are nanoseconds of a monotonic clock.
//!
//! - [`config`]: the validated configuration, and the parsers that make it.
//! - [`closing`]: half-close, resets and the reason a connection ended.
//! - [`streaming`]: when a direction moves from one engine to another, and how much it reads at once.
pub mod closing;
pub mod config;
pub mod streaming;

/// Nanoseconds of a monotonic clock.
pub type Ns = u64;
