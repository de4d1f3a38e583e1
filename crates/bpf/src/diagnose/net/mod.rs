//! Decodes what happened to connections, by the process that has them.
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// `struct net_key`: a process; or, where that is not known, the network namespace and port of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct NetKey {
    pub tgid: u32,
    pub netns: u32,
    pub port: u16,
    /// 1: the process, or the one that began to listen, is known to be none of the subject's.
    pub followed: u8,
    pub pad: u8,
}

/// `struct net_value`: sums since the programs were attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct NetValue {
    pub retransmits: u64,
    pub resets_sent: u64,
    pub resets_received: u64,
    pub opened: u64,
    pub closed: u64,
    /// Connections that were accepted at the listener of the key, whoever has them now.
    pub accepted: u64,
    /// Of the resets sent, those on connections that this end had opened; of those received, those on accepted ones.
    pub resets_by_opener: u64,
    pub resets_from_opener: u64,
    /// Segments that would have opened a connection to the port of the key, and that a packet filter dropped.
    pub filtered_syns: u64,
}
