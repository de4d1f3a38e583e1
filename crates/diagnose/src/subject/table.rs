//! Sockets joined with the processes that hold them.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parshall_core::sock_diag::Table;
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::units::plural;
use parshall_evidence::Role;
use parshall_evidence::socket::selection::state::LISTEN;
use parshall_evidence::socket::{Groups, Kind, Kinds, Selection, Side};

use super::netns::Namespace;
use super::resolved::{DESCRIPTORS_FIRST, Resolved, Sock, asks, to_see};
use parshall_host::left_out;
use parshall_host::proc_fs;
use parshall_host::proc_net;
use parshall_host::tcp_diag::{TcpSocket, states};

/// Connections that are looked at one by one: a record takes half a kilobyte, and to find its owner a few microseconds.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Further descriptors that are searched, in processes that have none of the sockets among the first.
const DESCRIPTORS_MORE: usize = 65_536;
/// How long the descriptors of processes are read at a time: 800,000 of them. A user may have thousands of processes with thousands
/// of descriptors each.
const HOLDERS_TIME: Duration = Duration::from_secs(5);

/// One socket and its namespace.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Inode of the namespace.
    pub netns: u64,
    /// As SOCK_DIAG reports it.
    pub socket: TcpSocket,
}

/// Which sockets of a dump belong to the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that its processes hold, and those that wait to be accepted by them.
    Held,
    /// All but our own.
    Everything,
}

impl Row {
    /// It is a UDP socket.
    pub fn is_udp(&self) -> bool {
        Kind::of(&self.socket.record) == Kind::Udp
    }

    /// It has this port at either end.
    pub fn has(&self, port: u16) -> bool {
        self.socket.record.local_port == port || self.socket.record.remote_port == port
    }

    /// It accepts connections on its port, or receives datagrams of anybody.
    fn serves(&self, port: u16) -> bool {
        let record = &self.socket.record;
        record.local_port == port && (record.state == LISTEN || self.is_udp() && record.remote_port == 0)
    }
}

/// All connected and listening TCP sockets of the namespaces. Notes those that cannot be entered.
pub fn dump(namespaces: &[Namespace], notes: &mut Vec<String>) -> Vec<Row> {
    dump_of(namespaces, &[tcp()], notes)
}

/// Those with one of the ports at either end, and the UDP sockets.
pub fn dump_ports(namespaces: &[Namespace], ports: &[u16], notes: &mut Vec<String>) -> Vec<Row> {
    let ports: Vec<_> = ports.iter().map(|&port| (Side::Either, port)).collect();
    let udp = Selection { kinds: Kinds::of([Kind::Udp]), states: u32::MAX, ports: ports.clone(), ..tcp() };
    dump_of(namespaces, &[Selection { ports, ..tcp() }, udp], notes)
}

/// The rows of some namespaces, and of the others those that are the other ends of their connections.
pub fn of_namespaces(mut rows: Vec<Row>, within: Option<&BTreeSet<u64>>) -> Vec<Row> {
    let pair = |row: &Row| (row.is_udp(), row.socket.local(), row.socket.remote());
    let there = rows.iter().filter(|row| asks(within, row.netns)).map(pair);
    // Loopback addresses are of one namespace.
    let ends: HashSet<(bool, SocketAddr, SocketAddr)> =
        there.filter(|(_, local, remote)| remote.port() != 0 && !local.ip().is_loopback()).collect();
    rows.retain(|row| {
        let (udp, local, remote) = pair(row);
        asks(within, row.netns) || ends.contains(&(udp, remote, local))
    });
    rows
}

/// The namespaces in which a port is served and was not looked up: a row of each.
pub fn served_elsewhere(rows: &[Row], port: u16, within: Option<&BTreeSet<u64>>) -> Vec<Row> {
    let mut found: BTreeMap<u64, Row> = BTreeMap::new();
    for row in rows.iter().filter(|row| !asks(within, row.netns) && row.serves(port)) {
        found.entry(row.netns).or_insert(*row);
    }
    found.into_values().collect()
}

fn tcp() -> Selection {
    Selection { groups: Groups::IDENTITY, states: states::CONNECTED | states::LISTEN, ..Selection::default() }
}

fn dump_of(namespaces: &[Namespace], selections: &[Selection], notes: &mut Vec<String>) -> Vec<Row> {
    let mut rows = Vec::new();
    let (mut refused, mut connections) = (0, 0_usize);
    let mut unknown: Option<String> = None;
    for namespace in namespaces {
        let mut take = |socket: &TcpSocket| {
            let connected = socket.record.state != LISTEN && socket.record.remote_port != 0;
            connections += usize::from(connected);
            if !connected || connections <= CONNECTIONS_MAX {
                rows.push(Row { netns: namespace.ino, socket: *socket });
            }
        };
        let dumped = namespace
            .open_diag()
            .and_then(|mut diag| selections.iter().try_for_each(|selection| diag.each(selection, &mut take).map(drop)));
        // Without the kernel's module for such dumps, /proc has the same sockets.
        let done = match dumped {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                unknown.get_or_insert_with(|| error.to_string());
                from_proc(namespace, selections, &mut rows)
            }
            dumped => dumped,
        };
        refused += usize::from(done.is_err());
    }
    if let Some(reason) = unknown {
        notes.push(format!("sockets were read from /proc/net: {reason}"));
    }
    if connections > CONNECTIONS_MAX {
        notes.push(format!(
            "of {}, those that carried no data in the window were not looked at",
            plural(connections as u64, "connection", "connections")
        ));
    }
    if refused > 0 {
        notes.push(format!(
            "{refused} of {} could not be entered{}",
            plural(namespaces.len() as u64, "network namespace", "network namespaces"),
            to_see("their sockets")
        ));
    }
    rows
}

/// Adds the sockets of a namespace that /proc/net tells of, at most [`CONNECTIONS_MAX`] for each selection.
fn from_proc(namespace: &Namespace, selections: &[Selection], rows: &mut Vec<Row>) -> io::Result<()> {
    // Sockets that were dumped before one of the tables was refused come again.
    rows.retain(|row| row.netns != namespace.ino);
    for selection in selections {
        for table in [(Kind::Tcp, Table::Tcp), (Kind::Udp, Table::Udp)] {
            if !selection.kinds.has(table.0) {
                continue;
            }
            let first = rows.len();
            namespace.run(|| {
                proc_net::each(table.1, namespace.ino as u32, &mut |record, _| {
                    if selection.holds(&record) && rows.len() - first < CONNECTIONS_MAX {
                        let socket = TcpSocket { record, tcp_info_bytes: 0, mptcp: false };
                        rows.push(Row { netns: namespace.ino, socket });
                    }
                })
            })??;
        }
    }
    Ok(())
}

/// When processes were started, in ticks since boot; of those that have ended, later than all others. A server comes before the workers that it
/// has started: their numbers do not tell, since they are used again from the bottom.
fn started(pids: impl Iterator<Item = u32>) -> HashMap<u32, u64> {
    let pids: BTreeSet<u32> = pids.into_set();
    pids.into_iter().map(|pid| (pid, proc_fs::stat(pid).map_or(u64::MAX, |stat| stat.start_ticks))).collect()
}

/// The holders of sockets.
#[derive(Debug, Default)]
pub struct Holders {
    by_inode: HashMap<u64, Vec<(u32, i32)>>,
    own: HashSet<u64>,
    /// Some processes have more descriptors than were read.
    pub incomplete: bool,
}

impl Holders {
    /// All sockets of some processes.
    pub fn of_pids(pids: &[u32]) -> Self {
        let (mut holders, begun) = (Self::default(), Instant::now());
        for &pid in pids {
            if holders.ends(begun) {
                break;
            }
            for (fd, inode) in proc_fs::sockets(pid) {
                holders.by_inode.entry(inode).or_default().push((pid, fd));
            }
        }
        holders
    }

    /// The processes, of all on the host, that hold some sockets: one pass over /proc. Of a process with very many descriptors that
    /// holds some of them, not all need be found.
    pub fn of_inodes(inodes: &HashSet<u64>) -> Self {
        let (mut holders, begun) = (Self::default(), Instant::now());
        let mut without = Vec::new();
        for pid in proc_fs::pids() {
            if holders.ends(begun) {
                break;
            }
            let (sockets, more) = proc_fs::first_sockets(pid, DESCRIPTORS_FIRST);
            let found = holders.take(pid, sockets, inodes);
            holders.incomplete |= more;
            if more && !found {
                without.push(pid);
            }
        }
        let mut left = DESCRIPTORS_MORE;
        for pid in without {
            if holders.ends(begun) {
                break;
            }
            let (sockets, _) = proc_fs::first_sockets(pid, DESCRIPTORS_FIRST + left);
            left = left.saturating_sub(sockets.len());
            holders.take(pid, sockets, inodes);
        }
        holders.sort_by_age();
        holders
    }

    fn sort_by_age(&mut self) {
        let shared = self.by_inode.values().filter(|held| held.len() > 1).flatten();
        let started = started(shared.map(|&(pid, _)| pid));
        for held in self.by_inode.values_mut().filter(|held| held.len() > 1) {
            held.sort_by_key(|&(pid, _)| (started[&pid], pid));
        }
    }

    /// Whether there is no more time.
    fn ends(&mut self, begun: Instant) -> bool {
        let ends = begun.elapsed() > HOLDERS_TIME;
        if ends {
            self.incomplete = true;
            left_out::add(
                "the descriptors of some processes were not read within 5 s: who holds some sockets is not known"
                    .to_owned(),
            );
        }
        ends
    }

    /// Whether there was one of `inodes` among the sockets of a process.
    fn take(&mut self, pid: u32, sockets: Vec<(i32, u64)>, inodes: &HashSet<u64>) -> bool {
        let mut found = false;
        for (fd, inode) in sockets.into_iter().filter(|(_, inode)| inodes.contains(inode)) {
            found = true;
            if pid == proc_fs::own_pid() {
                self.own.insert(inode);
            } else {
                self.by_inode.entry(inode).or_default().push((pid, fd));
            }
        }
        found
    }

    /// The first holder, of all on the host the oldest one, and its descriptor.
    pub fn first(&self, inode: u64) -> Option<(u32, i32)> {
        self.by_inode.get(&inode)?.first().copied()
    }

    /// All processes that hold a socket.
    pub fn pids(&self, inode: u64) -> impl Iterator<Item = u32> + '_ {
        self.by_inode.get(&inode).into_iter().flatten().map(|&(pid, _)| pid)
    }

    /// Only we hold it: one of our own sockets, or one that no other process shares.
    fn only_ours(&self, inode: u64) -> bool {
        self.own.contains(&inode) && !self.by_inode.contains_key(&inode)
    }
}

impl Resolved {
    /// Takes the sockets that belong to the subject.
    pub(super) fn adopt(&mut self, rows: Vec<Row>, holders: &Holders, scope: Scope) {
        let listening = |row: &Row| row.socket.record.state == LISTEN;
        self.listeners
            .extend(rows.iter().filter(|row| listening(row)).map(|row| (row.netns, row.socket.record.local_port)));
        // Where a process of the subject listens: connections that it has not accepted yet have no holder.
        let accepting: HashMap<(u64, u16), u32> = rows
            .iter()
            .filter(|row| listening(row))
            .filter_map(|row| {
                let (pid, _) = holders.first(u64::from(row.socket.record.inode))?;
                Some(((row.netns, row.socket.record.local_port), pid))
            })
            .collect();
        for row in rows {
            let inode = u64::from(row.socket.record.inode);
            let holder = holders.first(inode);
            let acceptor = accepting.get(&(row.netns, row.socket.record.local_port)).copied();
            let wanted = match scope {
                Scope::Held => holder.is_some() || inode == 0 && acceptor.is_some(),
                Scope::Everything => !holders.only_ours(inode),
            };
            if wanted {
                let (pid, fd) = match (holder, inode) {
                    (Some(holder), _) => holder,
                    (None, 0) => (acceptor.unwrap_or(0), -1),
                    (None, _) => (0, -1),
                };
                let sock = self.sock(&row, pid, fd);
                self.sockets.push(sock);
            }
        }
    }

    /// Adds the processes that hold sockets of the subject, those that hold a listener first.
    pub(super) fn add_holders(&mut self, holders: &Holders) {
        let mut pids: BTreeMap<u32, bool> = BTreeMap::new();
        for sock in &self.sockets {
            for pid in holders.pids(sock.inode) {
                *pids.entry(pid).or_default() |= sock.serves();
            }
        }
        let started = started(pids.keys().copied());
        let mut pids: Vec<(bool, u64, u32)> =
            pids.into_iter().map(|(pid, listens)| (!listens, started[&pid], pid)).collect();
        pids.sort_unstable();
        let pids: Vec<u32> = pids.into_iter().map(|(_, _, pid)| pid).collect();
        self.add_processes(&pids);
        let unowned = self.sockets.iter().filter(|sock| sock.inode != 0 && sock.pid == 0).count();
        if unowned > 0 && !holders.incomplete {
            let remedy = if parshall_sys::child::is_root() {
                "they are outside of this pid namespace"
            } else {
                "run as root, in the host's pid namespace"
            };
            self.notes.push(format!(
                "the owners of {unowned} of {} could not be seen: {remedy}",
                plural(self.sockets.len() as u64, "socket", "sockets")
            ));
        }
    }

    /// A socket in the words of the subject.
    pub fn sock(&self, row: &Row, pid: u32, fd: i32) -> Sock {
        let record = &row.socket.record;
        Sock {
            cookie: Some(record.cookie).filter(|&cookie| cookie != 0),
            id: row.socket.id(),
            inode: u64::from(record.inode),
            family: record.family,
            local: row.socket.local(),
            remote: row.socket.remote(),
            state: record.state,
            udp: row.is_udp(),
            mptcp: row.socket.mptcp,
            listening: record.state == LISTEN,
            netns: row.netns,
            pid,
            fd,
            role: self.role(row.netns, record.local_port),
        }
    }

    /// A socket that has the port of a listener was accepted there.
    pub fn role(&self, netns: u64, local_port: u16) -> Role {
        if self.listeners.contains(&(netns, local_port)) { Role::Server } else { Role::Client }
    }
}
