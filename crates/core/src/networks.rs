//! IP networks as people write them.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::text::quote;
use crate::values::ValueError;

/// Reads a network such as `10.0.0.0/8`, a single address, or `all`, which is two networks: every address of both
/// families. A network with host bits set is refused.
pub fn networks(text: &str) -> Result<Vec<IpNet>, ValueError> {
    if text == "all" {
        let every = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        return Ok(every.map(|ip| IpNet::new_assert(ip, 0)).to_vec());
    }
    network(text).map(|network| vec![network])
}

fn network(text: &str) -> Result<IpNet, ValueError> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(ip) = address.parse::<IpAddr>() else {
        return Err(ValueError::new(
            format!("{} is not an address or a network", quote(text)),
            "write it as 10.0.0.0/8, 192.0.2.7, 2001:db8::/32 or all",
        ));
    };
    let network = with_prefix(ip, prefix)?;
    if network.trunc() != network {
        return Err(ValueError::new(
            format!("{} has bits set behind its prefix", quote(text)),
            format!("write {} for the network, or {ip} for the one address", network.trunc()),
        ));
    }
    Ok(network)
}

/// The network of an address and the text of its prefix; without a prefix, of the address alone. Host bits stay set.
pub fn with_prefix(ip: IpAddr, prefix: Option<&str>) -> Result<IpNet, ValueError> {
    let host = IpNet::from(ip);
    let Some(prefix) = prefix else { return Ok(host) };
    prefix.parse().ok().and_then(|length| IpNet::new(ip, length).ok()).ok_or_else(|| {
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let longest = host.max_prefix_len();
        ValueError::new(
            format!("{} is not a network: its prefix is not 0 to {longest}", quote(&format!("{ip}/{prefix}"))),
            format!("an {family} prefix is a number from 0 to {longest}, as in {ip}/{longest}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_with_host_bits_is_refused() {
        assert_eq!(
            networks("10.1.2.3/8").unwrap_err().hint,
            "write 10.0.0.0/8 for the network, or 10.1.2.3 for the one address"
        );
    }
}
