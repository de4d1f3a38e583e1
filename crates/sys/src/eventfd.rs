//! eventfd: waking a thread that waits in epoll.
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::EventfdFlags;

/// A new, non-blocking eventfd whose counter is 0.
pub fn new() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Makes it readable.
pub fn signal(fd: &impl AsFd) {
    // A full counter is as readable as a new one, so the result does not matter.
    rustix::io::write(fd, &1_u64.to_ne_bytes()).ok();
}

/// Makes it unreadable.
pub fn reset(fd: &impl AsFd) {
    // An empty counter is as unreadable as a reset one.
    rustix::io::read(fd, &mut [0; 8]).ok();
}
