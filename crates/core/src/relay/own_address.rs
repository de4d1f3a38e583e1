//! Whether a target is the listener itself. Then one connection would open connections without end.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Whether connections to `target` come to the listener that is bound to `listen`. `is_local` says whether an address is one of
/// this host's.
pub fn leads_back(listen: SocketAddr, target: SocketAddr, is_local: impl FnOnce(IpAddr) -> bool) -> bool {
    let listens_at = listen.ip().to_canonical();
    // Connecting to the unspecified address is connecting to the loopback address (ip(7)).
    let to = match target.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    listen.port() == target.port()
        && listens_at.is_ipv4() == to.is_ipv4()
        && (listens_at == to || listens_at.is_unspecified() && is_local(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_every_address_is_at_each_of_the_host() {
        let back = |listen: &str, target: &str| {
            let is_local = |ip: IpAddr| ip.is_loopback() || ip == IpAddr::from([192, 0, 2, 1]);
            leads_back(listen.parse().expect("an address"), target.parse().expect("an address"), is_local)
        };
        for (listen, target, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", true),
            ("0.0.0.0:80", "127.0.0.9:80", true),
            ("0.0.0.0:80", "192.0.2.1:80", true),
            ("0.0.0.0:80", "192.0.2.2:80", false),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "[2001:db8::1]:80", false),
        ] {
            assert_eq!(back(listen, target), expected, "{listen} to {target}");
        }
    }
}
