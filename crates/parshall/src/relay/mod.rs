//! `parshall relay`: forwards TCP and UDP.
//!
//! What is decided is decided in `parshall_core::relay`; here are the sockets, the threads and the engines.
pub mod directory;
pub mod stats;
