//! Control group id → path, container and pod. Of version 2, alone or in a hybrid mount.
//!
//! The kernel opens a control group by its id where that is permitted; elsewhere the tree is walked, for the number of its
//! directories are the ids. An id is never given twice, so what was found stays true.
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use parshall_core::sockets::container::{Placement, placement};
use parshall_host::mountinfo;
use parshall_sys::file_handle::open_cgroup;

use super::Mixed;

/// Paths remembered; when there are more, those that the last dump did not need are forgotten.
const KEPT: usize = 16_384;
/// Paths remembered within one dump at most.
const MOST: usize = 262_144;

/// A control group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path below the mount; empty when it is gone or was not found.
    pub path: String,
    /// What the path tells.
    pub placement: Placement,
}

#[derive(Debug)]
struct Known {
    cgroup: Cgroup,
    /// The last dump that needed it.
    used: u64,
}

#[derive(Debug)]
struct Mount {
    path: PathBuf,
    directory: File,
}

/// Names of control groups.
#[derive(Debug)]
pub struct CgroupNames {
    mount: Option<Mount>,
    by_handle: bool,
    known: HashMap<u64, Known, Mixed>,
    none: Cgroup,
    dump: u64,
    walked: Option<u64>,
    kept: usize,
}

impl Default for CgroupNames {
    fn default() -> Self {
        Self::at(mounted(&mountinfo::read("self")), true)
    }
}

impl CgroupNames {
    fn at(path: Option<PathBuf>, by_handle: bool) -> Self {
        let mount = path.and_then(|path| Some(Mount { directory: File::open(&path).ok()?, path }));
        Self { mount, by_handle, known: HashMap::default(), none: Cgroup::default(), dump: 0, walked: None, kept: KEPT }
    }

    /// A dump begins.
    pub fn begin(&mut self) {
        if self.known.len() > self.kept {
            let last = self.dump;
            self.known.retain(|_, known| known.used == last);
        }
        self.dump += 1;
    }

    /// Finds a control group, unless it is known.
    pub fn learn(&mut self, id: u64) {
        let dump = self.dump;
        if let Some(known) = self.known.get_mut(&id) {
            known.used = dump;
            return;
        }
        if id == 0 || self.known.len() >= MOST {
            return;
        }
        let found = match self.open(id) {
            Ok(path) => Some(path),
            // Not permitted, or a kernel without handles of control groups.
            Err(error) if error.raw_os_error() != Some(libc::ESTALE) => {
                self.by_handle = false;
                self.walk();
                None
            }
            Err(_) => None,
        };
        if found.is_none() && self.known.contains_key(&id) {
            self.learn(id);
            return;
        }
        self.insert(id, found.unwrap_or_default(), dump);
    }

    /// The control group; empty when it is gone or was not learnt.
    pub fn get(&self, id: u64) -> &Cgroup {
        self.known.get(&id).map_or(&self.none, |known| &known.cgroup)
    }

    fn insert(&mut self, id: u64, path: String, used: u64) {
        let placement = placement(&path);
        self.known.insert(id, Known { cgroup: Cgroup { path, placement }, used });
    }

    fn open(&self, id: u64) -> io::Result<String> {
        let mount = self.mount.as_ref().filter(|_| self.by_handle).ok_or(io::ErrorKind::Unsupported)?;
        let place = open_cgroup(mount.directory.as_fd(), id)?;
        let path = fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
        Ok(below(&mount.path, &path))
    }

    /// Learns all there are, at most once per dump.
    fn walk(&mut self) {
        let Some(root) = self.mount.as_ref().map(|mount| mount.path.clone()) else { return };
        if self.walked == Some(self.dump) {
            return;
        }
        self.walked = Some(self.dump);
        let mut open = vec![root.clone()];
        if let Ok(metadata) = fs::metadata(&root) {
            self.insert_if_new(std::os::unix::fs::MetadataExt::ino(&metadata), "/".to_owned());
        }
        while let Some(directory) = open.pop() {
            // What vanishes meanwhile is not needed any more.
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if self.known.len() < MOST && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.insert_if_new(entry.ino(), below(&root, &entry.path()));
                    open.push(entry.path());
                }
            }
        }
    }

    fn insert_if_new(&mut self, id: u64, path: String) {
        if !self.known.contains_key(&id) {
            // Not needed by a dump as yet.
            self.insert(id, path, 0);
        }
    }
}

/// The path below the mount, `/` for the mount itself.
fn below(mount: &Path, path: &Path) -> String {
    let rest = path.strip_prefix(mount).map(|rest| rest.to_string_lossy().into_owned());
    format!("/{}", rest.unwrap_or_default())
}

/// Where control groups of version 2 are mounted; the whole tree is preferred to a part of it.
fn mounted(table: &[u8]) -> Option<PathBuf> {
    let mounts = mountinfo::mounts(table).filter(|mount| mount.kind == b"cgroup2");
    // Stable: the first of several.
    Some(mounts.min_by_key(|mount| mount.root != b"/")?.point())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use parshall_sys::owner::Owner;

    use super::*;
    use parshall_testkit::{root, skip};

    /// A control group that goes with its owner.
    struct Group(PathBuf);

    impl Group {
        fn make(at: &Path, tag: &str) -> Option<Self> {
            let path = at.join(Owner::this().unwrap().unique_name(tag));
            fs::create_dir(&path).ok().map(|()| Self(path))
        }

        fn id(&self) -> u64 {
            fs::metadata(&self.0).unwrap().ino()
        }

        fn path(&self) -> String {
            format!("/{}", self.0.file_name().unwrap().to_str().unwrap())
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    /// Where groups can be made, or none.
    fn hierarchy(what: &str) -> Option<PathBuf> {
        let mount = mounted(&mountinfo::read("self"));
        if mount.is_none() {
            skip(what, "no unified hierarchy is mounted");
        }
        mount.filter(|_| root(what))
    }

    #[test]
    fn the_mount_is_found_in_unified_and_hybrid_hosts() {
        let unified = b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(mounted(unified), Some("/sys/fs/cgroup".into()));
        let hybrid = b"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            40 31 0:37 /part /mnt/part rw - cgroup2 cgroup2 rw\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(mounted(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mounted(b"32 31 0:29 / /cgroup2 rw - cgroup cgroup2 rw,cpu\n1 2 3\n\n"), None);
    }

    #[test]
    fn both_ways_give_the_same_path() {
        let Some(root) = hierarchy("paths of control groups") else { return };
        let group = Group::make(&root, "path").expect("root may make control groups");
        for by_handle in [true, false] {
            let mut names = CgroupNames::at(Some(root.clone()), by_handle);
            names.begin();
            names.learn(group.id());
            assert_eq!(names.get(group.id()).path, group.path(), "by handle: {by_handle}");
            names.learn(fs::metadata(&root).unwrap().ino());
            assert_eq!(names.get(fs::metadata(&root).unwrap().ino()).path, "/");
            names.learn(u64::MAX - 5);
            assert_eq!(*names.get(u64::MAX - 5), Cgroup::default(), "nobody has this id");
        }
    }

    #[test]
    fn a_group_that_is_gone_keeps_the_path_it_had_and_groups_that_come_and_go_leave_nothing() {
        let Some(root) = hierarchy("control groups that vanish") else { return };
        let mut names = CgroupNames { kept: 20, ..CgroupNames::at(Some(root.clone()), true) };
        let mut most = 0;
        for _ in 0..10 {
            names.begin();
            let ids: Vec<(u64, String)> = (0..10)
                .map(|_| Group::make(&root, "churn").expect("root may make control groups"))
                .map(|group| {
                    names.learn(group.id());
                    (group.id(), group.path())
                })
                .collect();
            for (id, path) in ids {
                names.learn(id);
                assert_eq!(names.get(id).path, path);
            }
            most = most.max(names.known.len());
        }
        assert!(most <= 40, "{most} are remembered");
    }

    #[test]
    fn without_a_mount_nothing_is_known() {
        let mut names = CgroupNames::at(None, true);
        names.begin();
        names.learn(7);
        assert_eq!(*names.get(7), Cgroup::default());
    }
}
