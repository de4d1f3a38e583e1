//! The access rules of a listener, compiled for lookup.
//!
//! The first rule whose network contains the client decides. Without a match the client is admitted, unless there is an allow
//! rule: a list of those who may connect excludes the others. IPv4-mapped IPv6 addresses count as IPv4, in rules and in
//! clients, so that a dual-stack listener decides as an IPv4 one does; `::/0` therefore contains no IPv4 client.
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::config::AccessRule;

/// Rules, flattened into ranges that do not overlap, so that a lookup is a binary search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

/// The first address of each range and whether it is admitted; the first range begins at zero, neighbours differ.
type Ranges<A> = Box<[(A, bool)]>;

/// A rule as the range from its first to its last address.
struct Span<A> {
    first: A,
    last: A,
    allow: bool,
}

impl Access {
    /// Compiles the rules.
    pub fn new(rules: &[AccessRule]) -> Self {
        let by_default = !rules.iter().any(|rule| rule.allow);
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for rule in rules {
            match canonical(rule.network) {
                IpNet::V4(net) => {
                    let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                    v4.push(Span { first, last, allow: rule.allow });
                }
                IpNet::V6(net) => {
                    let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                    v6.push(Span { first, last, allow: rule.allow });
                }
            }
        }
        Self { v4: flatten(&v4, by_default, |a| a.checked_add(1)), v6: flatten(&v6, by_default, |a| a.checked_add(1)) }
    }

    /// Whether this client may connect.
    pub fn admits(&self, client: IpAddr) -> bool {
        match client.to_canonical() {
            IpAddr::V4(ip) => find(&self.v4, Ipv4Addr::to_bits(ip)),
            IpAddr::V6(ip) => find(&self.v6, Ipv6Addr::to_bits(ip)),
        }
    }
}

/// A network of IPv4-mapped addresses (within `::ffff:0:0/96`) becomes an IPv4 network.
fn canonical(network: IpNet) -> IpNet {
    let ip = network.addr().to_canonical();
    if network.addr().is_ipv6() && ip.is_ipv4() && network.prefix_len() >= 96 {
        return IpNet::new_assert(ip, network.prefix_len() - 96);
    }
    network
}

/// Visits the first and last address of all rules in order, and takes for each range between them the earliest rule that
/// contains it: O(n log n) for n rules.
fn flatten<A: Copy + Ord + Default>(spans: &[Span<A>], by_default: bool, after: impl Fn(A) -> Option<A>) -> Ranges<A> {
    // The address where a rule begins or has ended, the rule, and whether it begins.
    let mut borders: Vec<(A, usize, bool)> = Vec::with_capacity(2 * spans.len());
    for (rule, span) in spans.iter().enumerate() {
        borders.push((span.first, rule, true));
        borders.extend(after(span.last).map(|end| (end, rule, false)));
    }
    borders.sort_unstable();
    let mut ranges = vec![(A::default(), by_default)];
    let mut containing = BTreeSet::new();
    let mut borders = borders.into_iter().peekable();
    while let Some((at, rule, begins)) = borders.next() {
        if begins {
            containing.insert(rule)
        } else {
            containing.remove(&rule)
        };
        if borders.peek().is_some_and(|next| next.0 == at) {
            continue;
        }
        let admitted = containing.first().map_or(by_default, |rule| spans[*rule].allow);
        match ranges.last_mut() {
            Some(last) if last.0 == at => last.1 = admitted,
            Some(last) if last.1 == admitted => {}
            _ => ranges.push((at, admitted)),
        }
    }
    ranges.into()
}

fn find<A: Copy + Ord>(ranges: &[(A, bool)], address: A) -> bool {
    let after = ranges.partition_point(|range| range.0 <= address);
    ranges[after.saturating_sub(1)].1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(text: &str) -> AccessRule {
        let (verb, network) = text.split_once(' ').unwrap();
        AccessRule { allow: verb == "allow", network: network.parse().unwrap() }
    }

    fn access(rules: &[&str]) -> Access {
        Access::new(&rules.iter().map(|text| rule(text)).collect::<Vec<_>>())
    }

    fn admits(access: &Access, client: &str) -> bool {
        access.admits(client.parse().unwrap())
    }

    #[test]
    fn the_first_match_decides() {
        let access = access(&["deny 10.1.0.0/16", "allow 10.0.0.0/8", "deny 0.0.0.0/0", "allow 2001:db8::/32"]);
        for (client, expected) in [
            ("10.1.2.3", false),
            ("10.2.0.0", true),
            ("10.0.255.255", true),
            ("11.0.0.0", false),
            ("255.255.255.255", false),
            ("0.0.0.0", false),
            ("::ffff:10.2.0.1", true),
            ("::ffff:10.1.0.1", false),
            ("2001:db8::1", true),
            ("2001:db9::", false),
        ] {
            assert_eq!(admits(&access, client), expected, "{client}");
        }
    }

    #[test]
    fn a_client_without_a_match_is_refused_if_there_is_an_allow_rule() {
        assert!(admits(&access(&[]), "192.0.2.1"));
        assert!(
            admits(&access(&["deny 10.0.0.0/8"]), "192.0.2.1") && !admits(&access(&["deny 10.0.0.0/8"]), "10.0.0.1")
        );
        assert!(!admits(&access(&["allow 10.0.0.0/8"]), "2001:db8::1"));
    }

    #[test]
    fn ipv4_mapped_addresses_count_as_ipv4() {
        let mapped = access(&["deny ::ffff:10.0.0.0/104"]);
        assert!(!admits(&mapped, "10.9.9.9") && !admits(&mapped, "::ffff:10.9.9.9") && admits(&mapped, "11.0.0.1"));
        let all_v6 = access(&["allow ::/0"]);
        assert!(admits(&all_v6, "2001:db8::1") && !admits(&all_v6, "10.0.0.1"));
    }

    /// Rules in a few networks, so that they overlap.
    fn rules() -> impl Strategy<Value = AccessRule> {
        let v4 = (0u32..8, 24u8..=32).prop_map(|(low, prefix)| (IpAddr::from(Ipv4Addr::from_bits(low << 5)), prefix));
        let wide = any::<(u32, u8)>().prop_map(|(ip, p)| (IpAddr::from(Ipv4Addr::from_bits(ip)), p % 33));
        let v6 = any::<(u128, u8)>().prop_map(|(ip, p)| (IpAddr::from(Ipv6Addr::from_bits(ip)), p % 129));
        (any::<bool>(), prop_oneof![4 => v4, 1 => wide, 2 => v6])
            .prop_map(|(allow, (ip, prefix))| AccessRule { allow, network: IpNet::new_assert(ip, prefix) })
    }

    fn holds(rule: &AccessRule, client: IpAddr) -> bool {
        let prefix = rule.network.prefix_len();
        match (rule.network.addr(), client) {
            (IpAddr::V4(n), IpAddr::V4(c)) => {
                (0..u32::from(prefix)).all(|bit| (n.to_bits() ^ c.to_bits()) << bit >> 31 == 0)
            }
            (IpAddr::V6(n), IpAddr::V6(c)) => {
                (0..u32::from(prefix)).all(|bit| (n.to_bits() ^ c.to_bits()) << bit >> 127 == 0)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn it_decides_as_reading_the_list_does(
            list in prop::collection::vec(rules(), 0..12),
            near in prop::collection::vec(0u32..300, 1..40),
            far in any::<(u32, u128)>(),
        ) {
            let access = Access::new(&list);
            let mut clients: Vec<IpAddr> = near.into_iter().map(|low| Ipv4Addr::from_bits(low).into()).collect();
            clients.extend([IpAddr::from(Ipv4Addr::from_bits(far.0)), Ipv6Addr::from_bits(far.1).into()]);
            // The networks themselves are the borders.
            clients.extend(list.iter().map(|rule| rule.network.addr()));
            for client in clients.into_iter().filter(|ip| ip.to_canonical() == *ip) {
                let naive = list.iter().find(|rule| holds(rule, client)).map(|rule| rule.allow);
                let expected = naive.unwrap_or(!list.iter().any(|rule| rule.allow));
                prop_assert_eq!(access.admits(client), expected, "{}", client);
            }
        }
    }
}
