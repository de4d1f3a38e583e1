//! Hints for a user whose process or port does not exist.
use std::collections::{BTreeMap, HashSet};

use parshall_core::sorting::StableSort as _;
use parshall_evidence::socket::{Groups, Selection};

use super::netns::Namespace;
use super::resolved::Within;
use super::table::{Holders, Row};
use parshall_host::bounded_file;
use parshall_host::error::UserError;
use parshall_host::netns::{self, Netns};
use parshall_host::proc_fs;
use parshall_host::tcp_diag::states;

/// Ports that a hint lists.
const PORTS_MAX: usize = 8;
/// Network namespaces that a hint or note lists.
const NAMESPACES_MAX: usize = 4;

/// There is no such process here; it may be the number that a container sees.
pub fn no_such_pid(pid: u32) -> UserError {
    let what = format!("there is no process {pid}");
    let mut inside = Vec::new();
    for host_pid in proc_fs::pids() {
        let Ok(status) = bounded_file::text(format!("/proc/{host_pid}/status")) else { continue };
        if is_inner_pid(&status, pid) {
            let name = proc_fs::status_field(&status, "Name").unwrap_or("?").to_owned();
            inside.push(format!("{host_pid} ({name})"));
        }
    }
    let hint = match inside.as_slice() {
        [] => "`ps -e` lists the processes; `ss -ltnp` those that listen".to_owned(),
        [one] => format!("inside its pid namespace {pid} is the process that this host calls {one}: use that number"),
        many => {
            format!("inside their pid namespaces {pid} is what this host calls {}: use one of these", many.join(", "))
        }
    };
    UserError::new(what, hint)
}

/// NSpid lists a process's numbers from our pid namespace inwards.
fn is_inner_pid(status: &str, pid: u32) -> bool {
    let Some(numbers) = proc_fs::status_field(status, "NSpid") else { return false };
    let numbers = numbers.split_whitespace().skip(1);
    numbers.last().and_then(|inner| inner.parse().ok()) == Some(pid)
}

/// No socket has this port where it was looked up; the hint names other places that serve it, or ports that have a socket there.
pub fn no_such_port(port: u16, within: &Within, searched: &[Namespace], elsewhere: &[Row]) -> UserError {
    let place = match within {
        Within::Own => " in this network namespace".to_owned(),
        Within::Named(Netns::All) => String::new(),
        Within::Named(netns) => format!(" in network namespace {netns}"),
    };
    let what = format!("nothing listens on or is connected to TCP or UDP port {port}{place}");
    let hint = match elsewhere.first() {
        Some(row) => {
            let (served, word) = (served_in(elsewhere), netns::word(row.netns));
            format!("it is served in {served}: `parshall attach --port {port} --netns {word}`")
        }
        None => listening_near(port, searched),
    };
    UserError::new(what, hint)
}

/// The hint that a port is served in other namespaces too, which are not observed.
pub fn also_served(port: u16, elsewhere: &[Row]) -> Option<String> {
    let word = netns::word(elsewhere.first()?.netns);
    Some(format!(
        "port {port} is also served in {}, which {} not observed: `--netns {word}` or `--netns all` does",
        served_in(elsewhere),
        if elsewhere.len() == 1 { "was" } else { "were" }
    ))
}

/// `network namespace blue (nginx, pid 812)`, or several.
fn served_in(elsewhere: &[Row]) -> String {
    let inodes: HashSet<u64> = elsewhere.iter().map(|row| u64::from(row.socket.record.inode)).collect();
    let holders = Holders::of_inodes(&inodes);
    let mut places: Vec<String> = elsewhere
        .iter()
        .take(NAMESPACES_MAX)
        .map(|row| netns::word(row.netns) + &holder(&holders, u64::from(row.socket.record.inode)))
        .collect();
    if elsewhere.len() > NAMESPACES_MAX {
        places.push(format!("{} others", elsewhere.len() - NAMESPACES_MAX));
    }
    format!("network namespace{} {}", if elsewhere.len() > 1 { "s" } else { "" }, places.join(", "))
}

/// ` (nginx, pid 812)`; empty when it is not known.
fn holder(holders: &Holders, inode: u64) -> String {
    let comm = holders.first(inode).and_then(|(pid, _)| Some((proc_fs::stat(pid)?.comm, pid)));
    comm.map_or_else(String::new, |(comm, pid)| format!(" ({comm}, pid {pid})"))
}

fn listening_near(port: u16, searched: &[Namespace]) -> String {
    let mut inodes: BTreeMap<u16, u64> = BTreeMap::new();
    let listeners = Selection { groups: Groups::IDENTITY, states: states::LISTEN, ..Selection::default() };
    let mut found = Vec::new();
    for namespace in searched {
        found.clear();
        if namespace.open_diag().and_then(|mut diag| diag.dump(&listeners, &mut found)).is_ok() {
            inodes.extend(found.iter().map(|socket| (socket.record.local_port, u64::from(socket.record.inode))));
        }
    }
    let holders = Holders::of_inodes(&inodes.values().copied().collect::<HashSet<u64>>());
    let mut ports: Vec<(u16, u64)> = inodes.into_iter().collect();
    ports.stable_sort_by_key(|&(other, _)| other.abs_diff(port));
    ports.truncate(PORTS_MAX);
    let names: Vec<String> = ports.iter().map(|&(port, inode)| format!("{port}{}", holder(&holders, inode))).collect();
    if names.is_empty() {
        return "nothing listens there; start the service first (`ss -lntu` lists what is served)".to_owned();
    }
    format!("listening: {}; `ss -lntup` lists all", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_number_counts() {
        assert!(is_inner_pid("NSpid:\t4120\t33\t7\n", 7));
        assert!(!is_inner_pid("NSpid:\t4120\t33\t7\n", 33));
        assert!(!is_inner_pid("NSpid:\t7\n", 7), "a process of our own namespace");
        assert!(!is_inner_pid("Name:\tx\n", 7));
    }
}
