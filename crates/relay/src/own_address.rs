//! Finds targets that are the listener itself. [`parshall_core::relay::own_address`] decides; this asks the host.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use parshall_core::relay::own_address;

/// Whether connections to `target` come to the listener that is bound to `listen`.
pub fn leads_back(listen: SocketAddr, target: SocketAddr) -> bool {
    own_address::leads_back(listen, target, is_local)
}

/// Whether an address is one of this host's. A datagram socket that is connected to such an address gets it as its own;
/// nothing is sent. A bind would not do: net.ipv4.ip_nonlocal_bind allows it for any address.
fn is_local(ip: IpAddr) -> bool {
    let own = || {
        let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    // All of 127.0.0.0/8 is local, and 127.0.0.1 is the source for it.
    ip.is_loopback() || own().is_ok_and(|own: SocketAddr| own.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_local_and_those_of_documentation_are_not() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(is_local(ip("127.0.0.1")) && is_local(ip("127.9.9.9")) && is_local(ip("::1")));
        assert!(!is_local(ip("192.0.2.77")) && !is_local(ip("2001:db8::77")));
        assert!(leads_back(SocketAddr::from(([0, 0, 0, 0], 9)), SocketAddr::from(([127, 0, 0, 1], 9))));
    }
}
