//! State of a TCP socket of this process: `tcp_info`, its cookie, urgent data.
use std::io;
use std::os::fd::RawFd;

use crate::stream_io::set_int;

/// `struct tcp_info` as the kernel wrote it: newer kernels write more of it.
#[derive(Debug)]
pub struct TcpInfo {
    bytes: [u8; 512],
    len: usize,
}

impl std::ops::Deref for TcpInfo {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// TCP_INFO of a socket. The kernel reads all fields under the socket's lock.
pub fn tcp_info(fd: RawFd) -> io::Result<TcpInfo> {
    let mut bytes = [0_u8; 512];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the array, and how many.
    let ret =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len) };
    if ret == 0 { Ok(TcpInfo { bytes, len: len as usize }) } else { Err(io::Error::last_os_error()) }
}

/// The cookie of a socket (SO_COOKIE), which identifies it for its whole life.
pub fn cookie(fd: RawFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes one u64 and its length.
    let ret =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len) };
    if ret == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// linux/sockios.h: whether the next byte to read is the urgent one.
const SIOCATMARK: libc::c_ulong = 0x8905;

/// Whether a TCP socket has been read up to an urgent byte, which then waits in it without being counted as unread.
pub fn at_urgent_mark(fd: RawFd) -> io::Result<bool> {
    let mut at: libc::c_int = 0;
    // SAFETY: SIOCATMARK writes one int.
    if unsafe { libc::ioctl(fd, SIOCATMARK as _, &raw mut at) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(at != 0)
}

/// Makes the kernel report unread data of a socket to pollers as if it had just arrived. Setting SO_RCVLOWAT does that, also to
/// the value that it has (tcp_set_rcvlowat).
pub fn announce_unread(fd: RawFd) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn finds_an_urgent_byte_that_is_not_counted_as_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut a = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
        let (mut b, _) = listener.accept().expect("a connection");
        a.write_all(b"ab").expect("room");
        // SAFETY: one byte that lives as long as the call.
        let sent = unsafe { libc::send(a.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1);
        std::io::Read::read_exact(&mut b, &mut [0; 2]).expect("both");
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !at_urgent_mark(b.as_raw_fd()).expect("TCP") {
            assert!(std::time::Instant::now() < give_up, "it does not arrive");
        }
        assert_eq!(crate::stream_io::unread(b.as_raw_fd()).expect("a socket"), 0);
        assert!(!at_urgent_mark(a.as_raw_fd()).expect("TCP"));
    }
}
