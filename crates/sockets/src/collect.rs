//! One dump: records from the backend, joined with what user space knows, as rows.
use std::collections::{BTreeMap, HashSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parshall_core::sockets::{Dump, Met, Owner, Row, Seen, Tracker, key};
use parshall_evidence::socket::Selection;
use parshall_evidence::socket::{Batch, Completeness, Group, SocketRecord};

use super::backend::Backend;
use super::backend::choose::Dumps;
use super::names::{Mixed, Names};
use super::owners::{self, Owners};

/// Sockets whose last counters are kept, at most: about 100 MB.
const TRACKED_MAX: usize = 1 << 20;
/// Of dumps that the backend takes changed sockets for, each one of so many is whole: those that have gone are forgotten.
const WHOLE_EVERY: u64 = 64;
/// Rows that are made at once: few enough to stay in the cache.
const PORTION: usize = 1024;

/// Takes rows as they come.
pub type Take<'a> = &'a mut dyn FnMut(&Dump, &[Row<'_>]) -> anyhow::Result<()>;

/// Reads dump after dump.
pub struct Collector {
    backend: Box<dyn Backend>,
    selection: Selection,
    host: String,
    sequence: u64,
    begun: Instant,
    names: Names,
    owners: Option<Box<dyn Owners>>,
    tracker: Option<Tracker>,
    /// Sockets that the processes of the filter held in the last dump: nobody holds them any more when they have closed.
    /// None where nothing closes between dumps, or the filter does not ask for processes.
    held: Option<HashSet<u64, Mixed>>,
    /// Descriptors that no look could take in, over all dumps.
    owners_dropped: u64,
    /// Looks at the owners that failed.
    owners_failed: u64,
}

impl Collector {
    /// A collector; `tracks` says whether it remembers counters from one dump to the next. Also what is not as it should be.
    pub fn new(backend: Box<dyn Backend>, selection: Selection, tracks: bool, dumps: Dumps) -> (Self, Option<String>) {
        let (owners, note): (Option<Box<dyn Owners>>, _) = if selection.groups.has(Group::Owner) {
            let (owners, note) = owners::best();
            (Some(owners), note)
        } else if dumps == Dumps::One && backend.needs_foreign_sockets() {
            // Only this pass finds namespaces that nothing but a socket keeps. A stream does not pay for it in every dump.
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

    /// The backend's name.
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }

    /// Descriptors that no look at the owners had room for, over all dumps.
    pub fn owners_dropped(&self) -> u64 {
        self.owners_dropped
    }

    /// What went wrong with the reading so far, by kind.
    pub fn errors(&self) -> BTreeMap<&'static str, u64> {
        let mut errors = self.backend.counts();
        if self.owners_failed > 0 {
            errors.insert("owners", self.owners_failed);
        }
        if let Some(n) = self.tracker.as_ref().map(Tracker::no_room).filter(|n| *n > 0) {
            errors.insert("untracked", n);
        }
        errors
    }

    /// One dump. What `take` refuses ends the giving of rows, not the dump.
    ///
    /// # Errors
    /// The backend cannot read, or the first refusal of `take`.
    pub fn dump(&mut self, take: Take<'_>) -> anyhow::Result<(Dump, Completeness)> {
        self.sequence += 1;
        let dump = self.stamp();
        self.names.begin();
        if self.scan_owners().is_err() {
            // The sockets are worth telling without their owners.
            self.owners_failed += 1;
        }
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        if let Some(tracker) = &mut self.tracker {
            // The first dump must not look as if it had begun with the clock.
            tracker.begin(now_ns.max(1));
        }
        let whole = !self.backend.leaves_out_unchanged() || self.sequence.is_multiple_of(WHOLE_EVERY);
        let asked = Selection { changed: self.selection.changed && !whole, ..self.selection.clone() };
        let Self { backend, selection, names, owners, tracker, held, .. } = self;
        if let Some(held) = held.as_mut().filter(|_| !asked.changed) {
            held.clear();
        }
        let mut join = Join { names, owners: owners.as_deref(), tracker: tracker.as_mut(), selection, held };
        let mut refusal = None;
        let mut left_out = 0;
        let mut completeness = backend.dump(&asked, &mut |batch| {
            if refusal.is_none() {
                refusal = join.batch(&dump, batch, take, &mut left_out).err();
            }
        })?;
        completeness.filtered += left_out;
        completeness.emitted -= left_out.min(completeness.emitted);
        if let Some(tracker) = self.tracker.as_mut().filter(|_| !asked.changed) {
            tracker.end();
        }
        match refusal {
            Some(error) => Err(error),
            None => Ok((dump, completeness)),
        }
    }

    fn scan_owners(&mut self) -> anyhow::Result<()> {
        let Some(owners) = &mut self.owners else { return Ok(()) };
        let account = if self.backend.needs_foreign_sockets() {
            let (account, foreign_sockets) = owners.scan_with_foreign_sockets()?;
            self.backend.set_foreign_sockets(foreign_sockets);
            account
        } else {
            owners.scan()?
        };
        self.owners_dropped += account.dropped;
        Ok(())
    }

    /// Rows of sockets that have closed since the last dump, of which they are told as part. Records lose what the backend
    /// of the dumps does not see, so that their keys are the same.
    ///
    /// # Errors
    /// The refusal of `take`.
    pub fn closed(&mut self, records: &mut [SocketRecord], take: Take<'_>) -> anyhow::Result<()> {
        if !self.backend.sees_births() {
            for record in &mut *records {
                (record.birth_sent, record.birth_received, record.address) = (0, 0, 0);
            }
        }
        let dump = self.stamp();
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        for records in records.chunks(PORTION) {
            let met: Vec<(u64, Met)> = records
                .iter()
                .map(|record| {
                    let key = key(record);
                    let met = match &mut self.tracker {
                        Some(tracker) => tracker.close(key, record, now_ns),
                        None => Met { seen: Seen::Closed, rates: None },
                    };
                    (key, met)
                })
                .collect();
            self.names.learn(records);
            let rows: Vec<Row<'_>> = records
                .iter()
                .zip(&met)
                .filter(|(record, (key, _))| self.wants_closed(record, *key))
                .map(|(record, (key, met))| named(record, *key, &self.names, met))
                .collect();
            take(&dump, &rows)?;
        }
        Ok(())
    }

    fn wants_closed(&self, record: &SocketRecord, key: u64) -> bool {
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

/// What records are joined with during a dump.
struct Join<'a> {
    names: &'a mut Names,
    owners: Option<&'a dyn Owners>,
    tracker: Option<&'a mut Tracker>,
    selection: &'a Selection,
    held: &'a mut Option<HashSet<u64, Mixed>>,
}

impl Join<'_> {
    fn batch(&mut self, dump: &Dump, batch: Batch<'_>, take: Take<'_>, left_out: &mut u64) -> anyhow::Result<()> {
        let selection = self.selection;
        let filters = selection.filters_rows();
        for records in batch.records.chunks(PORTION) {
            self.names.learn(records);
            // Owners of all records of the portion, one after the other, and where those of each record end.
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
                // What the filter leaves out is not tracked either.
                let holders = owners.iter().map(|owner| (owner.pid, &*owner.command));
                if filters && !(selection.expression_holds(record, false) && selection.owners_hold(holders)) {
                    *left_out += 1;
                    continue;
                }
                if let Some(held) = self.held.as_mut().filter(|held| held.len() < TRACKED_MAX) {
                    held.insert(key);
                }
                let met = match &mut self.tracker {
                    Some(tracker) => tracker.meet(key, record),
                    None => Met { seen: Seen::Open, rates: None },
                };
                if self.selection.changed && met.seen == Seen::Same {
                    *left_out += 1;
                    continue;
                }
                let row = named(record, key, self.names, &met);
                rows.push(Row { name: batch.name(record), owners, ..row });
            }
            take(dump, &rows)?;
        }
        Ok(())
    }
}

fn named<'a>(record: &'a SocketRecord, key: u64, names: &'a Names, met: &Met) -> Row<'a> {
    let cgroup = names.cgroups.get(record.cgroup_id);
    Row {
        socket: key,
        seen: met.seen,
        netns: names.netns.name(record.netns),
        cgroup: &cgroup.path,
        container: &cgroup.placement.container,
        pod: &cgroup.placement.pod,
        rates: met.rates,
        ..Row::bare(record)
    }
}
