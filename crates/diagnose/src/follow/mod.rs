//! Following: processes outside of the subject that it may wait for are observed with it.
//!
//! At the start, and at least every half second, this finds who holds the other ends of the observed processes' sockets and pipes
//! (`descriptors` reads /proc, `sockets` the socket tables) and who wakes their threads, and adds those that
//! `parshall_core::observe::follow` chooses to the probes. Each step is bounded in time: the probes' records wait meanwhile.
//! `names` keeps the names of what occurs in the timeline.
mod addresses;
mod descriptors;
mod names;
pub mod receivers;
pub mod sessions;
mod sockets;
pub mod stopped;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use parshall_bpf::clock::monotonic_ns;
use parshall_bpf::diagnose::lifecycle::FlowDump;
use parshall_bpf::diagnose::thread::{ThreadDump, fd_kind};
use parshall_bpf::diagnose::timeline::{OffCpuWire, WakerContext};
use parshall_bpf::diagnose::{Event, Probes, Scope};
use parshall_core::observe::follow::ends::{self, End, Held, Lead, Leads, Tables, Unknown};
use parshall_core::observe::follow::{Candidate, Limits, Plan, next_search};
use parshall_core::observe::owned::{Listeners, Owned};
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::units::plural;
use parshall_evidence::timeline::{Holder, Timeline, Why};
use parshall_evidence::{FdKind, FlowId, FlowRecord, FollowReason, Followed, ThreadRecord, ThreadStall};
use parshall_host::proc_fs;

use crate::records::Recorded;
use crate::syscall_name::syscall_name;
use crate::timeline::why;
use descriptors::Descriptors;
use names::{KnownNames, comm};
use receivers::Receivers;
use sockets::Sockets;
use stopped::Stopped;

/// The longest step of a pass over /proc, and of the reading of the observed processes' descriptors.
const STEP: Duration = Duration::from_millis(25);
/// The longest pass over /proc before the window begins; the rest of it is made within the window.
const FIRST: Duration = Duration::from_millis(50);
/// Ends of clients that are searched for at a time.
const CLIENTS_MAX: usize = 256;
/// A pass over /proc for awaited ends waits for as many times the duration of the last one, and one for clients likewise.
const AWAITED_DUTY: u64 = 5;
const CLIENTS_DUTY: u64 = 20;
/// Connections that were opened and closed between two searches, of which the listener is looked up.
const CLOSED_MAX: usize = 256;
/// The longest reading of names at a time.
const NAMES: Duration = Duration::from_millis(5);
/// The same when the window is over.
const LAST_NAMES: Duration = Duration::from_millis(50);
/// Threads that ended waits, pipes that were waited for, and other ends of sockets that are kept, each.
const NOTED_MAX: usize = 8_192;
/// Waits for pipes shorter than this tell nothing of who is at the other end.
const PIPE_WAIT_NS: u64 = 1_000_000;
/// Processes whose titles are read at each search.
const TITLES_MAX: usize = 64;
/// Processes of which a note gives the names.
const NAMED_MAX: usize = 3;

/// The processes that are followed, and where the next may be found.
pub struct Follower {
    /// False where the whole host is the subject: then this only keeps names.
    follows: bool,
    plan: Plan,
    names: KnownNames,
    /// Time of waits that a thread ended since the last search, by it and the process that waited.
    wakes: HashMap<(u32, u32), u64>,
    /// Inodes of pipes that observed threads waited for.
    awaited: HashSet<u64>,
    /// Holders of the other ends of sockets, by the socket's cookie.
    holders: HashMap<FlowId, Holder>,
    stopped: Stopped,
    receivers: Receivers,
    descriptors: Descriptors,
    sockets: Sockets,
    /// The descriptors of the observed processes, clients of the port excepted; when each was last read.
    held: BTreeMap<u32, (Vec<End>, u64)>,
    clients: HashSet<u32>,
    closed: HashSet<(u32, u64, SocketAddr)>,
    /// The namespace of this host that has the address of such a connection's other end, by its own namespace.
    served_elsewhere: HashMap<(u64, IpAddr), u64>,
    /// The processes that were followed in the window, in the order in which they were added.
    followed: Vec<Found>,
    /// All that were followed at some time of the window.
    ever: HashSet<u32>,
    /// Their threads that stalled: of one that ended, no account may be left that tells whose it was.
    stalled: HashSet<u32>,
    /// Processes of the subject of which a thread was seen: the probes forget those that have ended.
    own: HashSet<u32>,
    ports: Listeners,
    /// Ports on which anybody listens.
    listeners: HashSet<(u64, u16)>,
    unknown: Vec<Unknown>,
    begun: u64,
    next_at: u64,
    searching: bool,
    /// When the last pass ended, and how long it took.
    passed: (u64, u64),
}

/// A process that was followed at some time.
struct Found {
    known: Followed,
    start_ticks: u64,
    since: u64,
    ended: bool,
}

impl Follower {
    /// Adds those that the subject may wait for now; called before the first slice, and before threads and owners are read.
    /// With `follows` false nobody is added.
    pub fn start(probes: &Probes, follows: bool, receivers: Receivers) -> anyhow::Result<Self> {
        let mut descriptors = Descriptors::default();
        let searching = follows && descriptors.search([]) && !descriptors.step(FIRST);
        let begun = monotonic_ns();
        let mut follower = Self {
            follows,
            plan: Plan::new(Limits::default()),
            names: KnownNames::default(),
            wakes: HashMap::new(),
            awaited: HashSet::new(),
            holders: HashMap::new(),
            stopped: Stopped::default(),
            receivers,
            descriptors,
            sockets: Sockets::default(),
            held: BTreeMap::new(),
            clients: HashSet::new(),
            closed: HashSet::new(),
            served_elsewhere: HashMap::new(),
            followed: Vec::new(),
            ever: HashSet::new(),
            stalled: HashSet::new(),
            own: HashSet::new(),
            ports: Listeners::default(),
            listeners: HashSet::new(),
            unknown: Vec::new(),
            begun,
            next_at: 0,
            searching,
            passed: (0, 0),
        };
        for _ in 0..Limits::default().depth {
            if !follower.step(probes, begun)? {
                break;
            }
        }
        Ok(follower)
    }

    /// Prepares the next window. Followed processes stay so; of those that have ended nothing is left, and names are read again, because
    /// numbers of threads and descriptors are used again. The first search is due at once.
    pub fn renew(&mut self, probes: &Probes) {
        self.names = KnownNames::default();
        self.wakes.clear();
        self.awaited.clear();
        self.holders.clear();
        self.clients.clear();
        self.closed.clear();
        self.stalled.clear();
        self.own.clear();
        self.unknown.clear();
        self.stopped.renew();
        self.descriptors.renew();
        // The probes forget a process a moment after it was reaped.
        let alive = |pid: u32| proc_fs::stat(pid).filter(|stat| stat.state != 'Z').map(|stat| (pid, stat.start_ticks));
        let followed = probes.processes().into_iter().filter(|process| process.followed);
        let alive: HashMap<u32, u64> = followed.filter_map(|process| alive(process.tgid)).collect();
        self.followed.retain(|found| !found.ended && alive.get(&found.known.pid) == Some(&found.start_ticks));
        self.ever = alive.into_keys().collect();
        self.next_at = 0;
    }

    /// Notes what a record tells of wakers and waits, and of connections that are too short to be found open.
    pub fn see(&mut self, event: &Event) {
        match event {
            Event::OffCpu(off) => self.see_off_cpu(off),
            // Of a process that is not observed, calls are only seen on connections of those that are.
            Event::Call(call) if self.receivers.may_be(call.tgid) && self.plan.depth(call.tgid).is_none() => {
                self.receivers.see(call.tgid);
            }
            Event::FlowEnd(dump) => self.see_closed(dump),
            Event::ThreadStall(stall) => {
                self.stalled.extend((stall.followed != 0).then_some(stall.head.tid));
                self.names.see_waker(stall.waker_tid, stall.waker_tgid, &stall.waker_comm);
            }
            Event::StopSignal(signal) => self.stopped.see(signal),
            Event::ThreadEnd(dump) => self.see_thread_account(dump),
            _ => {}
        }
    }

    /// Notes the process of a thread: a child of an observed process may come and go between two searches.
    pub fn see_thread_account(&mut self, dump: &ThreadDump) {
        if dump.followed != 0 {
            self.ever.insert(dump.tgid)
        } else {
            self.own.insert(dump.tgid)
        };
    }

    /// The processes of the subject, those that have ended included.
    pub fn subject(&self, probes: &Probes) -> HashSet<u32> {
        probes.tgids().into_iter().chain(self.own.iter().copied()).collect()
    }

    fn see_off_cpu(&mut self, off: &OffCpuWire) {
        self.names.see_thread(off.prev_tid);
        self.names.see_file(off.tgid, off.fd_number);
        if why(off.why) == Why::Stopped {
            self.stopped.see_stop(off.tgid);
        }
        let slept = off.wake.saturating_sub(off.begin);
        let (kind, woken) = (fd_kind(off.fd), off.waker_context() == WakerContext::Thread);
        if woken {
            self.names.see_thread(off.waker_tid);
            // The writer into a UNIX socket is at its other end, and may be a client.
            if kind != FdKind::Unix && self.wakes.len() < NOTED_MAX && self.held.contains_key(&off.tgid) {
                *self.wakes.entry((off.waker_tid, off.tgid)).or_default() += slept;
            }
        }
        // A reader that nobody woke has nothing to do; a writer waits for its reader in any case.
        let waits = kind == FdKind::Pipe && slept >= PIPE_WAIT_NS;
        if waits && (woken || !syscall_name(off.nr).contains("read")) && self.awaited.len() < NOTED_MAX {
            self.awaited.insert(off.target);
        }
    }

    /// Notes whose listener accepted a connection, where the probes saw that.
    pub fn see_flow(&mut self, dump: &FlowDump) {
        if dump.flow.listener_followed != 0 {
            let (local, _) = dump.addresses();
            self.ports.note_others((u64::from(dump.key.netns), local.port()));
        }
    }

    fn see_closed(&mut self, dump: &FlowDump) {
        self.see_flow(dump);
        let (local, remote) = dump.addresses();
        self.receivers.see_closed(dump.key.passive != 0, local.port(), dump.flow.tgid);
        // One to another address may end in a namespace of this host; where it does not, nobody is found.
        if dump.key.passive == 0 && self.closed.len() < CLOSED_MAX {
            self.closed.insert((dump.flow.tgid, u64::from(dump.key.netns), remote));
        }
    }

    /// Searches if it is time to (`now` is CLOCK_MONOTONIC in nanoseconds); true when processes were added to the probes. Their
    /// threads and sockets are tracked once [`Probes::owners`] and [`Probes::threads`] are read.
    pub fn step(&mut self, probes: &Probes, now: u64) -> anyhow::Result<bool> {
        self.names.read(NAMES);
        self.stopped.look();
        if !self.follows {
            return Ok(false);
        }
        let passed = self.searching && self.descriptors.step(STEP);
        let due = now >= self.next_at || self.receivers.any();
        if !passed && (self.searching || !due) {
            return Ok(false);
        }
        if passed {
            self.searching = false;
            self.passed = (now, self.descriptors.pass_ns());
        }
        let begun = Instant::now();
        let mut added = self.take_receivers(probes)?;
        self.take_changes(probes, now);
        self.take_wakes();
        self.read_held(now);
        let mut tables = self.tables();
        loop {
            let found = self.leads(&tables);
            self.relink(&found.leads);
            let new = self.choose(&found.leads, probes, now)?;
            added |= !new.is_empty();
            self.unknown = found.unknown;
            if new.is_empty() || begun.elapsed() > STEP {
                break;
            }
            for pid in new {
                self.read(pid, now);
            }
            tables = self.tables();
        }
        self.note_ports(&tables);
        self.search_unknown(now);
        // Processes that were just added lead further.
        self.next_at = if added { now } else { next_search(now, begun.elapsed().as_nanos() as u64) };
        Ok(added)
    }

    /// Makes those a part of the subject that were passed a connection of it, followed ones too; true when there was one.
    fn take_receivers(&mut self, probes: &Probes) -> anyhow::Result<bool> {
        let received = self.receivers.take();
        for &pid in &received {
            probes.add_process(pid, Scope::All)?;
            self.plan.add_subject(pid);
            self.followed.retain(|found| found.known.pid != pid);
            self.ever.remove(&pid);
            self.held.insert(pid, (Vec::new(), 0));
        }
        Ok(!received.is_empty())
    }

    /// Takes in who came and went since the last search: children of observed processes, and processes that ended.
    fn take_changes(&mut self, probes: &Probes, now: u64) {
        self.closed.retain(|(pid, ..)| self.plan.depth(*pid).is_some());
        let processes = probes.processes();
        let left: HashSet<u32> = processes.iter().map(|process| process.tgid).collect();
        let mut ended: Vec<u32> = self.plan.observed().filter(|pid| !left.contains(pid)).collect();
        for found in self.followed.iter_mut().filter(|found| !left.contains(&found.known.pid)) {
            found.ended = true;
        }
        for process in processes {
            let pid = process.tgid;
            match (process.followed, self.plan.depth(pid)) {
                (false, None) => {
                    self.plan.add_subject(pid);
                    if process.scope == Scope::All {
                        self.held.insert(pid, (Vec::new(), 0));
                    }
                }
                (true, None) => self.add_child(probes, pid, now),
                _ => {}
            }
            let found = self.followed.iter_mut().find(|found| found.known.pid == pid && !found.ended);
            if let Some(found) = found {
                let stat = proc_fs::stat(pid).filter(|stat| stat.start_ticks == found.start_ticks && stat.state != 'Z');
                found.ended = stat.is_none();
                ended.extend(found.ended.then_some(pid));
            }
        }
        // Nobody serves the port here: the subject is its clients.
        if self.held.is_empty() {
            self.held.extend(self.plan.observed().map(|pid| (pid, (Vec::new(), 0))));
        }
        for pid in ended {
            probes.forget_process(pid);
            self.plan.remove(pid);
            self.held.remove(&pid);
            self.descriptors.forget(pid);
        }
        // There may be thousands of them.
        self.followed.retain(|found| !found.ended || found.known.reason != FollowReason::Child);
    }

    fn take_wakes(&mut self) {
        let wakes = std::mem::take(&mut self.wakes);
        for ((tid, sleeper), ns) in wakes {
            match self.names.process_of(tid) {
                Some(waker) => self.plan.woke(waker, sleeper, ns),
                None if self.names.is_new(tid) => drop(self.wakes.insert((tid, sleeper), ns)),
                None => {}
            }
        }
    }

    fn add_child(&mut self, probes: &Probes, pid: u32, now: u64) {
        self.ever.insert(pid);
        let Some(stat) = proc_fs::stat(pid).filter(|stat| stat.state != 'Z') else {
            return probes.forget_process(pid);
        };
        let depth = self.plan.depth(stat.parent).unwrap_or(Limits::default().depth);
        self.add(&Candidate { pid, from: stat.parent, reason: FollowReason::Child, depth, connected: true }, now);
    }

    /// Reads the descriptors of observed processes again, those that were read longest ago first.
    fn read_held(&mut self, now: u64) {
        let begun = Instant::now();
        let mut order: Vec<(u64, u32)> = self.held.iter().map(|(&pid, &(_, read))| (read, pid)).collect();
        order.sort_unstable();
        for (n, (_, pid)) in order.into_iter().enumerate() {
            self.read(pid, now);
            if n < TITLES_MAX {
                self.names.see_title(pid);
            }
            if begun.elapsed() > STEP {
                break;
            }
        }
    }

    fn read(&mut self, pid: u32, now: u64) {
        self.stopped.read(pid);
        let ends = self.descriptors.read(pid, &HashSet::new());
        if ends.is_empty() && proc_fs::stat(pid).is_none() {
            self.held.remove(&pid);
        } else {
            self.held.insert(pid, (ends, now));
        }
    }

    fn tables(&mut self) -> Tables {
        let held = self.held_ends();
        let own: BTreeSet<u64> = self.held.keys().filter_map(|&pid| proc_fs::netns_ino(pid)).into_set();
        let known = self.descriptors.namespaces();
        let closed = self.closed.iter().map(|&(_, netns, remote)| (netns, remote));
        self.served_elsewhere = addresses::served(closed, known);
        let elsewhere: BTreeSet<u64> = self.served_elsewhere.values().copied().into_set();
        self.sockets.read(&own, known, &held, &elsewhere)
    }

    fn held_ends(&self) -> Vec<Held> {
        let held = |(&pid, (ends, _)): (&u32, &(Vec<End>, u64))| Held { pid, ends: ends.clone() };
        self.held.iter().map(held).collect()
    }

    /// The processes to which the descriptors lead, and the listeners of connections that have closed already.
    fn leads(&mut self, tables: &Tables) -> Leads {
        let mut found = ends::leads(&self.held_ends(), tables, &self.awaited, &|end| self.descriptors.holders(end));
        for &(from, netns, remote) in &self.closed {
            let at = self.served_elsewhere.get(&(netns, remote.ip())).copied().unwrap_or(netns);
            for &listener in tables.listeners_at(at, remote) {
                let lead = |&to: &u32| Lead { from, to, reason: FollowReason::TcpServer, connected: false };
                found.leads.extend(self.descriptors.holders(End::Socket(listener)).iter().map(lead));
            }
        }
        self.clients.extend(found.clients.iter().copied());
        for end in self.held.values().flat_map(|(ends, _)| ends) {
            if let End::Socket(inode) = *end {
                self.names.name_unix_socket(inode, tables.unix_name(inode));
            }
        }
        for &(cookie, pid) in &found.holders {
            if self.plan.depth(pid).is_none() && self.holders.len() < NOTED_MAX {
                self.holders.entry(cookie).or_insert_with(|| Holder { pid, process: comm(pid) });
            }
        }
        found
    }

    /// Keeps the better links that were seen to processes that are followed already.
    fn relink(&mut self, leads: &[Lead]) {
        for Candidate { pid, from, reason, depth, .. } in self.plan.relink(leads) {
            if let Some(found) = self.followed.iter_mut().find(|found| found.known.pid == pid && !found.ended) {
                found.known = Followed { from, reason, depth, ..found.known.clone() };
            }
        }
    }

    /// Adds whom the plan wants, while there is a place.
    fn choose(&mut self, leads: &[Lead], probes: &Probes, now: u64) -> anyhow::Result<Vec<u32>> {
        let mut added = Vec::new();
        for candidate in self.plan.candidates(leads, &self.clients, now.saturating_sub(self.begun)) {
            // It may have ended since it was seen.
            let Some(stat) = proc_fs::stat(candidate.pid) else { continue };
            if stat.kernel_thread || candidate.pid == proc_fs::own_pid() || matches!(stat.state, 'Z' | 'X') {
                self.plan.refuse(candidate.pid);
            } else if self.plan.has_place(candidate.reason) {
                probes.follow_process(candidate.pid)?;
                self.add(&candidate, now);
                added.push(candidate.pid);
            }
        }
        Ok(added)
    }

    fn add(&mut self, candidate: &Candidate, now: u64) {
        let &Candidate { pid, from, reason, depth, .. } = candidate;
        self.plan.add(candidate);
        self.ever.insert(pid);
        self.held.insert(pid, (Vec::new(), 0));
        let stat = proc_fs::stat(pid).unwrap_or_default();
        let known = Followed {
            pid,
            comm: proc_fs::whole_name(pid, &stat.comm),
            title: String::new(),
            reason,
            from,
            depth,
            since_ns: 0,
        };
        self.followed.push(Found { known, start_ticks: stat.start_ticks, since: now, ended: false });
        self.names.see_title(pid);
    }

    fn note_ports(&mut self, tables: &Tables) {
        for (at, inodes) in tables.listeners() {
            self.listeners.insert(at);
            let holders = inodes.iter().flat_map(|&inode| self.descriptors.holders(End::Socket(inode)));
            self.ports.note(at, holders.copied(), |pid| self.plan.depth(pid) == Some(0));
        }
    }

    /// Finds out who listens at ports, when the window has ended: some may have begun to since the last search.
    pub fn know_listeners(&mut self, ports: impl IntoIterator<Item = (u64, u16)>) {
        if self.ever.is_empty() || ports.into_iter().all(|at| self.ports.knows(at)) {
            return;
        }
        self.read_held(monotonic_ns());
        let tables = self.tables();
        self.note_ports(&tables);
    }

    /// Begins a pass for the ends whose holders are not known. Those of clients are only named, and so may cost less.
    fn search_unknown(&mut self, now: u64) {
        let (ended, took) = self.passed;
        let idle = now.saturating_sub(ended);
        let awaited = self.unknown.iter().filter(|unknown| unknown.awaited && idle >= took * AWAITED_DUTY);
        let clients = self.unknown.iter().filter(|unknown| !unknown.awaited && idle >= took * CLIENTS_DUTY);
        self.searching = self.descriptors.search(awaited.chain(clients.take(CLIENTS_MAX)).map(|unknown| unknown.end));
    }

    /// Whether a flow is of a process that was followed. Of a connection that nobody has read from yet only the listener is known.
    pub fn owns(&self, flow: &FlowRecord) -> bool {
        self.ever.contains(&flow.pid) || flow.pid == 0 && self.ports.are_others((flow.netns, flow.local.port()))
    }

    /// The same of connections that were counted.
    pub fn owns_counts(&self, of: &Owned) -> bool {
        of.followed || self.ever.contains(&of.pid) || of.pid == 0 && self.ports.are_others((of.netns, of.port))
    }

    /// Takes what followed processes did out of the records of the subject. Returns the long times off the CPU among it.
    pub fn keep_subject(
        &mut self,
        flows: &mut Vec<FlowRecord>,
        threads: &mut Vec<ThreadRecord>,
        recorded: &mut Recorded,
    ) -> Vec<ThreadStall> {
        let nobodys = flows.iter().filter(|flow| flow.pid == 0);
        self.know_listeners(nobodys.map(|flow| (flow.netns, flow.local.port())));
        let flows_out: HashSet<FlowId> = flows.extract_if(.., |flow| self.owns(flow)).map(|flow| flow.id).collect();
        let threads_out: HashSet<u32> =
            threads.extract_if(.., |thread| self.ever.contains(&thread.pid)).map(|thread| thread.tid).collect();
        recorded.flow_stalls.retain(|stall| !flows_out.contains(&stall.flow));
        let out = |stall: &mut ThreadStall| threads_out.contains(&stall.tid) || self.stalled.contains(&stall.tid);
        recorded.thread_stalls.extract_if(.., out).collect()
    }

    /// The ports on which somebody listens in the network namespaces of the observed processes.
    pub fn listeners(&self) -> &HashSet<(u64, u16)> {
        &self.listeners
    }

    /// All processes that were followed at some time.
    pub fn ever_followed(&self) -> &HashSet<u32> {
        &self.ever
    }

    /// The processes that were followed, in a window that began at `begin`.
    pub fn followed(&self, begin: u64) -> Vec<Followed> {
        let found = |found: &Found| Followed {
            title: self.names.title(found.known.pid),
            since_ns: found.since.saturating_sub(begin),
            ..found.known.clone()
        };
        self.followed.iter().map(found).collect()
    }

    /// Adds names to the timeline of a window that began at `begin`, since when followed processes were observed, and who holds the
    /// ends that were not.
    pub fn complete(&mut self, timeline: &mut Timeline, begin: u64) {
        for found in &self.followed {
            timeline.observed_pids.insert(found.known.pid, found.since.saturating_sub(begin));
        }
        let observed = &timeline.observed_pids;
        self.holders.retain(|_, holder| !observed.contains_key(&holder.pid));
        timeline.unobserved_ends = std::mem::take(&mut self.holders).into_iter().into_map();
        self.names.read(LAST_NAMES);
        sessions::complete(timeline, self.names.titles());
        std::mem::take(&mut self.names).complete(timeline);
        self.stopped.complete(timeline);
    }

    /// Sentences about processes that were awaited and could not be followed, one each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let missing = |unknown: &&Unknown| unknown.awaited && self.descriptors.is_missing(unknown.end);
        let missing: Vec<&Unknown> = self.unknown.iter().filter(missing).collect();
        if !missing.is_empty() {
            let addresses: BTreeSet<SocketAddr> = missing.iter().filter_map(|unknown| unknown.address).into_set();
            let mut places: Vec<String> = addresses.iter().take(NAMED_MAX).map(ToString::to_string).collect();
            places.extend((addresses.len() > NAMED_MAX).then(|| "others".to_owned()));
            places
                .extend((missing.iter().any(|unknown| unknown.address.is_none())).then(|| "a UNIX socket".to_owned()));
            notes.push(format!("who answers at {} could not be seen: {}", places.join(", "), self.why_hidden()));
        }
        if self.plan.was_full() {
            notes.push(format!(
                "of the processes that the subject may wait for, only {} were followed",
                self.followed.len()
            ));
        }
        if self.sockets.refused() > 0 {
            notes.push(format!(
                "{} could not be entered, so who is at the other end of a connection into them is not known",
                plural(self.sockets.refused() as u64, "network namespace", "network namespaces")
            ));
        }
        notes
    }

    fn why_hidden(&self) -> String {
        let hidden = self.descriptors.hidden();
        if hidden.is_empty() {
            return "it is outside of this pid namespace, or has ended".to_owned();
        }
        let named: Vec<String> = hidden.iter().take(NAMED_MAX).map(|(pid, comm)| format!("{pid} ({comm})")).collect();
        let more = if hidden.len() > named.len() { " and others" } else { "" };
        format!("the descriptors of {}{more} may not be read without root", named.join(", "))
    }
}
