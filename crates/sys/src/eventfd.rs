//! eventfd: waking a thread that waits in epoll.
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A new one, non-blocking.
pub fn new() -> io::Result<OwnedFd> {
    // SAFETY: eventfd() takes no pointers; the result is checked before it becomes an OwnedFd.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes it readable.
pub fn signal(fd: RawFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the kernel reads eight bytes. A full counter is as readable as a new one, so the result does not matter.
    let _full = unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Makes it unreadable.
pub fn reset(fd: RawFd) {
    let mut count = [0; 8];
    // SAFETY: the kernel writes eight bytes. An empty counter is as unreadable as a reset one.
    let _empty = unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}
