//! SOCK_DIAG (`sock_diag(7)`) as bytes: requests made from a selection, records read from replies. Pure functions that take any bytes,
//! for every product that reads sockets by netlink; `parshall_sys::sock_diag` sends and receives.
//!
//! Fields that netlink does not report, and that are therefore 0 in every record from here: `address`; `reuse`, `nodelay`;
//! `cgroup_id` of UNIX sockets, TIME_WAIT and embryonic connections; everything but identity and timer of those two;
//! `mark` and details of the upper layer without CAP_NET_ADMIN; `netns`, which the reader knows. `priority` is known
//! only where no class is set.
pub mod bytes;
mod common;
mod filter;
mod inet;
mod message;
mod request;
pub mod tcp_info;
mod unix;

use parshall_evidence::socket::SocketRecord;

pub use common::{Reading, Table};
pub use message::{Message, Messages};
pub use request::{DumpRequest, SocketId, push_dump, push_get, tables};
pub use tcp_info::Layout;

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

#[cfg(test)]
mod tests;
