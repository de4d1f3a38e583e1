//! Black-box tests of the relay: the binary between scripted clients and targets, over loopback or in network namespaces.
//!
//! - `net`: clients, targets and streams of known bytes
//! - `bed`: relays as processes, and their state in /proc
//! - `matrix`: runs the cases with every engine, and compares the results with docs/relay-conformance.md
//! - `cases`: the test cases, one file per topic
//! - `churn`: connections that end in every way
//! - `proxy_bytes`: PROXY headers
//!
//! Nothing here asserts the speed of the relay. Waits are bounded by [`net::TIMEOUT`], and a case by a watchdog.
#![allow(dead_code, clippy::unwrap_used)] // Each suite uses a part of this; a test fails by a panic.

mod bed;
mod cases;
mod churn;
#[path = "../common/mod.rs"]
mod common;
mod matrix;
mod net;
mod proxy_bytes;

mod conformance;
mod control;
mod network;
mod soak;
