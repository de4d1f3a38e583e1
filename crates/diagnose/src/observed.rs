//! The subject as the objects beside the probes of a rung take it.
use parshall_bpf::diagnose::Observed;

use crate::subject::{Resolved, Select};

/// Its processes.
pub fn observed(resolved: &Resolved) -> Observed {
    Observed {
        pids: resolved.processes.iter().map(|process| process.pid).collect(),
        all: matches!(resolved.select, Select::All),
    }
}
