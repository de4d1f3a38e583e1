//! Becoming another user for good.
use std::ffi::CString;
use std::io;

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
    // SAFETY: both take nothing and cannot fail.
    unsafe { User { uid: libc::geteuid(), gid: libc::getegid() } }
}

/// CAP_NET_ADMIN, which IP_TRANSPARENT needs.
const NET_ADMIN: u32 = 12;
/// capset(2) with two words of 32 capabilities each.
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
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
        // SAFETY: prctl with PR_SET_KEEPCAPS takes no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
    }
    leave_groups(user.gid)?;
    // SAFETY: setresgid and setresuid take no pointers.
    check(unsafe { libc::setresgid(user.gid, user.gid, user.gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::setresuid(user.uid, user.uid, user.uid) })?;
    if user.uid != 0 {
        // Only the way from uid 0 to another takes capabilities away; those that were given to this user stay.
        set_capabilities(if keep_net_admin { 1 << NET_ADMIN } else { 0 })?;
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
        let groups = groups()?;
        return match groups.iter().find(|group| **group != own) {
            None => Ok(()),
            Some(other) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the process is in group {other} too, and may not leave it"),
            )),
        };
    }
    left
}

/// Supplementary groups of the process.
fn groups() -> io::Result<Vec<libc::gid_t>> {
    // SAFETY: with a length of zero the list is not written.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    check(count)?;
    let mut groups = vec![0; count as usize];
    // SAFETY: the kernel writes at most as many groups as the list is long.
    let count = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
    check(count)?;
    groups.truncate(count as usize);
    Ok(groups)
}

/// From now on no program that this thread or one that it starts becomes gains privileges by its set-user-ID bit or its file
/// capabilities (no_new_privs). Ambient capabilities stay.
pub fn gain_nothing() -> io::Result<()> {
    // SAFETY: prctl with PR_SET_NO_NEW_PRIVS takes no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// Whether the program file gave this process privileges that its user does not have: a set-user-ID bit or file
/// capabilities (AT_SECURE).
pub fn elevated_by_file() -> bool {
    // SAFETY: getauxval takes no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Gives up every capability of the calling thread, and so of those that it starts, for good.
pub fn drop_capabilities() -> io::Result<()> {
    set_capabilities(0)
}

/// Leaves the calling thread these capabilities (a bit each, of the first 32) and no others, ambient ones included.
fn set_capabilities(bits: u32) -> io::Result<()> {
    let header = CapHeader { version: VERSION_3, pid: 0 };
    let low = CapData { effective: bits, permitted: bits, inheritable: bits };
    let data = [low, CapData { effective: 0, permitted: 0, inheritable: 0 }];
    // SAFETY: a header and two words, as this version has them, read by the kernel during the call. Ambient capabilities that
    // are no longer permitted and inheritable go too (cap_capset in security/commoncap.c).
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })?;
    for capability in (0..u32::BITS).filter(|n| bits & 1 << n != 0) {
        // An ambient capability survives execve(), so that a successor has it too. Kernels that refuse lose only that.
        // SAFETY: prctl with PR_CAP_AMBIENT takes no pointers.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0) };
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
