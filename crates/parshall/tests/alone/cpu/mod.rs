//! Tests of programs that use a CPU or more: one at a time, each with all CPUs.

mod faults;
mod healthy;
mod hot_thread;
mod relay_seen;
mod run_queue;
mod stripped;
