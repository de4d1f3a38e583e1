//! Routes as the kernel chooses them for this host's own packets, and notifications that they may have changed.
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::call::check;
use crate::netlink::{Message, Route};

// linux/rtnetlink.h
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_MARK: u16 = 16;
/// `struct rtmsg`.
const RTMSG_LEN: usize = 12;
const RTMSG_TYPE_AT: usize = 7;
const RTN_LOCAL: u8 = 2;

/// The groups of what chooses a route: links, addresses, routes and rules of both families.
const GROUPS: [u32; 7] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV6_RULE,
];

/// The interface by which the routes send a packet of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Egress {
    /// It leaves by the interface with this index.
    Interface(u32),
    /// Its destination is an address of this host.
    Local,
}

/// Looks up how packets leave from `from`, or from the address that the route chooses, with `mark` (0 for none). Fails where there is
/// no route, and where `from` is no address of this host.
pub fn egress(route: &mut Route, to: SocketAddr, from: Option<IpAddr>, mark: u32) -> io::Result<Egress> {
    let octets = |ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (family, bits) = if to.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
    let mut header = [0; RTMSG_LEN];
    header[0] = family as u8;
    header[1] = bits;
    header[2] = if from.is_some() { bits } else { 0 };
    let mut message = Message::new(libc::RTM_GETROUTE, 0, &header).attr(RTA_DST, &octets(to.ip()));
    if let Some(from) = from {
        message = message.attr(RTA_SRC, &octets(from));
    }
    if mark != 0 {
        message = message.attr(RTA_MARK, &mark.to_ne_bytes());
    }
    if let SocketAddr::V6(to) = to
        && to.scope_id() != 0
    {
        message = message.attr(RTA_OIF, &to.scope_id().to_ne_bytes());
    }
    let answers = route.ask(message)?;
    answers.iter().find_map(|answer| read_egress(answer)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Reads a message with a route, without its netlink header.
fn read_egress(mut bytes: &[u8]) -> Option<Egress> {
    if *bytes.get(RTMSG_TYPE_AT)? == RTN_LOCAL {
        return Some(Egress::Local);
    }
    bytes = bytes.get(RTMSG_LEN..)?;
    loop {
        let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        if kind == RTA_OIF {
            return Some(Egress::Interface(u32::from_ne_bytes(*bytes.get(4..len)?.first_chunk()?)));
        }
        bytes = bytes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

/// Notifications of changes in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Changes {
    fd: OwnedFd,
}

impl Changes {
    /// Subscribes. Needs no privileges.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket() takes no pointers; the result is checked before it becomes an OwnedFd.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is open, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The kernel passes notifications over sockets without an address of their own.
        let mut address: libc::sockaddr_nl =
            // SAFETY: all-zero bytes are a sockaddr_nl; with the number 0 the kernel chooses one.
            unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        // SAFETY: the pointer and length are those of `address`, and the kernel copies it.
        check(unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        })?;
        for group in GROUPS {
            // SAFETY: the pointer leads to four bytes, as stated, and the kernel copies them.
            check(unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_NETLINK,
                    libc::NETLINK_ADD_MEMBERSHIP,
                    (&raw const group).cast(),
                    size_of_val(&group) as libc::socklen_t,
                )
            })?;
        }
        Ok(Self { fd })
    }

    /// Discards all notifications that have come. A buffer that has overflowed (ENOBUFS) is a change like others.
    pub fn discard(&self) {
        let mut buf = [0u8; 4096];
        loop {
            // SAFETY: the pointer and length are those of `buf`, which lives across the call.
            let n = unsafe { libc::recv(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
            let again = [libc::ENOBUFS, libc::EINTR].map(Some);
            if n == 0 || n < 0 && !again.contains(&io::Error::last_os_error().raw_os_error()) {
                return;
            }
        }
    }
}

impl AsFd for Changes {
    /// Readable after a change.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_to_this_host_is_local_and_from_a_foreign_address_there_is_none() {
        let mut route = Route::open().expect("a socket");
        let to = "127.0.0.1:1".parse().expect("an address");
        assert_eq!(egress(&mut route, to, None, 0).expect("a route"), Egress::Local);
        assert_eq!(egress(&mut route, to, Some(to.ip()), 7).expect("a route"), Egress::Local);
        let foreign = "198.51.100.7".parse().ok();
        assert!(egress(&mut route, to, foreign, 0).is_err(), "no address of this host");
        assert_eq!(egress(&mut route, to, None, 0).expect("a route"), Egress::Local, "the socket is still in order");
    }

    #[test]
    fn a_route_is_read_by_its_interface() {
        let mut bytes = vec![0; RTMSG_LEN];
        bytes[RTMSG_TYPE_AT] = 1;
        assert_eq!(read_egress(&bytes), None);
        bytes.extend([5, 0, 1, 0, 9, 0, 0, 0]);
        bytes.extend([8, 0, 4, 0, 7, 0, 0, 0]);
        assert_eq!(read_egress(&bytes), Some(Egress::Interface(u32::from_ne_bytes([7, 0, 0, 0]))));
        for len in 0..bytes.len() {
            let _ = read_egress(&bytes[..len]);
        }
        bytes[RTMSG_LEN..RTMSG_LEN + 2].fill(0);
        let _ = read_egress(&bytes);
    }

    #[test]
    fn changes_are_discarded_until_there_are_none() {
        let changes = Changes::open().expect("a socket");
        changes.discard();
        changes.discard();
    }
}
