//! Decodes the datagrams that the UDP probe reports.
use std::net::SocketAddr;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::bytes::socket_addr;
use crate::diagnose::timeline::CallWire;

/// `struct udp_call_rec`: a datagram was received or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct UdpCallWire {
    pub call: CallWire,
    pub saddr: [u8; 16],
    pub daddr: [u8; 16],
    pub sport: u16,
    /// 0 if the socket is not connected.
    pub dport: u16,
    pub family: u16,
    /// Not 0 if bind() was called with a port.
    pub bound: u8,
    pub pad: u8,
    pub netns: u32,
    pub pad2: u32,
}

impl UdpCallWire {
    /// The local address, and the remote address of a connected socket.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (socket_addr(self.family, &self.saddr, self.sport), socket_addr(self.family, &self.daddr, self.dport))
    }
}
