//! The network namespace that a socket belongs to, which need not be that of any process.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// ioctl (include/uapi/linux/sockios.h).
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// Opens the network namespace of a socket (Linux 4.10). Needs CAP_NET_ADMIN over that namespace: EPERM otherwise.
pub fn of_socket(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: this request takes no argument; it returns a new descriptor (close-on-exec) or -1.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn an_own_socket_is_in_the_own_namespace() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        match of_socket(socket.as_fd()) {
            Ok(netns) => {
                let own = File::open("/proc/self/ns/net").expect("every process has one").metadata();
                let inode = File::from(netns).metadata().expect("an open file").ino();
                assert_eq!(inode, own.expect("an open file").ino());
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
    }

    #[test]
    fn a_file_is_no_socket() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        assert!(of_socket(file.as_fd()).is_err());
    }
}
