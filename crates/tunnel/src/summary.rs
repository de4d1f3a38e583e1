//! The summary of an interface that `tunnel up` has set up, in a few lines.
use std::fmt::Display;

use parshall_core::tunnel::{QuickConfig, QuickPeer, is_default};
use parshall_core::units;

use crate::interface::mtu;

/// Prefixes and peers that are listed; the rest are counted.
const LISTED_MAX: usize = 6;

/// A line each for the interface, its routes, its name servers and each of its peers.
pub fn lines(name: &str, config: &QuickConfig, default_table: Option<u32>) -> Vec<String> {
    let addresses = units::or(&list(&config.addresses), "no addresses");
    let port = config.listen_port.map_or_else(String::new, |port| format!(", UDP port {port}"));
    let mut lines = vec![format!("{name} is up: {addresses}, MTU {}{port}", mtu(config))];
    let routes = config.routes(default_table);
    let prefixes: Vec<_> = routes.iter().map(|route| route.prefix).collect();
    if !prefixes.is_empty() {
        let table = default_table.filter(|_| prefixes.iter().any(is_default));
        let table = table.map_or_else(String::new, |table| format!(" (the default route in table {table})"));
        lines.push(format!("{name} routes: {}{table}", list(&prefixes)));
    }
    if !config.dns.is_empty() {
        lines.push(format!("{name} DNS: not changed; the file asks for {}", config.dns.join(" ")));
    }
    lines.extend(config.peers.iter().take(LISTED_MAX).map(|peer| format!("{name} peer: {}", one(peer))));
    let more = config.peers.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        lines.push(format!("{name} and {}", units::plural(more as u64, "other peer", "other peers")));
    }
    lines
}

fn one(peer: &QuickPeer) -> String {
    let endpoint = peer.endpoint.as_ref().map_or_else(|| "which has to begin".to_owned(), |at| format!("at {at}"));
    format!("{} {endpoint}, allowed {}", peer.public_key, units::or(&list(&peer.allowed_ips), "nothing"))
}

fn list<T: Display>(of: &[T]) -> String {
    let mut words: Vec<String> = of.iter().take(LISTED_MAX).map(T::to_string).collect();
    if of.len() > LISTED_MAX {
        words.push(format!("{} more", units::count((of.len() - LISTED_MAX) as u64)));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use parshall_core::tunnel::parse_quick;

    use super::*;

    #[test]
    fn it_says_what_was_set_up() {
        let key = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
        let text = format!(
            "[Interface]\nAddress = 10.0.0.2/32, fd00::2/128\nListenPort = 51820\nDNS = 10.0.0.1\n\
             [Peer]\nPublicKey = {key}\nEndpoint = 192.0.2.1:51820\nAllowedIPs = 0.0.0.0/0, 10.1.0.0/16\n\
             [Peer]\nPublicKey = TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=\n"
        );
        let config = parse_quick(&text).expect("a right file");
        assert_eq!(
            lines("wg0", &config, Some(51_820)),
            [
                "wg0 is up: 10.0.0.2/32, fd00::2/128, MTU 1420, UDP port 51820".to_owned(),
                "wg0 routes: 0.0.0.0/0, 10.1.0.0/16 (the default route in table 51820)".to_owned(),
                "wg0 DNS: not changed; the file asks for 10.0.0.1".to_owned(),
                format!("wg0 peer: {key} at 192.0.2.1:51820, allowed 0.0.0.0/0, 10.1.0.0/16"),
                "wg0 peer: TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0= which has to begin, allowed nothing".to_owned(),
            ]
        );
        let none = parse_quick("[Interface]\n").expect("a right file");
        assert_eq!(lines("wg0", &none, None), ["wg0 is up: no addresses, MTU 1420"]);
        assert_eq!(list(&[1, 2, 3, 4, 5, 6, 7, 8]), "1, 2, 3, 4, 5, 6, 2 more");
    }
}
