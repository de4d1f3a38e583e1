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
use parshall_evidence::{CAPTURE_SCHEMA, Capture, NetCounts, ProbeCost, Rung, Slices};
use parshall_sys::clock::thread_cpu_ns;

use self::flows::Flows;
use self::pace::Pace;
use self::threads::Threads;
use super::cgroup::Watch;
use super::host::{self, HostWatch};
use super::records::keep_involved;
use super::subject::{self, Resolved};

/// How to sample.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of the window.
    pub window: Duration,
    /// Time between two samples, when that is affordable.
    pub interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { window: Duration::from_secs(5), interval: Duration::from_millis(5) }
    }
}

/// Share of a core that flows and threads may each cost.
const SHARE: f64 = 0.01;
/// How often to scan for new threads, processes, options.
const REFRESH: Duration = Duration::from_millis(250);
/// Longest sleep, so that `stop` is checked often enough.
const NAP_MAX: Duration = Duration::from_millis(50);

/// Observes the subject for the window, or until its last process exits, or until `stop` requests it.
pub fn observe(resolved: &Resolved, options: &Options, stop: &dyn Fn() -> bool) -> Result<Capture> {
    let setup = Instant::now();
    let mut flows = Flows::start(resolved, SHARE);
    let host = HostWatch::start();
    let cgroups = Watch::start(&resolved.processes);
    let origin = Instant::now();
    let clock = move || origin.elapsed().as_nanos() as u64;
    let threads = Threads::start(&resolved.processes, clock);
    let mut resolved = resolved.clone();
    flows.sample(&clock, &resolved);
    let attach_ms = setup.elapsed().as_secs_f64() * 1e3;
    let mut observation = Observation {
        flow_pace: Pace::new(options.interval, SHARE),
        thread_pace: Pace::new(options.interval, SHARE),
        flows,
        threads,
        cgroups,
        rounds: 0,
    };
    let window_ns = observation.run(&mut resolved, options.window, &clock, stop);
    Ok(observation.finish(&resolved, window_ns, &host, attach_ms))
}

struct Observation {
    flow_pace: Pace,
    thread_pace: Pace,
    flows: Flows,
    threads: Threads,
    cgroups: Watch,
    rounds: u64,
}

impl Observation {
    /// Samples until the end; returns when that was.
    fn run(
        &mut self,
        resolved: &mut Resolved,
        window: Duration,
        clock: &impl Fn() -> u64,
        stop: &dyn Fn() -> bool,
    ) -> u64 {
        let window_ns = window.as_nanos() as u64;
        let refresh_ns = REFRESH.as_nanos() as u64;
        let had_processes = !resolved.processes.is_empty();
        let (mut flow_at, mut thread_at, mut refresh_at) = (0, 0, refresh_ns);
        let mut left = usize::from(had_processes);
        let mut governed = (clock(), thread_cpu_ns());
        loop {
            let now = clock();
            let over = now >= window_ns || stop() || had_processes && (left == 0 || resolved.processes.is_empty());
            if over || now >= flow_at {
                let began = thread_cpu_ns();
                self.flows.sample(clock, resolved);
                self.flow_pace.spent(thread_cpu_ns().saturating_sub(began));
                flow_at = now + self.flow_pace.next_ns();
                self.rounds += 1;
            }
            if over || now >= thread_at {
                let began = thread_cpu_ns();
                left = self.threads.sample(clock, &resolved.processes, &self.cgroups);
                self.thread_pace.spent(thread_cpu_ns().saturating_sub(began));
                thread_at = now + self.thread_pace.next_ns();
            }
            if over {
                return clock();
            }
            if now >= refresh_at {
                self.refresh(resolved, clock());
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

    fn refresh(&mut self, resolved: &mut Resolved, now_ns: u64) {
        let changes = resolved.refresh();
        self.threads.read_slow_counters(&changes.exited);
        for (pid, tid) in changes.new_threads {
            self.threads.add(pid, tid, now_ns);
        }
        self.flows.drop_foreign(resolved);
        self.flows.read_options();
    }

    fn finish(self, resolved: &Resolved, window_ns: u64, host: &HostWatch, attach_ms: f64) -> Capture {
        let blind = self.blind(resolved, window_ns);
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
        Capture {
            schema: CAPTURE_SCHEMA.to_owned(),
            subject: resolved.subject.clone(),
            origin: None,
            command: None,
            own_relays: Vec::new(),
            followed: Vec::new(),
            host: host.host(),
            window_ns,
            rung: Rung::Procfs,
            blind,
            unseen: Vec::new(),
            slices: Slices { count: 1, observed_ns: window_ns, events: samples, spans: vec![(0, window_ns)] },
            flows,
            threads,
            timeline: None,
            services: Vec::new(),
            flow_stalls,
            thread_stalls,
            samples: Vec::new(),
            stacks: Vec::new(),
            cgroups: self.cgroups.finish(),
            net,
            counters: None,
            waiting: None,
            hardware: None,
            probe: ProbeCost {
                kernel_cpu_ns: 0,
                own_cpu_ns: host.own_cpu_ns(),
                rss_bytes: host::own_rss_bytes(),
                lost_events: 0,
                events: samples,
                untracked,
                attach_ms,
            },
        }
    }

    /// What this rung cannot show, and what it could not show this time.
    fn blind(&self, resolved: &Resolved, window_ns: u64) -> Vec<String> {
        let [flows, threads] = [&self.flow_pace, &self.thread_pace].map(|pace| pace.how_often(window_ns));
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
        blind.extend(resolved.notes.iter().cloned());
        blind
    }
}
