//! System calls and CPU time of the subject, and the time of the host's CPUs meanwhile.
use std::collections::BTreeMap;

use parshall_evidence::{CallReport, Capture, CpuReport, CpuTime, FdKind, SyscallCell};

use crate::sorting::StableSort as _;
use crate::stats::ratio;

/// A report has no more calls: what is rarer costs nothing.
const CALLS_MAX: usize = 24;

/// Sums of a call over the threads.
#[derive(Default)]
struct Sum {
    count: f64,
    errors: f64,
    again: f64,
    bytes: f64,
    on_cpu_ns: f64,
    off_cpu_ns: f64,
}

impl Sum {
    fn add(&mut self, cell: &SyscallCell) {
        self.count += cell.count as f64;
        self.errors += cell.errors as f64;
        self.again += cell.eagain as f64;
        self.bytes += cell.bytes as f64;
        self.on_cpu_ns += cell.on_cpu_ns as f64;
        self.off_cpu_ns += cell.off_cpu_ns as f64;
    }
}

/// The system calls of the subject's threads, those first that took most CPU time.
pub fn calls(capture: &Capture) -> Vec<CallReport> {
    let mut sums = BTreeMap::<(&str, FdKind), Sum>::new();
    for cell in capture.threads.iter().flat_map(|thread| &thread.syscalls) {
        sums.entry((cell.name.as_str(), cell.fd)).or_default().add(cell);
    }
    let observed_s = capture.slices.observed_ns as f64 / 1e9;
    let used_ns: f64 = capture.threads.iter().map(|thread| thread.on_cpu_ns as f64).sum();
    let mut calls: Vec<CallReport> = sums
        .into_iter()
        .filter(|(_, sum)| sum.count > 0.0)
        .map(|((syscall, fd), sum)| CallReport {
            syscall: syscall.to_string(),
            fd,
            per_s: ratio(sum.count, observed_s),
            on_cpu_us: ratio(sum.on_cpu_ns, sum.count) / 1e3,
            off_cpu_us: ratio(sum.off_cpu_ns, sum.count) / 1e3,
            cpu_share: ratio(sum.on_cpu_ns, used_ns).min(1.0),
            bytes: (sum.bytes > 0.0).then(|| ratio(sum.bytes, (sum.count - sum.errors - sum.again).max(1.0))),
            again_share: ratio(sum.again, sum.count).min(1.0),
            error_share: ratio(sum.errors, sum.count).min(1.0),
        })
        .collect();
    // Of calls that took equally little, the more frequent one; the names have them in order already.
    calls.stable_sort_by(|a, b| b.cpu_share.total_cmp(&a.cpu_share).then(b.per_s.total_cmp(&a.per_s)));
    calls.truncate(CALLS_MAX);
    calls
}

/// The host's CPUs by number.
pub fn cpus(capture: &Capture) -> Vec<CpuReport> {
    let window_s = capture.window_ns as f64 / 1e9;
    capture.host.each.iter().map(|cpu| shares(cpu, window_s)).collect()
}

fn shares(time: &CpuTime, window_s: f64) -> CpuReport {
    let parts =
        [time.user_ns, time.system_ns, time.irq_ns, time.softirq_ns, time.iowait_ns, time.idle_ns, time.stolen_ns];
    // The kernel counts in ticks, and the sum differs from the window by a few of them.
    let all: f64 = parts.into_iter().map(|ns| ns as f64).sum();
    let [user, system, irq, softirq, iowait, idle, stolen] = parts.map(|ns| ratio(ns as f64, all));
    CpuReport {
        cpu: time.cpu,
        user,
        system,
        irq,
        softirq,
        iowait,
        idle,
        stolen,
        packets_per_s: ratio(time.packets as f64, window_s),
        dropped: time.dropped,
        squeezed: time.squeezed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{ThreadBuilder, capture};

    fn cell(name: &str, count: u64, on_cpu_ns: u64, off_cpu_ns: u64, bytes: u64) -> SyscallCell {
        SyscallCell { name: name.to_string(), count, on_cpu_ns, off_cpu_ns, bytes, ..SyscallCell::default() }
    }

    #[test]
    fn calls_are_summed_over_threads_and_blocked_time_stands_apart() {
        let mut capture = capture(vec![], vec![ThreadBuilder::new(1), ThreadBuilder::new(2)]);
        let failed = SyscallCell { eagain: 50, errors: 10, ..cell("read", 100, 1_000_000, 0, 4_000) };
        capture.threads[0].syscalls = vec![failed, cell("futex", 4, 1_000, 8_000_000_000, 0)];
        capture.threads[1].syscalls = vec![cell("read", 100, 1_000_000, 500_000, 12_000)];
        capture.threads.iter_mut().for_each(|thread| thread.on_cpu_ns = 4_000_000);
        capture.slices.observed_ns = 2_000_000_000;
        let calls = calls(&capture);
        let names: Vec<&str> = calls.iter().map(|call| call.syscall.as_str()).collect();
        assert_eq!(names, ["read", "futex"]);
        let read = &calls[0];
        assert_eq!((read.per_s, read.on_cpu_us, read.off_cpu_us, read.cpu_share), (100.0, 10.0, 2.5, 0.25));
        // 140 of 200 calls moved the 16,000 bytes.
        assert_eq!(read.bytes.map(f64::round), Some(114.0));
        assert_eq!((read.again_share, read.error_share), (0.25, 0.05));
        assert_eq!((calls[1].bytes, calls[1].off_cpu_us), (None, 2e6));
    }

    #[test]
    fn shares_of_a_cpu_are_of_all_that_was_counted() {
        let mut capture = capture(vec![], vec![]);
        capture.window_ns = 2_000_000_000;
        capture.host.each = vec![
            CpuTime {
                cpu: 0,
                user_ns: 10,
                softirq_ns: 30,
                idle_ns: 60,
                packets: 4_000,
                squeezed: 3,
                ..Default::default()
            },
            CpuTime { cpu: 3, ..Default::default() },
        ];
        let cpus = cpus(&capture);
        assert_eq!((cpus[0].user, cpus[0].softirq, cpus[0].idle, cpus[0].packets_per_s), (0.1, 0.3, 0.6, 2_000.0));
        assert_eq!((cpus[0].squeezed, cpus[1].cpu, cpus[1].idle), (3, 3, 0.0));
    }
}
