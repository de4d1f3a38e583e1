//! Resolves names in arguments to the kernel's numbers: network namespaces to inodes, control groups to ids.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parshall_host::error::UserError;
use parshall_host::netns::Netns;

/// The inodes of network namespaces; empty where all are selected.
pub(super) fn namespaces(given: &[Netns]) -> Result<Vec<u32>, UserError> {
    let mut inodes = Vec::new();
    for netns in given {
        let Some(inode) = netns.inode()? else { return Ok(Vec::new()) };
        inodes.push(u32::try_from(inode).map_err(|_| netns.unknown())?);
    }
    Ok(inodes)
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
        let inode = || Netns::Inode(4_026_531_840);
        assert_eq!(namespaces(&[inode()]), Ok(vec![4_026_531_840]));
        assert_eq!(namespaces(&[inode(), Netns::All]), Ok(Vec::new()));
        assert!(namespaces(&[Netns::Inode(1 << 40)]).unwrap_err().what.contains("1099511627776"));
        assert!(control_group(Path::new("/no/such/group")).unwrap_err().what.contains("/no/such/group"));
    }
}
