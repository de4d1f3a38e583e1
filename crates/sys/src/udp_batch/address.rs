//! Socket addresses in the kernel's format (`sockaddr_in`, `sockaddr_in6`).
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An IPv4 or IPv6 socket address; all zero for no address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    pub(crate) const NONE: Self = {
        // SAFETY: both members are plain integers, for which zero is valid; the larger one covers the whole union.
        unsafe { std::mem::zeroed() }
    };

    pub(crate) fn new(address: &SocketAddr) -> Self {
        let mut name = Self::NONE;
        match address {
            SocketAddr::V4(a) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                }
            }
            SocketAddr::V6(a) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                }
            }
        }
        name
    }

    /// Takes the bytes that the kernel wrote for an address; the others stay zero.
    pub(crate) fn copy_from(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(size_of::<Self>());
        // SAFETY: both are plain bytes of at least this length, and every bit pattern is a valid member.
        unsafe { (&raw mut *self).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    }

    /// The length of the member in use, in bytes.
    pub(crate) fn len(&self) -> libc::socklen_t {
        let len = if self.is_v4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
        len as libc::socklen_t
    }

    fn is_v4(&self) -> bool {
        // SAFETY: the family stands first in both members, and the union is always initialised.
        unsafe { self.v4.sin_family == libc::AF_INET as libc::sa_family_t }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        if self.is_v4() {
            // SAFETY: every bit pattern is a valid sockaddr_in, and the union is always initialised.
            let a = unsafe { self.v4 };
            let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
            return SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(a.sin_port)));
        }
        // SAFETY: every bit pattern is a valid sockaddr_in6, and the union is always initialised.
        let a = unsafe { self.v6 };
        let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
        // The flow label does not identify the peer: a sender may change it with every datagram.
        SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["127.0.0.1:53", "255.1.2.3:65535", "[::1]:1", "[fe80::1%3]:443", "[::ffff:10.0.0.1]:7"] {
            let address: SocketAddr = text.parse().expect("an address");
            let name = Name::new(&address);
            assert_eq!(name.address(), address);
            assert_eq!(name.len(), if address.is_ipv4() { 16 } else { 28 });
        }
    }
}
