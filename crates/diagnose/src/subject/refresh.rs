//! Changes since the subject was resolved: threads and children that came, processes that went.
use std::collections::{BTreeSet, HashSet};

use parshall_host::proc_fs;

use super::process::Process;
use super::resolved::{Resolved, Select, Sock};
use super::table::{self, Holders, Row};
use super::{cgroup, netns};
use parshall_core::sorting::IntoOrdered as _;

/// Threads whose children are looked up, per process.
const PARENTS_MAX: usize = 64;

/// Processes a subject may grow to.
pub const PROCESSES_MAX: usize = 4096;

/// Changes that [`Resolved::refresh`] noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Processes that ended.
    pub exited: Vec<u32>,
    /// Processes that were added.
    pub started: Vec<u32>,
    /// Threads that were added, with their process first; those of new processes included.
    pub new_threads: Vec<(u32, u32)>,
}

impl Resolved {
    /// Notices new threads, new children and processes that are gone. Costs a few tens of microseconds per process: meant for
    /// a few times per second. Processes that ended are removed.
    pub fn refresh(&mut self) -> Changes {
        let mut changes = Changes::default();
        let mut candidates = Vec::new();
        let follow_children = matches!(self.select, Select::Pids(_) | Select::Ports(..));
        let listed = proc_fs::lists_children();
        self.processes.retain_mut(|process| {
            if !alive(process) {
                changes.exited.push(process.pid);
                return false;
            }
            let threads = proc_fs::threads(process.pid);
            let new = threads.iter().filter(|tid| process.threads.binary_search(tid).is_err());
            changes.new_threads.extend(new.map(|&tid| (process.pid, tid)));
            process.threads = threads;
            if follow_children && listed {
                let parents = process.threads.iter().take(PARENTS_MAX);
                candidates.extend(parents.flat_map(|&tid| proc_fs::children(process.pid, tid)));
            }
            true
        });
        match &self.select {
            Select::Cgroup(path) => candidates.extend(cgroup::pids(path).unwrap_or_default()),
            Select::Netns(_) => candidates.extend(self.namespaces.iter().flat_map(|ns| netns::members(ns.ino))),
            _ if follow_children && !listed => {
                let parents: Vec<u32> = self.processes.iter().map(|process| process.pid).collect();
                candidates.extend(proc_fs::descendants(&parents));
            }
            _ => {}
        }
        candidates.retain(|&pid| pid != proc_fs::own_pid() && !self.bystanders.contains(&pid));
        candidates.sort_unstable();
        candidates.dedup();
        let before = self.processes.len();
        candidates.truncate(PROCESSES_MAX.saturating_sub(before));
        self.add_processes(&candidates);
        for process in &self.processes[before..] {
            changes.started.push(process.pid);
            changes.new_threads.extend(process.threads.iter().map(|&tid| (process.pid, tid)));
            self.subject.pids.push(process.pid);
            self.subject.comms.push(process.comm.clone());
        }
        changes
    }
}

impl Resolved {
    /// The TCP sockets that its processes hold now, a descriptor of each, those that came since it was resolved included; and of
    /// a port the processes that came to hold one. Reads all their descriptors and asks each namespace once, and reads those of the
    /// whole host where a socket of the port has no known holder: meant for a few times per second.
    pub fn sockets_now(&mut self) -> Vec<Sock> {
        let pids: Vec<u32> = self.processes.iter().map(|process| process.pid).collect();
        let mut holders = Holders::of_pids(&pids);
        let ports = self.select.ports();
        let rows = match ports {
            [] => table::dump(&self.namespaces, &mut Vec::new()),
            ports => table::dump_ports(&self.namespaces, ports, &mut Vec::new()),
        };
        let rows: Vec<Row> =
            table::of_namespaces(rows, self.within.as_ref()).into_iter().filter(|row| !row.is_udp()).collect();
        let inodes = rows.iter().map(|row| u64::from(row.socket.record.inode)).filter(|&inode| inode != 0);
        let all: HashSet<u64> = inodes.collect();
        if !ports.is_empty() && all.iter().any(|&inode| holders.first(inode).is_none()) {
            holders = Holders::of_inodes(&all);
            let holding: BTreeSet<u32> = all.iter().flat_map(|&inode| holders.pids(inode)).into_set();
            self.add_processes(&holding.into_iter().collect::<Vec<u32>>());
        }
        let held = rows.iter().filter_map(|row| {
            let (pid, fd) = holders.first(u64::from(row.socket.record.inode))?;
            Some(self.sock(row, pid, fd))
        });
        held.collect()
    }
}

/// Whether it runs: the same process, not a later one of its number.
pub fn alive(process: &Process) -> bool {
    proc_fs::stat(process.pid)
        .is_some_and(|stat| stat.start_ticks == process.start_ticks && !matches!(stat.state, 'Z' | 'X'))
}
