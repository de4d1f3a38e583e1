//! Envelopes: one message to a broker, many rows of one dump, never larger than the cap.
use parshall_core::sockets::{Dump, Row, varint};
use parshall_evidence::socket::Completeness;

use crate::format::protobuf::RowWriter;
use crate::sink::delivery::Chunk;

/// The tag of `Envelope.rows`: field 1, length-delimited.
const ROWS: u8 = 1 << 3 | 2;

/// No cap is smaller: the account of a dump must always fit.
pub const MIN_CAP_BYTES: usize = 1024;

/// Whether an envelope is preceded by its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The message is the envelope, as most readers of brokers expect.
    Bare,
    /// A varint with its length comes first, as ClickHouse's ProtobufList expects.
    Delimited,
}

/// Fills envelopes. A row is encoded once; its exact size on the wire is known before it is added.
#[derive(Debug)]
pub struct EnvelopeBuilder {
    cap_bytes: usize,
    framing: Framing,
    row: RowWriter,
    /// The dump that `row` is set to write.
    written: Option<(u64, u64)>,
    /// The envelope without its length.
    body: Vec<u8>,
    rows: u32,
    sequence: u64,
    at_unix_ns: u64,
    too_large: u64,
}

impl EnvelopeBuilder {
    /// Envelopes of at most so many bytes on the wire, their own length included if they carry it; at least
    /// [`MIN_CAP_BYTES`].
    pub fn new(cap_bytes: usize, framing: Framing) -> Self {
        Self {
            cap_bytes: cap_bytes.max(MIN_CAP_BYTES),
            framing,
            row: RowWriter::default(),
            written: None,
            body: Vec::new(),
            rows: 0,
            sequence: 0,
            at_unix_ns: 0,
            too_large: 0,
        }
    }

    /// Adds a row. What is full before it (or belongs to another dump) is given to `take`. A row that is larger than the
    /// cap all by itself is left out and counted: see [`Self::too_large`].
    pub fn row(&mut self, dump: &Dump, row: &Row<'_>, take: &mut dyn FnMut(Chunk)) {
        self.turn_to(dump, take);
        let length = self.row.row(row);
        if self.put(length, take) {
            self.rows += 1;
        } else {
            self.too_large += 1;
        }
    }

    /// Ends a dump: its account is the last row of its last envelope, which is given to `take` with it.
    pub fn end(&mut self, dump: &Dump, completeness: &Completeness, take: &mut dyn FnMut(Chunk)) {
        self.turn_to(dump, take);
        let length = self.row.end(completeness);
        self.put(length, take);
        self.flush(take);
    }

    /// Gives out what is there, if anything.
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

    /// The exact size of the envelope on the wire, were it given out now.
    pub fn wire_bytes(&self) -> usize {
        self.wire_bytes_of(self.body.len())
    }

    /// How many rows are in it; the account of a dump is none.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows that were left out because one alone was larger than the cap, since the beginning.
    pub fn too_large(&self) -> u64 {
        self.too_large
    }

    fn wire_bytes_of(&self, body: usize) -> usize {
        match self.framing {
            Framing::Bare => body,
            Framing::Delimited => varint::length(body as u64) + body,
        }
    }

    fn turn_to(&mut self, dump: &Dump, take: &mut dyn FnMut(Chunk)) {
        let identity = (dump.sequence, dump.at_unix_ns);
        if self.written != Some(identity) {
            self.flush(take);
            self.row.dump(dump);
            self.written = Some(identity);
            (self.sequence, self.at_unix_ns) = identity;
        }
    }

    /// Puts in the row that was encoded last; false if it fits no envelope.
    fn put(&mut self, length: usize, take: &mut dyn FnMut(Chunk)) -> bool {
        let cost = 1 + varint::length(length as u64) + length;
        if self.wire_bytes_of(cost) > self.cap_bytes {
            return false;
        }
        if self.wire_bytes_of(self.body.len() + cost) > self.cap_bytes {
            self.flush(take);
        }
        self.body.push(ROWS);
        varint::append(&mut self.body, length as u64);
        self.row.append(&mut self.body);
        true
    }
}
