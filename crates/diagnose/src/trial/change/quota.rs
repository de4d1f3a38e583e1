//! The CPU quota of the control group that limits the processes.
use parshall_host::error::UserError;

use super::definition::{Change, Kind, On};
use crate::trial::place::NO_LIMIT;

/// The kernel refuses quotas below 1 ms; with the usual period that is a hundredth of a CPU.
const CPUS_MIN: f64 = 0.01;
const CPUS_MAX: f64 = 100_000.0;

pub const KIND: Kind = Kind {
    name: "quota",
    value: "CPUS|max",
    help: "CPU quota of the control group that limits the processes: 1.5, or max for none",
    make: |value| {
        if value == NO_LIMIT {
            let keep = "Remove the group's quota: CPUQuota= in a systemd unit, the CPU limit of a container.";
            return Ok(Change::new("quota=max".to_owned(), "CPU quota=max", On::Group, value, keep));
        }
        let Some(cpus) = value.parse::<f64>().ok().filter(|cpus| (CPUS_MIN..=CPUS_MAX).contains(cpus)) else {
            return Err(UserError::new(format!("`{value}` is not a CPU quota"), "write CPUs, as in 0.5 or 2, or max"));
        };
        let keep =
            format!("Set the quota: CPUQuota={:.0}% in a systemd unit, the CPU limit of a container.", cpus * 100.0);
        Ok(Change::new(format!("quota={cpus}"), format!("CPU quota={cpus}"), On::Group, cpus.to_string(), keep))
    },
};
