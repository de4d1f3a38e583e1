//! Envelopes: a message to a broker with many rows of one dump, of limited size.
use parshall_core::sockets::{Dump, Row, varint};
use parshall_evidence::socket::Completeness;

use crate::format::protobuf::RowWriter;
use crate::sink::delivery::Chunk;

/// The tag of `Envelope.rows`: field 1, length-delimited.
const ROWS: u8 = 1 << 3 | 2;

/// The minimum of the limit: the completeness of a dump must always fit.
pub const LIMIT_BYTES_MIN: usize = 1024;

/// Whether the length of an envelope precedes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The message is the envelope, as most consumers expect.
    Bare,
    /// A varint with the length comes first, as ClickHouse's ProtobufList expects.
    Delimited,
}

/// Adds rows to envelopes. A row is encoded once, and its exact size is known before it is added.
#[derive(Debug)]
pub struct EnvelopeBuilder {
    limit_bytes: usize,
    framing: Framing,
    row: RowWriter,
    /// Number and time of the current dump.
    dump: Option<(u64, u64)>,
    /// The envelope without its length.
    body: Vec<u8>,
    rows: u32,
    sequence: u64,
    at_unix_ns: u64,
    too_large: u64,
}

impl EnvelopeBuilder {
    /// A builder of envelopes of at most `limit_bytes` (at least [`LIMIT_BYTES_MIN`]), including the length before them.
    pub fn new(limit_bytes: usize, framing: Framing) -> Self {
        Self {
            limit_bytes: limit_bytes.max(LIMIT_BYTES_MIN),
            framing,
            row: RowWriter::default(),
            dump: None,
            body: Vec::new(),
            rows: 0,
            sequence: 0,
            at_unix_ns: 0,
            too_large: 0,
        }
    }

    /// Adds a row. An envelope that is full, or belongs to another dump, is passed to `take` before. A row that is too large for
    /// any envelope is left out and counted ([`Self::too_large`]).
    pub fn row(&mut self, dump: &Dump, row: &Row<'_>, take: &mut dyn FnMut(Chunk)) {
        self.begin_dump(dump, take);
        let length = self.row.row(row);
        if self.put(length, take) {
            self.rows += 1;
        } else {
            self.too_large += 1;
        }
    }

    /// Ends a dump: adds its completeness as the last row, and passes the envelope to `take`.
    pub fn end(&mut self, dump: &Dump, completeness: &Completeness, take: &mut dyn FnMut(Chunk)) {
        self.begin_dump(dump, take);
        let length = self.row.end(completeness);
        self.put(length, take);
        self.flush(take);
    }

    /// Passes the envelope to `take`, unless it is empty.
    pub fn flush(&mut self, take: &mut dyn FnMut(Chunk)) {
        if self.body.is_empty() {
            return;
        }
        let mut bytes = Vec::with_capacity(self.wire_bytes());
        if self.framing == Framing::Delimited {
            varint::append(&mut bytes, self.body.len() as u64);
        }
        bytes.extend_from_slice(&self.body);
        self.body.clear();
        let rows = std::mem::take(&mut self.rows);
        take(Chunk { sequence: self.sequence, at_unix_ns: self.at_unix_ns, rows, bytes: bytes.into() });
    }

    /// The exact size of the envelope, with the length before it.
    pub fn wire_bytes(&self) -> usize {
        self.wire_bytes_of(self.body.len())
    }

    /// The number of rows in the envelope, without the completeness of a dump.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows that were too large for any envelope, since the start.
    pub fn too_large(&self) -> u64 {
        self.too_large
    }

    fn wire_bytes_of(&self, body: usize) -> usize {
        match self.framing {
            Framing::Bare => body,
            Framing::Delimited => varint::length(body as u64) + body,
        }
    }

    fn begin_dump(&mut self, dump: &Dump, take: &mut dyn FnMut(Chunk)) {
        let identity = (dump.sequence, dump.at_unix_ns);
        if self.dump != Some(identity) {
            self.flush(take);
            self.row.dump(dump);
            self.dump = Some(identity);
            (self.sequence, self.at_unix_ns) = identity;
        }
    }

    /// Adds the row that was encoded last. Returns false if it fits no envelope.
    fn put(&mut self, length: usize, take: &mut dyn FnMut(Chunk)) -> bool {
        let cost = 1 + varint::length(length as u64) + length;
        if self.wire_bytes_of(cost) > self.limit_bytes {
            return false;
        }
        if self.wire_bytes_of(self.body.len() + cost) > self.limit_bytes {
            self.flush(take);
        }
        self.body.push(ROWS);
        varint::append(&mut self.body, length as u64);
        self.row.append(&mut self.body);
        true
    }
}
