//! Limits of handshakes, so that they do not use up the CPU: when cookies are asked for, and how many initiations a source may send.
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, SocketAddr};

use super::{Ns, SECOND};

/// How long cookies are asked for after the rate was exceeded. Without it every other message of a flood would be worked on.
const UNDER_LOAD: Ns = SECOND;

/// Events that are allowed at a rate, with a burst. Both are kept as one time: when all events so far would have been due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Due(Ns);

impl Due {
    /// Counts an event if `burst` events of `interval` have not been used up.
    fn take(&mut self, now: Ns, interval: Ns, burst: u64) -> bool {
        let due = self.0.max(now);
        if due - now > interval.saturating_mul(burst.saturating_sub(1)) {
            return false;
        }
        self.0 = due.saturating_add(interval);
        true
    }
}

/// A limit on how often something happens.
#[derive(Debug)]
pub(super) struct Rate {
    due: Due,
    per_s: u32,
    burst: u32,
}

impl Rate {
    /// At most `per_s` events a second, and `burst` at once; none if `per_s` is 0.
    pub(super) fn new(per_s: u32, burst: u32) -> Self {
        Self { due: Due::default(), per_s, burst }
    }

    pub(super) fn take(&mut self, now: Ns) -> bool {
        self.per_s > 0 && self.due.take(now, SECOND / Ns::from(self.per_s), self.burst.into())
    }
}

/// Whether handshake messages of one kind come so fast that cookies are asked for.
#[derive(Debug)]
pub(super) struct Load {
    handshakes: Rate,
    until: Option<Ns>,
}

impl Load {
    pub(super) fn new(handshakes: Rate) -> Self {
        Self { handshakes, until: None }
    }

    /// Counts a message that is worked on, or that would be without the limit.
    pub(super) fn count(&mut self, now: Ns) {
        if !self.handshakes.take(now) {
            self.until = Some(now.saturating_add(UNDER_LOAD));
        }
    }

    /// Whether a message first needs a cookie.
    pub(super) fn is_high(&self, now: Ns) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

const PER_SOURCE_INTERVAL: Ns = SECOND / 20;
const PER_SOURCE_BURST: u64 = 5;
const SETS: usize = 2048;
const WAYS: usize = 4;

/// A source: an IPv4 address or the first 64 bits of an IPv6 address, and when its initiations are due.
type Entry = (u64, Due);

/// A limit on the initiations of each source, those whose cookie was right: 20 a second, and 5 at once.
///
/// The table has a fixed size. A source that has not been heard of for a quarter of a second has its whole burst again, so its
/// entry is free. Where all entries for a source are in use, the source is refused.
pub(super) struct Sources {
    hasher: RandomState,
    /// Allocated with the first initiation under load.
    sets: Vec<[Entry; WAYS]>,
}

impl Sources {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), sets: Vec::new() }
    }

    pub(super) fn take(&mut self, now: Ns, from: SocketAddr) -> bool {
        if self.sets.is_empty() {
            self.sets = vec![Default::default(); SETS];
        }
        let source = match from.ip().to_canonical() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // No address of the Internet has its first 32 bits zero, so these are no IPv4 addresses.
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        let set = &mut self.sets[hash(&self.hasher, source) as usize % SETS];
        let entry = match set.iter().position(|(known, due)| *known == source && due.0 > now) {
            Some(at) => &mut set[at],
            None => match set.iter_mut().find(|(_, due)| due.0 <= now) {
                Some(entry) => {
                    *entry = (source, Due::default());
                    entry
                }
                None => return false,
            },
        };
        entry.1.take(now, PER_SOURCE_INTERVAL, PER_SOURCE_BURST)
    }
}

fn hash(hasher: &RandomState, value: impl Hash) -> u64 {
    hasher.hash_one(value)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(n: u32) -> SocketAddr {
        (Ipv4Addr::from_bits(n), 1000).into()
    }

    #[test]
    fn a_source_has_a_burst_and_a_rate() {
        let mut sources = Sources::new();
        assert_eq!((0..100).filter(|_| sources.take(0, source(1))).count(), 5);
        assert!(sources.take(0, source(2)), "others are not affected");
        let taken = (0..10_000).filter(|ms| sources.take(SECOND + ms * 1_000_000, source(1))).count();
        assert!((200..=205).contains(&taken), "{taken} in 10 s");
        let port = SocketAddr::from((Ipv4Addr::from_bits(3), 1));
        let v6 = |low: u128| SocketAddr::from(((0x2001_0db8u128 << 96 | low).to_be_bytes(), 1));
        assert_eq!((0..100).filter(|n| sources.take(0, SocketAddr::new(port.ip(), *n))).count(), 5);
        assert_eq!((0..100).filter(|n| sources.take(0, v6(*n))).count(), 5, "a /64 is one source");
    }

    #[test]
    fn a_full_table_refuses_and_forgets() {
        let mut sources = Sources::new();
        let admitted = (0..100_000).filter(|n| sources.take(0, source(*n))).count();
        assert!(admitted <= SETS * WAYS && admitted > SETS * WAYS / 2, "{admitted}");
        assert!(sources.take(SECOND, source(200_000)));
    }

    #[test]
    fn cookies_are_asked_for_until_a_second_after_the_flood() {
        let counted = |load: &mut Load, now| {
            load.count(now);
            load.is_high(now)
        };
        let mut load = Load::new(Rate::new(100, 10));
        assert_eq!((0..10).filter(|_| counted(&mut load, 0)).count(), 0);
        assert!(counted(&mut load, 0));
        assert!(counted(&mut load, SECOND - 1), "though the rate is kept again");
        assert!(!counted(&mut load, 3 * SECOND));
        assert!(counted(&mut Load::new(Rate::new(0, 10)), 0), "a rate of 0 asks for cookies always");
    }
}
