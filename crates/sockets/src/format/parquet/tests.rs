//! Reads files back with the reader of the parquet crate, which checks every page.
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Row as Record;
use parshall_core::sockets::{Owner, Rates};
use parshall_evidence::socket::SocketRecord;

use super::*;
use crate::testkit::samples::{self, Owned};

fn read(bytes: Vec<u8>) -> (SerializedFileReader<bytes::Bytes>, Vec<serde_json::Value>) {
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a Parquet file");
    let rows = reader.get_row_iter(None).expect("rows").map(|row| json(&row.expect("a row"))).collect();
    (reader, rows)
}

/// A record as JSON. The parquet crate's own conversion needs another feature.
fn json(row: &Record) -> serde_json::Value {
    use parquet::record::Field;
    fn value(field: &Field) -> serde_json::Value {
        match field {
            Field::UByte(n) => (*n).into(),
            Field::UShort(n) => (*n).into(),
            Field::UInt(n) => (*n).into(),
            Field::ULong(n) => (*n).into(),
            Field::Long(n) => (*n).into(),
            Field::Str(text) => text.clone().into(),
            Field::Bytes(bytes) => bytes.data().to_vec().into(),
            Field::Group(row) => json(row),
            Field::ListInternal(list) => list.elements().iter().map(value).collect(),
            Field::Null => serde_json::Value::Null,
            Field::TimestampMicros(n) => (*n).into(),
            other => format!("{other:?}").into(),
        }
    }
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

fn file(count: usize, make: impl Fn(usize) -> Owned) -> Vec<u8> {
    let dump = samples::dump();
    let rows: Vec<Owned> = (0..count).map(make).collect();
    let borrowed: Vec<Row<'_>> = rows.iter().map(Owned::row).collect();
    let mut encoder = Parquet::default();
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for portion in borrowed.chunks(1000) {
        encoder.rows(&dump, portion, &mut out);
    }
    encoder.end(&dump, &samples::completeness(), &mut out);
    encoder.finish(&mut out);
    out
}

#[test]
fn rows_read_back_across_row_groups() {
    let make = |n: usize| Owned {
        // The largest number: columns are unsigned.
        record: SocketRecord { max_pacing_bytes_per_s: u64::MAX, ..samples::connection(n as u64) },
        socket: u64::MAX - n as u64,
        name: if n.is_multiple_of(2) { vec![0, 0xff] } else { Vec::new() },
        texts: ["blue".into(), format!("/pods/{n}"), String::new(), "é".into()],
        owners: (0..n as u32 % 3).map(|k| Owner { pid: k + 1, fd: 7, command: format!("c{n}").into() }).collect(),
        rates: n.is_multiple_of(5).then(|| Rates { interval_us: 5, retrans: n as u64, ..Default::default() }),
        ..Default::default()
    };
    let count = 8192 + 100;
    let (reader, rows) = read(file(count, make));
    assert_eq!((reader.num_row_groups(), rows.len()), (2, count));
    for (n, row) in rows.iter().enumerate() {
        let want = make(n);
        assert_eq!(row["socket"], want.socket);
        assert_eq!(row["bytes_sent"], want.record.bytes_sent);
        assert_eq!(row["max_pacing_bytes_per_s"], u64::MAX);
        assert_eq!(row["rtt_us"], want.record.rtt_us);
        assert_eq!(row["remote_port"], want.record.remote_port);
        assert_eq!((&row["state"], &row["kind"], &row["seen"]), (&"established".into(), &"tcp".into(), &"open".into()));
        assert_eq!(row["remote_address"], format!("10.1.{}.{}", n >> 8 & 255, n & 255));
        assert_eq!(row["congestion"], "cubic");
        assert_eq!(row["lost"], 0);
        assert_eq!(row["cgroup"], want.texts[1]);
        assert_eq!(row["pod"], "é");
        assert_eq!(row["name"].as_array().map(Vec::len), Some(want.name.len()));
        let owners = row["owners"].as_array().expect("a list");
        assert_eq!(owners.len(), want.owners.len(), "row {n}");
        for (got, want) in owners.iter().zip(&want.owners) {
            assert_eq!((&got["pid"], &got["command"]), (&want.pid.into(), &(*want.command).into()));
        }
        assert_eq!(row["rates"]["retrans"].as_u64(), want.rates.map(|r| r.retrans));
    }
    let accounts = reader.metadata().file_metadata().key_value_metadata().expect("accounts");
    assert_eq!(accounts[0].key, "parshall.sockets/1/dump/7");
    let account: serde_json::Value = serde_json::from_str(accounts[0].value.as_deref().unwrap()).unwrap();
    assert_eq!(account["completeness"]["emitted"], 10);
}

#[test]
fn a_file_without_rows_is_a_file() {
    let (reader, rows) = read(file(0, |_| Owned::default()));
    assert!(rows.is_empty());
    assert_eq!(reader.metadata().file_metadata().key_value_metadata().map(Vec::len), Some(1));
}

#[test]
fn values_without_a_name_are_written_as_numbers() {
    let strange = SocketRecord { state: 77, family: 10, ..Default::default() };
    let (_, rows) = read(file(1, |_| Owned { record: strange, ..Default::default() }));
    assert_eq!((&rows[0]["state"], &rows[0]["family"]), (&"77".into(), &"ipv6".into()));
}

#[test]
fn bytes_that_are_no_piece_change_nothing() {
    let mut assembler = Assembler::default();
    let mut pieces = Pieces::default();
    pieces.row(&samples::dump(), &Row::bare(&samples::connection(1)));
    let piece = pieces.take();
    let mark = assembler.mark();
    assert!(assembler.add(b"PAR1 and so on").is_err());
    assert!(assembler.add(&piece[..piece.len() - 9]).is_err());
    let data = assembler.add(&piece).expect("a piece");
    assembler.rewind(&mark);
    assert_eq!(assembler.add(&piece).expect("a piece"), data);
    let mut bytes = file::MAGIC.to_vec();
    bytes.extend_from_slice(&data);
    bytes.extend(assembler.footer());
    assert_eq!(read(bytes).1.len(), 1);
}
