//! Resolves names in arguments to the kernel's numbers: network namespaces to inodes, control groups to ids.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parshall_sys::nsfs;

use parshall_host::error::UserError;

/// The inode of a network namespace, given by its name in /run/netns or by the inode itself.
pub(super) fn namespace(name: &str) -> Result<u32, UserError> {
    if let Ok(inode) = name.parse() {
        return Ok(inode);
    }
    let unknown = || {
        UserError::new(
            format!("there is no network namespace `{name}`"),
            "`ip netns list` prints the names; an inode is accepted too",
        )
    };
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(unknown());
    }
    let path = Path::new(parshall_sys::netns::DIR).join(name);
    nsfs::inode_named(&path).ok().and_then(|inode| u32::try_from(inode).ok()).ok_or_else(unknown)
}

/// Returns `pid` if the process exists.
pub(super) fn process(pid: u32) -> Result<u32, UserError> {
    if Path::new(&format!("/proc/{pid}")).exists() {
        return Ok(pid);
    }
    Err(UserError::new(
        format!("there is no process {pid}"),
        "`pidof NAME` prints the ids of a program; --process NAME takes its name",
    ))
}

/// The id of a control group of version 2, which is the inode of its directory.
pub(super) fn control_group(path: &Path) -> Result<u64, UserError> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let mut places: Vec<PathBuf> = roots.iter().map(|root| Path::new(root).join(below)).collect();
    places.push(path.to_owned());
    let v2 = |place: &PathBuf| place.join("cgroup.controllers").exists();
    places
        .iter()
        .filter(|place| v2(place))
        .find_map(|place| fs::metadata(place).ok())
        .map(|metadata| metadata.ino())
        .ok_or_else(|| {
            UserError::new(
                format!("there is no control group {} of version 2", path.display()),
                "the line of /proc/PID/cgroup that begins with 0:: has the group of a process; sockets belong to no other version",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_an_error_with_a_hint() {
        assert_eq!(namespace("4026531840"), Ok(4_026_531_840));
        for name in ["no-such-namespace", "../../proc", "", "."] {
            assert!(namespace(name).unwrap_err().hint.contains("ip netns list"), "{name}");
        }
        assert!(control_group(Path::new("/no/such/group")).unwrap_err().what.contains("/no/such/group"));
    }
}
