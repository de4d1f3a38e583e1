//! An option of a TCP connection, reached through a duplicate of its descriptor (pidfd_getfd).
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use parshall_host::proc_fs;
use parshall_sys::pidfd::Pidfd;
use parshall_sys::socket_option::{self as option, Buffer, BufferLimit, Number};
use serde::{Deserialize, Serialize};

use super::error::{ended, gone, malformed};

/// The value of a buffer that the kernel tunes, and the suffix of the value that is read from such a buffer.
pub const UNLOCKED: &str = "auto";
/// The same for a buffer that the application has set.
const LOCKED: &str = "locked";

/// How long the descriptors of all processes are searched for a socket that has moved.
const SEARCH_TIME: Duration = Duration::from_secs(10);

/// An option of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// A process that held it when it was found.
    pub pid: u32,
    /// When that process began, in ticks since boot.
    pub start_ticks: u64,
    /// Its descriptor there.
    pub fd: i32,
    /// The socket's inode.
    pub inode: u64,
    /// Its local port.
    pub port: u16,
    /// Whether it listens: connections that it accepts inherit its value.
    pub listening: bool,
    pub setting: SocketSetting,
}

/// Which option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketSetting {
    NoDelay,
    QuickAck,
    NotSentLowat,
    ReceiveBuffer,
    SendBuffer,
    Congestion,
    Pacing,
}

/// The descriptors of sockets that are no longer open where they were found: a child may still hold a socket that its parent has
/// closed. Searches all processes once, when the first socket is missing.
#[derive(Debug, Default)]
pub struct Moved(Option<HashMap<u64, (u32, i32)>>);

impl Moved {
    fn find(&mut self, inode: u64) -> Option<(u32, i32)> {
        let all = || {
            let (begun, own) = (Instant::now(), std::process::id());
            let held = |pid| proc_fs::sockets(pid).into_iter().map(move |(fd, inode)| (inode, (pid, fd)));
            let pids = proc_fs::pids().into_iter().filter(|pid| *pid != own);
            pids.take_while(|_| begun.elapsed() < SEARCH_TIME).flat_map(held).collect()
        };
        self.0.get_or_insert_with(all).get(&inode).copied()
    }
}

/// The key of a socket among all places.
pub fn key(inode: u64) -> String {
    format!("socket {inode}")
}

impl Socket {
    pub fn read(&self, moved: &mut Moved) -> io::Result<String> {
        self.setting.read(self.open(moved)?.as_fd())
    }

    pub fn write(&self, value: &str, moved: &mut Moved) -> io::Result<()> {
        self.setting.write(self.open(moved)?.as_fd(), value)
    }

    /// A duplicate of the descriptor, which the caller closes at once.
    fn open(&self, moved: &mut Moved) -> io::Result<File> {
        let same = proc_fs::stat(self.pid).is_some_and(|stat| stat.start_ticks == self.start_ticks);
        let found = if same { self.duplicate(self.pid, self.fd) } else { Err(gone("the process")) };
        match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (pid, fd) = moved.find(self.inode).ok_or_else(|| gone("the connection"))?;
                self.duplicate(pid, fd)
            }
            found => found,
        }
    }

    /// `NotFound` if the descriptor is another file by now.
    fn duplicate(&self, pid: u32, fd: i32) -> io::Result<File> {
        let copy = Pidfd::open(pid).and_then(|process| process.get_socket(fd)).map_err(|error| {
            let other = error.raw_os_error() == Some(libc::ENOTSOCK);
            if other { gone("the connection") } else { ended(error, "the connection") }
        })?;
        let copy = File::from(copy);
        if copy.metadata()?.ino() == self.inode { Ok(copy) } else { Err(gone("the connection")) }
    }
}

impl SocketSetting {
    /// Whether accepted connections inherit the option and it can be reverted on the listening socket. Pacing of a listener cannot
    /// be reverted, and its congestion control would no longer follow the sysctl.
    pub fn inherited(self) -> bool {
        match self {
            Self::NoDelay | Self::NotSentLowat => true,
            Self::ReceiveBuffer | Self::SendBuffer => {
                UdpSocket::bind("127.0.0.1:0").is_ok_and(|socket| option::can_unlock_buffers(socket.as_fd()))
            }
            Self::QuickAck | Self::Congestion | Self::Pacing => false,
        }
    }

    fn read(self, fd: BorrowedFd<'_>) -> io::Result<String> {
        Ok(match self {
            Self::NoDelay => option::number(fd, Number::NoDelay)?.to_string(),
            Self::QuickAck => option::number(fd, Number::QuickAck)?.to_string(),
            Self::NotSentLowat => option::number(fd, Number::NotSentLowat)?.to_string(),
            Self::ReceiveBuffer => buffer_text(option::buffer(fd, Buffer::Receive)?),
            Self::SendBuffer => buffer_text(option::buffer(fd, Buffer::Send)?),
            Self::Congestion => option::congestion(fd)?,
            Self::Pacing => option::max_pacing_rate(fd)?.to_string(),
        })
    }

    fn write(self, fd: BorrowedFd<'_>, value: &str) -> io::Result<()> {
        let number = || value.parse().map_err(|_| malformed(value));
        match self {
            Self::NoDelay => option::set_number(fd, Number::NoDelay, number()?),
            Self::QuickAck => option::set_number(fd, Number::QuickAck, number()?),
            Self::NotSentLowat => option::set_number(fd, Number::NotSentLowat, number()?),
            Self::ReceiveBuffer => set_buffer(fd, Buffer::Receive, value),
            Self::SendBuffer => set_buffer(fd, Buffer::Send, value),
            Self::Congestion => option::set_congestion(fd, value),
            Self::Pacing => option::set_max_pacing_rate(fd, value.parse().map_err(|_| malformed(value))?),
        }
    }
}

/// Connections of a process that a changed listener has accepted and that are not known yet: they have its new value.
pub fn accepted(listener: &Socket, new: &str, pid: u32, known: &dyn Fn(u64) -> bool) -> Vec<Socket> {
    let Some(stat) = proc_fs::stat(pid) else { return Vec::new() };
    let fresh = proc_fs::sockets(pid).into_iter().filter(|(_, inode)| !known(*inode));
    let found = fresh.filter_map(|(fd, inode)| {
        let socket = Socket { pid, start_ticks: stat.start_ticks, fd, inode, listening: false, ..listener.clone() };
        let copy = socket.duplicate(pid, fd).ok()?;
        let has_it = option::connected_port(copy.as_fd()) == Some(listener.port)
            && socket.setting.read(copy.as_fd()).is_ok_and(|value| value == new);
        has_it.then_some(socket)
    });
    found.collect()
}

/// The value of a buffer that is set to `bytes` as setsockopt(2) takes them.
pub fn locked_buffer(bytes: u32) -> String {
    buffer_text(BufferLimit { bytes: bytes.saturating_mul(2), locked: true })
}

fn buffer_text(limit: BufferLimit) -> String {
    format!("{} {}", limit.bytes, if limit.locked { LOCKED } else { UNLOCKED })
}

fn set_buffer(fd: BorrowedFd<'_>, buffer: Buffer, value: &str) -> io::Result<()> {
    let limit = match value.split_once(' ') {
        None if value == UNLOCKED => BufferLimit { locked: false, ..option::buffer(fd, buffer)? },
        Some((bytes, lock)) if [LOCKED, UNLOCKED].contains(&lock) => {
            BufferLimit { bytes: bytes.parse().map_err(|_| malformed(value))?, locked: lock == LOCKED }
        }
        _ => return Err(malformed(value)),
    };
    option::set_buffer(fd, buffer, limit)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn connection(setting: SocketSetting) -> (TcpListener, TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let pid = std::process::id();
        let inode = File::from(stream.as_fd().try_clone_to_owned().expect("a copy")).metadata().expect("a file").ino();
        let start_ticks = proc_fs::stat(pid).expect("we run").start_ticks;
        let port = stream.local_addr().expect("bound").port();
        let fd = stream.as_raw_fd();
        let socket = Socket { pid, start_ticks, fd, inode, port, listening: false, setting };
        (listener, stream, socket)
    }

    #[test]
    fn a_value_that_was_read_can_be_written_back() {
        use SocketSetting::*;
        for setting in [NoDelay, QuickAck, NotSentLowat, ReceiveBuffer, SendBuffer, Congestion, Pacing] {
            let (_listener, _stream, socket) = connection(setting);
            let before = socket.read(&mut Moved::default()).expect("our own");
            socket.write(&before, &mut Moved::default()).unwrap_or_else(|error| panic!("{setting:?}: {error}"));
            assert_eq!(socket.read(&mut Moved::default()).expect("our own"), before, "{setting:?}");
            if setting != Congestion {
                socket.write("nonsense", &mut Moved::default()).expect_err("no value");
            }
        }
    }

    #[test]
    fn accepted_connections_are_found_by_their_value() {
        let (listener, stream, socket) = connection(SocketSetting::NoDelay);
        let (accepted_one, _) = listener.accept().expect("a connection waits");
        accepted_one.set_nodelay(true).expect("ours");
        let port = listener.local_addr().expect("bound").port();
        let of = Socket { port, listening: true, ..socket };
        let found = accepted(&of, "1", std::process::id(), &|_| false);
        assert_eq!(found.iter().map(|socket| socket.fd).collect::<Vec<_>>(), [accepted_one.as_raw_fd()]);
        assert!(accepted(&of, "0", std::process::id(), &|_| false).is_empty(), "another value is another's");
        assert!(accepted(&of, "1", std::process::id(), &|inode| inode == found[0].inode).is_empty(), "known already");
        drop(stream);
    }

    #[test]
    fn a_closed_connection_and_a_reused_descriptor_are_not_found() {
        let (_listener, stream, socket) = connection(SocketSetting::NoDelay);
        let other = Socket { inode: socket.inode + 1_000_000, ..socket.clone() };
        let error = other.write("1", &mut Moved::default()).expect_err("another socket");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!stream.nodelay().expect("ours"), "the socket that is there now was not touched");
        let later = Socket { start_ticks: socket.start_ticks + 1, ..socket.clone() };
        assert_eq!(later.read(&mut Moved::default()).expect_err("gone").kind(), io::ErrorKind::NotFound);
        drop(stream);
        assert_eq!(socket.read(&mut Moved::default()).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}
