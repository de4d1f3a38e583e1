//! Black-box tests of the relay: the binary between scripted clients and targets, over loopback.
//!
//! - `net`: clients, targets and streams of known bytes
//! - `bed`: relays as processes, and their state in /proc
//! - `matrix`: runs every case with every engine, and compares the results with docs/relay-conformance.md
//! - `cases`: the test cases, one file per topic
//! - `churn`: a soak test
//! - `proxy_bytes`: PROXY headers
//!
//! Nothing here asserts the speed of the relay. Waits are bounded by [`net::TIMEOUT`], and a case by a watchdog.
#![allow(dead_code, clippy::unwrap_used)] // Each suite uses a part of this; a test fails by a panic.

pub mod bed;
pub mod cases;
pub mod churn;
pub mod matrix;
pub mod net;
pub mod proxy_bytes;
