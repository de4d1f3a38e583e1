//! The rung `btf`: probes on typed tracepoints, read by iterators.
//!
//! Attaches, waits, drains and reads. `parshall_core::observe::slice` decides when a slice begins and ends,
//! `parshall_core::judge` what the capture means. The programs stay loaded from window to window; `Probes::renew` empties their ledgers.
mod assemble;
mod ended;
#[cfg(test)]
mod interpreter_tests;
mod merged;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::Context;
use parshall_bpf::clock::{monotonic_ns, tick_hz};
use parshall_bpf::diagnose::features::Missing;
use parshall_bpf::diagnose::lifecycle::FlowDump;
use parshall_bpf::diagnose::net::{NetKey, NetValue};
use parshall_bpf::diagnose::thread::ThreadDump;
use parshall_bpf::diagnose::{Config, Counters, Event, Probes, Scope};
use parshall_core::observe::owned::{Owned, of_subject};
use parshall_core::observe::slice::{SlicePlan, Step};
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::units;
use parshall_evidence::{FlowId, FlowRecord, FlowStall, NetCounts, Rung, TcpSnapshot, ThreadRecord, Unseen};

use super::cgroup;
use super::follow::Follower;
use super::follow::receivers::Receivers;
use super::meter::{Meter, Reading};
use super::mutex;
use super::records::{Recorded, Records, keep_involved};
use super::request::{Naming, ObserveOptions};
use super::seen::{Cost, Seen};
use super::subject::{self, Holders, Resolved, Select};
use super::timeline;
use super::window::{self, Attached, Progress, Stop};
use ended::Ended;
use parshall_host::{cpus, proc_fs};

/// Flows tracked at most, 2 kB each in the kernel and here.
const FLOWS_MAX: u32 = 16_384;
/// How many of the connections that are open at the start are tracked at once.
const FLOWS_EAGER: u32 = 8192;
/// Of more connections than that, those that carried data this short a time before are taken as active.
const RECENT: Duration = Duration::from_secs(10);
/// The longest time between two drains of the ring: it holds several times what arrives meanwhile on a host that opens 26,000
/// connections a second. Each drain disturbs a saturated service, so there are no more than needed.
const TICK: Duration = Duration::from_millis(50);
/// The most portions of records that are handled in a row: several times what the ring holds.
const DRAINS_MAX: usize = 256;
/// A connection of which no slice saw anything is kept by itself only if it lived longer than this.
const SHORT_LIFE_NS: u64 = 100_000_000;
/// The time between two checks of the host's idle time and of whether the subject still lives.
const CHECK_NS: u64 = 100_000_000;
/// A window that has lasted longer goes on: what it has seen is worth more than what it has not.
const BEGINS_AGAIN_NS: u64 = 3_000_000_000;

/// The rung.
pub struct Btf;

impl window::Rung for Btf {
    fn open(&self, resolved: &Resolved, options: &ObserveOptions) -> anyhow::Result<Box<dyn Attached>> {
        let mut probes = Probes::load(&config(resolved, options)).context("loading the probes")?;
        probes.attach_always()?;
        for sock in resolved.sockets.iter().filter(|sock| sock.listening && sock.mptcp) {
            probes.add_mptcp_port(sock.netns, sock.local.port())?;
        }
        let receivers = Receivers::new(resolved.bystanders_of_service(), resolved.select.ports());
        let follower = Follower::start(&probes, resolved.select != Select::All, receivers)?;
        let (eager, interpreters) = (options.naming == Naming::All, options.interpreters);
        Ok(Box::new(Session { probes, follower, eager, interpreters, windows: 0 }))
    }
}

/// The attached probes, and the processes that are observed with them.
struct Session {
    probes: Probes,
    follower: Follower,
    /// Name user addresses as they arrive.
    eager: bool,
    /// Functions that interpreters run are asked for.
    interpreters: bool,
    /// Windows that have begun.
    windows: u64,
}

/// The probes' reports in a window so far.
struct Window<'a> {
    probes: &'a mut Probes,
    follower: &'a mut Follower,
    resolved: &'a Resolved,
    cgroups: cgroup::Watch,
    records: Records,
    timeline: timeline::Events,
    begin: u64,
    end: u64,
    first_flows: HashMap<u64, TcpSnapshot>,
    ended_flows: Ended<FlowDump>,
    last_flows: Vec<FlowDump>,
    /// Of those that ended and are not kept one by one.
    sums: merged::Sums,
    listeners: HashSet<(u64, u16)>,
    first_threads: Vec<ThreadDump>,
    ended_threads: Ended<ThreadDump>,
    last_threads: Vec<ThreadDump>,
    threads_dropped: u64,
    /// Processes that are only clients of the port.
    clients: HashSet<u32>,
    mutex_owners: HashMap<u32, u32>,
    owners: HashMap<u64, u32>,
    counters0: Counters,
    net0: HashMap<NetKey, NetValue>,
    meter: Meter,
    unsampled_cpus: usize,
    /// Processes whose interpreter the probes could not be told of.
    uninterpreted: u32,
    begins_again: bool,
}

impl Attached for Session {
    fn begin<'a>(&'a mut self, resolved: &'a Resolved) -> anyhow::Result<Box<dyn window::Window + 'a>> {
        let Self { probes, follower, .. } = self;
        if self.windows > 0 {
            discard(probes, follower);
            follower.renew(probes);
            // Each window finds them anew: the number of a process can be another one's by then.
            probes.forget_interpreters();
        }
        self.windows += 1;
        add_processes(probes, resolved)?;
        let before = probes.counters();
        let owners = probes.owners()?.into_iter().map(|o| (o.cookie, o.tgid)).collect();
        let (mut first_flows, hz) = (HashMap::new(), tick_hz());
        // The figures only: an account of 2 kB is kept of each socket at the end.
        let first_threads = probes.renew(|dump| first_flows.extend([(dump.flow.cookie, dump.snap.decode(hz))]))?;
        let unsampled_cpus = probes.attach_samples(cpus::online().into_iter().map(u32::cast_signed));
        let mut meter = Meter::new(probes.start_timing());
        let counters0 = begun(before, probes.counters());
        let net0 = probes.net_counts().into_iter().collect();
        let mut timeline = timeline::Events::default();
        timeline.know_served(served(resolved));
        let reading = reading(probes);
        let begin = probes.begin_slice()?;
        meter.begin(begin, reading);
        Ok(Box::new(Window {
            cgroups: cgroup::Watch::start(&resolved.processes),
            listeners: resolved.listeners.union(follower.listeners()).copied().collect(),
            probes,
            follower,
            resolved,
            records: Records::new(self.eager, self.interpreters),
            timeline,
            begin,
            end: begin,
            first_flows,
            ended_flows: Ended::default(),
            last_flows: Vec::new(),
            sums: merged::Sums::default(),
            first_threads,
            ended_threads: Ended::default(),
            last_threads: Vec::new(),
            threads_dropped: 0,
            clients: HashSet::new(),
            mutex_owners: HashMap::new(),
            owners,
            counters0,
            net0,
            meter,
            unsampled_cpus,
            uninterpreted: 0,
            begins_again: false,
        }))
    }
}

impl window::Window for Window<'_> {
    fn watch(&mut self, limit: Duration, stop: &dyn Stop, progress: &mut Progress) -> anyhow::Result<()> {
        let deadline = self.begin + limit.as_nanos() as u64;
        let mut plan = SlicePlan::new(self.begin, deadline);
        let mut events = Vec::new();
        let mut next_check = 0;
        loop {
            let next = plan.due_at().min(deadline);
            std::thread::sleep(TICK.min(Duration::from_nanos(next.saturating_sub(monotonic_ns()))));
            let now = monotonic_ns();
            self.drain(&mut events);
            progress.at(Duration::from_nanos(now - self.begin));
            if now >= deadline || stop.requested() {
                break;
            }
            if now >= next_check {
                next_check = now + CHECK_NS;
                if stop.subject_gone() {
                    break;
                }
            }
            if self.probes.attach_needed()? {
                // On a busy host this can take as long as a window.
                if stop.may_begin_again() && monotonic_ns() - self.begin < BEGINS_AGAIN_NS {
                    self.begins_again = true;
                    break;
                }
                self.drain(&mut events);
                self.timeline.forget_unread();
            }
            self.follow(now)?;
            if now < plan.due_at() {
                continue;
            }
            let cost = self.meter.cost(now, reading(self.probes));
            match plan.step(now, cost, self.timeline.mean_request_ns(now)) {
                Step::Keep => {}
                Step::Pause => self.pause()?,
                Step::Resume => self.resume()?,
            }
        }
        tracing::debug!("the window has ended");
        self.close(&mut events)
    }

    fn begins_again(&self) -> bool {
        self.begins_again
    }

    fn end(self: Box<Self>) -> anyhow::Result<Seen> {
        self.seen()
    }
}

impl Window<'_> {
    /// Ends the last slice, and reads the ledgers of what has not ended before.
    fn close(&mut self, events: &mut Vec<Event>) -> anyhow::Result<()> {
        if self.meter.slice_begin().is_some() {
            self.mutex_owners = mutex::owners(self.probes.processes().into_iter().map(|process| process.tgid));
            self.end = self.end_slice();
        } else {
            self.end = monotonic_ns();
        }
        let (open_flows, live_threads) = (self.probes.flows()?, self.probes.threads()?);
        self.probes.rest();
        self.drain(events);
        // Flows and threads that ended within the window come first and so win over the later dump.
        let (kept, rest) = self.ended_flows.take();
        self.merge(&rest);
        self.last_flows.extend(kept.into_iter().chain(open_flows));
        self.last_flows.iter().for_each(|dump| self.follower.see_flow(dump));
        let (kept, rest) = self.ended_threads.take();
        self.threads_dropped += rest.len() as u64;
        self.last_threads.extend(kept.into_iter().chain(live_threads));
        self.last_threads.iter().for_each(|dump| self.follower.see_thread_account(dump));
        self.clients.extend(self.last_threads.iter().filter(|dump| dump.port_only != 0).map(|dump| dump.tgid));
        if self.last_threads.iter().all(|dump| dump.port_only != 0 || dump.followed != 0) {
            // Nobody serves the port here: its clients are the subject.
            self.clients.clear();
        }
        Ok(())
    }

    /// Handles what has arrived; `events` is empty before and after.
    fn drain(&mut self, events: &mut Vec<Event>) {
        for _ in 0..DRAINS_MAX {
            let more = self.probes.drain(events);
            self.take(events);
            if !more {
                break;
            }
        }
    }

    fn take(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            self.follower.see(&event);
            match event {
                Event::OffCpu(wire) => self.timeline.take_off_cpu(&wire),
                Event::Call(wire) => self.timeline.take_call(&wire),
                Event::UdpCall(wire) => self.timeline.take_datagram(&wire),
                Event::FlowEnd(dump) => {
                    self.timeline.take_closed(&dump);
                    let life_ns = dump.snap.at.saturating_sub(dump.flow.begin);
                    // One that came and went between two slices tells nothing by itself; the sum is scaled for it.
                    let unseen = life_ns < SHORT_LIFE_NS && dump.flow.count.iter().all(|count| *count == 0);
                    let rest = if unseen { vec![*dump] } else { self.ended_flows.push(life_ns, *dump) };
                    self.merge(&rest);
                }
                Event::ThreadEnd(dump) => {
                    self.clients.extend((dump.port_only != 0).then_some(dump.tgid));
                    let rest = self.ended_threads.push(dump.at.saturating_sub(dump.start_time), *dump);
                    self.threads_dropped += rest.len() as u64;
                }
                other => self.records.take(other),
            }
        }
        for (tgid, interpreter) in self.records.found_interpreters() {
            self.uninterpreted += u32::from(!self.probes.add_interpreter(tgid, &interpreter));
        }
    }

    /// Adds flows that ended to the sums.
    fn merge(&mut self, ended: &[FlowDump]) {
        if ended.is_empty() {
            return;
        }
        let parts = assemble::FlowParts {
            window: (self.begin, monotonic_ns()),
            first: &self.first_flows,
            last: &[],
            hz: tick_hz(),
            listeners: &self.listeners,
            owners: &self.owners,
        };
        let subjects = ended.iter().map(|dump| assemble::flow(&parts, dump)).filter(|flow| !self.follower.owns(flow));
        subjects.for_each(|flow| self.sums.add(flow));
    }

    /// Observes further processes that the subject may wait for, in a slice or between two.
    fn follow(&mut self, now: u64) -> anyhow::Result<()> {
        if self.follower.step(self.probes, now)? {
            let before = reading(self.probes);
            self.owners.extend(self.probes.owners()?.into_iter().map(|owner| (owner.cookie, owner.tgid)));
            self.probes.threads()?;
            self.meter.set_aside(before, reading(self.probes));
            self.listeners.extend(self.follower.listeners());
        }
        Ok(())
    }

    fn end_slice(&mut self) -> u64 {
        let end = self.probes.end_slice();
        self.meter.end(end, reading(self.probes));
        self.timeline.slice_ended(end);
        end
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.end_slice();
        // Measuring costs as much as a cheap probe, and the later slices can be estimated from this one.
        self.probes.stop_timing();
        self.meter.timing = false;
        // These dumps close the slice's open intervals.
        self.probes.for_each_flow(drop)?;
        self.probes.threads()?;
        Ok(())
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        let before = reading(self.probes);
        let begin = self.probes.begin_slice()?;
        self.meter.begin(begin, before);
        Ok(())
    }

    /// Gaps of the observation, a sentence each.
    fn blind(&self, counters: &Counters) -> Vec<String> {
        let mut blind: Vec<String> = self.probes.missing();
        if self.unsampled_cpus > 0 {
            let cpus = units::plural(self.unsampled_cpus as u64, "CPU", "CPUs");
            blind.push(format!("{cpus} could not be sampled: no stacks of running threads there"));
        }
        if self.uninterpreted > 0 {
            let others =
                units::plural(u64::from(self.uninterpreted), "more process that runs", "more processes that run");
            blind.push(format!("the functions of {others} an interpreter were not looked at"));
        }
        blind.extend(beyond_limits(counters));
        blind.extend(self.timeline.blind(&self.meter.spans));
        blind.extend(self.resolved.notes.iter().cloned());
        blind.extend(self.follower.notes());
        blind
    }

    fn flow_records(&self) -> Vec<FlowRecord> {
        assemble::flows(&assemble::FlowParts {
            window: (self.begin, self.end),
            first: &self.first_flows,
            last: &self.last_flows,
            hz: tick_hz(),
            listeners: &self.listeners,
            owners: &self.owners,
        })
    }

    fn thread_records(&self) -> Vec<ThreadRecord> {
        let mut threads = assemble::threads(&assemble::ThreadParts {
            window: (self.begin, self.end),
            first: &self.first_threads,
            last: &self.last_threads,
            off: &self.probes.off_cells(),
            calls: &self.probes.sys_cells(),
            samples: &self.records.samples_by_thread(),
        });
        // The probes have the begin of a path, /proc tells the file.
        for thread in threads.iter_mut().filter(|thread| thread.comm.starts_with('/')) {
            thread.comm = proc_fs::whole_name(thread.tid, &thread.comm);
        }
        threads
    }

    /// Events of the subject's connections.
    fn net(&mut self, counters: &Counters) -> NetCounts {
        let observed = self.follower.subject(self.probes);
        let counts = self.probes.net_counts().into_iter();
        let mut owned: Vec<Owned> = counts.map(|(key, value)| owned(key, value, &self.net0)).collect();
        // A filter also keeps scans of ports away at which nobody listens.
        let nobodys = owned.iter_mut().filter(|one| !self.listeners.contains(&(one.netns, one.port)));
        nobodys.for_each(|one| one.filtered_syns = 0);
        let by_port = owned.iter().filter(|one| one.pid == 0 && !one.followed);
        self.follower.know_listeners(by_port.map(|one| (one.netns, one.port)));
        let is_subject = |owned: &Owned| {
            // A connection that another process accepted from a listener shared with the subject is that one's.
            let foreign = self.resolved.select.by_process() && owned.pid != 0 && !observed.contains(&owned.pid);
            !foreign && !self.follower.owns_counts(owned)
        };
        NetCounts { delack_timers: counters.delack_timers, ..of_subject(owned, is_subject) }
    }

    fn seen(mut self) -> anyhow::Result<Seen> {
        let resolved = self.resolved;
        let counters = since(self.probes.counters(), self.counters0);
        let net = self.net(&counters);
        let mut blind = self.blind(&counters);
        let mut flows = self.flow_records();
        blind.extend(unseen_mptcp(resolved, &flows));
        let mut threads = self.thread_records();
        let followed = self.follower.followed(self.begin);
        let mut recorded = self.records.finish(self.begin);
        flows.extend(self.sums.finish(&mut recorded.flow_stalls));
        let records_arrived = recorded.events + self.timeline.arrived;
        let observed = self.follower.subject(self.probes);
        let mut timeline = self.timeline.finish(timeline::Parts {
            window: (self.begin, self.end),
            slices: &self.meter.spans,
            flows: &flows,
            threads: &threads,
            listeners: &self.listeners,
            stalls: &recorded.thread_stalls,
            observed: &observed.union(self.follower.ever_followed()).copied().collect(),
            // Also those that were started in the window, such as one for each connection.
            asked_pids: observed.clone(),
            asked_ports: resolved.select.ports().to_vec(),
        });
        let followed_stalls = self.follower.keep_subject(&mut flows, &mut threads, &mut recorded);
        if resolved.select.by_process() {
            drop_foreign(resolved, &observed, &mut flows, &mut recorded.flow_stalls);
        }
        let Recorded { thread_stalls, samples, .. } = &mut recorded;
        keep_involved(&self.clients, &flows, &mut threads, thread_stalls, samples);
        self.follower.complete(&mut timeline, self.begin);
        timeline.mutex_owners = self.mutex_owners.into_iter().into_map();
        let mut subject = resolved.subject.clone();
        subject.netns = netns_of(&flows, &subject.netns);
        subject::add_observed(&mut subject, &threads);
        Ok(Seen {
            window_ns: self.end - self.begin,
            begin_ns: self.begin,
            subject,
            followed,
            blind,
            unseen: unseen(self.probes),
            slices: self.meter.slices(self.begin, counters.events),
            flows,
            threads,
            timeline: Some(timeline),
            flow_stalls: recorded.flow_stalls,
            thread_stalls: recorded.thread_stalls,
            followed_stalls,
            samples: recorded.samples,
            stacks: Some(recorded.stacks),
            cgroups: self.cgroups.finish(),
            net,
            cost: Cost {
                kernel_cpu_ns: self.meter.kernel_ns,
                lost_events: counters.lost,
                missed_events: counters.missed,
                events: records_arrived,
                untracked: counters.untracked + self.threads_dropped,
            },
            ..Seen::nothing(Rung::Btf)
        })
    }
}

/// The probes' reports since the last window are of no window; the one that stopped a process may still hold it.
fn discard(probes: &Probes, follower: &mut Follower) {
    let mut events = Vec::new();
    for _ in 0..DRAINS_MAX {
        let more = probes.drain(&mut events);
        for event in events.drain(..).filter(|event| matches!(event, Event::StopSignal(_))) {
            follower.see(&event);
        }
        if !more {
            break;
        }
    }
}

/// The counters at the begin of a window. Records that found no place while the window was prepared are counted in it.
fn begun(before: Counters, now: Counters) -> Counters {
    Counters {
        untracked: before.untracked,
        untracked_flows: before.untracked_flows,
        untracked_cells: before.untracked_cells,
        ..now
    }
}

/// By how much counters rose.
fn since(now: Counters, then: Counters) -> Counters {
    Counters {
        events: now.events - then.events,
        lost: now.lost - then.lost,
        missed: now.missed - then.missed,
        untracked: now.untracked - then.untracked,
        untracked_flows: now.untracked_flows - then.untracked_flows,
        untracked_cells: now.untracked_cells - then.untracked_cells,
        retransmits: now.retransmits - then.retransmits,
        resets_sent: now.resets_sent - then.resets_sent,
        resets_received: now.resets_received - then.resets_received,
        delack_timers: now.delack_timers - then.delack_timers,
    }
}

/// Refusals of the kernel, by what cannot be ruled out without it.
fn unseen(probes: &Probes) -> Vec<Unseen> {
    let causes = |lost: &Missing| lost.causes.iter().map(|id| (*id).to_owned()).collect();
    probes.lost().iter().map(|lost| Unseen { what: lost.to_string(), causes: causes(lost) }).collect()
}

/// The connections of the subject that arrived at its listeners.
fn served(resolved: &Resolved) -> impl Iterator<Item = FlowId> {
    let arrived = |netns, port| resolved.listeners.contains(&(netns, port));
    let open = resolved.sockets.iter().filter(|sock| !sock.listening);
    open.filter(move |sock| arrived(sock.netns, sock.local.port())).filter_map(|sock| sock.cookie)
}

fn config(resolved: &Resolved, options: &ObserveOptions) -> Config {
    Config {
        tgids: scopes(resolved),
        ports: resolved.select.ports().to_vec(),
        max_flows: FLOWS_MAX,
        recent_jiffies: (RECENT.as_secs() * tick_hz()) as u32,
        // Where there are too many for all, the room is for those that carry data.
        eager_flows: if resolved.sockets.len() > FLOWS_EAGER as usize { 0 } else { FLOWS_EAGER },
        without_children: !resolved.select.follows_children(),
        without_frames: !options.peek,
        interpreters: options.interpreters,
        ..Config::default()
    }
}

/// Which sockets of each process are the subject's: of the service all, its upstreams too; of its clients on this host only those to
/// the port.
fn scopes(resolved: &Resolved) -> Vec<(u32, Scope)> {
    let serving = resolved.serving();
    let serves = |pid: u32| serving.as_ref().is_none_or(|serving| serving.contains(&pid));
    let scope = |pid: u32| if serves(pid) { Scope::All } else { Scope::Port };
    resolved.processes.iter().map(|process| (process.pid, scope(process.pid))).collect()
}

/// Adds the processes of the subject that the probes do not know: children that were made after it was resolved and before the probes
/// could see a fork, and what has joined its control group or network namespace.
fn add_processes(probes: &Probes, resolved: &Resolved) -> anyhow::Result<()> {
    let known: HashMap<u32, Scope> = probes.processes().into_iter().map(|of| (of.tgid, of.scope)).collect();
    if resolved.processes.iter().all(|process| known.contains_key(&process.pid)) {
        return Ok(());
    }
    for (pid, scope) in scopes(resolved).into_iter().filter(|(pid, _)| !known.contains_key(pid)) {
        // A child is observed as its parent is.
        let parent = proc_fs::stat(pid).map_or(0, |stat| stat.parent);
        probes.add_process(pid, known.get(&parent).copied().unwrap_or(scope))?;
    }
    Ok(())
}

/// The data of a process on MPTCP is not seen at the subflows, which are what is observed.
fn unseen_mptcp(resolved: &Resolved, flows: &[FlowRecord]) -> Option<String> {
    let of_mptcp = || resolved.sockets.iter().filter(|sock| sock.mptcp);
    let ports: HashSet<(u64, u16)> = of_mptcp().filter(|s| s.listening).map(|s| (s.netns, s.local.port())).collect();
    let known: HashSet<u64> = of_mptcp().filter_map(|sock| sock.cookie).collect();
    let unseen = |flow: &&FlowRecord| {
        let by_mptcp = ports.contains(&(flow.netns, flow.local.port())) || known.contains(&flow.id);
        by_mptcp && flow.calls.sends + flow.calls.recvs == 0 && flow.acked_bytes() + flow.received_bytes() > 0
    };
    let count = flows.iter().filter(unseen).count() as u64;
    (count > 0).then(|| {
        let connections = units::plural(count, "connection of MPTCP", "connections of MPTCP");
        format!("{connections} moved data that no send or receive was seen of: `--rung procfs` shows what waits there")
    })
}

/// A connection that another process accepted from a listener shared with the subject is that one's. Of one that was answered, and on
/// which no process was seen, it is not known whose it is where the listener is shared.
fn drop_foreign(
    resolved: &Resolved,
    observed: &HashSet<u32>,
    flows: &mut Vec<FlowRecord>,
    stalls: &mut Vec<FlowStall>,
) {
    let nobodys = |flow: &FlowRecord| flow.pid == 0 && flow.acked_bytes() > 0;
    let shared = if flows.iter().any(nobodys) { shared_listeners(resolved, observed) } else { HashSet::new() };
    let is_shared = |flow: &FlowRecord| shared.contains(&(flow.netns, flow.local.port()));
    flows.retain(|flow| if flow.pid == 0 { !nobodys(flow) || !is_shared(flow) } else { observed.contains(&flow.pid) });
    let kept: HashSet<u64> = flows.iter().map(|flow| flow.id).collect();
    stalls.retain(|stall| kept.contains(&stall.flow));
}

/// The ports of the subject's listeners that other processes hold, too.
fn shared_listeners(resolved: &Resolved, observed: &HashSet<u32>) -> HashSet<(u64, u16)> {
    let listeners: Vec<_> = resolved.sockets.iter().filter(|sock| sock.listening && sock.inode != 0).collect();
    let holders = Holders::of_inodes(&listeners.iter().map(|sock| sock.inode).collect());
    let shared = listeners.iter().filter(|sock| holders.pids(sock.inode).any(|pid| !observed.contains(&pid)));
    shared.map(|sock| (sock.netns, sock.local.port())).collect()
}

fn netns_of(flows: &[FlowRecord], known: &[u64]) -> Vec<u64> {
    let mut all: Vec<u64> = known.iter().copied().chain(flows.iter().map(|f| f.netns)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Gaps because a table was full.
fn beyond_limits(counters: &Counters) -> Vec<String> {
    let mut beyond = Vec::new();
    if counters.untracked_flows > 0 {
        let calls = units::plural(counters.untracked_flows, "call was", "calls were");
        beyond.push(format!("{calls} on connections beyond the {FLOWS_MAX} that can be tracked at a time"));
    }
    if counters.untracked_cells > 0 {
        let times = units::plural(counters.untracked_cells, "time off the CPU is", "times off the CPU are");
        beyond.push(format!("{times} missing in the accounts of threads: too many kinds of waits"));
    }
    beyond
}

/// By how much what happened to the connections of one owner rose.
fn owned(key: NetKey, value: NetValue, first: &HashMap<NetKey, NetValue>) -> Owned {
    let before = first.get(&key).copied().unwrap_or_default();
    Owned {
        pid: key.tgid,
        netns: key.netns.into(),
        port: key.port,
        followed: key.followed != 0,
        retransmits: value.retransmits - before.retransmits,
        resets_sent: value.resets_sent - before.resets_sent,
        resets_received: value.resets_received - before.resets_received,
        opened: value.opened - before.opened,
        closed: value.closed - before.closed,
        accepted: value.accepted - before.accepted,
        resets_by_opener: value.resets_by_opener - before.resets_by_opener,
        resets_from_opener: value.resets_from_opener - before.resets_from_opener,
        filtered_syns: value.filtered_syns - before.filtered_syns,
    }
}

fn reading(probes: &Probes) -> Reading {
    let (timed_ns, timed_runs) = probes.timed_runs();
    Reading { events: probes.events(), timed_ns, timed_runs }
}

#[cfg(test)]
mod tests {
    use parshall_bpf::diagnose::features::OBSERVATIONS;
    use parshall_core::judge::cause::CAUSES;

    #[test]
    fn what_the_probes_lose_are_causes_that_exist() {
        for id in OBSERVATIONS.iter().flat_map(|observation| observation.causes) {
            assert!(CAUSES.iter().any(|cause| cause.id == *id), "{id}");
        }
    }
}
