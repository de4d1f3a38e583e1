//! The CPUs that the threads may use.
use parshall_core::values::{cpus, cpus_text};

use super::definition::{Change, Kind, On};
use crate::trial::place::ThreadSetting;

pub const KIND: Kind = Kind {
    name: "affinity",
    value: "CPUS",
    help: "confine the threads to these CPUs: 0-3,8",
    make: |value| {
        let list = cpus_text(&cpus(value)?);
        Ok(Change::new(
            format!("affinity={list}"),
            format!("CPUs={list}"),
            On::Threads(ThreadSetting::Affinity),
            list.clone(),
            format!("Start the service with `taskset -c {list}`, or set CPUAffinity={list} in its systemd unit."),
        ))
    },
};
