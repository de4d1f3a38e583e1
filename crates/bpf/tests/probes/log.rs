//! Writes to logs: what is kept of them, and of whom.
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use parshall_bpf::diagnose::Observed;
use parshall_bpf::diagnose::log::{Chunk, Log, To, Wanted};
use parshall_testkit::root;

use super::probed::{alone, ready};

const STREAMS: Wanted = Wanted { streams: true, inodes: Vec::new() };

fn own() -> Observed {
    Observed { pids: vec![std::process::id()], all: false }
}

/// Runs a shell that is observed as a child of this process.
fn shell(script: &str) {
    let status = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(status.success());
}

fn texts(chunks: &[Chunk], to: To) -> Vec<String> {
    let of = chunks.iter().filter(|chunk| chunk.to == to);
    of.map(|chunk| String::from_utf8_lossy(&chunk.bytes).into_owned()).collect()
}

#[test]
fn what_children_write_to_their_streams_is_kept() {
    if !root("lines of stdout and stderr") {
        return;
    }
    let _alone = alone();
    let mut log = Log::load(&STREAMS, true).unwrap();
    for window in 0..2 {
        log.begin(&own()).unwrap();
        // A shell redirects what it does itself to its descriptor 1; its complaints go to 2.
        shell(&format!("echo out {window}; no-such-program-{window}; true"));
        File::create("/dev/null").unwrap().write_all(b"another descriptor").unwrap();
        log.stop();
        shell("echo too late");
        let (chunks, left_out, took_ns) = log.end();
        assert_eq!(texts(&chunks, To::Stdout), [format!("out {window}\n")], "{chunks:?}");
        let complaint = texts(&chunks, To::Stderr).concat();
        assert!(complaint.contains(&format!("no-such-program-{window}")), "{complaint}");
        assert!(chunks.iter().all(|chunk| chunk.tgid != std::process::id() && chunk.tid == chunk.tgid));
        assert!(left_out == 0 && took_ns > 0);
    }
}

#[test]
fn children_are_left_alone_where_they_are_not_asked_for() {
    if !root("lines of children") {
        return;
    }
    let _alone = alone();
    let mut log = Log::load(&STREAMS, false).unwrap();
    log.begin(&own()).unwrap();
    shell("echo out");
    let (chunks, ..) = log.end();
    assert!(chunks.iter().all(|chunk| chunk.tgid == std::process::id()), "{chunks:?}");
}

#[test]
fn long_writes_are_cut_and_many_are_counted() {
    if !root("limits of log lines") {
        return;
    }
    let _alone = alone();
    let mut log = Log::load(&STREAMS, true).unwrap();
    log.begin(&own()).unwrap();
    shell("head -c 3000 /dev/zero; i=0; while [ $i -lt 9000 ]; do echo $i; i=$((i+1)); done");
    let (chunks, left_out, _) = log.end();
    let long = chunks.iter().find(|chunk| chunk.length == 3000).expect("the first one");
    assert_eq!(long.bytes, [0; 512]);
    assert!(chunks.len() < 9_000 && chunks.len() as u64 + left_out == 9_001, "{} and {left_out}", chunks.len());
}

#[test]
fn writes_to_a_named_file_are_kept_and_to_others_are_not() {
    if !ready("lines of a file") {
        return;
    }
    let _alone = alone();
    let directory = std::env::temp_dir().join(format!("parshall-log-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let [mut named, mut other] = ["named", "other"].map(|name| File::create(directory.join(name)).unwrap());
    let inode = named.metadata().unwrap().ino();
    let mut log = Log::load(&Wanted { streams: false, inodes: vec![u64::MAX, inode] }, true).unwrap();
    log.begin(&own()).unwrap();
    named.write_all(b"a line\n").unwrap();
    other.write_all(b"secret\n").unwrap();
    let parts = [IoSlice::new(b"two "), IoSlice::new(b""), IoSlice::new(b"parts\n")];
    rustix::io::writev(named.as_fd(), &parts).unwrap();
    shell(&format!("echo appended >>{}; echo out", directory.join("named").display()));
    let (chunks, ..) = log.end();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(texts(&chunks, To::File(1)), ["a line\n", "two ", "parts\n", "appended\n"]);
    assert_eq!(chunks.len(), 4, "nothing else: {chunks:?}");
}
