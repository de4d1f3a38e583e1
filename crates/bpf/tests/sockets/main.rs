//! The BPF programs of the socket collector on a real kernel. Needs root.
#![allow(unsafe_code, clippy::unwrap_used)] // System calls of tests; a panic in a test is its report.

mod common;
mod unused_port;

mod closes;
mod owners;
mod walk;
