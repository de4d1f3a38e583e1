//! The backend `iter`: the kernel's BPF iterators over TCP, UDP and UNIX sockets.
//!
//! An iterator belongs to the network namespace of the thread that creates it. One thread enters each namespace and creates its
//! iterators, and this one reads them, so the number of threads does not depend on the number of namespaces. The kernel walks
//! its whole table of connections for each namespace, which takes 11 to 19 ms even if the namespace has none. So a namespace
//! without sockets of a kind is skipped: reading the kernel's count (/proc/net/sockstat) costs a thousandth of that.
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

#[derive(Debug)]
pub struct Iter {
    programs: Iterators,
    discovery: Discovery,
    foreign_sockets: Vec<ForeignSocket>,
}

impl Iter {
    /// Loads the programs for these kinds of sockets. Needs CAP_BPF and CAP_PERFMON, and CAP_SYS_ADMIN for other namespaces.
    ///
    /// # Errors
    /// It is not permitted, or the kernel has no such iterators.
    pub fn load(kinds: Kinds) -> Result<Self> {
        Self::load_with(kinds, Discovery::default())
    }

    /// Like [`Iter::load`], with the state of an earlier scan for namespaces, which makes the next ones cheaper.
    ///
    /// # Errors
    /// As [`Iter::load`].
    pub fn load_with(kinds: Kinds, discovery: Discovery) -> Result<Self> {
        let programs = Iterators::load(&tables(kinds)).context("the iterators over sockets could not be loaded")?;
        Ok(Self { programs, discovery, foreign_sockets: Vec::new() })
    }

    fn namespaces(&mut self, selection: &Selection) -> (Vec<Namespace>, u64) {
        let mut found = self.discovery.scan(&self.foreign_sockets);
        if !selection.namespaces.is_empty() {
            found.namespaces.retain(|namespace| selection.namespaces.contains(&namespace.inode));
        }
        // The own one first: the thread begins in it, and may not be permitted to enter others.
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
            // While a namespace is read, the thread enters the next one.
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

/// The iterators of a namespace, or the error of entering it.
type Visited = io::Result<Vec<File>>;

/// Enters each namespace and creates its iterators. Runs in a thread of its own, which does not return to its namespace.
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
            return; // The reader has failed.
        }
    }
}

/// Whether the namespace of this thread certainly has no sockets in this table.
fn is_empty(table: Table) -> bool {
    let name = match table {
        Table::Tcp => "TCP",
        Table::Udp => "UDP",
        Table::Unix => return false,
    };
    let both = ["sockstat", "sockstat6"].map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")));
    match both {
        [Ok(v4), Ok(v6)] => !has_sockets(&v4, name) && !has_sockets(&v6, &format!("{name}6")),
        // A kernel without IPv6 has only one of the files.
        [Ok(v4), Err(error)] if error.kind() == io::ErrorKind::NotFound => !has_sockets(&v4, name),
        _ => false,
    }
}

/// Whether the line of this protocol counts sockets in use or in TIME_WAIT. True if there is no line, or another one.
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

/// Reads opened iterators and sums up how complete the dump is.
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
    fn sockstat_is_parsed_as_the_kernel_writes_it() {
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

    /// The TCP and UDP sockets of these namespaces, and how complete the dump is.
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
    fn each_namespace_has_its_own_sockets_while_others_come_and_go() {
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
    fn a_namespace_that_only_a_socket_keeps_alive_is_read() {
        if !root("namespaces that only sockets keep alive") {
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
            .expect("its socket is outside the namespace of its process");
        assert_eq!((here.pid, here.fd), (std::process::id(), listener.as_raw_fd() as u32));
        let mut iter = Iter::load(Kinds::of([Kind::Tcp])).unwrap();
        iter.set_foreign_sockets(foreign_sockets.clone());
        let selection = Selection { namespaces: vec![gone], ..Selection::default() };
        let mut ports = Vec::new();
        iter.dump(&selection, &mut |batch| ports.extend(batch.records.iter().map(|record| record.local_port))).unwrap();
        assert_eq!(ports, [4712]);
    }
}
