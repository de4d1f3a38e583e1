//! A process held by descriptor: it cannot be confused with a later process of the same number.
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A pidfd (Linux 5.3).
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens a process by its id. ESRCH when there is none, EINVAL when it is a thread that leads no process.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers; it returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        owned(fd).map(Self)
    }

    /// True once the process has ended, reaped or not.
    pub fn exited(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, and a timeout of 0 that does not block.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    /// A duplicate of descriptor `fd` of the process (Linux 5.6). Needs PTRACE_MODE_ATTACH rights: EPERM otherwise.
    ///
    /// Hold it briefly: a socket that its owner closes meanwhile sends its FIN only after the duplicate is closed too.
    pub fn get_fd(&self, fd: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes three integers; it returns a new descriptor (close-on-exec) or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), fd, 0) };
        owned(fd)
    }
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn notices_the_end_of_a_process() {
        let mut child = Command::new("sleep").arg("30").spawn().expect("sleep runs");
        let pidfd = Pidfd::open(child.id()).expect("the child can be opened");
        assert!(!pidfd.exited());
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        assert!(pidfd.exited());
    }

    #[test]
    fn no_such_process() {
        let error = Pidfd::open(u32::MAX >> 1).expect_err("no pid is that high");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
