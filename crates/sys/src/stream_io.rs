//! Moving bytes between stream sockets: recv, send, and splice through a pipe. All calls are non-blocking.
//!
//! Descriptors are plain numbers here, because the callers keep thousands of them in tables and pass them in batches. A
//! number that is not open gives EBADF.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

fn check(n: isize) -> io::Result<usize> {
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Receives into `buffer`. Returns 0 at the end of data, and `WouldBlock` if no data has arrived.
pub fn recv(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes into the buffer, which lives across the call.
    check(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) })
}

/// As [`recv`], but leaves the data in the socket (MSG_PEEK).
pub fn peek(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: as in `recv`.
    check(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT | libc::MSG_PEEK) })
}

/// Sends from `buffer`, possibly only a part of it. Never raises SIGPIPE: a closed connection gives EPIPE.
pub fn send(fd: RawFd, buffer: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads at most `len` bytes of the buffer, which lives across the call.
    check(unsafe { libc::send(fd, buffer.as_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// A pipe for splicing. Each received segment takes at least one pipe buffer, so the pipe may be full far below its size.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Its capacity in bytes, reached only if all pipe buffers hold whole pages.
    pub size: usize,
}

impl Pipe {
    /// Opens a pipe of `size` bytes. If the user's limit of pipe pages (fs.pipe-user-pages-soft) does not allow it, the size
    /// is halved down to 64 KiB, and finally left at the kernel's default. EMFILE, ENFILE: no descriptors.
    pub fn new(size: usize) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let mut pipe = Self { read, write, size: 0 };
        let mut wanted = size;
        while wanted >= 64 * 1024 && !pipe.resize(wanted) {
            wanted /= 2;
        }
        if pipe.size == 0 {
            pipe.size = fcntl_getpipe_size(&pipe.write)?;
        }
        Ok(pipe)
    }

    fn resize(&mut self, size: usize) -> bool {
        match fcntl_setpipe_size(&self.write, size) {
            Ok(got) => self.size = got,
            Err(_) => return false,
        }
        true
    }

    /// Moves at most `max` bytes from a socket into the pipe; 0 is the end of data. `WouldBlock` means that the socket
    /// has no data or that the pipe is full.
    pub fn fill(&self, from: RawFd, max: usize) -> io::Result<usize> {
        splice(from, self.write.as_raw_fd(), max, 0)
    }

    /// Moves at most `max` bytes out of the pipe into a socket. `more` (SPLICE_F_MORE) announces that more data follows at
    /// once, so that the kernel holds back a short segment. It holds the segment for 200 ms if no data follows.
    pub fn empty(&self, to: RawFd, max: usize, more: bool) -> io::Result<usize> {
        splice(self.read.as_raw_fd(), to, max, if more { libc::SPLICE_F_MORE } else { 0 })
    }

    /// Reads bytes from the pipe into memory.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.read, buffer)?)
    }
}

fn splice(from: RawFd, to: RawFd, max: usize, flags: libc::c_uint) -> io::Result<usize> {
    let flags = flags | libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    // SAFETY: null offsets are what sockets and pipes require; no memory of ours is involved.
    check(unsafe { libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), max, flags) })
}

/// Bytes sent and not yet acknowledged by the peer (for Unix sockets: not yet read).
pub fn unsent(fd: RawFd) -> io::Result<usize> {
    let mut n: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int.
    if unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut n) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(n.max(0) as usize)
}

/// Bytes received and not yet read.
pub fn unread(fd: RawFd) -> io::Result<usize> {
    let mut n: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    if unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(n.max(0) as usize)
}

/// Ends the data in the sending direction: a FIN on TCP.
pub fn shutdown_write(fd: RawFd) -> io::Result<()> {
    // SAFETY: shutdown takes two integers.
    check(unsafe { libc::shutdown(fd, libc::SHUT_WR) } as isize).map(|_| ())
}

/// Makes the next close send a reset instead of a FIN (SO_LINGER of 0).
pub fn reset_on_close(fd: RawFd) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Returns and clears the pending error of a socket (SO_ERROR).
pub fn take_error(fd: RawFd) -> io::Result<()> {
    let mut code: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes one int and its length.
    let ret = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut code).cast(), &raw mut len) };
    match (ret, code) {
        (0, 0) => Ok(()),
        (0, code) => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a TCP connection is closed in both directions, as after a reset, even if its error was already read. False for
/// other sockets.
pub fn is_over(fd: RawFd) -> bool {
    // net/tcp_states.h; the state is the first byte of struct tcp_info.
    const TCP_CLOSE: u8 = 7;
    let mut state: u8 = 0;
    let mut len = size_of::<u8>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is one, and the length.
    let ret = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len) };
    ret == 0 && state == TCP_CLOSE
}

/// Sets an option whose value is an int.
pub fn set_int(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set(fd, level, name, &value)
}

fn set<T: Copy>(fd: RawFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`, which lives across the call.
    check(unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), len) } as isize).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_go_through_a_pipe_and_then_it_would_block() {
        let (a, b) = UnixStream::pair().expect("a pair");
        let (c, mut d) = UnixStream::pair().expect("a pair");
        let pipe = Pipe::new(1 << 20).expect("a pipe");
        assert!(pipe.size >= 4096);
        assert_eq!(pipe.fill(b.as_raw_fd(), 1024).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(send(a.as_raw_fd(), b"hello").expect("room"), 5);
        assert_eq!(unread(b.as_raw_fd()).expect("a socket"), 5);
        assert_eq!(pipe.fill(b.as_raw_fd(), 1024).expect("data"), 5);
        assert_eq!(pipe.empty(c.as_raw_fd(), 5, false).expect("room"), 5);
        let mut got = [0; 5];
        d.read_exact(&mut got).expect("data");
        assert_eq!(&got, b"hello");
        drop(a);
        assert_eq!(pipe.fill(b.as_raw_fd(), 1024).expect("the end"), 0);
    }

    #[test]
    fn a_reset_connection_is_over_even_if_its_error_was_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let client = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (server, _) = listener.accept().expect("a client");
        assert!(!is_over(client.as_raw_fd()) && !is_over(-1));
        reset_on_close(server.as_raw_fd()).expect("a socket");
        drop(server);
        assert!(is_over(client.as_raw_fd()));
        assert_eq!(recv(client.as_raw_fd(), &mut [0]).unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        assert!(is_over(client.as_raw_fd()));
        let (unix, _other) = UnixStream::pair().expect("a pair");
        assert!(!is_over(unix.as_raw_fd()));
    }

    #[test]
    fn a_dead_peer_is_an_error_and_no_signal() {
        let (a, b) = UnixStream::pair().expect("a pair");
        drop(b);
        assert_eq!(send(a.as_raw_fd(), b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(recv(-1, &mut [0]).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
