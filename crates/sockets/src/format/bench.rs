//! What a row costs in each format, in CPU time:
//! `cargo test --release -p parshall --bin parshall -- --ignored --nocapture nanoseconds_per_row`.
use std::io::Write;

use parshall_core::sockets::Row;
use parshall_evidence::socket::{SocketRecord, Visitor};

use super::Encoder;
use super::json::Json;
use super::parquet::Parquet;
use super::protobuf::Protobuf;
use super::samples;

const SOCKETS: usize = 108_000;
const DUMPS: usize = 5;
/// As many rows as a backend gives at once.
const PORTION: usize = 256;

fn filled(record: &SocketRecord) -> usize {
    struct Count(usize);
    impl Visitor for Count {
        fn uint(&mut self, _: u32, _: &'static str, _: u64) {
            self.0 += 1;
        }
        fn bytes(&mut self, _: u32, _: &'static str, _: &[u8; 16]) {
            self.0 += 1;
        }
    }
    let mut count = Count(0);
    record.visit(&mut count);
    count.0
}

/// Nanoseconds and bytes per row, written to a file in portions of about 128 KiB.
fn measure(encoder: &mut dyn Encoder, rows: &[Row<'_>], mut sink: impl Write) -> (f64, f64) {
    let dump = samples::dump();
    let mut out = Vec::new();
    let mut bytes = 0;
    let began = parshall_sys::clock::thread_cpu_ns();
    for _ in 0..DUMPS {
        for portion in rows.chunks(PORTION) {
            encoder.rows(&dump, portion, &mut out);
            if out.len() >= 128 << 10 {
                bytes += out.len();
                sink.write_all(&out).unwrap();
                out.clear();
            }
        }
        encoder.end(&dump, &samples::completeness(), &mut out);
    }
    encoder.finish(&mut out);
    bytes += out.len();
    sink.write_all(&out).unwrap();
    let ns = parshall_sys::clock::thread_cpu_ns() - began;
    let count = (rows.len() * DUMPS) as f64;
    (ns as f64 / count, bytes as f64 / count)
}

fn tell<E: Encoder + Default>(name: &str, rows: &[Row<'_>]) {
    let (memory_ns, bytes) = measure(&mut E::default(), rows, std::io::sink());
    let (file_ns, _) = measure(&mut E::default(), rows, tempfile::tempfile().unwrap());
    println!("{name}: {memory_ns:.0} ns in memory, {file_ns:.0} ns to a file, {bytes:.0} bytes per row");
}

#[test]
#[ignore = "measures; says nothing in a debug build"]
fn nanoseconds_per_row() {
    let records: Vec<SocketRecord> = (0..SOCKETS as u64).map(samples::connection).collect();
    let rows: Vec<Row<'_>> =
        records.iter().enumerate().map(|(n, record)| Row { socket: 1 << 60 | n as u64, ..Row::bare(record) }).collect();
    println!("{} fields of a record are not 0", filled(&records[77]));
    for _ in 0..3 {
        tell::<Protobuf>("protobuf", &rows);
        tell::<Json>("json", &rows);
        tell::<Parquet>("parquet", &rows);
    }
}
