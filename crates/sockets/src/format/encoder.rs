//! The seam of the formats: an encoder, to which rows are passed dump by dump.
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

/// The zstd level of every compressed format: JSON shrinks to a tenth, and the next levels cost twice the time for a tenth of
/// that.
pub const ZSTD_LEVEL: i32 = 1;

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
