//! `netlink` and `netlink --uring`: SOCK_DIAG, one dump per namespace and kind of socket, shared out among a few reader
//! threads. Works without BPF and, for the own namespace, without privilege.
//!
//! The cost lies in what the kernel walks and describes: a namespace that shares the host's hash table costs 11 to 19 ms
//! however few sockets it has, and each socket 10 to 20 us. So the request names states and attributes, and carries a
//! program that leaves out sockets before they are described. How the answers are read matters little (bench/sockets/uring).
//!
//! What it cannot see is told by [`Netlink::missing`] and in `parshall_core::sock_diag`. A socket that closes during the
//! dump may hide a neighbour of the same hash chain: the kernel finds its place again by counting.
mod kept;
mod once;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use parshall_bpf::sockets::owners::ForeignSocket;
use parshall_core::sock_diag::{DumpRequest, Layout, Reading, tables};
use parshall_evidence::socket::Selection;
use parshall_evidence::socket::{Batch, Completeness, SocketRecord};
use parshall_sys::sock_diag::{Opener, Plain, Reader, Ringed};

use super::Backend;
use crate::namespaces::{Discovery, Found, Namespace};
use kept::Kept;
use once::Once;
use parshall_host::error::UserError;
use reader::Worker;

/// How it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Threads that read.
    pub readers: usize,
    /// Read by io_uring instead of by a system call per message.
    pub uring: bool,
    /// Sockets of other namespaces that stay open between dumps, at most. Each keeps its namespace alive until the dump
    /// after its end, and saves some 30 us per dump.
    pub keep: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { readers: 2, uring: false, keep: 0 }
    }
}

/// Records and names on their way from a reader.
#[derive(Debug, Default)]
struct Portion {
    records: Vec<SocketRecord>,
    names: Vec<u8>,
}

/// What readers say.
enum Reply {
    Records(Portion),
    /// A job has ended.
    Ended {
        account: Completeness,
        unsupported: bool,
    },
}

/// One dump of one table of one namespace.
#[derive(Debug, Clone, Copy)]
struct Job {
    /// Its place in [`Task::namespaces`].
    namespace: usize,
    asked: DumpRequest,
}

/// What all readers do for one dump.
#[derive(Debug)]
struct Task {
    selection: Selection,
    reading: Reading,
    namespaces: Vec<Namespace>,
    /// Namespaces that could not be read.
    lost: Vec<AtomicBool>,
    jobs: Vec<Job>,
    taken: AtomicUsize,
}

impl Task {
    fn next(&self) -> Option<Job> {
        self.jobs.get(self.taken.fetch_add(1, Relaxed)).copied()
    }

    fn lose(&self, job: Job) {
        self.lost[job.namespace].store(true, Relaxed);
    }
}

/// What readers share from dump to dump.
#[derive(Debug)]
struct Shared {
    /// Inode of the own namespace.
    own: u32,
    opener: Opener,
    kept: Mutex<Kept>,
    sequence: AtomicU32,
    /// The kernel takes programs that filter.
    filtered: AtomicBool,
    portions: Mutex<Vec<Portion>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Shared {
    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    fn portion(&self) -> Portion {
        self.portions.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn recycle(&self, mut portion: Portion) {
        portion.records.clear();
        portion.names.clear();
        self.portions.lock().unwrap_or_else(PoisonError::into_inner).push(portion);
    }
}

type Orders = Sender<(Arc<Task>, SyncSender<Reply>)>;

/// Finds namespaces before a dump, given sockets that may be alone in theirs.
type Find = Box<dyn FnMut(&[ForeignSocket]) -> Found + Send>;

/// The backend.
pub struct Netlink {
    options: Options,
    shared: Arc<Shared>,
    layout: Layout,
    foreign_sockets: Vec<ForeignSocket>,
    find: Find,
    orders: Vec<Orders>,
    threads: Vec<JoinHandle<()>>,
}

impl Netlink {
    /// Starts the readers.
    ///
    /// # Errors
    /// io_uring was asked for and is not to be had; SOCK_DIAG is not.
    pub fn open(options: Options) -> anyhow::Result<Self> {
        let mut discovery = Discovery::default();
        Self::with_namespaces(options, Box::new(move |foreign_sockets| discovery.scan(foreign_sockets)))
    }

    /// As [`Netlink::open`], with namespaces that the caller finds before each dump.
    ///
    /// # Errors
    /// As [`Netlink::open`].
    pub fn with_namespaces(options: Options, find: Find) -> anyhow::Result<Self> {
        let own = fs::metadata("/proc/self/ns/net").context("the own network namespace")?.ino() as u32;
        parshall_sys::sock_diag::DiagSocket::open().map_err(|error| {
            UserError::new(format!("no SOCK_DIAG socket: {error}"), "the kernel needs CONFIG_INET_DIAG; see --backend")
        })?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let readers = options.readers.max(1);
        let shared = Arc::new(Shared {
            own,
            opener: Opener::default(),
            kept: Mutex::new(Kept::new(own, options.keep, readers)),
            sequence: AtomicU32::new(1),
            filtered: AtomicBool::new(true),
            portions: Mutex::default(),
            counts: Mutex::default(),
        });
        let layout = Layout::of_release(release.trim());
        let mut netlink = Self {
            options,
            shared,
            layout,
            foreign_sockets: Vec::new(),
            find,
            orders: Vec::new(),
            threads: Vec::new(),
        };
        for _ in 0..readers {
            netlink.start_reader()?;
        }
        Ok(netlink)
    }

    fn start_reader(&mut self) -> anyhow::Result<()> {
        let (orders, work) = channel();
        let (ready, is_ready) = channel();
        let (shared, uring) = (Arc::clone(&self.shared), self.options.uring);
        let thread = thread::Builder::new().name("netlink-reader".into()).spawn(move || {
            // A ring belongs to the thread that opens it.
            let reader: io::Result<Box<dyn Reader>> =
                if uring { Ringed::open().map(|ring| Box::new(ring) as _) } else { Ok(Box::new(Plain::default())) };
            match reader {
                Ok(mut reader) => {
                    let _ = ready.send(Ok(()));
                    serve(&work, &mut *reader, &shared);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        self.threads.push(thread);
        self.orders.push(orders);
        is_ready.recv().context("a reader thread ended")?.map_err(|error| {
            UserError::new(format!("no io_uring: {error}"), "leave out --uring: reading by system calls costs no more")
                .into()
        })
    }

    /// What this process does not get to see for want of privilege, as sentences; empty when it sees everything that SOCK_DIAG
    /// shows.
    pub fn missing(&self) -> Vec<String> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        missing(effective_capabilities(&status))
    }

    /// Namespaces and jobs of a dump.
    fn plan(&mut self, selection: &Selection) -> Task {
        let found = (self.find)(&self.foreign_sockets);
        if found.lost > 0 {
            let mut counts = self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry("hidden-processes").or_default() += found.lost;
        }
        let there: BTreeSet<u32> = found.namespaces.iter().map(|namespace| namespace.inode).collect();
        self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).only(&there);
        let wanted = |inode: u32| selection.namespaces.is_empty() || selection.namespaces.contains(&inode);
        let mut namespaces: Vec<Namespace> =
            found.namespaces.into_iter().filter(|namespace| wanted(namespace.inode)).collect();
        // The own one first: it is likely the largest, and a long job at the end would have one reader work alone.
        namespaces.sort_by_key(|namespace| namespace.inode != self.shared.own);
        let asked = tables(selection);
        let jobs = (0..namespaces.len())
            .flat_map(|namespace| asked.iter().map(move |&asked| Job { namespace, asked }))
            .collect();
        Task {
            selection: selection.clone(),
            reading: reader::reading(selection, self.layout),
            lost: namespaces.iter().map(|_| AtomicBool::new(false)).collect(),
            namespaces,
            jobs,
            taken: AtomicUsize::new(0),
        }
    }
}

impl Backend for Netlink {
    fn name(&self) -> &'static str {
        if self.options.uring { "netlink --uring" } else { "netlink" }
    }

    /// By kind: `vanished`, `refused`, `interrupted`, `no-buffers`, `broken`, `timeout`, `unsettled` (a dump that was
    /// interrupted each time it was read), `unsupported` (a table that the kernel cannot dump), `hidden-processes` (their
    /// namespaces are not known), `no-descriptors`, `no-memory`, `other`.
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn sees_births(&self) -> bool {
        false
    }

    fn needs_foreign_sockets(&self) -> bool {
        true
    }

    fn set_foreign_sockets(&mut self, foreign_sockets: Vec<ForeignSocket>) {
        self.foreign_sockets = foreign_sockets;
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness> {
        let task = Arc::new(self.plan(selection));
        // What is on its way is bounded: a reader that is ahead waits.
        let (replies, arriving) = sync_channel(2 * self.orders.len());
        for orders in &self.orders {
            orders.send((Arc::clone(&task), replies.clone())).context("a reader thread has ended")?;
        }
        drop(replies);
        let (mut account, mut ended, mut unsupported) = (Completeness::default(), 0, 0);
        for reply in arriving {
            match reply {
                Reply::Records(portion) => {
                    take(Batch { records: &portion.records, names: &portion.names });
                    self.shared.recycle(portion);
                }
                Reply::Ended { account: job, unsupported: refused } => {
                    account += job;
                    ended += 1;
                    unsupported += usize::from(refused);
                }
            }
        }
        anyhow::ensure!(ended == task.jobs.len(), "a reader thread has ended in the middle of a dump");
        if unsupported == ended && ended > 0 {
            return Err(UserError::new(
                "the kernel cannot dump these sockets by SOCK_DIAG",
                "load tcp_diag, udp_diag, mptcp_diag or unix_diag, or choose another --backend",
            )
            .into());
        }
        account.namespaces = task.namespaces.len() as u64;
        account.namespaces_lost = task.lost.iter().filter(|lost| lost.load(Relaxed)).count() as u64;
        Ok(account)
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.orders.clear();
        for thread in self.threads.drain(..) {
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A reader thread: dump after dump, until the backend goes.
fn serve(work: &Receiver<(Arc<Task>, SyncSender<Reply>)>, reader: &mut dyn Reader, shared: &Arc<Shared>) {
    let mut once = Once::default();
    while let Ok((task, replies)) = work.recv() {
        Worker::new(reader, &mut once, shared, &task, &replies).work();
    }
}

/// Bits of `CapEff` in /proc/PID/status.
pub(super) fn effective_capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_PTRACE: u32 = 19;
pub(super) const CAP_SYS_ADMIN: u32 = 21;

fn missing(capabilities: u64) -> Vec<String> {
    let lacks = |capability: u32| capabilities >> capability & 1 == 0;
    [
        (CAP_SYS_ADMIN, "sockets of other network namespaces (they need CAP_SYS_ADMIN)"),
        (CAP_SYS_PTRACE, "namespaces that only processes of other users keep (they need CAP_SYS_PTRACE)"),
        (CAP_NET_ADMIN, "marks and MPTCP tokens of subflows (they need CAP_NET_ADMIN)"),
    ]
    .into_iter()
    .filter(|(capability, _)| lacks(*capability))
    .map(|(_, what)| what.to_owned())
    .collect()
}

#[cfg(test)]
mod tests;
