//! The reports of `attach` about a relay that is overloaded because of a small copy buffer, and of a healthy one.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{self, PARSHALL, Running, Scratch, begin, has, parshall, verdict};
use parshall_evidence::{Confidence, Report};

const CAUSE: &str = "small-copy-buffer";
const LOAD: &str = "60s";
/// If the relay gets a smaller share of its CPU, the host is overloaded, and the attempt does not count.
const SATURATED: f64 = 0.9;
const ATTEMPTS: usize = 3;

/// A stream through a relay that has a CPU for itself; both ends of the stream share another CPU.
struct Overload {
    relay: Running,
    _ends: [Running; 2],
}

fn on_cpu(cpu: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), PARSHALL]);
    command
}

/// An address in 127/8 that no other test uses.
fn unused_address(last: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{last}:7100", 30 + pid % 60, pid / 60 % 250)
}

fn wait_for_listener(address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    common::until("a socket listens", || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok());
}

impl Overload {
    fn start(flags: &[&str]) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let (front, back) = (unused_address(1), unused_address(2));
        let load = ["lab", "load", "stream", "--for", LOAD, "--format", "json"];
        let server = begin(on_cpu(0).args(load).args(["--serve", &back, "--read-bytes", "262144", "--discard"]));
        wait_for_listener(&back);
        let relay = begin(on_cpu(cpus - 1).args(["relay", &front, &back, "--threads", "1"]).args(flags));
        wait_for_listener(&front);
        let client = begin(on_cpu(0).args(load).args(["--connect", &front, "--write-bytes", "262144"]));
        // After slow start and the first transfers, which copy.
        std::thread::sleep(Duration::from_millis(500));
        Self { relay, _ends: [server, client] }
    }

    /// The report, and the share of its CPU that the relay got.
    fn attach(&self, case: &Path) -> (Report, f64) {
        let (pid, save) = (self.relay.pid().to_string(), case.to_str().unwrap());
        let done = parshall(&["attach", "--pid", &pid, "--for", "1500ms", "--format", "json", "--save", save]);
        let capture = common::capture(case);
        let used = capture.threads.iter().map(|thread| thread.cpu_ns).max().unwrap_or(0);
        (done.report(), used as f64 / capture.window_ns as f64)
    }
}

fn ready(what: &str) -> bool {
    has(&["taskset"], what) && common::btf(what)
}

#[test]
fn the_fix_for_a_small_buffer_names_the_flag() {
    const WHAT: &str = "attach to an overloaded relay";
    if !ready(WHAT) {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.file("case.json");
    // So small that the relay needs its whole CPU before the ends of the stream need all of theirs.
    let overload = Overload::start(&["--engine", "copy", "--buffer", "1KiB"]);
    let (mut report, mut share) = overload.attach(&file);
    for _ in 0..ATTEMPTS {
        if share >= SATURATED {
            break;
        }
        (report, share) = overload.attach(&file);
    }
    if share < SATURATED {
        return common::skip(WHAT, &format!("the relay got only {:.0} % of a CPU", share * 100.0));
    }
    assert_eq!(verdict(&report), CAUSE, "{report:#?}");
    assert_eq!(report.verdict.confidence, Confidence::High);
    assert!(report.verdict.summary.contains("1 KiB"), "{}", report.verdict.summary);
    let fix = &report.findings[0].fix.text;
    assert!(fix.contains("`--buffer 64KiB` in place of `--buffer 1KiB`") && fix.contains("`--engine auto`"), "{fix}");
    let relays = common::capture(&file).own_relays;
    assert_eq!(relays.iter().map(|relay| relay.pid).collect::<Vec<_>>(), [overload.relay.pid()]);
    drop(overload);
    let again = parshall(&["show", file.to_str().unwrap(), "--format", "json"]).report();
    assert_eq!(&again.findings[0].fix.text, fix);
}

#[test]
fn a_relay_that_splices_has_no_small_copy_buffer() {
    if !ready("attach to a relay that splices") {
        return;
    }
    let scratch = Scratch::new();
    let overload = Overload::start(&["--engine", "auto"]);
    let (report, _) = overload.attach(&scratch.file("case.json"));
    assert_ne!(verdict(&report), CAUSE, "{report:#?}");
    assert!(report.findings.iter().all(|finding| finding.cause != CAUSE), "{report:#?}");
}
