//! UNIX sockets of one network namespace, and which is connected to which, from SOCK_DIAG.
use std::io;

use parshall_core::sock_diag::{Layout, Reading, Table, UnixSocket, decode, tables};
use parshall_evidence::socket::selection::state::LISTEN;
use parshall_evidence::socket::{Groups, Kind, Kinds, Selection, SocketRecord};

use crate::sock_diag_dump::Dumper;

/// An open SOCK_DIAG socket that reads UNIX sockets. It keeps showing the network namespace it was opened in.
#[derive(Debug)]
pub struct UnixDiag(Dumper);

impl UnixDiag {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no SOCK_DIAG, or no descriptor is left.
    pub fn open() -> io::Result<Self> {
        Dumper::open().map(Self)
    }

    /// All UNIX sockets.
    ///
    /// # Errors
    /// The kernel refuses (it has no CONFIG_UNIX_DIAG), or dropped a part of its answer (ENOBUFS).
    pub fn dump(&mut self) -> io::Result<Vec<UnixSocket>> {
        let selection =
            Selection { kinds: Kinds::of([Kind::Unix]), groups: Groups::ALL, states: u32::MAX, ..Selection::default() };
        let reading = Reading { groups: selection.groups, layout: Layout::default() };
        let mut found = Vec::new();
        for asked in tables(&selection) {
            self.0.dump(asked, &selection, &mut |payload| {
                let (mut record, mut name) = (SocketRecord::default(), Vec::new());
                if decode(Table::Unix, payload, &reading, &mut record, &mut name).is_some() {
                    found.push(UnixSocket {
                        inode: u64::from(record.inode),
                        peer_inode: u64::from(record.peer_inode),
                        cookie: record.cookie,
                        listening: record.state == LISTEN,
                        datagram: record.sock_type == SOCK_DGRAM,
                        name,
                    });
                }
            })?;
        }
        Ok(found)
    }
}

/// Socket type of datagrams (net.h).
const SOCK_DGRAM: u16 = 2;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    fn inode(fd: &impl AsRawFd) -> u64 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("ours");
        crate::proc_fs::inode_in(link.to_str().expect("ASCII"), "socket").expect("a socket")
    }

    #[test]
    fn tells_who_is_connected_to_whom() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("listener");
        let listener = UnixListener::bind(&path).expect("a path");
        let client = UnixStream::connect(&path).expect("it listens");
        let (server, _) = listener.accept().expect("a connection waits");
        let (left, right) = UnixDatagram::pair().expect("a pair");
        let all = match UnixDiag::open().and_then(|mut diag| diag.dump()) {
            Ok(all) => all,
            Err(error) => return parshall_testkit::skip("UNIX sockets", &error.to_string()),
        };
        let of = |fd: u64| all.iter().find(|socket| socket.inode == fd).expect("in the dump");
        let bound = path.to_str().expect("UTF-8").as_bytes();
        assert!(of(inode(&listener)).listening && of(inode(&listener)).name == bound);
        let accepted = of(inode(&server));
        assert_eq!((accepted.peer_inode, accepted.listening, &accepted.name[..]), (inode(&client), false, bound));
        assert_eq!((of(inode(&client)).peer_inode, of(inode(&client)).name.len()), (inode(&server), 0));
        assert_eq!((of(inode(&left)).peer_inode, of(inode(&left)).datagram), (inode(&right), true));
        assert_ne!(accepted.cookie, 0);
    }
}
