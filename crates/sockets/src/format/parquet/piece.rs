//! Collects rows by column, and writes them as one row group.
use std::io::Write;
use std::net::Ipv6Addr;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, TypePtr};
use parshall_core::sockets::schema::{Wire, wire};
use parshall_core::sockets::{Dump, Owner, Rates, Row, value_names};
use parshall_evidence::socket::Kind as SocketKind;
use parshall_evidence::socket::{Completeness, SOCKETS_SCHEMA, Visitor};

use super::columns::{Kind, places, scalar_columns, schema};
use crate::format::encoder::Encoder;
use crate::format::json::Json;

/// Rows of a row group: about 10 MiB in memory, about 1 MiB in the file.
const ROWS: usize = 8192;
/// At the end of a dump, a piece with fewer rows is not written yet, so that row groups do not get small.
const ENOUGH_ROWS: usize = 2048;
/// A row waits no longer than this for the end of a dump that completes its piece.
const LONG_NS: u64 = 60_000_000_000;
const AF_INET: u8 = 2;

/// The rows of the next piece.
#[derive(Debug)]
pub struct Pieces {
    schema: TypePtr,
    properties: Arc<WriterProperties>,
    places: [u16; 256],
    columns: Vec<Cells>,
    owners: Owners,
    rates: Vec<Option<Rates>>,
    /// The completeness of dumps, for the key-value metadata of the file.
    accounts: Vec<KeyValue>,
    rows: usize,
    oldest_unix_ns: u64,
    shared: Shared,
}

/// Texts that many rows have, which are not copied into each.
#[derive(Debug, Default)]
struct Shared {
    host: Bytes,
    congestion: ([u8; 16], Bytes),
}

#[derive(Debug)]
enum Cells {
    Int(Vec<i32>),
    Long(Vec<i64>),
    Text(Vec<ByteArray>),
}

#[derive(Debug, Default)]
struct Owners {
    /// Definition levels: 0 for a row without owners, 1 for each owner.
    definition: Vec<i16>,
    /// Repetition levels: 0 for the first owner of a row, 1 for the others.
    repetition: Vec<i16>,
    pids: Vec<i32>,
    fds: Vec<i32>,
    commands: Vec<ByteArray>,
}

impl Default for Pieces {
    fn default() -> Self {
        let columns = scalar_columns();
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default()))
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true);
        // Names and addresses repeat. Numbers are as small without a dictionary, and faster.
        for column in columns.iter().filter(|c| matches!(c.kind, Kind::Text | Kind::Bytes)) {
            properties = properties.set_column_dictionary_enabled(ColumnPath::from(column.name), true);
        }
        let cells = columns.iter().map(|column| match column.kind {
            Kind::Int => Cells::Int(vec![0; ROWS]),
            Kind::Long | Kind::Time => Cells::Long(vec![0; ROWS]),
            Kind::Text | Kind::Bytes => Cells::Text(vec![empty(); ROWS]),
        });
        Self {
            schema: schema(),
            properties: Arc::new(properties.build()),
            places: places(),
            columns: cells.collect(),
            owners: Owners::default(),
            rates: Vec::new(),
            accounts: Vec::new(),
            rows: 0,
            oldest_unix_ns: 0,
            shared: Shared::default(),
        }
    }
}

fn empty() -> ByteArray {
    ByteArray::from(Bytes::new())
}

fn fixed(text: &'static str) -> ByteArray {
    ByteArray::from(Bytes::from_static(text.as_bytes()))
}

fn copied(bytes: &[u8]) -> ByteArray {
    if bytes.is_empty() { empty() } else { ByteArray::from(Bytes::copy_from_slice(bytes)) }
}

impl Pieces {
    /// Adds a row. The piece must not be full.
    pub fn row(&mut self, dump: &Dump, row: &Row<'_>) {
        if self.rows == 0 {
            self.oldest_unix_ns = dump.at_unix_ns;
        }
        if self.shared.host != dump.host.as_bytes() {
            self.shared.host = Bytes::copy_from_slice(dump.host.as_bytes());
        }
        // In the order of `columns::LEADING`.
        self.long(0, dump.at_unix_ns);
        self.long(1, dump.sequence);
        self.text(2, ByteArray::from(self.shared.host.clone()));
        self.text(3, fixed(dump.backend));
        self.text(4, fixed(SocketKind::of(row.record).name()));
        self.text(5, fixed(row.seen.name()));
        self.long(6, row.socket);
        row.record.visit(&mut Fields { ipv4: row.record.family == AF_INET, pieces: &mut *self });
        let trailing = self.columns.len() - 5;
        for (at, text) in
            [row.name, row.netns.as_bytes(), row.cgroup.as_bytes(), row.container.as_bytes(), row.pod.as_bytes()]
                .into_iter()
                .enumerate()
                .filter(|(_, text)| !text.is_empty())
        {
            self.text(trailing + at, copied(text));
        }
        self.owners.row(row.owners);
        self.rates.push(row.rates);
        self.rows += 1;
    }

    /// Adds the completeness of a dump to the key-value metadata of the file.
    pub fn end(&mut self, dump: &Dump, completeness: &Completeness) {
        let mut line = Vec::new();
        Json::default().end(dump, completeness, &mut line);
        let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        self.accounts.push(KeyValue::new(format!("{SOCKETS_SCHEMA}/dump/{}", dump.sequence), line));
    }

    /// Whether the piece must be taken before the next row.
    pub fn is_full(&self) -> bool {
        self.rows >= ROWS
    }

    pub fn has_capacity_for(&self, rows: usize) -> bool {
        self.rows + rows <= ROWS
    }

    /// Whether the piece should be taken at the end of this dump.
    pub fn is_worth_taking(&self, dump: &Dump) -> bool {
        self.rows >= ENOUGH_ROWS || dump.at_unix_ns.saturating_sub(self.oldest_unix_ns) >= LONG_NS
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Encodes the piece and begins the next one.
    pub fn take(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out).expect("the columns are those of the schema, and memory takes them");
        self.clear();
        out
    }

    fn write(&mut self, out: &mut Vec<u8>) -> parquet::errors::Result<()> {
        let mut writer = SerializedFileWriter::new(&mut *out, Arc::clone(&self.schema), Arc::clone(&self.properties))?;
        for account in self.accounts.drain(..) {
            writer.append_key_value_metadata(account);
        }
        if self.rows > 0 {
            let mut group = writer.next_row_group()?;
            let mut at = 0;
            while let Some(mut column) = group.next_column()? {
                self.column(at, column.untyped())?;
                column.close()?;
                at += 1;
            }
            group.close()?;
        }
        writer.close()?;
        Ok(())
    }

    fn column(&self, at: usize, writer: &mut ColumnWriter<'_>) -> parquet::errors::Result<()> {
        let scalars = self.columns.len();
        let definition = &self.owners.definition;
        let repetition = &self.owners.repetition;
        match (writer, self.columns.get(at)) {
            (ColumnWriter::Int32ColumnWriter(w), Some(Cells::Int(cells))) => {
                w.write_batch(&cells[..self.rows], None, None)?;
            }
            (ColumnWriter::Int64ColumnWriter(w), Some(Cells::Long(cells))) => {
                w.write_batch(&cells[..self.rows], None, None)?;
            }
            (ColumnWriter::ByteArrayColumnWriter(w), Some(Cells::Text(cells))) => {
                w.write_batch(&cells[..self.rows], None, None)?;
            }
            (ColumnWriter::Int32ColumnWriter(w), None) => {
                let values = if at == scalars { &self.owners.pids } else { &self.owners.fds };
                w.write_batch(values, Some(definition), Some(repetition))?;
            }
            (ColumnWriter::ByteArrayColumnWriter(w), None) => {
                w.write_batch(&self.owners.commands, Some(definition), Some(repetition))?;
            }
            (ColumnWriter::Int64ColumnWriter(w), None) => {
                let definition: Vec<i16> = self.rates.iter().map(|r| i16::from(r.is_some())).collect();
                let part = at - scalars - 3;
                let values: Vec<i64> = self.rates.iter().flatten().map(|r| rate(r, part) as i64).collect();
                w.write_batch(&values, Some(&definition), None)?;
            }
            _ => return Err(parquet::errors::ParquetError::General(format!("column {at} is of another type"))),
        }
        Ok(())
    }

    fn clear(&mut self) {
        for cells in &mut self.columns {
            match cells {
                Cells::Int(cells) => cells[..self.rows].fill(0),
                Cells::Long(cells) => cells[..self.rows].fill(0),
                Cells::Text(cells) => cells[..self.rows].fill(empty()),
            }
        }
        self.owners = Owners::default();
        self.rates.clear();
        self.rows = 0;
    }

    fn long(&mut self, at: usize, value: u64) {
        if let Some(Cells::Long(cells)) = self.columns.get_mut(at) {
            cells[self.rows] = value as i64;
        }
    }

    fn text(&mut self, at: usize, value: ByteArray) {
        if let Some(Cells::Text(cells)) = self.columns.get_mut(at) {
            cells[self.rows] = value;
        }
    }

    fn place(&self, number: u32) -> usize {
        self.places.get(number as usize).map_or(usize::MAX, |place| usize::from(*place))
    }
}

/// A field of the rates, in the order of the schema.
fn rate(rates: &Rates, part: usize) -> u64 {
    match part {
        0 => rates.interval_us,
        1 => rates.sent_bytes_per_s,
        2 => rates.received_bytes_per_s,
        3 => rates.segs_out_per_s,
        4 => rates.segs_in_per_s,
        _ => rates.retrans,
    }
}

impl Owners {
    fn row(&mut self, owners: &[Owner]) {
        if owners.is_empty() {
            self.definition.push(0);
            self.repetition.push(0);
        }
        for (at, owner) in owners.iter().enumerate() {
            self.definition.push(1);
            self.repetition.push(i16::from(at > 0));
            self.pids.push(owner.pid as i32);
            self.fds.push(owner.fd as i32);
            self.commands.push(copied(owner.command.as_bytes()));
        }
    }
}

struct Fields<'a> {
    ipv4: bool,
    pieces: &'a mut Pieces,
}

impl Visitor for Fields<'_> {
    fn uint(&mut self, number: u32, _: &'static str, value: u64) {
        let place = self.pieces.place(number);
        let row = self.pieces.rows;
        match self.pieces.columns.get_mut(place) {
            Some(Cells::Int(cells)) => cells[row] = value as i32,
            Some(Cells::Long(cells)) => cells[row] = value as i64,
            Some(Cells::Text(cells)) => {
                let word = value_names::of(number).and_then(|names| names.name(value));
                cells[row] = word.map_or_else(|| copied(value.to_string().as_bytes()), fixed);
            }
            None => {}
        }
    }

    fn bytes(&mut self, number: u32, _: &'static str, value: &[u8; 16]) {
        let text = if wire(number) == Wire::Address {
            copied(address(value, self.ipv4).as_slice())
        } else {
            let shared = &mut self.pieces.shared.congestion;
            if shared.0 != *value {
                let length = value.iter().position(|b| *b == 0).unwrap_or(16);
                let text = String::from_utf8_lossy(&value[..length]).into_owned();
                *shared = (*value, Bytes::from(text));
            }
            ByteArray::from(shared.1.clone())
        };
        let place = self.pieces.place(number);
        self.pieces.text(place, text);
    }
}

fn address(bytes: &[u8; 16], ipv4: bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(40);
    // Writing to memory cannot fail.
    let _ = if ipv4 {
        write!(text, "{}.{}.{}.{}", bytes[0], bytes[1], bytes[2], bytes[3])
    } else {
        write!(text, "{}", Ipv6Addr::from(*bytes))
    };
    text
}
