//! Aggregates rows into the series that Prometheus and OTLP get: counts by state, levels, counters and distributions, by
//! configurable labels, with a hard limit of series.
//!
//! - **Counters never decrease.** A series gets what each of its sockets added since the last dump, and keeps the sum when the
//!   socket closes. Counts from before the first dump are not included.
//! - **The limit.** While there are free slots, the label values with the most sockets get a series. All other rows go to one
//!   series whose labels are all `other`. A series keeps its slot until it has had no socket for [`Settings::idle_dumps`] dumps
//!   and another one needs the slot.
//! - **Complete dumps.** A socket that is missing counts as closed, so dumps must have all sockets and not only changed ones.
//!   The row of a closed socket must be its last row.
mod labels;
mod measures;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parshall_evidence::socket::{Completeness, SocketRecord};

use labels::Values;
pub use labels::{Label, Labels};
use measures::{CLOSED, Last, OPENED, PER_SOCKET};
pub use measures::{COUNTERS, Counter, DISTRIBUTIONS, Distribution, LEVELS, Level, groups};

use super::{Row, Seen};
use parshall_evidence::socket::Kind;
use parshall_evidence::socket::selection::state::{FIN_WAIT2, NEW_SYN_RECV, TIME_WAIT};

/// The label value of rows that have no series of their own.
pub const OTHER: &str = "other";
/// Sockets are counted by the number of their state. Index 0 is `unconnected`, also for numbers that are not states.
pub const STATES: usize = 14;

/// The labels and limits of the aggregates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The labels by which sockets are aggregated.
    pub labels: Labels,
    /// The maximum number of series, without `other`.
    pub series_max: usize,
    /// The maximum number of sockets whose counters are compared from dump to dump. The traffic of further ones is not counted.
    pub sockets_max: usize,
    /// A series without sockets for this many dumps may lose its slot.
    pub idle_dumps: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { labels: Labels::default(), series_max: 500, sockets_max: 1 << 20, idle_dumps: 60 }
    }
}

/// A histogram. The last bucket has no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Observations in each bucket (not cumulated); one more than the distribution has bounds.
    pub buckets: Box<[u64]>,
    /// Sum of the observed values, in the unit of the record.
    pub sum: u64,
}

/// The aggregates of all sockets with the same label values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// Values of the labels, in the order of [`Labels::chosen`].
    pub labels: Arc<[Box<str>]>,
    /// Open sockets by kind (in the order of [`Kind::ALL`]) and state.
    pub sockets: [[u32; STATES]; Kind::ALL.len()],
    /// In the order of [`LEVELS`].
    pub levels: [u64; LEVELS.len()],
    /// In the order of [`COUNTERS`].
    pub counters: [u64; COUNTERS.len()],
    /// In the order of [`DISTRIBUTIONS`].
    pub histograms: Box<[Histogram]>,
    /// The time from which counters and histograms count, in nanoseconds since 1970: that of the dump before the first one in
    /// which the series had a slot. A series that lost its slot and got another one counts from 0 again, and from a later time.
    pub start_unix_ns: u64,
}

impl Series {
    fn new(labels: Vec<Box<str>>) -> Self {
        let histogram = |d: &Distribution| Histogram { buckets: vec![0; d.bounds.len() + 1].into(), sum: 0 };
        Self {
            labels: labels.into(),
            sockets: Default::default(),
            levels: [0; LEVELS.len()],
            counters: [0; COUNTERS.len()],
            histograms: DISTRIBUTIONS.iter().map(histogram).collect(),
            start_unix_ns: 0,
        }
    }

    /// The number of open sockets.
    pub fn open(&self) -> u64 {
        self.sockets.iter().flatten().map(|n| u64::from(*n)).sum()
    }

    /// Clears what is summed anew in every dump.
    fn clear_levels(&mut self) {
        self.sockets = Default::default();
        self.levels = [0; LEVELS.len()];
    }

    fn observe(&mut self, record: &SocketRecord) {
        let state = if usize::from(record.state) < STATES { record.state } else { 0 };
        self.sockets[Kind::of(record) as usize][usize::from(state)] += 1;
        for (level, to) in LEVELS.iter().zip(&mut self.levels) {
            *to += (level.read)(record);
        }
        for (distribution, to) in DISTRIBUTIONS.iter().zip(&mut self.histograms) {
            if let Some(value) = (distribution.read)(record) {
                to.buckets[distribution.bounds.partition_point(|bound| *bound < value)] += 1;
                to.sum += value;
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        for (to, from) in self.sockets.iter_mut().flatten().zip(other.sockets.iter().flatten()) {
            *to += from;
        }
        for (to, from) in self.levels.iter_mut().zip(other.levels) {
            *to += from;
        }
        for (to, from) in self.counters.iter_mut().zip(other.counters) {
            *to += from;
        }
        for (to, from) in self.histograms.iter_mut().zip(&other.histograms) {
            to.sum += from.sum;
            for (to, from) in to.buckets.iter_mut().zip(&from.buckets) {
                *to += from;
            }
        }
    }
}

/// The series at the end of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Names of the labels.
    pub labels: Vec<Label>,
    /// The series, sorted by their labels; the last one is `other`.
    pub series: Vec<Series>,
    /// The rows that the limits left out so far.
    pub limits: Limits,
}

/// Rows that the limits left out of the aggregates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// [`Settings::series_max`].
    pub series_max: u64,
    /// Rows that went to `other` because no slot was free, since the start.
    pub rows_in_other: u64,
    /// Series that lost their slot to another one, since the start.
    pub series_replaced: u64,
    /// Sockets whose counters are stored.
    pub sockets_followed: u64,
    /// Rows whose counters were not compared, since the start: too many sockets, or sockets without an identity.
    pub rows_unfollowed: u64,
}

#[derive(Debug, Clone)]
struct Slot {
    series: Series,
    /// Dumps in a row without an open socket.
    idle: u32,
}

#[derive(Debug, Clone, Copy)]
struct Followed {
    last: Last,
    /// The last dump that had it, modulo 2^32.
    dump: u32,
}

/// Hashes a key, which is a hash already, with one multiplication.
#[derive(Debug, Clone, Copy, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        // Fibonacci hashing. The high half is folded down, because the table uses the low bits.
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

type Table<T> = HashMap<u64, T, BuildHasherDefault<Mix>>;

/// Aggregates rows into series.
#[derive(Debug)]
pub struct Aggregator {
    settings: Settings,
    slots: Table<Slot>,
    /// Series of this dump that have no slot yet.
    candidates: Table<Series>,
    other: Series,
    sockets: Table<Followed>,
    dump: u32,
    /// The time of the last dump; 0 before the first one.
    last_unix_ns: u64,
    /// Whether a new series can get a slot at the end of this dump.
    has_free_slots: bool,
    limits: Limits,
}

impl Aggregator {
    /// An aggregator without series.
    pub fn new(settings: Settings) -> Self {
        let other = Series::new(settings.labels.chosen.iter().map(|_| OTHER.into()).collect());
        let limits = Limits { series_max: settings.series_max as u64, ..Limits::default() };
        Self {
            has_free_slots: settings.series_max > 0,
            settings,
            slots: Table::default(),
            candidates: Table::default(),
            other,
            sockets: Table::default(),
            dump: 0,
            last_unix_ns: 0,
            limits,
        }
    }

    /// Adds a row of the current dump.
    pub fn add(&mut self, row: &Row<'_>) {
        let delta = self.follow(row);
        let values = self.settings.labels.values(row);
        let key = fingerprint(&values);
        let series = match self.slots.get_mut(&key) {
            Some(slot) => &mut slot.series,
            None if self.has_free_slots => {
                // Candidates are limited to the first ones of a dump, which is enough to find large ones.
                let full = self.candidates.len() >= 4 * self.settings.series_max;
                match self.candidates.entry(key) {
                    std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::hash_map::Entry::Vacant(entry) if !full => {
                        entry.insert(Series::new(self.settings.labels.texts(&values)))
                    }
                    std::collections::hash_map::Entry::Vacant(_) => {
                        self.limits.rows_in_other += 1;
                        &mut self.other
                    }
                }
            }
            None => {
                self.limits.rows_in_other += 1;
                &mut self.other
            }
        };
        for (to, added) in series.counters.iter_mut().zip(delta) {
            *to += added;
        }
        if row.seen == Seen::Closed {
            series.counters[CLOSED] += 1;
        } else {
            series.observe(row.record);
        }
    }

    /// The amounts that the socket of a row added to the counters since the last dump.
    fn follow(&mut self, row: &Row<'_>) -> [u64; COUNTERS.len()] {
        let mut delta = [0; COUNTERS.len()];
        if is_remnant(row.record) {
            return delta;
        }
        let now = Last::of(row.record);
        let closed = row.seen == Seen::Closed;
        let Some(key) = identity(row) else {
            self.limits.rows_unfollowed += 1;
            return delta;
        };
        let has_space = self.sockets.len() < self.settings.sockets_max;
        match self.sockets.entry(key) {
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                delta[..PER_SOCKET].copy_from_slice(&now.since(&entry.get().last));
                if closed {
                    entry.remove();
                } else {
                    entry.insert(Followed { last: now, dump: self.dump });
                }
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                // Sockets of the first dump have counted since before it. Later ones began after it.
                if self.dump > 0 {
                    delta[..PER_SOCKET].copy_from_slice(&now.whole());
                    delta[OPENED] = 1;
                }
                if !closed && has_space {
                    entry.insert(Followed { last: now, dump: self.dump });
                } else if !closed {
                    // Its counters are not stored, so it would count as new in every dump.
                    delta = [0; COUNTERS.len()];
                    self.limits.rows_unfollowed += 1;
                }
            }
        }
        delta
    }

    /// Ends the dump of this time: gives slots to new series and removes sockets that have closed.
    pub fn end(&mut self, at_unix_ns: u64, completeness: &Completeness) -> Snapshot {
        // Counts of a series in its first dump were added since the dump before.
        let start = if self.dump == 0 { at_unix_ns } else { self.last_unix_ns };
        if self.dump == 0 {
            self.other.start_unix_ns = start;
        }
        self.last_unix_ns = at_unix_ns;
        self.admit(start);
        let dump = self.dump;
        // A socket that was in the last dump or this one counts on: its record may be torn in one dump and be there in the next.
        // Sockets that a dump could not read are still open, and must not count as new in the next one that can.
        let is_complete =
            completeness.namespaces_lost == 0 && completeness.dropped == 0 && completeness.chains_cut == 0;
        let most = if is_complete { 1 } else { self.settings.idle_dumps.max(1) };
        self.sockets.retain(|_, socket| dump.wrapping_sub(socket.dump) <= most);
        if self.sockets.capacity() > 4 * self.sockets.len().max(1024) {
            self.sockets.shrink_to(2 * self.sockets.len());
        }
        self.limits.sockets_followed = self.sockets.len() as u64;
        let mut idle = false;
        for slot in self.slots.values_mut() {
            slot.idle = if slot.series.open() > 0 { 0 } else { slot.idle.saturating_add(1) };
            idle |= slot.idle >= self.settings.idle_dumps;
        }
        let mut series: Vec<Series> = self.slots.values().map(|slot| slot.series.clone()).collect();
        series.sort_unstable_by(|a, b| a.labels.cmp(&b.labels));
        series.push(self.other.clone());
        let snapshot = Snapshot { labels: self.settings.labels.chosen.clone(), series, limits: self.limits };
        self.slots.values_mut().for_each(|slot| slot.series.clear_levels());
        self.other.clear_levels();
        self.has_free_slots = idle || self.slots.len() < self.settings.series_max;
        // Only the first dump has the number 0.
        self.dump = self.dump.wrapping_add(1).max(1);
        snapshot
    }

    /// Gives the candidates with the most sockets the free slots, then those of series that were idle for too long.
    fn admit(&mut self, start_unix_ns: u64) {
        let mut candidates: Vec<(u64, Series)> = self.candidates.drain().collect();
        candidates.sort_unstable_by(|(_, a), (_, b)| b.open().cmp(&a.open()).then_with(|| a.labels.cmp(&b.labels)));
        let mut idle: Vec<(u32, u64)> = if candidates.is_empty() {
            Vec::new()
        } else {
            let after = self.settings.idle_dumps;
            self.slots
                .iter()
                .filter(|(_, slot)| slot.idle >= after && slot.series.open() == 0)
                .map(|(key, slot)| (slot.idle, *key))
                .collect()
        };
        idle.sort_unstable();
        for (key, mut series) in candidates {
            series.start_unix_ns = start_unix_ns;
            if self.slots.len() >= self.settings.series_max {
                let Some((_, oldest)) = idle.pop() else {
                    self.limits.rows_in_other += series.open();
                    self.other.merge(&series);
                    continue;
                };
                self.slots.remove(&oldest);
                self.limits.series_replaced += 1;
            }
            self.slots.insert(key, Slot { series, idle: 0 });
        }
    }
}

/// A hash of label values. Two with the same hash would share a series; among a thousand series the odds are 1 to 10^13.
fn fingerprint(values: &Values<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.hash(&mut hasher);
    hasher.finish()
}

/// Whether this is no socket, but what the kernel keeps of one or for one, without counters: after its end (TIME_WAIT, also with the
/// state of an orphan in FIN_WAIT2), and before its connection is established (NEW_SYN_RECV). A full socket has sent a segment
/// before it gets to FIN_WAIT2.
fn is_remnant(record: &SocketRecord) -> bool {
    match record.state {
        TIME_WAIT | NEW_SYN_RECV => true,
        FIN_WAIT2 => record.inode == 0 && record.segs_out == 0 && record.segs_in == 0,
        _ => false,
    }
}

/// The identity of a socket: its key, or else a hash of what identifies it in its record. The key of a datagram socket changes with
/// its addresses, at each connect(), and its inode does not.
fn identity(row: &Row<'_>) -> Option<u64> {
    let r = row.record;
    if Kind::of(r) != Kind::Tcp && r.inode != 0 {
        let mut mix = Mix::default();
        [Kind::of(r) as u64, r.inode.into()].into_iter().for_each(|part| mix.write_u64(part));
        return Some(mix.finish());
    }
    if row.socket != 0 {
        return Some(row.socket);
    }
    if r.address == 0 && r.cookie == 0 {
        return None;
    }
    let mut mix = Mix::default();
    for part in [r.address, r.cookie, u64::from(r.netns), u64::from(r.inode)] {
        mix.write_u64(part);
    }
    mix.write_u64(u64::from(r.local_port) << 16 | u64::from(r.remote_port));
    for address in [r.local_address, r.remote_address] {
        let (a, b) = (u128::from_ne_bytes(address) as u64, (u128::from_ne_bytes(address) >> 64) as u64);
        mix.write_u64(a);
        mix.write_u64(b);
    }
    Some(mix.finish())
}
