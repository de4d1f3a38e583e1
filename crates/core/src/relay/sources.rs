//! Limits on each client: open connections, and a rate, by source address.
//!
//! An IPv6 source is its /64, since that is what one customer gets (RFC 6177 and RFC 4291, section 2.5.4); an IPv4 address
//! in its IPv6 form is that IPv4 address. Memory is bounded by a number of sources given at the start. When it is used up:
//!
//! - a connection of a source that has none open is refused. Letting it pass uncounted would switch the limit off for
//!   whoever has enough addresses. With room for as many sources as there may be connections this never happens.
//! - a rate is forgotten for sources whose bucket is full again, which loses nothing. While a few looked at are not, all
//!   sources without an entry share one bucket.
//!
//! Both are counted.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use super::Ns;
use super::bucket::Bucket;

/// What counts as one client.
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
    /// It is counted; [`OpenPerSource::close`] is due when it ends.
    Admitted,
    /// Its source has as many as it may.
    OverLimit,
    /// There are too many sources to count another one.
    NoRoom,
}

/// Open connections of each source.
#[derive(Debug)]
pub struct OpenPerSource {
    open: HashMap<Source, u32>,
    limit: u32,
    max_sources: usize,
    no_room: u64,
}

impl OpenPerSource {
    /// At most `limit` connections of one source, and at most `max_sources` sources at a time.
    pub fn new(limit: u32, max_sources: usize) -> Self {
        Self { open: HashMap::new(), limit, max_sources, no_room: 0 }
    }

    /// A connection wants to open.
    pub fn open(&mut self, ip: IpAddr) -> Admission {
        let sources = self.open.len();
        match self.open.entry(Source::of(ip)) {
            _ if self.limit == 0 => Admission::OverLimit,
            Entry::Occupied(mut entry) if *entry.get() < self.limit => {
                *entry.get_mut() += 1;
                Admission::Admitted
            }
            Entry::Occupied(_) => Admission::OverLimit,
            Entry::Vacant(_) if sources >= self.max_sources => {
                self.no_room += 1;
                Admission::NoRoom
            }
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

    /// A new limit, as after a reload. What is open stays open.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Sources with open connections.
    pub fn sources(&self) -> usize {
        self.open.len()
    }

    /// Connections refused for [`Admission::NoRoom`].
    pub fn no_room(&self) -> u64 {
        self.no_room
    }
}

/// Entries looked at for one that can be forgotten.
const LOOKED_AT: usize = 8;

/// A rate of each source.
#[derive(Debug)]
pub struct RatePerSource {
    slots: HashMap<Source, u32>,
    entries: Vec<(Source, Bucket)>,
    /// Of all sources that found no entry.
    common: Bucket,
    hand: usize,
    rate: u64,
    burst: u64,
    max_sources: usize,
    shared: u64,
}

impl RatePerSource {
    /// At most `rate` a second of one source, `burst` at once, and at most `max_sources` told apart (below 2^32).
    pub fn new(rate: u64, burst: u64, max_sources: usize, now: Ns) -> Self {
        Self {
            slots: HashMap::new(),
            entries: Vec::new(),
            common: Bucket::new(rate, burst, now),
            hand: 0,
            rate,
            burst,
            max_sources: max_sources.min(u32::MAX as usize),
            shared: 0,
        }
    }

    /// Takes `n` for this source, or answers when they will be there.
    pub fn take(&mut self, now: Ns, ip: IpAddr, n: u64) -> Result<(), Ns> {
        let source = Source::of(ip);
        match self.slots.get(&source).copied().or_else(|| self.place(now, source)) {
            Some(slot) => self.entries[slot as usize].1.take(now, n),
            None => {
                self.shared += 1;
                self.common.take(now, n)
            }
        }
    }

    /// An entry for a new source, if one is free or can be forgotten without a difference.
    fn place(&mut self, now: Ns, source: Source) -> Option<u32> {
        let new = (source, Bucket::new(self.rate, self.burst, now));
        let slot = if self.entries.len() < self.max_sources {
            self.entries.push(new);
            self.entries.len() - 1
        } else {
            let slot = self.forgettable(now)?;
            self.slots.remove(&self.entries[slot].0);
            self.entries[slot] = new;
            slot
        };
        self.slots.insert(source, slot as u32);
        Some(slot as u32)
    }

    /// The next entry whose bucket is full, as a new one's would be.
    fn forgettable(&mut self, now: Ns) -> Option<usize> {
        for _ in 0..LOOKED_AT.min(self.entries.len()) {
            let slot = self.hand;
            self.hand = (slot + 1) % self.entries.len();
            if self.entries[slot].1.is_full(now) {
                return Some(slot);
            }
        }
        None
    }

    /// Takes that went to the bucket shared by sources without an entry.
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// Sources told apart now.
    pub fn sources(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Ns = 1_000_000_000;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn nth(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn a_source_is_an_address_or_a_64() {
        assert_eq!(Source::of(ip("2001:db8::1")), Source::of(ip("2001:db8::ffff:0:0:1")));
        assert_ne!(Source::of(ip("2001:db8::1")), Source::of(ip("2001:db8:0:1::1")));
        assert_eq!(Source::of(ip("::ffff:10.0.0.1")), Source::of(ip("10.0.0.1")));
        assert_ne!(Source::of(ip("::1")), Source::of(ip("0.0.0.0")));
    }

    #[test]
    fn a_full_table_refuses_new_sources_only() {
        let mut open = OpenPerSource::new(2, 2);
        assert_eq!((open.open(nth(1)), open.open(nth(2))), (Admission::Admitted, Admission::Admitted));
        assert_eq!((open.open(nth(3)), open.no_room()), (Admission::NoRoom, 1));
        assert_eq!((open.open(nth(1)), open.open(nth(1))), (Admission::Admitted, Admission::OverLimit));
        open.close(nth(2));
        assert_eq!(open.open(nth(3)), Admission::Admitted);
        open.set_limit(0);
        assert_eq!(open.open(nth(3)), Admission::OverLimit);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_list(steps in prop::collection::vec((0u32..6, any::<bool>()), 0..200)) {
            let (limit, max_sources) = (3, 4);
            let mut open = OpenPerSource::new(limit, max_sources);
            let mut model: HashMap<u32, u32> = HashMap::new();
            for (n, opens) in steps {
                let count = model.get(&n).copied().unwrap_or(0);
                if opens {
                    let expected = match count {
                        0 if model.len() == max_sources => Admission::NoRoom,
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

        /// No source ever gets more than its rate, whoever is forgotten in between.
        #[test]
        fn forgetting_gives_nobody_more(steps in prop::collection::vec((0u32..12, 0u64..SECOND / 5), 1..300)) {
            let (rate, burst) = (4, 2);
            let mut rates = RatePerSource::new(rate, burst, 5, 0);
            let (mut now, mut taken) = (0, HashMap::<u32, u64>::new());
            for (n, pause) in steps {
                now += pause;
                if rates.take(now, nth(n), 1).is_ok() {
                    *taken.entry(n).or_default() += 1;
                }
                prop_assert!(rates.sources() <= 5 && rates.slots.len() == rates.entries.len());
            }
            for (n, taken) in taken {
                // Its own bucket, and at worst all of the common one.
                prop_assert!(taken <= 2 * (burst + now * rate / SECOND + 1), "{}: {}", n, taken);
            }
        }
    }

    #[test]
    fn idle_sources_make_room_and_busy_ones_do_not() {
        let mut rates = RatePerSource::new(10, 1, 2, 0);
        assert!(rates.take(0, nth(1), 1).is_ok() && rates.take(0, nth(2), 1).is_ok());
        assert!(rates.take(0, nth(3), 1).is_ok() && rates.take(0, nth(4), 1).is_err());
        assert_eq!(rates.shared(), 2, "both from the common bucket");
        assert_eq!(rates.take(0, nth(1), 1), Err(SECOND / 10));
        assert!(rates.take(SECOND, nth(3), 1).is_ok() && rates.take(SECOND, nth(4), 1).is_ok());
        assert_eq!((rates.shared(), rates.sources()), (2, 2));
    }
}
