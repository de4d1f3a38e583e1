//! Code that several products share: reading processes, control groups, symbols and files of a Linux host; and errors with a
//! hint, the terminal and the metrics endpoint.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// Tests read files of their own.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod bounded_file;
pub mod cgroup;
pub mod control_client;
pub mod control_socket;
pub mod cpus;
pub mod diag_module;
pub mod end_signals;
pub mod error;
pub mod flags;
pub mod foreign_file;
#[cfg(feature = "http")]
pub mod http;
pub mod left_out;
pub mod live_screen;
pub mod lockdown;
pub mod log;
mod log_writer;
pub mod mountinfo;
pub mod netns;
#[cfg(feature = "http")]
pub mod open_metrics;
pub mod output;
pub mod own_directory;
pub mod private_file;
pub mod proc_fs;
pub mod proc_net;
pub mod process;
pub mod sock_diag_dump;
pub mod symbols;
pub mod tcp_diag;
pub mod timed_worker;
pub mod unix_diag;
pub mod utc;
