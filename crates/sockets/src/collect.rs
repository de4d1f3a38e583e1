//! Dumps: records from the backend are joined with names, owners and changes, and become rows.
use std::collections::{BTreeMap, HashSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parshall_core::sockets::{Change, Dump, Owner, Row, Seen, Tracker, key};
use parshall_evidence::socket::Selection;
use parshall_evidence::socket::{Batch, Completeness, Group, SocketRecord};

use super::backend::Backend;
use super::backend::choose::Dumps;
use super::names::{Mixed, Names};
use super::owners::{self, Owners};

/// The maximum number of sockets whose counters are stored: about 100 MB.
const TRACKED_MAX: usize = 1 << 20;
/// Rows that are made together. They fit the CPU cache.
const PORTION: usize = 1024;

/// Receives rows of a dump. An error ends the rows.
pub type Take<'a> = &'a mut dyn FnMut(&Dump, &[Row<'_>]) -> anyhow::Result<()>;

/// Reads one dump after the other.
pub struct Collector {
    backend: Box<dyn Backend>,
    selection: Selection,
    host: String,
    sequence: u64,
    begun: Instant,
    names: Names,
    owners: Option<Box<dyn Owners>>,
    tracker: Option<Tracker>,
    /// Sockets that the selected processes had open in the last dump, because a closed socket has no owner. `None` for a single
    /// dump, and where no processes are selected.
    held: Option<HashSet<u64, Mixed>>,
    /// Descriptors beyond the limit, over all scans for owners.
    owners_dropped: u64,
    /// Failed scans for owners.
    owners_failed: u64,
}

impl Collector {
    /// Creates a collector. With `tracks`, it stores counters from one dump to the next. The text says why owners are read in a
    /// slower way than possible.
    pub fn new(
        mut backend: Box<dyn Backend>,
        selection: Selection,
        tracks: bool,
        dumps: Dumps,
    ) -> (Self, Option<String>) {
        let (owners, note): (Option<Box<dyn Owners>>, _) = if selection.groups.has(Group::Owner) {
            let (owners, note) = owners::best();
            (Some(owners), note)
        } else if dumps != Dumps::Many && backend.foreign_sockets().is_some() {
            // Only a scan for owners finds namespaces that only a socket keeps alive. For a stream it would cost too much.
            (owners::Kernel::load().ok().map(|owners| Box::new(owners) as _), None)
        } else {
            (None, None)
        };
        let remembers_held = dumps == Dumps::Many && selection.selects_owners();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let collector = Self {
            backend,
            selection,
            host: host.trim().to_owned(),
            sequence: 0,
            begun: Instant::now(),
            names: Names::default(),
            owners,
            tracker: tracks.then(|| Tracker::new(TRACKED_MAX)),
            held: remembers_held.then(HashSet::default),
            owners_dropped: 0,
            owners_failed: 0,
        };
        (collector, note)
    }

    /// Name of the backend.
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }

    pub fn owners_dropped(&self) -> u64 {
        self.owners_dropped
    }

    /// Errors of all dumps, by kind.
    pub fn errors(&self) -> BTreeMap<&'static str, u64> {
        let mut errors = self.backend.counts();
        if self.owners_failed > 0 {
            errors.insert("owners", self.owners_failed);
        }
        if let Some(n) = self.tracker.as_ref().map(Tracker::untracked).filter(|n| *n > 0) {
            errors.insert("untracked", n);
        }
        errors
    }

    /// Reads one dump and passes its rows to `take`. After an error of `take` it gets no more rows, but the dump is read to its
    /// end.
    ///
    /// # Errors
    /// The backend cannot read, or the first error of `take`.
    pub fn dump(&mut self, take: Take<'_>) -> anyhow::Result<(Dump, Completeness)> {
        self.sequence += 1;
        let dump = self.stamp();
        self.names.begin();
        if self.scan_owners().is_err() {
            // Rows without owners are better than no rows.
            self.owners_failed += 1;
        }
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        if let Some(tracker) = &mut self.tracker {
            // The clock begins with this process, and a dump at time 0 would have no interval.
            tracker.begin(now_ns.max(1));
        }
        let complete = self.sequence.is_multiple_of(self.backend.complete_every());
        let asked = Selection { changed: self.selection.changed && !complete, ..self.selection.clone() };
        let Self { backend, selection, names, owners, tracker, held, .. } = self;
        if let Some(held) = held.as_mut().filter(|_| !asked.changed) {
            held.clear();
        }
        let mut join = Join { names, owners: owners.as_deref(), tracker: tracker.as_mut(), selection, held };
        let mut failure = None;
        let mut filtered = 0;
        let mut completeness = backend.dump(&asked, &mut |batch| {
            if failure.is_none() {
                failure = join.batch(&dump, batch, take, &mut filtered).err();
            }
        })?;
        completeness.filtered += filtered;
        completeness.emitted -= filtered.min(completeness.emitted);
        if let Some(tracker) = self.tracker.as_mut().filter(|_| !asked.changed) {
            tracker.end();
        }
        match failure {
            Some(error) => Err(error),
            None => Ok((dump, completeness)),
        }
    }

    fn scan_owners(&mut self) -> anyhow::Result<()> {
        let Some(owners) = &mut self.owners else { return Ok(()) };
        let account = match self.backend.foreign_sockets() {
            Some(wanted) => {
                let (account, found) = owners.scan_with_foreign_sockets()?;
                *wanted = found;
                account
            }
            None => owners.scan()?,
        };
        self.owners_dropped += account.dropped;
        Ok(())
    }

    /// Passes rows of sockets that closed since the last dump to `take`; they belong to that dump. Sockets that the backend does not see
    /// are removed from the records, so that their keys are those of its dumps.
    ///
    /// # Errors
    /// The error of `take`.
    pub fn closed(&mut self, records: &mut [SocketRecord], take: Take<'_>) -> anyhow::Result<()> {
        self.backend.clear_unseen(records);
        let dump = self.stamp();
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        for records in records.chunks(PORTION) {
            let changes: Vec<(u64, Change)> = records
                .iter()
                .map(|record| {
                    let key = key(record);
                    let change = match &mut self.tracker {
                        Some(tracker) => tracker.close(key, record, now_ns),
                        None => Change { seen: Seen::Closed, rates: None },
                    };
                    (key, change)
                })
                .collect();
            self.names.learn(records);
            let rows: Vec<Row<'_>> = records
                .iter()
                .zip(&changes)
                .filter(|(record, (key, _))| self.selects_closed(record, *key))
                .map(|(record, (key, change))| named(record, *key, &self.names, change))
                .collect();
            take(&dump, &rows)?;
        }
        Ok(())
    }

    fn selects_closed(&self, record: &SocketRecord, key: u64) -> bool {
        let selection = &self.selection;
        selection.holds_closed(record)
            && selection.expression_holds(record, true)
            && (!selection.selects_owners() || self.held.as_ref().is_some_and(|held| held.contains(&key)))
    }

    fn stamp(&self) -> Dump {
        let at_unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Dump { at_unix_ns, sequence: self.sequence, host: self.host.clone(), backend: self.backend.name() }
    }
}

/// The sources that the records of a dump are joined with.
struct Join<'a> {
    names: &'a mut Names,
    owners: Option<&'a dyn Owners>,
    tracker: Option<&'a mut Tracker>,
    selection: &'a Selection,
    held: &'a mut Option<HashSet<u64, Mixed>>,
}

impl Join<'_> {
    fn batch(&mut self, dump: &Dump, batch: Batch<'_>, take: Take<'_>, filtered: &mut u64) -> anyhow::Result<()> {
        let selection = self.selection;
        let filters = selection.filters_rows();
        for records in batch.records.chunks(PORTION) {
            self.names.learn(records);
            // Owners of all records, one record after the other, and the index at which those of each record end.
            let mut held: Vec<Owner> = Vec::new();
            let mut ends: Vec<usize> = Vec::new();
            if let Some(owners) = self.owners.filter(|_| self.selection.groups.has(Group::Owner)) {
                owners.of(records, &mut held, &mut ends);
            }
            let keys: Vec<u64> = records.iter().map(key).collect();
            if let Some(tracker) = &self.tracker {
                tracker.prefetch(&keys);
            }
            let mut rows = Vec::with_capacity(records.len());
            for (at, (record, &key)) in records.iter().zip(&keys).enumerate() {
                let begin = at.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
                let owners = ends.get(at).map_or(&[][..], |end| &held[begin..*end]);
                // The tracker stores only selected sockets.
                let holders = owners.iter().map(|owner| (owner.pid, &*owner.command));
                if filters && !(selection.expression_holds(record, false) && selection.owners_hold(holders)) {
                    *filtered += 1;
                    continue;
                }
                if let Some(held) = self.held.as_mut().filter(|held| held.len() < TRACKED_MAX) {
                    held.insert(key);
                }
                let change = match &mut self.tracker {
                    Some(tracker) => tracker.observe(key, record),
                    None => Change { seen: Seen::Open, rates: None },
                };
                if self.selection.changed && change.seen == Seen::Same {
                    *filtered += 1;
                    continue;
                }
                let row = named(record, key, self.names, &change);
                rows.push(Row { name: batch.name(record), owners, ..row });
            }
            take(dump, &rows)?;
        }
        Ok(())
    }
}

fn named<'a>(record: &'a SocketRecord, key: u64, names: &'a Names, change: &Change) -> Row<'a> {
    let cgroup = names.cgroups.get(record.cgroup_id);
    Row {
        socket: key,
        seen: change.seen,
        netns: names.netns.name(record.netns),
        cgroup: &cgroup.path,
        container: &cgroup.placement.container,
        pod: &cgroup.placement.pod,
        rates: change.rates,
        ..Row::bare(record)
    }
}
