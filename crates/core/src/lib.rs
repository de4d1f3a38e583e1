//! The decisions of all products as pure functions: no I/O, no clock, no unsafe code. `clippy.toml` names what is disallowed,
//! and the crate builds for wasm32-unknown-unknown.
//!
//! [`judge`], [`observe`], [`critical_path`], [`trial`], [`report`] and [`trace`] decide for the diagnosis, [`relay`] for the relay, [`sockets`] for the
//! collector of sockets, [`experiment`] and [`testbed`] for the lab, `tunnel` (a feature, on by default) for WireGuard. They do
//! not import each other, but for those of the diagnosis. Their common parts are in [`stats`], [`sorting`], [`units`] (values as they are
//! printed), [`values`] and [`networks`] (as they are read) and [`text`].
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod critical_path;
pub mod experiment;
pub mod flame;
pub mod judge;
pub mod load;
pub mod mask;
pub mod networks;
pub mod observe;
pub mod proc_net;
pub mod relay;
pub mod report;
pub mod sock_diag;
pub mod sockets;
pub mod sorting;
pub mod stats;
pub mod testbed;
pub mod text;
pub mod trace;
pub mod trial;
#[cfg(feature = "tunnel")]
pub mod tunnel;
pub mod units;
pub mod values;
pub mod wait;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
