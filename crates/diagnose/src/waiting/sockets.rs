//! The TCP sockets on which something may wait, with what moved last on them and when.
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use parshall_evidence::socket::selection::state::{CLOSE_WAIT, ESTABLISHED, LISTEN, SYN_SENT};
use parshall_evidence::socket::{Group, Groups, Selection, Side, SocketRecord};
use parshall_host::tcp_diag::TcpSocket;

use crate::subject::{Namespace, all_namespaces};

/// Sockets that are kept of all tables.
const SOCKETS_MAX: usize = 200_000;
/// A wait that is younger than this when it is read tells nothing.
const YOUNG_MS: u32 = 100;

/// One socket.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its cookie.
    pub cookie: u64,
    /// Inode of its descriptor; 0 while it waits to be accepted.
    pub inode: u64,
    /// Inode of its network namespace.
    pub netns: u64,
    /// Its own address, v4-mapped ones as IPv4.
    pub local: SocketAddr,
    /// The other end's.
    pub remote: SocketAddr,
    /// TCP state.
    pub state: u8,
    /// Its port is that of a listener.
    pub serves: bool,
    /// Bytes that were not read.
    pub unread_bytes: u64,
    /// Time since data arrived; None when none ever did.
    pub received_ns: Option<u64>,
    /// Time since data was sent; None when none ever was.
    pub sent_ns: Option<u64>,
    /// Time since an ACK arrived.
    pub acked_ns: u64,
    /// Bytes that its process has read, and segments with data that it has sent.
    progress: (u64, u32),
}

impl Row {
    fn new(netns: u64, socket: &TcpSocket) -> Self {
        let record = &socket.record;
        let ns = |ms: u32| u64::from(ms) * 1_000_000;
        Self {
            cookie: record.cookie,
            inode: u64::from(record.inode),
            netns,
            local: socket.local(),
            remote: socket.remote(),
            state: record.state,
            serves: false,
            unread_bytes: u64::from(record.rqueue_bytes),
            received_ns: received(record).then(|| ns(record.last_data_recv_ms)),
            sent_ns: (record.data_segs_out > 0).then(|| ns(record.last_data_sent_ms)),
            acked_ns: ns(record.last_ack_recv_ms),
            progress: (record.bytes_received.saturating_sub(record.rqueue_bytes.into()), record.data_segs_out),
        }
    }

    /// A process has accepted it, or opened it.
    pub fn accepted(&self) -> bool {
        self.inode != 0 || !self.serves
    }

    /// Its process has read or written since, or it was in another state.
    pub fn moved_since(&self, later: &Self) -> bool {
        let same_queue = self.accepted() == later.accepted() && (self.unread_bytes > 0) == (later.unread_bytes > 0);
        self.state != later.state || self.progress != later.progress || !same_queue
    }

    /// By what moved last, a request may be open here: this end has it, or has sent it.
    fn may_wait(&self) -> bool {
        let (asked, answered) =
            if self.serves { (self.received_ns, self.sent_ns) } else { (self.sent_ns, self.received_ns) };
        let old = |ns: Option<u64>| ns.is_some_and(|ns| ns >= u64::from(YOUNG_MS) * 1_000_000);
        let last = old(asked) && answered.is_none_or(|answered| asked.is_some_and(|asked| asked <= answered));
        self.state == SYN_SENT || self.state == ESTABLISHED && (self.unread_bytes > 0 || !self.accepted() || last)
    }
}

/// Of an old kernel, which does not count bytes, the queue must do.
fn received(record: &SocketRecord) -> bool {
    record.bytes_received > 0 || record.rqueue_bytes > 0
}

/// The sockets of some network namespaces at one moment.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
    /// Inodes of the listeners, by network namespace and port.
    listeners: HashMap<(u64, u16), Vec<u64>>,
    read: HashSet<u64>,
}

impl Table {
    /// Reads the sockets of the namespaces, or those with one of the ports at either end where some are given.
    pub fn read(namespaces: &[Namespace], ports: &[u16]) -> Self {
        let mut table = Self::default();
        table.add(namespaces, ports);
        table
    }

    fn add(&mut self, namespaces: &[Namespace], ports: &[u16]) {
        let selection = Selection {
            groups: Groups::of([Group::Queues, Group::Times, Group::Traffic]),
            states: 1 << ESTABLISHED | 1 << SYN_SENT | 1 << CLOSE_WAIT | 1 << LISTEN,
            ports: ports.iter().map(|&port| (Side::Either, port)).collect(),
            ..Selection::default()
        };
        for namespace in namespaces.iter().filter(|namespace| self.read.insert(namespace.ino)) {
            let Ok(mut diag) = namespace.open_diag() else { continue };
            // A dump that the kernel ends early still shows what came before.
            let _ = diag.each(&selection, &mut |socket| {
                let row = Row::new(namespace.ino, socket);
                if row.state == LISTEN {
                    self.listeners.entry((row.netns, row.local.port())).or_default().push(row.inode);
                } else if self.rows.len() < SOCKETS_MAX {
                    self.rows.push(row);
                }
            });
        }
        for row in &mut self.rows {
            row.serves = self.listeners.contains_key(&(row.netns, row.local.port()));
        }
    }

    /// Reads the other namespaces too, if a connection on which something may wait leads into one of them.
    pub fn add_other_namespaces(&mut self) {
        let ends: HashSet<(SocketAddr, SocketAddr)> = self.rows.iter().map(|row| (row.local, row.remote)).collect();
        let leaves = |row: &Row| !row.remote.ip().is_loopback() && !ends.contains(&(row.remote, row.local));
        if self.candidates().any(leaves) {
            self.add(&all_namespaces(&mut Vec::new()), &[]);
        }
    }

    /// Those on which something may wait.
    pub fn candidates(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.may_wait())
    }

    /// They and their other ends.
    pub fn waiting(&self) -> impl Iterator<Item = &Row> {
        let wanted: HashSet<(SocketAddr, SocketAddr)> = self.candidates().map(|row| (row.remote, row.local)).collect();
        self.rows.iter().filter(move |row| row.may_wait() || wanted.contains(&(row.local, row.remote)))
    }

    /// Inodes of the listeners on which something waits to be accepted.
    pub fn listener_inodes(&self) -> impl Iterator<Item = u64> {
        let queued: HashSet<(u64, u16)> =
            self.rows.iter().filter(|row| !row.accepted()).map(|row| (row.netns, row.local.port())).collect();
        self.listeners.iter().filter(move |(at, _)| queued.contains(at)).flat_map(|(_, inodes)| inodes.iter().copied())
    }

    /// Inodes of the listeners from which this one would be accepted.
    pub fn listeners_of(&self, row: &Row) -> Vec<u64> {
        self.listeners.get(&(row.netns, row.local.port())).cloned().unwrap_or_default()
    }
}
