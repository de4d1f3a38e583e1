//! Turns the readings of one thread over the window into a ledger that sums to the observed time. No I/O.
//!
//! The scheduler's counters (/proc/TID/schedstat: time on a CPU, time in the run queue, number of timeslices) are exact
//! between two readings. Only *what* a blocked thread waited for comes from sampling. The kernel adds to the run-queue time
//! when a wait ends, so the time of a runnable thread without a CPU stays pending until a later reading shows that wait.
use std::collections::BTreeMap;

use parshall_evidence::{FdKind, NO_SYSCALL, OffCpu, OffCpuCell, RunQueue, STALL_MIN_NS, ThreadStall};

use crate::syscall_name::syscall_name;

/// The system call in which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// System call number, or [`NO_SYSCALL`].
    pub syscall: i32,
    /// The kind of its descriptor.
    pub fd: FdKind,
}

/// A wait in an unknown call, or outside of system calls.
pub const UNKNOWN_CALL: Call = Call { syscall: NO_SYSCALL, fd: FdKind::None };

/// The state of a thread in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// On a CPU or waiting for one.
    Running,
    /// Blocked.
    Blocked(Call),
}

/// One sample of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub at_ns: u64,
    /// CPU time since the thread started.
    pub cpu_ns: u64,
    /// Time in run queues since the thread started.
    pub delay_ns: u64,
    /// Timeslices since the thread started.
    pub timeslices: u64,
    pub seen: Seen,
}

/// A wait in one call without a timeslice in between.
#[derive(Debug, Clone, Copy)]
struct Block {
    call: Call,
    begin_ns: u64,
    ns: u64,
    samples: u32,
}

/// The ledger of one thread.
#[derive(Debug, Clone)]
pub struct Account {
    first: Reading,
    last: Reading,
    on_cpu_ns: u64,
    runnable_ns: u64,
    throttled_ns: u64,
    pending_ns: u64,
    /// Time off the CPU between two readings that both showed it running, with timeslices in between.
    unseen_ns: u64,
    /// Throttled time of its control group that was not attributed to a wait of this thread yet.
    credit_ns: u64,
    credit_until_ns: u64,
    blocked: BTreeMap<Call, (u64, u64)>,
    block: Option<Block>,
    runq: RunQueue,
}

/// How long after its group was throttled a wait of a thread can be attributed to that: the default length of a CFS period.
const CREDIT_NS: u64 = 100_000_000;

/// Log2 buckets of run-queue waits: up to 2^31 us.
const BUCKETS: usize = 32;

impl Account {
    /// Opens the ledger at the first reading.
    pub fn new(first: Reading) -> Self {
        let mut account = Self {
            first,
            last: first,
            on_cpu_ns: 0,
            runnable_ns: 0,
            throttled_ns: 0,
            pending_ns: 0,
            unseen_ns: 0,
            credit_ns: 0,
            credit_until_ns: 0,
            blocked: BTreeMap::new(),
            block: None,
            runq: RunQueue { log2_us: vec![0; BUCKETS], ..RunQueue::default() },
        };
        account.open_block(first.seen, first.at_ns);
        account
    }

    /// The latest reading.
    pub fn last(&self) -> &Reading {
        &self.last
    }

    /// Accounts for the time since the last reading. `throttled_ns` is how long its control group was throttled in that time.
    pub fn update(&mut self, now: Reading, throttled_ns: u64, tid: u32, stalls: &mut Vec<ThreadStall>) {
        let elapsed = now.at_ns.saturating_sub(self.last.at_ns);
        let timeslices = now.timeslices.saturating_sub(self.last.timeslices);
        // The kernel adds throttled time to its counter when the throttling ends, and the wait of the thread to its run-queue
        // time later, when the thread gets a CPU.
        if throttled_ns > 0 {
            self.credit_until_ns = now.at_ns + CREDIT_NS;
        } else if now.at_ns > self.credit_until_ns {
            self.credit_ns = 0;
        }
        self.credit_ns += throttled_ns;

        let mut cpu = now.cpu_ns.saturating_sub(self.last.cpu_ns);
        if cpu > elapsed {
            // CPU time that is accounted at ticks comes late: it was taken for waiting for a CPU before.
            let late = self.take_unexplained(cpu - elapsed);
            self.on_cpu_ns += late;
            cpu = elapsed;
        }
        self.on_cpu_ns += cpu;
        let mut rest = elapsed - cpu;

        let mut delay = now.delay_ns.saturating_sub(self.last.delay_ns);
        self.count_waits(delay, timeslices);
        let late = self.take_unexplained(delay);
        self.wait(late);
        delay -= late;
        let inside = delay.min(rest);
        self.wait(inside);
        rest -= inside;
        // Run-queue time that exceeds `rest`: the thread was already woken when an earlier reading showed it blocked.
        let before = self.take_blocked(delay - inside);
        self.wait(before);

        self.spend(rest, timeslices, &now, tid, stalls);
        self.last = now;
    }

    /// Distributes time off the CPU that no counter explains.
    fn spend(&mut self, rest: u64, timeslices: u64, now: &Reading, tid: u32, stalls: &mut Vec<ThreadStall>) {
        match (self.last.seen, now.seen) {
            (Seen::Running, Seen::Running) if timeslices == 0 => self.pending_ns += rest,
            (Seen::Running, Seen::Running) => {
                self.unseen_ns += rest;
            }
            (Seen::Blocked(_), Seen::Blocked(call)) if timeslices == 0 => {
                if let Some(block) = &mut self.block {
                    // Without a timeslice it is still the same wait. A different call comes from a torn reading.
                    let _ = call;
                    block.ns += rest;
                    block.samples += 1;
                }
            }
            (Seen::Blocked(_), Seen::Running) => {
                self.add_to_block(rest);
                self.close_block(now.at_ns, tid, stalls);
            }
            (Seen::Running, Seen::Blocked(_)) => {
                self.open_block(now.seen, now.at_ns.saturating_sub(rest));
                self.add_to_block(rest);
            }
            (Seen::Blocked(_), Seen::Blocked(_)) => {
                self.add_to_block(rest / 2);
                self.close_block(now.at_ns, tid, stalls);
                self.open_block(now.seen, now.at_ns.saturating_sub(rest - rest / 2));
                self.add_to_block(rest - rest / 2);
            }
        }
        if let (Seen::Blocked(call), true) = (now.seen, timeslices > 1) {
            // Timeslices without a sample: most likely the thread repeated the same wait.
            self.blocked.entry(call).or_default().1 += timeslices - 1;
        }
    }

    fn open_block(&mut self, seen: Seen, begin_ns: u64) {
        self.block = match seen {
            Seen::Blocked(call) => Some(Block { call, begin_ns, ns: 0, samples: 1 }),
            Seen::Running => None,
        };
    }

    fn add_to_block(&mut self, ns: u64) {
        if let Some(block) = &mut self.block {
            block.ns += ns;
        }
    }

    fn close_block(&mut self, now_ns: u64, tid: u32, stalls: &mut Vec<ThreadStall>) {
        let Some(block) = self.block.take() else { return };
        let cell = self.blocked.entry(block.call).or_default();
        cell.0 += block.ns;
        cell.1 += 1;
        if block.samples >= 2 && block.ns >= STALL_MIN_NS {
            let ns = block.ns.min(now_ns.saturating_sub(block.begin_ns));
            stalls.push(stall(tid, block.begin_ns, ns, OffCpu::Blocked, block.call));
        }
    }

    /// Takes at most `ns` out of the time that no counter has explained yet, and returns how much it took.
    fn take_unexplained(&mut self, ns: u64) -> u64 {
        let pending = ns.min(self.pending_ns);
        self.pending_ns -= pending;
        let unseen = (ns - pending).min(self.unseen_ns);
        self.unseen_ns -= unseen;
        pending + unseen
    }

    fn take_blocked(&mut self, ns: u64) -> u64 {
        let Some(block) = &mut self.block else { return 0 };
        let taken = ns.min(block.ns);
        block.ns -= taken;
        taken
    }

    /// Attributes time in the run queue: to throttling up to the throttled time of the control group, else to waiting for a
    /// CPU.
    fn wait(&mut self, ns: u64) {
        let throttled = ns.min(self.credit_ns);
        self.credit_ns -= throttled;
        self.throttled_ns += throttled;
        self.runnable_ns += ns - throttled;
    }

    /// Adds the waits between two readings to the histogram. Only their sum and number are known, so each counts with the mean.
    fn count_waits(&mut self, delay_ns: u64, timeslices: u64) {
        if delay_ns == 0 {
            return;
        }
        let waits = timeslices.max(1);
        let mean_us = delay_ns / waits / 1000;
        let bucket = (u64::BITS - mean_us.leading_zeros()) as usize;
        self.runq.count += waits;
        self.runq.ns += delay_ns;
        self.runq.log2_us[bucket.min(BUCKETS - 1)] += waits;
    }

    /// Closes the ledger. `never_blocks` says that all context switches of the thread were involuntary.
    pub fn finish(mut self, tid: u32, never_blocks: bool, stalls: &mut Vec<ThreadStall>) -> Ledger {
        self.close_block(self.last.at_ns, tid, stalls);
        let mut waited = std::mem::take(&mut self.pending_ns);
        if never_blocks {
            waited += std::mem::take(&mut self.unseen_ns);
        }
        self.wait(waited);
        self.distribute_unseen();
        let mut off_cpu: Vec<OffCpuCell> =
            self.blocked.iter().map(|(&call, &(ns, count))| cell(OffCpu::Blocked, call, ns, count)).collect();
        if self.runnable_ns > 0 {
            let waits = if self.throttled_ns > 0 { 0 } else { self.runq.count };
            off_cpu.push(cell(OffCpu::Runnable, UNKNOWN_CALL, self.runnable_ns, waits));
        }
        if self.throttled_ns > 0 {
            off_cpu.push(cell(OffCpu::Throttled, UNKNOWN_CALL, self.throttled_ns, self.runq.count));
        }
        off_cpu.retain(|cell| cell.ns > 0);
        Ledger {
            begin_ns: self.first.at_ns,
            end_ns: self.last.at_ns,
            cpu_ns: self.last.cpu_ns.saturating_sub(self.first.cpu_ns),
            on_cpu_ns: self.on_cpu_ns,
            observed_ns: self.on_cpu_ns + off_cpu.iter().map(|cell| cell.ns).sum::<u64>(),
            off_cpu,
            runq: self.runq,
        }
    }

    /// Distributes blocked time between samples over the calls in proportion to the time that samples showed.
    fn distribute_unseen(&mut self) {
        let unseen = std::mem::take(&mut self.unseen_ns);
        if unseen == 0 {
            return;
        }
        let seen: u64 = self.blocked.values().map(|&(ns, _)| ns).sum();
        let mut left = unseen;
        for cell in self.blocked.values_mut() {
            let part = (u128::from(unseen) * u128::from(cell.0) / u128::from(seen.max(1))) as u64;
            cell.0 += part;
            left -= part.min(left);
        }
        if seen == 0 {
            self.blocked.entry(UNKNOWN_CALL).or_default().1 += 1;
        }
        if let Some(cell) = self.blocked.values_mut().next_back() {
            cell.0 += left;
        }
    }
}

/// The result of an [`Account`].
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Time of the first reading.
    pub begin_ns: u64,
    /// Time of the last reading.
    pub end_ns: u64,
    /// CPU time between them, as the scheduler counts it.
    pub cpu_ns: u64,
    /// Time on a CPU.
    pub on_cpu_ns: u64,
    /// `on_cpu_ns` and all of `off_cpu`.
    pub observed_ns: u64,
    /// Time off the CPU.
    pub off_cpu: Vec<OffCpuCell>,
    /// Waits for a CPU.
    pub runq: RunQueue,
}

fn cell(why: OffCpu, call: Call, ns: u64, count: u64) -> OffCpuCell {
    OffCpuCell {
        why,
        syscall: call.syscall,
        syscall_name: syscall_name(call.syscall).into_owned(),
        fd: call.fd,
        ns,
        count,
    }
}

fn stall(tid: u32, begin_ns: u64, ns: u64, why: OffCpu, call: Call) -> ThreadStall {
    ThreadStall {
        tid,
        begin_ns,
        ns,
        why,
        syscall: call.syscall,
        syscall_name: syscall_name(call.syscall).into_owned(),
        fd: call.fd,
        waker_tid: 0,
        waker_comm: String::new(),
        waker_in_irq: false,
        stack: None,
        waker_stack: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const READ: Call = Call { syscall: libc::SYS_read as i32, fd: FdKind::Tcp };
    const SYNC: Call = Call { syscall: libc::SYS_fsync as i32, fd: FdKind::File };

    fn reading(at_ms: u64, cpu_ms: u64, delay_ms: u64, timeslices: u64, seen: Seen) -> Reading {
        Reading { at_ns: at_ms * MS, cpu_ns: cpu_ms * MS, delay_ns: delay_ms * MS, timeslices, seen }
    }

    fn run(readings: &[(Reading, u64)]) -> (Ledger, Vec<ThreadStall>) {
        let mut stalls = Vec::new();
        let mut account = Account::new(readings[0].0);
        for &(now, throttled_ms) in &readings[1..] {
            account.update(now, throttled_ms * MS, 9, &mut stalls);
        }
        let ledger = account.finish(9, false, &mut stalls);
        assert_eq!(ledger.observed_ns, ledger.end_ns - ledger.begin_ns, "the ledger must sum up: {ledger:?}");
        (ledger, stalls)
    }

    fn off(ledger: &Ledger, why: OffCpu) -> Vec<(i32, u64)> {
        ledger.off_cpu.iter().filter(|c| c.why == why).map(|c| (c.syscall, c.ns / MS)).collect()
    }

    #[test]
    fn one_long_block_is_a_stall() {
        let blocked = Seen::Blocked(READ);
        let (ledger, stalls) = run(&[
            (reading(0, 0, 0, 1, Seen::Running), 0),
            (reading(10, 2, 0, 1, blocked), 0),
            (reading(20, 2, 0, 1, blocked), 0),
            (reading(30, 5, 1, 2, Seen::Running), 0),
        ]);
        assert_eq!(ledger.on_cpu_ns, 5 * MS);
        assert_eq!(off(&ledger, OffCpu::Blocked), [(READ.syscall, 24)]);
        assert_eq!(off(&ledger, OffCpu::Runnable), [(NO_SYSCALL, 1)]);
        assert_eq!(stalls.len(), 1);
        assert_eq!((stalls[0].begin_ns, stalls[0].ns, stalls[0].fd), (2 * MS, 24 * MS, FdKind::Tcp));
    }

    #[test]
    fn waiting_for_a_cpu_is_explained_late_by_the_counter() {
        let (ledger, _) = run(&[
            (reading(0, 0, 0, 1, Seen::Running), 0),
            (reading(10, 0, 0, 1, Seen::Running), 0),
            (reading(20, 0, 0, 1, Seen::Running), 0),
            (reading(30, 5, 25, 2, Seen::Running), 0),
        ]);
        assert_eq!(ledger.on_cpu_ns, 5 * MS);
        assert_eq!(off(&ledger, OffCpu::Runnable), [(NO_SYSCALL, 25)]);
        assert_eq!(off(&ledger, OffCpu::Blocked), []);
        assert_eq!((ledger.runq.count, ledger.runq.log2_us[15]), (1, 1));
    }

    #[test]
    fn throttled_time_is_separated_from_waiting() {
        let (ledger, _) = run(&[
            (reading(0, 0, 0, 1, Seen::Running), 0),
            (reading(50, 0, 0, 1, Seen::Running), 0),
            (reading(100, 10, 90, 2, Seen::Running), 80),
        ]);
        assert_eq!(off(&ledger, OffCpu::Throttled), [(NO_SYSCALL, 80)]);
        assert_eq!(off(&ledger, OffCpu::Runnable), [(NO_SYSCALL, 10)]);
    }

    #[test]
    fn cpu_time_that_is_accounted_late_is_not_waiting() {
        let (ledger, _) = run(&[
            (reading(0, 0, 0, 1, Seen::Running), 0),
            (reading(5, 0, 0, 1, Seen::Running), 0),
            (reading(10, 10, 0, 1, Seen::Running), 0),
        ]);
        assert_eq!(ledger.on_cpu_ns, 10 * MS);
        assert!(ledger.off_cpu.is_empty());
    }

    #[test]
    fn unseen_blocks_follow_those_that_were_seen() {
        let (ledger, _) = run(&[
            (reading(0, 0, 0, 1, Seen::Running), 0),
            (reading(10, 5, 0, 50, Seen::Running), 0),
            (reading(20, 10, 0, 90, Seen::Blocked(SYNC)), 0),
            (reading(30, 15, 0, 99, Seen::Running), 0),
        ]);
        assert_eq!(off(&ledger, OffCpu::Blocked), [(SYNC.syscall, 15)]);
        let (none, _) = run(&[(reading(0, 0, 0, 1, Seen::Running), 0), (reading(10, 5, 0, 50, Seen::Running), 0)]);
        assert_eq!(off(&none, OffCpu::Blocked), [(NO_SYSCALL, 5)]);
    }

    #[test]
    fn sums_hold_for_any_counters() {
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let mut now = reading(0, 0, 0, 0, Seen::Running);
            let mut readings = vec![(now, 0)];
            for _ in 0..50 {
                now.at_ns += random(20 * MS);
                now.cpu_ns += random(15 * MS);
                now.delay_ns += random(3) * random(10 * MS);
                now.timeslices += random(3);
                now.seen = [Seen::Running, Seen::Blocked(READ), Seen::Blocked(SYNC)][random(3) as usize];
                readings.push((now, random(10)));
            }
            run(&readings);
        }
    }
}
