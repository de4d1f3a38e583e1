//! Samples the sockets of the subject by SOCK_DIAG and keeps their accounts.
//!
//! There are two ways to sample. A dump walks all sockets of a namespace and finds new ones, but costs 11–19 ms where the hash
//! table is large. Looking up the known sockets one by one costs a few microseconds each. Each namespace uses the one
//! that its measurements show to be cheaper, and dumps now and then in any case.
use std::collections::{HashMap, HashSet};

use parshall_core::sock_diag::SocketId;
use parshall_core::sorting::StableSort as _;
use parshall_evidence::socket::{Group, Groups, Selection, Side};
use parshall_evidence::{FlowRecord, FlowStall};
use parshall_sys::clock::thread_cpu_ns;

use super::flow_track::Track;
use super::options::OptionReader;
use crate::subject::{Resolved, Select};
use parshall_host::proc_fs;
use parshall_host::tcp_diag::{TcpDiag, TcpSocket, states};

/// Flows that are observed.
pub const FLOWS_MAX: usize = 8192;
/// Stalls that are kept.
const STALLS_MAX: usize = 100_000;
/// Cookies of sockets outside the subject that are remembered.
const FOREIGN_MAX: usize = 1 << 20;
/// Shortest time between two scans of the subject's descriptors for owners of new sockets.
const OWNERS_NS: u64 = 50_000_000;
/// Consecutive errors after which a namespace is no longer sampled.
const ERRORS_MAX: u32 = 10;
/// Flows whose options are read in one go.
const OPTIONS_BATCH: usize = 64;

/// Fields that a sample is classified by.
fn sampled_groups() -> Groups {
    use Group::{Congestion, Cwnd, Limits, Loss, Memory, Queues, Rate, Rtt, Times, Traffic, Window};
    Groups::of([Queues, Rtt, Cwnd, Loss, Traffic, Times, Limits, Window, Rate, Memory, Congestion])
}

#[derive(Debug)]
struct Source {
    ino: u64,
    diag: TcpDiag,
    /// Moving averages of the CPU time of a dump, and of a lookup of one socket.
    dump_ns: f64,
    get_ns: f64,
    next_dump_ns: u64,
    /// Sockets that a dump finds from now on are new.
    dumped: bool,
    /// Consecutive errors.
    errors: u32,
}

/// All flows of the subject.
#[derive(Debug)]
pub struct Flows {
    sources: Vec<Source>,
    select: Select,
    tracks: HashMap<u64, Track>,
    ended: Vec<Track>,
    stalls: Vec<FlowStall>,
    foreign: HashSet<u64>,
    /// Connections that no process of the subject was seen to hold.
    suspects: HashSet<u64>,
    owners: HashMap<u64, (u32, i32)>,
    owners_at_ns: Option<u64>,
    options: OptionReader,
    options_turn: usize,
    share: f64,
    sampled: Vec<TcpSocket>,
    /// Samples taken.
    pub samples: u64,
    /// Flows beyond [`FLOWS_MAX`].
    pub untracked: u64,
    /// Flows that were opened and closed during the window.
    pub opened: u64,
    /// See `opened`.
    pub closed: u64,
    /// Namespaces that could not be entered.
    pub refused: usize,
    /// Longest time between two dumps of a namespace whose sockets are looked up one by one meanwhile, in seconds.
    pub late_s: f64,
}

impl Flows {
    /// Opens the namespaces. `share` is the part of a core that may be spent.
    pub fn start(resolved: &Resolved, share: f64) -> Self {
        let mut sources = Vec::new();
        for namespace in &resolved.namespaces {
            if let Ok(diag) = namespace.open_diag() {
                let ino = namespace.ino;
                sources.push(Source {
                    ino,
                    diag,
                    dump_ns: 0.0,
                    get_ns: 0.0,
                    next_dump_ns: 0,
                    dumped: false,
                    errors: 0,
                });
            }
        }
        let owners = resolved.sockets.iter().filter(|s| s.inode != 0).map(|s| (s.inode, (s.pid, s.fd))).collect();
        Self {
            refused: resolved.namespaces.len() - sources.len(),
            sources,
            select: resolved.select.clone(),
            tracks: HashMap::new(),
            ended: Vec::new(),
            stalls: Vec::new(),
            foreign: HashSet::new(),
            suspects: HashSet::new(),
            owners,
            owners_at_ns: None,
            options: OptionReader::default(),
            options_turn: 0,
            share,
            sampled: Vec::new(),
            samples: 0,
            untracked: 0,
            opened: 0,
            closed: 0,
            late_s: 0.0,
        }
    }

    /// Samples every flow.
    pub fn sample(&mut self, now: &impl Fn() -> u64, resolved: &Resolved) {
        let mut sources = std::mem::take(&mut self.sources);
        for source in sources.iter_mut().filter(|source| source.errors < ERRORS_MAX) {
            let result = if self.dumps(source, now()) {
                self.dump(source, now, resolved)
            } else {
                self.late_s = self.late_s.max(source.dump_ns / (self.share / 2.0) / 1e9);
                self.get(source, now)
            };
            // A burst of replies may overrun the receive buffer once (ENOBUFS): the next round tries again.
            source.errors = if result.is_err() { source.errors + 1 } else { 0 };
        }
        self.sources = sources;
        self.stalls.truncate(STALLS_MAX);
    }

    fn dumps(&self, source: &Source, at_ns: u64) -> bool {
        let known = self.tracks.values().filter(|track| track.netns == source.ino).count();
        // Until measured, a lookup is taken to cost 5 us.
        let get_ns = if source.get_ns == 0.0 { 5_000.0 } else { source.get_ns };
        at_ns >= source.next_dump_ns || source.dump_ns <= get_ns * known as f64
    }

    fn dump(&mut self, source: &mut Source, now: &impl Fn() -> u64, resolved: &Resolved) -> std::io::Result<()> {
        let selection = Selection {
            groups: sampled_groups(),
            states: states::CONNECTED,
            ports: self.select.ports().iter().map(|&port| (Side::Either, port)).collect(),
            ..Selection::default()
        };
        let mut sampled = std::mem::take(&mut self.sampled);
        sampled.clear();
        let began = thread_cpu_ns();
        let dumped = source.diag.dump(&selection, &mut sampled);
        let cost = thread_cpu_ns().saturating_sub(began) as f64;
        source.dump_ns = if source.dump_ns == 0.0 { cost } else { source.dump_ns + 0.2 * (cost - source.dump_ns) };
        let at_ns = now();
        source.next_dump_ns = at_ns + (source.dump_ns / (self.share / 2.0)) as u64;
        if let Ok(interrupted) = dumped {
            let mut fresh = 0;
            for socket in &sampled {
                fresh += u64::from(!self.update(socket, at_ns) && self.admit(socket, source, at_ns, resolved));
            }
            self.opened += if source.dumped { fresh } else { 0 };
            source.dumped = true;
            if !interrupted {
                self.end_missing(|track| track.netns == source.ino && track.seen_ns() < at_ns, at_ns);
            }
        }
        self.sampled = sampled;
        dumped.map(drop)
    }

    /// Looks the known flows up one by one.
    fn get(&mut self, source: &mut Source, now: &impl Fn() -> u64) -> std::io::Result<()> {
        let ids: Vec<SocketId> = self.tracks.values().filter(|t| t.netns == source.ino).map(|t| t.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut found = Vec::with_capacity(ids.len());
        let began = thread_cpu_ns();
        source.diag.get(&ids, sampled_groups(), &mut found)?;
        let cost = thread_cpu_ns().saturating_sub(began) as f64 / ids.len() as f64;
        source.get_ns = if source.get_ns == 0.0 { cost } else { source.get_ns + 0.2 * (cost - source.get_ns) };
        let at_ns = now();
        for socket in found.iter().flatten().filter(|socket| states::CONNECTED & 1 << socket.record.state != 0) {
            self.update(socket, at_ns);
        }
        self.end_missing(|track| track.netns == source.ino && track.seen_ns() < at_ns, at_ns);
        Ok(())
    }

    /// False when the socket is not known yet.
    fn update(&mut self, socket: &TcpSocket, at_ns: u64) -> bool {
        let Some(track) = self.tracks.get_mut(&socket.record.cookie) else { return false };
        track.update(socket, at_ns, &mut self.stalls);
        self.samples += 1;
        true
    }

    fn end_missing(&mut self, missing: impl Fn(&Track) -> bool, at_ns: u64) {
        let gone: Vec<u64> = self.tracks.iter().filter(|(_, track)| missing(track)).map(|(&id, _)| id).collect();
        for cookie in gone {
            if let Some(mut track) = self.tracks.remove(&cookie) {
                track.gone(at_ns, &mut self.stalls);
                self.closed += 1;
                self.ended.push(track);
            }
        }
    }

    /// Takes a socket that was not known, if it belongs to the subject. True when it is observed from now on.
    fn admit(&mut self, socket: &TcpSocket, source: &Source, at_ns: u64, resolved: &Resolved) -> bool {
        let (cookie, netns) = (socket.record.cookie, source.ino);
        if self.foreign.contains(&cookie) {
            return false;
        }
        let Some(owner) = self.owner(socket, netns, at_ns, resolved) else {
            // A socket without an owner (inode 0) may still be accepted.
            if socket.record.inode != 0 && self.foreign.len() < FOREIGN_MAX {
                self.foreign.insert(cookie);
            }
            return false;
        };
        if self.tracks.len() + self.ended.len() >= FLOWS_MAX {
            self.untracked += 1;
            self.foreign.insert(cookie);
            return false;
        }
        let begin_ns = if source.dumped { at_ns } else { 0 };
        let role = resolved.role(netns, socket.record.local_port);
        let mut track = Track::new(socket, netns, owner, role, begin_ns, at_ns);
        self.options.read(&mut track);
        self.tracks.insert(cookie, track);
        self.samples += 1;
        true
    }

    /// The holder of a socket: (0, -1) for one of the subject whose owner is unknown, None for one outside the subject.
    fn owner(&mut self, socket: &TcpSocket, netns: u64, at_ns: u64, resolved: &Resolved) -> Option<(u32, i32)> {
        let inode = u64::from(socket.record.inode);
        if let Some(&owner) = self.owners.get(&inode) {
            return Some(owner);
        }
        let port = socket.record.local_port;
        let acceptor = resolved.sockets.iter().find(|s| s.listening && s.netns == netns && s.local.port() == port);
        if inode != 0 && self.owners_at_ns.is_none_or(|then| at_ns >= then + OWNERS_NS) {
            self.owners_at_ns = Some(at_ns);
            for process in &resolved.processes {
                self.owners.extend(proc_fs::sockets(process.pid).into_iter().map(|(fd, i)| (i, (process.pid, fd))));
            }
            if let Some(&owner) = self.owners.get(&inode) {
                return Some(owner);
            }
        }
        match (acceptor, &self.select) {
            (Some(listener), _) => Some((listener.pid, -1)),
            (None, select) if select.by_process() || !resolved.asks(netns) => None,
            (None, _) => Some((0, -1)),
        }
    }

    /// Drops connections that another process accepted from a listener that it shares with the subject. `admit` takes
    /// them for the subject's, because they may be gone before it is known who holds them.
    pub fn drop_foreign(&mut self, resolved: &Resolved) {
        let unconfirmed = |track: &Track, owners: &HashMap<u64, (u32, i32)>| {
            track.fd < 0 && track.inode != 0 && !owners.contains_key(&track.inode)
        };
        if !self.select.by_process() || !self.tracks.values().any(|track| unconfirmed(track, &self.owners)) {
            return;
        }
        for process in &resolved.processes {
            self.owners.extend(proc_fs::sockets(process.pid).into_iter().map(|(fd, i)| (i, (process.pid, fd))));
        }
        let held_by_none = self.tracks.iter().filter(|(_, track)| unconfirmed(track, &self.owners)).map(|(&id, _)| id);
        // A child that was made a moment ago is not among the processes yet, so the second time counts.
        let suspects = std::mem::replace(&mut self.suspects, held_by_none.collect());
        let dropped: HashSet<u64> = self.suspects.intersection(&suspects).copied().collect();
        self.tracks.retain(|cookie, _| !dropped.contains(cookie));
        self.stalls.retain(|stall| !dropped.contains(&stall.flow));
        self.foreign.extend(dropped);
    }

    /// Reads the options of some flows again: applications set them after connect() or accept().
    pub fn read_options(&mut self) {
        let mut cookies: Vec<u64> = self.tracks.keys().copied().collect();
        cookies.sort_unstable();
        if self.options_turn >= cookies.len() {
            self.options_turn = 0;
        }
        for cookie in cookies.iter().skip(self.options_turn).take(OPTIONS_BATCH) {
            if let Some(track) = self.tracks.get_mut(cookie) {
                if track.fd < 0 {
                    (track.pid, track.fd) = self.owners.get(&track.inode).copied().unwrap_or((track.pid, track.fd));
                }
                self.options.read(track);
            }
        }
        self.options_turn += OPTIONS_BATCH;
    }

    /// Local and remote port of the flows that are open.
    pub fn ports(&self) -> impl Iterator<Item = (u16, u16)> {
        self.tracks.values().map(|track| (track.id.local.port(), track.id.remote.port()))
    }

    /// Whether a namespace cannot be read.
    pub fn failed(&self) -> bool {
        self.sources.iter().any(|source| source.errors >= ERRORS_MAX)
    }

    /// Closes all accounts.
    pub fn finish(self, end_ns: u64) -> (Vec<FlowRecord>, Vec<FlowStall>) {
        let mut stalls = self.stalls;
        // Without its children, the subject did not hold the flows that came and went unseen: a child did.
        let kept = |track: &Track| self.select.follows_children() || track.fd >= 0 || track.inode == 0;
        let tracks = self.ended.into_iter().chain(self.tracks.into_values());
        let mut records: Vec<FlowRecord> = tracks.filter(kept).map(|track| track.finish(end_ns, &mut stalls)).collect();
        records.stable_sort_by_key(|record| (record.begin_ns, record.id));
        stalls.stable_sort_by_key(|stall| stall.begin_ns);
        stalls.truncate(STALLS_MAX);
        (records, stalls)
    }
}
