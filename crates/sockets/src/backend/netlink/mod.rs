//! The backend `netlink`: SOCK_DIAG, with a dump for each namespace and kind of socket, which a few reader threads share. Works
//! without BPF and, for the own namespace, without privileges.
//!
//! Most of the cost is in the kernel: a namespace that shares the host's hash table takes 11 to 19 ms even if it has no sockets,
//! and each socket 10 to 20 us. So a request selects states and attributes, and carries a bytecode filter (INET_DIAG_REQ_BYTECODE)
//! that the kernel applies before it fills in a socket. How the answers are read matters little (`parshall lab run socket-collector`).
//!
//! [`missing`] and `parshall_core::sock_diag` say what it cannot see. A socket that closes during the dump may hide a
//! neighbour in the same hash chain, because the kernel resumes a chain by the number of sockets that it has dumped.
mod once;
mod reader;
mod task;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use parshall_bpf::sockets::owners::ForeignSocket;
use parshall_core::sock_diag::{Layout, tables};
use parshall_core::sorting::IntoOrdered as _;
use parshall_evidence::socket::Selection;
use parshall_evidence::socket::{Batch, Completeness, SocketRecord};
use parshall_sys::sock_diag::{DiagSocket, Opener, Plain, Reader};

use super::Backend;
use crate::namespaces::{Discovery, Found, Namespace};
use once::Once;
use parshall_host::diag_module;
use parshall_host::error::UserError;
use reader::Worker;
use task::{Job, Reply, Shared, Task};

type Orders = Sender<(Arc<Task>, SyncSender<Reply>)>;

/// Finds the namespaces for a dump. The sockets are those that may be all that keeps a namespace alive.
type Find = Box<dyn FnMut(&[ForeignSocket]) -> Found + Send>;

pub struct Netlink {
    shared: Arc<Shared>,
    layout: Layout,
    foreign_sockets: Vec<ForeignSocket>,
    /// It was said that /proc/net is read.
    reported_proc_net: bool,
    find: Find,
    orders: Vec<Orders>,
    threads: Vec<JoinHandle<()>>,
}

impl Netlink {
    /// Starts this many readers, at least one.
    ///
    /// # Errors
    /// The kernel has no SOCK_DIAG.
    pub fn open(readers: usize) -> anyhow::Result<Self> {
        Self::with_discovery(readers, Discovery::default())
    }

    /// Like [`Netlink::open`], with the state of an earlier scan for namespaces, which makes the next ones cheaper.
    ///
    /// # Errors
    /// As [`Netlink::open`].
    pub fn with_discovery(readers: usize, mut discovery: Discovery) -> anyhow::Result<Self> {
        Self::with_namespaces(readers, Box::new(move |foreign_sockets| discovery.scan(foreign_sockets)))
    }

    /// Like [`Netlink::open`], with a function of the caller that finds the namespaces.
    ///
    /// # Errors
    /// As [`Netlink::open`].
    pub fn with_namespaces(readers: usize, find: Find) -> anyhow::Result<Self> {
        let own = fs::metadata("/proc/self/ns/net").context("the own network namespace")?.ino() as u32;
        DiagSocket::open().map_err(|error| {
            UserError::new(format!("no SOCK_DIAG socket: {error}"), "the kernel needs CONFIG_INET_DIAG; see --backend")
        })?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let shared = Arc::new(Shared {
            own,
            opener: Opener::default(),
            kept: Mutex::default(),
            sequence: AtomicU32::new(1),
            filtered: AtomicBool::new(true),
            falls_back: AtomicBool::new(true),
            portions: Mutex::default(),
            counts: Mutex::default(),
        });
        let layout = Layout::of_release(release.trim());
        let mut netlink = Self {
            shared,
            layout,
            foreign_sockets: Vec::new(),
            reported_proc_net: false,
            find,
            orders: Vec::new(),
            threads: Vec::new(),
        };
        for _ in 0..readers.max(1) {
            netlink.start_reader()?;
        }
        Ok(netlink)
    }

    fn start_reader(&mut self) -> anyhow::Result<()> {
        let (orders, work) = channel();
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("netlink-reader".into());
        self.threads.push(thread.spawn(move || serve(&work, &mut Plain::default(), &shared))?);
        self.orders.push(orders);
        Ok(())
    }

    /// Finds the namespaces of a dump and makes its jobs.
    fn plan(&mut self, selection: &Selection) -> Task {
        let found = (self.find)(&self.foreign_sockets);
        if found.lost > 0 {
            let mut counts = self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry("hidden-processes").or_default() += found.lost;
        }
        let wanted = |inode: u32| selection.namespaces.is_empty() || selection.namespaces.contains(&inode);
        let mut namespaces: Vec<Namespace> =
            found.namespaces.into_iter().filter(|namespace| wanted(namespace.inode)).collect();
        // The own one first: it is likely the largest, and the others would wait for a long job at the end.
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
        "netlink"
    }

    /// The kinds are `vanished`, `refused`, `interrupted`, `no-buffers`, `broken`, `timeout`, `unsettled` (a dump of which every
    /// attempt was interrupted), `unsupported` (a table that the kernel cannot dump), `proc-net` (such a table that was read from
    /// /proc/net), `hidden-processes` (whose namespaces are
    /// not known), `no-descriptors`, `no-memory` and `other`.
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn clear_unseen(&self, records: &mut [SocketRecord]) {
        for record in records {
            (record.birth_sent, record.birth_received, record.address) = (0, 0, 0);
        }
    }

    fn foreign_sockets(&mut self) -> Option<&mut Vec<ForeignSocket>> {
        Some(&mut self.foreign_sockets)
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness> {
        let task = Arc::new(self.plan(selection));
        // Two portions for each reader. A reader that is further ahead waits.
        let (replies, arriving) = sync_channel(2 * self.orders.len());
        for orders in &self.orders {
            orders.send((Arc::clone(&task), replies.clone())).context("a reader thread ended")?;
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
        anyhow::ensure!(ended == task.jobs.len(), "a reader thread ended during a dump");
        if unsupported == ended && ended > 0 {
            return Err(UserError::new(
                "the kernel cannot dump these sockets by SOCK_DIAG",
                "`modprobe tcp_diag`, udp_diag, mptcp_diag or unix_diag as root, or choose another --backend",
            )
            .into());
        }
        if self.shared.read_proc_net() && !self.reported_proc_net {
            self.reported_proc_net = true;
            let modules: Vec<&str> = task.jobs.iter().map(|job| diag_module::name(job.asked.table)).collect();
            tracing::warn!(
                "some sockets were read from /proc/net, without counters, because the kernel cannot dump them: \
                 `modprobe {}` as root",
                modules.into_iter().into_set().into_iter().collect::<Vec<_>>().join("`, `modprobe ")
            );
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
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A reader thread, which ends when the backend is dropped.
fn serve(work: &Receiver<(Arc<Task>, SyncSender<Reply>)>, reader: &mut dyn Reader, shared: &Arc<Shared>) {
    let mut once = Once::default();
    while let Ok((task, replies)) = work.recv() {
        Worker::new(reader, &mut once, shared, &task, &replies).work();
    }
}

/// The capabilities in `CapEff` of /proc/PID/status, one bit each.
fn effective_capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;

/// Sentences about the sockets and fields that this process cannot see because it lacks capabilities.
pub fn missing() -> Vec<String> {
    missing_with(effective_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default()))
}

fn missing_with(capabilities: u64) -> Vec<String> {
    let lacks = |capability: u32| capabilities >> capability & 1 == 0;
    [
        (CAP_SYS_ADMIN, "not seen without CAP_SYS_ADMIN: sockets of other network namespaces"),
        (CAP_SYS_PTRACE, "not seen without CAP_SYS_PTRACE: namespaces that only processes of other users keep alive"),
        (CAP_NET_ADMIN, "not seen without CAP_NET_ADMIN: marks, and MPTCP tokens of subflows"),
    ]
    .into_iter()
    .filter(|(capability, _)| lacks(*capability))
    .map(|(_, what)| what.to_owned())
    .collect()
}

#[cfg(test)]
mod tests;
