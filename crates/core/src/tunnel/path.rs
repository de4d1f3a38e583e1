//! The path to a peer's address as far as it is known: its MTU, and the longest GSO batches that it takes.
//!
//! Nothing is probed. The kernel knows the MTU of a path from its own interfaces and routes and from ICMP messages, which it
//! checks. The caller asks it (IP_MTU) when a [`Plan`] says so, and reports GSO batches that were refused. While less is known than is
//! true, the kernel sends datagrams that are too long for the path in fragments, so nothing is lost meanwhile.
use std::net::SocketAddr;

use super::gso_limit::GsoLimit;
use super::load::Rate;
use super::message::DATA_OVERHEAD;
use super::{Ns, SECOND};

/// How old an answer of the kernel may be. Asking costs four system calls.
const ASK_AFTER: Ns = SECOND;

/// A packet of up to this length fits every path of IPv6, and nearly all of IPv4.
const SMALL_PACKET: usize = 1280 - headers_len(true) - DATA_OVERHEAD;

/// The longest IP packet whose length IPv4 can state.
const IP_PACKET_MAX: usize = 65_535;

/// ICMP messages a second, and at once. Packets that are too big are sent in fragments beyond it, so that none of them is dropped
/// without a message.
pub(super) const MESSAGES_PER_S: u32 = 20;
pub(super) const MESSAGE_BURST: u32 = 50;

/// The bytes of the headers of IP and UDP.
const fn headers_len(ipv6: bool) -> usize {
    if ipv6 { 48 } else { 28 }
}

/// How the packets of a frame are sent to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The kernel is to be asked for the MTU of the path first ([`Path::set_mtu`]), and the path for another plan.
    pub ask_mtu: bool,
    /// The longest packet that passes the path in one piece, as far as is known: never more than a datagram holds.
    pub inner_mtu: usize,
    /// The most packets of one GSO batch.
    pub gso_max: usize,
}

/// The path to the current address of a peer. It belongs to a [`Link`](super::Link).
#[derive(Debug)]
pub struct Path {
    to: Option<SocketAddr>,
    /// Of IP packets; `None` if the kernel has not been asked, or has no route.
    mtu: Option<usize>,
    asked: Option<Ns>,
    gso: GsoLimit,
    messages: Rate,
}

impl Default for Path {
    fn default() -> Self {
        let messages = Rate::new(MESSAGES_PER_S, MESSAGE_BURST);
        Self { to: None, mtu: None, asked: None, gso: GsoLimit::default(), messages }
    }
}

impl Path {
    /// How packets of up to `packet_len` bytes are sent to an address. At another address than before, all is forgotten.
    pub fn plan(&mut self, now: Ns, to: SocketAddr, packet_len: usize) -> Plan {
        self.set_address(to);
        let inner_mtu = self.inner_mtu();
        let stale = self.asked.is_none_or(|asked| now.saturating_sub(asked) >= ASK_AFTER);
        let ask_mtu = stale && packet_len > SMALL_PACKET.min(inner_mtu);
        Plan { ask_mtu, inner_mtu, gso_max: self.gso.get(now) }
    }

    /// Takes what the kernel says of the path to an address: the longest IP packet; `None` if it has no route.
    pub fn set_mtu(&mut self, now: Ns, to: SocketAddr, mtu: Option<usize>) {
        self.set_address(to);
        self.mtu = mtu;
        self.asked = Some(now);
    }

    /// A GSO batch of `packets` datagrams of `datagram_len` bytes was refused, after which the kernel was asked for the MTU.
    pub fn gso_failed(&mut self, now: Ns, to: SocketAddr, packets: usize, datagram_len: usize) {
        self.set_address(to);
        // Datagrams that are too long for the path are refused as GSO batches, whatever their number.
        if datagram_len <= self.inner_mtu() + DATA_OVERHEAD {
            self.gso.fault(now, packets);
        }
    }

    /// Whether the sender of a packet may be sent a message now.
    pub fn may_send_message(&mut self, now: Ns) -> bool {
        self.messages.take(now)
    }

    /// The longest IP packet of the path, as far as it is known.
    pub fn mtu(&self) -> Option<usize> {
        self.mtu
    }

    /// The most packets of one GSO batch at this time.
    pub fn gso_max(&mut self, now: Ns) -> usize {
        self.gso.get(now)
    }

    fn inner_mtu(&self) -> usize {
        let ipv6 = self.to.is_some_and(|to| to.is_ipv6());
        let mtu = self.mtu.map_or(IP_PACKET_MAX, |mtu| mtu.min(IP_PACKET_MAX));
        mtu.saturating_sub(headers_len(ipv6) + DATA_OVERHEAD)
    }

    fn set_address(&mut self, to: SocketAddr) {
        if self.to != Some(to) {
            *self = Self {
                to: Some(to),
                messages: std::mem::replace(&mut self.messages, Rate::new(0, 0)),
                ..Self::default()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::GSO_DATAGRAMS_MAX;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_kernel_is_asked_once_a_second_for_long_packets() {
        let (mut path, to) = (Path::default(), address("192.0.2.1:1"));
        assert!(!path.plan(0, to, 1200).ask_mtu);
        assert!(path.plan(0, to, 1201).ask_mtu);
        path.set_mtu(5, to, Some(1280));
        let plan = path.plan(SECOND, to, 1420);
        assert_eq!(plan, Plan { ask_mtu: false, inner_mtu: 1220, gso_max: GSO_DATAGRAMS_MAX });
        assert!(path.plan(SECOND + 5, to, 1420).ask_mtu);
        path.set_mtu(5, to, Some(600));
        assert!(path.plan(2 * SECOND, to, 541).ask_mtu, "packets that are longer than the path takes are long");
        assert!(!path.plan(2 * SECOND, to, 540).ask_mtu);
    }

    #[test]
    fn another_address_is_another_path() {
        let (mut path, to) = (Path::default(), address("192.0.2.1:1"));
        path.set_mtu(0, to, Some(1280));
        path.gso_failed(0, to, 40, 1000);
        assert_eq!(path.gso_max(0), 1);
        assert_eq!(path.plan(0, address("[2001:db8::1]:1"), 100).gso_max, GSO_DATAGRAMS_MAX);
        assert_eq!(path.mtu(), None);
        path.set_mtu(0, address("[2001:db8::1]:1"), Some(1280));
        assert_eq!(path.plan(0, address("[2001:db8::1]:1"), 100).inner_mtu, 1200);
    }

    #[test]
    fn a_gso_batch_that_is_too_long_for_the_path_is_no_fault_of_gso_batches() {
        let (mut path, to) = (Path::default(), address("192.0.2.1:1"));
        path.set_mtu(0, to, Some(1280));
        path.gso_failed(0, to, 40, 1253);
        assert_eq!(path.gso_max(0), GSO_DATAGRAMS_MAX);
        path.gso_failed(0, to, 40, 1252);
        assert_eq!(path.gso_max(0), 1);
    }

    #[test]
    fn messages_are_limited_also_when_a_peer_moves() {
        let mut path = Path::default();
        let sent = (0..1000u16).filter(|port| {
            path.plan(0, (std::net::Ipv4Addr::LOCALHOST, *port).into(), 100);
            path.may_send_message(0)
        });
        assert_eq!(sent.count(), MESSAGE_BURST as usize);
    }
}
