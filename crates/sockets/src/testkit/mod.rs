//! Test support: sample rows, and programs that read the output of formats and sinks.
pub mod peers;
pub mod samples;
