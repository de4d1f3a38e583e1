//! The relay seen from outside: the real binary between scripted clients and targets, over loopback.
//!
//! - `net`: streams whose every byte is known, and what may happen to a socket
//! - `bed`: a relay as a process, and what /proc says of it
//! - `matrix`: every case against every engine, and the table in the documents
//! - `cases`: the behaviours, a file per topic
//! - `churn`: a soak
//!
//! Nothing here asserts how fast the relay is. Waits are bounded by [`net::PATIENCE`], and a case by a watchdog.
#![allow(dead_code, clippy::unwrap_used)] // Each suite uses its part; a panic in a test is its report.

pub mod bed;
pub mod cases;
pub mod churn;
pub mod matrix;
pub mod net;
pub mod proxy_bytes;
