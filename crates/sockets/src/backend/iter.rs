//! The backend `iter`: the kernel's BPF iterators over TCP, UDP and UNIX sockets.
//!
//! An iterator belongs to the network namespace of the thread that makes it. One thread goes from namespace to namespace and
//! makes them; they are read here, one at a time, so threads do not grow with namespaces. The kernel walks its whole table
//! of connections for each namespace, 11 to 19 ms however few there are, so one without sockets of a kind is passed
//! over: its own count of them (/proc/net/sockstat) costs a thousandth of that.
//!
//! MPTCP connections are found by their first subflows, which are TCP sockets. There is no iterator over UDP-Lite.
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::{Context, Result};
use parshall_bpf::sockets::iter::{Iterators, Opener, Portion, Reader, Table};
use parshall_bpf::sockets::owners::ForeignSocket;
use parshall_evidence::socket::{Batch, Completeness};
use parshall_evidence::socket::{Kind, Kinds, Selection};
use parshall_sys::netns;

use super::Backend;
use crate::namespaces::{Discovery, Namespace};

/// The iterators over these kinds of sockets.
fn tables(kinds: Kinds) -> Vec<Table> {
    let mut tables = Vec::new();
    if kinds.has(Kind::Tcp) || kinds.has(Kind::Mptcp) {
        tables.push(Table::Tcp);
    }
    if kinds.has(Kind::Udp) {
        tables.push(Table::Udp);
    }
    if kinds.has(Kind::Unix) {
        tables.push(Table::Unix);
    }
    tables
}

/// Reads with iterators.
#[derive(Debug)]
pub struct Iter {
    programs: Iterators,
    discovery: Discovery,
    foreign_sockets: Vec<ForeignSocket>,
}

impl Iter {
    /// Loads the programs for these kinds of sockets. Needs CAP_BPF and CAP_PERFMON, and CAP_SYS_ADMIN for namespaces other
    /// than our own.
    ///
    /// # Errors
    /// Not permitted, or the kernel has no such iterators.
    pub fn load(kinds: Kinds) -> Result<Self> {
        Self::load_after(kinds, Discovery::default())
    }

    /// As [`Iter::load`], after a first look for namespaces, which the next ones need not repeat in full.
    ///
    /// # Errors
    /// As [`Iter::load`].
    pub fn load_after(kinds: Kinds, discovery: Discovery) -> Result<Self> {
        let programs = Iterators::load(&tables(kinds)).context("the iterators over sockets could not be loaded")?;
        Ok(Self { programs, discovery, foreign_sockets: Vec::new() })
    }

    fn namespaces(&mut self, selection: &Selection) -> (Vec<Namespace>, u64) {
        let mut found = self.discovery.scan(&self.foreign_sockets);
        if !selection.namespaces.is_empty() {
            found.namespaces.retain(|namespace| selection.namespaces.contains(&namespace.inode));
        }
        // Ours first: the thread begins there, and may be refused every other.
        let own = fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino());
        found.namespaces.sort_by_key(|namespace| u64::from(namespace.inode) != own);
        (found.namespaces, own)
    }
}

impl Backend for Iter {
    fn name(&self) -> &'static str {
        "iter"
    }

    fn needs_foreign_sockets(&self) -> bool {
        true
    }

    fn set_foreign_sockets(&mut self, foreign_sockets: Vec<ForeignSocket>) {
        self.foreign_sockets = foreign_sockets;
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> Result<Completeness> {
        let (namespaces, own) = self.namespaces(selection);
        self.programs.select(selection);
        let (filtered, unknown) = self.programs.left_out();
        let (opener, reader) = self.programs.reader();
        let mut reading = Reading { reader, selection, take, done: Completeness::default() };
        std::thread::scope(|scope| {
            // One ahead: while a namespace is read, the next is entered.
            let (give, opened) = sync_channel(1);
            std::thread::Builder::new()
                .name("netns".to_owned())
                .spawn_scoped(scope, move || visit(&namespaces, own, opener, selection.kinds, &give))
                .context("the thread that enters namespaces could not be started")?;
            opened.into_iter().for_each(|visited| reading.read(visited));
            anyhow::Ok(())
        })?;
        let mut done = reading.done;
        let (filtered_now, unknown_now) = self.programs.left_out();
        done.filtered += filtered_now - filtered;
        done.dropped += unknown_now - unknown;
        done.expected = done.emitted + done.filtered + done.dropped;
        Ok(done)
    }
}

/// A namespace's iterators, or why there are none.
type Visited = io::Result<Vec<File>>;

/// Enters each namespace and makes its iterators. Runs on a thread of its own, which ends in the last one.
fn visit(namespaces: &[Namespace], own: u64, opener: Opener<'_>, kinds: Kinds, give: &SyncSender<Visited>) {
    let mut here = own;
    for namespace in namespaces {
        let inode = u64::from(namespace.inode);
        let entered = if here == inode { Ok(()) } else { namespace.open().and_then(|file| netns::enter(file.as_fd())) };
        let visited = entered.and_then(|()| {
            here = inode;
            tables(kinds).into_iter().filter(|table| !is_empty(*table)).map(|table| opener.open(table)).collect()
        });
        if give.send(visited).is_err() {
            return; // The reader has given up.
        }
    }
}

/// Whether the namespace of this thread says that it has no sockets in this table.
fn is_empty(table: Table) -> bool {
    let name = match table {
        Table::Tcp => "TCP",
        Table::Udp => "UDP",
        Table::Unix => return false,
    };
    let both = ["sockstat", "sockstat6"].map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")));
    match both {
        [Ok(v4), Ok(v6)] => !has_sockets(&v4, name) && !has_sockets(&v6, &format!("{name}6")),
        // Without IPv6 there is one file.
        [Ok(v4), Err(error)] if error.kind() == io::ErrorKind::NotFound => !has_sockets(&v4, name),
        _ => false,
    }
}

/// Whether the line of this protocol counts sockets in use or in TIME_WAIT. A line that is not understood counts some.
fn has_sockets(table: &str, name: &str) -> bool {
    let Some(line) = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')) else { return true };
    let mut words = line.split_whitespace();
    let mut in_use = None;
    while let (Some(word), Some(number)) = (words.next(), words.next()) {
        if matches!(word, "inuse" | "tw") {
            in_use = Some(in_use.unwrap_or(false) || number != "0");
        }
    }
    in_use.unwrap_or(true)
}

/// Reads what was opened, and keeps the account.
struct Reading<'a> {
    reader: Reader<'a>,
    selection: &'a Selection,
    take: &'a mut dyn FnMut(Batch<'_>),
    done: Completeness,
}

impl Reading<'_> {
    fn read(&mut self, visited: Visited) {
        let Ok(iterators) = visited else {
            self.done.namespaces_lost += 1;
            return;
        };
        self.done.namespaces += 1;
        let (selection, take, done) = (self.selection, &mut *self.take, &mut self.done);
        for mut iterator in iterators {
            let outcome = self.reader.read(&mut iterator, &mut |portion: &mut Portion| {
                let read = portion.records.len();
                portion.records.retain(|record| selection.holds(record));
                let kept = portion.records.len();
                done.filtered += (read - kept) as u64;
                done.emitted += kept as u64;
                if kept > 0 {
                    take(Batch { records: &portion.records, names: &portion.names });
                }
            });
            if outcome.is_err() {
                done.namespaces_lost += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use parshall_evidence::socket::SocketRecord;
    use parshall_sys::netns::NetNs;

    use super::*;
    use parshall_testkit::root;

    #[test]
    fn the_namespaces_own_count_is_read_as_the_kernel_writes_it() {
        let table = "sockets: used 9\nTCP: inuse 0 orphan 7 tw 0 alloc 5 mem 0\nUDP: inuse 2 mem 4\nUDPLITE: inuse 0\n";
        assert!(!has_sockets(table, "TCP"), "orphans and memory are counted over all namespaces");
        assert!(has_sockets(table, "UDP"));
        assert!(!has_sockets(table, "UDPLITE"));
        assert!(has_sockets("TCP: inuse 0 orphan 0 tw 3 alloc 0 mem 0", "TCP"));
        assert!(has_sockets("TCP6: inuse 1\n", "TCP6"));
        assert!(!has_sockets("TCP6: inuse 0\n", "TCP6"));
        for strange in ["", "TCP:", "TCP: something 0", "TCP inuse 0"] {
            assert!(has_sockets(strange, "TCP"), "{strange:?}");
        }
    }

    /// Inodes and records of what listens or is bound in these namespaces, by dump of a fresh backend.
    fn dump(iter: &mut Iter, namespaces: Vec<u32>) -> (Vec<SocketRecord>, Completeness) {
        let selection = Selection { namespaces, kinds: Kinds::of([Kind::Tcp, Kind::Udp]), ..Selection::default() };
        let mut found = Vec::new();
        let done = iter.dump(&selection, &mut |batch| found.extend_from_slice(batch.records)).unwrap();
        assert_eq!(done.emitted, found.len() as u64);
        assert_eq!(done.expected, done.emitted + done.filtered + done.torn + done.dropped);
        (found, done)
    }

    fn inode(netns: &NetNs) -> u32 {
        fs::metadata(std::path::Path::new(netns::DIR).join(netns.name())).unwrap().ino() as u32
    }

    #[test]
    fn each_namespace_gives_its_own_sockets_while_others_come_and_go() {
        if !root("the iterators in several namespaces") {
            return;
        }
        let mut iter = Iter::load(Kinds::of([Kind::Tcp, Kind::Udp])).unwrap();
        let spaces: Vec<NetNs> = (0..3).map(|_| NetNs::create("iter").unwrap()).collect();
        let inodes: Vec<u32> = spaces.iter().map(inode).collect();
        // Two have a listener, one has nothing.
        let listeners: Vec<TcpListener> =
            spaces[..2].iter().map(|netns| netns.run(|| TcpListener::bind("127.0.0.1:4711")).unwrap()).collect();
        let (found, done) = dump(&mut iter, inodes.clone());
        assert_eq!((done.namespaces, done.namespaces_lost), (3, 0));
        let mut where_found: Vec<u32> = found.iter().map(|record| record.netns).collect();
        where_found.sort_unstable();
        assert_eq!(where_found, [inodes[0].min(inodes[1]), inodes[0].max(inodes[1])]);
        assert!(found.iter().all(|record| (record.local_port, record.state) == (4711, 10)));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(NetNs::create("churn").unwrap());
                }
            });
            let until = Instant::now() + Duration::from_secs(2);
            let mut dumps = 0;
            while Instant::now() < until || dumps < 3 {
                let (found, _) = dump(&mut iter, Vec::new());
                for listener in &inodes[..2] {
                    assert_eq!(found.iter().filter(|record| record.netns == *listener).count(), 1, "dump {dumps}");
                }
                dumps += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(listeners);
        drop(spaces);
        let (found, done) = dump(&mut iter, inodes);
        assert_eq!((found.len(), done.namespaces), (0, 0));
    }

    #[test]
    fn a_namespace_that_only_a_socket_keeps_is_read_when_it_is_told() {
        if !root("namespaces that only sockets keep") {
            return;
        }
        let netns = NetNs::create("foreign").unwrap();
        let gone = inode(&netns);
        let listener = netns.run(|| TcpListener::bind("127.0.0.1:4712")).unwrap();
        drop(netns);
        use crate::owners::Owners;
        let mut owners = crate::owners::Kernel::load().unwrap();
        let (_, foreign_sockets) = owners.scan_with_foreign_sockets().unwrap();
        let here = foreign_sockets
            .iter()
            .find(|foreign| foreign.netns == gone)
            .expect("its socket is not where its process is");
        assert_eq!((here.pid, here.fd), (std::process::id(), listener.as_raw_fd() as u32));
        let mut iter = Iter::load(Kinds::of([Kind::Tcp])).unwrap();
        iter.set_foreign_sockets(foreign_sockets.clone());
        let selection = Selection { namespaces: vec![gone], ..Selection::default() };
        let mut ports = Vec::new();
        iter.dump(&selection, &mut |batch| ports.extend(batch.records.iter().map(|record| record.local_port))).unwrap();
        assert_eq!(ports, [4712]);
    }
}
