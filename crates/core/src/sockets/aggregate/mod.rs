//! From rows to series: what Prometheus and OTLP are told. Counts by state, levels, counters and distributions, by chosen
//! labels, under a hard cap of series.
//!
//! - **Counters never go back.** The sum of what each socket added since it was last seen goes to the series; the sum stays
//!   when the socket ends. What sockets had counted before the first dump is not included.
//! - **The cap.** In the first dump, and later while there is room, the labels with the most sockets get a series; everybody
//!   else goes to one series whose labels all read `other`. A series that was given stays until it has had no socket for
//!   [`Settings::idle_dumps`] dumps and another one wants its place.
//! - **Whole dumps.** A socket that is missing is taken for closed, so dumps must hold all sockets and not only changed ones;
//!   a row of a socket that has closed comes after all other rows of it.
mod labels;
mod measures;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parshall_evidence::socket::SocketRecord;

use labels::Values;
pub use labels::{Label, Labels};
use measures::{CLOSED, Last, OPENED, PER_SOCKET};
pub use measures::{COUNTERS, Counter, DISTRIBUTIONS, Distribution, LEVELS, Level, groups};

use super::{Row, Seen};
use parshall_evidence::socket::Kind;

/// What rows without a series of their own are labelled.
pub const OTHER: &str = "other";
/// States are counted by their number; 0 and what is none are `unconnected`.
pub const STATES: usize = 14;

/// What bounds the aggregates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What sockets are told apart by.
    pub labels: Labels,
    /// How many series there may be, `other` not included.
    pub series_max: usize,
    /// How many sockets are followed from dump to dump; what further ones move is not counted, but they are.
    pub sockets_max: usize,
    /// After how many dumps without a socket a series may lose its place.
    pub idle_dumps: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { labels: Labels::default(), series_max: 500, sockets_max: 1 << 20, idle_dumps: 60 }
    }
}

/// A distribution: observations by bucket, the last one without bound, and their sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Observations in each bucket (not cumulated); one more than the distribution has bounds.
    pub buckets: Box<[u64]>,
    /// Sum of the observed values, in the unit of the record.
    pub sum: u64,
}

/// Everything that is known of the sockets with the same labels.
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
        }
    }

    /// How many sockets are open.
    pub fn open(&self) -> u64 {
        self.sockets.iter().flatten().map(|n| u64::from(*n)).sum()
    }

    fn begin(&mut self) {
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

    fn fold(&mut self, other: &Self) {
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

/// The series as they were at the end of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Names of the labels.
    pub labels: Vec<Label>,
    /// The series, in the order of their labels; the last one is `other`.
    pub series: Vec<Series>,
    /// What the cap did.
    pub limits: Limits,
}

/// What the bounds did to the aggregates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many series there may be.
    pub series_max: u64,
    /// Rows that went to `other` for want of a series, since the start.
    pub rows_in_other: u64,
    /// Series that gave their place to others, since the start.
    pub series_replaced: u64,
    /// Sockets that are followed.
    pub sockets_followed: u64,
    /// Rows whose counters were left out, since the start: too many sockets, or no identity.
    pub rows_unfollowed: u64,
}

/// A series and who it is.
#[derive(Debug, Clone)]
struct Place {
    series: Series,
    /// Dumps in a row without an open socket.
    idle: u32,
}

#[derive(Debug, Clone, Copy)]
struct Followed {
    last: Last,
    /// The dump that saw it last, modulo 2^32.
    dump: u32,
}

/// Keys here are well mixed already, or mixed by one multiplication.
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
        // Fibonacci hashing; the high half is folded down, because the table takes its place from the low bits.
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

type Table<T> = HashMap<u64, T, BuildHasherDefault<Mix>>;

/// Makes series of rows.
#[derive(Debug)]
pub struct Aggregator {
    settings: Settings,
    places: Table<Place>,
    /// Series that ask for a place in this dump.
    candidates: Table<Series>,
    other: Series,
    sockets: Table<Followed>,
    dump: u32,
    /// Whether a new series can have a place in this dump.
    room: bool,
    limits: Limits,
}

impl Aggregator {
    /// Without anything yet.
    pub fn new(settings: Settings) -> Self {
        let other = Series::new(settings.labels.chosen.iter().map(|_| OTHER.into()).collect());
        let limits = Limits { series_max: settings.series_max as u64, ..Limits::default() };
        Self {
            room: settings.series_max > 0,
            settings,
            places: Table::default(),
            candidates: Table::default(),
            other,
            sockets: Table::default(),
            dump: 0,
            limits,
        }
    }

    /// A row of the dump that is going on.
    pub fn add(&mut self, row: &Row<'_>) {
        let delta = self.follow(row);
        let values = self.settings.labels.values(row);
        let key = fingerprint(&values);
        let series = match self.places.get_mut(&key) {
            Some(place) => &mut place.series,
            None if self.room => {
                // Candidates are bounded too: those who come first, which is enough to find the largest.
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

    /// What the socket of a row added to the counters since it was last seen.
    fn follow(&mut self, row: &Row<'_>) -> [u64; COUNTERS.len()] {
        let mut delta = [0; COUNTERS.len()];
        let now = Last::of(row.record);
        let closed = row.seen == Seen::Closed;
        let Some(key) = identity(row) else {
            self.limits.rows_unfollowed += 1;
            return delta;
        };
        let room = self.sockets.len() < self.settings.sockets_max;
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
                // What was counted before the first dump is not ours; what came later began after it.
                if self.dump > 0 {
                    delta[..PER_SOCKET].copy_from_slice(&now.whole());
                    delta[OPENED] = 1;
                }
                if !closed && room {
                    entry.insert(Followed { last: now, dump: self.dump });
                } else if !closed {
                    // It would be new in every dump.
                    delta = [0; COUNTERS.len()];
                    self.limits.rows_unfollowed += 1;
                }
            }
        }
        delta
    }

    /// The end of a dump: gives places to new series and forgets sockets that have gone.
    pub fn end(&mut self) -> Snapshot {
        self.admit();
        let dump = self.dump;
        // A record that was torn in one dump is there again in the next, and must not count from zero again.
        self.sockets.retain(|_, socket| dump.wrapping_sub(socket.dump) <= 1);
        if self.sockets.capacity() > 4 * self.sockets.len().max(1024) {
            self.sockets.shrink_to(2 * self.sockets.len());
        }
        self.limits.sockets_followed = self.sockets.len() as u64;
        let mut idle = false;
        for place in self.places.values_mut() {
            place.idle = if place.series.open() > 0 { 0 } else { place.idle.saturating_add(1) };
            idle |= place.idle >= self.settings.idle_dumps;
        }
        let mut series: Vec<Series> = self.places.values().map(|place| place.series.clone()).collect();
        series.sort_unstable_by(|a, b| a.labels.cmp(&b.labels));
        series.push(self.other.clone());
        let snapshot = Snapshot { labels: self.settings.labels.chosen.clone(), series, limits: self.limits };
        self.places.values_mut().for_each(|place| place.series.begin());
        self.other.begin();
        self.room = idle || self.places.len() < self.settings.series_max;
        // 0 is only the first dump.
        self.dump = self.dump.wrapping_add(1).max(1);
        snapshot
    }

    /// The candidates with the most sockets get the free places, then those of series that were long idle.
    fn admit(&mut self) {
        let mut candidates: Vec<(u64, Series)> = self.candidates.drain().collect();
        candidates.sort_unstable_by(|(_, a), (_, b)| b.open().cmp(&a.open()).then_with(|| a.labels.cmp(&b.labels)));
        let mut idle: Vec<(u32, u64)> = if candidates.is_empty() {
            Vec::new()
        } else {
            let after = self.settings.idle_dumps;
            self.places
                .iter()
                .filter(|(_, place)| place.idle >= after && place.series.open() == 0)
                .map(|(key, place)| (place.idle, *key))
                .collect()
        };
        idle.sort_unstable();
        for (key, series) in candidates {
            if self.places.len() >= self.settings.series_max {
                let Some((_, oldest)) = idle.pop() else {
                    self.limits.rows_in_other += series.open();
                    self.other.fold(&series);
                    continue;
                };
                self.places.remove(&oldest);
                self.limits.series_replaced += 1;
            }
            self.places.insert(key, Place { series, idle: 0 });
        }
    }
}

/// Two values with the same 64 bits would share a series; with a thousand series the odds are 1 to 10^13.
fn fingerprint(values: &Values<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.hash(&mut hasher);
    hasher.finish()
}

/// What tells a socket from all others: its key, or else what the kernel says of it.
fn identity(row: &Row<'_>) -> Option<u64> {
    if row.socket != 0 {
        return Some(row.socket);
    }
    let r = row.record;
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
