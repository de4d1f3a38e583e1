//! The thread ledger: a thread's wall time, split into states that exclude each other.
//!
//! CPU time is exact over the whole window. Time off the CPU is what remains, split as it was observed. A blocked
//! thread waited only while one of its sockets had unread data; otherwise it was idle, whatever system call it sat in.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, NO_SYSCALL, OffCpu, ThreadRecord, ThreadStall};

use crate::sorting::StableSort as _;
use crate::stats::{Spans, ratio};
use crate::wait::Wait;

/// A use of a thread's time; at each moment exactly one holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum State {
    /// Executing its own code.
    OnCpuUser,
    /// Executing in the kernel.
    OnCpuKernel,
    /// Ready, and waiting for a CPU.
    Runnable,
    /// Ready, and its control group has used up its quota.
    Throttled,
    /// Asleep while one of its sockets had unread data.
    BlockedWorkAvailable,
    /// Asleep, and nothing to do.
    Idle,
}

impl State {
    /// How many states there are.
    pub const N: usize = 6;

    /// All states.
    pub const ALL: [State; State::N] = [
        State::OnCpuUser,
        State::OnCpuKernel,
        State::Runnable,
        State::Throttled,
        State::BlockedWorkAvailable,
        State::Idle,
    ];

    /// Its id in reports.
    pub fn id(self) -> &'static str {
        match self {
            State::OnCpuUser => "on-cpu-user",
            State::OnCpuKernel => "on-cpu-kernel",
            State::Runnable => "runnable",
            State::Throttled => "throttled",
            State::BlockedWorkAvailable => "blocked-work-available",
            State::Idle => "idle",
        }
    }

    /// Its name for people.
    pub fn label(self) -> &'static str {
        match self {
            State::OnCpuUser => "on CPU, user",
            State::OnCpuKernel => "on CPU, kernel",
            State::Runnable => "waiting for a CPU",
            State::Throttled => "throttled",
            State::BlockedWorkAvailable => "blocked with work waiting",
            State::Idle => "idle",
        }
    }
}

/// One thread's account.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadLedger {
    /// Wall time of the thread.
    pub wall_ns: f64,
    /// Time by state, in the order of [`State::ALL`]; sums to `wall_ns`.
    pub ns: [f64; State::N],
    /// Samples taken in the kernel, by system call, most first.
    pub kernel_calls: Vec<(String, u64)>,
    /// Share of the CPU time spent in user mode; None when nothing tells.
    pub user_share: Option<f64>,
    /// Within a long time without a long sleep and with work to do: share of it on the CPU, runnable, throttled (the
    /// rest is short sleeps).
    pub awake: [f64; 3],
}

impl ThreadLedger {
    /// Builds the account of `thread`. `stalls` are its own; `unread` is when sockets it reads had unread data; `calls` are those of
    /// all threads in which samples found them.
    pub fn new(
        thread: &ThreadRecord,
        stalls: &[&ThreadStall],
        unread: &Spans,
        calls: &KernelCalls<'_>,
    ) -> ThreadLedger {
        let wall_ns = thread.end_ns.saturating_sub(thread.begin_ns) as f64;
        let cpu_ns = (thread.cpu_ns as f64).min(wall_ns);
        let off_ns = wall_ns - cpu_ns;
        let seen_off: f64 = thread.off_cpu.iter().map(|c| c.ns as f64).sum();
        let cell = |why: OffCpu| -> f64 { thread.off_cpu.iter().filter(|c| c.why == why).map(|c| c.ns as f64).sum() };
        let part = |ns: f64| off_ns * ratio(ns, seen_off);
        let blocked = if seen_off > 0.0 { part(cell(OffCpu::Blocked)) } else { off_ns };
        let waited: f64 = stalls
            .iter()
            .filter(|s| s.why == OffCpu::Blocked)
            .map(|s| unread.covered(s.begin_ns, s.begin_ns.saturating_add(s.ns)) as f64)
            .sum();
        let with_work = if seen_off > 0.0 { part(waited).min(blocked) } else { waited.min(blocked) };
        let user_share = user_share(thread);
        let user = cpu_ns * user_share.unwrap_or(1.0);
        let mut ns = [0.0; State::N];
        ns[State::OnCpuUser as usize] = user;
        ns[State::OnCpuKernel as usize] = cpu_ns - user;
        ns[State::Runnable as usize] = part(cell(OffCpu::Runnable));
        ns[State::Throttled as usize] = part(cell(OffCpu::Throttled));
        ns[State::BlockedWorkAvailable as usize] = with_work;
        ns[State::Idle as usize] = blocked - with_work;
        let awake = awake(thread, stalls, cpu_ns, ratio(off_ns, seen_off));
        ThreadLedger { wall_ns, ns, kernel_calls: calls.of(thread.tid), user_share, awake }
    }

    /// Time in a state.
    pub fn of(&self, state: State) -> f64 {
        self.ns[state as usize]
    }

    /// Time on a CPU.
    pub fn on_cpu(&self) -> f64 {
        self.of(State::OnCpuUser) + self.of(State::OnCpuKernel)
    }

    /// Time in which the thread had something to do.
    pub fn not_idle(&self) -> f64 {
        self.wall_ns - self.of(State::Idle)
    }
}

/// Samples tell best; the tick account is coarse, but exists everywhere.
fn user_share(thread: &ThreadRecord) -> Option<f64> {
    let samples = thread.samples_user.saturating_add(thread.samples_kernel);
    if samples >= 20 {
        return Some(ratio(thread.samples_user as f64, samples as f64));
    }
    thread.utime_ns.map(|user| ratio(user as f64, thread.cpu_ns as f64).min(1.0))
}

fn awake(thread: &ThreadRecord, stalls: &[&ThreadStall], cpu_ns: f64, scale: f64) -> [f64; 3] {
    let waits_for_work = |name: &str, fd, syscall| Wait::of(name, fd, syscall).is_for_work();
    let short = |why: OffCpu| -> f64 {
        let cells = thread.off_cpu.iter().filter(|c| c.why == why);
        let all: f64 = cells
            .filter(|c| why != OffCpu::Blocked || !waits_for_work(&c.syscall_name, c.fd, c.syscall))
            .map(|c| c.ns as f64)
            .sum();
        let own = stalls.iter().filter(|s| s.why == why);
        let long: f64 = own
            .filter(|s| why != OffCpu::Blocked || !waits_for_work(&s.syscall_name, s.fd, s.syscall))
            .map(|s| s.ns as f64)
            .sum();
        (all - long).max(0.0) * scale
    };
    let (blocked, runnable, throttled) = (short(OffCpu::Blocked), short(OffCpu::Runnable), short(OffCpu::Throttled));
    let total = cpu_ns + blocked + runnable + throttled;
    if total <= 0.0 { [0.0; 3] } else { [cpu_ns / total, runnable / total, throttled / total] }
}

/// System calls in which samples found threads in the kernel, with the number of samples.
#[derive(Debug, Default)]
pub struct KernelCalls<'a> {
    by_tid: BTreeMap<u32, BTreeMap<&'a str, u64>>,
}

impl<'a> KernelCalls<'a> {
    /// Those of a capture.
    pub fn new(capture: &'a Capture) -> KernelCalls<'a> {
        let mut calls = KernelCalls::default();
        for sample in capture.samples.iter().filter(|s| !s.user && s.syscall != NO_SYSCALL) {
            let n = calls.by_tid.entry(sample.tid).or_default().entry(&sample.syscall_name).or_default();
            *n = n.saturating_add(sample.count);
        }
        calls
    }

    /// Those of a thread, most samples first.
    fn of(&self, tid: u32) -> Vec<(String, u64)> {
        let own = self.by_tid.get(&tid).into_iter().flatten();
        let mut calls: Vec<(String, u64)> = own.map(|(name, n)| ((*name).to_string(), *n)).collect();
        calls.stable_sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        calls
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::FdKind;
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::{MS, ThreadBuilder, arb};

    #[test]
    fn epoll_wait_without_work_is_idle() {
        let t = ThreadBuilder::new(7).blocked(0, 900 * MS, "epoll_wait", FdKind::Anon).fill();
        let stalls: Vec<&ThreadStall> = t.stalls.iter().collect();
        let idle = ThreadLedger::new(&t.record, &stalls, &Spans::default(), &KernelCalls::default());
        assert_eq!(idle.of(State::BlockedWorkAvailable), 0.0);
        assert_eq!(idle.of(State::Idle), 9e8);
        let unread = Spans::union(vec![(100 * MS, 400 * MS)]);
        let waiting = ThreadLedger::new(&t.record, &stalls, &unread, &KernelCalls::default());
        assert_eq!(waiting.of(State::BlockedWorkAvailable), 3e8);
        assert_eq!(waiting.of(State::OnCpuUser), 1e8);
    }

    proptest! {
        #[test]
        fn sums_to_the_wall_time(capture in arb::capture()) {
            for thread in &capture.threads {
                let stalls: Vec<&ThreadStall> = capture.thread_stalls.iter().filter(|s| s.tid == thread.tid).collect();
                let unread = Spans::union(
                    capture.flow_stalls.iter().map(|s| (s.begin_ns, s.begin_ns.saturating_add(s.ns))).collect(),
                );
                let l = ThreadLedger::new(thread, &stalls, &unread, &KernelCalls::new(&capture));
                let sum: f64 = l.ns.iter().sum();
                prop_assert!((sum - l.wall_ns).abs() <= 0.01 * l.wall_ns, "{sum} of {}", l.wall_ns);
                prop_assert!(l.ns.iter().all(|ns| *ns >= -1.0));
            }
        }
    }
}
