//! `parshall sockets once`.
use std::io::stdout;
use std::process::ExitCode;

use parshall_core::sockets::row_buffer::RowBuffer;
use parshall_core::sockets::sort::SortKey;
use parshall_evidence::socket::Group;
use tracing::info;

use crate::backend::choose::{Dumps, choose};
use crate::collect::Collector;
use crate::format::text::TableStyle;
use crate::format::{SocketFormat, encoder};
use crate::request::OnceRequest;
use crate::sink::account::Sink;
use crate::sink::stdout::Stdout;

/// Reads all sockets once and prints them.
///
/// # Errors
/// No backend works, or the reader of standard output has closed it.
pub fn once(request: &OnceRequest) -> anyhow::Result<ExitCode> {
    let selection = &request.selection;
    // A table shows no attribute, but may be sorted by one.
    let by_attribute = request.sort.iter().any(|key| key.group() == Some(Group::Attributes));
    let is_table = request.format == SocketFormat::Text && !request.wide && !by_attribute;
    let dumps = if is_table { Dumps::Table } else { Dumps::One };
    let chosen = choose(request.reading, selection, dumps)?;
    chosen.notes.iter().for_each(|text| info!("{text}"));
    let style = TableStyle { wide: request.wide, stream: false, owners: selection.groups.has(Group::Owner) };
    let (mut collector, owners_note) = Collector::new(chosen.backend, selection.clone(), false, dumps);
    owners_note.iter().for_each(|text| info!("{text}"));
    let mut sink = Stdout::new(encoder(request.format, style), stdout().lock());
    // Rows can be sorted or cut only when all of them are there. A table is always sorted.
    let buffers = !request.sort.is_empty() || request.limit.is_some() || request.format == SocketFormat::Text;
    let sort = if request.sort.is_empty() { vec![SortKey::LISTENERS_LAST] } else { request.sort.clone() };
    let mut buffer = RowBuffer::new(sort, request.limit.unwrap_or(usize::MAX));
    let (dump, completeness) = collector.dump(&mut |dump, rows| {
        if buffers {
            rows.iter().for_each(|row| buffer.add(row));
            return Ok(());
        }
        sink.rows(dump, rows)
    })?;
    buffer.drain(&mut |rows| sink.rows(&dump, rows))?;
    sink.end(&dump, &completeness)?;
    sink.finish()?;
    Ok(ExitCode::SUCCESS)
}
