//! Becoming root in a user namespace, so that a user without privileges can make network namespaces.
use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// Moves the process into new user and mount namespaces in which it is root, with an empty directory for the names of network
/// namespaces ([`crate::netns::DIR`]). Everything ends with the last process in them. Files stay those of the user.
///
/// # Errors
/// EINVAL if the process has more than one thread; EPERM or ENOSPC where the host does not let users make user namespaces.
pub fn become_root() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: unshare() takes no pointers. CLONE_NEWUSER fails unless the calling thread is the only one, so no other thread is
    // left with other credentials.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // A group can only be mapped once setgroups() is given up (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let names = Path::new(crate::netns::DIR);
    let over = if names.is_dir() { names } else { names.parent().unwrap_or(names) };
    mount("tmpfs", over, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)?;
    Ok(())
}
