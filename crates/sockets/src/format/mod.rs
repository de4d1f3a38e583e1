//! The seam of the formats: one file each. An encoder appends bytes that stand on their own wherever a portion ends.
pub mod envelope;
pub mod json;
pub mod parquet;
pub mod protobuf;
pub mod text;

use clap::ValueEnum;
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

/// What is written to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SocketFormat {
    /// A table for people
    Text,
    /// One object per socket per line
    Json,
    /// Length-delimited messages of proto/parshall/sockets/v1
    Protobuf,
    /// One Parquet file
    Parquet,
}

impl std::fmt::Display for SocketFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// The encoder of a format; `look` is that of a table.
pub fn encoder(format: SocketFormat, look: text::Look) -> Box<dyn Encoder> {
    match format {
        SocketFormat::Text => Box::new(text::Text::new(look)),
        SocketFormat::Json => Box::<json::Json>::default(),
        SocketFormat::Protobuf => Box::<protobuf::Protobuf>::default(),
        SocketFormat::Parquet => Box::<parquet::Parquet>::default(),
    }
}

/// Turns rows into bytes.
pub trait Encoder {
    /// The beginning of a file or stream (a heading, a schema); nothing in most formats.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// A portion of a dump.
    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>);

    /// Appends a portion of what an encoder has held back until all rows of the dump are known; false when that was the last.
    /// Whoever calls it again and again before [`Encoder::end`] need not have room for all of it at once.
    fn rest(&mut self, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// The end of a dump, with what was held back and the account of it.
    fn end(&mut self, dump: &Dump, completeness: &Completeness, out: &mut Vec<u8>);

    /// The end of the file or stream.
    fn finish(&mut self, out: &mut Vec<u8>);
}

#[cfg(test)]
mod tests;
