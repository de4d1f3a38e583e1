//! SOCK_DIAG (`sock_diag(7)`) as bytes: requests made from a selection, records read from replies. Pure functions that take any bytes,
//! for every product that reads sockets by netlink; `parshall_sys::sock_diag` sends and receives.
//!
//! What netlink does not report, and what is therefore 0 in every record from here: `address`; `reuse`, `nodelay`;
//! `cgroup_id` of UNIX sockets, TIME_WAIT and embryonic connections; everything but identity and timer of those two;
//! `mark` and details of the upper layer without CAP_NET_ADMIN; `netns`, which the reader knows. `priority` is known
//! only where no class is set.
pub mod bytes;
mod filter;
mod inet;
mod message;
mod request;
pub mod tcp_info;
mod unix;

use parshall_evidence::socket::{Groups, SocketRecord};

pub use message::{Message, Messages};
pub use request::{DumpRequest, SocketId, push_dump, push_get, tables};
pub use tcp_info::Layout;

use bytes::Bytes;

/// A table of sockets, each dumped by a separate request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Includes listeners.
    Tcp,
    #[allow(missing_docs)]
    Udp,
    #[allow(missing_docs)]
    UdpLite,
    #[allow(missing_docs)]
    Mptcp,
    #[allow(missing_docs)]
    Unix,
}

/// A UNIX socket, and which it is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocket {
    /// Inode of its descriptor; 0 while it waits to be accepted.
    pub inode: u64,
    /// Inode of the socket it is connected to, 0 for none.
    pub peer_inode: u64,
    /// Its cookie.
    pub cookie: u64,
    /// It is a listener.
    pub listening: bool,
    /// It sends datagrams.
    pub datagram: bool,
    /// The path that it is bound to, or a zero byte and the rest of an abstract name; empty when it is not bound. Accepted sockets
    /// have their listener's, and socket pairs none.
    pub name: Vec<u8>,
}

/// How replies are read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Fields that are wanted; the others stay 0.
    pub groups: Groups,
    /// What the kernel's release says of its structures.
    pub layout: Layout,
}

/// Reads one socket of a dump of this table into a record that was all zeros. The name of a UNIX socket is appended to
/// `names`. Returns the length of the `tcp_info` in the message (0 without one), which shows what this kernel's has; `None`
/// when the message is too short to be of a socket. Malformed attributes are skipped.
#[inline]
pub fn decode(
    table: Table,
    payload: &[u8],
    reading: &Reading,
    record: &mut SocketRecord,
    names: &mut Vec<u8>,
) -> Option<usize> {
    match table {
        Table::Unix => unix::decode(payload, reading, record, names).map(|()| 0),
        _ => inet::decode(table, payload, reading, record),
    }
}

/// `SK_MEMINFO_...` (uapi/linux/sock_diag.h), the same for all kinds.
fn memory(value: Bytes<'_>, record: &mut SocketRecord) {
    record.rmem_alloc_bytes = value.u32(0);
    record.rcvbuf_bytes = value.u32(4);
    record.wmem_alloc_bytes = value.u32(8);
    record.sndbuf_bytes = value.u32(12);
    record.fwd_alloc_bytes = value.u32(16);
    record.wmem_queued_bytes = value.u32(20);
    record.optmem_bytes = value.u32(24);
    record.backlog_bytes = value.u32(28);
    record.drops = value.u32(32);
}

#[cfg(test)]
mod tests;
