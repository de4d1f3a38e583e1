//! `tcp_info` and the cookie of a TCP socket of this process.
use std::io;
use std::os::fd::RawFd;

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
