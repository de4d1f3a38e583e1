//! Plain structures and names from bytes that the kernel side wrote. Any bytes are accepted.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::FromBytes;

/// Reads a record from the beginning of `bytes`.
pub(crate) fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// A name in a fixed array (`task_struct.comm`), up to its first zero byte, without blanks at its end.
pub fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned()
}

/// An address in an array of 16 bytes, of which an IPv4 address takes the first four. A mapped address becomes its IPv4 address:
/// the IPv4 connections of a dual-stack listener are the same flows as those of their other end.
pub(crate) fn socket_addr(family: u16, bytes: &[u8; 16], port: u16) -> SocketAddr {
    let ip = if i32::from(family) == libc::AF_INET6 {
        let v6 = Ipv6Addr::from(*bytes);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    } else {
        IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
    };
    SocketAddr::new(ip, port)
}
