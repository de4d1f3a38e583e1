//! epoll with nanosecond timeouts.
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Data can be read, or the other end closed.
pub const READABLE: u32 = libc::EPOLLIN as u32;
/// The send buffer has space.
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The peer has shut down its sending direction (EPOLLRDHUP).
pub const PEER_CLOSED: u32 = libc::EPOLLRDHUP as u32;
/// The socket has an error (EPOLLERR). Always reported.
pub const FAILED: u32 = libc::EPOLLERR as u32;
/// Both directions are closed (EPOLLHUP). Always reported.
pub const HUNG_UP: u32 = libc::EPOLLHUP as u32;
/// An urgent byte has arrived (EPOLLPRI).
pub const URGENT: u32 = libc::EPOLLPRI as u32;
/// Edge-triggered (EPOLLET): an event is reported once per change.
pub const EDGE: u32 = libc::EPOLLET as u32;

/// An epoll instance. Level-triggered, unless [`EDGE`] is asked for.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

/// A buffer for the events of one wait.
pub struct Events {
    list: Vec<libc::epoll_event>,
    len: usize,
}

impl Events {
    /// Whether the last wait returned no events.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops the events of the last wait.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// `capacity`: events that one wait can return.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { list: vec![libc::epoll_event { events: 0, u64: 0 }; capacity.max(1)], len: 0 }
    }

    /// Tokens and event bits of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.list[..self.len].iter().map(|event| (event.u64, event.events))
    }
}

impl AsRawFd for Epoll {
    /// Readable while there are events.
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Epoll {
    /// A new instance.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches a descriptor until it is closed or removed.
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: u32) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, EventData::new_u64(token), EventFlags::from_bits_retain(interest))?)
    }

    /// Changes what is watched.
    pub fn modify(&self, fd: &impl AsFd, token: u64, interest: u32) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, EventData::new_u64(token), EventFlags::from_bits_retain(interest))?)
    }

    /// Stops watching a descriptor that stays open.
    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits for events, at most `timeout`. An interrupted wait returns no events.
    ///
    /// Does not use rustix, which chooses between epoll_pwait2 and the older call when it is compiled, and waits of less than a
    /// millisecond need the newer one.
    pub fn wait(&self, events: &mut Events, timeout: Duration) -> io::Result<()> {
        let capacity = events.list.len() as libc::c_int;
        let list = events.list.as_mut_ptr();
        let spec = libc::timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        events.len = 0;
        // SAFETY: list points to `capacity` events and spec to a timespec, both alive across the call; a null signal
        // mask means none.
        let mut n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                list,
                capacity,
                &raw const spec,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        if n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            // Before kernel 5.11: milliseconds, rounded up.
            let ms = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as libc::c_int;
            // SAFETY: as above.
            n = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), list, capacity, ms) }.into();
        }
        if n < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        events.len = n as usize;
        Ok(())
    }
}
