//! A process held by descriptor: it cannot be confused with a later process of the same number.
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::call::check;

/// A pidfd (Linux 5.3).
#[derive(Debug)]
pub struct Pidfd {
    pid: u32,
    fd: OwnedFd,
}

impl Pidfd {
    /// Opens a process by its id. ESRCH when there is none, EINVAL when it is a thread that leads no process.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers; it returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        owned(fd).map(|fd| Self { pid, fd })
    }

    /// True once the process has ended, reaped or not.
    pub fn exited(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, and a timeout of 0 that does not block.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    /// Sends a signal; ESRCH once the process has ended and was reaped.
    pub fn send(&self, signal: i32) -> io::Result<()> {
        // SAFETY: pidfd_send_signal with no siginfo takes three integers and a null pointer.
        check(unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        })
    }

    /// A duplicate of the socket that the process has as descriptor `fd` (Linux 5.6). Needs PTRACE_MODE_ATTACH rights: EPERM
    /// otherwise. ENOTSOCK when the descriptor is something else.
    ///
    /// Hold it briefly: a socket that its owner closes meanwhile sends its FIN only after the duplicate is closed too.
    pub fn get_socket(&self, fd: RawFd) -> io::Result<OwnedFd> {
        let not_a_socket = || io::Error::from_raw_os_error(libc::ENOTSOCK);
        // Asked first, so that as a rule nothing but a socket is ever duplicated.
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", self.pid))?;
        if !link.to_str().is_some_and(|link| link.starts_with("socket:[")) {
            return Err(not_a_socket());
        }
        // SAFETY: pidfd_getfd takes three integers; it returns a new descriptor (close-on-exec) or -1.
        let copy = owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), fd, 0) })?;
        if is_socket(&copy) {
            return Ok(copy);
        }
        // The process has put something else in its place meanwhile. Closing a file of a FUSE file system waits for its server,
        // which may be the process itself: not here.
        std::thread::Builder::new().name("close".into()).spawn(move || drop(copy))?;
        Err(not_a_socket())
    }
}

/// Whether a descriptor is a socket. Asks the socket layer only, never a file system.
fn is_socket(fd: &OwnedFd) -> bool {
    let mut kind: libc::c_int = 0;
    let mut length = std::mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length are ours and of the size that is told.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &mut length)
    };
    result == 0
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
