//! Processes by descriptor (pidfd), which cannot be confused with a later process of the same pid.
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};

/// A pidfd (Linux 5.3).
#[derive(Debug)]
pub struct Pidfd {
    pid: u32,
    fd: OwnedFd,
}

impl Pidfd {
    /// Opens a process by its id. ESRCH when there is none, EINVAL when it is a thread that leads no process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Self { pid, fd: pidfd_open(raw, PidfdFlags::empty())? })
    }

    /// True once the process has ended, reaped or not.
    pub fn exited(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    /// Sends a signal; ESRCH once the process has ended and was reaped.
    pub fn send(&self, signal: i32) -> io::Result<()> {
        let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
        Ok(pidfd_send_signal(&self.fd, signal)?)
    }

    /// A duplicate of the socket that the process has as descriptor `fd` (Linux 5.6). Needs PTRACE_MODE_ATTACH rights: EPERM
    /// otherwise. ENOTSOCK when the descriptor is something else.
    ///
    /// Hold it briefly: a socket that its owner closes meanwhile sends its FIN only after the duplicate is closed too.
    pub fn get_socket(&self, fd: RawFd) -> io::Result<OwnedFd> {
        let not_a_socket = || io::Error::from(Errno::NOTSOCK);
        // Checked first, so that as a rule nothing but a socket is duplicated.
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", self.pid))?;
        if !link.to_str().is_some_and(|link| link.starts_with("socket:[")) {
            return Err(not_a_socket());
        }
        let copy = pidfd_getfd(&self.fd, fd, PidfdGetfdFlags::empty())?;
        if is_socket(&copy) {
            return Ok(copy);
        }
        // The process has put something else in its place meanwhile. Closing a file of a FUSE file system waits for its server,
        // which may be the process itself: not here.
        std::thread::Builder::new().name("close".into()).spawn(move || drop(copy))?;
        Err(not_a_socket())
    }
}

/// Whether a descriptor is a socket. The call reaches the socket layer only, never a file system.
fn is_socket(fd: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_type(fd).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    #[test]
    fn notices_the_end_of_a_process() {
        let mut child = Command::new("sleep").arg("30").spawn().expect("sleep runs");
        let pidfd = Pidfd::open(child.id()).expect("the child can be opened");
        assert!(!pidfd.exited());
        pidfd.send(libc::SIGTERM).expect("our own child");
        let status = child.wait().expect("our own child");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
        assert!(pidfd.exited());
        assert_eq!(pidfd.send(libc::SIGTERM).map_err(|e| e.raw_os_error()), Err(Some(libc::ESRCH)));
    }

    #[test]
    fn no_such_process() {
        let error = Pidfd::open(u32::MAX >> 1).expect_err("no pid is that high");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn only_sockets_are_duplicated() {
        let own = Pidfd::open(std::process::id()).expect("we run");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let copy = own.get_socket(socket.as_raw_fd()).expect("a process may trace itself");
        assert!(is_socket(&copy));
        let file = std::fs::File::open("/dev/null").expect("it opens");
        for other in [file.as_raw_fd(), -1] {
            own.get_socket(other).expect_err("no socket");
        }
    }
}
