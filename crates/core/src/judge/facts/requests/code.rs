//! What processes ran while they were on a CPU, from the samples: user mode, the kernel, and what in the kernel.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, CpuSample};

use crate::stats::ratio;

/// Fewer samples say nothing of a process.
const SAMPLES_MIN: f64 = 20.0;

/// Kernel functions of page faults, of mapping and of unmapping (mm/memory.c, mm/mmap.c).
const FAULTS: [&str; 10] = [
    "handle_mm_fault",
    "do_user_addr_fault",
    "do_anonymous_page",
    "asm_exc_page_fault",
    "exc_page_fault",
    "clear_page",
    "unmap_vmas",
    "zap_pte_range",
    "unmap_page_range",
    "__mmap",
];

/// Kernel functions of memory reclaim (mm/vmscan.c, mm/memcontrol.c).
const RECLAIM: [&str; 4] = ["shrink_", "try_to_free_", "do_try_to_free_pages", "mem_cgroup_handle_over_high"];

/// Samples by process.
#[derive(Debug, Default)]
pub struct Code {
    by_pid: BTreeMap<u32, Counts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    all: f64,
    kernel: f64,
    faults: f64,
    reclaim: f64,
}

impl Code {
    /// Counts the samples of a capture.
    pub fn new(capture: &Capture) -> Code {
        let pids: BTreeMap<u32, u32> = capture.threads.iter().map(|t| (t.tid, t.pid)).collect();
        let mut code = Code::default();
        for sample in &capture.samples {
            let Some(pid) = pids.get(&sample.tid) else { continue };
            let counts = code.by_pid.entry(*pid).or_default();
            let n = sample.count as f64;
            counts.all += n;
            counts.kernel += if sample.user { 0.0 } else { n };
            counts.faults += if is_in(capture, sample, &FAULTS) { n } else { 0.0 };
            counts.reclaim += if is_in(capture, sample, &RECLAIM) { n } else { 0.0 };
        }
        // Samples whose stacks were not kept are counted in the threads.
        for thread in &capture.threads {
            let n = thread.samples_user.saturating_add(thread.samples_kernel) as f64;
            let counts = code.by_pid.entry(thread.pid).or_default();
            if counts.all < SAMPLES_MIN && n >= SAMPLES_MIN {
                *counts = Counts { all: n, kernel: thread.samples_kernel as f64, ..*counts };
            }
        }
        code
    }

    /// Share of a process' CPU time in the kernel; None when there are too few samples.
    pub fn kernel_share(&self, pid: u32) -> Option<f64> {
        self.counts(pid).map(|c| ratio(c.kernel, c.all))
    }

    /// Share of a process' CPU time in page faults, mapping and unmapping.
    pub fn faults_share(&self, pid: u32) -> f64 {
        self.counts(pid).map_or(0.0, |c| ratio(c.faults, c.all))
    }

    /// Share of a process' CPU time in memory reclaim.
    pub fn reclaim_share(&self, pid: u32) -> f64 {
        self.counts(pid).map_or(0.0, |c| ratio(c.reclaim, c.all))
    }

    fn counts(&self, pid: u32) -> Option<Counts> {
        self.by_pid.get(&pid).copied().filter(|c| c.all >= SAMPLES_MIN)
    }
}

fn is_in(capture: &Capture, sample: &CpuSample, functions: &[&str]) -> bool {
    let stack = sample.stack.and_then(|i| capture.stacks.get(i as usize));
    let frames = stack.iter().flat_map(|s| &s.frames).filter(|f| f.kernel);
    frames.into_iter().any(|f| functions.iter().any(|name| f.name.starts_with(name)))
}
