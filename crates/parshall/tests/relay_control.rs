//! The relay's control plane: reloads, drains, upgrades, logs, metrics, names and checks, with processes and loopback
//! sockets. The forwarding of bytes is tested in `relay_conformance`.
#![allow(clippy::unwrap_used)] // A test fails by a panic.

mod common;

#[path = "relay_control/kit.rs"]
mod kit;

#[path = "relay_control/connection_limit.rs"]
mod connection_limit;
#[path = "relay_control/drain.rs"]
mod drain;
#[path = "relay_control/log.rs"]
mod log;
#[path = "relay_control/metrics.rs"]
mod metrics;
#[path = "relay_control/names.rs"]
mod names;
#[path = "relay_control/reload.rs"]
mod reload;
#[path = "relay_control/scheduling.rs"]
mod scheduling;
#[path = "relay_control/targets.rs"]
mod targets;
#[path = "relay_control/top.rs"]
mod top;
#[path = "relay_control/udp.rs"]
mod udp;
#[path = "relay_control/upgrade.rs"]
mod upgrade;
