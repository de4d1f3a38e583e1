//! The peer that an address belongs to: a path-compressed binary trie over prefixes; the longest that matches decides.
//!
//! It is read without a lock while another copy is changed ([`Routes`](super::Routes)), so nodes refer to each other by their
//! place in a vector, and a copy is one allocation.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

const NONE: u32 = u32::MAX;

/// Prefixes of both families, each with its value.
#[derive(Debug, Clone)]
pub struct AllowedIps<V> {
    v4: Trie<V>,
    v6: Trie<V>,
}

impl<V> Default for AllowedIps<V> {
    fn default() -> Self {
        Self { v4: Trie::default(), v6: Trie::default() }
    }
}

impl<V> AllowedIps<V> {
    /// Gives a prefix to a value, and returns the one that had it. Host bits are ignored.
    pub fn insert(&mut self, prefix: IpNet, value: V) -> Option<V> {
        let (bits, len) = key(prefix);
        self.trie_mut(prefix.addr()).insert(bits, len, value)
    }

    /// Removes exactly this prefix, and returns its value.
    pub fn remove(&mut self, prefix: IpNet) -> Option<V> {
        let (bits, len) = key(prefix);
        self.trie_mut(prefix.addr()).remove(bits, len)
    }

    /// The value of the longest prefix that the address is in.
    pub fn get(&self, ip: IpAddr) -> Option<&V> {
        match ip {
            IpAddr::V4(ip) => self.get_v4(ip),
            IpAddr::V6(ip) => self.get_v6(ip),
        }
    }

    /// As [`AllowedIps::get`].
    pub fn get_v4(&self, ip: Ipv4Addr) -> Option<&V> {
        self.v4.get(left_aligned(ip))
    }

    /// As [`AllowedIps::get`].
    pub fn get_v6(&self, ip: Ipv6Addr) -> Option<&V> {
        self.v6.get(ip.to_bits())
    }

    /// All prefixes with their values, IPv4 first, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (IpNet, &V)> {
        let v4 =
            self.v4.entries().into_iter().map(|(bits, len, value)| {
                (IpNet::new_assert(Ipv4Addr::from_bits((bits >> 96) as u32).into(), len), value)
            });
        let v6 = self.v6.entries().into_iter();
        v4.chain(v6.map(|(bits, len, value)| (IpNet::new_assert(Ipv6Addr::from_bits(bits).into(), len), value)))
    }

    fn trie_mut(&mut self, family: IpAddr) -> &mut Trie<V> {
        if family.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }
}

fn left_aligned(ip: Ipv4Addr) -> u128 {
    u128::from(ip.to_bits()) << 96
}

fn key(prefix: IpNet) -> (u128, u8) {
    let bits = match prefix.trunc().addr() {
        IpAddr::V4(ip) => left_aligned(ip),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    (bits, prefix.prefix_len())
}

/// The first `len` bits.
fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

/// The bit after the first `len` ones.
fn bit(bits: u128, len: u8) -> usize {
    (bits >> (127 - u32::from(len)) & 1) as usize
}

#[derive(Debug, Clone)]
struct Node<V> {
    /// The prefix, left-aligned.
    bits: u128,
    len: u8,
    /// `None` where the node is only a fork.
    value: Option<V>,
    children: [u32; 2],
}

#[derive(Debug, Clone)]
struct Trie<V> {
    nodes: Vec<Node<V>>,
    /// Places of nodes that were removed. They are used again.
    free: Vec<u32>,
    root: u32,
}

/// A node's place in the tree: the node above it and the child that it is, or `None` for the root.
type Parent = Option<(u32, usize)>;

impl<V> Default for Trie<V> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE }
    }
}

impl<V> Trie<V> {
    fn get(&self, ip: u128) -> Option<&V> {
        let (mut at, mut best) = (self.root, None);
        while let Some(node) = self.nodes.get(at as usize) {
            if (ip ^ node.bits) & mask(node.len) != 0 {
                break;
            }
            best = node.value.as_ref().or(best);
            if node.len == 128 {
                break;
            }
            at = node.children[bit(ip, node.len)];
        }
        best
    }

    fn insert(&mut self, bits: u128, len: u8, value: V) -> Option<V> {
        let mut parent = None;
        let mut at = self.root;
        while let Some(node) = self.nodes.get_mut(at as usize) {
            let shared = (((bits ^ node.bits).leading_zeros() as u8).min(node.len)).min(len);
            if shared == node.len && shared == len {
                return node.value.replace(value);
            }
            if shared < node.len {
                self.fork(parent, at, shared, (bits, len, value));
                return None;
            }
            let side = bit(bits, shared);
            parent = Some((at, side));
            at = node.children[side];
        }
        let leaf = self.push(bits, len, Some(value));
        self.link(parent, leaf);
        None
    }

    /// Finds the node of exactly this prefix: its place, and those of the two nodes above it.
    fn find(&self, bits: u128, len: u8) -> Option<(u32, Parent, Parent)> {
        let (mut at, mut parent, mut grandparent) = (self.root, None, None);
        loop {
            let node = self.nodes.get(at as usize)?;
            if node.len == len {
                return (node.bits == bits).then_some((at, parent, grandparent));
            }
            if node.len > len || (bits ^ node.bits) & mask(node.len) != 0 {
                return None;
            }
            let side = bit(bits, node.len);
            (grandparent, parent) = (parent, Some((at, side)));
            at = node.children[side];
        }
    }

    /// Removes a prefix, and the forks that lead nowhere else then, so that a trie is no larger than its prefixes need.
    fn remove(&mut self, bits: u128, len: u8) -> Option<V> {
        let (at, parent, grandparent) = self.find(bits, len)?;
        let node = &mut self.nodes[at as usize];
        let value = node.value.take()?;
        match node.children {
            [NONE, NONE] => {
                self.link(parent, NONE);
                self.free.push(at);
                if let Some((fork, side)) = parent.filter(|(above, _)| self.nodes[*above as usize].value.is_none()) {
                    self.link(grandparent, self.nodes[fork as usize].children[1 - side]);
                    self.free.push(fork);
                }
            }
            [child, NONE] | [NONE, child] => {
                self.link(parent, child);
                self.free.push(at);
            }
            [_, _] => {}
        }
        Some(value)
    }

    /// Puts a node above `below`, of which it shares the first `shared` bits: the new prefix itself, or a fork to both.
    fn fork(&mut self, parent: Parent, below: u32, shared: u8, (bits, len, value): (u128, u8, V)) {
        let below_side = bit(self.nodes[below as usize].bits, shared);
        let above = if shared == len {
            self.push(bits, len, Some(value))
        } else {
            let leaf = self.push(bits, len, Some(value));
            let fork = self.push(bits & mask(shared), shared, None);
            self.nodes[fork as usize].children[1 - below_side] = leaf;
            fork
        };
        self.nodes[above as usize].children[below_side] = below;
        self.link(parent, above);
    }

    fn push(&mut self, bits: u128, len: u8, value: Option<V>) -> u32 {
        let node = Node { bits, len, value, children: [NONE; 2] };
        if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = node;
            return at;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 prefixes fit into memory")
    }

    fn link(&mut self, parent: Parent, child: u32) {
        match parent {
            Some((at, side)) => self.nodes[at as usize].children[side] = child,
            None => self.root = child,
        }
    }

    fn entries(&self) -> Vec<(u128, u8, &V)> {
        let mut entries: Vec<_> =
            self.nodes.iter().filter_map(|node| Some((node.bits, node.len, node.value.as_ref()?))).collect();
        entries.sort_unstable_by_key(|(bits, len, _)| (*bits, *len));
        entries
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Prefixes of few addresses, so that they overlap often.
    fn prefix() -> impl Strategy<Value = IpNet> {
        let v4 = (any::<u32>(), 0u8..=32).prop_map(|(bits, len)| {
            IpNet::new_assert(Ipv4Addr::from_bits(0x0a00_0000 | bits & 0x8000_0307).into(), len)
        });
        let v6 =
            (any::<u128>(), prop::sample::select(vec![0u8, 1, 63, 64, 65, 126, 127, 128])).prop_map(|(bits, len)| {
                IpNet::new_assert(Ipv6Addr::from_bits(0x2001 << 112 | bits & (3 << 63 | 7)).into(), len)
            });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn it_finds_what_a_list_of_prefixes_finds(
            steps in prop::collection::vec((prefix(), 0u8..5, prop::bool::weighted(0.6)), 0..120),
            asked in prop::collection::vec(prefix(), 1..60),
        ) {
            let mut ips = AllowedIps::default();
            let mut model = BTreeMap::new();
            for (prefix, value, insert) in &steps {
                if *insert {
                    prop_assert_eq!(ips.insert(*prefix, *value), model.insert(prefix.trunc(), *value));
                } else {
                    prop_assert_eq!(ips.remove(*prefix), model.remove(&prefix.trunc()));
                }
            }
            for ip in asked.iter().chain(steps.iter().map(|(prefix, ..)| prefix)).map(IpNet::addr) {
                let expected = model.iter().filter(|(prefix, _)| prefix.contains(&ip)).max_by_key(|(prefix, _)| prefix.prefix_len());
                prop_assert_eq!(ips.get(ip), expected.map(|(_, value)| value), "{}", ip);
            }
            let listed: BTreeMap<_, _> = ips.iter().map(|(prefix, value)| (prefix, *value)).collect();
            prop_assert_eq!(ips.iter().count(), listed.len());
            prop_assert_eq!(&listed, &model);
            // Removed prefixes leave nothing behind: a fork has two children.
            for trie in [&ips.v4, &ips.v6] {
                let used = trie.nodes.len() - trie.free.len();
                let values = trie.nodes.iter().filter(|node| node.value.is_some()).count();
                prop_assert!(used <= (2 * values).saturating_sub(1), "{used} nodes for {values} prefixes");
            }
            for prefix in model.keys() {
                prop_assert!(ips.remove(*prefix).is_some());
            }
            prop_assert_eq!((ips.v4.root, ips.v6.root, ips.iter().count()), (NONE, NONE, 0));
        }
    }
}
