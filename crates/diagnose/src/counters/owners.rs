//! Which sockets and how many descriptors the subject's processes hold when the window ends.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;

use parshall_core::sorting::StableSort as _;
use parshall_evidence::DescriptorUse;
use parshall_host::bounded_file;
use parshall_host::proc_fs;

use crate::subject::Resolved;

/// Processes whose descriptors are read.
const PROCESSES_MAX: usize = 256;
/// Descriptors that are read of each process, and of all of them together.
const DESCRIPTORS_MAX: usize = 2_048;
const DESCRIPTORS_ALL_MAX: usize = 65_536;
/// Descriptors of a process that are counted one by one: the most that it can have (`fs.nr_open`).
const COUNTED_MAX: usize = 1 << 20;
/// Processes that are reported: those nearest to their limit.
const REPORTED: usize = 4;

/// Owners of sockets, and the subject's processes.
pub struct Owners {
    by_inode: HashMap<u64, u32>,
    pids: Vec<u32>,
}

impl Owners {
    /// The processes as they are now, with their descendants where these belong to the subject. Owners are looked up of the sockets
    /// with these inodes.
    pub fn of(resolved: &Resolved, mut wanted: HashSet<u64>) -> Self {
        let mut pids: Vec<u32> = resolved.processes.iter().map(|process| process.pid).collect();
        if resolved.select.follows_children() && resolved.select.by_process() {
            let known = pids.clone();
            pids.extend(proc_fs::descendants(&known));
        }
        pids.dedup();
        pids.retain(|&pid| pid != proc_fs::own_pid());
        pids.truncate(PROCESSES_MAX);
        let mut by_inode: HashMap<u64, u32> =
            resolved.sockets.iter().filter(|s| s.pid != 0).map(|s| (s.inode, s.pid)).collect();
        by_inode.remove(&0);
        wanted.retain(|inode| *inode != 0 && !by_inode.contains_key(inode));
        let mut left = DESCRIPTORS_ALL_MAX;
        for &pid in &pids {
            if wanted.is_empty() || left == 0 {
                break;
            }
            let (sockets, _) = proc_fs::first_sockets(pid, DESCRIPTORS_MAX.min(left));
            left = left.saturating_sub(sockets.len());
            for (_, inode) in sockets.into_iter().filter(|(_, inode)| wanted.remove(inode)) {
                by_inode.insert(inode, pid);
            }
        }
        Self { by_inode, pids }
    }

    /// The process that holds a socket, 0 when none of the subject does.
    pub fn pid(&self, inode: u64) -> u32 {
        self.by_inode.get(&inode).copied().unwrap_or(0)
    }

    /// The processes nearest to their limit of descriptors; `first` holds how many each had when the window began.
    pub fn descriptors(&self, first: &BTreeMap<u32, u64>) -> Vec<DescriptorUse> {
        let used = |&pid: &u32| {
            let open = open_descriptors(pid)?.max(first.get(&pid).copied().unwrap_or(0));
            let limits = bounded_file::text(format!("/proc/{pid}/limits")).ok()?;
            Some(DescriptorUse { pid, open, limit: soft_limit(&limits)? })
        };
        let mut found: Vec<DescriptorUse> = self.pids.iter().filter_map(used).collect();
        let share = |d: &DescriptorUse| d.open as f64 / d.limit.max(1) as f64;
        found.stable_sort_by(|a, b| share(b).total_cmp(&share(a)).then(a.pid.cmp(&b.pid)));
        found.truncate(REPORTED);
        found
    }
}

/// How many descriptors a process has open; None when we may not see it.
pub fn open_descriptors(pid: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/fd");
    // Since Linux 6.2 the size of the directory is their number; before it is 0.
    match fs::metadata(&path).ok()?.len() {
        0 => Some(fs::read_dir(&path).ok()?.take(COUNTED_MAX).count() as u64),
        open => Some(open),
    }
}

/// The soft limit in the line `Max open files`.
fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_limit_of_descriptors() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(text), Some(1024));
        assert_eq!(soft_limit("Max open files            unlimited            unlimited            files\n"), None);
    }

    #[test]
    fn counts_our_own_descriptors() {
        let _open = tempfile::tempfile().expect("a file");
        assert!(open_descriptors(std::process::id()).is_some_and(|open| open >= 3));
    }
}
