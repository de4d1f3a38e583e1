//! Permanent changes of user and capabilities.
use std::ffi::CString;
use std::io;

use rustix::process::{getegid, geteuid, getgroups};
pub use rustix::thread::CapabilitySet;
use rustix::thread::{
    CapabilitySets, configure_capability_in_ambient_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
};

use crate::call::check;

/// The user and group to change to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Looks up a user by name or number. The group is given by name or number, or is the user's primary group. None if there
/// is no such user or group.
pub fn lookup(user: &str, group: Option<&str>) -> Option<User> {
    let by_name = passwd(user);
    let uid = by_name.map(|(uid, _)| uid).or_else(|| user.parse().ok())?;
    let gid = match group {
        Some(group) => group_id(group).or_else(|| group.parse().ok())?,
        None => by_name.map(|(_, gid)| gid)?,
    };
    Some(User { uid, gid })
}

/// Size of the buffer for the text fields of a passwd or group entry. An entry that does not fit counts as missing.
const BUFFER: usize = 16 * 1024;

fn passwd(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; BUFFER];
    let mut found = std::ptr::null_mut();
    // SAFETY: all-zero bytes are a valid passwd: integers and null pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with zero, the length is that of the buffer, and all arguments outlive the call.
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
    // SAFETY: as in `passwd`.
    let result =
        unsafe { libc::getgrnam_r(name.as_ptr(), &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    (result == 0 && !found.is_null()).then_some(entry.gr_gid)
}

/// Whether a user has this id, or a group has it. An answer that fails counts as one.
pub fn is_named(id: u32) -> bool {
    let mut buffer = vec![0; BUFFER];
    let mut found = std::ptr::null_mut();
    // SAFETY: all-zero bytes are a valid passwd: integers and null pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: the length is that of the buffer, and all arguments outlive the call.
    let result = unsafe { libc::getpwuid_r(id, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    if !is_absent(result, found.is_null()) {
        return true;
    }
    let mut found = std::ptr::null_mut();
    // SAFETY: all-zero bytes are a valid group: integers and null pointers.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let result = unsafe { libc::getgrgid_r(id, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    !is_absent(result, found.is_null())
}

/// Whether a look-up has found no entry: getpwuid_r(3) lists the errors by which C libraries say so.
fn is_absent(result: libc::c_int, is_null: bool) -> bool {
    is_null && [0, libc::ENOENT, libc::ESRCH, libc::EBADF, libc::EPERM].contains(&result)
}

/// The effective user and group.
pub fn current() -> User {
    User { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}

/// Changes permanently to this user: sets its real, effective and saved ids, leaves all supplementary groups, drops all
/// capabilities but those of `keep`, which remain for this thread, for threads that it starts and across execve(), and sets
/// no_new_privs. Root (uid 0) keeps its capabilities.
///
/// Supplementary groups and capabilities are dropped also if the process already runs as this user. Failing to drop one is an
/// error.
///
/// Call it before other threads run: capabilities belong to threads.
pub fn become_user(user: &User, keep: CapabilitySet) -> io::Result<()> {
    if !keep.is_empty() {
        set_keep_capabilities(true)?;
    }
    leave_groups(user.gid)?;
    // libc's functions change all threads of the process. The bare system calls, which rustix makes, change one thread.
    // SAFETY: setresgid and setresuid take no pointers.
    check(unsafe { libc::setresgid(user.gid, user.gid, user.gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::setresuid(user.uid, user.uid, user.uid) })?;
    if user.uid != 0 {
        // The kernel drops capabilities only at a change from uid 0. A process that began as this user may still have some.
        keep_capabilities(keep)?;
        // SAFETY: setuid takes no pointers.
        if unsafe { libc::setuid(0) } == 0 {
            return Err(io::Error::other("setuid(0) still succeeds after dropping privileges"));
        }
    }
    gain_nothing()
}

/// Leaves all supplementary groups. That needs CAP_SETGID; without it, any group other than `own` is an error.
fn leave_groups(own: u32) -> io::Result<()> {
    // SAFETY: an empty list is not read.
    let left = check(unsafe { libc::setgroups(0, std::ptr::null()) });
    if left.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EPERM)) {
        let groups = getgroups()?;
        return match groups.iter().find(|group| group.as_raw() != own) {
            None => Ok(()),
            Some(other) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the process is also in group {}, and leaving it needs CAP_SETGID", other.as_raw()),
            )),
        };
    }
    left
}

/// Sets no_new_privs: this thread and those that it starts gain no privileges at execve() from set-user-ID bits or file
/// capabilities. Ambient capabilities remain.
pub fn gain_nothing() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Whether a set-user-ID bit or file capabilities gave this process privileges that its user does not have (AT_SECURE).
pub fn elevated_by_file() -> bool {
    // SAFETY: getauxval takes no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Drops all capabilities of the calling thread permanently, and so of threads that it starts.
pub fn drop_capabilities() -> io::Result<()> {
    keep_capabilities(CapabilitySet::empty())
}

/// Drops all capabilities of the calling thread but these, also from the ambient set.
fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    // This also removes ambient capabilities that are no longer permitted and inheritable (cap_capset, security/commoncap.c).
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    for capability in kept.iter() {
        // An ambient capability survives execve(), so an upgraded program has it too. Errors are ignored: only that is lost.
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
        assert!(is_named(0) && !is_named(4_000_004_711));
    }
}
