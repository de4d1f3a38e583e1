//! `parshall sockets stream`: dump after dump, and between them what has closed.
use std::io::stdout;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parshall_bpf::sockets::closes::{Closes, Port, Wanted};
use parshall_core::sockets::{Kind, Selection, Side};
use parshall_evidence::socket::SocketRecord;

use super::backend::choose::choose;
use super::collect::Collector;
use super::once::encoder;
use super::request::{Destination, StreamRequest};
use super::sink::Sink;
use super::sink::files::Files;
use super::sink::stdout::Stdout;
use super::{note, wanted};

/// Bytes of the ring through which closed sockets are told: 25,000 of them, and the reader wakes at an eighth of it.
const CLOSES_RING_BYTES: u32 = 16 << 20;
/// How long sinks may go on delivering after the end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest sleep: a signal must not wait for more.
const NAP: Duration = Duration::from_millis(200);

/// Reads until it is told to stop, the count is reached, or nobody reads what it writes.
///
/// # Errors
/// Nothing can be read, or a sink cannot be opened.
pub fn stream(request: StreamRequest) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let selection = wanted::resolve(&request.wanted)?;
    let mut sinks = open_sinks(request.to)?;
    let chosen = choose(request.reading, &selection)?;
    chosen.notes.iter().for_each(|text| note(text));
    let mut closes = request.closes.then(|| watch_closes(&selection)).flatten();
    let tracks = request.rates || selection.changed;
    let (mut collector, owners_note) = Collector::new(chosen.backend, selection, tracks);
    owners_note.iter().for_each(|text| note(text));
    let mut due = Instant::now();
    let mut dumps = 0;
    while !stop.load(Ordering::Relaxed) && request.count.is_none_or(|count| dumps < count) {
        let told = collector.dump(&mut |dump, rows| sinks.iter_mut().try_for_each(|sink| sink.rows(dump, rows)))?;
        for sink in &mut sinks {
            sink.end(&told.0, &told.1)?;
        }
        dumps += 1;
        // A dump that takes longer than the interval is followed by the next at once, and none is made up for.
        due = (due + request.every).max(Instant::now());
        let last = request.count == Some(dumps);
        while !last && !stop.load(Ordering::Relaxed) && Instant::now() < due {
            tell_closed(&mut closes, due, &mut collector, &mut sinks)?;
        }
    }
    tell_closed(&mut closes, Instant::now(), &mut collector, &mut sinks)?;
    finish(sinks, closes.as_ref());
    Ok(ExitCode::SUCCESS)
}

fn open_sinks(to: Destination) -> anyhow::Result<Vec<Box<dyn Sink>>> {
    Ok(match to {
        Destination::Stdout(format) => vec![Box::new(Stdout::new(encoder(format, false), stdout()))],
        Destination::Files(config) => vec![Box::new(Files::start(config)?)],
    })
}

/// Watches what closes, if TCP is wanted and the kernel lets us.
fn watch_closes(selection: &Selection) -> Option<Closes> {
    if !selection.kinds.has(Kind::Tcp) {
        return None;
    }
    let port = |&(side, port): &(Side, u16)| Port { port, local: side != Side::Remote, remote: side != Side::Local };
    let wanted = Wanted {
        groups: selection.groups,
        states: selection.states,
        namespaces: selection.namespaces.clone(),
        ports: selection.ports.iter().map(port).collect(),
    };
    match Closes::attach(&wanted, CLOSES_RING_BYTES) {
        Ok(closes) => Some(closes),
        Err(error) => {
            note(&format!("sockets that close between two dumps are not seen: {error}"));
            None
        }
    }
}

/// Waits for closed sockets until `until` or for a nap, and gives them to the sinks.
fn tell_closed(
    closes: &mut Option<Closes>,
    until: Instant,
    collector: &mut Collector,
    sinks: &mut [Box<dyn Sink>],
) -> anyhow::Result<()> {
    let nap = until.saturating_duration_since(Instant::now()).min(NAP);
    let Some(closes) = closes else {
        std::thread::sleep(nap);
        return Ok(());
    };
    let mut records: Vec<SocketRecord> = Vec::new();
    closes.wait(nap, &mut records);
    if records.is_empty() {
        return Ok(());
    }
    collector.closed(&records, &mut |dump, rows| sinks.iter_mut().try_for_each(|sink| sink.rows(dump, rows)))
}

/// Ends the sinks and says what did not arrive.
fn finish(sinks: Vec<Box<dyn Sink>>, closes: Option<&Closes>) {
    for sink in sinks {
        let name = sink.name().to_owned();
        let account = sink.close(PATIENCE);
        let missing = account.rows_dropped + account.rows_waiting;
        if missing > 0 {
            let why = account.last_error.unwrap_or_else(|| "it was too slow".to_owned());
            note(&format!("{name}: {missing} of {} rows did not arrive: {why}", account.rows_in));
        }
    }
    if let Some(lost) = closes.map(|closes| closes.counts().lost).filter(|lost| *lost > 0) {
        note(&format!("{lost} closed sockets were not told: they came faster than they were read"));
    }
}
