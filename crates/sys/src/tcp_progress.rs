//! How far a TCP socket of ours is: its state and what was written to it, by whomever.
use std::io;
use std::os::fd::RawFd;

use crate::inet_diag::TcpInfo;
use crate::stream_io::set_int;

/// TCP states (net/tcp_states.h) in which the peer has sent its end of data: CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING, TIME_WAIT.
const PEER_HAS_ENDED: [u8; 5] = [7, 8, 9, 11, 6];
/// TCP_CLOSE: nothing more goes either way.
const CLOSED: u8 = 7;

/// A socket at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The peer has sent its end of data, or the socket is dead.
    pub peer_ended: bool,
    /// The socket is dead.
    pub closed: bool,
    /// Bytes written to it since it was opened: sent once, or waiting to be; after our own end of data, one more. Counted
    /// since kernel 4.19.
    pub written: u64,
}

/// TCP_INFO of a socket of ours. The kernel takes all of it under the socket's lock.
pub fn tcp_info(fd: RawFd) -> io::Result<TcpInfo> {
    let mut bytes = [0_u8; 512];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the array, and how many.
    let ret =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len) };
    if ret == 0 { Ok(TcpInfo::parse(&bytes[..len as usize])) } else { Err(io::Error::last_os_error()) }
}

/// Reads it, as of one moment.
pub fn progress(fd: RawFd) -> io::Result<Progress> {
    let info = tcp_info(fd)?;
    Ok(Progress {
        peer_ended: PEER_HAS_ENDED.contains(&info.state),
        closed: info.state == CLOSED,
        written: info.bytes_sent.saturating_sub(info.bytes_retrans) + u64::from(info.notsent_bytes),
    })
}

/// The number by which the kernel knows a socket, the same for its whole life.
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

/// Has the kernel tell of what waits in a socket as if it had just arrived: setting the low-water mark (to what it is)
/// does (tcp_set_rcvlowat).
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
    fn tells_of_an_urgent_byte_that_is_not_counted() {
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

    #[test]
    fn counts_what_is_written_whether_sent_or_not() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut a = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
        let (b, _) = listener.accept().expect("a connection");
        a.set_nonblocking(true).expect("an option");
        let mut written = 0;
        while let Ok(n) = a.write(&[0; 10_000]) {
            written += n as u64;
        }
        let before = progress(a.as_raw_fd()).expect("TCP");
        assert_eq!(before, Progress { peer_ended: false, closed: false, written });
        assert_ne!(cookie(a.as_raw_fd()).expect("a socket"), cookie(b.as_raw_fd()).expect("a socket"));
        drop(b);
        // It had unread bytes, so this was a reset.
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(progress(a.as_raw_fd()).expect("TCP").closed);
    }
}
