//! Rotation and removal of files, and full disks.
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};

use super::*;
use crate::testkit::samples::{self, Owned};
use parshall_testkit::skip;

const SOON: Duration = Duration::from_secs(60);

fn config(directory: &Path, format: SocketFormat) -> FilesConfig {
    FilesConfig {
        rotate_bytes: u64::MAX,
        rotate_every: SOON * 60,
        keep_bytes: u64::MAX,
        keep_files: usize::MAX,
        ..FilesConfig::new(directory.to_owned(), format).unwrap()
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = entries.filter(|n| n != ".lock").collect();
    names.into_iter().collect()
}

/// Passes `dumps` dumps of `rows` rows each to the sink.
fn feed(sink: &mut Files, dumps: u64, rows: usize) {
    for sequence in 1..=dumps {
        let dump = Dump { sequence, at_unix_ns: sequence * 5_000_000_000, ..samples::dump() };
        let records: Vec<Owned> = (0..rows)
            .map(|n| Owned {
                record: samples::connection(n as u64),
                socket: sequence << 32 | n as u64,
                ..Default::default()
            })
            .collect();
        let rows: Vec<Row<'_>> = records.iter().map(Owned::row).collect();
        sink.rows(&dump, &rows).expect("never");
        sink.end(&dump, &samples::completeness()).expect("never");
    }
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = zstd::decode_all(File::open(path).unwrap()).expect("zstd");
    text.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_slice(l).expect("JSON")).collect()
}

#[test]
fn json_files_hold_every_row_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink =
        Files::start(FilesConfig { rotate_bytes: 20_000, ..config(directory.path(), SocketFormat::Json) }).unwrap();
    feed(&mut sink, 4, 1500);
    let account = Box::new(sink).close(SOON);
    assert_eq!((account.rows_in, account.rows_out, account.rows_dropped), (6000, 6000, 0), "{account:?}");
    let names = names(directory.path());
    assert!(names.len() > 1 && names.iter().all(|n| n.ends_with(".jsonl.zst") && !n.starts_with('.')), "{names:?}");
    let lines: Vec<_> = names.iter().flat_map(|n| lines(&directory.path().join(n))).collect();
    let keys: BTreeSet<&str> = lines.iter().filter_map(|l| l["socket"].as_str()).collect();
    assert_eq!(keys.len(), 6000);
    assert_eq!(lines.iter().filter(|l| l["completeness"].is_object()).count(), 4);
}

#[test]
fn protobuf_files_are_sequences_of_messages() {
    for (format, ending) in [(SocketFormat::Protobuf, "pb"), (SocketFormat::ProtobufZstd, "pb.zst")] {
        let directory = tempfile::tempdir().unwrap();
        let mut sink = Files::start(config(directory.path(), format)).unwrap();
        feed(&mut sink, 2, 300);
        assert_eq!(Box::new(sink).close(SOON).rows_out, 600);
        let names = names(directory.path());
        assert_eq!(names.len(), 1);
        assert!(names[0].ends_with(ending) && names[0].starts_with("sockets-19700101T000005Z-"), "{names:?}");
        let bytes = fs::read(directory.path().join(&names[0])).unwrap();
        let bytes = if ending == "pb" { bytes } else { zstd::decode_all(&bytes[..]).expect("zstd") };
        let (mut at, mut messages) = (0, 0);
        while at < bytes.len() {
            // The length of a row takes two bytes, and that of the end of a dump one.
            let (low, high) = (usize::from(bytes[at] & 0x7f), usize::from(bytes[at + 1]));
            at += if bytes[at] < 0x80 { 1 + low } else { 2 + (high << 7 | low) };
            messages += 1;
        }
        assert_eq!((messages, at), (602, bytes.len()));
    }
}

#[test]
fn parquet_files_are_assembled_from_pieces() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let directory = tempfile::tempdir().unwrap();
    let mut sink = Files::start(config(directory.path(), SocketFormat::Parquet)).unwrap();
    feed(&mut sink, 3, 5000);
    assert!(sink.account().rows_in == 15_000);
    let account = Box::new(sink).close(SOON);
    assert_eq!((account.rows_out, account.rows_dropped), (15_000, 0), "{account:?}");
    let names = names(directory.path());
    assert_eq!(names.len(), 1, "{names:?}");
    let reader = SerializedFileReader::new(File::open(directory.path().join(&names[0])).unwrap()).expect("Parquet");
    assert_eq!(reader.metadata().file_metadata().num_rows(), 15_000);
    assert_eq!(reader.metadata().file_metadata().key_value_metadata().map(Vec::len), Some(3));
    let sockets = reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string());
    assert_eq!(sockets.collect::<BTreeSet<_>>().len(), 15_000);
}

#[test]
fn the_oldest_files_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = FilesConfig { rotate_bytes: 1, keep_files: 3, ..config(directory.path(), SocketFormat::Json) };
    let mut sink = Files::start(bounds).unwrap();
    feed(&mut sink, 8, 10);
    Box::new(sink).close(SOON);
    let names = names(directory.path());
    assert_eq!(names.len(), 3);
    assert!(names.iter().any(|n| n.starts_with("sockets-19700101T000040Z-")), "the newest stays: {names:?}");
}

/// Sockets that closed after the last dump are in no dump that ends.
#[test]
fn a_file_is_named_after_its_first_row_also_at_the_end() {
    for format in [SocketFormat::Json, SocketFormat::Protobuf, SocketFormat::Parquet] {
        let directory = tempfile::tempdir().unwrap();
        let mut sink = Files::start(FilesConfig { rotate_bytes: 1, ..config(directory.path(), format) }).unwrap();
        feed(&mut sink, 2, 3);
        let record = samples::connection(7);
        for sequence in [3, 4] {
            let dump = Dump { sequence, at_unix_ns: sequence * 5_000_000_000, ..samples::dump() };
            sink.rows(&dump, &[Row::bare(&record)]).expect("never");
        }
        assert_eq!(Box::new(sink).close(SOON).rows_out, 8);
        let times: BTreeSet<String> = names(directory.path()).iter().map(|name| name[8..24].to_owned()).collect();
        assert!(!times.contains("19700101T000000Z"), "{times:?}");
        // A Parquet file begins with the row group of the dump before, which is not full.
        let last = if format == SocketFormat::Parquet { "19700101T000005Z" } else { "19700101T000015Z" };
        assert_eq!(times.last().map(String::as_str), Some(last), "{format}");
    }
}

/// A host without a battery for its clock starts in 1970, and a clock may be set back.
#[test]
fn the_oldest_files_are_removed_whatever_the_clock_said() {
    let directory = tempfile::tempdir().unwrap();
    let earlier = ["sockets-20261125T070000Z-000001.jsonl.zst", "sockets-19700101T000000Z-000002.jsonl.zst"];
    for (n, name) in (0..).zip(earlier) {
        let file = File::create(directory.path().join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000 + n)).unwrap();
    }
    let bounds = FilesConfig { rotate_bytes: 1, keep_files: 4, ..config(directory.path(), SocketFormat::Json) };
    let mut sink = Files::start(bounds).unwrap();
    let record = samples::connection(1);
    for (sequence, second) in [(1, 500), (2, 400), (3, 300)] {
        let dump = Dump { sequence, at_unix_ns: second * 1_000_000_000, ..samples::dump() };
        sink.rows(&dump, &[Row::bare(&record)]).expect("never");
        sink.end(&dump, &samples::completeness()).expect("never");
    }
    Box::new(sink).close(SOON);
    let names = names(directory.path());
    let left: Vec<&str> = names.iter().map(|name| &name[8..31]).collect();
    // The first file of the earlier process is gone, although its name has the latest time.
    let expected = ["000000Z-000002", "000500Z-000003", "000640Z-000002", "000820Z-000001"];
    assert_eq!(left, expected.map(|time| format!("19700101T{time}")), "{names:?}");
}

#[test]
fn unfinished_files_of_a_killed_process_are_not_called_complete() {
    let directory = tempfile::tempdir().unwrap();
    for name in [".sockets-x.jsonl.zst.tmp", ".sockets-x.parquet.tmp", ".other.tmp"] {
        fs::write(directory.path().join(name), "x").unwrap();
    }
    let sink = Files::start(config(directory.path(), SocketFormat::Json)).unwrap();
    assert_eq!((sink.account().errors["unfinished"], sink.account().bytes_lost), (2, 2));
    assert!(Files::start(config(directory.path(), SocketFormat::Json)).is_err(), "one process at a time");
    Box::new(sink).close(SOON);
    assert_eq!(names(directory.path()), [".other.tmp"], "our files had no complete rows");
}

/// Simulates a full disk: the descriptor of the open file is replaced by one of /dev/full.
#[test]
fn a_full_disk_leaves_no_incomplete_rows() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer =
        Writer::open(config(directory.path(), SocketFormat::Json), Alignment::default(), Disk::default()).unwrap();
    let chunk = Chunk { sequence: 1, at_unix_ns: 0, rows: 3, bytes: b"{}\n{}\n{}\n".to_vec().into() };
    writer.deliver(&chunk).expect("the disk has space");
    let good = writer.open.as_mut().unwrap();
    let length = good.file.bytes();
    let file = good.file.replaced(OpenOptions::new().write(true).open("/dev/full").unwrap());
    for _ in 0..2 {
        let refusal = writer.deliver(&chunk).expect_err("the disk is full");
        assert_eq!((refusal.kind, refusal.retriable), ("disk-full", true));
        assert_eq!(writer.open.as_ref().unwrap().file.bytes(), length);
    }
    writer.open.as_mut().unwrap().file.replaced(file);
    writer.deliver(&chunk).expect("the disk has space again");
    writer.close(SOON);
    assert_eq!(lines(&directory.path().join(&names(directory.path())[0])).len(), 6);
}

/// The directory of the small file system that the next test mounts in a mount namespace of its child.
const SMALL: &str = "PARSHALL_TEST_SMALL_FILE_SYSTEM";

#[test]
fn a_full_file_system() {
    let what = "rotating files on a full file system";
    let directory = tempfile::tempdir().unwrap();
    let mounted = "mount -t tmpfs -o size=256k none \"$0\" || exit 77; \
                   exec \"$1\" --exact sink::files::tests::on_a_full_file_system --ignored";
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", mounted])
        .arg(directory.path())
        .arg(program)
        .env(SMALL, directory.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let refused = output.status.code() == Some(77) || text.contains("unshare failed");
            assert!(refused, "{text}\n{}", String::from_utf8_lossy(&output.stdout));
            skip(what, "no mount namespace can be created here");
        }
        Err(_) => skip(what, "needs unshare"),
    }
}

#[test]
#[ignore = "started by the test above, on a small file system"]
fn on_a_full_file_system() {
    let Some(directory) = std::env::var_os(SMALL).map(PathBuf::from) else { return };
    fs::write(directory.join("ballast"), vec![0; 200_000]).expect("the file system has space for it");
    let mut sink = Files::start(config(&directory, SocketFormat::Protobuf)).unwrap();
    feed(&mut sink, 1, 100);
    let dump = samples::dump();
    let record = samples::connection(1);
    let rows = [Row::bare(&record); 200];
    // A dump has about 60 kB. First the disk gets full, then the queue, and then rows are dropped.
    let end = Instant::now() + SOON;
    while sink.account().rows_dropped == 0 {
        sink.rows(&dump, &rows).unwrap();
        sink.end(&dump, &samples::completeness()).unwrap();
        assert!(Instant::now() < end, "{:?}", sink.account());
    }
    let full = sink.account();
    assert!(full.errors["disk-full"] > 0 && full.errors["queue-full"] > 0, "{full:?}");
    assert_eq!(full.rows_in, full.rows_out + full.rows_waiting + full.rows_dropped);
    fs::remove_file(directory.join("ballast")).unwrap();
    while sink.account().rows_out <= full.rows_out {
        std::thread::sleep(Duration::from_millis(20));
        assert!(Instant::now() < end, "it continues when there is space: {:?}", sink.account());
    }
    let account = Box::new(sink).close(Duration::from_secs(1));
    assert_eq!(account.rows_in, account.rows_out + account.rows_waiting + account.rows_dropped, "{account:?}");
    let names: Vec<String> = names(&directory);
    assert_eq!(names.len(), 1, "{names:?}");
    let bytes = fs::read(directory.join(&names[0])).unwrap();
    let (mut at, mut sockets) = (0, 0);
    while at < bytes.len() {
        let (low, high) = (usize::from(bytes[at] & 0x7f), usize::from(bytes[at + 1]));
        sockets += u64::from(bytes[at] >= 0x80);
        at += if bytes[at] < 0x80 { 1 + low } else { 2 + (high << 7 | low) };
    }
    assert_eq!((at, sockets), (bytes.len(), account.rows_out), "every row that was counted as delivered is complete");
}

mod crashes;
