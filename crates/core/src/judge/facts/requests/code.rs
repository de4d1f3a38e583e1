//! The code that processes ran while they were on a CPU, from the samples: user mode, the kernel, and its parts.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::{Capture, Stack};

use super::crypto::Crypto;
use super::hot::Hot;
use super::memory::is_thrashing;
use crate::judge::known_names::COLLECTING;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

/// Fewer samples say nothing of a process.
const SAMPLES_MIN: f64 = 20.0;

/// Kernel functions of page faults (mm/memory.c, and arch/x86/mm/fault.c and arch/arm64/mm/fault.c), of mapping and of unmapping (mm/mmap.c).
const FAULTS: [&str; 13] = [
    "handle_mm_fault",
    "do_user_addr_fault",
    "do_anonymous_page",
    "asm_exc_page_fault",
    "exc_page_fault",
    "do_page_fault",
    "do_translation_fault",
    "do_mem_abort",
    "clear_page",
    "unmap_vmas",
    "zap_pte_range",
    "unmap_page_range",
    "__mmap",
];

/// Kernel functions of memory reclaim (mm/vmscan.c, mm/memcontrol.c).
const RECLAIM: [&str; 4] = ["shrink_", "try_to_free_", "do_try_to_free_pages", "mem_cgroup_handle_over_high"];

/// The least that one read brings back, and the longest that it takes on a disk that has to move its heads.
const PAGE_BYTES: u64 = 4096;
const PAGE_READ_MAX_NS: u64 = 10_000_000;
/// The CPU time that a fault takes at most which reads a page.
const FAULT_READ_MAX_NS: f64 = 100_000.0;

/// Samples, CPU time and names of processes and threads, for all services.
#[derive(Debug, Default)]
pub struct Code<'a> {
    by_pid: BTreeMap<u32, Counts>,
    cpu_ns: BTreeMap<u32, f64>,
    names: BTreeSet<&'a str>,
    /// Bytes that were read back, by process.
    read_back: BTreeMap<u32, u64>,
    /// Samples in cryptographic libraries.
    pub crypto: Crypto,
    /// Threads that are never idle.
    pub hot: Hot<'a>,
    /// Connections that have an account of their own: the process that has one, and the other end.
    pub accounts: BTreeSet<(u32, SocketAddr)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    all: f64,
    kernel: f64,
    faults: f64,
    reclaim: f64,
    collects: f64,
}

impl<'a> Code<'a> {
    /// Counts what a capture has.
    pub fn new(capture: &'a Capture) -> Code<'a> {
        let pids: BTreeMap<u32, u32> = capture.threads.iter().map(|t| (t.tid, t.pid)).into_map();
        let names = capture.threads.iter().map(|t| &t.comm).chain(&capture.subject.comms).map(String::as_str);
        let groups = capture.counters.iter().flat_map(|c| &c.memory).filter(|group| is_thrashing(group));
        let mut code = Code {
            names: names.into_set(),
            read_back: groups.flat_map(|g| g.pids.iter().map(|pid| (*pid, g.refaulted_bytes))).into_map(),
            crypto: Crypto::new(capture),
            hot: Hot::new(capture),
            accounts: capture.flows.iter().map(|flow| (flow.pid, flow.remote)).into_set(),
            ..Code::default()
        };
        // Each stack once: many samples may share a deep one.
        let kinds = |s| (is_in(s, true, &FAULTS), is_in(s, true, &RECLAIM), is_in(s, false, &COLLECTING));
        let kinds: Vec<(bool, bool, bool)> = capture.stacks.iter().map(kinds).collect();
        for sample in &capture.samples {
            let Some(pid) = pids.get(&sample.tid) else { continue };
            let counts = code.by_pid.entry(*pid).or_default();
            let n = sample.count as f64;
            counts.all += n;
            counts.kernel += if sample.user { 0.0 } else { n };
            let kind = sample.stack.and_then(|i| kinds.get(i as usize)).copied();
            let (faults, reclaim, collects) = kind.unwrap_or_default();
            counts.faults += if faults { n } else { 0.0 };
            counts.reclaim += if reclaim { n } else { 0.0 };
            counts.collects += if collects { n } else { 0.0 };
        }
        // Samples whose stacks were not kept are counted in the threads.
        for thread in &capture.threads {
            *code.cpu_ns.entry(thread.pid).or_default() += thread.cpu_ns as f64;
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

    /// Whether a process spends more of its CPU time in page faults, mapping and unmapping than in what it computes itself.
    pub fn churns(&self, pid: u32) -> bool {
        self.counts(pid).is_some_and(|c| c.faults >= c.all - c.kernel)
    }

    /// Share of a process' CPU time in memory reclaim.
    pub fn reclaim_share(&self, pid: u32) -> f64 {
        self.counts(pid).map_or(0.0, |c| ratio(c.reclaim, c.all))
    }

    /// Share of a process' CPU time in functions of a garbage collector.
    pub fn collects_share(&self, pid: u32) -> f64 {
        self.counts(pid).map_or(0.0, |c| ratio(c.collects, c.all))
    }

    /// CPU time of a process in the window.
    pub fn cpu_ns(&self, pid: u32) -> f64 {
        self.cpu_ns.get(&pid).copied().unwrap_or(0.0)
    }

    /// Whether a thread or a process of the subject has this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether a process is in a control group whose files have no room in memory, and what was read back may have taken most of this time.
    pub fn thrashes(&self, pid: u32, waited_ns: u64) -> bool {
        let read_ns = |bytes: &u64| (bytes / PAGE_BYTES).saturating_mul(PAGE_READ_MAX_NS);
        self.read_back.get(&pid).is_some_and(|bytes| read_ns(bytes).saturating_mul(2) >= waited_ns)
    }

    /// Whether the pages that were read back account for the CPU time that a process spends in page faults.
    pub fn reads_back_in_faults(&self, pid: u32) -> bool {
        let pages = self.read_back.get(&pid).map_or(0, |bytes| bytes / PAGE_BYTES);
        pages as f64 * FAULT_READ_MAX_NS >= self.faults_share(pid) * self.cpu_ns(pid)
    }

    fn counts(&self, pid: u32) -> Option<Counts> {
        self.by_pid.get(&pid).copied().filter(|c| c.all >= SAMPLES_MIN)
    }
}

/// Whether a thread was in a function with such a name, of the kernel or of its program.
fn is_in(stack: &Stack, kernel: bool, functions: &[&str]) -> bool {
    let mut frames = stack.frames.iter().filter(|f| f.kernel == kernel);
    frames.any(|f| functions.iter().any(|name| f.name.starts_with(name)))
}
