//! The subject: from what the user names to processes and sockets.
//!
//! Every rung begins here. `resolved` is what is found, `process` reads one process, `cgroup` those of a control group, `netns` lists and
//! enters network namespaces, `table` joins sockets with the processes that hold them, `refresh` notices what came and went. Nothing here
//! samples or judges.
mod cgroup;
mod hints;
mod named;
mod netns;
mod other_sockets;
mod process;
mod refresh;
mod resolved;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use anyhow::Result;
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::units::plural;
use parshall_evidence::{Subject, ThreadRecord};
use parshall_host::error::UserError;
use parshall_host::netns::Netns;
use parshall_host::proc_fs;

pub use netns::{Namespace, all as all_namespaces};
pub use process::{Process, own_arguments};
#[cfg(test)]
use refresh::Changes;
pub use refresh::alive;
use resolved::asks;
pub use resolved::{DESCRIPTORS_FIRST, Resolved, Select, Sock, Within, to_see};
pub use table::Holders;
use table::Scope;

/// Adds the processes whose threads were observed and that came too late, or lived too briefly, to be found in /proc.
pub fn add_observed(subject: &mut Subject, threads: &[ThreadRecord]) {
    let known: HashSet<u32> = subject.pids.iter().copied().collect();
    let mut late: BTreeMap<u32, &str> = BTreeMap::new();
    for thread in threads.iter().filter(|thread| !known.contains(&thread.pid)) {
        let name = late.entry(thread.pid).or_insert(&thread.comm);
        if thread.tid == thread.pid {
            *name = &thread.comm;
        }
    }
    for (pid, name) in late {
        subject.pids.push(pid);
        subject.comms.push(name.to_owned());
    }
}

/// Finds the processes and sockets that the user named. A subject that cannot be found is a [`UserError`].
pub fn resolve(select: &Select) -> Result<Resolved> {
    let mut notes = Vec::new();
    let mut resolved = match select {
        Select::Pids(pids) => {
            let pids = checked_pids(pids, &mut notes)?;
            of_processes(select, with_descendants(pids), notes)
        }
        Select::Only(pids) => {
            let pids = checked_pids(pids, &mut notes)?;
            of_processes(select, pids, notes)
        }
        Select::Named { names, only } => {
            let pids = named::pids(names, &mut notes)?;
            let (select, pids) = match only {
                true => (Select::Only(pids.clone()), pids),
                false => (Select::Pids(pids.clone()), with_descendants(pids)),
            };
            of_processes(&select, pids, notes)
        }
        Select::Ports(ports, within) => of_ports(ports, within, notes)?,
        Select::Cgroup(path) => {
            let pids = cgroup::pids(path)?;
            of_processes(select, pids, notes)
        }
        Select::Netns(netns) => of_netns(netns, notes)?,
        Select::All => of_all(notes),
    };
    resolved.notes.extend(other_sockets::note(&resolved.processes));
    resolved.describe(select);
    Ok(resolved)
}

/// Takes thread ids for their processes, and refuses what cannot be observed.
fn checked_pids(pids: &[u32], notes: &mut Vec<String>) -> Result<Vec<u32>> {
    let mut checked = Vec::new();
    for &pid in pids {
        let Some(stat) = proc_fs::stat(pid) else {
            return Err(hints::no_such_pid(pid).into());
        };
        let leader = proc_fs::thread_group(pid).unwrap_or(pid);
        if leader == proc_fs::own_pid() {
            return Err(UserError::new(
                format!("process {pid} is parshall itself"),
                "name the process of the service; `ss -ltnp` lists those that listen",
            )
            .into());
        }
        if stat.kernel_thread {
            return Err(UserError::new(
                format!("process {pid} ({}) is a thread of the kernel", stat.comm),
                "name the process of the service; `ss -ltnp` lists those that listen",
            )
            .into());
        }
        if matches!(stat.state, 'Z' | 'X') {
            return Err(UserError::new(
                format!("process {pid} ({}) has exited", stat.comm),
                format!("it is a zombie that its parent, process {}, has not reaped", stat.parent),
            )
            .into());
        }
        if leader != pid {
            notes.push(format!("{pid} is a thread of process {leader}: the whole process is observed"));
        }
        if !checked.contains(&leader) {
            checked.push(leader);
        }
    }
    if checked.is_empty() {
        return Err(UserError::new("no process was named", "give at least one process id").into());
    }
    Ok(checked)
}

/// The processes, and behind them their children, theirs and so on; without ourselves, who may be a child of a shell that
/// is observed.
fn with_descendants(mut pids: Vec<u32>) -> Vec<u32> {
    let below = proc_fs::descendants(&pids);
    pids.extend(below.into_iter().filter(|&pid| pid != proc_fs::own_pid()).take(refresh::PROCESSES_MAX));
    pids
}

/// Processes first: their sockets are those behind their descriptors.
fn of_processes(select: &Select, pids: Vec<u32>, notes: Vec<String>) -> Resolved {
    let mut resolved = Resolved::new(select.clone(), notes);
    let hidden = resolved.add_processes(&pids);
    if hidden > 0 {
        resolved.notes.push(format!(
            "the descriptors of {hidden} of {} could not be read{}",
            plural(pids.len() as u64, "process", "processes"),
            to_see("their sockets")
        ));
    }
    let holders = Holders::of_pids(&pids);
    let wanted: BTreeSet<u64> = resolved.processes.iter().map(|process| process.netns_ino).into_set();
    resolved.namespaces = netns::of_inodes(&wanted, &resolved.processes);
    let rows = table::dump(&resolved.namespaces, &mut resolved.notes);
    resolved.adopt(rows, &holders, Scope::Held);
    resolved
}

/// Sockets first: the processes are those that hold them.
fn of_ports(ports: &[u16], within: &Within, mut notes: Vec<String>) -> Result<Resolved> {
    let namespaces = netns::all(&mut notes);
    let asked = match within {
        Within::Own => Namespace::own(),
        Within::Named(netns) => netns::named(netns)?,
    };
    let asked = asked.map(|namespace| BTreeSet::from([namespace.ino]));
    let all = table::dump_ports(&namespaces, ports, &mut notes);
    let rows = table::of_namespaces(all.clone(), asked.as_ref());
    for &port in ports {
        let elsewhere = table::served_elsewhere(&all, port, asked.as_ref());
        if !rows.iter().any(|row| row.has(port)) {
            let searched: Vec<Namespace> = namespaces.into_iter().filter(|n| asks(asked.as_ref(), n.ino)).collect();
            return Err(hints::no_such_port(port, within, &searched, &elsewhere).into());
        }
        notes.extend(hints::also_served(port, &elsewhere));
    }
    let mut resolved = Resolved::new(Select::Ports(ports.to_vec(), within.clone()), notes);
    resolved.namespaces = namespaces;
    resolved.within = asked;
    let inodes: HashSet<u64> = rows.iter().map(|row| u64::from(row.socket.record.inode)).collect();
    let holders = Holders::of_inodes(&inodes);
    resolved.adopt(rows, &holders, Scope::Everything);
    resolved.add_holders(&holders);
    resolved.forget_unused_namespaces();
    let holding: Vec<u32> = resolved.processes.iter().map(|process| process.pid).collect();
    resolved.bystanders = proc_fs::descendants(&holding).into_iter().filter(|pid| !holding.contains(pid)).collect();
    Ok(resolved)
}

fn of_netns(netns: &Netns, mut notes: Vec<String>) -> Result<Resolved> {
    let Some(namespace) = netns::named(netns)? else { return Ok(of_all(notes)) };
    let pids = netns::members(namespace.ino);
    let rows = table::dump(std::slice::from_ref(&namespace), &mut notes);
    if rows.is_empty() && pids.is_empty() {
        return Err(UserError::new(
            format!("network namespace {netns} has no processes and no TCP sockets"),
            "start the service in it first: `ip netns exec NAME CMD`",
        )
        .into());
    }
    let mut resolved = Resolved::new(Select::Netns(netns.clone()), notes);
    resolved.namespaces = vec![namespace];
    let inodes: HashSet<u64> = rows.iter().map(|row| u64::from(row.socket.record.inode)).collect();
    let holders = Holders::of_inodes(&inodes);
    resolved.adopt(rows, &holders, Scope::Everything);
    resolved.add_processes(&pids);
    resolved.add_holders(&holders);
    Ok(resolved)
}

fn of_all(mut notes: Vec<String>) -> Resolved {
    let namespaces = netns::all(&mut notes);
    let rows = table::dump(&namespaces, &mut notes);
    let mut resolved = Resolved::new(Select::All, notes);
    resolved.namespaces = namespaces;
    let inodes: HashSet<u64> = rows.iter().map(|row| u64::from(row.socket.record.inode)).collect();
    let holders = Holders::of_inodes(&inodes);
    resolved.adopt(rows, &holders, Scope::Everything);
    resolved.add_holders(&holders);
    resolved
}
