//! A user id for the process that moves packets, which no other process has: whoever runs as the same user may kill it. That is why it is
//! not `nobody`, as which many services run.
use std::collections::HashSet;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::Context;
use parshall_host::error::UserError;
use parshall_host::proc_fs;
use parshall_sys::file_lock::FileLock;
use parshall_sys::privileges::is_named;

use crate::request::UserIds;

/// Ids that systemd (UIDS-GIDS.md), distributions and subordinate ids (subuid(5)) leave free.
const RANGE: RangeInclusive<u32> = 60_578..=61_183;

/// The lock files are named by it and the id.
const PREFIX: &str = "uid-";

/// An id, which no other tunnel takes until this is dropped.
#[derive(Debug)]
pub struct OwnUser {
    id: u32,
    path: PathBuf,
    lock: FileLock,
}

impl OwnUser {
    /// Takes a free id. `directory` has a lock file for each that is taken.
    pub fn take(directory: &Path) -> anyhow::Result<Self> {
        remove_unlocked(directory);
        let used = used();
        for id in RANGE {
            if used.contains(&id) || is_named(id) {
                continue;
            }
            let path = directory.join(format!("{PREFIX}{id}"));
            let lock = FileLock::take_removable(&path).with_context(|| format!("locking {}", path.display()))?;
            if let Some(lock) = lock {
                return Ok(Self { id, path, lock });
            }
        }
        let what = format!("all user ids from {} to {} are taken", RANGE.start(), RANGE.end());
        Err(UserError::new(what, "give --user a user that nothing else runs as").into())
    }

    pub fn ids(&self) -> UserIds {
        UserIds { uid: self.id, gid: self.id }
    }
}

impl Drop for OwnUser {
    fn drop(&mut self) {
        self.lock.remove(&self.path);
    }
}

/// Removes the lock files of processes that were killed.
fn remove_unlocked(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && let Ok(Some(lock)) = FileLock::take_existing(&path)
        {
            lock.remove(&path);
        }
    }
}

/// The ids of all processes: real, effective, saved and of files, of users and groups.
fn used() -> HashSet<u32> {
    let mut used = HashSet::new();
    for pid in proc_fs::pids() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        for name in ["Uid", "Gid"] {
            let ids = proc_fs::status_field(&status, name).unwrap_or_default();
            used.extend(ids.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tunnel_has_another_id_and_leaves_no_file() {
        let scratch = tempfile::tempdir().unwrap();
        let first = OwnUser::take(scratch.path()).unwrap();
        // That of a process that was killed.
        fs::write(scratch.path().join("uid-61183"), "").unwrap();
        let second = OwnUser::take(scratch.path()).unwrap();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2);
        assert!(first.ids() != second.ids() && RANGE.contains(&first.ids().uid));
        let path = first.path.clone();
        drop(first);
        assert!(!path.exists());
        drop(second);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn ids_of_processes_are_used() {
        assert!(used().contains(&parshall_sys::privileges::current().uid));
    }
}
