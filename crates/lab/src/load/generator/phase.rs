//! The time of a generator: warm-up, the measured window, and a while for the last replies.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use parshall_core::load::Latencies;
use parshall_core::sorting::IntoOrdered as _;
use parshall_sys::clock::process_cpu_ns;

use super::super::common::Clock;

/// Replies of the measured window are waited for this long behind it.
const DRAIN: Duration = Duration::from_secs(1);

/// Times are nanoseconds since the load began, with its warm-up.
#[derive(Debug, Clone)]
pub struct Phase {
    zero: Instant,
    /// The measured window.
    pub from_ns: u64,
    pub to_ns: u64,
    clock: Clock,
}

impl Phase {
    /// Begins now.
    pub fn begin(clock: &Clock, warm_up: Duration, time: Duration) -> Self {
        let from_ns = warm_up.as_nanos() as u64;
        Self { zero: Instant::now(), from_ns, to_ns: from_ns + time.as_nanos() as u64, clock: clock.clone() }
    }

    pub fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    /// Whether no further request is sent.
    pub fn over(&self, now_ns: u64) -> bool {
        now_ns >= self.to_ns || self.clock.stopped()
    }

    /// Whether no further reply is waited for.
    pub fn drained(&self, now_ns: u64) -> bool {
        now_ns >= self.to_ns + DRAIN.as_nanos() as u64 || self.clock.stopped()
    }

    /// Sleeps until this time, or a signal.
    pub fn sleep_until(&self, ns: u64, done: impl Fn() -> bool) {
        while !self.clock.stopped() && !done() {
            let left = Duration::from_nanos(ns.saturating_sub(self.now_ns()));
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// When no further reply is waited for.
    pub fn drained_ns(&self) -> u64 {
        self.to_ns + DRAIN.as_nanos() as u64
    }
}

/// Counts of a thread in the window.
#[derive(Debug, Default)]
pub struct Tally {
    pub requests: u64,
    pub bytes: u64,
    /// Connections that ended early.
    pub lost: u64,
    pub unanswered: u64,
    pub latencies: Latencies,
    pub send_lag: Latencies,
}

impl Tally {
    /// A reply that is complete now. Requests count where they end, latencies where they began.
    pub fn reply(&mut self, phase: &Phase, due_ns: u64, now_ns: u64, bytes: u64) {
        if (phase.from_ns..phase.to_ns).contains(&now_ns) {
            self.requests += 1;
            self.bytes += bytes;
        }
        if (phase.from_ns..phase.to_ns).contains(&due_ns) {
            self.latencies.record(now_ns.saturating_sub(due_ns));
        }
    }

    /// A request that is sent now, although it may have been due before.
    pub fn sent(&mut self, phase: &Phase, due_ns: u64, now_ns: u64) {
        if (phase.from_ns..phase.to_ns).contains(&due_ns) {
            self.send_lag.record(now_ns.saturating_sub(due_ns));
        }
    }

    /// A request without a reply at the end.
    pub fn no_reply(&mut self, phase: &Phase, due_ns: u64, now_ns: u64) {
        if (phase.from_ns..phase.to_ns).contains(&due_ns) {
            self.unanswered += 1;
            self.latencies.record(now_ns.saturating_sub(due_ns));
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        self.latencies.add(&other.latencies);
        self.send_lag.add(&other.send_lag);
    }
}

/// Counts of one thread since it began; another thread reads them.
#[derive(Debug, Default)]
#[repr(align(128))] // A cache line and its neighbour, so that threads do not slow each other down.
pub struct Counter {
    operations: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

/// Sums of [`Counter`]s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered requests, writes or packets.
    pub operations: u64,
    pub received: u64,
    pub sent: u64,
}

impl Counter {
    /// Only the thread that owns the counter calls it, so a plain store is enough.
    pub fn add(&self, more: Counts) {
        for (counter, more) in
            [(&self.operations, more.operations), (&self.received, more.received), (&self.sent, more.sent)]
        {
            if more > 0 {
                counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            }
        }
    }

    pub fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts { operations: read(&self.operations), received: read(&self.received), sent: read(&self.sent) }
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            operations: self.operations + other.operations,
            received: self.received + other.received,
            sent: self.sent + other.sent,
        }
    }
}

impl Counts {
    pub fn since(self, before: Self) -> Self {
        Self {
            operations: self.operations - before.operations,
            received: self.received - before.received,
            sent: self.sent - before.sent,
        }
    }
}

/// The counters of all threads that there have been.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Vec<Arc<Counter>>>);

impl Counters {
    /// A counter for a new thread.
    pub fn register(&self) -> Arc<Counter> {
        let counter = Arc::new(Counter::default());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counter));
        counter
    }

    pub fn read(&self) -> Counts {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().fold(Counts::default(), |sum, counter| sum + counter.read())
    }
}

/// CPU time of this process, and of each thread.
#[derive(Debug, Clone, Default)]
pub struct CpuUse {
    process_ns: u64,
    threads_ns: BTreeMap<String, u64>,
}

impl CpuUse {
    pub fn now() -> Self {
        let thread = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.ok()?;
            let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
            let ns = text.split_whitespace().next()?.parse().ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), ns))
        };
        let threads = std::fs::read_dir("/proc/self/task").map(|tasks| tasks.filter_map(thread).into_map());
        Self { process_ns: process_cpu_ns(), threads_ns: threads.unwrap_or_default() }
    }

    /// CPU time of the process since then, and of the thread that used most of it, in ns.
    pub fn since(&self, before: &Self) -> (u64, u64) {
        let used = |(id, ns): (&String, &u64)| ns.saturating_sub(before.threads_ns.get(id).copied().unwrap_or(0));
        let busiest = self.threads_ns.iter().map(used).max().unwrap_or(0);
        (self.process_ns.saturating_sub(before.process_ns), busiest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_thread_is_known() {
        let before = CpuUse::now();
        let busy = std::thread::spawn(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(60) {
                std::hint::spin_loop();
            }
            CpuUse::now()
        });
        let (process, busiest) = busy.join().expect("no panic").since(&before);
        // On a loaded host it gets less than it wants.
        assert!(process > 1_000_000 && busiest > 1_000_000 && busiest <= process + 8_000_000, "{process} {busiest}");
    }

    #[test]
    fn warm_up_is_left_out() {
        let clock = Clock::for_test(Duration::from_secs(60));
        let phase = Phase::begin(&clock, Duration::from_nanos(100), Duration::from_nanos(100));
        let mut tally = Tally::default();
        tally.reply(&phase, 50, 90, 1); // before
        tally.reply(&phase, 90, 110, 1); // ends in the window
        tally.reply(&phase, 150, 160, 1);
        tally.reply(&phase, 190, 250, 1); // begins in it
        tally.no_reply(&phase, 199, 300);
        tally.no_reply(&phase, 200, 300);
        assert_eq!((tally.requests, tally.latencies.count(), tally.unanswered), (2, 3, 1));
    }
}
