//! The change of a socket since the last dump: its rates, and whether a field changed.
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parshall_evidence::socket::{FIELDS, Group, SocketRecord, Visitor};

use super::key::mix;
use super::row::{Rates, Seen};

/// Returns a key as its own hash: keys are hashes already.
#[derive(Debug, Default, Clone, Copy)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0, u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// The state that is stored of a socket from one dump to the next.
#[derive(Debug, Clone, Copy)]
struct Last {
    bytes_sent: u64,
    bytes_received: u64,
    digest: u64,
    segs_out: u32,
    segs_in: u32,
    total_retrans: u32,
    dump: u32,
}

/// The change of a socket since the last dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Whether it is new, changed, unchanged or closed.
    pub seen: Seen,
    /// Its traffic since the last dump, if it was in it.
    pub rates: Option<Rates>,
}

/// Stores the counters of the sockets of the last dump, about 70 bytes for each, up to a limit.
#[derive(Debug)]
pub struct Tracker {
    sockets: HashMap<u64, Last, BuildHasherDefault<IdentityHasher>>,
    sockets_max: usize,
    dump: u32,
    at_ns: u64,
    interval_ns: u64,
    untracked: u64,
}

impl Tracker {
    /// Stores at most `sockets_max` sockets. Further ones are [`Seen::Open`] and counted.
    pub fn new(sockets_max: usize) -> Self {
        Self { sockets: HashMap::default(), sockets_max, dump: 0, at_ns: 0, interval_ns: 0, untracked: 0 }
    }

    /// Begins a dump. `now_ns` is a monotonic time.
    pub fn begin(&mut self, now_ns: u64) {
        self.interval_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = now_ns;
        self.dump = self.dump.wrapping_add(1);
    }

    /// Loads the entries of these sockets into the CPU cache. The misses overlap here, and would not in [`Self::observe`].
    pub fn prefetch(&self, keys: &[u64]) {
        let known = keys.iter().filter_map(|key| self.sockets.get(key));
        std::hint::black_box(known.fold(0, |all, last| all ^ last.digest));
    }

    /// Stores a socket of this dump, and compares it with the last one.
    pub fn observe(&mut self, key: u64, record: &SocketRecord) -> Change {
        let now = Last {
            bytes_sent: record.bytes_sent,
            bytes_received: record.bytes_received,
            digest: digest(record),
            segs_out: record.segs_out,
            segs_in: record.segs_in,
            total_retrans: record.total_retrans,
            dump: self.dump,
        };
        if let Some(last) = self.sockets.get_mut(&key) {
            let before = std::mem::replace(last, now);
            let seen = if before.digest == now.digest { Seen::Same } else { Seen::Changed };
            return Change { seen, rates: rates_over(&before, &now, self.interval_ns) };
        }
        if self.sockets.len() >= self.sockets_max {
            self.untracked += 1;
            return Change { seen: Seen::Open, rates: None };
        }
        self.sockets.insert(key, now);
        // The first dump has no other to compare with.
        Change { seen: if self.dump == 1 { Seen::Open } else { Seen::New }, rates: None }
    }

    /// Removes a socket that has closed. `record` has its final counters.
    pub fn close(&mut self, key: u64, record: &SocketRecord, now_ns: u64) -> Change {
        let rates = self.sockets.remove(&key).and_then(|before| {
            let last = Last {
                bytes_sent: record.bytes_sent,
                bytes_received: record.bytes_received,
                segs_out: record.segs_out,
                segs_in: record.segs_in,
                total_retrans: record.total_retrans,
                ..before
            };
            rates_over(&before, &last, now_ns.saturating_sub(self.at_ns))
        });
        Change { seen: Seen::Closed, rates }
    }

    /// Ends the dump, and removes the sockets that were not in it.
    pub fn end(&mut self) {
        let dump = self.dump;
        self.sockets.retain(|_, last| last.dump == dump);
        // The memory of many sockets that closed is freed.
        if self.sockets.capacity() > 4 * self.sockets.len().max(1024) {
            self.sockets.shrink_to(self.sockets.len() * 2);
        }
    }

    /// The number of stored sockets.
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Whether no socket is stored.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Sockets beyond the limit, over all dumps.
    pub fn untracked(&self) -> u64 {
        self.untracked
    }
}

fn rates_over(before: &Last, now: &Last, interval_ns: u64) -> Option<Rates> {
    let interval_us = interval_ns / 1000;
    if interval_us == 0 {
        return None;
    }
    let per_s = |moved: u64| match moved {
        // Most sockets moved nothing, and the division is the most expensive instruction here.
        0 => 0,
        _ => (u128::from(moved) * 1_000_000 / u128::from(interval_us)) as u64,
    };
    // Counters of 32 bits wrap, and so does their difference.
    let segs = |a: u32, b: u32| u64::from(b.wrapping_sub(a));
    Some(Rates {
        interval_us,
        sent_bytes_per_s: per_s(now.bytes_sent.saturating_sub(before.bytes_sent)),
        received_bytes_per_s: per_s(now.bytes_received.saturating_sub(before.bytes_received)),
        segs_out_per_s: per_s(segs(before.segs_out, now.segs_out)),
        segs_in_per_s: per_s(segs(before.segs_in, now.segs_in)),
        retrans: segs(before.total_retrans, now.total_retrans),
    })
}

/// The fields that are no change of the socket, one bit for each number: ages and timers, which change with time, and the
/// cookie, which appears when a program asks for it. Computed by the compiler, so that a digest does not look up fields.
const VOLATILE: [u64; 4] = {
    const COOKIE: u32 = 2;
    const NAME_AT: u32 = 114;
    let mut set = [0; 4];
    let mut at = 0;
    while at < FIELDS.len() {
        let field = &FIELDS[at];
        let is_time = matches!(field.group, Group::Times | Group::Timer);
        if is_time || field.number == COOKIE || field.number == NAME_AT {
            set[field.number as usize / 64] |= 1 << (field.number % 64);
        }
        at += 1;
    }
    set
};

/// Four independent hashes, because each step of one hash depends on the step before.
struct Digest([u64; 4]);

impl Visitor for Digest {
    #[inline(always)]
    fn uint(&mut self, number: u32, _: &'static str, value: u64) {
        if VOLATILE[number as usize / 64] & 1 << (number % 64) == 0 {
            let hash = &mut self.0[number as usize % 4];
            *hash = mix(*hash ^ u64::from(number), value);
        }
    }

    // Addresses cannot change, because they are part of the key. The name of the congestion control can.
    #[inline(always)]
    fn bytes(&mut self, _: u32, _: &'static str, value: &[u8; 16]) {
        self.0[0] = mix(self.0[0], u64::from_ne_bytes(value[..8].try_into().unwrap_or_default()));
    }
}

fn digest(record: &SocketRecord) -> u64 {
    let mut digest = Digest([1; 4]);
    record.visit(&mut digest);
    digest.0.into_iter().fold(1, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn record() -> SocketRecord {
        SocketRecord {
            family: 2,
            protocol: 6,
            bytes_sent: 1000,
            segs_out: u32::MAX,
            last_data_sent_ms: 5,
            ..Default::default()
        }
    }

    #[test]
    fn a_socket_is_open_then_same_then_changed_then_closed() {
        let mut tracker = Tracker::new(10);
        tracker.begin(S);
        assert_eq!(tracker.observe(1, &record()), Change { seen: Seen::Open, rates: None });
        tracker.end();
        tracker.begin(3 * S);
        let later = SocketRecord { last_data_sent_ms: 2005, cookie: 9, ..record() };
        let change = tracker.observe(1, &later);
        assert_eq!(change.seen, Seen::Same);
        assert_eq!(change.rates, Some(Rates { interval_us: 2_000_000, ..Rates::default() }));
        assert_eq!(tracker.observe(2, &record()).seen, Seen::New);
        tracker.end();
        tracker.begin(5 * S);
        let busy = SocketRecord { bytes_sent: 5000, segs_out: 3, ..record() };
        let change = tracker.observe(1, &busy);
        let rates = change.rates.unwrap();
        assert_eq!((change.seen, rates.sent_bytes_per_s, rates.segs_out_per_s), (Seen::Changed, 2000, 2));
        tracker.end();
        assert_eq!(tracker.len(), 1, "the second socket was not in this dump");
        let last = tracker.close(1, &SocketRecord { bytes_sent: 6000, ..busy }, 6 * S);
        assert_eq!((last.seen, last.rates.unwrap().sent_bytes_per_s), (Seen::Closed, 1000));
        assert!(tracker.is_empty());
    }

    #[test]
    fn sockets_beyond_the_limit_are_counted() {
        let mut tracker = Tracker::new(1);
        tracker.begin(S);
        tracker.observe(1, &record());
        assert_eq!(tracker.observe(2, &record()).seen, Seen::Open);
        assert_eq!((tracker.len(), tracker.untracked()), (1, 1));
    }

    #[test]
    fn every_field_but_the_volatile_ones_changes_the_digest() {
        let base = record();
        let mut seen = std::collections::BTreeSet::from([digest(&base)]);
        for (at, change) in [
            SocketRecord { rtt_us: 1, ..base },
            SocketRecord { snd_cwnd: 1, ..base },
            SocketRecord { rtt_us: 1, snd_cwnd: 1, ..base },
            SocketRecord { inode: 1, ..base },
            SocketRecord { interface: 1, ..base },
            SocketRecord { congestion: [1; 16], ..base },
            SocketRecord { state: 1, ..base },
        ]
        .iter()
        .enumerate()
        {
            assert!(seen.insert(digest(change)), "change {at}");
        }
        for same in [SocketRecord { cookie: 1, ..base }, SocketRecord { timer_ms: 1, last_ack_recv_ms: 1, ..base }] {
            assert_eq!(digest(&same), digest(&base));
        }
    }

    #[test]
    fn every_number_fits_the_set() {
        assert!(FIELDS.iter().all(|f| (f.number as usize) < 64 * VOLATILE.len()));
        assert!(FIELDS.iter().any(|f| f.name == "cookie" && f.number == 2));
        assert!(FIELDS.iter().any(|f| f.name == "name_at" && f.number == 114));
    }
}
