//! Suites that observe programs, when no other suite runs. Those of `cpu` need the CPUs to themselves: `scripts/suites` runs them one
//! at a time after the others.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

#[path = "../common/mod.rs"]
mod common;

mod asked;
mod attach;
mod attach_children;
mod attach_port;
mod containers;
mod cpu;
mod follow;
mod hang;
mod hard_places;
mod run;
mod short_connections;
mod tracepoint_rung;
mod trial;
