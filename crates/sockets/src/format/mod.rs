//! The seam of the formats: one file each. An encoder appends bytes that stand on their own wherever a portion ends.
pub mod envelope;
pub mod json;
pub mod parquet;
pub mod protobuf;
pub mod text;

use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

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
mod bench;
#[cfg(test)]
pub mod samples;
#[cfg(test)]
mod tests;
