//! Kills the process and makes the disk fail at every step of writing a file. Rows that were acknowledged must be in the files
//! afterwards, complete and once.
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use parquet::file::reader::{FileReader, SerializedFileReader};

use super::*;
use crate::sink::disk::Step;
use crate::sink::disk::faults::{Fault as DiskFault, Faults, scratch};

/// The encoded rows of a chunk or a file. All rows differ.
type Items = Vec<Vec<u8>>;

/// Rows of a chunk.
const ROWS: usize = 40;

/// The formats of which files are made.
fn formats() -> Vec<SocketFormat> {
    SocketFormat::value_variants().iter().copied().filter(|format| layout(*format).is_some()).collect()
}

/// A chunk as the sink encodes it.
fn chunk(format: SocketFormat, sequence: u64) -> Chunk {
    let dump = Dump { sequence, at_unix_ns: sequence * 5_000_000_000, ..samples::dump() };
    let records: Vec<Owned> = (0..ROWS as u64)
        .map(|n| Owned { record: samples::connection(n), socket: sequence << 32 | n, ..Default::default() })
        .collect();
    let rows: Vec<Row<'_>> = records.iter().map(Owned::row).collect();
    let mut bytes = Vec::new();
    match format {
        SocketFormat::Text => unreachable!("files are not written as text"),
        SocketFormat::Json => Json::default().rows(&dump, &rows, &mut bytes),
        SocketFormat::Protobuf | SocketFormat::ProtobufZstd => Protobuf::default().rows(&dump, &rows, &mut bytes),
        SocketFormat::Parquet => {
            let mut pieces = Pieces::default();
            rows.iter().for_each(|row| pieces.row(&dump, row));
            bytes = pieces.take();
        }
    }
    Chunk { sequence, at_unix_ns: dump.at_unix_ns, rows: ROWS as u32, bytes: bytes.into() }
}

/// The rows in `bytes`. Fails if the last one is incomplete.
fn items(format: SocketFormat, bytes: &[u8]) -> Items {
    match format {
        SocketFormat::Text => unreachable!("files are not written as text"),
        SocketFormat::Json => bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect(),
        SocketFormat::Protobuf | SocketFormat::ProtobufZstd => {
            let (mut at, mut messages) = (0, Vec::new());
            while at < bytes.len() {
                let (low, high) = (usize::from(bytes[at] & 0x7f), usize::from(bytes[at + 1]));
                let end = at + if bytes[at] < 0x80 { 1 + low } else { 2 + (high << 7 | low) };
                messages.push(bytes[at..end].to_vec());
                at = end;
            }
            messages
        }
        SocketFormat::Parquet => {
            let reader = SerializedFileReader::new(bytes::Bytes::copy_from_slice(bytes)).expect("a Parquet file");
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string().into_bytes()).collect()
        }
    }
}

/// The rows in all files of a directory. Fails if there is a file with another name.
fn stored(directory: &Path, format: SocketFormat) -> Items {
    let mut all = Vec::new();
    for name in names(directory) {
        assert!(name.starts_with("sockets-"), "unexpected file {name}");
        let bytes = fs::read(directory.join(&name)).unwrap();
        let is_packed = matches!(format, SocketFormat::Json | SocketFormat::ProtobufZstd);
        let bytes = if is_packed { zstd::decode_all(&bytes[..]).expect("complete frames") } else { bytes };
        all.extend(items(format, &bytes));
    }
    all
}

/// A configuration with about two chunks per file, in which old files are kept.
fn bounds(directory: &Path, format: SocketFormat) -> FilesConfig {
    FilesConfig { rotate_bytes: chunk(format, 1).bytes.len() as u64 / 8, ..config(directory, format) }
}

/// Leaves the file of a process that was killed: with two chunks and an incomplete third one.
fn leave_unfinished(directory: &Path, format: SocketFormat) {
    let bounds = FilesConfig { rotate_bytes: u64::MAX, ..bounds(directory, format) };
    let mut writer = Writer::open(bounds, Alignment::default(), Disk::default()).expect("a directory of ours");
    for sequence in [1, 2] {
        writer.deliver(&chunk(format, sequence)).expect("the disk has space");
    }
    let path = writer.open.take().unwrap().path;
    let mut bytes = fs::read(&path).unwrap();
    let torn = match format {
        SocketFormat::Protobuf => chunk(format, 99).bytes[..1000].to_vec(),
        _ => bytes[..bytes.len() / 3].to_vec(),
    };
    bytes.extend(torn);
    fs::write(&path, bytes).unwrap();
}

/// Writes four chunks to a disk that may fail, each with up to `attempts` attempts. Returns the acknowledged ones.
fn write(disk: &Disk, directory: &Path, format: SocketFormat, attempts: usize) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    let Ok(mut writer) = Writer::open(bounds(directory, format), Alignment::default(), disk.clone()) else {
        return acknowledged;
    };
    for sequence in 3..=6 {
        let chunk = chunk(format, sequence);
        if (0..attempts).any(|_| writer.deliver(&chunk).is_ok()) {
            acknowledged.push(sequence);
        }
    }
    writer.close(SOON);
    acknowledged
}

/// Repeats [`write`] with the fault at each step of the disk, or at every `stride`-th one, and compares the files after a restart.
fn at_steps(format: SocketFormat, fault: DiskFault, attempts: usize, stride: usize) {
    let steps = {
        let directory = scratch();
        leave_unfinished(directory.path(), format);
        let (disk, faults) = Faults::none();
        assert_eq!(write(&disk, directory.path(), format, 1), [3, 4, 5, 6]);
        assert_eq!(faults.wrong(), [""; 0]);
        let steps = faults.steps();
        for (number, _) in steps.iter().enumerate().filter(|(_, step)| **step == Step::Rename) {
            assert_eq!(steps[number + 1], Step::SyncDirectory, "the directory is synced after a rename");
        }
        assert!(steps.contains(&Step::Truncate), "the unfinished file is repaired: {steps:?}");
        steps
    };
    for number in (0..steps.len() as u64).step_by(stride) {
        let directory = scratch();
        leave_unfinished(directory.path(), format);
        let (disk, _) = Faults::at(number, fault);
        let acknowledged = write(&disk, directory.path(), format, attempts);
        let next = Writer::open(bounds(directory.path(), format), Alignment::default(), Disk::default());
        drop(next.expect("the next process starts"));
        let mut counts: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        stored(directory.path(), format).into_iter().for_each(|item| *counts.entry(item).or_default() += 1);
        let where_ = format!("{format:?}, {fault:?} at step {number}, {:?}", steps[number as usize]);
        assert!(counts.values().all(|count| *count == 1), "{where_}: a row is there twice");
        for sequence in [1, 2].into_iter().chain(acknowledged.iter().copied()) {
            let wanted = items(format, &chunk(format, sequence).bytes);
            assert_eq!(wanted.len(), ROWS);
            assert!(wanted.iter().all(|item| counts.contains_key(item)), "{where_}: chunk {sequence} is missing");
        }
        if let DiskFault::Fails(..) = fault {
            assert_eq!(acknowledged, [3, 4, 5, 6], "{where_}: it continues when the disk works again");
        }
    }
}

/// Steps that `make test` leaves out between two.
const STRIDE: usize = 13;

#[test]
fn killed_at_some_steps_no_acknowledged_row_is_lost() {
    formats().into_iter().for_each(|format| at_steps(format, DiskFault::Killed, 1, STRIDE));
}

#[test]
#[ignore = "make test-all"]
fn killed_at_any_step_no_acknowledged_row_is_lost() {
    formats().into_iter().for_each(|format| at_steps(format, DiskFault::Killed, 1, 1));
}

#[test]
fn a_disk_that_is_full_at_some_steps_loses_no_acknowledged_row() {
    let full = DiskFault::Fails(libc::ENOSPC, 3);
    formats().into_iter().for_each(|format| at_steps(format, full, 5, STRIDE));
}

#[test]
#[ignore = "make test-all"]
fn a_disk_that_is_full_at_any_step_loses_no_acknowledged_row() {
    for times in [1, 3] {
        let full = DiskFault::Fails(libc::ENOSPC, times);
        formats().into_iter().for_each(|format| at_steps(format, full, 5, 1));
    }
}

#[test]
fn a_failed_sync_is_reported_and_the_file_is_marked_partial() {
    let directory = scratch();
    let format = SocketFormat::Protobuf;
    let (disk, faults) = Faults::none();
    let sync = {
        write(&disk, directory.path(), format, 1);
        faults.steps().iter().position(|step| *step == Step::Sync).expect("files are synced")
    };
    let directory = scratch();
    let (disk, _) = Faults::at(sync as u64, DiskFault::Fails(libc::EIO, 1));
    let mut writer = Writer::open(config(directory.path(), format), Alignment::default(), disk).unwrap();
    writer.deliver(&chunk(format, 1)).unwrap();
    writer.finish().unwrap();
    assert!(names(directory.path())[0].ends_with(".pb.partial"), "{:?}", names(directory.path()));
    let faults = writer.faults();
    assert!(faults[0].kind == "sync" && faults[0].text.contains("40 rows"), "{faults:?}");
}

#[test]
fn repeated_crashes_do_not_fill_the_disk() {
    for format in formats() {
        let directory = scratch();
        let bounds = FilesConfig { keep_files: 3, ..config(directory.path(), format) };
        for sequence in 1..=12 {
            let mut writer = Writer::open(bounds.clone(), Alignment::default(), Disk::default()).unwrap();
            writer.deliver(&chunk(format, sequence)).unwrap();
            // As if killed: the file is not finished.
            drop(writer);
            assert!(names(directory.path()).len() <= 4, "{:?}", names(directory.path()));
        }
    }
}

#[test]
fn a_repaired_file_is_marked_partial_and_its_loss_is_reported() {
    for format in formats() {
        let directory = scratch();
        leave_unfinished(directory.path(), format);
        let mut writer = Writer::open(config(directory.path(), format), Alignment::default(), Disk::default()).unwrap();
        let faults = writer.faults();
        assert_eq!((faults.len(), faults[0].kind), (1, "unfinished"), "{faults:?}");
        assert!(faults[0].bytes > 0 && faults[0].text.contains(PARTIAL), "{faults:?}");
        assert!(names(directory.path())[0].ends_with(PARTIAL));
        // The complete messages of an incomplete chunk are kept.
        let torn = if format == SocketFormat::Protobuf { 1..ROWS } else { 0..1 };
        assert!(torn.contains(&(stored(directory.path(), format).len() - 2 * ROWS)), "{format:?}");
    }
}

#[test]
fn only_the_owner_can_read_the_files() {
    let directory = scratch();
    let mut sink = Files::start(config(directory.path(), SocketFormat::Parquet)).unwrap();
    feed(&mut sink, 1, 10);
    Box::new(sink).close(SOON);
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
    }
}
