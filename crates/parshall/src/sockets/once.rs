//! `parshall sockets once`.
use std::io::stdout;
use std::process::ExitCode;
use std::time::Duration;

use parshall_core::sockets::sort::sort;
use parshall_core::sockets::{Dump, Owner, Row};
use parshall_evidence::socket::SocketRecord;

use super::backend::choose::choose;
use super::collect::Collector;
use super::format::Encoder;
use super::format::json::Json;
use super::format::parquet::Parquet;
use super::format::protobuf::Protobuf;
use super::format::text::Text;
use super::request::{OnceRequest, SocketFormat};
use super::sink::Sink;
use super::sink::stdout::Stdout;
use super::{note, wanted};

/// The encoder of a format.
pub fn encoder(format: SocketFormat, wide: bool) -> Box<dyn Encoder> {
    match format {
        SocketFormat::Text => Box::new(Text::new(wide)),
        SocketFormat::Json => Box::<Json>::default(),
        SocketFormat::Protobuf => Box::<Protobuf>::default(),
        SocketFormat::Parquet => Box::<Parquet>::default(),
    }
}

/// Reads all sockets once and prints them.
///
/// # Errors
/// Nothing can be read, or nobody reads.
pub fn once(request: &OnceRequest) -> anyhow::Result<ExitCode> {
    let selection = wanted::resolve(&request.wanted)?;
    let chosen = choose(request.reading, &selection)?;
    chosen.notes.iter().for_each(|text| note(text));
    let (mut collector, owners_note) = Collector::new(chosen.backend, selection, false);
    owners_note.iter().for_each(|text| note(text));
    let mut sink = Stdout::new(encoder(request.format, request.wide), stdout().lock());
    // In order, or a part of them: all of them are needed first. A table is for people, and people need an order.
    let whole = !request.sort.is_empty() || request.limit.is_some() || request.format == SocketFormat::Text;
    let mut kept = Vec::new();
    let (dump, completeness) = collector.dump(&mut |dump, rows| {
        if whole {
            kept.extend(rows.iter().map(Kept::of));
            return Ok(());
        }
        sink.rows(dump, rows)
    })?;
    if whole {
        give(&kept, request, &dump, &mut sink)?;
    }
    sink.end(&dump, &completeness)?;
    Box::new(sink).close(Duration::ZERO);
    Ok(ExitCode::SUCCESS)
}

fn give(kept: &[Kept], request: &OnceRequest, dump: &Dump, sink: &mut dyn Sink) -> anyhow::Result<()> {
    let mut rows: Vec<Row<'_>> = kept.iter().map(Kept::row).collect();
    sort(&mut rows, &request.sort);
    rows.truncate(request.limit.unwrap_or(usize::MAX));
    sink.rows(dump, &rows)
}

/// A row that outlives its batch.
struct Kept {
    record: SocketRecord,
    socket: u64,
    name: Box<[u8]>,
    netns: Box<str>,
    cgroup: Box<str>,
    container: Box<str>,
    pod: Box<str>,
    owners: Box<[Owner]>,
}

impl Kept {
    fn of(row: &Row<'_>) -> Self {
        Self {
            record: *row.record,
            socket: row.socket,
            name: row.name.into(),
            netns: row.netns.into(),
            cgroup: row.cgroup.into(),
            container: row.container.into(),
            pod: row.pod.into(),
            owners: row.owners.into(),
        }
    }

    fn row(&self) -> Row<'_> {
        Row {
            socket: self.socket,
            name: &self.name,
            netns: &self.netns,
            cgroup: &self.cgroup,
            container: &self.container,
            pod: &self.pod,
            owners: &self.owners,
            ..Row::bare(&self.record)
        }
    }
}
