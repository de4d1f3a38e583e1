//! The file format of a spool: segments of records with lengths and checksums, and cursors that say how much of a segment was
//! delivered. The decoders accept any bytes.
//!
//! A segment begins with [`SEGMENT_MAGIC`]. A record is a header of [`HEADER_BYTES`], which ends with its own checksum, and a
//! body. All numbers are little-endian. A record with a damaged body is skipped. After a damaged header, the next header is
//! searched for ([`find`]). Each header has the number of rows before it, so the rows between the two are counted.
use crc::{CRC_32_ISCSI, Crc, Table};

/// The first bytes of a segment: the name and the version of the format.
pub const SEGMENT_MAGIC: [u8; 8] = *b"PSHSPL\0\x01";
/// Length of a record's header.
pub const HEADER_BYTES: usize = 36;
/// Length of a cursor.
pub const CURSOR_BYTES: usize = 20;
/// Offset of the second cursor in a cursor file. The two cursors are in different sectors of the disk.
pub const CURSOR_SLOT: usize = 512;

const RECORD_MAGIC: u32 = 0x7265_636f;
/// With sixteen tables it processes about 2 bytes per CPU cycle, with one table 0.2.
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// CRC-32C of a body.
pub fn checksum(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes)
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the dump that the rows belong to, modulo 2^32.
    pub sequence: u32,
    /// Rows of the segment before this record, modulo 2^32. Always 0 in segments of parshall 0.1.0.
    pub rows_before: u32,
    /// When that dump began, in nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// Rows in the body.
    pub rows: u32,
    /// Length of the body.
    pub body_bytes: u32,
    /// CRC-32C of the body.
    pub body_crc: u32,
}

/// The content of an offset where a record may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A record with a body of full length, whose checksum is not tested yet.
    Record(Header),
    /// The end of the segment, at the end of a record.
    End,
    /// An incomplete record at the end of the segment, which a crash or a full disk leaves.
    Torn,
    /// No valid header.
    Damaged,
}

impl Header {
    /// The header of the first record of a segment. `None` if the body is longer than 4 GiB.
    pub fn of(sequence: u64, at_unix_ns: u64, rows: u32, body: &[u8]) -> Option<Self> {
        let body_bytes = u32::try_from(body.len()).ok()?;
        Some(Self { sequence: sequence as u32, rows_before: 0, at_unix_ns, rows, body_bytes, body_crc: checksum(body) })
    }

    /// The bytes of the header, with its checksum.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rows.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.rows_before.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.at_unix_ns.to_le_bytes());
        let crc = checksum(&bytes[..32]);
        bytes[32..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let whole = checksum(&bytes[..32]) == u32_at(bytes, 32) && u32_at(bytes, 0) == RECORD_MAGIC;
        whole.then(|| Self {
            body_bytes: u32_at(bytes, 4),
            rows: u32_at(bytes, 8),
            body_crc: u32_at(bytes, 12),
            sequence: u32_at(bytes, 16),
            rows_before: u32_at(bytes, 20),
            at_unix_ns: u64_at(bytes, 24),
        })
    }

    /// Length of header and body.
    pub fn record_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.body_bytes)
    }

    /// The number of rows that are missing before this record, if the last readable record ended after `rows` rows of the
    /// segment. 0 if that is not known, as in segments of parshall 0.1.0.
    pub fn rows_missing(&self, rows: u32) -> u32 {
        self.rows_before.saturating_sub(rows)
    }
}

/// Decodes the header at the beginning of `head`, which has at most the length of a header. `left` is the number of bytes from
/// there to the end of the segment.
pub fn step(head: &[u8], left: u64) -> Step {
    if left == 0 {
        return Step::End;
    }
    let Some(bytes) = head.first_chunk::<HEADER_BYTES>().filter(|_| left >= HEADER_BYTES as u64) else {
        return Step::Torn;
    };
    match Header::decode(bytes) {
        Some(header) if header.record_bytes() <= left => Step::Record(header),
        Some(_) => Step::Torn,
        // A file that grew before its bytes reached the disk ends in zeros.
        None if bytes.iter().all(|b| *b == 0) => Step::Torn,
        None => Step::Damaged,
    }
}

/// The offset in `bytes` of the first record with a valid header, at `from` or later. `left` is the length of the segment from
/// the beginning of `bytes`. A search in the next window must begin [`HEADER_BYTES`] - 1 bytes before the end of this one.
pub fn find(bytes: &[u8], from: usize, left: u64) -> Option<usize> {
    let magic = RECORD_MAGIC.to_le_bytes();
    let starts = bytes.get(from..)?.windows(HEADER_BYTES).enumerate().filter(|(_, head)| head.starts_with(&magic));
    starts.map(|(at, head)| (from + at, head)).find_map(|(at, head)| {
        let is_record = matches!(step(head, left.saturating_sub(at as u64)), Step::Record(_));
        is_record.then_some(at)
    })
}

/// How much of a segment was delivered: everything before `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Number of the segment.
    pub segment: u64,
    /// Offset in the segment, in bytes.
    pub offset: u64,
}

impl Cursor {
    /// The bytes of the cursor, with its checksum.
    pub fn encode(&self) -> [u8; CURSOR_BYTES] {
        let mut bytes = [0; CURSOR_BYTES];
        bytes[..8].copy_from_slice(&self.segment.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        let crc = checksum(&bytes[..16]);
        bytes[16..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a cursor file, which has two cursors: the valid one with the larger offset, and whether it is the second. Each write
    /// overwrites the other one, so that a crash or a full disk leaves one valid cursor.
    pub fn latest(file: &[u8]) -> Option<(Self, bool)> {
        let cursor = |at: usize| file.get(at..at + CURSOR_BYTES).and_then(Self::decode);
        let (first, second) = (cursor(0), cursor(CURSOR_SLOT));
        match (first, second) {
            (Some(first), Some(second)) if second.offset > first.offset => Some((second, true)),
            (Some(first), _) => Some((first, false)),
            (None, second) => second.map(|second| (second, true)),
        }
    }

    /// Decodes a cursor; `None` if it is damaged. Without a cursor the whole segment is delivered again.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CURSOR_BYTES] = bytes.try_into().ok()?;
        let whole = checksum(&bytes[..16]) == u32_at(bytes, 16);
        whole.then(|| Self { segment: u64_at(bytes, 0), offset: u64_at(bytes, 8) })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = SEGMENT_MAGIC.to_vec();
        for (at, body) in bodies.iter().enumerate() {
            bytes.extend(Header::of(at as u64, 7, body.len() as u32, body).unwrap().encode());
            bytes.extend(body);
        }
        bytes
    }

    /// Reads a segment as the sink does. Returns the intact bodies and the step at which it ended.
    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Step) {
        let mut bodies = Vec::new();
        let mut at = SEGMENT_MAGIC.len().min(bytes.len());
        loop {
            match step(&bytes[at..], (bytes.len() - at) as u64) {
                Step::Record(header) => {
                    let body = &bytes[at + HEADER_BYTES..][..header.body_bytes as usize];
                    if checksum(body) == header.body_crc {
                        bodies.push(body.to_vec());
                    }
                    at += header.record_bytes() as usize;
                }
                end => return (bodies, end),
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)) {
            prop_assert_eq!(read(&segment(&bodies)), (bodies, Step::End));
        }

        #[test]
        fn a_torn_tail_loses_only_itself(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..8),
            cut in 1usize..200,
        ) {
            let whole = segment(&bodies);
            let last = HEADER_BYTES + bodies.last().unwrap().len();
            let cut = cut.min(last - 1);
            let (read, end) = read(&whole[..whole.len() - cut]);
            prop_assert_eq!(&read[..], &bodies[..bodies.len() - 1]);
            prop_assert_eq!(end, Step::Torn);
        }

        #[test]
        fn a_changed_byte_is_never_taken_for_the_original(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..5),
            place in any::<prop::sample::Index>(),
            change in 1u8..,
        ) {
            let mut bytes = segment(&bodies);
            let place = SEGMENT_MAGIC.len() + place.index(bytes.len() - SEGMENT_MAGIC.len());
            bytes[place] ^= change;
            let (read, _) = read(&bytes);
            prop_assert!(read.len() < bodies.len());
            prop_assert!(read.iter().all(|body| bodies.contains(body)));
        }

        #[test]
        fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let (_, end) = read(&bytes);
            prop_assert!(!matches!(end, Step::Record(_)));
            prop_assert!(Cursor::decode(&bytes).is_none());
        }
    }

    #[test]
    fn a_cursor_reads_back() {
        let cursor = Cursor { segment: 9, offset: u64::MAX };
        assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        assert_eq!(Cursor::decode(&cursor.encode()[1..]), None);
    }

    #[test]
    fn the_further_of_two_cursors_counts_and_a_torn_one_does_not() {
        let (near, far) = (Cursor { segment: 9, offset: 100 }, Cursor { segment: 9, offset: 200 });
        let file = |first: &[u8], second: &[u8]| {
            let mut bytes = vec![0; CURSOR_SLOT];
            bytes[..first.len()].copy_from_slice(first);
            [&bytes[..], second].concat()
        };
        let (n, f) = (near.encode(), far.encode());
        assert_eq!(Cursor::latest(&file(&n, &f)), Some((far, true)));
        assert_eq!(Cursor::latest(&file(&f, &n)), Some((far, false)));
        assert_eq!(Cursor::latest(&file(&n, &f[..10])), Some((near, false)), "the second is torn");
        assert_eq!(Cursor::latest(&file(&[], &n)), Some((near, true)));
        assert_eq!(Cursor::latest(&f), Some((far, false)), "as parshall 0.1.0 wrote it");
        assert_eq!(Cursor::latest(&file(&[], &[])), None);
    }

    #[test]
    fn behind_a_damaged_header_the_next_is_found_and_the_rows_between_are_known() {
        let bodies = [vec![1; 50], vec![2; 60], vec![3; 70]];
        let mut bytes = SEGMENT_MAGIC.to_vec();
        let (mut rows, mut places) = (0, Vec::new());
        for body in &bodies {
            places.push(bytes.len());
            let header = Header { rows_before: rows, ..Header::of(1, 7, body.len() as u32, body).unwrap() };
            bytes.extend(header.encode());
            bytes.extend(body);
            rows += body.len() as u32;
        }
        bytes[places[1] + 4] ^= 1;
        let left = bytes.len() as u64;
        assert_eq!(step(&bytes[places[1]..], left - places[1] as u64), Step::Damaged);
        assert_eq!(find(&bytes, places[1] + 1, left), Some(places[2]));
        let Step::Record(third) = step(&bytes[places[2]..], left - places[2] as u64) else { panic!("it is whole") };
        assert_eq!(third.rows_missing(50), 60);
        assert_eq!(Header { rows_before: 0, ..third }.rows_missing(50), 0, "as parshall 0.1.0 wrote it");
        assert_eq!(find(&bytes[..bytes.len() - 1], places[2], left - 1), None, "its body is not whole");
    }

    #[test]
    fn zeros_at_the_end_are_a_torn_tail() {
        let mut bytes = segment(&[vec![1, 2, 3]]);
        bytes.extend([0; 4096]);
        assert_eq!(read(&bytes), (vec![vec![1, 2, 3]], Step::Torn));
    }
}
