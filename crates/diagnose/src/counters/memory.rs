//! Memory of control groups: what was read back from a disk because there was no room to keep it.
//!
//! `workingset_refault_file` counts pages of files that are read again soon after they were reclaimed (mm/workingset.c). Version 1
//! and version 2 have it in memory.stat.
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use parshall_evidence::MemoryGroup;
use parshall_host::bounded_file;
use parshall_host::cgroup::Mounts;
use parshall_sys::clock;

/// Processes that are looked at; a subject of the whole host may have thousands.
const PROCESSES_MAX: usize = 64;
/// Version 1 says "no limit" by the largest number of pages.
const NO_LIMIT: u64 = 1 << 60;

/// The groups of the subject's processes, when the window began.
#[derive(Debug, Default)]
pub struct Watch {
    groups: BTreeMap<PathBuf, Group>,
}

#[derive(Debug, Default)]
struct Group {
    path: String,
    refaults: u64,
    /// Bytes that each process had read.
    read: BTreeMap<u32, u64>,
}

impl Watch {
    /// Reads what is there now.
    pub fn start(pids: impl Iterator<Item = u32>) -> Self {
        let mounts = Mounts::read();
        let mut groups: BTreeMap<PathBuf, Group> = BTreeMap::new();
        for pid in pids.take(PROCESSES_MAX) {
            let Ok(text) = bounded_file::text(format!("/proc/{pid}/cgroup")) else { continue };
            let Some((top, directory)) = mounts.memory_hierarchy(&text) else { continue };
            let path = format!("/{}", directory.strip_prefix(&top).unwrap_or(Path::new("")).display());
            let group = match groups.entry(directory) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let Some(refaults) = refaults(new.key()) else { continue };
                    new.insert(Group { path, refaults, read: BTreeMap::new() })
                }
            };
            group.read.insert(pid, read_bytes(pid));
        }
        Self { groups }
    }

    /// The groups that read something back since.
    pub fn finish(&self) -> Vec<MemoryGroup> {
        let groups = self.groups.iter().filter_map(|(directory, group)| {
            let pages = refaults(directory)?.saturating_sub(group.refaults);
            let read = group.read.iter().map(|(pid, then)| read_bytes(*pid).saturating_sub(*then)).sum();
            (pages > 0).then(|| MemoryGroup {
                path: group.path.clone(),
                pids: group.read.keys().copied().collect(),
                limit_bytes: limit(directory),
                refaulted_bytes: pages.saturating_mul(clock::page_bytes()),
                read_bytes: read,
            })
        });
        groups.collect()
    }
}

fn refaults(directory: &Path) -> Option<u64> {
    field(&bounded_file::text(directory.join("memory.stat")).ok()?, "workingset_refault_file")
}

/// 0 for a process that has ended, or of another user.
fn read_bytes(pid: u32) -> u64 {
    let text = bounded_file::text(format!("/proc/{pid}/io")).unwrap_or_default();
    field(&text, "read_bytes:").unwrap_or(0)
}

fn limit(directory: &Path) -> Option<u64> {
    let read = |name| bounded_file::text(directory.join(name)).ok();
    let text = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reads_fields_by_their_whole_names() {
        let text = "cache 5\nworkingset_refault_anon 7\nworkingset_refault_file 9\n";
        assert_eq!(field(text, "workingset_refault_file"), Some(9));
        assert_eq!(field(text, "refault_file"), None);
        assert_eq!(field("rchar: 1\nread_bytes: 4096\n", "read_bytes:"), Some(4096));
    }

    #[test]
    fn a_limit_of_all_memory_is_none() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("writable");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(directory.path()), None);
        write("memory.limit_in_bytes", "8388608\n");
        assert_eq!(limit(directory.path()), Some(8 << 20));
        write("memory.max", "max\n");
        assert_eq!(limit(directory.path()), None);
    }

    #[test]
    fn what_is_read_back_within_the_window_counts() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |pages: u64| {
            let text = format!("workingset_refault_file {pages}\n");
            fs::write(directory.path().join("memory.stat"), text).expect("writable");
        };
        write(10);
        let group = Group { path: "/app".into(), refaults: 10, read: BTreeMap::new() };
        let watch = Watch { groups: BTreeMap::from([(directory.path().to_path_buf(), group)]) };
        assert!(watch.finish().is_empty());
        write(12);
        let found = watch.finish();
        assert_eq!((found[0].path.as_str(), found[0].refaulted_bytes), ("/app", 2 * clock::page_bytes()));
    }
}
