//! The scheduling policy of threads (sched_setattr(2)).
use std::io;

use crate::call::check;

/// Asks for the policy of a thread; 0 is the calling one. Of the flags only those that belong to the policy are kept, so that
/// setting the answer again changes nothing else: utilisation clamps have flags of their own.
pub(crate) fn ask(tid: u32) -> io::Result<libc::sched_attr> {
    // SAFETY: sched_attr is plain numbers; zeroes are valid.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes to attr.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size, 0) })?;
    attr.size = size as u32;
    attr.sched_flags &= u64::from(libc::SCHED_FLAG_RESET_ON_FORK as u32);
    Ok(attr)
}

/// Sets the policy of a thread; 0 is the calling one.
pub(crate) fn set(tid: u32, attr: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: attr says its size and lives across the call, which only reads it.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, std::ptr::from_ref(attr), 0) })
}

/// How the calling thread is scheduled, if as most are (SCHED_OTHER): what somebody chose for it stays.
pub(crate) fn ordinary() -> Option<libc::sched_attr> {
    ask(0).ok().filter(|attr| attr.sched_policy == libc::SCHED_OTHER as u32)
}
