//! Suites of `parshall tunnel`, in network namespaces.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

mod bed;
#[path = "../common/mod.rs"]
mod common;

mod ends;
mod interop;
mod moves;
mod namespaces;
mod operators;
mod soak;
mod up;
