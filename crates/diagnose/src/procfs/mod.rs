//! The rung `procfs`: samples of SOCK_DIAG and /proc, without BPF. Needs no privilege for the user's own processes.
//!
//! `flows` and `threads` sample; `flow_state`, `flow_track` and `thread_account` make accounts of samples without any I/O; `pace`
//! keeps the cost below 2 % of a core. Flows and threads have a budget of half of it each.
pub mod blocked_in;
mod flow_state;
mod flow_track;
pub mod flows;
mod options;
pub mod pace;
#[cfg(test)]
mod tests;
pub mod thread_account;
pub mod threads;

use std::time::{Duration, Instant};

use anyhow::Result;
use parshall_evidence::{NetCounts, Rung, Slices};
use parshall_sys::clock::thread_cpu_ns;

use self::flows::Flows;
use self::pace::Pace;
use self::threads::Threads;
use super::cgroup::Watch;
use super::records::keep_involved;
use super::request::ObserveOptions;
use super::seen::{Cost, Seen};
use super::subject::{self, Resolved};
use super::window::{self, Attached, Progress, Stop};

/// Time between two samples, when that is affordable.
const INTERVAL: Duration = Duration::from_millis(5);
/// Share of a core that flows and threads may each cost.
const SHARE: f64 = 0.01;
/// How often to scan for new threads, processes, options.
const REFRESH: Duration = Duration::from_millis(250);
/// Longest sleep, so that `stop` is checked often enough.
const NAP_MAX: Duration = Duration::from_millis(50);

/// The rung.
pub struct Procfs;

impl window::Rung for Procfs {
    fn open(&self, _: &Resolved, _: &ObserveOptions) -> Result<Box<dyn Attached>> {
        Ok(Box::new(Session))
    }
}

/// Nothing is attached, and nothing is kept from window to window.
struct Session;

impl Attached for Session {
    fn begin<'a>(&'a mut self, resolved: &'a Resolved) -> Result<Box<dyn window::Window + 'a>> {
        let mut flows = Flows::start(resolved, SHARE);
        let cgroups = Watch::start(&resolved.processes);
        let begun = Instant::now();
        let clock = move || elapsed_ns(begun);
        let threads = Threads::start(&resolved.processes, clock);
        flows.sample(&clock, resolved);
        Ok(Box::new(Window {
            resolved: resolved.clone(),
            flow_pace: Pace::new(INTERVAL, SHARE),
            thread_pace: Pace::new(INTERVAL, SHARE),
            flows,
            threads,
            cgroups,
            begun,
            window_ns: 0,
        }))
    }
}

fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

/// The samples so far.
struct Window {
    /// The subject as it is now.
    resolved: Resolved,
    flow_pace: Pace,
    thread_pace: Pace,
    flows: Flows,
    threads: Threads,
    cgroups: Watch,
    begun: Instant,
    window_ns: u64,
}

impl window::Window for Window {
    fn watch(&mut self, limit: Duration, stop: &dyn Stop, progress: &mut Progress) -> Result<()> {
        let (window_ns, refresh_ns) = (limit.as_nanos() as u64, REFRESH.as_nanos() as u64);
        let begun = self.begun;
        let clock = move || elapsed_ns(begun);
        let had_processes = !self.resolved.processes.is_empty();
        let (mut flow_at, mut thread_at, mut refresh_at) = (0, 0, refresh_ns);
        let mut left = usize::from(had_processes);
        let mut governed = (clock(), thread_cpu_ns());
        loop {
            let now = clock();
            progress.at(Duration::from_nanos(now));
            let gone = had_processes && (left == 0 || self.resolved.processes.is_empty());
            let over = now >= window_ns || stop.requested() || stop.subject_gone() || gone;
            if over || now >= flow_at {
                let began = thread_cpu_ns();
                self.flows.sample(&clock, &self.resolved);
                self.flow_pace.spent(thread_cpu_ns().saturating_sub(began));
                flow_at = now + self.flow_pace.next_ns();
            }
            if over || now >= thread_at {
                let began = thread_cpu_ns();
                left = self.threads.sample(&clock, &self.resolved.processes, &self.cgroups);
                self.thread_pace.spent(thread_cpu_ns().saturating_sub(began));
                thread_at = now + self.thread_pace.next_ns();
            }
            if over {
                self.window_ns = clock();
                return Ok(());
            }
            if now >= refresh_at {
                self.refresh(clock());
                refresh_at = now + refresh_ns;
                let then = std::mem::replace(&mut governed, (clock(), thread_cpu_ns()));
                let used = (governed.1 - then.1) as f64 / (governed.0 - then.0).max(1) as f64;
                self.flow_pace.govern(used, 2.0 * SHARE);
                self.thread_pace.govern(used, 2.0 * SHARE);
            }
            let next = flow_at.min(thread_at).min(refresh_at).min(window_ns);
            std::thread::sleep(Duration::from_nanos(next.saturating_sub(clock())).min(NAP_MAX));
        }
    }

    fn end(self: Box<Self>) -> Result<Seen> {
        Ok(self.seen())
    }
}

impl Window {
    fn refresh(&mut self, now_ns: u64) {
        let changes = self.resolved.refresh();
        self.threads.read_slow_counters(&changes.exited);
        for (pid, tid) in changes.new_threads {
            self.threads.add(pid, tid, now_ns);
        }
        self.flows.drop_foreign(&self.resolved);
        self.flows.read_options();
    }

    fn seen(self) -> Seen {
        let (resolved, window_ns) = (&self.resolved, self.window_ns);
        let blind = self.blind();
        let untracked = self.flows.untracked + self.threads.untracked;
        let samples = self.flows.samples;
        let (opened, closed) = (self.flows.opened, self.flows.closed);
        let (flows, flow_stalls) = self.flows.finish(window_ns);
        let (mut threads, mut thread_stalls) = self.threads.finish();
        keep_involved(&resolved.clients(), &flows, &mut threads, &mut thread_stalls, &mut Vec::new());
        let retransmitted =
            |flow: &parshall_evidence::FlowRecord| flow.last.total_retrans.saturating_sub(flow.first.total_retrans);
        let net =
            NetCounts { retransmits: flows.iter().map(retransmitted).sum(), opened, closed, ..NetCounts::default() };
        Seen {
            window_ns,
            subject: resolved.subject.clone(),
            blind,
            slices: Slices { count: 1, observed_ns: window_ns, events: samples, spans: vec![(0, window_ns)] },
            flows,
            threads,
            flow_stalls,
            thread_stalls,
            cgroups: self.cgroups.finish(),
            net,
            cost: Cost { events: samples, untracked, ..Cost::default() },
            ..Seen::nothing(Rung::Procfs)
        }
    }

    /// Gaps of this rung, and those of this time.
    fn blind(&self) -> Vec<String> {
        let [flows, threads] = [&self.flow_pace, &self.thread_pace].map(|pace| pace.how_often(self.window_ns));
        let mut blind = vec![
            format!("flows were sampled {flows}: shorter holds count by chance, and what ended them is unknown"),
            format!("threads were sampled {threads}: CPU time is exact, what a block waited for is sampled"),
            "no wake-ups, no stacks and no counts of system calls without BPF".to_owned(),
        ];
        let mut note = |when: bool, text: &str| {
            if when {
                blind.push(text.to_owned());
            }
        };
        note(
            self.flow_pace.stretched() || self.thread_pace.stretched(),
            "samples are further apart than asked for: more often would cost more than 2 % of a core",
        );
        let late =
            format!("the kernel's socket table is large: new flows are found up to {:.1} s late", self.flows.late_s);
        note(self.flows.late_s > 0.05, &late);
        let entered = format!("some network namespaces could not be entered{}", subject::to_see("their flows"));
        note(self.flows.refused > 0, &entered);
        note(self.flows.failed(), "the kernel stopped answering about some network namespace");
        let guessed = format!("what some threads wait in is guessed{}", subject::to_see("their system calls"));
        note(self.threads.hidden > 0, &guessed);
        note(self.threads.ticks_only, "CPU time comes in ticks of 10 ms: this kernel keeps no schedstat");
        blind.extend(self.resolved.notes.iter().cloned());
        blind
    }
}
