//! Parquet, in small row groups.
//!
//! Rows are collected in pieces, each a complete Parquet file with one row group (`piece`). A file is assembled from pieces by
//! copying their bytes and writing a new footer (`file`). So a piece can wait in a queue, and memory is bounded by one piece
//! and the footer. `columns` has the schema.
mod columns;
pub mod file;
pub mod piece;

use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

use super::encoder::Encoder;
use file::Assembler;
use piece::Pieces;

#[derive(Debug, Default)]
pub struct Parquet {
    pieces: Pieces,
    file: Assembler,
}

impl Encoder for Parquet {
    fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(file::MAGIC);
    }

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>) {
        for row in rows {
            self.pieces.row(dump, row);
            if self.pieces.is_full() {
                self.append(out);
            }
        }
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness, _: &mut Vec<u8>) {
        self.pieces.end(dump, completeness);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.append(out);
        out.extend(self.file.footer());
    }
}

impl Parquet {
    fn append(&mut self, out: &mut Vec<u8>) {
        let piece = self.pieces.take();
        let data = self.file.add(&piece).expect("a piece that was just made");
        out.extend_from_slice(&data);
    }
}

#[cfg(test)]
mod tests;
