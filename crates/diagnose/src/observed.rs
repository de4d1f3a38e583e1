//! The subject as the objects beside the probes of a rung take it, and the names of what they saw.
use std::collections::HashMap;

use parshall_bpf::diagnose::Observed;
use parshall_host::proc_fs;

use crate::subject::{Resolved, Select};

/// Its processes.
pub fn observed(resolved: &Resolved) -> Observed {
    Observed {
        pids: resolved.processes.iter().map(|process| process.pid).collect(),
        all: matches!(resolved.select, Select::All),
    }
}

/// Names of processes and threads, each read once. One that has ended has none.
#[derive(Default)]
pub struct Names(HashMap<u32, String>);

impl Names {
    /// That of one.
    pub fn of(&mut self, id: u32) -> String {
        self.0.entry(id).or_insert_with(|| proc_fs::comm(id).unwrap_or_default()).clone()
    }
}
