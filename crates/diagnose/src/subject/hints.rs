//! What to tell a user whose process or port does not exist.
use std::collections::{BTreeMap, HashSet};
use std::fs;

use parshall_evidence::socket::{Groups, Selection};

use super::Namespace;
use super::table::Holders;
use parshall_host::error::UserError;
use parshall_host::proc_fs;
use parshall_host::tcp_diag::states;

/// Ports that a hint lists.
const PORTS_MAX: usize = 8;

/// There is no such process here; it may be the number that a container sees.
pub fn no_such_pid(pid: u32) -> UserError {
    let what = format!("there is no process {pid}");
    let mut inside = Vec::new();
    for host_pid in proc_fs::pids() {
        let Ok(status) = fs::read_to_string(format!("/proc/{host_pid}/status")) else { continue };
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

/// No socket has this port; the hint names ports that have one.
pub fn no_such_port(port: u16, namespaces: &[Namespace]) -> UserError {
    let mut inodes: BTreeMap<u16, u64> = BTreeMap::new();
    let listeners = Selection { groups: Groups::IDENTITY, states: states::LISTEN, ..Selection::default() };
    let mut found = Vec::new();
    for namespace in namespaces {
        found.clear();
        if namespace.open_diag().and_then(|mut diag| diag.dump(&listeners, &mut found)).is_ok() {
            inodes.extend(found.iter().map(|socket| (socket.record.local_port, u64::from(socket.record.inode))));
        }
    }
    let holders = Holders::of_inodes(&inodes.values().copied().collect::<HashSet<u64>>());
    let mut ports: Vec<(u16, u64)> = inodes.into_iter().collect();
    ports.sort_by_key(|&(other, _)| other.abs_diff(port));
    ports.truncate(PORTS_MAX);
    let names: Vec<String> = ports
        .iter()
        .map(|&(port, inode)| {
            let comm = holders.first(inode).and_then(|(pid, _)| Some((proc_fs::stat(pid)?.comm, pid)));
            comm.map_or_else(|| port.to_string(), |(comm, pid)| format!("{port} ({comm}, pid {pid})"))
        })
        .collect();
    let hint = if names.is_empty() {
        "nothing listens on this host; start the service first (`ss -ltn` lists listeners)".to_owned()
    } else {
        format!("listening: {}; `ss -ltnp` lists all", names.join(", "))
    };
    UserError::new(format!("nothing listens on or is connected to TCP port {port}"), hint)
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
