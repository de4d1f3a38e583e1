//! Rows that are needed until the end of a dump, because they are to be put in order: packed to some 150 to 300 bytes each, where a
//! record alone has 576.
use std::collections::HashMap;
use std::sync::Arc;

use parshall_evidence::socket::{FIELDS, SocketRecord, Visitor};

use super::row::{Owner, Row};
use super::sort::{Rank, SortKey};

/// Bytes that are taken at once.
const CHUNK: usize = 256 << 10;
/// Rows that are unpacked at once.
const PORTION: usize = 256;

/// Where names of namespaces, control groups, containers and pods are the same for many rows, they are kept once.
type Texts = [Box<str>; 4];

/// Rows in the order of their keys.
#[derive(Debug)]
pub struct Keep {
    keys: Vec<SortKey>,
    most: usize,
    kept: Vec<Kept>,
    /// How many of `kept`, from the first, are in order and before all others that were kept when they were put in order.
    sorted: usize,
    chunks: Vec<Vec<u8>>,
    texts: Vec<Texts>,
    texts_by_number: HashMap<(u32, u64), u32>,
    commands: Vec<Arc<str>>,
    commands_by_name: HashMap<Arc<str>, u32>,
}

#[derive(Debug)]
struct Kept {
    rank: Rank,
    socket: u64,
    chunk: u32,
    at: u32,
    texts: u32,
}

impl Keep {
    /// Keeps the first `most` rows in the order of these keys.
    pub fn new(keys: Vec<SortKey>, most: usize) -> Self {
        Self {
            keys,
            most,
            kept: Vec::new(),
            sorted: 0,
            chunks: Vec::new(),
            texts: Vec::new(),
            texts_by_number: HashMap::new(),
            commands: Vec::new(),
            commands_by_name: HashMap::new(),
        }
    }

    /// Adds a row.
    pub fn add(&mut self, row: &Row<'_>) {
        let rank = Rank::of(row, &self.keys);
        // A row that is behind all that there is room for need not be packed.
        if self.sorted >= self.most && self.sorted.checked_sub(1).is_none_or(|last| self.kept[last].rank <= rank) {
            return;
        }
        let (chunk, at) = self.pack(row);
        let texts = self.texts(row);
        self.kept.push(Kept { rank, socket: row.socket, chunk, at, texts });
        // Cut now and then: to cut with every row would be to sort with every row.
        if self.kept.len() >= self.most.saturating_mul(2).max(1024) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.kept.sort_unstable_by(|a, b| a.rank.cmp(&b.rank));
        self.kept.truncate(self.most);
        self.sorted = self.kept.len();
    }

    /// Gives the rows in their order, in portions, until one is refused.
    ///
    /// # Errors
    /// The refusal of `give`.
    pub fn give<E>(mut self, give: &mut dyn FnMut(&[Row<'_>]) -> Result<(), E>) -> Result<(), E> {
        self.cut();
        for kept in self.kept.chunks(PORTION) {
            let unpacked: Vec<Unpacked> = kept.iter().map(|kept| self.unpack(kept)).collect();
            let rows: Vec<Row<'_>> = kept.iter().zip(&unpacked).map(|(kept, row)| self.row(kept, row)).collect();
            give(&rows)?;
        }
        Ok(())
    }

    fn row<'a>(&'a self, kept: &Kept, unpacked: &'a Unpacked) -> Row<'a> {
        let [netns, cgroup, container, pod] = &self.texts[kept.texts as usize];
        Row {
            socket: kept.socket,
            name: &unpacked.name,
            netns,
            cgroup,
            container,
            pod,
            owners: &unpacked.owners,
            ..Row::bare(&unpacked.record)
        }
    }

    /// The place of the names of a row: namespace and control group decide all of them.
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

    /// Packs a row: its fields that are not zero, its name, and who holds it.
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
        push_number(out, row.name.len() as u64);
        out.extend_from_slice(row.name);
        push_number(out, row.owners.len() as u64);
        for (owner, command) in row.owners.iter().zip(commands) {
            for number in [owner.pid, owner.fd, command] {
                push_number(out, number.into());
            }
        }
        (place as u32, at as u32)
    }

    fn unpack(&self, kept: &Kept) -> Unpacked {
        let mut bytes = &self.chunks[kept.chunk as usize][kept.at as usize..];
        let mut row = Unpacked::default();
        loop {
            let number = take(&mut bytes, 1)[0];
            if number == END {
                break;
            }
            if IS_BYTES[usize::from(number)] {
                let value = take(&mut bytes, 16).try_into().expect("sixteen bytes were packed");
                row.record.set_bytes(number.into(), value);
            } else {
                row.record.set_uint(number.into(), take_number(&mut bytes));
            }
        }
        let length = take_number(&mut bytes) as usize;
        row.name = take(&mut bytes, length).into();
        let owners = take_number(&mut bytes);
        row.owners.extend((0..owners).map(|_| {
            let [pid, fd, command] = std::array::from_fn(|_| take_number(&mut bytes) as u32);
            Owner { pid, fd, command: Arc::clone(&self.commands[command as usize]) }
        }));
        row
    }
}

#[derive(Debug, Default)]
struct Unpacked {
    record: SocketRecord,
    name: Box<[u8]>,
    owners: Vec<Owner>,
}

/// Stands behind the last field; no field has this number.
const END: u8 = 0;

/// By a field's number: whether it has sixteen bytes.
static IS_BYTES: [bool; 256] = {
    let mut is_bytes = [false; 256];
    let mut at = 0;
    while at < FIELDS.len() {
        let field = &FIELDS[at];
        assert!(field.number > END as u32 && field.number < 256, "a number of one byte");
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
        push_number(self.out, value);
    }

    fn bytes(&mut self, number: u32, _: &'static str, value: &[u8; 16]) {
        self.out.push(number as u8);
        self.out.extend_from_slice(value);
    }
}

/// A number in as many groups of seven bits as it needs, the lowest first.
fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
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

    /// A record whose fields have numbers of all lengths; `seed` varies them.
    fn record(seed: u64) -> SocketRecord {
        let mut record = SocketRecord::default();
        for (at, field) in FIELDS.iter().enumerate() {
            let value = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32) >> (at % 64);
            record.set_uint(field.number, value);
            record.set_bytes(field.number, &u128::from(value).to_ne_bytes());
        }
        record
    }

    /// A row's record, key, name, owners and names of namespace and control group.
    type Given = (SocketRecord, u64, Vec<u8>, Vec<Owner>, String);

    fn given(keep: Keep) -> Vec<Given> {
        let mut rows = Vec::new();
        let outcome: Result<(), Infallible> = keep.give(&mut |portion| {
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
        outcome.expect("nothing is refused");
        rows
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was() {
        let mut keep = Keep::new(Vec::new(), usize::MAX);
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
            keep.add(&row);
            wanted.push((record, seed, row.name.to_vec(), row.owners.to_vec(), "blue".to_owned()));
        }
        let mut rows = given(keep);
        rows.sort_by_key(|row| row.1);
        assert!(rows == wanted);
    }

    #[test]
    fn the_first_of_an_order_are_those_of_the_whole_order() {
        let keys = vec![SortKey::named("rtt").expect("a key")];
        let records: Vec<SocketRecord> =
            (0..5000u32).map(|at| SocketRecord { rtt_us: at * 7919 % 5000, inode: at, ..Default::default() }).collect();
        for most in [0, 1, 10, 4999, usize::MAX] {
            let mut keep = Keep::new(keys.clone(), most);
            records.iter().for_each(|record| keep.add(&Row::bare(record)));
            let rtts: Vec<u32> = given(keep).iter().map(|row| row.0.rtt_us).collect();
            let wanted: Vec<u32> = (0..5000).rev().take(most).collect();
            assert_eq!(rtts, wanted, "{most}");
        }
    }

    #[test]
    fn a_row_takes_little_memory() {
        let mut keep = Keep::new(Vec::new(), usize::MAX);
        for at in 0..1000 {
            keep.add(&Row::bare(&SocketRecord { inode: at, rtt_us: 500, snd_cwnd: 10, ..Default::default() }));
        }
        let packed: usize = keep.chunks.iter().map(Vec::len).sum();
        assert!(packed < 1000 * 20 && size_of::<Kept>() <= 120, "{packed} {}", size_of::<Kept>());
    }
}
