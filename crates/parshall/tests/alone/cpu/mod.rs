//! Tests of programs that use a CPU or more, or that are kept from it, and of those that must be observed without a break: one at a time, each
//! with all CPUs.

mod faults;
mod healthy;
mod hot_thread;
mod interim;
mod quota;
mod relay_seen;
mod run_queue;
mod stripped;
mod trial;
