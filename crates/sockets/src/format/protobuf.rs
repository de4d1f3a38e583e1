//! Protobuf: a sequence of rows, each preceded by its length, after `proto/parshall/sockets/v1/sockets.proto`.
//!
//! A row is assembled from three parts, so that no length is computed twice: the fields that all rows of a dump share
//! (encoded once per dump), the numbers (in an array that is large enough for any record, so that no store checks its
//! bounds), and texts and messages, of which most rows have few.
use parshall_core::sockets::schema::{Wire, number, wire};
use parshall_core::sockets::{Dump, Owner, Rates, Row, Seen, varint};
use parshall_evidence::socket::{Completeness, Visitor};

use super::encoder::{Encoder, ZSTD_LEVEL};

const AF_INET: u8 = 2;
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const DELIMITED: u32 = 2;
const FIXED32: u32 = 5;

/// Capacity for the numbers of a record: a power of two, so that a masked index needs no check of its bounds.
const CAPACITY: usize = 4096;
/// Bytes that a single store may write beyond the capacity.
const SLACK: usize = 16;
// Each field takes at most 2 bytes of tag, 1 of length and 16 of content.
const _: () = assert!(parshall_evidence::socket::FIELDS.len() * 19 + 64 < CAPACITY);

/// Rows, each preceded by its length.
#[derive(Debug, Default)]
pub struct Protobuf {
    row: RowWriter,
}

impl Encoder for Protobuf {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>) {
        self.row.dump(dump);
        for row in rows {
            let length = self.row.row(row);
            varint::append(out, length as u64);
            self.row.append(out);
        }
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness, out: &mut Vec<u8>) {
        self.row.dump(dump);
        let length = self.row.end(completeness);
        varint::append(out, length as u64);
        self.row.append(out);
    }

    fn finish(&mut self, _: &mut Vec<u8>) {}
}

/// Rows as [`Protobuf`] writes them, compressed: a sequence of zstd frames, the last of a dump complete at its end.
#[derive(Debug, Default)]
pub struct ProtobufZstd {
    encoder: Protobuf,
    /// Rows that no frame holds yet.
    plain: Vec<u8>,
}

/// Bytes that are compressed to one frame, unless the dump ends before.
const FRAME_BYTES: usize = 1 << 20;

impl ProtobufZstd {
    fn frame(&mut self, out: &mut Vec<u8>) {
        let frame = zstd::bulk::compress(&self.plain, ZSTD_LEVEL).expect("compressing in memory does not fail");
        out.extend_from_slice(&frame);
        self.plain.clear();
    }
}

impl Encoder for ProtobufZstd {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>) {
        self.encoder.rows(dump, rows, &mut self.plain);
        if self.plain.len() >= FRAME_BYTES {
            self.frame(out);
        }
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness, out: &mut Vec<u8>) {
        self.encoder.end(dump, completeness, &mut self.plain);
        self.frame(out);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.plain.is_empty() {
            self.frame(out);
        }
    }
}

/// Encodes one row at a time and holds it until it is appended.
#[derive(Debug, Default)]
pub struct RowWriter {
    shared: Vec<u8>,
    numbers: Numbers,
    texts: Vec<u8>,
}

impl RowWriter {
    /// Sets the dump that the next rows belong to.
    pub fn dump(&mut self, dump: &Dump) {
        self.shared.clear();
        fixed64(&mut self.shared, number::AT_UNIX_NS, dump.at_unix_ns);
        uint(&mut self.shared, number::SEQUENCE, dump.sequence);
        text(&mut self.shared, number::HOST, dump.host.as_bytes());
        text(&mut self.shared, number::BACKEND, dump.backend.as_bytes());
    }

    /// Encodes a row and returns its exact length in bytes.
    #[inline]
    pub fn row(&mut self, row: &Row<'_>) -> usize {
        self.numbers.row(row);
        self.texts.clear();
        text(&mut self.texts, number::NAME, row.name);
        text(&mut self.texts, number::NETNS_NAME, row.netns.as_bytes());
        text(&mut self.texts, number::CGROUP, row.cgroup.as_bytes());
        text(&mut self.texts, number::CONTAINER, row.container.as_bytes());
        text(&mut self.texts, number::POD, row.pod.as_bytes());
        for owner in row.owners {
            write_owner(&mut self.texts, owner);
        }
        if let Some(rates) = &row.rates {
            write_rates(&mut self.texts, rates);
        }
        self.length()
    }

    /// Encodes the last row of a dump and returns its exact length in bytes.
    pub fn end(&mut self, completeness: &Completeness) -> usize {
        self.numbers.used = 0;
        self.texts.clear();
        let c = completeness;
        let values = [
            c.expected,
            c.emitted,
            c.filtered,
            c.torn,
            c.dropped,
            c.interrupted,
            c.chains_cut,
            c.namespaces,
            c.namespaces_lost,
        ];
        numbered(&mut self.texts, number::COMPLETENESS, &values);
        self.length()
    }

    /// Appends the row that was encoded last.
    #[inline]
    pub fn append(&self, out: &mut Vec<u8>) {
        out.reserve(self.length());
        out.extend_from_slice(&self.shared);
        out.extend_from_slice(self.numbers.bytes());
        out.extend_from_slice(&self.texts);
    }

    fn length(&self) -> usize {
        self.shared.len() + self.numbers.used + self.texts.len()
    }
}

fn seen_number(seen: Seen) -> u64 {
    match seen {
        Seen::Open => 0,
        Seen::New => 1,
        Seen::Changed => 2,
        Seen::Same => 3,
        Seen::Closed => 4,
    }
}

/// The encoded numbers of a record.
#[derive(Debug)]
struct Numbers {
    buffer: Box<[u8; CAPACITY + SLACK]>,
    used: usize,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { buffer: Box::new([0; CAPACITY + SLACK]), used: 0 }
    }
}

impl Numbers {
    #[inline]
    fn row(&mut self, row: &Row<'_>) {
        let address_bytes = if row.record.family == AF_INET { 4 } else { 16 };
        // The cursor is a local value, so that the compiler can keep its position in a register.
        let mut cursor = Cursor { buffer: &mut self.buffer, at: 0, address_bytes };
        row.record.visit(&mut cursor);
        cursor.fixed64(number::SOCKET, row.socket);
        cursor.varint(number::SEEN, seen_number(row.seen));
        self.used = cursor.at;
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }
}

/// Writes numbers at a position that only advances.
struct Cursor<'a> {
    buffer: &'a mut [u8; CAPACITY + SLACK],
    at: usize,
    address_bytes: usize,
}

impl Cursor<'_> {
    /// Stores eight bytes and advances by `used` of them.
    #[inline(always)]
    fn store(&mut self, word: u64, used: usize) {
        let at = self.at & (CAPACITY - 1);
        self.buffer[at..at + 8].copy_from_slice(&word.to_le_bytes());
        self.at += used;
    }

    #[inline(always)]
    fn fixed32(&mut self, number: u32, value: u64) {
        let (tag, tag_bytes) = tag(number, FIXED32);
        self.store(tag | value << (8 * tag_bytes), tag_bytes + 4);
    }

    #[inline(always)]
    fn fixed64(&mut self, number: u32, value: u64) {
        if value != 0 {
            let (tag, tag_bytes) = tag(number, FIXED64);
            self.store(tag, tag_bytes);
            self.store(value, 8);
        }
    }

    /// Writes a number below 2^16.
    #[inline(always)]
    fn varint(&mut self, number: u32, value: u64) {
        let (tag, tag_bytes) = tag(number, VARINT);
        if value == 0 {
            // Zero is the default of proto3.
        } else if value < 0x80 {
            self.store(tag | value << (8 * tag_bytes), tag_bytes + 1);
        } else {
            let low = (value & 0x7f) | 0x80 | (value & 0x3f80) << 1;
            let (word, bytes) = if value < 0x4000 { (low, 2) } else { (low | 0x8000 | value >> 14 << 16, 3) };
            self.store(tag | word << (8 * tag_bytes), tag_bytes + bytes);
        }
    }

    #[inline(always)]
    fn delimited(&mut self, number: u32, value: &[u8; 16], used: usize) {
        let (tag, tag_bytes) = tag(number, DELIMITED);
        self.store(tag | (used as u64) << (8 * tag_bytes), tag_bytes + 1);
        let at = self.at & (CAPACITY - 1);
        self.buffer[at..at + 16].copy_from_slice(value);
        self.at += used;
    }
}

impl Visitor for Cursor<'_> {
    #[inline(always)]
    fn uint(&mut self, number: u32, _: &'static str, value: u64) {
        match wire(number) {
            Wire::Fixed64 => self.fixed64(number, value),
            Wire::Fixed32 => self.fixed32(number, value),
            Wire::Varint => self.varint(number, value),
            Wire::Address | Wire::Text | Wire::Absent => {}
        }
    }

    #[inline(always)]
    fn bytes(&mut self, number: u32, _: &'static str, value: &[u8; 16]) {
        if matches!(wire(number), Wire::Address) {
            self.delimited(number, value, self.address_bytes);
        } else {
            let used = name_length(value);
            // The kernel's names are ASCII. Anything else is left out, because a `string` that is not UTF-8 makes the row unreadable.
            if value[..used].is_ascii() {
                self.delimited(number, value, used);
            }
        }
    }
}

/// The bytes before the first zero.
#[inline(always)]
fn name_length(name: &[u8; 16]) -> usize {
    name.iter().position(|b| *b == 0).unwrap_or(16)
}

/// A tag and its length in bytes. Field numbers of this schema are below 2048, so two bytes are enough.
#[inline(always)]
const fn tag(number: u32, wire: u32) -> (u64, usize) {
    let value = (number << 3 | wire) as u64;
    if value < 0x80 { (value, 1) } else { (value & 0x7f | 0x80 | value >> 7 << 8, 2) }
}

fn put_tag(out: &mut Vec<u8>, number: u32, wire: u32) {
    varint::append(out, u64::from(number << 3 | wire));
}

fn uint(out: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        put_tag(out, number, VARINT);
        varint::append(out, value);
    }
}

fn fixed64(out: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        put_tag(out, number, FIXED64);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

#[inline]
fn text(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    if !value.is_empty() {
        put_tag(out, number, DELIMITED);
        varint::append(out, value.len() as u64);
        out.extend_from_slice(value);
    }
}

/// Appends a message whose fields 1, 2, 3 and so on are numbers. It is written even if all are 0, because readers test its presence.
fn numbered(out: &mut Vec<u8>, number: u32, values: &[u64]) {
    let length: usize = values.iter().filter(|v| **v != 0).map(|v| 1 + varint::length(*v)).sum();
    put_tag(out, number, DELIMITED);
    varint::append(out, length as u64);
    for (at, value) in values.iter().enumerate() {
        uint(out, at as u32 + 1, *value);
    }
}

fn write_owner(out: &mut Vec<u8>, owner: &Owner) {
    let number_bytes = |value: u32| if value == 0 { 0 } else { 1 + varint::length(u64::from(value)) };
    let command = owner.command.len();
    let text_bytes = if command == 0 { 0 } else { 1 + varint::length(command as u64) + command };
    put_tag(out, number::OWNERS, DELIMITED);
    varint::append(out, (number_bytes(owner.pid) + number_bytes(owner.fd) + text_bytes) as u64);
    uint(out, 1, u64::from(owner.pid));
    uint(out, 2, u64::from(owner.fd));
    text(out, 3, owner.command.as_bytes());
}

fn write_rates(out: &mut Vec<u8>, rates: &Rates) {
    let values = [
        rates.interval_us,
        rates.sent_bytes_per_s,
        rates.received_bytes_per_s,
        rates.segs_out_per_s,
        rates.segs_in_per_s,
        rates.retrans,
    ];
    numbered(out, number::RATES, &values);
}
