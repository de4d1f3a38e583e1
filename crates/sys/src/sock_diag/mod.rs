//! SOCK_DIAG sockets, and [`Plain`], which reads them with a system call per message. Requests and answers are bytes here;
//! `parshall_core::sock_diag` builds and decodes them.
//!
//! A socket keeps showing the network namespace in which it was opened, from whatever thread it is read; [`Opener`] opens
//! them elsewhere. It also keeps that namespace alive.
mod opener;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

pub use opener::Opener;

/// The kernel fills messages of at most 32 KiB, and only up to the largest buffer that was offered so far.
pub const MESSAGE_BYTES: usize = 32 * 1024;

/// How long to wait for a reply. The kernel makes it within the call that sends the request, so a later one was lost.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// An open NETLINK_SOCK_DIAG socket.
#[derive(Debug)]
pub struct DiagSocket(OwnedFd);

impl DiagSocket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: socket() takes three integers; it returns a new descriptor or -1.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        Self::from_fd(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Takes a descriptor that behaves like one: a pair of datagram sockets whose other end plays the kernel.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let wait = libc::timeval { tv_sec: REPLY_TIMEOUT.as_secs() as libc::c_long, tv_usec: 0 };
        // SAFETY: `wait` is valid for the length that is passed, and only read.
        let set = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const wait).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(fd)) }
    }
}

impl AsFd for DiagSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends requests on one socket at a time and reads the replies, into buffers that are reused.
///
/// If a reply is not read to its end, its rest stays in the socket, which must then be dropped.
pub trait Reader {
    /// Reads from this socket from now on. The previous one must have been detached.
    fn attach(&mut self, socket: DiagSocket);

    /// Returns the socket. No request on it is in flight afterwards.
    fn detach(&mut self) -> Option<DiagSocket>;

    /// Sends a request.
    fn ask(&mut self, request: &[u8]) -> io::Result<()>;

    /// Waits for messages and passes them to `take`, one or more. ENOBUFS: the receive buffer was full and the kernel dropped a
    /// part of a reply. TimedOut: no reply.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()>;
}

/// Reads with a system call per message.
#[derive(Debug)]
pub struct Plain {
    socket: Option<DiagSocket>,
    buffer: Vec<u8>,
}

impl Default for Plain {
    fn default() -> Self {
        Self { socket: None, buffer: vec![0; MESSAGE_BYTES] }
    }
}

impl Plain {
    fn fd(&self) -> io::Result<i32> {
        Ok(self.socket.as_ref().ok_or_else(no_socket)?.0.as_raw_fd())
    }
}

impl Reader for Plain {
    fn attach(&mut self, socket: DiagSocket) {
        self.socket = Some(socket);
    }

    fn detach(&mut self) -> Option<DiagSocket> {
        self.socket.take()
    }

    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        let fd = self.fd()?;
        // SAFETY: pointer and length are those of `request`, which outlives the call.
        let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let fd = self.fd()?;
        loop {
            // SAFETY: pointer and length are those of `buffer`, which outlives the call.
            let len = unsafe { libc::recv(fd, self.buffer.as_mut_ptr().cast(), self.buffer.len(), libc::MSG_TRUNC) };
            if let Ok(len) = usize::try_from(len) {
                // MSG_TRUNC: the length of the message, not of what was copied.
                let whole = self.buffer.get(..len).ok_or_else(|| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
                take(whole);
                return Ok(());
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                error => return Err(error),
            }
        }
    }
}

fn no_socket() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "no socket is attached")
}

#[cfg(test)]
mod tests;
