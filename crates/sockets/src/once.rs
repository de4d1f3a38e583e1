//! `parshall sockets once`.
use std::io::stdout;
use std::process::ExitCode;
use std::time::Duration;

use parshall_core::sockets::keep::Keep;
use parshall_evidence::socket::Group;

use super::backend::choose::{Dumps, choose};
use super::collect::Collector;
use super::format::text::Look;
use super::format::{SocketFormat, encoder};
use super::notes::note;
use super::request::OnceRequest;
use super::sink::Sink;
use super::sink::stdout::Stdout;

/// Reads all sockets once and prints them.
///
/// # Errors
/// Nothing can be read, or nobody reads.
pub fn once(request: &OnceRequest) -> anyhow::Result<ExitCode> {
    let selection = &request.selection;
    let chosen = choose(request.reading, selection, Dumps::One)?;
    chosen.notes.iter().for_each(|text| note(text));
    let look = Look { wide: request.wide, stream: false, owners: selection.groups.has(Group::Owner) };
    let (mut collector, owners_note) = Collector::new(chosen.backend, selection.clone(), false, Dumps::One);
    owners_note.iter().for_each(|text| note(text));
    let mut sink = Stdout::new(encoder(request.format, look), stdout().lock());
    // In order, or a part of them: all of them are needed first. A table is for people, and people need an order.
    let whole = !request.sort.is_empty() || request.limit.is_some() || request.format == SocketFormat::Text;
    let mut keep = Keep::new(request.sort.clone(), request.limit.unwrap_or(usize::MAX));
    let (dump, completeness) = collector.dump(&mut |dump, rows| {
        if whole {
            rows.iter().for_each(|row| keep.add(row));
            return Ok(());
        }
        sink.rows(dump, rows)
    })?;
    keep.give(&mut |rows| sink.rows(&dump, rows))?;
    sink.end(&dump, &completeness)?;
    Box::new(sink).close(Duration::ZERO);
    Ok(ExitCode::SUCCESS)
}
