//! The processor's counters over the window, where the host has them. No verdict needs them.
use parshall_evidence::HardwareCounts;
use parshall_sys::counters::{BRANCH_MISSES, CACHE_MISSES, CYCLES, Counter, INSTRUCTIONS};

use super::subject::Resolved;

/// Threads that are counted; each takes four descriptors.
const THREADS_MAX: usize = 512;

/// The running counters.
pub struct Hardware {
    cycles: Counter,
    instructions: Counter,
    cache_misses: Counter,
    branch_misses: Counter,
}

impl Hardware {
    /// Starts to count for the subject's threads; None where the processor's counters are not available.
    pub fn start(resolved: &Resolved) -> Option<Self> {
        let open = |event| {
            let threads = resolved.processes.iter().flat_map(|p| p.threads.iter().copied());
            Counter::open(event, threads.take(THREADS_MAX)).ok()
        };
        Some(Self {
            cycles: open(CYCLES)?,
            instructions: open(INSTRUCTIONS)?,
            cache_misses: open(CACHE_MISSES)?,
            branch_misses: open(BRANCH_MISSES)?,
        })
    }

    /// The counters' values.
    pub fn finish(mut self) -> HardwareCounts {
        HardwareCounts {
            cycles: self.cycles.read(),
            instructions: self.instructions.read(),
            cache_misses: self.cache_misses.read(),
            branch_misses: self.branch_misses.read(),
        }
    }
}
