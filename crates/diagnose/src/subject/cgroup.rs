//! The processes of a control group.
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use parshall_host::bounded_file;
use parshall_host::cgroup::Mounts;
use parshall_host::error::UserError;
use parshall_host::left_out;
use parshall_host::proc_fs;

/// Control groups that are searched for processes: who has a delegated group makes as many in it as they like.
const GROUPS_MAX: usize = 16_384;

/// The processes of a control group and of the groups below it.
pub fn pids(path: &Path) -> Result<Vec<u32>> {
    let mut directories = Mounts::read().directories_named(path);
    if directories.is_empty() {
        return Err(UserError::new(
            format!("there is no control group {}", path.display()),
            "give a directory below /sys/fs/cgroup or a path as in /proc/PID/cgroup",
        )
        .into());
    }
    let (mut pids, mut groups) = (BTreeSet::new(), 0);
    while let Some(directory) = directories.pop() {
        groups += 1;
        if groups > GROUPS_MAX {
            left_out::add(format!("only {GROUPS_MAX} of the groups in {} were searched for processes", path.display()));
            break;
        }
        let procs = bounded_file::text(directory.join("cgroup.procs")).unwrap_or_default();
        pids.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        directories.extend(below.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
    }
    // 0 stands for a process outside of our pid namespace.
    pids.remove(&0);
    pids.remove(&proc_fs::own_pid());
    pids.retain(|&pid| proc_fs::stat(pid).is_some_and(|stat| !stat.kernel_thread));
    if pids.is_empty() {
        return Err(UserError::new(
            format!("control group {} has no processes", path.display()),
            "`cat /proc/PID/cgroup` shows the groups of a process",
        )
        .into());
    }
    Ok(pids.into_iter().collect())
}
