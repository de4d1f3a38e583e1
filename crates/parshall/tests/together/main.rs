//! Suites whose results do not depend on the load of the CPUs: their tests run at the same time.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

#[path = "../common/mod.rs"]
mod common;

mod cli;
mod docket;
mod doctor;
mod documents;
mod judged;
mod lab_clean;
mod lab_experiment;
mod lab_loads;
mod lab_testbed;
mod large_case;
mod recordings;
mod reports;
mod sockets;
mod sockets_delivery;
mod typed;
