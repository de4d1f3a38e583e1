//! The subject as it was found, and as the user named it.
use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use parshall_core::sock_diag::SocketId;
use parshall_core::sorting::IntoOrdered as _;
use parshall_evidence::{Role, Subject};
use parshall_host::cgroup::Mounts;
use parshall_host::netns::Netns;
use parshall_host::proc_fs;

use super::netns::Namespace;
use super::process::{self, Process};

/// Descriptors of each process that are searched first. A server has its listener among them, and whoever has many connections to one
/// port has one of them there.
pub const DESCRIPTORS_FIRST: usize = 2_048;

/// The subject as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// Processes and their threads; and their children, theirs, and so on, also those made while they are observed.
    Pids(Vec<u32>),
    /// Processes and their threads, without their children.
    Only(Vec<u32>),
    /// Those with one of these names, as [`super::named::pids`] finds them, and their children or not.
    Named { names: Vec<String>, only: bool },
    /// Every socket with one of these TCP or UDP ports, in ascending order, at either end, the other ends of their connections in whatever network namespace of
    /// this host, and the processes that hold them.
    Ports(Vec<u16>, Within),
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
    /// Whether processes that the subject forks while it is observed belong to it.
    pub fn follows_children(&self) -> bool {
        !matches!(self, Select::Only(_) | Select::Named { only: true, .. })
    }

    /// The ports, where the subject is named by some.
    pub fn ports(&self) -> &[u16] {
        if let Select::Ports(ports, _) = self { ports } else { &[] }
    }

    /// The processes are named, and the sockets are theirs; otherwise it is the other way round.
    pub fn by_process(&self) -> bool {
        matches!(self, Select::Pids(_) | Select::Only(_) | Select::Named { .. } | Select::Cgroup(_))
    }
}

/// A socket of the subject: TCP, and UDP where a port was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sock {
    /// Its cookie; None when the kernel has not given it one.
    pub cookie: Option<u64>,
    /// Its id for the kernel.
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
    /// The subject as the user named it.
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
    /// Gaps, a sentence each.
    pub notes: Vec<String>,
    /// Of a port: the namespaces in which it was looked up; None for all.
    pub(super) within: Option<BTreeSet<u64>>,
    /// Of a port: children of its processes that were there before and hold no socket with that port. Those made later
    /// belong to the subject, for they may be made for a connection.
    pub(super) bystanders: HashSet<u32>,
    mounts: Mounts,
}

/// Whether the namespace is one of these; None is all of them.
pub(super) fn asks(within: Option<&BTreeSet<u64>>, netns: u64) -> bool {
    within.is_none_or(|within| within.contains(&netns))
}

impl Resolved {
    pub(super) fn new(select: Select, notes: Vec<String>) -> Self {
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
        let ports = self.select.ports();
        if ports.is_empty() {
            return None;
        }
        // Of a connection, the end that came from the listener is the service's.
        let of_service = |sock: &&Sock| sock.serves() || self.listeners.contains(&(sock.netns, sock.local.port()));
        let at_port = self.sockets.iter().filter(|sock| ports.contains(&sock.local.port()));
        let listeners: HashSet<u64> = at_port.filter(of_service).map(|sock| sock.inode).collect();
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

    /// Of a port: those that are not observed because they held none of its connections, and whose parents serve it. They may be given
    /// a connection.
    pub fn bystanders_of_service(&self) -> HashSet<u32> {
        if self.bystanders.is_empty() {
            return HashSet::new();
        }
        let serving: Vec<u32> = self.serving().unwrap_or_default().into_iter().collect();
        proc_fs::descendants(&serving).into_iter().filter(|pid| self.bystanders.contains(pid)).collect()
    }

    /// Adds processes that are not known yet; returns how many of them hide their descriptors.
    pub(super) fn add_processes(&mut self, pids: &[u32]) -> usize {
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

    /// Whether what a namespace holds belongs to the subject by its port alone. Of the others only the other ends of connections do.
    pub fn asks(&self, netns: u64) -> bool {
        asks(self.within.as_ref(), netns)
    }

    pub(super) fn forget_unused_namespaces(&mut self) {
        let used: HashSet<u64> = self.sockets.iter().map(|sock| sock.netns).collect();
        self.namespaces.retain(|namespace| used.contains(&namespace.ino));
    }

    pub(super) fn describe(&mut self, select: &Select) {
        let mut ports: BTreeSet<u16> = self.sockets.iter().filter(|s| s.listening).map(|s| s.local.port()).into_set();
        self.listen_ports = ports.iter().copied().collect();
        ports.extend(select.ports());
        let netns: BTreeSet<u64> = self.namespaces.iter().map(|namespace| namespace.ino).into_set();
        self.subject = Subject {
            pids: self.processes.iter().map(|process| process.pid).collect(),
            ports: ports.into_iter().collect(),
            netns: netns.into_iter().collect(),
            observer_netns: Namespace::own().map_or(0, |namespace| namespace.ino),
            comms: self.processes.iter().map(|process| process.comm.clone()).collect(),
        };
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
