//! Becoming another user for good.
use std::ffi::CString;
use std::io;

use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities, set_keep_capabilities,
    set_no_new_privs,
};

use crate::call::check;

/// Whom to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A user by name or number, in a group by name or number, or in the user's own. None when there is no such user or
/// group.
pub fn lookup(user: &str, group: Option<&str>) -> Option<User> {
    let by_name = passwd(user);
    let uid = by_name.map(|(uid, _)| uid).or_else(|| user.parse().ok())?;
    let gid = match group {
        Some(group) => group_id(group).or_else(|| group.parse().ok())?,
        None => by_name.map(|(_, gid)| gid)?,
    };
    Some(User { uid, gid })
}

/// The text fields of an entry go into a buffer of the caller's; this holds any that a host has.
const BUFFER: usize = 16 * 1024;

fn passwd(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; BUFFER];
    let mut found = std::ptr::null_mut();
    // SAFETY: all-zero bytes are a valid passwd: integers and null pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with zero, the buffer is as long as said, and all of it outlives the call.
    let result =
        unsafe { libc::getpwnam_r(name.as_ptr(), &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    (result == 0 && !found.is_null()).then_some((entry.pw_uid, entry.pw_gid))
}

fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; BUFFER];
    let mut found = std::ptr::null_mut();
    // SAFETY: all-zero bytes are a valid group: integers and null pointers.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    // SAFETY: as for the user.
    let result =
        unsafe { libc::getgrnam_r(name.as_ptr(), &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    (result == 0 && !found.is_null()).then_some(entry.gr_gid)
}

/// The user and group in effect.
pub fn current() -> User {
    User { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}

/// Becomes this user for good: its ids are the real, effective and saved ones, it is in no other group, has no capability,
/// and gains none from a program that it becomes. With `keep_net_admin` that one capability stays, for this thread and those
/// it starts, and for programs it becomes. Root (uid 0) keeps its capabilities.
///
/// All of this holds also where the process was this user already, with more groups or capabilities than the user has. What
/// cannot be given up is an error.
///
/// Call it before other threads run: capabilities belong to threads.
pub fn become_user(user: &User, keep_net_admin: bool) -> io::Result<()> {
    if keep_net_admin {
        set_keep_capabilities(true)?;
    }
    leave_groups(user.gid)?;
    // By libc, which changes all threads of the process; the system calls, as rustix makes them, change one.
    // SAFETY: setresgid and setresuid take no pointers.
    check(unsafe { libc::setresgid(user.gid, user.gid, user.gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::setresuid(user.uid, user.uid, user.uid) })?;
    if user.uid != 0 {
        // Only the way from uid 0 to another takes capabilities away; those that were given to this user stay.
        keep_capabilities(if keep_net_admin { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() })?;
        // SAFETY: setuid takes no pointers.
        if unsafe { libc::setuid(0) } == 0 {
            return Err(io::Error::other("the privileges could be taken back"));
        }
    }
    gain_nothing()
}

/// Leaves all groups but this one. Only CAP_SETGID can, so without it there must be no others.
fn leave_groups(own: u32) -> io::Result<()> {
    // SAFETY: an empty list is not read.
    let left = check(unsafe { libc::setgroups(0, std::ptr::null()) });
    if left.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EPERM)) {
        let groups = getgroups()?;
        return match groups.iter().find(|group| group.as_raw() != own) {
            None => Ok(()),
            Some(other) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the process is in group {} too, and may not leave it", other.as_raw()),
            )),
        };
    }
    left
}

/// From now on no program that this thread or one that it starts becomes gains privileges by its set-user-ID bit or its file
/// capabilities (no_new_privs). Ambient capabilities stay.
pub fn gain_nothing() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Whether the program file gave this process privileges that its user does not have: a set-user-ID bit or file
/// capabilities (AT_SECURE).
pub fn elevated_by_file() -> bool {
    // SAFETY: getauxval takes no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Gives up every capability of the calling thread, and so of those that it starts, for good.
pub fn drop_capabilities() -> io::Result<()> {
    keep_capabilities(CapabilitySet::empty())
}

/// Leaves the calling thread these capabilities and no others, ambient ones included.
fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    // Ambient capabilities that are no longer permitted and inheritable go too (cap_capset in security/commoncap.c).
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    for capability in kept.iter() {
        // An ambient capability survives execve(), so that a successor has it too. Kernels that refuse lose only that.
        configure_capability_in_ambient_set(capability, true).ok();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_capabilities_enters_no_namespace() {
        let netns = std::fs::File::open("/proc/self/ns/net").expect("ours");
        let entered = std::thread::spawn(move || {
            drop_capabilities().expect("anybody may");
            crate::netns::enter(std::os::fd::AsFd::as_fd(&netns))
        });
        let error = entered.join().expect("no panic").expect_err("not permitted");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn users_by_name_and_by_number() {
        assert_eq!(lookup("root", None), Some(User { uid: 0, gid: 0 }));
        assert_eq!(lookup("4711", Some("4712")), Some(User { uid: 4711, gid: 4712 }));
        assert_eq!(lookup("4711", None), None, "a number alone has no group");
        assert_eq!(lookup("no such user", None), None);
        assert_eq!(lookup("root", Some("no such group")), None);
    }
}
