//! `parshall sockets stream`: dump after dump, and between them what has closed.
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parshall_bpf::sockets::closes::Closes;
use parshall_evidence::socket::{Completeness, Group, Kind, Selection, SocketRecord};
use parshall_sys::clock::process_cpu_ns;

use super::backend::choose::{Dumps, choose};
use super::collect::Collector;
use super::format::text::Look;
use super::losses;
use super::losses::Losses;
use super::notes::note;
use super::request::StreamRequest;
use super::sink::prometheus::self_metrics::{Board, DumpCost, Standing};
use super::sink::{Account, Shared, Sink, SinkRequest};

/// Bytes of the ring through which closed sockets are told: 25,000 of them, and the reader wakes at an eighth of it.
const CLOSES_RING_BYTES: u32 = 16 << 20;
/// Closed sockets that may wait for the end of a dump, about 600 bytes each.
const PENDING_MAX: usize = 50_000;
/// How long sinks may go on delivering after the end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest sleep: a signal must not wait for more.
const NAP: Duration = Duration::from_millis(200);
/// Dumps in a row that may fail before there is no sense in going on.
const FAILURES_MAX: u32 = 10;

/// Reads until it is told to stop, the count is reached, or nobody reads what it writes.
///
/// # Errors
/// Nothing can be read, or a sink cannot be opened.
pub fn stream(mut request: StreamRequest) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let look = Look { wide: false, stream: true, owners: request.selection.groups.has(Group::Owner) };
    let mut outputs = Outputs::open(std::mem::take(&mut request.to), request.every, look)?;
    let streamed = read(&request, &stop, &mut outputs);
    // Whatever happened: what the sinks hold is delivered, put into spools, or counted.
    outputs.finish();
    streamed.map(|()| ExitCode::SUCCESS)
}

/// Prepares the reader and reads until the end.
fn read(request: &StreamRequest, stop: &AtomicBool, outputs: &mut Outputs) -> anyhow::Result<()> {
    let selection = &request.selection;
    let chosen = choose(request.reading, selection, Dumps::Many)?;
    chosen.notes.iter().for_each(|text| note(text));
    let closes = request.closes.then(|| watch_closes(selection)).flatten();
    let tracks = request.rates || selection.changed;
    let (collector, owners_note) = Collector::new(chosen.backend, selection.clone(), tracks, Dumps::Many);
    owners_note.iter().for_each(|text| note(text));
    let mut reader = Reader { collector, closes, pending: Vec::new(), standing: Standing::default(), failures: 0 };
    let dumped = reader.dumps(request, stop, outputs);
    // Sockets that closed during a dump that failed still wait.
    let closed = reader.report_closed(Instant::now(), outputs);
    if reader.standing.closes_lost > 0 {
        let lost = reader.standing.closes_lost;
        note(&format!("{lost} closed sockets were not told: they came faster than they were read"));
    }
    dumped.and(closed)
}

/// What reads the kernel, dump by dump.
struct Reader {
    collector: Collector,
    closes: Option<Closes>,
    /// Closed sockets that wait for the end of a dump.
    pending: Vec<SocketRecord>,
    standing: Standing,
    /// Dumps that failed since the last that did not.
    failures: u32,
}

impl Reader {
    /// Dump after dump, and between them what has closed.
    fn dumps(&mut self, request: &StreamRequest, stop: &AtomicBool, outputs: &mut Outputs) -> anyhow::Result<()> {
        let mut due = Instant::now();
        let mut dumps = 0;
        while !stop.load(Ordering::Relaxed) && request.count.is_none_or(|count| dumps < count) {
            self.dump(outputs)?;
            dumps += 1;
            // A dump that takes longer than the interval is followed by the next at once, and none is made up for.
            due = (due + request.every).max(Instant::now());
            let last = request.count == Some(dumps);
            while !last && !stop.load(Ordering::Relaxed) && Instant::now() < due {
                self.report_closed(due, outputs)?;
            }
        }
        Ok(())
    }

    /// One dump to all sinks. A dump that fails is told, counted and survived, unless it is the first.
    fn dump(&mut self, outputs: &mut Outputs) -> anyhow::Result<()> {
        let (cpu_ns, begun) = (process_cpu_ns(), Instant::now());
        let (mut refused, mut begun_dump, mut given) = (false, None, 0);
        let Self { collector, closes, pending, .. } = self;
        let result = collector.dump(&mut |dump, rows| {
            // A long dump must not let the ring run over.
            if let Some(closes) = closes.as_mut().filter(|_| pending.len() < PENDING_MAX) {
                closes.drain(pending);
            }
            begun_dump.get_or_insert_with(|| dump.clone());
            given += rows.len() as u64;
            outputs.each(|sink| sink.rows(dump, rows)).inspect_err(|_| refused = true)
        });
        let (dump, completeness) = match result {
            Ok(told) => told,
            Err(error) => {
                self.failures += 1;
                if refused || outputs.shared.board.is_new() || self.failures > FAILURES_MAX {
                    return Err(error);
                }
                outputs.shared.board.failed();
                note(&format!("a dump failed, the next is tried when it is due: {error:#}"));
                // What was given of it stays given: its account says that something is missing.
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
        outputs.shared.board.dumped(self.collector.backend(), cost);
        self.tell_standing(outputs);
        Ok(())
    }

    fn tell_standing(&mut self, outputs: &mut Outputs) {
        self.standing.closes_lost = self.closes.as_ref().map_or(0, |closes| closes.counts().lost);
        self.standing.owners_dropped = self.collector.owners_dropped();
        self.standing.errors = self.collector.errors();
        outputs.shared.board.standing(self.standing.clone());
        outputs.tell();
    }

    /// Waits for closed sockets until `until` or for a nap, and gives them to the sinks.
    fn report_closed(&mut self, until: Instant, outputs: &mut Outputs) -> anyhow::Result<()> {
        let nap = until.saturating_duration_since(Instant::now()).min(NAP);
        let Some(closes) = &mut self.closes else {
            std::thread::sleep(nap);
            return Ok(());
        };
        let mut records = std::mem::take(&mut self.pending);
        closes.wait(if records.is_empty() { nap } else { Duration::ZERO }, &mut records);
        if records.is_empty() {
            return Ok(());
        }
        let standing = &mut self.standing;
        self.collector.closed(&mut records, &mut |dump, rows| {
            standing.closes += rows.len() as u64;
            outputs.each(|sink| sink.rows(dump, rows))
        })
    }
}

/// Watches what closes, if TCP is wanted and the kernel lets us.
fn watch_closes(selection: &Selection) -> Option<Closes> {
    if !selection.kinds.has(Kind::Tcp) {
        return None;
    }
    match Closes::attach(selection, CLOSES_RING_BYTES) {
        Ok(closes) => Some(closes),
        Err(error) => {
            note(&format!("sockets that close between two dumps are not seen: {error}"));
            None
        }
    }
}

/// The sinks, and the board that says how they and the reader are.
struct Outputs {
    begun: Instant,
    losses: Losses,
    /// With the names that tell two of a kind apart.
    sinks: Vec<(String, Box<dyn Sink>)>,
    shared: Shared,
}

impl Outputs {
    fn open(requests: Vec<Box<dyn SinkRequest>>, every: Duration, look: Look) -> anyhow::Result<Self> {
        let mut shared = Shared { look, board: Board::new(Some(every)), endpoint: None };
        let mut sinks: Vec<(String, Box<dyn Sink>)> = Vec::new();
        for request in requests {
            let sink = request.open(&mut shared)?;
            let of_its_kind = sinks.iter().filter(|(_, other)| other.name() == sink.name()).count();
            let name = match of_its_kind {
                0 => sink.name().to_owned(),
                n => format!("{}-{}", sink.name(), n + 1),
            };
            sinks.push((name, sink));
        }
        let mut outputs = Self { begun: Instant::now(), losses: Losses::default(), sinks, shared };
        // What an earlier process left damaged is known now, and may be all that there is to say for long.
        outputs.tell();
        Ok(outputs)
    }

    /// Gives something to all sinks: one that fails keeps nothing from the others. The first failure comes back.
    fn each(&mut self, give: impl Fn(&mut dyn Sink) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let given = self.sinks.iter_mut().map(|(_, sink)| give(sink.as_mut()));
        given.fold(Ok(()), anyhow::Result::and)
    }

    /// Publishes what became of the rows, and says on stderr what was lost.
    fn tell(&mut self) {
        let accounts = self.accounts();
        self.losses.news(self.begun.elapsed(), &accounts).iter().for_each(|text| note(text));
        self.shared.board.sinks(accounts);
    }

    fn accounts(&self) -> Vec<(String, Account)> {
        self.sinks.iter().map(|(name, sink)| (name.clone(), sink.account())).collect()
    }

    /// Ends the sinks and says what did not arrive.
    fn finish(mut self) {
        let sinks = std::mem::take(&mut self.sinks);
        let accounts: Vec<_> = sinks.into_iter().map(|(name, sink)| (name, sink.close(PATIENCE))).collect();
        losses::at_the_end(&accounts).iter().for_each(|text| note(text));
        self.shared.board.sinks(accounts);
    }
}
