//! Options of TCP sockets that can be set on a duplicate of another process's socket ([`crate::pidfd::Pidfd::get_socket`]) and put
//! back. Values are in the kernel's terms, as they are read: a buffer is as large as the kernel made it.
use std::ffi::CStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::call::check;
use crate::sock_view;

/// SO_BUF_LOCK (Linux 5.14): which buffer sizes were set by the application.
const SO_BUF_LOCK: libc::c_int = 72;
/// SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK.
const SNDBUF_LOCK: libc::c_int = 1;
const RCVBUF_LOCK: libc::c_int = 2;
/// TCP_CA_NAME_MAX (net/tcp.h).
const CONGESTION_MAX: usize = 16;

/// An option that is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// TCP_NODELAY.
    NoDelay,
    /// TCP_QUICKACK. The kernel leaves the mode by itself.
    QuickAck,
    /// TCP_NOTSENT_LOWAT in bytes; 0 is the sysctl's.
    NotSentLowat,
}

impl Number {
    fn name(self) -> libc::c_int {
        match self {
            Number::NoDelay => libc::TCP_NODELAY,
            Number::QuickAck => libc::TCP_QUICKACK,
            Number::NotSentLowat => libc::TCP_NOTSENT_LOWAT,
        }
    }
}

/// A buffer of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// SO_RCVBUF.
    Receive,
    /// SO_SNDBUF.
    Send,
}

/// The limit of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLimit {
    /// Bytes, the kernel's overhead included: twice what setsockopt was given.
    pub bytes: u32,
    /// The application has set it, so the kernel does not tune it.
    pub locked: bool,
}

/// Reads a number.
///
/// # Errors
/// Those of getsockopt(2).
pub fn number(fd: BorrowedFd<'_>, option: Number) -> io::Result<u32> {
    Ok(sock_view::int_option(fd, libc::IPPROTO_TCP, option.name())? as u32)
}

/// Sets a number.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_number(fd: BorrowedFd<'_>, option: Number, value: u32) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, option.name(), &(value as libc::c_int).to_ne_bytes())
}

/// Reads a buffer's limit. Before Linux 5.14 a lock cannot be seen and is taken to be there.
///
/// # Errors
/// Those of getsockopt(2).
pub fn buffer(fd: BorrowedFd<'_>, buffer: Buffer) -> io::Result<BufferLimit> {
    let (name, _, lock) = buffer.names();
    let bytes = sock_view::int_option(fd, libc::SOL_SOCKET, name)? as u32;
    let locks = sock_view::int_option(fd, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(lock);
    Ok(BufferLimit { bytes, locked: locks & lock != 0 })
}

/// Sets a buffer's limit and lock. Above net.core.rmem_max and wmem_max that takes CAP_NET_ADMIN; without it the kernel cuts the
/// limit and reports nothing. An unlocked buffer takes Linux 5.14.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_buffer(fd: BorrowedFd<'_>, buffer: Buffer, limit: BufferLimit) -> io::Result<()> {
    let (name, force, lock) = buffer.names();
    // The kernel doubles what it is given.
    let half = ((limit.bytes / 2) as libc::c_int).to_ne_bytes();
    if set(fd, libc::SOL_SOCKET, force, &half).is_err() {
        set(fd, libc::SOL_SOCKET, name, &half)?;
    }
    if limit.locked { Ok(()) } else { unlock_buffer(fd, lock) }
}

/// Leaves a buffer's limit to the kernel's tuning again, and the limit as it is (Linux 5.14).
fn unlock_buffer(fd: BorrowedFd<'_>, lock: libc::c_int) -> io::Result<()> {
    let locks = sock_view::int_option(fd, libc::SOL_SOCKET, SO_BUF_LOCK)?;
    set(fd, libc::SOL_SOCKET, SO_BUF_LOCK, &(locks & !lock).to_ne_bytes())
}

impl Buffer {
    /// The option, the one without the sysctl's limit, and the lock.
    fn names(self) -> (libc::c_int, libc::c_int, libc::c_int) {
        match self {
            Buffer::Receive => (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, RCVBUF_LOCK),
            Buffer::Send => (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, SNDBUF_LOCK),
        }
    }
}

/// Whether the kernel can take a buffer's lock back.
pub fn can_unlock_buffers(fd: BorrowedFd<'_>) -> bool {
    sock_view::buffer_locks(fd).is_ok()
}

/// Reads the name of the congestion control.
///
/// # Errors
/// Those of getsockopt(2).
pub fn congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    let mut name = [0_u8; CONGESTION_MAX];
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: `name` and `len` are valid for the call, and `len` is the size of `name`.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(rc)?;
    let text = CStr::from_bytes_until_nul(&name).map_or(&name[..], CStr::to_bytes);
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Sets the congestion control. ENOENT where the kernel has none of that name, EPERM where the user may not use it.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_congestion(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes())
}

/// Reads the pacing limit in bytes per second; `u64::MAX` is none.
///
/// # Errors
/// Those of getsockopt(2).
pub fn max_pacing_rate(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut rate = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `rate` and `len` are valid for the call, and `len` is the size of `rate`.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw mut rate).cast(),
            &raw mut len,
        )
    };
    check(rc)?;
    Ok(rate)
}

/// Sets the pacing limit. A socket that was paced once goes on in the kernel's paced mode, with no limit if that is set.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_max_pacing_rate(fd: BorrowedFd<'_>, bytes_per_s: u64) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes_per_s.to_ne_bytes())
}

/// The local port of a connected TCP or UDP socket; None of any other.
pub fn connected_port(fd: BorrowedFd<'_>) -> Option<u16> {
    rustix::net::getpeername(fd).ok()??;
    let local = SocketAddr::try_from(rustix::net::getsockname(fd).ok()?).ok()?;
    Some(local.port())
}

fn set(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes of `value`, which lives across the call.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn connection() -> (TcpListener, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        (listener, stream)
    }

    #[test]
    fn numbers_are_set_and_put_back() {
        let (_listener, stream) = connection();
        for option in [Number::NoDelay, Number::NotSentLowat] {
            let before = number(stream.as_fd(), option).expect("a TCP socket");
            set_number(stream.as_fd(), option, 1).expect("a TCP socket");
            assert_eq!(number(stream.as_fd(), option).expect("a TCP socket"), 1, "{option:?}");
            set_number(stream.as_fd(), option, before).expect("a TCP socket");
            assert_eq!(number(stream.as_fd(), option).expect("a TCP socket"), before, "{option:?}");
        }
    }

    #[test]
    fn a_buffer_is_locked_and_unlocked() {
        let (_listener, stream) = connection();
        if !can_unlock_buffers(stream.as_fd()) {
            return parshall_testkit::skip("unlocking of buffers", "it takes Linux 5.14");
        }
        for kind in [Buffer::Receive, Buffer::Send] {
            let before = buffer(stream.as_fd(), kind).expect("a socket");
            assert!(!before.locked);
            let asked = BufferLimit { bytes: 65_536, locked: true };
            set_buffer(stream.as_fd(), kind, asked).expect("a socket");
            assert_eq!(buffer(stream.as_fd(), kind).expect("a socket"), asked, "{kind:?}");
            set_buffer(stream.as_fd(), kind, before).expect("a socket");
            let after = buffer(stream.as_fd(), kind).expect("a socket");
            // Without CAP_NET_ADMIN the sysctl's limit holds.
            assert!(!after.locked && (after == before || !crate::child::is_root()), "{kind:?}: {after:?}");
        }
    }

    #[test]
    fn a_connection_has_a_port_and_a_listener_none() {
        let (listener, stream) = connection();
        let port = stream.local_addr().expect("bound").port();
        assert_eq!((connected_port(stream.as_fd()), connected_port(listener.as_fd())), (Some(port), None));
        let (unix, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(connected_port(unix.as_fd()), None);
    }

    #[test]
    fn congestion_control_and_pacing() {
        let (_listener, stream) = connection();
        let fd = stream.as_fd();
        // Reno is in every kernel.
        set_congestion(fd, "reno").expect("a TCP socket");
        assert_eq!(congestion(fd).expect("a TCP socket"), "reno");
        let error = set_congestion(fd, "no-such-one").expect_err("no such control");
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert_eq!(max_pacing_rate(fd).expect("a socket"), u64::MAX);
        set_max_pacing_rate(fd, 5_000_000_000).expect("a socket");
        assert_eq!(max_pacing_rate(fd).expect("a socket"), 5_000_000_000);
        set_max_pacing_rate(fd, u64::MAX).expect("a socket");
        assert_eq!(max_pacing_rate(fd).expect("a socket"), u64::MAX);
    }
}
