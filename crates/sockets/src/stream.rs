//! `parshall sockets stream`: periodic dumps, and between them the sockets that close.
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parshall_bpf::sockets::closes::Closes;
use parshall_evidence::socket::{Completeness, Group, Kind, Selection, SocketRecord};
use parshall_host::end_signals::end_signals;
use parshall_host::error::{UserError, is_broken_pipe};
use parshall_sys::clock::process_cpu_ns;
use tracing::{info, warn};

use crate::backend::choose::{Dumps, choose};
use crate::collect::Collector;
use crate::format::text::TableStyle;
use crate::losses::{Losses, Undelivered, undelivered};
use crate::request::StreamRequest;
use crate::sink::account::{Account, Sink};
use crate::sink::prometheus::self_metrics::{DumpCost, ReaderCounts, Status};
use crate::sink::request::{Shared, SinkRequest};

/// Size of the ring buffer for closed sockets: 25,000 of them. The reader wakes when an eighth is full.
const CLOSES_RING_BYTES: u32 = 16 << 20;
/// The maximum number of closed sockets that wait for the end of a dump, about 600 bytes each.
const PENDING_MAX: usize = 50_000;
/// How long sinks may deliver waiting rows after the end of the stream.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest sleep, and so the longest delay of a signal.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// The stream ends when more dumps than this fail in a row.
const FAILURES_MAX: u32 = 10;

/// Reads until SIGINT, SIGTERM or SIGHUP, until the requested number of dumps, or until standard output is closed.
///
/// # Errors
/// No backend works, dumps keep failing, a sink cannot be opened, or one did not deliver all rows.
pub fn stream(mut request: StreamRequest) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in end_signals() {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let style = TableStyle { wide: false, stream: true, owners: request.selection.groups.has(Group::Owner) };
    let mut outputs = Outputs::open(std::mem::take(&mut request.sinks), request.every, style)?;
    let streamed = read(&request, &stop, &mut outputs);
    // After an error too, waiting rows are delivered, spooled or counted as lost.
    let Undelivered { waiting, mut lost, hint } = outputs.finish();
    waiting.iter().for_each(|text| warn!("{text}"));
    // A reader of standard output that has left is no failure, but what another sink lost is.
    let failure = streamed.err().filter(|error| lost.is_empty() || !is_broken_pipe(error));
    let last = if failure.is_none() { lost.pop() } else { None };
    lost.iter().for_each(|text| warn!("{text}"));
    match (failure, last) {
        (Some(error), _) => Err(error),
        (None, Some(text)) => Err(UserError::new(text, hint).into()),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}

/// Opens the backend and reads until the end.
fn read(request: &StreamRequest, stop: &AtomicBool, outputs: &mut Outputs) -> anyhow::Result<()> {
    let selection = &request.selection;
    let chosen = choose(request.reading, selection, Dumps::Many)?;
    chosen.notes.iter().for_each(|text| info!("{text}"));
    let closes = request.closes.then(|| watch_closes(selection)).flatten();
    let tracks = request.rates || selection.changed;
    let (collector, owners_note) = Collector::new(chosen.backend, selection.clone(), tracks, Dumps::Many);
    owners_note.iter().for_each(|text| info!("{text}"));
    let mut reader = Reader {
        collector,
        closes,
        pending: Vec::new(),
        counts: ReaderCounts::default(),
        failures: 0,
        failures_in_all: 0,
    };
    let dumped = reader.dumps(request, stop, outputs);
    // Sockets that closed during a failed dump still wait.
    let closed = reader.report_closed(Instant::now(), outputs);
    if reader.counts.closes_lost > 0 {
        warn!("{} closed sockets were not reported: the ring buffer was full", reader.counts.closes_lost);
    }
    if reader.counts.closes_missed > 0 {
        warn!(
            "up to {} closed sockets were not reported: the program was at work on the same CPU",
            reader.counts.closes_missed
        );
    }
    dumped.and(closed)?;
    match (reader.failures_in_all, request.count) {
        // A caller that asks for a number of dumps has to know that there are fewer.
        (failed @ 1.., Some(count)) => anyhow::bail!("{failed} of {count} dumps failed"),
        _ => Ok(()),
    }
}

/// Reads dumps and closed sockets from the kernel.
struct Reader {
    collector: Collector,
    closes: Option<Closes>,
    /// Closed sockets that wait for the end of a dump.
    pending: Vec<SocketRecord>,
    counts: ReaderCounts,
    /// Dumps that failed since the last successful one.
    failures: u32,
    failures_in_all: u64,
}

impl Reader {
    /// Reads periodic dumps, and between them the sockets that close.
    fn dumps(&mut self, request: &StreamRequest, stop: &AtomicBool, outputs: &mut Outputs) -> anyhow::Result<()> {
        let mut due = Instant::now();
        let mut dumps = 0;
        while !stop.load(Ordering::Relaxed) && request.count.is_none_or(|count| dumps < count) {
            self.dump(outputs)?;
            dumps += 1;
            // A dump that takes longer than the interval is followed by the next at once. Missed ones are not repeated.
            due = (due + request.every).max(Instant::now());
            let last = request.count == Some(dumps);
            // Also when the next dump is due already: what closed before it belongs before it.
            while !last && !stop.load(Ordering::Relaxed) {
                self.report_closed(due, outputs)?;
                if Instant::now() >= due {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Passes one dump to all sinks. A failed dump is logged and counted, and ends the stream only if it is the first.
    fn dump(&mut self, outputs: &mut Outputs) -> anyhow::Result<()> {
        let (cpu_ns, begun) = (process_cpu_ns(), Instant::now());
        let (mut refused, mut begun_dump, mut given) = (false, None, 0);
        let Self { collector, closes, pending, .. } = self;
        let result = collector.dump(&mut |dump, rows| {
            // The ring buffer must not overflow during a long dump.
            if let Some(closes) = closes.as_mut().filter(|_| pending.len() < PENDING_MAX) {
                closes.drain(pending);
            }
            begun_dump.get_or_insert_with(|| dump.clone());
            given += rows.len() as u64;
            outputs.each(|sink| sink.rows(dump, rows)).inspect_err(|_| refused = true)
        });
        let (dump, completeness) = match result {
            Ok(done) => done,
            Err(error) => {
                self.failures += 1;
                self.failures_in_all += 1;
                if refused || outputs.shared.status.is_new() || self.failures > FAILURES_MAX {
                    return Err(error);
                }
                outputs.shared.status.failed();
                warn!("a dump failed, and the next one follows when it is due: {error:#}");
                // The rows that sinks received stay. `namespaces_lost` marks the dump as incomplete.
                let Some(dump) = begun_dump else { return Ok(()) };
                let broken =
                    Completeness { expected: given, emitted: given, namespaces_lost: 1, ..Completeness::default() };
                return outputs.each(|sink| sink.end(&dump, &broken));
            }
        };
        self.failures = 0;
        outputs.each(|sink| sink.end(&dump, &completeness))?;
        let cost = DumpCost {
            cpu_ns: process_cpu_ns().saturating_sub(cpu_ns),
            wall_ns: begun.elapsed().as_nanos() as u64,
            completeness,
        };
        outputs.shared.status.dumped(self.collector.backend(), cost);
        self.publish_counts(outputs);
        Ok(())
    }

    fn publish_counts(&mut self, outputs: &mut Outputs) {
        let closes = self.closes.as_ref().map(Closes::counts).unwrap_or_default();
        (self.counts.closes_lost, self.counts.closes_missed) = (closes.lost, closes.missed);
        self.counts.owners_dropped = self.collector.owners_dropped();
        self.counts.errors = self.collector.errors();
        outputs.shared.status.reader(self.counts.clone());
        outputs.publish();
    }

    /// Waits for closed sockets until `until`, but at most [`SLEEP_MAX`], and passes them to the sinks.
    fn report_closed(&mut self, until: Instant, outputs: &mut Outputs) -> anyhow::Result<()> {
        let timeout = until.saturating_duration_since(Instant::now()).min(SLEEP_MAX);
        let Some(closes) = &mut self.closes else {
            std::thread::sleep(timeout);
            return Ok(());
        };
        let mut records = std::mem::take(&mut self.pending);
        closes.wait(if records.is_empty() { timeout } else { Duration::ZERO }, &mut records);
        if records.is_empty() {
            return Ok(());
        }
        let counts = &mut self.counts;
        self.collector.closed(&mut records, &mut |dump, rows| {
            counts.closes += rows.len() as u64;
            outputs.each(|sink| sink.rows(dump, rows))
        })
    }
}

/// Watches for TCP sockets that close, if the selection includes TCP and the kernel permits it.
fn watch_closes(selection: &Selection) -> Option<Closes> {
    if !selection.kinds.has(Kind::Tcp) {
        return None;
    }
    match Closes::attach(selection, CLOSES_RING_BYTES) {
        Ok(closes) => Some(closes),
        Err(error) => {
            info!("sockets that close between two dumps are not reported: {error}");
            None
        }
    }
}

/// The sinks, and the status of the collector.
struct Outputs {
    begun: Instant,
    losses: Losses,
    /// Each with its name; a second `kafka` is called `kafka-2`.
    sinks: Vec<(String, Box<dyn Sink>)>,
    shared: Shared,
}

impl Outputs {
    fn open(requests: Vec<Box<dyn SinkRequest>>, every: Duration, style: TableStyle) -> anyhow::Result<Self> {
        let mut shared = Shared { style, status: Status::new(Some(every)), endpoint: None };
        let mut sinks: Vec<(String, Box<dyn Sink>)> = Vec::new();
        for request in requests {
            let sink = request.open(&mut shared)?;
            let same_kind = sinks.iter().filter(|(_, other)| other.name() == sink.name()).count();
            let name = match same_kind {
                0 => sink.name().to_owned(),
                n => format!("{}-{}", sink.name(), n + 1),
            };
            sinks.push((name, sink));
        }
        let mut outputs = Self { begun: Instant::now(), losses: Losses::default(), sinks, shared };
        // Damage that an earlier process left is known now, and is not reported again.
        outputs.publish();
        Ok(outputs)
    }

    /// Calls `give` for all sinks, also after one has failed, and returns the first error.
    fn each(&mut self, give: impl Fn(&mut dyn Sink) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let given = self.sinks.iter_mut().map(|(_, sink)| give(sink.as_mut()));
        given.fold(Ok(()), anyhow::Result::and)
    }

    /// Publishes the accounts of the sinks, and logs new losses.
    fn publish(&mut self) {
        let accounts = self.accounts();
        self.losses.new_lines(self.begun.elapsed(), &accounts).iter().for_each(|text| warn!("{text}"));
        self.shared.status.sinks(accounts);
    }

    fn accounts(&self) -> Vec<(String, Account)> {
        self.sinks.iter().map(|(name, sink)| (name.clone(), sink.account())).collect()
    }

    /// Closes the sinks, and returns what they did not deliver.
    fn finish(mut self) -> Undelivered {
        let sinks = std::mem::take(&mut self.sinks);
        let accounts: Vec<_> = sinks.into_iter().map(|(name, sink)| (name, sink.close(CLOSE_TIMEOUT))).collect();
        let undelivered = undelivered(&accounts);
        self.shared.status.sinks(accounts);
        undelivered
    }
}
