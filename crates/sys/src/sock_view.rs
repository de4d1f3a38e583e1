//! Socket options that SOCK_DIAG does not report, read from a descriptor (such as one of [`crate::pidfd::Pidfd::get_socket`]).
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

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
/// in the extended attribute `system.sockprotoname`. Needs no descriptor of the socket, and disturbs nothing.
pub fn protocol_name(path: &Path) -> io::Result<String> {
    let mut name = [0_u8; 32];
    let len = rustix::fs::getxattr(path, "system.sockprotoname", &mut name[..])?;
    let text = name.get(..len).unwrap_or(&[]).split(|&byte| byte == 0).next().unwrap_or(&[]);
    Ok(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

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
