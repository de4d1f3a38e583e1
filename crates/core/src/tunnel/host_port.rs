//! The endpoint of a peer as it is written: a host and a port.
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::text::quote;
use crate::values::ValueError;

/// An endpoint as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// An address, perhaps with a zone, or a name that the caller resolves.
    pub host: String,
    #[allow(missing_docs)]
    pub port: u16,
}

impl HostPort {
    /// Whether its address may be another one later: it is a name, or the name of an interface is in it.
    pub fn is_name(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

pub(super) fn host_port(text: &str) -> Result<HostPort, ValueError> {
    let invalid = || {
        let what = format!("{} is not an endpoint", quote(text));
        ValueError::new(what, "write it as vpn.example.com:51820, 192.0.2.1:51820 or [2001:db8::1]:51820")
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
    let port = port.parse().map_err(|_| invalid())?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|host| is_ipv6(host)),
        None => Some(host).filter(|host| !host.is_empty() && !host.contains([':', ' ', '[', ']', '/'])),
    };
    Ok(HostPort { host: host.ok_or_else(invalid)?.to_owned(), port })
}

/// An IPv6 address, perhaps with a zone, which is the name or the number of an interface.
fn is_ipv6(host: &str) -> bool {
    let (ip, zone) = host.split_once('%').map_or((host, None), |(ip, zone)| (ip, Some(zone)));
    let is_zone = |zone: &str| !zone.is_empty() && !zone.contains(|c: char| c.is_whitespace() || "[]/%".contains(c));
    ip.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_written_as_it_is_read() {
        for (text, host, is_name) in [
            ("vpn.example.com:1", "vpn.example.com", true),
            ("192.0.2.1:65535", "192.0.2.1", false),
            ("[2001:db8::1]:1", "2001:db8::1", false),
            ("[fe80::1%eth0.7]:1", "fe80::1%eth0.7", true),
            ("[fe80::1%3]:1", "fe80::1%3", true),
        ] {
            let endpoint = host_port(text).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.is_name()), (host, is_name));
            assert_eq!(endpoint.to_string(), text);
        }
        for text in
            ["[fe80::1%]:1", "[fe80::1%a b]:1", "[fe80::1%a%b]:1", "fe80::1%eth0:1", "[192.0.2.1%eth0]:1", "a:b:1"]
        {
            assert!(host_port(text).is_err(), "{text}");
        }
    }
}
