//! Whom to observe: from what the user names to processes and sockets.
//!
//! Every rung begins here. `process` reads one of them, `netns` lists and enters network namespaces, `table` joins sockets with the
//! processes that hold them, `refresh` notices what came and went. Nothing here samples or judges.
mod hints;
mod netns;
mod other_sockets;
mod process;
mod refresh;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use parshall_core::sock_diag::SocketId;
use parshall_evidence::{Role, Subject, ThreadRecord};

use parshall_host::bounded_file;
use parshall_host::cgroup::Mounts;
use parshall_host::error::UserError;
use parshall_host::left_out;
use parshall_host::netns::Netns;
use parshall_host::proc_fs;

pub use netns::{Namespace, all as all_namespaces};
pub use process::{Process, own_arguments};
#[cfg(test)]
use refresh::Changes;
pub use refresh::alive;
use table::Scope;
pub use table::{DESCRIPTORS_FIRST, Holders};

/// Control groups that are searched for processes: who has a delegated group makes as many in it as they like.
const GROUPS_MAX: usize = 16_384;

/// What the user named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// Processes and their threads; and their children, theirs, and so on, also those made while they are observed.
    Pids(Vec<u32>),
    /// Processes and their threads, without their children.
    Only(Vec<u32>),
    /// Every socket with this TCP or UDP port at either end, the other ends of their connections in whatever network namespace of
    /// this host, and the processes that hold them.
    Port(u16, Within),
    /// Every process of a control group, given by its path.
    Cgroup(PathBuf),
    /// Every process and socket of a network namespace.
    Netns(Netns),
    /// Everything on the host.
    All,
}

/// In which network namespaces a port is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Within {
    /// Our own, as `ss` and `curl` typed at the same prompt have it.
    Own,
    /// This one, or all.
    Named(Netns),
}

impl From<Option<Netns>> for Within {
    fn from(flag: Option<Netns>) -> Self {
        flag.map_or(Self::Own, Self::Named)
    }
}

impl Select {
    /// What a process of the subject forks while it is observed belongs to the subject.
    pub fn follows_children(&self) -> bool {
        !matches!(self, Select::Only(_))
    }

    /// The port, where the subject is named by one.
    pub fn port(&self) -> Option<u16> {
        if let Select::Port(port, _) = self { Some(*port) } else { None }
    }

    /// The processes are named, and the sockets are theirs; otherwise it is the other way round.
    pub fn by_process(&self) -> bool {
        matches!(self, Select::Pids(_) | Select::Only(_) | Select::Cgroup(_))
    }
}

/// `: run as root to see WHAT`; for root the reason why it may not, either.
pub fn to_see(what: &str) -> String {
    if parshall_sys::child::is_root() {
        format!(": {what} belong to another user namespace, or a security module hides them")
    } else {
        format!(": run as root to see {what}")
    }
}

/// Adds the processes whose threads were observed and that came too late, or lived too briefly, to be found in /proc.
pub fn add_observed(subject: &mut Subject, threads: &[ThreadRecord]) {
    let known: HashSet<u32> = subject.pids.iter().copied().collect();
    let mut late: BTreeMap<u32, &str> = BTreeMap::new();
    for thread in threads.iter().filter(|thread| !known.contains(&thread.pid)) {
        let name = late.entry(thread.pid).or_insert(&thread.comm);
        if thread.tid == thread.pid {
            *name = &thread.comm;
        }
    }
    for (pid, name) in late {
        subject.pids.push(pid);
        subject.comms.push(name.to_owned());
    }
}

/// A socket of the subject: TCP, and UDP where a port was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sock {
    /// Its cookie; None when the kernel has not given it one.
    pub cookie: Option<u64>,
    /// What names it to the kernel.
    pub id: SocketId,
    /// Inode of its descriptor; 0 when no file refers to it.
    pub inode: u64,
    /// Address family (AF_INET6 also when it talks to an IPv4 peer).
    pub family: u8,
    /// Own address; v4-mapped addresses as IPv4.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// TCP state number.
    pub state: u8,
    /// It is a UDP socket.
    pub udp: bool,
    /// It is of MPTCP.
    pub mptcp: bool,
    /// It is a listener.
    pub listening: bool,
    /// Inode of its network namespace.
    pub netns: u64,
    /// A process that holds it, 0 when none is known.
    pub pid: u32,
    /// Its descriptor in that process, -1 when unknown.
    pub fd: i32,
    /// Which end opened the connection.
    pub role: Role,
}

impl Sock {
    /// It accepts connections, or receives datagrams of anybody.
    pub fn serves(&self) -> bool {
        self.listening || self.udp && self.remote.port() == 0
    }
}

/// The subject as it is now.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// In the words of a report.
    pub subject: Subject,
    /// What the user named.
    pub select: Select,
    /// Its processes; those that hold a listener first.
    pub processes: Vec<Process>,
    /// Its sockets.
    pub sockets: Vec<Sock>,
    /// Ports on which it listens.
    pub listen_ports: Vec<u16>,
    /// The network namespaces of its sockets.
    pub namespaces: Vec<Namespace>,
    /// Local ports with a listener, of the subject or not, by namespace: who accepts there is a server.
    pub listeners: HashSet<(u64, u16)>,
    /// What could not be seen, a sentence each.
    pub notes: Vec<String>,
    /// Of a port: the namespaces in which it was looked up; None for all.
    within: Option<BTreeSet<u64>>,
    /// Of a port: children of its processes that were there before and hold no socket with that port. Those made later
    /// belong to the subject, for they may be made for a connection.
    bystanders: HashSet<u32>,
    mounts: Mounts,
}

/// Finds the processes and sockets that the user named. A subject that cannot be found is a [`UserError`].
pub fn resolve(select: &Select) -> Result<Resolved> {
    let mut notes = Vec::new();
    let mut resolved = match select {
        Select::Pids(pids) => {
            let pids = checked_pids(pids, &mut notes)?;
            of_processes(select, with_descendants(pids), notes)
        }
        Select::Only(pids) => {
            let pids = checked_pids(pids, &mut notes)?;
            of_processes(select, pids, notes)
        }
        Select::Port(port, within) => of_port(*port, within, notes)?,
        Select::Cgroup(path) => {
            let pids = cgroup_pids(path)?;
            of_processes(select, pids, notes)
        }
        Select::Netns(netns) => of_netns(netns, notes)?,
        Select::All => of_all(notes),
    };
    resolved.notes.extend(other_sockets::note(&resolved.processes));
    resolved.describe(select);
    Ok(resolved)
}

/// Takes thread ids for their processes, and refuses what cannot be observed.
fn checked_pids(pids: &[u32], notes: &mut Vec<String>) -> Result<Vec<u32>> {
    let mut checked = Vec::new();
    for &pid in pids {
        let Some(stat) = proc_fs::stat(pid) else {
            return Err(hints::no_such_pid(pid).into());
        };
        let leader = proc_fs::thread_group(pid).unwrap_or(pid);
        if leader == proc_fs::own_pid() {
            return Err(UserError::new(
                format!("process {pid} is parshall itself"),
                "name the process of the service; `ss -ltnp` lists those that listen",
            )
            .into());
        }
        if stat.kernel_thread {
            return Err(UserError::new(
                format!("process {pid} ({}) is a thread of the kernel", stat.comm),
                "name the process of the service; `ss -ltnp` lists those that listen",
            )
            .into());
        }
        if matches!(stat.state, 'Z' | 'X') {
            return Err(UserError::new(
                format!("process {pid} ({}) has exited", stat.comm),
                format!("it is a zombie that its parent, process {}, has not reaped", stat.parent),
            )
            .into());
        }
        if leader != pid {
            notes.push(format!("{pid} is a thread of process {leader}: the whole process is observed"));
        }
        if !checked.contains(&leader) {
            checked.push(leader);
        }
    }
    if checked.is_empty() {
        return Err(UserError::new("no process was named", "give at least one process id").into());
    }
    Ok(checked)
}

/// The processes, and behind them their children, theirs and so on; without ourselves, who may be a child of a shell that
/// is observed.
fn with_descendants(mut pids: Vec<u32>) -> Vec<u32> {
    let below = proc_fs::descendants(&pids);
    pids.extend(below.into_iter().filter(|&pid| pid != proc_fs::own_pid()).take(refresh::PROCESSES_MAX));
    pids
}

/// Processes first: their sockets are those behind their descriptors.
fn of_processes(select: &Select, pids: Vec<u32>, notes: Vec<String>) -> Resolved {
    let mut resolved = Resolved::new(select.clone(), notes);
    let hidden = resolved.add_processes(&pids);
    if hidden > 0 {
        resolved.notes.push(format!(
            "the descriptors of {hidden} of {} processes could not be read{}",
            pids.len(),
            to_see("their sockets")
        ));
    }
    let holders = Holders::of_pids(&pids);
    let wanted: BTreeSet<u64> = resolved.processes.iter().map(|process| process.netns_ino).collect();
    resolved.namespaces = netns::of_inodes(&wanted, &resolved.processes);
    let rows = table::dump(&resolved.namespaces, &mut resolved.notes);
    resolved.adopt(rows, &holders, Scope::Held);
    resolved
}

/// Sockets first: the processes are those that hold them.
fn of_port(port: u16, within: &Within, mut notes: Vec<String>) -> Result<Resolved> {
    let namespaces = netns::all(&mut notes);
    let asked = match within {
        Within::Own => Namespace::own(),
        Within::Named(netns) => netns::named(netns)?,
    };
    let asked = asked.map(|namespace| BTreeSet::from([namespace.ino]));
    let rows = table::dump_port(&namespaces, port, &mut notes);
    let elsewhere = table::served_elsewhere(&rows, port, asked.as_ref());
    let rows = table::of_namespaces(rows, asked.as_ref());
    if rows.is_empty() {
        let searched: Vec<Namespace> = namespaces.into_iter().filter(|n| asks(asked.as_ref(), n.ino)).collect();
        return Err(hints::no_such_port(port, within, &searched, &elsewhere).into());
    }
    notes.extend(hints::also_served(port, &elsewhere));
    let mut resolved = Resolved::new(Select::Port(port, within.clone()), notes);
    resolved.namespaces = namespaces;
    resolved.within = asked;
    let inodes: HashSet<u64> = rows.iter().map(|row| u64::from(row.socket.record.inode)).collect();
    let holders = Holders::of_inodes(&inodes);
    resolved.adopt(rows, &holders, Scope::Everything);
    resolved.add_holders(&holders);
    resolved.forget_unused_namespaces();
    let holding: Vec<u32> = resolved.processes.iter().map(|process| process.pid).collect();
    resolved.bystanders = proc_fs::descendants(&holding).into_iter().filter(|pid| !holding.contains(pid)).collect();
    Ok(resolved)
}

fn of_netns(netns: &Netns, mut notes: Vec<String>) -> Result<Resolved> {
    let Some(namespace) = netns::named(netns)? else { return Ok(of_all(notes)) };
    let pids = netns::members(namespace.ino);
    let rows = table::dump(std::slice::from_ref(&namespace), &mut notes);
    if rows.is_empty() && pids.is_empty() {
        return Err(UserError::new(
            format!("network namespace {netns} has no processes and no TCP sockets"),
            "start the service in it first: `ip netns exec NAME CMD`",
        )
        .into());
    }
    let mut resolved = Resolved::new(Select::Netns(netns.clone()), notes);
    resolved.namespaces = vec![namespace];
    let inodes: HashSet<u64> = rows.iter().map(|row| u64::from(row.socket.record.inode)).collect();
    let holders = Holders::of_inodes(&inodes);
    resolved.adopt(rows, &holders, Scope::Everything);
    resolved.add_processes(&pids);
    resolved.add_holders(&holders);
    Ok(resolved)
}

fn of_all(mut notes: Vec<String>) -> Resolved {
    let namespaces = netns::all(&mut notes);
    let rows = table::dump(&namespaces, &mut notes);
    let mut resolved = Resolved::new(Select::All, notes);
    resolved.namespaces = namespaces;
    let inodes: HashSet<u64> = rows.iter().map(|row| u64::from(row.socket.record.inode)).collect();
    let holders = Holders::of_inodes(&inodes);
    resolved.adopt(rows, &holders, Scope::Everything);
    resolved.add_holders(&holders);
    resolved
}

fn asks(within: Option<&BTreeSet<u64>>, netns: u64) -> bool {
    within.is_none_or(|within| within.contains(&netns))
}

/// The processes of a control group and of the groups below it.
fn cgroup_pids(path: &Path) -> Result<Vec<u32>> {
    let mut directories = Mounts::read().directories_named(path);
    if directories.is_empty() {
        return Err(UserError::new(
            format!("there is no control group {}", path.display()),
            "give a directory below /sys/fs/cgroup or a path as in /proc/PID/cgroup",
        )
        .into());
    }
    let (mut pids, mut groups) = (BTreeSet::new(), 0);
    while let Some(directory) = directories.pop() {
        groups += 1;
        if groups > GROUPS_MAX {
            left_out::add(format!("only {GROUPS_MAX} of the groups in {} were searched for processes", path.display()));
            break;
        }
        let procs = bounded_file::text(directory.join("cgroup.procs")).unwrap_or_default();
        pids.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        directories.extend(below.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
    }
    // 0 stands for a process outside of our pid namespace.
    pids.remove(&0);
    pids.remove(&proc_fs::own_pid());
    pids.retain(|&pid| proc_fs::stat(pid).is_some_and(|stat| !stat.kernel_thread));
    if pids.is_empty() {
        return Err(UserError::new(
            format!("control group {} has no processes", path.display()),
            "`cat /proc/PID/cgroup` shows the groups of a process",
        )
        .into());
    }
    Ok(pids.into_iter().collect())
}

impl Resolved {
    fn new(select: Select, notes: Vec<String>) -> Self {
        Self {
            subject: Subject::default(),
            select,
            processes: Vec::new(),
            sockets: Vec::new(),
            listen_ports: Vec::new(),
            namespaces: Vec::new(),
            listeners: HashSet::new(),
            notes,
            within: None,
            bystanders: HashSet::new(),
            mounts: Mounts::read(),
        }
    }

    /// Where a port was asked for: the processes that serve it. The others are its clients, of which only the connections to the
    /// port belong to the subject. None for other subjects.
    pub fn serving(&self) -> Option<HashSet<u32>> {
        let port = self.select.port()?;
        let listens = |sock: &&Sock| sock.serves() && sock.local.port() == port;
        let listeners: HashSet<u64> = self.sockets.iter().filter(listens).map(|sock| sock.inode).collect();
        // Workers share the listener that their parent opened, so it is searched in each process.
        let serves = |pid: &u32| {
            proc_fs::first_sockets(*pid, DESCRIPTORS_FIRST).0.iter().any(|(_, inode)| listeners.contains(inode))
        };
        Some(self.processes.iter().map(|process| process.pid).filter(serves).collect())
    }

    /// Where a port was asked for and somebody here serves it: the processes that are only its clients.
    pub fn clients(&self) -> HashSet<u32> {
        let serving: Vec<u32> = self.serving().unwrap_or_default().into_iter().collect();
        let below = proc_fs::descendants(&serving);
        let all = self.processes.iter().map(|process| process.pid).filter(|_| !serving.is_empty());
        all.filter(|pid| !serving.contains(pid) && !below.contains(pid)).collect()
    }

    /// Adds processes that are not known yet; returns how many of them hide their descriptors.
    fn add_processes(&mut self, pids: &[u32]) -> usize {
        let known: HashSet<u32> = self.processes.iter().map(|process| process.pid).collect();
        let mut hidden = 0;
        for &pid in pids.iter().filter(|pid| !known.contains(pid)) {
            if let Some(process) = process::process(pid, &self.mounts) {
                hidden += usize::from(!proc_fs::shows_descriptors(pid));
                self.processes.push(process);
            }
        }
        hidden
    }

    /// Adds the processes that hold sockets of the subject, those that hold a listener first.
    fn add_holders(&mut self, holders: &Holders) {
        let mut pids: BTreeMap<u32, bool> = BTreeMap::new();
        for sock in &self.sockets {
            for pid in holders.pids(sock.inode) {
                *pids.entry(pid).or_default() |= sock.serves();
            }
        }
        let mut pids: Vec<(bool, u32)> = pids.into_iter().map(|(pid, listens)| (!listens, pid)).collect();
        pids.sort_unstable();
        let pids: Vec<u32> = pids.into_iter().map(|(_, pid)| pid).collect();
        self.add_processes(&pids);
        let unowned = self.sockets.iter().filter(|sock| sock.inode != 0 && sock.pid == 0).count();
        if unowned > 0 && !holders.incomplete {
            let remedy = if parshall_sys::child::is_root() {
                "they are outside of this pid namespace"
            } else {
                "run as root, in the host's pid namespace"
            };
            self.notes
                .push(format!("the owners of {unowned} of {} sockets could not be seen: {remedy}", self.sockets.len()));
        }
    }

    /// Whether what a namespace holds belongs to the subject by its port alone. Of the others only the other ends of connections do.
    pub fn asks(&self, netns: u64) -> bool {
        asks(self.within.as_ref(), netns)
    }

    fn forget_unused_namespaces(&mut self) {
        let used: HashSet<u64> = self.sockets.iter().map(|sock| sock.netns).collect();
        self.namespaces.retain(|namespace| used.contains(&namespace.ino));
    }

    fn describe(&mut self, select: &Select) {
        let mut ports: BTreeSet<u16> = self.sockets.iter().filter(|s| s.listening).map(|s| s.local.port()).collect();
        self.listen_ports = ports.iter().copied().collect();
        if let Select::Port(port, _) = select {
            ports.insert(*port);
        }
        let netns: BTreeSet<u64> = self.namespaces.iter().map(|namespace| namespace.ino).collect();
        self.subject = Subject {
            pids: self.processes.iter().map(|process| process.pid).collect(),
            ports: ports.into_iter().collect(),
            netns: netns.into_iter().collect(),
            observer_netns: Namespace::own().map_or(0, |namespace| namespace.ino),
            comms: self.processes.iter().map(|process| process.comm.clone()).collect(),
        };
    }
}
