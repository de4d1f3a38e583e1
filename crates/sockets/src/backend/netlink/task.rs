//! One dump as its readers share it: the jobs, and what they pass to the collector.
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Mutex, PoisonError};

use parshall_core::sock_diag::{DumpRequest, Reading};
use parshall_evidence::socket::{Completeness, Selection, SocketRecord};
use parshall_sys::sock_diag::{DiagSocket, Opener};

use crate::namespaces::Namespace;

/// Records and names that a reader passes to the collector.
#[derive(Debug, Default)]
pub(super) struct Portion {
    pub(super) records: Vec<SocketRecord>,
    pub(super) names: Vec<u8>,
}

/// A message from a reader.
pub(super) enum Reply {
    Records(Portion),
    /// A job has ended.
    Ended {
        account: Completeness,
        unsupported: bool,
    },
}

/// The dump of one table of one namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    /// Its index in [`Task::namespaces`].
    pub(super) namespace: usize,
    pub(super) asked: DumpRequest,
}

/// The jobs of one dump, which all readers share.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) selection: Selection,
    pub(super) reading: Reading,
    pub(super) namespaces: Vec<Namespace>,
    /// Whether a namespace could not be read, by its index in `namespaces`.
    pub(super) lost: Vec<AtomicBool>,
    pub(super) jobs: Vec<Job>,
    /// The number of jobs that readers have begun.
    pub(super) taken: AtomicUsize,
}

impl Task {
    pub(super) fn next(&self) -> Option<Job> {
        self.jobs.get(self.taken.fetch_add(1, Relaxed)).copied()
    }

    pub(super) fn mark_lost(&self, job: Job) {
        self.lost[job.namespace].store(true, Relaxed);
    }
}

/// The state that readers share over all dumps.
#[derive(Debug)]
pub(super) struct Shared {
    /// Inode of the own namespace.
    pub(super) own: u32,
    pub(super) opener: Opener,
    /// Sockets of the own namespace, at most one for each reader. One of another namespace would save 30 us of the 10 to 20 ms
    /// that its dump takes, and keep the namespace alive until the next dump.
    pub(super) kept: Mutex<Vec<DiagSocket>>,
    pub(super) sequence: AtomicU32,
    /// Whether the kernel accepts bytecode filters.
    pub(super) filtered: AtomicBool,
    /// Where the kernel cannot dump a table, its module is loaded, or else /proc/net is read.
    pub(super) falls_back: AtomicBool,
    pub(super) portions: Mutex<Vec<Portion>>,
    pub(super) counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Shared {
    pub(super) fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    pub(super) fn read_proc_net(&self) -> bool {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).contains_key("proc-net")
    }

    pub(super) fn portion(&self) -> Portion {
        self.portions.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(super) fn recycle(&self, mut portion: Portion) {
        portion.records.clear();
        portion.names.clear();
        self.portions.lock().unwrap_or_else(PoisonError::into_inner).push(portion);
    }
}
