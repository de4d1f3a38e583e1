//! A control group with a CPU quota, in the hierarchy that has the cpu controller: v1 or v2.
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use parshall_host::cgroup::{CpuHierarchy, Mounts, remove_leftovers};
use parshall_host::error::UserError;
use parshall_sys::owner::Owner;

const PERIOD_US: u64 = 100_000;

/// A control group of this process; removed on drop, once it is empty.
#[derive(Debug)]
pub struct CpuQuota {
    path: PathBuf,
}

impl CpuQuota {
    /// Creates a group that may use this share of one CPU.
    pub fn create(tag: &str, percent: u32) -> anyhow::Result<Self> {
        let quota_us = u64::from(percent.max(1)) * PERIOD_US / 100;
        let hierarchy = Mounts::read().for_cpu().ok_or_else(|| {
            UserError::new("no control group hierarchy has the cpu controller", "mount cgroup2, or cgroup with -o cpu")
        })?;
        let name = Owner::this()?.unique_name(tag);
        let make = |root: &Path, files: &[(&str, String)]| -> anyhow::Result<Self> {
            let group = Self { path: root.join(&name) };
            fs::create_dir(&group.path).with_context(|| format!("making {}", group.path.display()))?;
            for (file, value) in files {
                fs::write(group.path.join(file), value).with_context(|| format!("writing {file} of {name}"))?;
            }
            Ok(group)
        };
        match hierarchy {
            CpuHierarchy::V1(root) => {
                make(&root, &[("cpu.cfs_period_us", PERIOD_US.to_string()), ("cpu.cfs_quota_us", quota_us.to_string())])
            }
            CpuHierarchy::V2(root) => {
                // Usually enabled already; if this fails, so does writing cpu.max.
                fs::write(root.join("cgroup.subtree_control"), "+cpu").ok();
                make(&root, &[("cpu.max", format!("{quota_us} {PERIOD_US}"))])
            }
        }
    }

    /// The file that a process writes to join the group.
    pub fn procs(&self) -> anyhow::Result<File> {
        let path = self.path.join("cgroup.procs");
        OpenOptions::new().write(true).open(&path).with_context(|| format!("opening {}", path.display()))
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        // Its processes were waited for, but a group stays busy (EBUSY) for a moment after.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes the groups whose owners have ended and returns their names.
pub fn sweep() -> Vec<String> {
    let Some(CpuHierarchy::V1(top) | CpuHierarchy::V2(top)) = Mounts::read().for_cpu() else { return Vec::new() };
    remove_leftovers(&top, |_| true)
}
