//! Requests that wait since before the window and are never answered: never HEALTHY, on every rung, by port, by process and with
//! `--all`; and connections that owe nothing. Needs Python.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::{self, PARSHALL, Running, Scratch, has};
use parshall_evidence::{Confidence, Report, Rung, Status};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/hang.py");
const SIZE: usize = 16;

/// A server whose requests hang, and their clients: this process.
struct Hang {
    server: Running,
    port: u16,
    pids: Vec<u32>,
    _clients: Vec<TcpStream>,
}

impl Hang {
    /// `lines` is how many lines it prints. Each byte of `kinds` is a client's request: `p` is answered, `s` subscribes, `h` hangs.
    fn start(mode: &str, lines: usize, kinds: &[u8]) -> Self {
        Self::start_by(Command::new("setsid").args(["python3", SCRIPT, mode]), mode, lines, kinds)
    }

    fn start_by(command: &mut Command, mode: &str, lines: usize, kinds: &[u8]) -> Self {
        let (server, lines) = common::start_lines(command, lines);
        let of = |word| lines.iter().filter_map(move |line| line.strip_prefix(word)?.trim().parse::<u32>().ok());
        let port = of("ready ").next().unwrap_or_else(|| panic!("{lines:?}")) as u16;
        let pids: Vec<u32> = of("pid ").collect();
        let mut clients: Vec<TcpStream> =
            kinds.iter().map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        if mode == "stop" {
            pids.iter().for_each(|pid| signal(*pid, "-STOP"));
        }
        for (client, kind) in clients.iter_mut().zip(kinds) {
            client.write_all(&[*kind; SIZE]).unwrap();
            if b"ps".contains(kind) {
                client.read_exact(&mut [0; SIZE]).unwrap();
            }
        }
        // A younger wait is not looked at, and the kernel's clock has ticks of up to 10 ms.
        thread::sleep(Duration::from_millis(400));
        Self { server, port, pids, _clients: clients }
    }

    fn subjects(&self) -> [Vec<String>; 3] {
        // The last one that it named is its own; of the workers, all are.
        let own = if self.pids.len() > 2 { &self.pids[..] } else { &self.pids[self.pids.len() - 1..] };
        let pids = own.iter().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]).collect();
        [vec!["--port".to_owned(), self.port.to_string()], pids, vec!["--all".to_owned()]]
    }

    fn observe(&self, rung: Rung, subject: &[String]) -> Report {
        let mut command = Command::new(PARSHALL);
        command.args(["attach", "--for", "1s", "--format", "json", "--rung", rung.as_str()]).args(subject);
        common::finish(&mut command).report()
    }

    /// The rungs on which it may be observed here.
    fn rungs() -> Vec<Rung> {
        let mut rungs = vec![Rung::Procfs];
        if common::btf("requests that hang, with probes") {
            rungs = vec![Rung::Btf, Rung::Procfs, Rung::Tracepoint];
        }
        rungs
    }

    /// All rungs in `make test-all`, and one of them in `make test`: which differs from mode to mode.
    fn some_rungs(mode: &str) -> Vec<Rung> {
        let mut rungs = Self::rungs();
        let first = mode.len() % rungs.len();
        rungs.rotate_left(first);
        common::some_of(&rungs, 1).to_vec()
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        // Stopped processes take no other signal.
        self.pids.iter().for_each(|pid| signal(*pid, "-KILL"));
        self.server.end();
    }
}

fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([name, &pid.to_string()]).stderr(std::process::Stdio::null()).status();
}

fn assert_hangs(report: &Report, causes: &[&str], requests: u64) {
    assert_eq!(report.verdict.status, Status::Cause, "{report:#?}");
    // With --all, another service of this host may hang more.
    let finding = report.findings.iter().find(|finding| causes.contains(&finding.cause.as_str()));
    let finding = finding.unwrap_or_else(|| panic!("not {causes:?}: {report:#?}"));
    assert!(finding.summary.contains("not been answered"), "{}", finding.summary);
    let unanswered: u64 = report.services.iter().map(|service| service.unanswered).sum();
    assert!(unanswered >= requests, "{unanswered}: {report:#?}");
    let longest = report.services.iter().map(|service| service.unanswered_longest_ms).fold(0.0, f64::max);
    assert!(longest >= 1000.0, "{longest}: {report:#?}");
}

/// The cause that a mode shows.
fn hangs(mode: &str, lines: usize, causes: &[&str]) {
    if !has(&["python3", "setsid"], "requests that hang") {
        return;
    }
    let hang = Hang::start(mode, lines, b"hhh");
    for rung in Hang::some_rungs(mode) {
        // Each rung has another way to find the subject.
        for subject in hang.subjects().iter().skip(rung as usize % 3).take(1) {
            assert_hangs(&hang.observe(rung, subject), causes, 3);
        }
    }
}

#[test]
fn all_workers_are_stopped() {
    hangs("stop", 4, &["process-stopped"]);
}

#[test]
fn all_are_blocked_in_a_mutex() {
    hangs("mutex", 2, &["lock-contention"]);
}

#[test]
fn a_deadlock() {
    hangs("deadlock", 2, &["lock-contention"]);
}

#[test]
fn a_downstream_that_reads_and_never_answers() {
    hangs("asks", 3, &["blocking-downstream-call"]);
}

#[test]
fn an_event_loop_that_asked_over_a_unix_socket() {
    hangs("unix", 3, &["process-stopped"]);
}

/// A file system in a file, in a mount namespace of its own: it ends with the processes.
#[test]
fn a_frozen_file_system() {
    let what = "requests that hang in a disk";
    if !common::root(what) || !has(&["python3", "setsid", "unshare", "truncate", "mkfs.ext4", "mount"], what) {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.file("image");
    let script = "truncate -s 16M \"$0\" && mkfs.ext4 -q \"$0\" && mkdir \"$0\".d && mount -o loop \"$0\" \"$0\".d && cd \"$0\".d && exec \"$@\"";
    let mut command = Command::new("setsid");
    command.args(["unshare", "-m", "sh", "-c", script]).arg(&image).args(["python3", SCRIPT, "disk"]);
    let hang = Hang::start_by(&mut command, "disk", 2, b"hhh");
    for rung in Hang::some_rungs("disk") {
        assert_hangs(&hang.observe(rung, &hang.subjects()[0]), &["blocking-disk-io"], 3);
    }
}

#[test]
fn a_full_accept_queue() {
    hangs("queue", 2, &["timer-wait", "accept-queue-overflow"]);
}

#[test]
#[ignore = "make test-all"]
fn every_hang_on_every_rung_by_every_subject() {
    if !has(&["python3", "setsid"], "requests that hang") {
        return;
    }
    for (mode, lines, causes) in [
        ("stop", 4, &["process-stopped"][..]),
        ("lock", 2, &["lock-contention"]),
        ("mutex", 2, &["lock-contention"]),
        ("deadlock", 2, &["lock-contention"]),
        ("asks", 3, &["blocking-downstream-call"]),
        ("unread", 3, &["blocking-downstream-call"]),
        ("file", 3, &["lock-contention"]),
        ("relay", 3, &["process-stopped"]),
        ("unix", 3, &["process-stopped"]),
        ("queue", 2, &["timer-wait", "accept-queue-overflow"]),
    ] {
        let hang = Hang::start(mode, lines, b"hhh");
        for rung in Hang::rungs() {
            for subject in hang.subjects() {
                assert_hangs(&hang.observe(rung, &subject), causes, 3);
            }
        }
    }
}

/// The thread sleeps since before the window, so no probe has its stack.
#[test]
fn the_thread_that_holds_all_up_has_the_functions_in_which_it_sleeps() {
    if !has(&["python3", "setsid"], "where a thread sleeps") {
        return;
    }
    let hang = Hang::start("mutex", 2, b"hh");
    for &rung in common::some_of(&Hang::rungs(), 1) {
        for (option, functions) in [(&[][..], false), (&["--interpreters".to_owned()][..], true)] {
            let report = hang.observe(rung, &[&hang.subjects()[0][..], option].concat());
            let leaf = report.chain.as_ref().and_then(|chain| chain.hops.last());
            let stack = leaf.map(|hop| hop.stack.as_slice()).unwrap_or_default();
            assert!(stack.len() > 1 && stack[0].contains("sleep"), "{}: {stack:?} {report:#?}", rung.as_str());
            let named = stack
                .iter()
                .any(|frame| frame.starts_with("mutex.<locals>.hold (hang.py:") || frame.starts_with("hold (hang.py:"));
            assert_eq!(named, functions, "{}: {stack:?}", rung.as_str());
        }
    }
}

#[test]
fn healthy_traffic_on_the_same_port_hides_no_hang() {
    if !has(&["python3", "setsid"], "requests that hang beside others") {
        return;
    }
    let hang = Hang::start("mutex", 2, b"hh");
    let mut busy = TcpStream::connect(("127.0.0.1", hang.port)).unwrap();
    thread::spawn(move || while busy.write_all(&[b'p'; SIZE]).is_ok() && busy.read_exact(&mut [0; SIZE]).is_ok() {});
    for &rung in common::some_of(&Hang::rungs(), 1) {
        assert_hangs(&hang.observe(rung, &hang.subjects()[0]), &["lock-contention"], 2);
    }
}

#[test]
fn what_owes_nothing_is_healthy() {
    if !has(&["python3", "setsid"], "connections that owe nothing") {
        return;
    }
    // A pool of idle connections, subscriptions, and long polls: of an event loop, and of a server with a thread each.
    let served = [("poll", b"hhps"), ("mutex", b"psps"), ("poll", b"pppp"), ("poll", b"ssss")];
    for &(mode, kinds) in common::some_of(&served, 2) {
        let idle = Hang::start(mode, 2, kinds);
        for rung in Hang::some_rungs(mode) {
            for subject in common::some_of(&idle.subjects()[..2], 1) {
                let report = idle.observe(rung, subject);
                assert_eq!(report.verdict.status, Status::Healthy, "{mode} {kinds:?}: {report:#?}");
                let left_to_wait = report.blind.iter().any(|note| note.contains("long polls"));
                assert_eq!(left_to_wait, kinds.contains(&b'h'), "{mode} {kinds:?}: {report:#?}");
                assert!(!left_to_wait || report.verdict.confidence < Confidence::High, "{report:#?}");
            }
        }
    }
}

#[test]
fn a_saved_case_shows_the_hang_again() {
    if !has(&["python3", "setsid"], "a saved case of a hang") {
        return;
    }
    let (hang, scratch) = (Hang::start("stop", 4, b"hhh"), Scratch::new());
    let file = scratch.file("case");
    let mut command = Command::new(PARSHALL);
    command.args(["attach", "--for", "1s", "--rung", "procfs", "--save"]).arg(&file).args(&hang.subjects()[0]);
    common::finish(&mut command).orderly();
    drop(hang);
    let mut show = Command::new(PARSHALL);
    show.args(["show", "--format", "json"]).arg(&file);
    assert_hangs(&common::finish(&mut show).report(), &["process-stopped"], 3);
}
