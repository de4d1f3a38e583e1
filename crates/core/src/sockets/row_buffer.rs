//! Buffers the rows of a dump that are sorted before they are printed. A row is packed to between 150 and 300 bytes; a record
//! alone has 576.
use std::collections::HashMap;
use std::sync::Arc;

use parshall_evidence::socket::{FIELDS, SocketRecord, Visitor};

use super::row::{Owner, Row};
use super::sort::{Rank, SortKey};
use super::varint;

/// Bytes of packed rows that are allocated together.
const CHUNK: usize = 256 << 10;
/// Rows that are unpacked together.
const PORTION: usize = 256;

/// Names of namespace, control group, container and pod. Many rows have the same, so they are stored once.
type Texts = [Box<str>; 4];

/// Buffers rows and returns them in the order of their keys.
#[derive(Debug)]
pub struct RowBuffer {
    keys: Vec<SortKey>,
    limit: usize,
    rows: Vec<PackedRow>,
    /// How many of `rows` were left by the last cut: they are in order. Rows behind them were added since.
    sorted: usize,
    chunks: Vec<Vec<u8>>,
    texts: Vec<Texts>,
    texts_by_number: HashMap<(u32, u64), u32>,
    commands: Vec<Arc<str>>,
    commands_by_name: HashMap<Arc<str>, u32>,
}

/// A row's place in the packed chunks, and its place in the order.
#[derive(Debug)]
struct PackedRow {
    rank: Rank,
    socket: u64,
    chunk: u32,
    at: u32,
    texts: u32,
}

impl RowBuffer {
    /// A buffer that returns the first `limit` rows in the order of `keys`.
    pub fn new(keys: Vec<SortKey>, limit: usize) -> Self {
        Self {
            keys,
            limit,
            rows: Vec::new(),
            sorted: 0,
            chunks: Vec::new(),
            texts: Vec::new(),
            texts_by_number: HashMap::new(),
            commands: Vec::new(),
            commands_by_name: HashMap::new(),
        }
    }

    /// Adds a row, unless it is behind the limit already.
    pub fn add(&mut self, row: &Row<'_>) {
        let rank = Rank::of(row, &self.keys);
        // A row behind the last one within the limit is not packed.
        if self.sorted >= self.limit && self.sorted.checked_sub(1).is_none_or(|last| self.rows[last].rank <= rank) {
            return;
        }
        let (chunk, at) = self.pack(row);
        let texts = self.texts(row);
        self.rows.push(PackedRow { rank, socket: row.socket, chunk, at, texts });
        // Not with every row, because each cut sorts.
        if self.rows.len() >= self.limit.saturating_mul(2).max(1024) {
            self.cut();
        }
    }

    /// Sorts, and drops the rows behind the limit.
    fn cut(&mut self) {
        self.rows.sort_unstable_by(|a, b| a.rank.cmp(&b.rank));
        self.rows.truncate(self.limit);
        self.sorted = self.rows.len();
    }

    /// Passes the rows in their order to `take`, in portions, until that fails.
    ///
    /// # Errors
    /// The error of `take`.
    pub fn drain<E>(mut self, take: &mut dyn FnMut(&[Row<'_>]) -> Result<(), E>) -> Result<(), E> {
        self.cut();
        for packed in self.rows.chunks(PORTION) {
            let unpacked: Vec<Unpacked> = packed.iter().map(|row| self.unpack(row)).collect();
            let rows: Vec<Row<'_>> = packed.iter().zip(&unpacked).map(|(packed, row)| self.row(packed, row)).collect();
            take(&rows)?;
        }
        Ok(())
    }

    fn row<'a>(&'a self, packed: &PackedRow, unpacked: &'a Unpacked) -> Row<'a> {
        let [netns, cgroup, container, pod] = &self.texts[packed.texts as usize];
        Row {
            socket: packed.socket,
            name: &unpacked.name,
            netns,
            cgroup,
            container,
            pod,
            owners: &unpacked.owners,
            ..Row::bare(&unpacked.record)
        }
    }

    /// The index of a row's names in `texts`. Network namespace and control group determine all of them.
    fn texts(&mut self, row: &Row<'_>) -> u32 {
        let numbers = (row.record.netns, row.record.cgroup_id);
        *self.texts_by_number.entry(numbers).or_insert_with(|| {
            self.texts.push([row.netns, row.cgroup, row.container, row.pod].map(Box::from));
            self.texts.len() as u32 - 1
        })
    }

    fn command(&mut self, command: &Arc<str>) -> u32 {
        if let Some(place) = self.commands_by_name.get(command) {
            return *place;
        }
        let place = self.commands.len() as u32;
        self.commands.push(Arc::clone(command));
        self.commands_by_name.insert(Arc::clone(command), place);
        place
    }

    /// Packs the fields that are not zero, the name and the owners. Returns the chunk and the offset in it.
    fn pack(&mut self, row: &Row<'_>) -> (u32, u32) {
        let commands: Vec<u32> = row.owners.iter().map(|owner| self.command(&owner.command)).collect();
        if self.chunks.last().is_none_or(|chunk| chunk.len() >= CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK + (8 << 10)));
        }
        let place = self.chunks.len() - 1;
        let out = &mut self.chunks[place];
        let at = out.len();
        row.record.visit(&mut Packer { out });
        out.push(END);
        varint::append(out, row.name.len() as u64);
        out.extend_from_slice(row.name);
        varint::append(out, row.owners.len() as u64);
        for (owner, command) in row.owners.iter().zip(commands) {
            for number in [owner.pid, owner.fd, command] {
                varint::append(out, number.into());
            }
        }
        (place as u32, at as u32)
    }

    fn unpack(&self, row: &PackedRow) -> Unpacked {
        let mut bytes = &self.chunks[row.chunk as usize][row.at as usize..];
        let mut unpacked = Unpacked::default();
        loop {
            let field = take(&mut bytes, 1)[0];
            if field == END {
                break;
            }
            if IS_BYTES[usize::from(field)] {
                let value = take(&mut bytes, 16).try_into().expect("sixteen bytes were packed");
                unpacked.record.set_bytes(field.into(), value);
            } else {
                unpacked.record.set_uint(field.into(), number(&mut bytes));
            }
        }
        let length = number(&mut bytes) as usize;
        unpacked.name = take(&mut bytes, length).into();
        let owners = number(&mut bytes);
        unpacked.owners.extend((0..owners).map(|_| {
            let [pid, fd, command] = std::array::from_fn(|_| number(&mut bytes) as u32);
            Owner { pid, fd, command: Arc::clone(&self.commands[command as usize]) }
        }));
        unpacked
    }
}

#[derive(Debug, Default)]
struct Unpacked {
    record: SocketRecord,
    name: Box<[u8]>,
    owners: Vec<Owner>,
}

/// Follows the last field of a row. No field has this number.
const END: u8 = 0;

/// Whether the field of this number has sixteen bytes.
static IS_BYTES: [bool; 256] = {
    let mut is_bytes = [false; 256];
    let mut at = 0;
    while at < FIELDS.len() {
        let field = &FIELDS[at];
        assert!(field.number > END as u32 && field.number < 256, "a field number fits one byte");
        is_bytes[field.number as usize] = matches!(field.width, parshall_evidence::socket::Width::Bytes16);
        at += 1;
    }
    is_bytes
};

struct Packer<'a> {
    out: &'a mut Vec<u8>,
}

impl Visitor for Packer<'_> {
    fn uint(&mut self, number: u32, _: &'static str, value: u64) {
        self.out.push(number as u8);
        varint::append(self.out, value);
    }

    fn bytes(&mut self, number: u32, _: &'static str, value: &[u8; 16]) {
        self.out.push(number as u8);
        self.out.extend_from_slice(value);
    }
}

fn number(bytes: &mut &[u8]) -> u64 {
    varint::take(bytes).expect("a number was packed")
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    taken
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A record whose fields take every length when packed; `seed` varies them.
    fn record(seed: u64) -> SocketRecord {
        let mut record = SocketRecord::default();
        for (at, field) in FIELDS.iter().enumerate() {
            let value = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32) >> (at % 64);
            record.set_uint(field.number, value);
            record.set_bytes(field.number, &u128::from(value).to_ne_bytes());
        }
        record
    }

    /// A row's record, key, name, owners, and the names of its namespace and control group.
    type Drained = (SocketRecord, u64, Vec<u8>, Vec<Owner>, String);

    fn drained(buffer: RowBuffer) -> Vec<Drained> {
        let mut rows = Vec::new();
        let outcome: Result<(), Infallible> = buffer.drain(&mut |portion| {
            rows.extend(portion.iter().map(|row| {
                (
                    *row.record,
                    row.socket,
                    row.name.to_vec(),
                    row.owners.to_vec(),
                    format!("{}{}", row.netns, row.cgroup),
                )
            }));
            Ok(())
        });
        outcome.expect("it cannot fail");
        rows
    }

    #[test]
    fn rows_are_unchanged_by_packing() {
        let mut buffer = RowBuffer::new(Vec::new(), usize::MAX);
        let owners = [("a", 7), ("b", 9)].map(|(name, pid)| Owner { pid, fd: 300, command: name.into() });
        let mut wanted = Vec::new();
        for seed in 0..1000 {
            let record = record(seed);
            let row = Row {
                socket: seed,
                name: &[1, 2, 3][..seed as usize % 4],
                netns: "blue",
                owners: &owners[..seed as usize % 3],
                ..Row::bare(&record)
            };
            buffer.add(&row);
            wanted.push((record, seed, row.name.to_vec(), row.owners.to_vec(), "blue".to_owned()));
        }
        let mut rows = drained(buffer);
        rows.sort_by_key(|row| row.1);
        assert!(rows == wanted);
    }

    #[test]
    fn a_limit_keeps_the_first_rows_of_the_whole_order() {
        let keys = vec![SortKey::named("rtt").expect("a key")];
        let records: Vec<SocketRecord> =
            (0..5000u32).map(|at| SocketRecord { rtt_us: at * 7919 % 5000, inode: at, ..Default::default() }).collect();
        for limit in [0, 1, 10, 4999, usize::MAX] {
            let mut buffer = RowBuffer::new(keys.clone(), limit);
            records.iter().for_each(|record| buffer.add(&Row::bare(record)));
            let rtts: Vec<u32> = drained(buffer).iter().map(|row| row.0.rtt_us).collect();
            let wanted: Vec<u32> = (0..5000).rev().take(limit).collect();
            assert_eq!(rtts, wanted, "{limit}");
        }
    }

    #[test]
    fn a_row_takes_little_memory() {
        let mut buffer = RowBuffer::new(Vec::new(), usize::MAX);
        for at in 0..1000 {
            buffer.add(&Row::bare(&SocketRecord { inode: at, rtt_us: 500, snd_cwnd: 10, ..Default::default() }));
        }
        let packed: usize = buffer.chunks.iter().map(Vec::len).sum();
        assert!(packed < 1000 * 20 && size_of::<PackedRow>() <= 120, "{packed} {}", size_of::<PackedRow>());
    }
}
