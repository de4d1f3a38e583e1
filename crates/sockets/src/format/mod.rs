//! The formats, one file each. What an encoder appends between two calls is complete for its readers.
pub mod json;
pub mod parquet;
pub mod protobuf;
pub mod text;

use clap::ValueEnum;
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

/// The zstd level of every compressed format: JSON shrinks to a tenth, and the next levels cost twice the time for a tenth of
/// that.
pub const ZSTD_LEVEL: i32 = 1;

/// A format for standard output or for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SocketFormat {
    /// A table for people; not for files
    Text,
    /// One object per socket per line; files are compressed with zstd
    Json,
    /// Length-delimited messages of proto/parshall/sockets/v1
    Protobuf,
    /// The same, compressed with zstd
    ProtobufZstd,
    /// Parquet
    Parquet,
}

impl std::fmt::Display for SocketFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// The encoder of a format for a stream; `style` is that of a table.
pub fn encoder(format: SocketFormat, style: text::TableStyle) -> Box<dyn Encoder> {
    match format {
        SocketFormat::Text => Box::new(text::Text::new(style)),
        SocketFormat::Json => Box::<json::Json>::default(),
        SocketFormat::Protobuf => Box::<protobuf::Protobuf>::default(),
        SocketFormat::ProtobufZstd => Box::<protobuf::ProtobufZstd>::default(),
        SocketFormat::Parquet => Box::<parquet::Parquet>::default(),
    }
}

/// Appends rows, encoded, to a buffer.
pub trait Encoder {
    /// Appends the beginning of a file or stream (a heading, magic bytes). Most formats have none.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// Appends rows of a dump.
    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>);

    /// Appends a portion of the rows that an encoder has held back until the dump is complete; false when that was the last
    /// one. Calling it until then, before [`Encoder::end`], keeps the buffer small.
    fn drain(&mut self, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Appends the end of a dump: rows that are still held back, and how complete it is.
    fn end(&mut self, dump: &Dump, completeness: &Completeness, out: &mut Vec<u8>);

    /// Appends the end of the file or stream.
    fn finish(&mut self, out: &mut Vec<u8>);
}

#[cfg(test)]
mod tests;
