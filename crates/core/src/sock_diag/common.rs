//! Parts that the tables of sockets share: their names, how replies are read, and the memory of a socket.
use parshall_evidence::socket::{Groups, SocketRecord};

use super::bytes::Bytes;
use super::tcp_info::Layout;

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

/// How replies are read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Fields that are wanted; the others stay 0.
    pub groups: Groups,
    /// The layout of structures by the kernel's release.
    pub layout: Layout,
}

/// `SK_MEMINFO_...` (uapi/linux/sock_diag.h), the same for all kinds.
pub(super) fn memory(value: Bytes<'_>, record: &mut SocketRecord) {
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
