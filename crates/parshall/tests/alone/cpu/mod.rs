//! Tests of programs that use a CPU or more, or that are kept from it: one at a time, each with all CPUs.

mod faults;
mod healthy;
mod hot_thread;
mod quota;
mod relay_seen;
mod run_queue;
mod stripped;
mod trial;
