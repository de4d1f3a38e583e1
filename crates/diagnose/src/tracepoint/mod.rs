//! The rung `tracepoint`: every event of threads from classic tracepoints, flows sampled as on the procfs rung.
//!
//! For kernels without BTF. `parshall_core::observe::slice` decides when a slice begins and ends, `procfs::pace` how often flows
//! are sampled. `threads` puts the probes' exact accounts into the records from /proc.
mod kinds;
#[cfg(test)]
mod tests;
mod threads;

use std::time::Duration;

use anyhow::Context;
use parshall_bpf::clock::monotonic_ns;
use parshall_bpf::diagnose::Counters;
use parshall_bpf::diagnose::Event;
use parshall_bpf::diagnose::classic::{Classic, Error};
use parshall_bpf::diagnose::thread::ThreadDump;
use parshall_core::observe::slice::{SlicePlan, Step};
use parshall_core::sorting::StableSort as _;
use parshall_core::units;
use parshall_evidence::{NetCounts, Rung};
use parshall_host::cpus;
use parshall_sys::clock::thread_cpu_ns;

use self::kinds::Kinds;
use self::threads::Seeds;
use super::cgroup::Watch;
use super::meter::{Meter, Reading};
use super::procfs::flows::Flows;
use super::procfs::pace::Pace;
use super::procfs::threads::Threads;
use super::records::{Recorded, Records, keep_involved};
use super::request::ObserveOptions;
use super::seen::{Cost, Seen};
use super::subject::{self, Resolved};
use super::window::{self, Attached, Progress, Stop};

/// The time between two drains of the ring, with the checks of the plan and of the sampling clock.
const TICK: Duration = Duration::from_millis(5);
/// The shares of a core that sampling flows and reading threads in /proc may cost.
const FLOW_SHARE: f64 = 0.01;
const THREAD_SHARE: f64 = 0.005;
/// Interval of reading threads in /proc: only names and CPU time, but with a CPU quota also which threads are throttled.
const THREADS_EVERY: Duration = Duration::from_millis(100);
const THREADS_EVERY_QUOTA: Duration = Duration::from_millis(10);
/// How often to scan for new threads, processes, options.
const REFRESH_NS: u64 = 250_000_000;

/// The rung.
pub struct Tracepoints;

impl window::Rung for Tracepoints {
    fn open(&self, resolved: &Resolved, _: &ObserveOptions) -> anyhow::Result<Box<dyn Attached>> {
        let mut classic = match Classic::load(resolved.select.follows_children()) {
            Err(Error::NoTracefs) => {
                anyhow::bail!("{}; as root: `mount -t tracefs tracefs /sys/kernel/tracing`", Error::NoTracefs)
            }
            loaded => loaded.context("loading the classic probes")?,
        };
        for process in &resolved.processes {
            classic.add_process(process.pid);
        }
        classic.attach_always()?;
        Ok(Box::new(Session { classic, kinds: Kinds::default() }))
    }
}

/// The attached probes, and what they were told of the subject.
struct Session {
    classic: Classic,
    kinds: Kinds,
}

/// Reports of probes and samplers in a window so far.
struct Window<'a> {
    classic: &'a mut Classic,
    kinds: &'a mut Kinds,
    records: Records,
    seeds: Seeds,
    flows: Flows,
    threads: Threads,
    cgroups: Watch,
    /// The subject as it is now.
    resolved: Resolved,
    flow_pace: Pace,
    thread_pace: Pace,
    meter: Meter,
    ended: Vec<ThreadDump>,
    counters0: Counters,
    begin: u64,
    end: u64,
    unsampled_cpus: usize,
    untracked: u64,
}

impl Attached for Session {
    fn begin<'a>(&'a mut self, resolved: &'a Resolved) -> anyhow::Result<Box<dyn window::Window + 'a>> {
        let Self { classic, kinds } = self;
        // Their reports since the last window are of none.
        while classic.drain(&mut Vec::new()) {}
        let untracked0 = classic.counters().untracked;
        classic.renew();
        kinds.renew();
        kinds.refresh(classic, &resolved.processes, 0);
        let mut flows = Flows::start(resolved, FLOW_SHARE);
        let cgroups = Watch::start(&resolved.processes);
        let threads_every = if cgroups.has_quota() { THREADS_EVERY_QUOTA } else { THREADS_EVERY };
        let mut untracked = 0;
        for process in &resolved.processes {
            classic.add_process(process.pid);
            for &tid in &process.threads {
                untracked += u64::from(!classic.add_thread(tid, process.pid));
            }
        }
        let threads = Threads::start(&resolved.processes, || 0);
        let unsampled_cpus = classic.attach_samples(cpus::online().into_iter().map(u32::cast_signed));
        let mut meter = Meter::new(classic.start_timing());
        let counters0 = Counters { untracked: untracked0, ..classic.counters() };
        let begin = classic.begin_slice()?;
        meter.begin(begin, reading(classic));
        let mut seeds = Seeds::default();
        seeds.begin(classic, &resolved.processes);
        let clock = move || monotonic_ns().saturating_sub(begin);
        flows.sample(&clock, resolved);
        Ok(Box::new(Window {
            classic,
            kinds,
            records: Records::new(true, false),
            seeds,
            flows,
            threads,
            cgroups,
            resolved: resolved.clone(),
            flow_pace: Pace::new(TICK, FLOW_SHARE),
            thread_pace: Pace::new(threads_every, THREAD_SHARE),
            meter,
            ended: Vec::new(),
            counters0,
            begin,
            end: begin,
            unsampled_cpus,
            untracked,
        }))
    }
}

impl window::Window for Window<'_> {
    fn watch(&mut self, limit: Duration, stop: &dyn Stop, progress: &mut Progress) -> anyhow::Result<()> {
        let begin = self.begin;
        let clock = move || monotonic_ns().saturating_sub(begin);
        let window_ns = limit.as_nanos() as u64;
        let had_processes = !self.resolved.processes.is_empty();
        let mut plan = SlicePlan::new(begin, begin + window_ns);
        let (mut flow_at, mut thread_at, mut check_at, mut refresh_at) = (0, 0, 0, REFRESH_NS);
        loop {
            let now = clock();
            self.drain();
            progress.at(Duration::from_nanos(now));
            let checked = now >= check_at;
            check_at = if checked { now + REFRESH_NS } else { check_at };
            let gone = had_processes && self.resolved.processes.is_empty() || checked && stop.subject_gone();
            let over = now >= window_ns || stop.requested() || gone;
            if over || now >= flow_at {
                let began = thread_cpu_ns();
                self.flows.sample(&clock, &self.resolved);
                self.flow_pace.spent(thread_cpu_ns().saturating_sub(began));
                flow_at = now + self.flow_pace.next_ns();
            }
            if over || now >= thread_at {
                let began = thread_cpu_ns();
                self.threads.sample(&clock, &self.resolved.processes, &self.cgroups);
                self.thread_pace.spent(thread_cpu_ns().saturating_sub(began));
                thread_at = now + self.thread_pace.next_ns();
            }
            if over {
                break;
            }
            if now >= refresh_at {
                self.refresh(clock());
                refresh_at = now + REFRESH_NS;
            }
            let now = monotonic_ns();
            let step = if now >= plan.due_at() {
                plan.step(now, self.meter.cost(now, reading(self.classic)), None)
            } else {
                Step::Keep
            };
            match step {
                Step::Keep => {}
                Step::Pause => self.pause(),
                Step::Resume => self.resume()?,
            }
            let next = flow_at.min(thread_at).min(window_ns).saturating_sub(clock());
            std::thread::sleep(Duration::from_nanos(next).min(TICK));
        }
        self.end = monotonic_ns();
        if self.meter.slice_begin().is_some() {
            self.end = self.end_slice();
        }
        self.classic.detach_samples();
        self.classic.stop_timing();
        self.drain();
        Ok(())
    }

    fn end(self: Box<Self>) -> anyhow::Result<Seen> {
        Ok(self.seen())
    }
}

impl Window<'_> {
    fn drain(&mut self) {
        let (mut events, mut more) = (Vec::new(), true);
        while more {
            more = self.classic.drain(&mut events);
            for event in events.drain(..) {
                match event {
                    Event::ThreadEnd(dump) => self.ended.push(*dump),
                    other => self.records.take(other),
                }
            }
        }
    }

    fn refresh(&mut self, now_ns: u64) {
        let changes = self.resolved.refresh();
        self.threads.read_slow_counters(&changes.exited);
        for &pid in &changes.started {
            self.classic.add_process(pid);
        }
        for (pid, tid) in changes.new_threads {
            self.untracked += u64::from(!self.classic.add_thread(tid, pid));
            self.threads.add(pid, tid, now_ns);
        }
        self.flows.drop_foreign(&self.resolved);
        self.flows.read_options();
        for (local, remote) in self.flows.ports() {
            self.classic.add_ports(local, remote);
        }
        self.kinds.refresh(self.classic, &self.resolved.processes, now_ns);
    }

    fn end_slice(&mut self) -> u64 {
        let end = self.classic.end_slice();
        if let Some(begin) = self.meter.slice_begin() {
            self.seeds.end(self.classic, (begin, end));
        }
        self.meter.end(end, reading(self.classic));
        end
    }

    fn pause(&mut self) {
        self.end_slice();
        // Measuring costs as much as a cheap probe, and the later slices can be estimated from this one.
        self.classic.stop_timing();
        self.meter.timing = false;
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        let now = reading(self.classic);
        let begin = self.classic.begin_slice()?;
        self.meter.begin(begin, now);
        self.seeds.begin(self.classic, &self.resolved.processes);
        Ok(())
    }

    fn seen(mut self) -> Seen {
        let window_ns = self.end - self.begin;
        let counters = self.classic.counters();
        let blind = self.blind(window_ns);
        let missed = counters.untracked - self.counters0.untracked;
        let untracked = self.untracked + self.flows.untracked + self.threads.untracked + missed;
        let (opened, closed, sampled) = (self.flows.opened, self.flows.closed, self.flows.samples);
        let (flows, flow_stalls) = self.flows.finish(window_ns);
        let entries = self.classic.threads();
        let parts = threads::Parts {
            window: (self.begin, self.end),
            entries: &entries,
            ended: &self.ended,
            off: self.classic.off_cells(),
            calls: self.classic.sys_cells(),
            samples: self.records.samples_by_thread(),
        };
        let mut threads = threads::exact(self.threads.finish().0, &self.seeds, &parts);
        let mut subject = self.resolved.subject.clone();
        subject::add_observed(&mut subject, &threads);
        let mut recorded = self.records.finish(self.begin);
        recorded.thread_stalls.extend(self.seeds.take_stalls(self.begin));
        let Recorded { thread_stalls, samples, .. } = &mut recorded;
        keep_involved(&self.resolved.clients(), &flows, &mut threads, thread_stalls, samples);
        recorded.thread_stalls.stable_sort_by_key(|stall| stall.begin_ns);
        let retransmitted: u64 = flows.iter().map(|f| f.last.total_retrans.saturating_sub(f.first.total_retrans)).sum();
        Seen {
            window_ns,
            begin_ns: self.begin,
            subject,
            blind,
            slices: self.meter.slices(self.begin, counters.events - self.counters0.events),
            flows,
            threads,
            flow_stalls,
            thread_stalls: recorded.thread_stalls,
            samples: recorded.samples,
            stacks: Some(recorded.stacks),
            cgroups: self.cgroups.finish(),
            net: NetCounts {
                // The sockets' own counters hold those before a flow was found, the tracepoint those after it was gone.
                retransmits: retransmitted.max(counters.retransmits - self.counters0.retransmits),
                resets_sent: counters.resets_sent - self.counters0.resets_sent,
                resets_received: counters.resets_received - self.counters0.resets_received,
                opened,
                closed,
                ..NetCounts::default()
            },
            cost: Cost {
                kernel_cpu_ns: self.meter.kernel_ns,
                lost_events: counters.lost - self.counters0.lost,
                missed_events: counters.missed - self.counters0.missed,
                events: recorded.events + sampled,
                untracked,
            },
            ..Seen::nothing(Rung::Tracepoint)
        }
    }

    /// Gaps of this rung, and those of this time.
    fn blind(&self, window_ns: u64) -> Vec<String> {
        let flows = self.flow_pace.how_often(window_ns);
        let mut blind =
            vec![format!("flows were sampled {flows}: shorter holds count by chance, and what ended them is unknown")];
        blind.push("a sleep's kernel stack is known from the second long sleep in a row on".to_owned());
        if self.cgroups.has_quota() {
            blind.push(
                "how much of the waiting for a CPU is throttling comes from the control group's counters".to_owned(),
            );
        }
        blind.extend(self.classic.missing());
        if self.unsampled_cpus > 0 {
            let cpus = units::plural(self.unsampled_cpus as u64, "CPU", "CPUs");
            blind.push(format!("{cpus} could not be sampled: no stacks of running threads there"));
        }
        let mut note = |when: bool, text: &str| {
            if when {
                blind.push(text.to_owned());
            }
        };
        note(self.flows.late_s > 0.05, "the kernel's socket table is large: new flows are found late");
        let entered = format!("some network namespaces could not be entered{}", subject::to_see("their flows"));
        note(self.flows.refused > 0, &entered);
        note(self.flows.failed(), "the kernel stopped answering about some network namespace");
        blind.extend(self.resolved.notes.iter().cloned());
        blind
    }
}

fn reading(classic: &Classic) -> Reading {
    let (timed_ns, timed_runs) = classic.timed_runs();
    Reading { events: classic.events(), timed_ns, timed_runs }
}
