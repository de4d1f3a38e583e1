//! What the collector says of itself: what dumps cost, how complete they were, what became of the rows; and the status that
//! the HTTP endpoint reads all metrics from.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use parshall_core::sockets::aggregate::{Limits, Snapshot};
use parshall_evidence::socket::Completeness;
use prometheus_client::encoding::DescriptorEncoder;

use super::Families;
use crate::sink::Account;
use parshall_host::process::Process;

/// What a dump cost, and what it gave.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DumpCost {
    /// CPU time of the process during the dump, in ns: in the kernel and outside, encoding included.
    pub cpu_ns: u64,
    /// Duration, in ns.
    pub wall_ns: u64,
    /// Its account.
    pub completeness: Completeness,
}

/// Counts from the beginning, that do not belong to one dump.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReaderCounts {
    /// Rows of sockets that had closed.
    pub closes: u64,
    /// Closed sockets that came faster than they were read.
    pub closes_lost: u64,
    /// Descriptors for which a look at the owners had no room.
    pub owners_dropped: u64,
    /// What went wrong with the reading, by kind.
    pub errors: BTreeMap<&'static str, u64>,
}

/// What is known so far.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The backend that reads.
    pub backend: &'static str,
    /// Dumps that came to their end.
    pub dumps: u64,
    /// Dumps that did not.
    pub dumps_failed: u64,
    /// The last one.
    pub last: DumpCost,
    /// CPU time of all dumps, in ns.
    pub cpu_ns: u64,
    /// Accounts of all dumps, added up.
    pub totals: Completeness,
    /// What is counted between dumps too.
    pub reader: ReaderCounts,
    /// What became of the rows, by sink.
    pub sinks: Vec<(String, Account)>,
    /// Bounds of the aggregates, if there are any.
    pub limits: Option<Limits>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    aggregates: Option<Arc<Snapshot>>,
    seen_at: Instant,
}

/// Where the collector writes and the endpoint reads.
#[derive(Debug)]
pub struct Status {
    /// How often a dump is due; none for a collector that dumps once.
    every: Option<Duration>,
    inner: Mutex<Inner>,
}

impl Status {
    /// Without anything yet.
    pub fn new(every: Option<Duration>) -> Arc<Self> {
        let inner = Inner { state: State::default(), aggregates: None, seen_at: Instant::now() };
        Arc::new(Self { every, inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A dump has come to its end.
    pub fn dumped(&self, backend: &'static str, cost: DumpCost) {
        let mut inner = self.inner();
        inner.seen_at = Instant::now();
        let state = &mut inner.state;
        state.backend = backend;
        state.dumps += 1;
        state.cpu_ns += cost.cpu_ns;
        state.totals += cost.completeness;
        state.last = cost;
    }

    /// A dump has failed.
    pub fn failed(&self) {
        self.inner().state.dumps_failed += 1;
    }

    /// What is counted between dumps too, so far.
    pub fn reader(&self, reader: ReaderCounts) {
        self.inner().state.reader = reader;
    }

    /// What became of the rows so far.
    pub fn sinks(&self, accounts: Vec<(String, Account)>) {
        self.inner().state.sinks = accounts;
    }

    /// The aggregates of the last dump.
    pub fn aggregates(&self, snapshot: Arc<Snapshot>) {
        let mut inner = self.inner();
        inner.state.limits = Some(snapshot.limits);
        inner.aggregates = Some(snapshot);
    }

    /// All of it, as it is now.
    pub fn read(&self) -> (State, Option<Arc<Snapshot>>) {
        let inner = self.inner();
        (inner.state.clone(), inner.aggregates.clone())
    }

    /// Whether no dump has come to its end yet.
    pub fn is_new(&self) -> bool {
        self.inner().state.dumps == 0
    }

    /// Whether dumps come when they are due; if not, for how long none came.
    pub fn late(&self) -> Option<Duration> {
        let since = self.inner().seen_at.elapsed();
        self.every.filter(|every| since > *every * 3 + Duration::from_secs(10)).map(|_| since)
    }
}

/// Writes it all.
///
/// # Errors
/// What the encoder says.
pub fn encode(state: &State, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    let mut families = Families { encoder };
    dumps(state, &mut families)?;
    completeness(state, &mut families)?;
    sinks(state, &mut families)?;
    process(&mut families)?;
    state.limits.as_ref().map_or(Ok(()), |l| limits(l, &mut families))
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn dumps(state: &State, families: &mut Families<'_, '_>) -> std::fmt::Result {
    let last = &state.last;
    families.counter("collector_dumps", "Dumps that came to their end", state.dumps)?;
    families.counter("collector_dumps_failed", "Dumps that did not", state.dumps_failed)?;
    families.counter_s(
        "collector_dump_cpu_seconds",
        "CPU time of all dumps, encoding included",
        seconds(state.cpu_ns),
    )?;
    families.gauge("collector_last_dump_cpu_seconds", "CPU time of the last dump", seconds(last.cpu_ns))?;
    families.gauge("collector_last_dump_seconds", "Duration of the last dump", seconds(last.wall_ns))?;
    let each = seconds(last.cpu_ns) / last.completeness.emitted.max(1) as f64;
    families.gauge("collector_last_dump_cpu_seconds_per_socket", "CPU time of the last dump by socket", each)?;
    let backend = [([("backend", state.backend)], 1.0)];
    families.gauges("collector_backend", "The backend that reads the sockets", backend)
}

fn completeness(state: &State, families: &mut Families<'_, '_>) -> std::fmt::Result {
    let c = &state.totals;
    let results = [("emitted", c.emitted), ("filtered", c.filtered), ("torn", c.torn), ("dropped", c.dropped)];
    let results = results.map(|(result, n)| ([("result", result)], n));
    families.counters("collector_records", "Sockets that were met, by what became of them", results)?;
    for (name, help, value) in [
        ("collector_expected", "Sockets that were met", c.expected),
        (
            "collector_interrupted",
            "Times that a chain or stream changed under the reader and was read again",
            c.interrupted,
        ),
        ("collector_chains_cut", "Chains longer than the bound, whose rest was not read", c.chains_cut),
        ("collector_namespaces_lost", "Namespaces that vanished or refused while they were read", c.namespaces_lost),
        ("collector_closes", "Sockets whose end was reported", state.reader.closes),
        ("collector_closes_lost", "Sockets whose end came faster than it was read", state.reader.closes_lost),
        ("collector_owners_dropped", "Descriptors without room in the look at owners", state.reader.owners_dropped),
    ] {
        families.counter(name, help, value)?;
    }
    let errors = state.reader.errors.iter().map(|(kind, n)| ([("kind", *kind)], *n));
    families.counters("collector_errors", "What went wrong with the reading, by kind", errors)?;
    let last = &state.last.completeness;
    families.gauge("collector_namespaces", "Namespaces in the last dump", last.namespaces as f64)?;
    families.gauge("collector_sockets", "Sockets that the last dump gave", last.emitted as f64)
}

fn sinks(state: &State, families: &mut Families<'_, '_>) -> std::fmt::Result {
    let all = &state.sinks;
    let rows = all.iter().flat_map(|(sink, a)| {
        [("in", a.rows_in), ("out", a.rows_out), ("dropped", a.rows_dropped)]
            .map(|(what, n)| ([("sink", sink.as_str()), ("what", what)], n))
    });
    families.counters("sink_rows", "Rows given to a sink, delivered by it, given up by it", rows)?;
    let errors = all
        .iter()
        .flat_map(|(sink, a)| a.errors.iter().map(move |(kind, n)| ([("sink", sink.as_str()), ("kind", *kind)], *n)));
    families.counters("sink_errors", "Failures of a sink, by kind", errors)?;
    let lost = all.iter().map(|(sink, a)| ([("sink", sink.as_str())], a.bytes_lost));
    families.counters(
        "sink_lost_bytes",
        "Bytes on disk that a crash cut short or that were damaged, left out",
        lost,
    )?;
    let each = |value: fn(&Account) -> f64| all.iter().map(move |(sink, a)| ([("sink", sink.as_str())], value(a)));
    families.gauges(
        "sink_rows_waiting",
        "Rows on their way, in memory or in the spool",
        each(|a| a.rows_waiting as f64),
    )?;
    let held_up = each(|a| a.held_up_ms as f64 / 1e3);
    families.gauges("sink_held_up_seconds", "How long the collector waited for room in a sink", held_up)?;
    families.gauges("sink_spool_bytes", "Bytes of the spool on disk", each(|a| a.spool_bytes as f64))?;
    families.gauges("sink_lag_seconds", "Age of the oldest row on its way", each(|a| a.lag_ms as f64 / 1e3))
}

fn process(families: &mut Families<'_, '_>) -> std::fmt::Result {
    let process = Process::now();
    families.counter_s("collector_cpu_seconds", "CPU time of the process", process.cpu_s)?;
    families.gauge("collector_resident_bytes", "Resident memory of the process", process.rss_bytes as f64)?;
    families.gauge("collector_threads", "Threads of the process", process.threads as f64)?;
    families.gauge("collector_fds", "Open descriptors of the process", process.fds as f64)
}

fn limits(limits: &Limits, families: &mut Families<'_, '_>) -> std::fmt::Result {
    families.gauge("aggregates_series_max", "How many series of labels there may be", limits.series_max as f64)?;
    families.gauge("aggregates_followed", "Sockets followed from dump to dump", limits.sockets_followed as f64)?;
    for (name, help, value) in [
        ("aggregates_rows_in_other", "Rows that went to the series `other` for want of room", limits.rows_in_other),
        ("aggregates_series_replaced", "Series that gave their place to others", limits.series_replaced),
        ("aggregates_rows_unfollowed", "Rows whose counters were left out", limits.rows_unfollowed),
    ] {
        families.counter(name, help, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_stands_still_is_late() {
        let status = Status::new(Some(Duration::from_secs(1)));
        assert_eq!(status.late(), None);
        status.inner().seen_at = Instant::now().checked_sub(Duration::from_secs(14)).unwrap();
        assert!(status.late() >= Some(Duration::from_secs(14)));
        status.dumped("walk", DumpCost::default());
        assert_eq!(status.late(), None);
        assert_eq!(Status::new(None).late(), None);
    }

    #[test]
    fn dumps_add_up() {
        let status = Status::new(None);
        let completeness = Completeness { expected: 5, emitted: 4, torn: 1, namespaces: 2, ..Default::default() };
        for _ in 0..3 {
            status.dumped("walk", DumpCost { cpu_ns: 7, wall_ns: 9, completeness });
        }
        status.failed();
        status.reader(ReaderCounts { closes: 6, ..ReaderCounts::default() });
        let (state, _) = status.read();
        assert_eq!((state.dumps, state.dumps_failed, state.cpu_ns, state.reader.closes), (3, 1, 21, 6));
        assert_eq!((state.totals.expected, state.last.completeness), (15, completeness));
    }
}
