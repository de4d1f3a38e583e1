//! Socket options that SOCK_DIAG does not report, read from a descriptor (such as one of [`crate::pidfd::Pidfd::get_socket`]).
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};

/// SO_BUF_LOCK (Linux 5.14): which buffer sizes were set by the application.
const SO_BUF_LOCK: libc::c_int = 72;

pub(crate) fn int_option(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` and `len` are valid, and `len` is the size of `value`.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// TCP_NAGLE_OFF (1) and TCP_NAGLE_CORK (2) of a TCP socket, as in the kernel's `tcp_sock.nonagle`.
pub fn nonagle(fd: BorrowedFd<'_>) -> io::Result<u8> {
    let nodelay = int_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY)? != 0;
    let cork = int_option(fd, libc::IPPROTO_TCP, libc::TCP_CORK)? != 0;
    Ok(u8::from(nodelay) | u8::from(cork) << 1)
}

/// SOCK_SNDBUF_LOCK (1) and SOCK_RCVBUF_LOCK (2): buffers whose size the application fixed.
pub fn buffer_locks(fd: BorrowedFd<'_>) -> io::Result<u8> {
    Ok((int_option(fd, libc::SOL_SOCKET, SO_BUF_LOCK)? & 3) as u8)
}

/// The protocol of the socket behind a path such as /proc/PID/fd/N: `TCP`, `TCPv6`, `UDP`, `UNIX-STREAM`, ... as sockfs names it
/// in the extended attribute `system.sockprotoname`. Does not open the socket and does not affect its owner.
///
/// The file is pinned (O_PATH) and must be a socket before its attributes are read: the owner may meanwhile have replaced the
/// descriptor by a file, whose file system may never answer.
pub fn protocol_name(path: &Path) -> io::Result<String> {
    let pinned = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if device(pinned.as_fd())? != sockfs()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket"));
    }
    let own = format!("/proc/self/fd/{}", pinned.as_raw_fd());
    let mut name = [0_u8; 32];
    let len = rustix::fs::getxattr(own, "system.sockprotoname", &mut name[..])?;
    let text = name.get(..len).unwrap_or(&[]).split(|&byte| byte == 0).next().unwrap_or(&[]);
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// The device number of sockfs, which all sockets of the host share.
fn sockfs() -> io::Result<(u32, u32)> {
    static DEVICE: OnceLock<(u32, u32)> = OnceLock::new();
    if let Some(&known) = DEVICE.get() {
        return Ok(known);
    }
    let found = device(UnixDatagram::unbound()?.as_fd())?;
    Ok(*DEVICE.get_or_init(|| found))
}

/// The device number of a file, without a request to the server of its file system.
fn device(file: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let found = statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn reads_nodelay() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        assert_eq!(nonagle(stream.as_fd()).expect("a TCP socket"), 0);
        stream.set_nodelay(true).expect("a TCP socket");
        assert_eq!(nonagle(stream.as_fd()).expect("a TCP socket"), 1);
    }

    #[test]
    fn names_protocols() {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let path = format!("/proc/self/fd/{}", udp.as_raw_fd());
        assert_eq!(protocol_name(Path::new(&path)).expect("a socket"), "UDP");
        assert!(protocol_name(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn another_kind_of_descriptor_is_an_error() {
        let file = std::fs::File::open("/dev/null").expect("/dev/null opens");
        assert!(nonagle(file.as_fd()).is_err());
    }
}
