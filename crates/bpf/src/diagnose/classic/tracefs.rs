//! Finds tracefs: a mount of the host, or a detached mount that only this process can reach.
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The conventional mount points: its own since Linux 4.1, below debugfs before.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A readable tracefs. Opening it changes nothing on the host.
#[derive(Debug)]
pub enum Tracefs {
    /// The host has mounted it at this directory.
    Mounted(PathBuf),
    /// The root of a mount that is not attached to any directory, for a host on which tracefs is not mounted. No other process
    /// sees the mount, and closing the descriptor unmounts it. Needs CAP_SYS_ADMIN and Linux 5.2 (fsmount(2)).
    Detached(OwnedFd),
}

impl Tracefs {
    /// Returns `None` if tracefs is not mounted and this process may not mount it.
    pub fn open() -> Option<Self> {
        let mounted = MOUNTS.iter().map(Path::new).find(|dir| has_events(dir)).map(|dir| Self::Mounted(dir.to_owned()));
        mounted.or_else(|| detached().map(Self::Detached)).filter(|tracefs| has_events(&tracefs.path()))
    }

    /// The path for this process. It is valid as long as `self` lives.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Mounted(path) => path.clone(),
            Self::Detached(fd) => PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())),
        }
    }
}

/// Whether tracefs is mounted and readable here. The directory itself also exists if nothing is mounted, so `events` is tested.
fn has_events(dir: &Path) -> bool {
    fs::read_dir(dir.join("events")).is_ok()
}

fn detached() -> Option<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(&context).ok()?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detached_mount_shows_events_and_stays_out_of_the_mount_table() {
        let table = || fs::read_to_string("/proc/self/mountinfo").expect("/proc");
        let before = table();
        let Some(fd) = detached() else {
            return parshall_testkit::skip(
                "tracefs by a detached mount",
                "fsmount is refused (not root, or Linux before 5.2)",
            );
        };
        let tracefs = Tracefs::Detached(fd);
        let format = tracefs.path().join("events/sched/sched_switch/format");
        assert!(fs::read_to_string(format).expect("the kernel has the scheduler's tracepoints").contains("prev_pid"));
        assert_eq!(table(), before);
    }
}
