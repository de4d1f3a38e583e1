//! The path, container and pod of a control group of version 2, by its id.
//!
//! The kernel opens a control group by its id (open_by_handle_at) where that is permitted. Elsewhere the tree is scanned,
//! because the inodes of its directories are the ids. An id is never reused, so a path that was found stays valid.
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use parshall_core::sockets::container::{Placement, placement};
use parshall_host::mountinfo;
use parshall_sys::file_handle::open_cgroup;

use super::mix::Mixed;

/// If more paths are cached, those that the last dump did not use are removed.
const KEPT: usize = 16_384;
/// The maximum number of cached paths.
const CACHED_MAX: usize = 262_144;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path below the mount; empty if it was not found.
    pub path: String,
    pub placement: Placement,
}

#[derive(Debug)]
struct Known {
    cgroup: Cgroup,
    /// The last dump that used it.
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
    /// The last dump that scanned the tree.
    scanned: Option<u64>,
    kept: usize,
}

impl Default for CgroupNames {
    fn default() -> Self {
        Self::at(mounted(&mountinfo::read()), true)
    }
}

impl CgroupNames {
    fn at(path: Option<PathBuf>, by_handle: bool) -> Self {
        let mount = path.and_then(|path| Some(Mount { directory: File::open(&path).ok()?, path }));
        Self {
            mount,
            by_handle,
            known: HashMap::default(),
            none: Cgroup::default(),
            dump: 0,
            scanned: None,
            kept: KEPT,
        }
    }

    /// Begins a dump.
    pub fn begin(&mut self) {
        if self.known.len() > self.kept {
            let last = self.dump;
            self.known.retain(|_, known| known.used == last);
        }
        self.dump += 1;
    }

    /// Looks up a control group, unless it is cached.
    pub fn learn(&mut self, id: u64) {
        let dump = self.dump;
        if let Some(known) = self.known.get_mut(&id) {
            known.used = dump;
            return;
        }
        if id == 0 || self.known.len() >= CACHED_MAX {
            return;
        }
        let found = match self.open(id) {
            Ok(path) => Some(path),
            // It is not permitted, or the kernel has no file handles for control groups.
            Err(error) if error.raw_os_error() != Some(libc::ESTALE) => {
                self.by_handle = false;
                self.scan();
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

    /// The control group; empty if it was not found, or not looked up.
    pub fn get(&self, id: u64) -> &Cgroup {
        self.known.get(&id).map_or(&self.none, |known| &known.cgroup)
    }

    fn insert(&mut self, id: u64, path: String, used: u64) {
        let placement = placement(&path);
        self.known.insert(id, Known { cgroup: Cgroup { path, placement }, used });
    }

    fn open(&self, id: u64) -> io::Result<String> {
        let mount = self.mount.as_ref().filter(|_| self.by_handle).ok_or(io::ErrorKind::Unsupported)?;
        let directory = open_cgroup(mount.directory.as_fd(), id)?;
        let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
        Ok(below(&mount.path, &path))
    }

    /// Caches all control groups, at most once per dump.
    fn scan(&mut self) {
        let Some(root) = self.mount.as_ref().map(|mount| mount.path.clone()) else { return };
        if self.scanned == Some(self.dump) {
            return;
        }
        self.scanned = Some(self.dump);
        let mut open = vec![root.clone()];
        if let Ok(metadata) = fs::metadata(&root) {
            self.insert_if_new(std::os::unix::fs::MetadataExt::ino(&metadata), "/".to_owned());
        }
        while let Some(directory) = open.pop() {
            // A directory that is removed meanwhile is skipped.
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if self.known.len() < CACHED_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.insert_if_new(entry.ino(), below(&root, &entry.path()));
                    open.push(entry.path());
                }
            }
        }
    }

    fn insert_if_new(&mut self, id: u64, path: String) {
        if !self.known.contains_key(&id) {
            // No dump has used it yet.
            self.insert(id, path, 0);
        }
    }
}

/// The path below the mount, `/` for the mount itself.
fn below(mount: &Path, path: &Path) -> String {
    let rest = path.strip_prefix(mount).map(|rest| rest.to_string_lossy().into_owned());
    format!("/{}", rest.unwrap_or_default())
}

/// The mount point of control groups of version 2. A mount of the whole tree is preferred to one of a part.
fn mounted(table: &[u8]) -> Option<PathBuf> {
    let mounts = mountinfo::mounts(table).filter(|mount| mount.kind == b"cgroup2");
    // The first one if there are several.
    Some(mounts.min_by_key(|mount| mount.root != b"/")?.point())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use parshall_sys::owner::Owner;

    use super::*;
    use parshall_testkit::{root, skip};

    /// A control group, which is removed when this is dropped.
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

    /// The directory in which control groups can be made; `None` if they cannot.
    fn hierarchy(what: &str) -> Option<PathBuf> {
        let mount = mounted(&mountinfo::read());
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
    fn file_handle_and_scan_find_the_same_path() {
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
            assert_eq!(*names.get(u64::MAX - 5), Cgroup::default(), "no control group has this id");
        }
    }

    #[test]
    fn a_removed_group_keeps_its_path_and_unused_paths_are_removed() {
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
        assert!(most <= 40, "{most} are cached");
    }

    #[test]
    fn without_a_mount_nothing_is_found() {
        let mut names = CgroupNames::at(None, true);
        names.begin();
        names.learn(7);
        assert_eq!(*names.get(7), Cgroup::default());
    }
}
