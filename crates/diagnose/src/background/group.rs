//! An idle control group for the observer: it runs only where the CPU is otherwise idle (`cpu.idle`, Linux 5.15).
//!
//! SCHED_IDLE orders only the threads of one group. The kernel shares a CPU between groups by their weights, and every service of
//! systemd is a group, as is every session where sched_autogroup is on. So an observer in another group takes half of a CPU from
//! a service even at SCHED_IDLE.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parshall_host::bounded_file;
use parshall_host::cgroup::{Mounts, remove_leftovers};
use parshall_sys::owner::Owner;

use crate::cgroup::snapshot_directory;

const TAG: &str = "observer";
/// Limits of version 2 that a process leaves behind when it leaves a group, and the value of each that means no limit.
const LIMITS: [(&str, &str); 3] = [("memory.max", "max"), ("memory.high", "max"), ("cpuset.cpus", "")];

/// Eight times the weight of other groups, in version 2 and in version 1. A group that stops being idle has run ahead of the others by
/// what the little that it ran counted for. With their weight it then got 1 % of a saturated CPU for 10 s and longer (Linux 6.18).
const WEIGHTS: [(&str, &str); 2] = [("cpu.weight", "800"), ("cpu.shares", "8192")];

/// A separate group, which is removed on drop.
#[derive(Debug)]
pub struct IdleGroup {
    own: PathBuf,
    before: PathBuf,
    left: AtomicBool,
}

impl IdleGroup {
    /// None, with nothing changed, if control groups cannot be created or are too old, or if one limits this process, because its
    /// limits must stay in force.
    pub fn create() -> Option<Self> {
        let mounts = Mounts::read();
        let (top, before) = mounts.cpu_hierarchy(&bounded_file::text("/proc/self/cgroup").ok()?)?;
        if is_limited(&top, &before) {
            return None;
        }
        sweep(&top);
        let own = top.join(Owner::this().ok()?.unique_name(TAG));
        fs::create_dir(&own).ok()?;
        let group = Self { own, before, left: AtomicBool::new(true) };
        // An early return drops it, which removes the directory.
        fs::write(group.own.join("cpu.idle"), "1").ok()?;
        Some(group)
    }

    /// Moves the calling thread into the group where the hierarchy allows that (version 1), else the process. The threads that
    /// it starts belong to the group too.
    pub fn enter(&self) -> bool {
        // Both files exist in version 1.
        let entered = ["tasks", "cgroup.procs"].iter().any(|file| {
            let path = self.own.join(file);
            path.exists() && fs::write(path, "0").is_ok()
        });
        self.left.store(!entered, Ordering::Relaxed);
        entered
    }

    /// Gives the group more weight than others: what is left to do is little. Moving out of it would wait for a grace period of RCU,
    /// which takes seconds on a host whose CPUs are all busy.
    pub fn give_up(&self) {
        self.end_idle();
        for (file, weight) in WEIGHTS {
            let path = self.own.join(file);
            if path.exists() {
                let _ = fs::write(path, weight);
            }
        }
    }

    fn end_idle(&self) {
        let _ = fs::write(self.own.join("cpu.idle"), "0");
    }

    /// Moves the process back to its old group.
    pub fn leave(&self) {
        if !self.left.swap(true, Ordering::Relaxed) && fs::write(self.before.join("cgroup.procs"), "0").is_err() {
            // The old group may have been removed, or refuse processes.
            self.end_idle();
        }
    }
}

impl Drop for IdleGroup {
    fn drop(&mut self) {
        self.leave();
        let _ = fs::remove_dir(&self.own);
    }
}

/// Whether this group or an ancestor limits the resources of its processes.
fn is_limited(top: &Path, group: &Path) -> bool {
    let below_top = || group.ancestors().take_while(|level| *level != top);
    snapshot_directory(group).iter().any(|level| level.quota_us.is_some())
        || below_top().any(|level| {
            LIMITS
                .iter()
                .any(|(file, none)| bounded_file::text(level.join(file)).is_ok_and(|limit| limit.trim() != *none))
        })
}

/// Removes the groups of killed observers.
fn sweep(top: &Path) {
    remove_leftovers(top, |name| name.ends_with(TAG));
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn own_group() -> String {
        fs::read_to_string("/proc/thread-self/cgroup").expect("/proc")
    }

    #[test]
    fn limits_are_found_at_every_level() {
        let top = tempfile::tempdir().expect("a directory");
        let group = top.path().join("slice/service");
        fs::create_dir_all(&group).expect("directories");
        let write = |path: &str, text: &str| fs::write(top.path().join(path), text).expect("a file");
        for (file, none) in LIMITS {
            write(&format!("slice/service/{file}"), &format!("{none}\n"));
        }
        write("memory.max", "1048576\n");
        assert!(!is_limited(top.path(), &group), "the top is not left");
        write("slice/memory.max", "1048576\n");
        assert!(is_limited(top.path(), &group));
        write("slice/memory.max", "max\n");
        write("slice/service/cpuset.cpus", "0\n");
        assert!(is_limited(top.path(), &group));
        write("slice/service/cpuset.cpus", "\n");
        write("slice/service/cpu.stat", "nr_periods 0\n");
        write("slice/service/cpu.max", "50000 100000\n");
        assert!(is_limited(top.path(), &group));
    }

    /// All steps are in one test, because the whole process moves.
    #[test]
    fn the_process_returns_and_no_group_is_left() {
        let before = own_group();
        let Some(group) = IdleGroup::create().filter(IdleGroup::enter) else {
            return parshall_testkit::skip("a control group for the observer", "none can be made here");
        };
        assert_eq!(fs::read_to_string(group.own.join("cpu.idle")).expect("its file").trim(), "1");
        let name = group.own.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(own_group().contains(&name), "{}", own_group());
        group.give_up();
        assert_eq!(fs::read_to_string(group.own.join("cpu.idle")).expect("its file").trim(), "0");
        let weighs =
            |(file, weight): &(&str, &str)| fs::read_to_string(group.own.join(file)).is_ok_and(|w| w.trim() == *weight);
        assert!(WEIGHTS.iter().any(weighs), "more than others");
        group.leave();
        assert_eq!(own_group(), before);
        group.leave();
        let own = group.own.clone();
        drop(group);
        assert!(!own.exists());

        // As a killed observer leaves it.
        let top = own.parent().expect("the hierarchy's top");
        let mut gone = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep");
        let left = top.join(Owner::of(gone.id()).expect("it runs").unique_name(TAG));
        fs::create_dir(&left).expect("a group");
        sweep(top);
        assert!(left.exists(), "its owner lives");
        gone.kill().and_then(|()| gone.wait()).expect("its end");
        sweep(top);
        assert!(!left.exists());
    }
}
