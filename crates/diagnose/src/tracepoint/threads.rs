//! The threads of a capture: /proc tells who a thread is, the probes' accounts where its time went.
use std::collections::{BTreeMap, HashMap};

use parshall_bpf::diagnose::classic::{Classic, OpenInterval, SeenIn, ThreadEntry};
use parshall_bpf::diagnose::syscall::{SysKey, SysValue};
use parshall_bpf::diagnose::thread::{OffKey, OffValue, ThreadDump, fd_kind};
use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_evidence::{CopyPattern, OffCpu, OffCpuCell, RunQueue, STALL_MIN_NS, ThreadRecord, ThreadStall};

use crate::cells::{call_cells, off_cells};
use crate::procfs::blocked_in::parse_syscall;
use crate::procfs::thread_account::Seen;
use crate::subject::Process;
use crate::syscall_name::syscall_name;

use parshall_host::bounded_file;

/// The most threads whose calls are read when a slice begins; each takes about 10 us.
const SEEDS_MAX: usize = 1024;

/// Intervals that the probes do not see: the call that each thread was in when a slice began, and the intervals still open at its end.
#[derive(Debug, Default)]
pub struct Seeds {
    /// The call that a thread was in when the slice began, and its CPU time then.
    seen: HashMap<u32, (SeenIn, u64)>,
    open: BTreeMap<(u32, u8, i32, u8), OffValue>,
    open_on: HashMap<u32, u64>,
    stalls: Vec<ThreadStall>,
}

impl Seeds {
    /// A slice has begun: reads which call every thread is in.
    pub fn begin(&mut self, classic: &Classic, processes: &[Process]) {
        self.seen.clear();
        let threads = processes.iter().flat_map(|p| p.threads.iter().map(|&tid| (p.pid, tid)));
        for (pid, tid) in threads.take(SEEDS_MAX) {
            if let Some(seen) = seen(pid, tid) {
                classic.seed(tid, seen);
                self.seen.insert(tid, (seen, cpu_ns(pid, tid)));
            }
        }
    }

    /// A slice has ended: closes the open intervals.
    pub fn end(&mut self, classic: &Classic, span: (u64, u64)) {
        let slice = classic.slice();
        for entry in classic.threads() {
            let (seen, cpu_then) = self.seen.get(&entry.tid).copied().unwrap_or((SeenIn::Running, 0));
            let quiet = entry.slice != slice;
            let ran = quiet && (cpu_ns(entry.tgid, entry.tid).saturating_sub(cpu_then)) * 2 > span.1 - span.0;
            let open = entry.close(slice, span, seen, ran);
            self.add(&entry, &open);
        }
    }

    fn add(&mut self, entry: &ThreadEntry, open: &OpenInterval) {
        *self.open_on.entry(entry.tid).or_default() += open.on_ns;
        for (why, ns, begin, fd) in [
            (OffCpu::Blocked, open.blocked_ns, open.begin, open.fd),
            (OffCpu::Runnable, open.runnable_ns, open.begin + open.blocked_ns, 0),
        ] {
            if ns == 0 {
                continue;
            }
            let cell = self.open.entry((entry.tid, why as u8, open.nr, fd)).or_default();
            cell.ns += ns;
            cell.count += 1;
            if ns >= STALL_MIN_NS {
                self.stalls.push(ThreadStall {
                    tid: entry.tid,
                    begin_ns: begin,
                    ns,
                    why,
                    syscall: open.nr,
                    syscall_name: syscall_name(open.nr).into_owned(),
                    fd: fd_kind(fd),
                    waker_tid: 0,
                    waker_comm: String::new(),
                    waker_in_irq: false,
                    stack: None,
                    waker_stack: None,
                });
            }
        }
    }

    /// The stalls that the end of a slice cut short, with times relative to `begin`.
    pub fn take_stalls(&mut self, begin: u64) -> Vec<ThreadStall> {
        let mut stalls = std::mem::take(&mut self.stalls);
        for stall in &mut stalls {
            stall.begin_ns = stall.begin_ns.saturating_sub(begin);
        }
        stalls
    }
}

/// The call that a thread is in now. None if it is gone or may not be read.
fn seen(pid: u32, tid: u32) -> Option<SeenIn> {
    let text = bounded_file::text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    Some(match parse_syscall(&text)?.seen(pid) {
        Seen::Running => SeenIn::Running,
        Seen::Blocked(call) => SeenIn::Blocked(call.syscall, call.fd as u8),
    })
}

fn cpu_ns(pid: u32, tid: u32) -> u64 {
    let text = bounded_file::text(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// The parts that threads are assembled from; times are CLOCK_MONOTONIC nanoseconds.
pub struct Parts<'a> {
    /// When the window began and ended.
    pub window: (u64, u64),
    /// The accounts at the end.
    pub entries: &'a [ThreadEntry],
    /// The accounts of threads that exited.
    pub ended: &'a [ThreadDump],
    /// Time off the CPU by thread.
    pub off: HashMap<u32, Vec<(OffKey, OffValue)>>,
    /// System calls by thread.
    pub calls: HashMap<u32, Vec<(SysKey, SysValue)>>,
    /// CPU samples by thread: user, kernel.
    pub samples: HashMap<u32, (u64, u64)>,
}

/// The account of one thread, from either source.
struct Account {
    tgid: u32,
    on_ns: u64,
    runq: RunQueue,
    copy: CopyPattern,
}

/// Puts the probes' accounts into the records from /proc, and adds records of threads that /proc never showed.
pub fn exact(records: Vec<ThreadRecord>, seeds: &Seeds, parts: &Parts<'_>) -> Vec<ThreadRecord> {
    let mut by_tid: BTreeMap<u32, ThreadRecord> = records.into_iter().map(|record| (record.tid, record)).into_map();
    let mut accounts: BTreeMap<u32, Account> = BTreeMap::new();
    for dump in parts.ended {
        by_tid.entry(dump.tid).or_insert_with(|| unknown(dump, parts.window));
        accounts.insert(dump.tid, of_dump(dump));
    }
    let (begin, end) = parts.window;
    for entry in parts.entries {
        accounts.insert(entry.tid, of_entry(entry));
        // The account of a thread that lives goes to the end of the window, and /proc was read before that.
        by_tid.entry(entry.tid).and_modify(|record| record.end_ns = end - begin);
    }
    let mut off: HashMap<u32, Vec<(OffKey, OffValue)>> = parts.off.clone();
    for (&(tid, why, nr, fd), &value) in &seeds.open {
        add_cell(off.entry(tid).or_default(), OffKey { tid, nr, fd, why, pad: [0; 2] }, value);
    }
    for (tid, record) in &mut by_tid {
        let Some(account) = accounts.remove(tid) else { continue };
        let throttled = throttled_share(record);
        record.pid = account.tgid;
        record.on_cpu_ns = account.on_ns + seeds.open_on.get(tid).copied().unwrap_or(0);
        record.off_cpu = off_cells(off.get(tid));
        split_throttled(&mut record.off_cpu, throttled);
        record.observed_ns = record.on_cpu_ns + record.off_cpu.iter().map(|cell| cell.ns).sum::<u64>();
        record.syscalls = call_cells(parts.calls.get(tid));
        (record.runq, record.copy) = (account.runq, account.copy);
        (record.samples_user, record.samples_kernel) = parts.samples.get(tid).copied().unwrap_or_default();
    }
    by_tid.into_values().collect()
}

fn add_cell(cells: &mut Vec<(OffKey, OffValue)>, key: OffKey, value: OffValue) {
    let same = |known: &OffKey| (known.nr, known.fd, known.why) == (key.nr, key.fd, key.why);
    match cells.iter_mut().find(|(known, _)| same(known)) {
        Some((_, sum)) => {
            sum.ns += value.ns;
            sum.count += value.count;
        }
        None => cells.push((key, value)),
    }
}

/// The share of a thread's runnable but not running time in which its control group was out of quota.
fn throttled_share(record: &ThreadRecord) -> f64 {
    let sum = |why| record.off_cpu.iter().filter(|cell| cell.why == why).map(|cell| cell.ns).sum::<u64>() as f64;
    let (throttled, waited) = (sum(OffCpu::Throttled), sum(OffCpu::Runnable));
    if throttled > 0.0 { throttled / (throttled + waited) } else { 0.0 }
}

/// Splits waits for a CPU into throttling and other waits: tracepoints cannot tell them apart, so the share comes from the
/// control group's counters.
fn split_throttled(cells: &mut Vec<OffCpuCell>, share: f64) {
    let mut throttled = Vec::new();
    for cell in cells.iter_mut().filter(|cell| cell.why == OffCpu::Runnable) {
        let ns = (cell.ns as f64 * share) as u64;
        let count = (cell.count as f64 * share) as u64;
        if ns > 0 {
            throttled.push(OffCpuCell { why: OffCpu::Throttled, ns, count, ..cell.clone() });
            cell.ns -= ns;
            cell.count -= count;
        }
    }
    cells.extend(throttled);
    cells.stable_sort_by(|a, b| b.ns.cmp(&a.ns).then(a.syscall.cmp(&b.syscall)));
}

/// A thread that lived between two scans of /proc.
fn unknown(dump: &ThreadDump, (begin, end): (u64, u64)) -> ThreadRecord {
    let relative = |at: u64| at.saturating_sub(begin).min(end - begin);
    ThreadRecord {
        tid: dump.tid,
        comm: parshall_bpf::comm(&dump.comm),
        begin_ns: relative(dump.start_time),
        end_ns: relative(dump.at),
        cpu_ns: dump.on_ns,
        ..ThreadRecord::default()
    }
}

fn of_dump(dump: &ThreadDump) -> Account {
    Account {
        tgid: dump.tgid,
        on_ns: dump.on_ns,
        runq: runq(dump.runq_count, dump.runq_ns, &dump.runq_log2),
        copy: CopyPattern {
            pairs: dump.copy_pairs,
            bytes: dump.copy_bytes,
            recvs: dump.copy_recvs,
            mode_bytes: dump.copy_mode,
            mode_count: dump.copy_mode_count,
            left_over: dump.copy_left_over,
        },
    }
}

fn of_entry(entry: &ThreadEntry) -> Account {
    Account {
        tgid: entry.tgid,
        on_ns: entry.on_ns,
        runq: runq(entry.runq_count, entry.runq_ns, &entry.runq_log2),
        copy: CopyPattern {
            pairs: entry.copy_pairs,
            bytes: entry.copy_bytes,
            recvs: entry.copy_recvs,
            mode_bytes: entry.copy_mode,
            mode_count: entry.copy_mode_count,
            left_over: entry.copy_left_over,
        },
    }
}

fn runq(count: u32, ns: u64, log2_us: &[u32]) -> RunQueue {
    RunQueue { count: count.into(), ns, log2_us: log2_us.iter().map(|&n| n.into()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parshall_evidence::FdKind;

    fn cell(why: OffCpu, ns: u64) -> OffCpuCell {
        OffCpuCell { why, syscall: -1, syscall_name: String::new(), fd: FdKind::None, ns, count: 10 }
    }

    #[test]
    fn throttling_is_split_off_from_waits_for_a_cpu_only() {
        let record = ThreadRecord {
            off_cpu: vec![cell(OffCpu::Throttled, 60), cell(OffCpu::Runnable, 20), cell(OffCpu::Blocked, 500)],
            ..ThreadRecord::default()
        };
        let mut cells = vec![cell(OffCpu::Blocked, 1000), cell(OffCpu::Runnable, 400)];
        split_throttled(&mut cells, throttled_share(&record));
        let of = |why| cells.iter().filter(|c| c.why == why).map(|c| c.ns).sum::<u64>();
        assert_eq!((of(OffCpu::Blocked), of(OffCpu::Throttled), of(OffCpu::Runnable)), (1000, 300, 100));
        let mut none = vec![cell(OffCpu::Runnable, 400)];
        split_throttled(&mut none, 0.0);
        assert_eq!(none, [cell(OffCpu::Runnable, 400)]);
    }
}
