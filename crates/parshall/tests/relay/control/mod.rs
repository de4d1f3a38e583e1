//! The relay's control plane: reloads, drains, upgrades, logs, metrics, names and checks, with processes and loopback
//! sockets. The forwarding of bytes is tested in `conformance`.

mod kit;

mod connection_limit;
mod drain;
mod log;
mod metrics;
mod names;
mod reload;
mod scheduling;
mod targets;
mod top;
mod udp;
mod upgrade;
