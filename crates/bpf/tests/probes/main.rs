//! The probes of the diagnosis on a real kernel. Needs root.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

mod probed;

mod closing;
mod drops;
mod events;
mod frames;
mod interpreters;
mod load;
mod log;
mod timeline;
mod uring;
mod windows;
