//! A spool keeps what it was given through restarts, tears and damage, in order, or says what it lost.
use std::path::Path;

use super::*;

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
                spool.advance().expect("ours");
            }
            Next::Damaged { rows, .. } => lost += rows,
            Next::Nothing => return (got, lost),
        }
    }
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "spool"));
    paths.sort();
    paths
}

#[test]
fn oldest_first_through_a_restart_and_nothing_twice() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1 << 20);
    let (mut spool, faults) = open(&config);
    assert!(faults.is_empty());
    (1..=8).for_each(|n| spool.append(&chunk(n)).unwrap());
    assert_eq!((spool.level().chunks, spool.level().rows), (8, 80));
    for want in 1..=4 {
        assert!(matches!(spool.peek(), Next::Chunk(c) if c.sequence == want));
        spool.advance().unwrap();
    }
    drop(spool);
    let (mut spool, faults) = open(&config);
    assert!(faults.is_empty());
    assert_eq!(spool.level().rows, 40);
    spool.append(&chunk(9)).unwrap();
    assert_eq!(drain(&mut spool), (vec![5, 6, 7, 8, 9], 0));
    assert_eq!(spool.level(), Level::default());
    assert!(segments(directory.path()).is_empty(), "what was delivered takes no room");
}

#[test]
fn what_is_put_first_comes_first_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1 << 20);
    let (mut spool, _) = open(&config);
    (3..=6).for_each(|n| spool.append(&chunk(n)).unwrap());
    let Next::Chunk(_) = spool.peek() else { panic!("there is one") };
    spool.advance().unwrap();
    let mut faults = Vec::new();
    assert_eq!(spool.put_first(vec![chunk(1), chunk(2)], &mut faults), 0);
    assert!(faults.is_empty());
    drop(spool);
    assert_eq!(drain(&mut open(&config).0), (vec![1, 2, 4, 5, 6], 0));
}

#[test]
fn the_bound_holds_and_room_comes_back() {
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
        spool.advance().unwrap();
    }
    spool.append(&chunk(21)).expect("a segment's room came back");
    let mut faults = Vec::new();
    assert_eq!(spool.put_first((30..40).map(chunk).collect(), &mut faults), 100 - 10 * (10 - faults.len() as u64));
    assert!(spool.level().bytes <= 2500, "what is put first keeps the bound too");
}

#[test]
fn a_torn_tail_is_cut_off_at_every_length() {
    for cut in [1, 35, 36, 37, 200, 335] {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), 1 << 20);
        let (mut spool, _) = open(&config);
        (1..=2).for_each(|n| spool.append(&chunk(n)).unwrap());
        drop(spool);
        let path = &segments(directory.path())[0];
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(path.metadata().unwrap().len() - cut).unwrap();
        let (mut spool, faults) = open(&config);
        assert_eq!(faults, ["spool-torn"], "cut by {cut}");
        assert_eq!(drain(&mut spool), (vec![1], 0));
    }
}

#[test]
fn damage_is_counted_and_what_is_behind_it_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1 << 20);
    let (mut spool, _) = open(&config);
    (1..=5).for_each(|n| spool.append(&chunk(n)).unwrap());
    drop(spool);
    // The body of the second chunk.
    let file = OpenOptions::new().write(true).open(&segments(directory.path())[0]).unwrap();
    file.write_all_at(b"x", 8 + 336 + 36 + 5).unwrap();
    let (mut spool, faults) = open(&config);
    assert!(faults.is_empty(), "bodies are looked at when they are read");
    assert_eq!(drain(&mut spool), (vec![1, 3, 4, 5], 10));
}

#[test]
fn a_damaged_header_ends_its_segment_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1 << 20);
    let (mut spool, _) = open(&config);
    (1..=6).for_each(|n| spool.append(&chunk(n)).unwrap());
    drop(spool);
    let paths = segments(directory.path());
    assert!(paths.len() > 1);
    let file = OpenOptions::new().write(true).open(&paths[0]).unwrap();
    file.write_all_at(b"x", 8 + 336 + 4).unwrap();
    let (mut spool, faults) = open(&config);
    assert_eq!(faults, ["spool-damaged"]);
    assert_eq!(drain(&mut spool), (vec![1, 3, 4, 5, 6], 0));
}

#[test]
fn foreign_files_are_left_alone_and_a_second_process_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("notes.txt"), "mine").unwrap();
    fs::write(directory.path().join("00000000000000000007.spool"), "").unwrap();
    let config = config(directory.path(), 1 << 20);
    let (_spool, faults) = open(&config);
    assert_eq!(faults, ["spool-torn"], "a segment that was never begun");
    let error = Spool::open(&config).expect_err("it is in use");
    assert!(error.to_string().contains("in use"), "{error:#}");
    assert!(directory.path().join("notes.txt").exists());
}
