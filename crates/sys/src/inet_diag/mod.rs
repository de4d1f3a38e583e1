//! SOCK_DIAG: the kernel's own figures for TCP sockets, without privilege, for one network namespace at a time.
//!
//! [`DiagSocket`] talks; `wire` builds requests and reads answers as pure functions over bytes; [`TcpInfo`] is
//! `struct tcp_info`. Source: uapi/linux/inet_diag.h, net/ipv4/inet_diag.c.
mod tcp_info;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub use tcp_info::TcpInfo;
pub use wire::parse_entry;

/// TCP state numbers (net/tcp_states.h) as bits of [`Query::states`].
pub mod states {
    /// All states in which a connection has a full socket: not TIME_WAIT (6), LISTEN (10), NEW_SYN_RECV (12), CLOSE (7).
    pub const CONNECTED: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
    /// Listening sockets.
    pub const LISTEN: u32 = 1 << 10;
}

/// TCP_LISTEN.
pub const TCP_LISTEN: u8 = 10;

/// Parts of an answer that must be asked for (`INET_DIAG_*`, as bits of `idiag_ext`).
pub mod ext {
    /// [`super::TcpInfo`].
    pub const INFO: u8 = 1 << (2 - 1);
    /// Name of the congestion control.
    pub const CONG: u8 = 1 << (4 - 1);
    /// [`super::SockMem`].
    pub const SKMEMINFO: u8 = 1 << (7 - 1);
}

/// Which sockets a dump is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6, those that talk to IPv4 peers included.
    V6,
    /// Both in one walk of the hash tables.
    Both,
}

/// What to dump. State bit 13 (BOUND_INACTIVE) is never asked for: it makes the kernel walk the bind table too, which took
/// a dump of a small namespace from 18 us to 3–5 ms.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    /// Address families.
    pub family: Family,
    /// TCP states, as bits.
    pub states: u32,
    /// Extensions, see [`ext`].
    pub exts: u8,
    /// Only sockets with this port at either end. The kernel still walks all of them, but copies only these.
    pub port: Option<u16>,
}

/// What names one socket for [`DiagSocket::get`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SockId {
    /// Address family of the socket (AF_INET6 also for v4-mapped addresses).
    pub family: u8,
    /// Its own address, as the kernel holds it.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Bound interface, 0 for none.
    pub interface: u32,
    /// Its cookie.
    pub cookie: u64,
}

/// Memory of a socket (`INET_DIAG_SKMEMINFO`, linux/sock_diag.h), in bytes unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SockMem {
    /// Memory of received data, with overhead.
    pub rmem_alloc: u32,
    /// Limit of the receive buffer.
    pub rcvbuf: u32,
    /// Memory of segments that were handed to the qdisc or device and not yet freed.
    pub wmem_alloc: u32,
    /// Limit of the send buffer.
    pub sndbuf: u32,
    /// Memory of everything in the write and retransmission queues.
    pub wmem_queued: u32,
    /// Packets in the backlog (they arrived while the socket was locked), in bytes.
    pub backlog: u32,
    /// Packets dropped by this socket.
    pub drops: u32,
}

/// Name of a congestion control, at most 15 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CongName(pub [u8; 16]);

impl CongName {
    /// As text; empty when it is no UTF-8.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}

/// One socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What names it.
    pub id: SockId,
    /// TCP state number.
    pub state: u8,
    /// Running timer: 0 none, 1 retransmission, 2 keepalive, 3 TIME_WAIT, 4 zero-window probe.
    pub timer: u8,
    /// Unanswered retransmissions, keepalives or window probes.
    pub retransmits: u8,
    /// Bytes received and unread; for a listener the connections that wait for accept().
    pub rqueue: u32,
    /// Bytes written and not acknowledged; for a listener the limit of its accept queue.
    pub wqueue: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Inode of the descriptor; 0 when no file refers to it (not yet accepted, or closed).
    pub inode: u32,
    /// `struct tcp_info`, if asked for.
    pub info: Option<TcpInfo>,
    /// Memory, if asked for.
    pub mem: Option<SockMem>,
    /// Congestion control, if asked for.
    pub cong: CongName,
}

impl Entry {
    /// Own address, with v4-mapped IPv6 addresses as IPv4.
    pub fn local(&self) -> SocketAddr {
        canonical(self.id.local)
    }

    /// The peer's address, with v4-mapped IPv6 addresses as IPv4.
    pub fn remote(&self) -> SocketAddr {
        canonical(self.id.remote)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// How a dump ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumped {
    /// The tables changed during the walk in a way that may have skipped sockets.
    pub interrupted: bool,
}

/// Largest part of a dump is 32 KiB (`netlink_dump`); a larger buffer lets the kernel use it in full.
const RECEIVE_BYTES: usize = 64 * 1024;

/// Requests sent at once by [`DiagSocket::get`]. Each answer is charged about 2 KiB against the socket's receive buffer
/// (208 KiB by default), and the kernel drops what does not fit.
const GET_BATCH: usize = 32;

/// An open NETLINK_SOCK_DIAG socket. It keeps showing the network namespace it was opened in.
#[derive(Debug)]
pub struct DiagSocket {
    fd: OwnedFd,
    seq: u32,
    request: Vec<u8>,
    buffer: Vec<u8>,
    /// False once the kernel refused the one-walk request for both families.
    both_in_one: bool,
}

impl DiagSocket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        // SAFETY: socket takes three integers; it returns a new descriptor or -1.
        let fd =
            unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The kernel answers within the sendmsg call; the timeout only turns a lost answer into an error.
        let timeout = libc::timeval { tv_sec: 2, tv_usec: 0 };
        // SAFETY: `timeout` is valid for the length that is passed.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const timeout).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            );
        }
        Ok(Self { fd, seq: 0, request: Vec::with_capacity(4096), buffer: vec![0; RECEIVE_BYTES], both_in_one: true })
    }

    /// Appends all sockets that match to `out`.
    pub fn dump(&mut self, query: &Query, out: &mut Vec<Entry>) -> io::Result<Dumped> {
        if query.family == Family::Both {
            let begin = out.len();
            if self.both_in_one {
                match self.dump_one(query, out) {
                    Err(_) => self.both_in_one = false,
                    done => return done,
                }
            }
            out.truncate(begin);
            let v4 = self.dump_one(&Query { family: Family::V4, ..*query }, out)?;
            // A kernel without IPv6 has no handler for it (ENOENT): not an error.
            let v6 = self.dump_one(&Query { family: Family::V6, ..*query }, out).unwrap_or_default();
            return Ok(Dumped { interrupted: v4.interrupted || v6.interrupted });
        }
        self.dump_one(query, out)
    }

    fn dump_one(&mut self, query: &Query, out: &mut Vec<Entry>) -> io::Result<Dumped> {
        self.seq = self.seq.wrapping_add(1);
        self.request.clear();
        wire::push_dump(&mut self.request, self.seq, query);
        self.send()?;
        let mut dumped = Dumped::default();
        loop {
            let len = self.receive()?;
            for message in wire::Messages::new(&self.buffer[..len]) {
                if message.seq != self.seq {
                    continue;
                }
                dumped.interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match message.kind {
                    wire::DONE => return message.errno().map_or(Ok(dumped), |errno| Err(os_error(errno))),
                    wire::ERROR => return Err(os_error(message.errno().unwrap_or(libc::EPROTO))),
                    _ => out.extend(parse_entry(message.payload)),
                }
            }
        }
    }

    /// Looks sockets up one by one, without a walk of the tables: appends one answer for each of `ids`, None when it is gone.
    pub fn get(&mut self, ids: &[SockId], exts: u8, out: &mut Vec<Option<Entry>>) -> io::Result<()> {
        for batch in ids.chunks(GET_BATCH) {
            let first = self.seq.wrapping_add(1);
            self.request.clear();
            for id in batch {
                self.seq = self.seq.wrapping_add(1);
                wire::push_get(&mut self.request, self.seq, id, exts);
            }
            self.send()?;
            let begin = out.len();
            out.resize(begin + batch.len(), None);
            let mut missing = batch.len();
            while missing > 0 {
                let len = self.receive()?;
                for message in wire::Messages::new(&self.buffer[..len]) {
                    let index = message.seq.wrapping_sub(first) as usize;
                    if index >= batch.len() {
                        continue;
                    }
                    missing = missing.saturating_sub(1);
                    if message.kind != wire::ERROR {
                        out[begin + index] = parse_entry(message.payload);
                    }
                }
            }
        }
        Ok(())
    }

    fn send(&self) -> io::Result<()> {
        // SAFETY: the pointer and length describe `request`, which outlives the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), self.request.as_ptr().cast(), self.request.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive(&mut self) -> io::Result<usize> {
        loop {
            // SAFETY: the pointer and length describe `buffer`, which outlives the call.
            let len = unsafe { libc::recv(self.fd.as_raw_fd(), self.buffer.as_mut_ptr().cast(), self.buffer.len(), 0) };
            if len >= 0 {
                return Ok(len as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

fn os_error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

#[cfg(test)]
mod tests;
