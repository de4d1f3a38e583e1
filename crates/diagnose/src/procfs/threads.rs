//! Samples the threads of the subject from /proc and keeps their ledgers.
//!
//! Sampling an idle thread costs one read: while `schedstat` counts no new timeslice, the thread is still in the same wait.
//! Files stay open if there are few threads. Each pread at offset 0 makes the kernel generate their text anew.
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use parshall_core::sorting::StableSort as _;
use parshall_evidence::{CopyPattern, ThreadRecord, ThreadStall};
use parshall_sys::clock;

use super::blocked_in;
use super::thread_account::{Account, Reading, Seen};
use crate::cgroup::Watch;
use crate::subject::Process;
use parshall_host::bounded_file;
use parshall_host::proc_fs;

/// The most threads that are observed.
pub const THREADS_MAX: usize = 4096;
/// The most threads whose files stay open: two descriptors each, which is below the usual limit of 1024.
const OPEN_MAX: usize = 256;
/// The most bytes that are read from `schedstat` and `syscall`.
const TEXT: usize = 256;
/// The most stalls that are kept.
const STALLS_MAX: usize = 100_000;

#[derive(Debug)]
struct Thread {
    pid: u32,
    comm: String,
    directory: String,
    schedstat: Option<File>,
    syscall: Option<File>,
    account: Account,
    begin: Slow,
    latest: Slow,
    ended: bool,
}

/// Counters that are read only a few times per second.
#[derive(Debug, Clone, Copy, Default)]
struct Slow {
    user_ticks: u64,
    system_ticks: u64,
    voluntary: u64,
    forced: u64,
}

/// All threads of the subject.
#[derive(Debug)]
pub struct Threads {
    threads: BTreeMap<u32, Thread>,
    stalls: Vec<ThreadStall>,
    /// Threads beyond [`THREADS_MAX`].
    pub untracked: u64,
    /// Threads whose `syscall` file may not be read.
    pub hidden: u64,
    /// Whether the kernel keeps no schedstat, so that CPU time is read in ticks.
    pub ticks_only: bool,
    tick_ns: u64,
    throttled_before: BTreeMap<u32, u64>,
}

impl Threads {
    /// Starts to observe all threads of the processes.
    pub fn start(processes: &[Process], now: impl Fn() -> u64) -> Self {
        let mut threads = Self {
            threads: BTreeMap::new(),
            stalls: Vec::new(),
            untracked: 0,
            hidden: 0,
            ticks_only: !keeps_schedstat(),
            tick_ns: 1_000_000_000 / clock::ticks_per_second(),
            throttled_before: BTreeMap::new(),
        };
        for process in processes {
            for &tid in &process.threads {
                threads.add(process.pid, tid, now());
            }
        }
        threads
    }

    /// Starts to observe a thread.
    pub fn add(&mut self, pid: u32, tid: u32, at_ns: u64) {
        if self.threads.contains_key(&tid) {
            return;
        }
        if self.threads.len() >= THREADS_MAX {
            self.untracked += 1;
            return;
        }
        let directory = format!("/proc/{pid}/task/{tid}");
        let Some((comm, begin)) = slow(&directory) else { return };
        let keep_open = self.threads.len() < OPEN_MAX;
        let open = |name: &str| keep_open.then(|| File::open(format!("{directory}/{name}")).ok()).flatten();
        let first = Reading { at_ns, cpu_ns: 0, delay_ns: 0, timeslices: 0, seen: Seen::Running };
        let mut thread = Thread {
            pid,
            comm,
            schedstat: open("schedstat"),
            syscall: open("syscall"),
            account: Account::new(first),
            begin,
            latest: begin,
            ended: false,
            directory,
        };
        let Some((cpu_ns, delay_ns, timeslices)) = self.counters(&thread) else { return };
        self.hidden += u64::from(thread.syscall_text(&mut [0; TEXT]).is_none());
        let seen = thread.seen();
        thread.account = Account::new(Reading { at_ns, cpu_ns, delay_ns, timeslices, seen });
        self.threads.insert(tid, thread);
    }

    fn counters(&self, thread: &Thread) -> Option<(u64, u64, u64)> {
        if !self.ticks_only {
            let mut text = [0; TEXT];
            return parse_schedstat(read(thread.schedstat.as_ref(), &thread.directory, "schedstat", &mut text)?);
        }
        let (_, slow) = slow(&thread.directory)?;
        Some(((slow.user_ticks + slow.system_ticks) * self.tick_ns, 0, slow.voluntary + slow.forced))
    }

    /// Samples every thread. Returns how many still run.
    pub fn sample(&mut self, now: &impl Fn() -> u64, processes: &[Process], cgroups: &Watch) -> usize {
        let throttled = self.throttled_since_last(processes, cgroups);
        let mut threads = std::mem::take(&mut self.threads);
        let mut left = 0;
        for (&tid, thread) in threads.iter_mut().filter(|(_, thread)| !thread.ended) {
            let Some((cpu_ns, delay_ns, timeslices)) = self.counters(thread) else {
                thread.ended = true;
                continue;
            };
            let at_ns = now();
            let last = *thread.account.last();
            let same = (cpu_ns, timeslices) == (last.cpu_ns, last.timeslices) && matches!(last.seen, Seen::Blocked(_));
            let seen = if same { last.seen } else { thread.seen() };
            let reading = Reading { at_ns, cpu_ns, delay_ns, timeslices, seen };
            let throttled = throttled.get(&thread.pid).copied().unwrap_or(0);
            thread.account.update(reading, throttled, tid, &mut self.stalls);
            left += 1;
        }
        self.threads = threads;
        self.stalls.truncate(STALLS_MAX);
        left
    }

    /// Reads the slow counters, so that recent values are known when a thread ends. Marks the threads of exited processes as
    /// ended.
    pub fn read_slow_counters(&mut self, exited: &[u32]) {
        for thread in self.threads.values_mut().filter(|thread| !thread.ended) {
            thread.read_slow_counters();
            thread.ended = exited.contains(&thread.pid);
        }
    }

    fn throttled_since_last(&mut self, processes: &[Process], cgroups: &Watch) -> BTreeMap<u32, u64> {
        let mut since = BTreeMap::new();
        if !cgroups.has_quota() {
            return since;
        }
        for process in processes {
            let Some(directory) = &process.cpu_cgroup else { continue };
            let now = cgroups.throttled_ns(directory);
            let before = self.throttled_before.insert(process.pid, now).unwrap_or(0);
            since.insert(process.pid, now.saturating_sub(before));
        }
        since
    }

    /// Closes all ledgers.
    pub fn finish(mut self) -> (Vec<ThreadRecord>, Vec<ThreadStall>) {
        let mut records = Vec::with_capacity(self.threads.len());
        for (tid, mut thread) in self.threads {
            if !thread.ended {
                thread.read_slow_counters();
            }
            records.push(thread.record(tid, &mut self.stalls));
        }
        self.stalls.stable_sort_by_key(|stall| stall.begin_ns);
        self.stalls.truncate(STALLS_MAX);
        (records, self.stalls)
    }
}

impl Thread {
    fn read_slow_counters(&mut self) {
        if let Some((comm, latest)) = slow(&self.directory) {
            self.comm = comm;
            self.latest = latest;
        }
    }

    fn syscall_text<'a>(&self, buffer: &'a mut [u8; TEXT]) -> Option<&'a str> {
        read(self.syscall.as_ref(), &self.directory, "syscall", buffer)
    }

    /// Reads its current state.
    fn seen(&self) -> Seen {
        let mut buffer = [0; TEXT];
        if let Some(file) = self.syscall_text(&mut buffer).and_then(blocked_in::parse_syscall) {
            return file.seen(self.pid);
        }
        let stat = bounded_file::text(format!("{}/stat", self.directory)).ok();
        match stat.and_then(|text| proc_fs::parse_stat(&text)).map(|stat| stat.state) {
            None | Some('R') => Seen::Running,
            Some(_) => {
                let wchan = bounded_file::text(format!("{}/wchan", self.directory)).unwrap_or_default();
                Seen::Blocked(blocked_in::call_of_wchan(wchan.trim()))
            }
        }
    }

    fn record(self, tid: u32, stalls: &mut Vec<ThreadStall>) -> ThreadRecord {
        let (begin, latest) = (self.begin, self.latest);
        let never_blocks = latest.forced > begin.forced && latest.voluntary == begin.voluntary;
        let ledger = self.account.finish(tid, never_blocks, stalls);
        let user = latest.user_ticks.saturating_sub(begin.user_ticks);
        let ticks = user + latest.system_ticks.saturating_sub(begin.system_ticks);
        // The sum is known exactly. Ticks are coarse, so only their ratio is used.
        let share = |ns: u64| (u128::from(ns) * u128::from(user) / u128::from(ticks)) as u64;
        ThreadRecord {
            tid,
            pid: self.pid,
            comm: self.comm,
            begin_ns: ledger.begin_ns,
            end_ns: ledger.end_ns,
            cpu_ns: ledger.cpu_ns,
            utime_ns: (ticks > 0).then(|| share(ledger.cpu_ns)),
            observed_ns: ledger.observed_ns,
            on_cpu_ns: ledger.on_cpu_ns,
            off_cpu: ledger.off_cpu,
            syscalls: Vec::new(),
            copy: CopyPattern::default(),
            switches: (latest.voluntary.saturating_sub(begin.voluntary), latest.forced.saturating_sub(begin.forced)),
            samples_user: 0,
            samples_kernel: 0,
            runq: ledger.runq,
        }
    }
}

/// Reads the name and the slow counters of a thread.
fn slow(directory: &str) -> Option<(String, Slow)> {
    let stat = proc_fs::parse_stat(&bounded_file::text(format!("{directory}/stat")).ok()?)?;
    let status = bounded_file::text(format!("{directory}/status")).unwrap_or_default();
    let number = |name| proc_fs::status_field(&status, name).and_then(|value| value.parse().ok()).unwrap_or(0);
    let slow = Slow {
        user_ticks: stat.user_ticks,
        system_ticks: stat.system_ticks,
        voluntary: number("voluntary_ctxt_switches"),
        forced: number("nonvoluntary_ctxt_switches"),
    };
    Some((stat.comm, slow))
}

/// Reads a small file, through an open descriptor if there is one. None if the thread is gone or the file is not readable.
fn read<'a>(open: Option<&File>, directory: &str, name: &str, buffer: &'a mut [u8; TEXT]) -> Option<&'a str> {
    let len = match open {
        Some(file) => file.read_at(buffer, 0).ok()?,
        None => File::open(format!("{directory}/{name}")).ok()?.read_at(buffer, 0).ok()?,
    };
    std::str::from_utf8(&buffer[..len]).ok().filter(|text| !text.is_empty())
}

/// Whether the kernel keeps schedstat. Without CONFIG_SCHED_INFO the file is missing, or shows 0 timeslices even for this
/// running thread.
fn keeps_schedstat() -> bool {
    let text = bounded_file::text("/proc/thread-self/schedstat").unwrap_or_default();
    parse_schedstat(&text).is_some_and(|(_, _, timeslices)| timeslices > 0)
}

/// Parses CPU time (ns), run-queue time (ns) and the number of timeslices.
fn parse_schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut fields = text.split_whitespace().map(|field| field.parse::<u64>().ok());
    let (cpu, delay, timeslices) = (fields.next()??, fields.next()??, fields.next()??);
    Some((cpu, delay, timeslices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_schedstat() {
        assert_eq!(parse_schedstat("33272402 4885241 69\n"), Some((33_272_402, 4_885_241, 69)));
        for text in ["", "1 2", "1 x 3"] {
            assert_eq!(parse_schedstat(text), None, "{text:?}");
        }
    }
}
