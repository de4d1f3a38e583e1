//! A limit on the open connections of each client address.
//!
//! An IPv6 source is its /64, since that is what one customer gets (RFC 6177 and RFC 4291, section 2.5.4). An IPv4-mapped
//! address is that IPv4 address. Memory is bounded by a number of sources. When that many have open connections, a connection
//! of a further source is refused: admitting it uncounted would disable the limit for clients with many addresses. This
//! never happens where the number of sources is at least the limit on open connections.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

/// The addresses that count as one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// An IPv4 address.
    V4(u32),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

impl Source {
    /// The client that has this address.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.to_bits()),
            IpAddr::V6(ip) => Self::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

/// Whether a connection may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The connection is counted; [`OpenPerSource::close`] must be called when it ends.
    Admitted,
    /// Its source is at the limit.
    OverLimit,
    /// The number of sources is at its limit.
    TooManySources,
}

/// Open connections of each source.
#[derive(Debug)]
pub struct OpenPerSource {
    open: HashMap<Source, u32>,
    limit: u32,
    max_sources: usize,
}

impl OpenPerSource {
    /// At most `limit` connections of one source, and at most `max_sources` sources at a time.
    pub fn new(limit: u32, max_sources: usize) -> Self {
        Self { open: HashMap::new(), limit, max_sources }
    }

    /// Counts a connection if its source may open one more.
    pub fn open(&mut self, ip: IpAddr) -> Admission {
        let sources = self.open.len();
        match self.open.entry(Source::of(ip)) {
            _ if self.limit == 0 => Admission::OverLimit,
            Entry::Occupied(mut entry) if *entry.get() < self.limit => {
                *entry.get_mut() += 1;
                Admission::Admitted
            }
            Entry::Occupied(_) => Admission::OverLimit,
            Entry::Vacant(_) if sources >= self.max_sources => Admission::TooManySources,
            Entry::Vacant(entry) => {
                entry.insert(1);
                Admission::Admitted
            }
        }
    }

    /// An admitted connection has ended. A source without connections takes no memory.
    pub fn close(&mut self, ip: IpAddr) {
        if let Entry::Occupied(mut entry) = self.open.entry(Source::of(ip)) {
            match entry.get() {
                0 | 1 => drop(entry.remove()),
                _ => *entry.get_mut() -= 1,
            }
        }
    }

    /// Sources with open connections.
    pub fn sources(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn nth(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_64() {
        assert_eq!(Source::of(ip("2001:db8::1")), Source::of(ip("2001:db8::ffff:0:0:1")));
        assert_ne!(Source::of(ip("2001:db8::1")), Source::of(ip("2001:db8:0:1::1")));
        assert_eq!(Source::of(ip("::ffff:10.0.0.1")), Source::of(ip("10.0.0.1")));
        assert_ne!(Source::of(ip("::1")), Source::of(ip("0.0.0.0")));
    }

    #[test]
    fn a_full_table_refuses_new_sources_only() {
        let mut open = OpenPerSource::new(2, 2);
        assert_eq!((open.open(nth(1)), open.open(nth(2))), (Admission::Admitted, Admission::Admitted));
        assert_eq!(open.open(nth(3)), Admission::TooManySources);
        assert_eq!((open.open(nth(1)), open.open(nth(1))), (Admission::Admitted, Admission::OverLimit));
        open.close(nth(2));
        assert_eq!(open.open(nth(3)), Admission::Admitted);
        assert_eq!(OpenPerSource::new(0, 2).open(nth(1)), Admission::OverLimit);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_plain_map(steps in prop::collection::vec((0u32..6, any::<bool>()), 0..200)) {
            let (limit, max_sources) = (3, 4);
            let mut open = OpenPerSource::new(limit, max_sources);
            let mut model: HashMap<u32, u32> = HashMap::new();
            for (n, opens) in steps {
                let count = model.get(&n).copied().unwrap_or(0);
                if opens {
                    let expected = match count {
                        0 if model.len() == max_sources => Admission::TooManySources,
                        count if count == limit => Admission::OverLimit,
                        _ => Admission::Admitted,
                    };
                    prop_assert_eq!(open.open(nth(n)), expected);
                    if expected == Admission::Admitted {
                        model.insert(n, count + 1);
                    }
                } else if count > 0 {
                    open.close(nth(n));
                    if count == 1 { model.remove(&n); } else { model.insert(n, count - 1); }
                }
                prop_assert_eq!(open.sources(), model.len());
            }
        }
    }
}
