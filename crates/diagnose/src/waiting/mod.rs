//! Waits at the begin and at the end of a window: connections with a request that nobody has answered,
//! and what the threads do that would have to. On every rung, for the probes see only what happens in between.
//!
//! `sockets` reads the tables, `threads` the states of threads, `awaited` the descriptors on which they wait for data,
//! `asleep` the functions in which they sleep.
//! `parshall_core::judge::waiting` decides which ends owe an answer.
mod asleep;
mod awaited;
mod sockets;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use parshall_core::judge::waiting::relevant;
use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_evidence::{Waiting, WaitingEnd};

pub use self::asleep::add_stacks;
use self::sockets::{Row, Table};
use self::threads::Reader;
use crate::subject::{Holders, Resolved, Select};

/// Ends that are kept at most, those of the subject first.
const ENDS_MAX: usize = 2_048;
/// Processes whose threads are read at most.
const PROCESSES_MAX: usize = 256;
/// Processes between the subject and what it waits for, at most.
const DEPTH_MAX: usize = 8;

/// The first reading.
pub struct Watch<'a> {
    resolved: &'a Resolved,
    at: Instant,
    first: HashMap<u64, Row>,
    timeslices: HashMap<u32, u64>,
}

impl<'a> Watch<'a> {
    /// Reads what waits when the window begins.
    pub fn start(resolved: &'a Resolved) -> Self {
        let table = Table::read(&resolved.namespaces, resolved.select.ports());
        let first: HashMap<u64, Row> = table.candidates().map(|row| (row.cookie, row.clone())).collect();
        // Where nothing waits at the begin, it does not matter since when threads sleep.
        let timeslices = if first.is_empty() { HashMap::new() } else { threads::timeslices(&resolved.processes) };
        Self { resolved, at: Instant::now(), first, timeslices }
    }

    /// Reads again, and follows what waits. None where nothing of the subject does.
    pub fn finish(&self) -> Option<Waiting> {
        let still_ns = self.at.elapsed().as_nanos() as u64;
        let mut resolved = self.resolved.clone();
        let ports = resolved.select.ports();
        if !ports.is_empty() && Table::read(&resolved.namespaces, ports).candidates().next().is_none() {
            return None;
        }
        resolved.refresh();
        let mut table = Table::read(&resolved.namespaces, &[]);
        table.candidates().next()?;
        table.add_other_namespaces();
        let rows: Vec<&Row> = table.waiting().collect();
        let wanted = rows.iter().map(|row| row.inode).chain(table.listener_inodes()).filter(|inode| *inode != 0);
        let holders = Holders::of_inodes(&wanted.collect::<HashSet<u64>>());
        let subject = Subject::of(&resolved);
        let end = |row: &&Row| {
            let inodes = if row.accepted() { vec![row.inode] } else { table.listeners_of(row) };
            let pids: BTreeSet<u32> = inodes.iter().flat_map(|inode| holders.pids(*inode)).into_set();
            let pids: Vec<u32> = pids.into_iter().collect();
            let moved = self.first.get(&row.cookie).is_none_or(|first| first.moved_since(row));
            WaitingEnd {
                id: row.cookie,
                local: row.local,
                remote: row.remote,
                netns: row.netns,
                serves: row.serves,
                subject: subject.has(row, &pids),
                accepted: row.accepted(),
                state: row.state,
                pids,
                unread_bytes: row.unread_bytes,
                received_ns: row.received_ns,
                sent_ns: row.sent_ns,
                acked_ns: row.acked_ns,
                still_ns: if moved { 0 } else { still_ns },
            }
        };
        let mut ends: Vec<WaitingEnd> = rows.iter().map(end).collect();
        ends.stable_sort_by_key(|end| (!end.subject, end.id));
        let left_out = ends.len().saturating_sub(ENDS_MAX) as u64;
        ends.truncate(ENDS_MAX);
        if !ends.iter().any(|end| end.subject) {
            return None;
        }
        let threads = self.threads(&ends, &rows);
        relevant(Waiting { ends, threads, left_out })
    }

    /// The threads of the processes that hold the subject's ends, and of those to which their waits lead.
    fn threads(&self, ends: &[WaitingEnd], rows: &[&Row]) -> Vec<parshall_evidence::WaitingThread> {
        let mut reader = Reader::new(ends, rows, &self.timeslices);
        let (mut known, mut found) = (BTreeSet::new(), Vec::new());
        let mut next: BTreeSet<u32> = ends.iter().filter(|e| e.subject).flat_map(|e| e.pids.iter().copied()).into_set();
        for _ in 0..DEPTH_MAX {
            next.retain(|pid| known.len() < PROCESSES_MAX && known.insert(*pid));
            if next.is_empty() {
                break;
            }
            let threads: Vec<_> = next.iter().flat_map(|pid| reader.process(*pid)).collect();
            let asked = ends.iter().filter(|end| !end.serves && end.pids.iter().any(|pid| next.contains(pid)));
            let other = |end: &WaitingEnd| {
                let found = ends.iter().filter(|other| (other.local, other.remote) == (end.remote, end.local));
                found.flat_map(|other| other.pids.clone()).collect::<Vec<u32>>()
            };
            next = asked.flat_map(other).into_set();
            next.extend(threads.iter().flat_map(|thread| thread.partners.iter().copied()));
            next.extend(threads.iter().map(|thread| thread.session_lock).filter(|pid| *pid != 0));
            next.extend(reader.unix_partners());
            found.extend(threads);
        }
        reader.note_partners(&mut found);
        found
    }
}

/// Which ends belong to the subject.
struct Subject<'a> {
    resolved: &'a Resolved,
    pids: HashSet<u32>,
}

impl<'a> Subject<'a> {
    fn of(resolved: &'a Resolved) -> Self {
        Self { resolved, pids: resolved.processes.iter().map(|process| process.pid).collect() }
    }

    fn has(&self, row: &Row, pids: &[u32]) -> bool {
        match &self.resolved.select {
            Select::Ports(ports, _) => {
                let own = if row.serves { row.local.port() } else { row.remote.port() };
                ports.contains(&own) && self.resolved.asks(row.netns) && !pids.is_empty()
            }
            Select::Netns(_) => self.resolved.namespaces.iter().any(|n| n.ino == row.netns) && !pids.is_empty(),
            Select::All => !pids.is_empty(),
            Select::Pids(_) | Select::Only(_) | Select::Named { .. } | Select::Cgroup(_) => {
                pids.iter().any(|pid| self.pids.contains(pid))
            }
        }
    }
}
