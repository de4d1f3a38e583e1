//! Which network namespace of this host has an address: where a connection ended that has closed, so that no table of sockets shows
//! its other end.
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use parshall_host::bounded_file;

/// Namespaces whose addresses are read.
const NAMESPACES_MAX: usize = 64;
/// Bytes that are read of a table of routes: some 40 for each.
const BYTES_MAX: u64 = 1 << 18;

/// For the other ends of connections, each with the namespace of its own end: the namespace that has the address, where it is another
/// one of this host. `known` has a process for each namespace. An address that several have (two containers of different networks)
/// tells nothing.
pub fn served(
    remotes: impl Iterator<Item = (u64, SocketAddr)>,
    known: &BTreeMap<u64, u32>,
) -> HashMap<(u64, IpAddr), u64> {
    let wanted: Vec<(u64, IpAddr)> =
        remotes.map(|(netns, remote)| (netns, remote.ip())).filter(|(_, ip)| !ip.is_loopback()).collect();
    if wanted.is_empty() || known.len() < 2 {
        return HashMap::new();
    }
    let read = |(&netns, &pid): (&u64, &u32)| (netns, addresses(pid));
    let spaces: Vec<(u64, Vec<IpAddr>)> = known.iter().take(NAMESPACES_MAX).map(read).collect();
    let with = |ip: &IpAddr| spaces.iter().filter(|(_, own)| own.contains(ip)).map(|(netns, _)| *netns).collect();
    let one = |(netns, ip): (u64, IpAddr)| Some(((netns, ip), other_one(netns, with(&ip))?));
    wanted.into_iter().filter_map(one).collect()
}

/// The only namespace of `found`, if that is not `own`.
fn other_one(own: u64, found: Vec<u64>) -> Option<u64> {
    match found.as_slice() {
        [only] if *only != own => Some(*only),
        _ => None,
    }
}

/// The addresses of the namespace in which a process lives.
fn addresses(pid: u32) -> Vec<IpAddr> {
    let mut routes = String::new();
    let file = File::open(format!("/proc/{pid}/net/fib_trie"));
    let read = file.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut routes));
    let v6 = bounded_file::text(format!("/proc/{pid}/net/if_inet6")).unwrap_or_default();
    let v4 = if read.is_ok() { local_routes(&routes) } else { Vec::new() };
    v4.into_iter().map(IpAddr::V4).chain(v6.lines().filter_map(v6_address).map(IpAddr::V6)).collect()
}

/// The leaves of the table whose route is `/32 host LOCAL`.
fn local_routes(table: &str) -> Vec<Ipv4Addr> {
    let (mut leaf, mut found) = (None, Vec::new());
    for line in table.lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(leaf);
        }
    }
    found.dedup();
    found
}

fn v6_address(line: &str) -> Option<Ipv6Addr> {
    let digits = line.split_whitespace().next().filter(|digits| digits.len() == 32)?;
    u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_routes_names_the_own_addresses() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.77.0.2\n        \
                     /32 host LOCAL\n     |-- 10.77.0.255\n        /32 link BROADCAST\n";
        assert_eq!(local_routes(table), [Ipv4Addr::new(10, 77, 0, 2)]);
        assert_eq!(v6_address("00000000000000000000000000000001 01 80 10 80 lo"), Some(Ipv6Addr::LOCALHOST));
        assert_eq!(v6_address("1 2"), None);
        let own = addresses(std::process::id());
        assert!(own.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{own:?}");
    }

    #[test]
    fn an_address_that_several_namespaces_have_tells_nothing() {
        assert_eq!(other_one(1, vec![2]), Some(2));
        assert_eq!(other_one(1, vec![1]), None);
        assert_eq!(other_one(1, vec![2, 3]), None);
        assert_eq!(other_one(1, vec![]), None);
    }
}
