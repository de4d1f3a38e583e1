//! Hierarchies of control groups, of version 1 and 2: where they are mounted, and the group of a process in them.
use std::fs;
use std::path::{Path, PathBuf};

use parshall_sys::owner;

use crate::bounded_file;
use crate::mountinfo;

/// The mount point of a hierarchy, and the part of it that is mounted there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    root: PathBuf,
    point: PathBuf,
}

/// The hierarchies that may control CPU time and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts {
    v1_cpu: Option<Mount>,
    v1_memory: Option<Mount>,
    v2: Option<Mount>,
}

/// The hierarchy in which the CPU time of new groups can be controlled, by its top directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuHierarchy {
    /// Version 1, with the cpu controller.
    V1(PathBuf),
    /// Version 2, with the cpu controller available.
    V2(PathBuf),
}

/// Removes the groups directly below `top` whose owners have ended and whose names `is_ours` accepts; returns the names. A
/// group that is not empty stays.
pub fn remove_leftovers(top: &Path, is_ours: impl Fn(&str) -> bool) -> Vec<String> {
    let mut dead = owner::leftovers(top).unwrap_or_default();
    dead.retain(|name| is_ours(name) && fs::remove_dir(top.join(name)).is_ok());
    dead
}

impl Mounts {
    /// The mounts of the calling process.
    pub fn read() -> Self {
        Self::parse(&mountinfo::read())
    }

    fn parse(table: &[u8]) -> Self {
        let mut mounts = Self::default();
        for mount in mountinfo::mounts(table) {
            let found = Mount { root: mount.root_path(), point: mount.point() };
            match mount.kind {
                b"cgroup" if mount.has_option("cpu") => mounts.v1_cpu = Some(found),
                b"cgroup" if mount.has_option("memory") => mounts.v1_memory = Some(found),
                b"cgroup2" => mounts.v2 = Some(found),
                _ => {}
            }
        }
        mounts
    }

    /// The hierarchy in which groups that control CPU time can be created.
    pub fn for_cpu(&self) -> Option<CpuHierarchy> {
        if let Some(mount) = &self.v1_cpu {
            return Some(CpuHierarchy::V1(mount.point.clone()));
        }
        let point = &self.v2.as_ref()?.point;
        let controllers = bounded_file::text(point.join("cgroup.controllers")).unwrap_or_default();
        controllers.split_whitespace().any(|controller| controller == "cpu").then(|| CpuHierarchy::V2(point.clone()))
    }

    /// The directory that controls the CPU time of a process, from the text of its /proc/PID/cgroup. None for a group outside of
    /// our cgroup namespace: its path leads out of the hierarchy, to files that the kernel did not make.
    pub fn cpu_directory(&self, cgroup: &str) -> Option<PathBuf> {
        self.cpu_hierarchy(cgroup).map(|(_, directory)| directory)
    }

    /// As [`Mounts::cpu_directory`], with the top of the hierarchy before it.
    pub fn cpu_hierarchy(&self, cgroup: &str) -> Option<(PathBuf, PathBuf)> {
        self.hierarchy(cgroup, "cpu", self.v1_cpu.as_ref())
    }

    /// As [`Mounts::cpu_hierarchy`], for the memory of a process.
    pub fn memory_hierarchy(&self, cgroup: &str) -> Option<(PathBuf, PathBuf)> {
        self.hierarchy(cgroup, "memory", self.v1_memory.as_ref())
    }

    fn hierarchy(&self, cgroup: &str, controller: &str, v1: Option<&Mount>) -> Option<(PathBuf, PathBuf)> {
        let mut unified = None;
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            if path.split('/').any(|part| part == "..") {
                continue;
            }
            if controllers.split(',').any(|name| name == controller) {
                return v1.map(|mount| mount.hierarchy(path));
            }
            if controllers.is_empty() {
                unified = Some(path);
            }
        }
        Some(self.v2.as_ref()?.hierarchy(unified?))
    }

    /// The directories that a path may refer to: an absolute path below a mount point, or a path inside any hierarchy.
    pub fn directories_named(&self, path: &Path) -> Vec<PathBuf> {
        let mounts = [&self.v2, &self.v1_cpu];
        let mut found = vec![path.to_path_buf()];
        found.extend(mounts.into_iter().flatten().map(|mount| mount.directory(&path.to_string_lossy())));
        found.retain(|directory| directory.join("cgroup.procs").exists());
        found
    }
}

impl Mount {
    fn hierarchy(&self, path: &str) -> (PathBuf, PathBuf) {
        (self.point.clone(), self.directory(path))
    }

    /// In a container the mount may show only a part of the hierarchy: its root is then a prefix of the path.
    fn directory(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        let inside = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        self.point.join(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &[u8] = b"\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 /pod1 /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn finds_the_directory_of_either_version() {
        let mounts = Mounts::parse(MOUNTINFO);
        let v1 = mounts.cpu_directory("7:memory:/a\n1:cpu,cpuacct:/docker/b\n0::/c\n");
        assert_eq!(v1, Some("/sys/fs/cgroup/cpu,cpuacct/docker/b".into()));
        let v2 = mounts.cpu_directory("0::/pod1/app\n");
        assert_eq!(v2, Some("/sys/fs/cgroup/unified/app".into()));
        assert_eq!(mounts.cpu_directory("0::/\n"), Some("/sys/fs/cgroup/unified/".into()));
        let memory = |cgroup: &str| mounts.memory_hierarchy(cgroup).map(|(_, directory)| directory);
        assert_eq!(memory("7:memory:/a\n0::/c\n"), Some("/sys/fs/cgroup/memory/a".into()));
        assert_eq!(memory("0::/pod1/app\n"), v2);
        assert_eq!(mounts.cpu_directory("nonsense"), None);
        assert_eq!(Mounts::default().cpu_directory("0::/a\n"), None);
    }

    #[test]
    fn a_group_outside_of_our_namespace_has_no_directory() {
        // A user can choose such a name: seen from here it would be /tmp/mine.
        let mounts = Mounts::parse(MOUNTINFO);
        assert_eq!(mounts.cpu_directory("0::/../../../../tmp/mine\n"), None);
        assert_eq!(mounts.cpu_directory("1:cpu:/..\n0::/../a\n"), None);
        assert!(mounts.cpu_directory("0::/..a/b..\n").is_some());
    }
}
