//! The collector's own metrics: the cost and completeness of dumps, and what became of the rows. Also the status from which the
//! HTTP endpoint reads all metrics.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use parshall_core::sockets::aggregate::{Limits, Snapshot};
use parshall_evidence::socket::Completeness;
use parshall_host::open_metrics::Families;
use parshall_host::process::Process;

use crate::sink::account::Account;

/// The cost and the completeness of a dump.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DumpCost {
    /// CPU time of the process during the dump in user and kernel mode, with the encoding of rows.
    pub cpu_ns: u64,
    pub wall_ns: u64,
    pub completeness: Completeness,
}

/// Counts since the start that do not belong to one dump.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReaderCounts {
    /// Rows of closed sockets.
    pub closes: u64,
    /// Closed sockets that did not fit the ring buffer.
    pub closes_lost: u64,
    /// Changes of sockets' states, closes among them, that the program missed.
    pub closes_missed: u64,
    /// Descriptors beyond the limit of a scan for owners.
    pub owners_dropped: u64,
    /// Errors of dumps, by kind.
    pub errors: BTreeMap<&'static str, u64>,
}

/// The state that the metrics show.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub backend: &'static str,
    /// Successful dumps.
    pub dumps: u64,
    pub dumps_failed: u64,
    /// The last successful dump.
    pub last: DumpCost,
    /// CPU time of all dumps.
    pub cpu_ns: u64,
    /// The sum of all dumps.
    pub totals: Completeness,
    pub reader: ReaderCounts,
    /// The account of each sink, with its name.
    pub sinks: Vec<(String, Account)>,
    /// Limits of the aggregates, if a sink aggregates.
    pub limits: Option<Limits>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    aggregates: Option<Arc<Snapshot>>,
    seen_at: Instant,
}

/// Written by the collector and read by the endpoint.
#[derive(Debug)]
pub struct Status {
    /// The interval of dumps; `None` for a single dump.
    every: Option<Duration>,
    inner: Mutex<Inner>,
}

impl Status {
    pub fn new(every: Option<Duration>) -> Arc<Self> {
        let inner = Inner { state: State::default(), aggregates: None, seen_at: Instant::now() };
        Arc::new(Self { every, inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a successful dump.
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

    /// Adds a failed dump.
    pub fn failed(&self) {
        self.inner().state.dumps_failed += 1;
    }

    /// Sets the counts that do not belong to one dump.
    pub fn reader(&self, reader: ReaderCounts) {
        self.inner().state.reader = reader;
    }

    /// Sets the accounts of the sinks.
    pub fn sinks(&self, accounts: Vec<(String, Account)>) {
        self.inner().state.sinks = accounts;
    }

    /// Sets the aggregates of the last dump.
    pub fn aggregates(&self, snapshot: Arc<Snapshot>) {
        let mut inner = self.inner();
        inner.state.limits = Some(snapshot.limits);
        inner.aggregates = Some(snapshot);
    }

    /// A copy of the state, and the aggregates of the last dump.
    pub fn read(&self) -> (State, Option<Arc<Snapshot>>) {
        let inner = self.inner();
        (inner.state.clone(), inner.aggregates.clone())
    }

    /// Whether no dump has succeeded yet.
    pub fn is_new(&self) -> bool {
        self.inner().state.dumps == 0
    }

    /// The time since the last dump, if the next one is overdue.
    pub fn late(&self) -> Option<Duration> {
        let since = self.inner().seen_at.elapsed();
        self.every.filter(|every| since > *every * 3 + Duration::from_secs(10)).map(|_| since)
    }
}

/// Writes all metrics of the collector.
///
/// # Errors
/// Those of the encoder.
pub fn encode(state: &State, families: &mut Families<'_, '_>) -> std::fmt::Result {
    dumps(state, families)?;
    completeness(state, families)?;
    sinks(state, families)?;
    process(families)?;
    state.limits.as_ref().map_or(Ok(()), |l| limits(l, families))
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn dumps(state: &State, families: &mut Families<'_, '_>) -> std::fmt::Result {
    let last = &state.last;
    families.counter("collector_dumps", "Successful dumps", state.dumps)?;
    families.counter("collector_dumps_failed", "Failed dumps", state.dumps_failed)?;
    families.counter_s(
        "collector_dump_cpu_seconds",
        "CPU time of all dumps, with the encoding of rows",
        seconds(state.cpu_ns),
    )?;
    families.gauge("collector_last_dump_cpu_seconds", "CPU time of the last dump", seconds(last.cpu_ns))?;
    families.gauge("collector_last_dump_seconds", "Duration of the last dump", seconds(last.wall_ns))?;
    let each = seconds(last.cpu_ns) / last.completeness.emitted.max(1) as f64;
    families.gauge(
        "collector_last_dump_cpu_seconds_per_socket",
        "CPU time of the last dump divided by its sockets",
        each,
    )?;
    let backend = [([("backend", state.backend)], 1.0)];
    families.gauges("collector_backend", "The backend that reads the sockets", backend)
}

fn completeness(state: &State, families: &mut Families<'_, '_>) -> std::fmt::Result {
    let c = &state.totals;
    let results = [("emitted", c.emitted), ("filtered", c.filtered), ("torn", c.torn), ("dropped", c.dropped)];
    let results = results.map(|(result, n)| ([("result", result)], n));
    families.counters("collector_records", "Sockets that the backend found, by result", results)?;
    for (name, help, value) in [
        ("collector_expected", "Sockets that the backend found", c.expected),
        (
            "collector_interrupted",
            "Restarts of a hash chain or a message stream that changed while it was read",
            c.interrupted,
        ),
        ("collector_chains_cut", "Hash chains longer than the limit, of which the rest was not read", c.chains_cut),
        (
            "collector_namespaces_lost",
            "Namespaces that ended or refused access while they were read",
            c.namespaces_lost,
        ),
        ("collector_closes", "Closed sockets that were reported", state.reader.closes),
        ("collector_closes_lost", "Closed sockets that did not fit the ring buffer", state.reader.closes_lost),
        (
            "collector_closes_missed",
            "Changes of sockets' states, closes among them, in an interrupt of the program that reports them",
            state.reader.closes_missed,
        ),
        ("collector_owners_dropped", "Descriptors beyond the limit of a scan for owners", state.reader.owners_dropped),
    ] {
        families.counter(name, help, value)?;
    }
    let errors = state.reader.errors.iter().map(|(kind, n)| ([("kind", *kind)], *n));
    families.counters("collector_errors", "Errors of dumps, by kind", errors)?;
    let last = &state.last.completeness;
    families.gauge("collector_namespaces", "Namespaces in the last dump", last.namespaces as f64)?;
    families.gauge("collector_sockets", "Sockets in the last dump", last.emitted as f64)
}

fn sinks(state: &State, families: &mut Families<'_, '_>) -> std::fmt::Result {
    let all = &state.sinks;
    let rows = all.iter().flat_map(|(sink, a)| {
        [("in", a.rows_in), ("out", a.rows_out), ("dropped", a.rows_dropped)]
            .map(|(what, n)| ([("sink", sink.as_str()), ("what", what)], n))
    });
    families.counters("sink_rows", "Rows that a sink received, delivered and dropped", rows)?;
    let errors = all
        .iter()
        .flat_map(|(sink, a)| a.errors.iter().map(move |(kind, n)| ([("sink", sink.as_str()), ("kind", *kind)], *n)));
    families.counters("sink_errors", "Failures of a sink, by kind", errors)?;
    let lost = all.iter().map(|(sink, a)| ([("sink", sink.as_str())], a.bytes_lost));
    families.counters(
        "sink_lost_bytes",
        "Bytes on disk that were incomplete after a crash, or damaged, and were removed or skipped",
        lost,
    )?;
    let each = |value: fn(&Account) -> f64| all.iter().map(move |(sink, a)| ([("sink", sink.as_str())], value(a)));
    families.gauges(
        "sink_rows_waiting",
        "Rows that wait in memory or in the spool",
        each(|a| a.rows_waiting as f64),
    )?;
    let held_up = each(|a| a.held_up_ms as f64 / 1e3);
    families.gauges("sink_held_up_seconds", "Time in which a full queue blocked the collector", held_up)?;
    families.gauges("sink_spool_bytes", "Bytes of the spool on disk", each(|a| a.spool_bytes as f64))?;
    families.gauges("sink_lag_seconds", "Age of the oldest waiting row", each(|a| a.lag_ms as f64 / 1e3))
}

fn process(families: &mut Families<'_, '_>) -> std::fmt::Result {
    let process = Process::now();
    families.counter_s("collector_cpu_seconds", "CPU time of the process", process.cpu_s)?;
    families.gauge("collector_resident_bytes", "Resident memory of the process", process.rss_bytes as f64)?;
    families.gauge("collector_threads", "Threads of the process", process.threads as f64)?;
    families.gauge("collector_fds", "Open descriptors of the process", process.fds as f64)
}

fn limits(limits: &Limits, families: &mut Families<'_, '_>) -> std::fmt::Result {
    families.gauge("aggregates_series_max", "The maximum number of series", limits.series_max as f64)?;
    families.gauge(
        "aggregates_followed",
        "Sockets whose counters are compared from dump to dump",
        limits.sockets_followed as f64,
    )?;
    for (name, help, value) in [
        (
            "aggregates_rows_in_other",
            "Rows that went to the series `other` because no slot was free",
            limits.rows_in_other,
        ),
        ("aggregates_series_replaced", "Series that lost their slot to another one", limits.series_replaced),
        ("aggregates_rows_unfollowed", "Rows whose counters were not compared", limits.rows_unfollowed),
    ] {
        families.counter(name, help, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_without_dumps_is_late() {
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
