//! Sockets joined with the processes that hold them.
use std::collections::{HashMap, HashSet};

use parshall_evidence::Role;
use parshall_evidence::socket::selection::state::LISTEN;
use parshall_evidence::socket::{Groups, Selection, Side};

use super::{Namespace, Resolved, Sock};
use parshall_host::proc_fs;
use parshall_host::tcp_diag::{TcpSocket, states};

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

/// All connected and listening sockets of the namespaces. Notes those that cannot be entered.
pub fn dump(namespaces: &[Namespace], port: Option<u16>, notes: &mut Vec<String>) -> Vec<Row> {
    let selection = Selection {
        groups: Groups::IDENTITY,
        states: states::CONNECTED | states::LISTEN,
        ports: port.map(|port| (Side::Either, port)).into_iter().collect(),
        ..Selection::default()
    };
    let mut rows = Vec::new();
    let mut refused = 0;
    let mut found = Vec::new();
    for namespace in namespaces {
        found.clear();
        match namespace.open_diag().and_then(|mut diag| diag.dump(&selection, &mut found)) {
            Ok(_) => rows.extend(found.iter().map(|&socket| Row { netns: namespace.ino, socket })),
            Err(_) => refused += 1,
        }
    }
    if refused > 0 {
        notes.push(format!(
            "{refused} of {} network namespaces could not be entered: run as root to see their sockets",
            namespaces.len()
        ));
    }
    rows
}

/// Who holds which socket.
#[derive(Debug, Default)]
pub struct Holders {
    by_inode: HashMap<u64, Vec<(u32, i32)>>,
    own: HashSet<u64>,
}

impl Holders {
    /// All sockets of some processes.
    pub fn of_pids(pids: &[u32]) -> Self {
        let mut holders = Self::default();
        for &pid in pids {
            for (fd, inode) in proc_fs::sockets(pid) {
                holders.by_inode.entry(inode).or_default().push((pid, fd));
            }
        }
        holders
    }

    /// The processes, of all on the host, that hold some sockets: one pass over /proc.
    pub fn of_inodes(inodes: &HashSet<u64>) -> Self {
        let mut holders = Self::default();
        for pid in proc_fs::pids() {
            for (fd, inode) in proc_fs::sockets(pid) {
                if !inodes.contains(&inode) {
                    continue;
                }
                if pid == std::process::id() {
                    holders.own.insert(inode);
                } else {
                    holders.by_inode.entry(inode).or_default().push((pid, fd));
                }
            }
        }
        holders
    }

    /// The first holder and its descriptor.
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
            listening: record.state == LISTEN,
            netns: row.netns,
            pid,
            fd,
            role: self.role(row.netns, record.local_port),
        }
    }

    /// Who has the port of a listener was accepted there.
    pub fn role(&self, netns: u64, local_port: u16) -> Role {
        if self.listeners.contains(&(netns, local_port)) { Role::Server } else { Role::Client }
    }
}
