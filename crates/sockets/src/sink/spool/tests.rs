//! A spool keeps its chunks in order through restarts, incomplete writes and damage, or counts what is lost.
use std::path::Path;

use super::*;
use crate::sink::disk::faults::{Fault as DiskFault, Faults, scratch};

fn config(directory: &Path, max_bytes: u64) -> SpoolConfig {
    SpoolConfig { directory: directory.to_owned(), max_bytes, segment_bytes: 1000 }
}

fn chunk(sequence: u64) -> Chunk {
    Chunk { sequence, at_unix_ns: 1, rows: 10, bytes: vec![sequence as u8; 300].into() }
}

fn open(config: &SpoolConfig) -> (Spool, Vec<&'static str>) {
    let (spool, faults) = Spool::open(config).expect("ours");
    (spool, faults.iter().map(|f| f.kind).collect())
}

fn drain(spool: &mut Spool) -> (Vec<u64>, u64) {
    let (mut got, mut lost) = (Vec::new(), 0);
    loop {
        match spool.peek() {
            Next::Chunk(chunk) => {
                assert_eq!(*chunk.bytes, vec![chunk.sequence as u8; 300]);
                got.push(chunk.sequence);
                spool.advance();
            }
            Next::Damaged { rows, .. } => lost += rows,
            Next::Nothing => return (got, lost),
        }
    }
}

/// Overwrites a byte.
fn damage(file: &fs::File, at: u64) {
    std::os::unix::fs::FileExt::write_all_at(file, b"x", at).unwrap();
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "spool"));
    paths.sort();
    paths
}

#[test]
fn chunks_are_returned_once_and_in_order_across_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1 << 20);
    let (mut spool, faults) = open(&config);
    assert!(faults.is_empty());
    (1..=8).for_each(|n| spool.append(&chunk(n)).unwrap());
    assert_eq!((spool.level().chunks, spool.level().rows), (8, 80));
    for want in 1..=4 {
        assert!(matches!(spool.peek(), Next::Chunk(c) if c.sequence == want));
        spool.advance();
    }
    drop(spool);
    let (mut spool, faults) = open(&config);
    assert!(faults.is_empty());
    assert_eq!(spool.level().rows, 40);
    spool.append(&chunk(9)).unwrap();
    assert_eq!(drain(&mut spool), (vec![5, 6, 7, 8, 9], 0));
    assert_eq!(spool.level(), Level::default());
    assert!(segments(directory.path()).is_empty(), "segments of delivered chunks are removed");
}

#[test]
fn chunks_of_put_first_are_returned_first_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1 << 20);
    let (mut spool, _) = open(&config);
    (3..=6).for_each(|n| spool.append(&chunk(n)).unwrap());
    let Next::Chunk(_) = spool.peek() else { panic!("no chunk") };
    spool.advance();
    let mut faults = Vec::new();
    assert_eq!(spool.put_first(vec![chunk(1), chunk(2)], &mut faults), 0);
    assert!(faults.is_empty());
    drop(spool);
    assert_eq!(drain(&mut open(&config).0), (vec![1, 2, 4, 5, 6], 0));
}

#[test]
fn the_size_is_limited_and_delivered_segments_free_space() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 2500);
    let (mut spool, _) = open(&config);
    let taken = (1..=20).take_while(|n| spool.append(&chunk(*n)).is_ok()).count() as u64;
    assert!((5..=7).contains(&taken), "{taken}");
    let on_disk: u64 = segments(directory.path()).iter().map(|p| p.metadata().unwrap().len()).sum();
    assert_eq!(spool.level().bytes, on_disk);
    assert!(on_disk <= 2500);
    assert_eq!(spool.append(&chunk(99)).unwrap_err().kind, "spool-full");
    for _ in 0..3 {
        assert!(matches!(spool.peek(), Next::Chunk(_)));
        spool.advance();
    }
    spool.append(&chunk(21)).expect("a segment was removed");
    let mut faults = Vec::new();
    assert_eq!(spool.put_first((30..40).map(chunk).collect(), &mut faults), 100 - 10 * (10 - faults.len() as u64));
    assert!(spool.level().bytes <= 2500, "put_first keeps the limit too");
}

#[test]
fn an_incomplete_last_chunk_is_cut_off_at_every_length() {
    for cut in [1, 35, 36, 37, 200, 335] {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), 1 << 20);
        let (mut spool, _) = open(&config);
        (1..=2).for_each(|n| spool.append(&chunk(n)).unwrap());
        drop(spool);
        let path = &segments(directory.path())[0];
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(path.metadata().unwrap().len() - cut).unwrap();
        let (mut spool, faults) = open(&config);
        assert_eq!(faults, ["spool-torn"], "cut by {cut}");
        assert_eq!(drain(&mut spool), (vec![1], 0));
    }
}

#[test]
fn a_damaged_chunk_is_counted_and_later_chunks_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1 << 20);
    let (mut spool, _) = open(&config);
    (1..=5).for_each(|n| spool.append(&chunk(n)).unwrap());
    drop(spool);
    // The body of the second chunk.
    let file = fs::OpenOptions::new().write(true).open(&segments(directory.path())[0]).unwrap();
    damage(&file, 8 + 336 + 36 + 5);
    let (mut spool, faults) = open(&config);
    assert!(faults.is_empty(), "bodies are checked when they are read");
    assert_eq!(drain(&mut spool), (vec![1, 3, 4, 5], 10));
}

#[test]
fn a_damaged_header_loses_only_its_chunk_and_is_counted() {
    // The magic of the segment, and the headers of the first, the second and the last chunk.
    for (at, wanted, rows, bytes) in [
        (0, vec![1, 2, 3, 4, 5], 0, 8),
        (8 + 4, vec![2, 3, 4, 5], 10, 336),
        (8 + 336 + 4, vec![1, 3, 4, 5], 10, 336),
        (8 + 4 * 336 + 4, vec![1, 2, 3, 4], 0, 336),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let config = SpoolConfig { segment_bytes: 1 << 20, ..config(directory.path(), 1 << 20) };
        let (mut spool, _) = open(&config);
        (1..=5).for_each(|n| spool.append(&chunk(n)).unwrap());
        drop(spool);
        damage(&fs::OpenOptions::new().write(true).open(&segments(directory.path())[0]).unwrap(), at);
        let (mut spool, faults) = Spool::open(&config).expect("ours");
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(
            (faults[0].kind, faults[0].rows, faults[0].bytes),
            ("spool-damaged", rows, bytes),
            "damaged at {at}"
        );
        assert_eq!(drain(&mut spool), (wanted, 0), "damaged at {at}");
    }
}

#[test]
fn a_header_damaged_while_the_spool_is_open_loses_only_its_chunk_and_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let config = SpoolConfig { segment_bytes: 1 << 20, ..config(directory.path(), 1 << 20) };
    let (mut spool, _) = open(&config);
    (1..=5).for_each(|n| spool.append(&chunk(n)).unwrap());
    let file = fs::OpenOptions::new().write(true).open(&segments(directory.path())[0]).unwrap();
    damage(&file, 8 + 336 + 4);
    damage(&file, 8 + 4 * 336 + 4);
    assert_eq!(drain(&mut spool), (vec![1, 3, 4], 20));
    assert_eq!(spool.level(), Level::default());
}

#[test]
fn damage_in_delivered_chunks_is_not_counted_as_lost() {
    let directory = tempfile::tempdir().unwrap();
    let config = SpoolConfig { segment_bytes: 1 << 20, ..config(directory.path(), 1 << 20) };
    let (mut spool, _) = open(&config);
    (1..=5).for_each(|n| spool.append(&chunk(n)).unwrap());
    for _ in 0..3 {
        assert!(matches!(spool.peek(), Next::Chunk(_)));
        spool.advance();
    }
    drop(spool);
    damage(&fs::OpenOptions::new().write(true).open(&segments(directory.path())[0]).unwrap(), 8 + 336 + 4);
    let (mut spool, faults) = open(&config);
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(drain(&mut spool), (vec![4, 5], 0));
}

/// The operations of a process on a spool that have succeeded.
#[derive(Debug, Default)]
struct Done {
    appended: Vec<u64>,
    /// Chunks that the spool returned. Except perhaps for the last one, the position after each is on the disk.
    delivered: Vec<u64>,
    faults: usize,
}

/// Appends six chunks, delivers four, appends three more and delivers one.
fn work(disk: Disk, config: &SpoolConfig, attempts: usize) -> Done {
    let mut done = Done::default();
    let Ok((mut spool, _)) = Spool::open_on(config, disk) else { return done };
    let append = |spool: &mut Spool, done: &mut Done, n: u64| {
        if (0..attempts).any(|_| spool.append(&chunk(n)).is_ok()) {
            done.appended.push(n);
        }
    };
    let deliver = |spool: &mut Spool, done: &mut Done| {
        let Next::Chunk(chunk) = spool.peek() else { return };
        done.delivered.push(chunk.sequence);
        spool.advance();
        done.faults += spool.faults().len();
    };
    (1..=6).for_each(|n| append(&mut spool, &mut done, n));
    (0..4).for_each(|_| deliver(&mut spool, &mut done));
    (7..=9).for_each(|n| append(&mut spool, &mut done, n));
    deliver(&mut spool, &mut done);
    spool.sync();
    done
}

/// Repeats [`work`] with the fault at each step of the disk, and compares the spool that a restart finds.
fn at_every_step(fault: DiskFault, attempts: usize) {
    let steps = {
        let directory = scratch();
        let (disk, faults) = Faults::none();
        let done = work(disk, &config(directory.path(), 1 << 20), 1);
        assert_eq!((done.appended.len(), done.delivered.len(), done.faults), (9, 5, 0), "{done:?}");
        faults.steps()
    };
    for number in 0..steps.len() as u64 {
        let directory = scratch();
        let config = config(directory.path(), 1 << 20);
        let (disk, _) = Faults::at(number, fault);
        let done = work(disk, &config, attempts);
        let (mut spool, faults) = open(&config);
        let (got, lost) = drain(&mut spool);
        let where_ = format!("{fault:?} at step {number}, {:?}: {done:?}, then {got:?}", steps[number as usize]);
        assert!(got.is_sorted_by(|a, b| a < b) && lost == 0, "{where_}");
        assert!(faults.iter().all(|kind| *kind == "spool-torn"), "{where_}: {faults:?}");
        let missing = done.appended.iter().find(|n| !done.delivered.contains(n) && !got.contains(n));
        assert_eq!(missing, None, "{where_}");
        let again = got.iter().filter(|n| done.delivered.contains(n)).count();
        let foreign = got.iter().filter(|n| !done.appended.contains(n)).count();
        match fault {
            // The chunk that was being appended when the process was killed may or may not be in the spool.
            DiskFault::Killed => assert!(again <= done.faults.max(1) && foreign <= 1, "{where_}"),
            DiskFault::Fails(..) => {
                assert!(again <= done.faults && foreign == 0 && done.appended.len() == 9, "{where_}");
            }
        }
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"], "{where_}: nothing is left behind");
    }
}

#[test]
fn killed_at_any_step_a_spool_keeps_all_chunks_and_returns_at_most_one_twice() {
    at_every_step(DiskFault::Killed, 1);
}

#[test]
fn a_disk_that_is_full_at_any_step_loses_no_chunk() {
    at_every_step(DiskFault::Fails(libc::ENOSPC, 1), 3);
    at_every_step(DiskFault::Fails(libc::ENOSPC, 2), 4);
}

#[test]
fn only_the_owner_can_read_the_files_of_a_spool() {
    use std::os::unix::fs::PermissionsExt;
    let directory = scratch();
    let (mut spool, _) = open(&config(directory.path(), 1 << 20));
    spool.append(&chunk(1)).unwrap();
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
    }
}

#[test]
fn other_files_are_kept_and_a_second_process_is_refused() {
    let directory = scratch();
    fs::write(directory.path().join("notes.txt"), "mine").unwrap();
    fs::write(directory.path().join("00000000000000000007.spool"), "PSH").unwrap();
    let config = config(directory.path(), 1 << 20);
    let (_spool, faults) = open(&config);
    assert_eq!(faults, ["spool-torn"], "a segment without a header");
    let error = Spool::open(&config).expect_err("it is in use");
    assert!(error.to_string().contains("in use"), "{error:#}");
    assert!(directory.path().join("notes.txt").exists());
}
