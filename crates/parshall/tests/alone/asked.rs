//! Everyone who waits is asked: real clients that wait while their service seems to do nothing wrong, and beside each the same clients
//! when they wait for nobody. Needs Python and the rung btf.

use std::process::Command;

use crate::common::{self, PARSHALL, Running, btf, has, skip};
use parshall_evidence::{Report, Status};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/asked.py");

const WHAT: &str = "clients that wait";

fn ready() -> bool {
    has(&["python3", "setsid"], WHAT) && btf(WHAT)
}

/// An observation of a mode for three seconds; None where it cannot be observed here.
pub fn observe(mode: &str) -> Option<Report> {
    ready().then(|| observe_with(mode, 0).0)
}

/// The same, again while what others on the host do shows in it.
fn observe_while(mode: &str, disturbed: impl Fn(&Report) -> bool) -> Option<Report> {
    common::again_while(|| observe(mode), |report| report.as_ref().is_some_and(&disturbed))
}

/// The same, not observed in slices, as a busy host is: a wait of a second lies in none of them as a whole.
pub fn observe_whole(mode: &str) -> Option<Report> {
    let in_slices = |report: &Report| report.services.iter().any(|service| service.scaled);
    let report = observe_while(mode, in_slices)?;
    if in_slices(&report) {
        skip(WHAT, "the host is too busy to be observed without a break");
        return None;
    }
    Some(report)
}

/// The lines that the service prints before it is ready, too.
fn observe_with(mode: &str, lines: usize) -> (Report, Vec<String>) {
    let (mut service, lines): (Running, Vec<String>) =
        common::start_lines(Command::new("setsid").args(["python3", SCRIPT, mode]), lines + 1);
    let port = lines[lines.len() - 1].strip_prefix("ready ").unwrap_or_else(|| panic!("{lines:?}")).trim().to_owned();
    let mut command = Command::new(PARSHALL);
    command.args(["attach", "--for", "3s", "--format", "json", "--rung", "btf", "--port", &port]);
    let report = common::finish(&mut command).report();
    service.end();
    (report, lines)
}

#[test]
fn a_client_that_reads_until_the_connection_ends() {
    // Where programs beside it have the CPUs, its few short requests wait for these above all.
    let crowded = |report: &Report| report.verdict.cause.as_deref() == Some("run-queue-latency");
    let Some(report) = observe_while("close", crowded) else { return };
    assert_eq!(report.verdict.status, Status::NoDominantCause, "{report:#?}");
    assert!(report.verdict.summary.contains("reads on until the service closes"), "{}", report.verdict.summary);
    // Nothing but its few short requests takes time, so a busy host may show a cause.
    let keeps = observe("keeps").expect("it could be observed");
    assert!(!keeps.verdict.summary.contains("reads on until"), "{keeps:#?}");
}

#[test]
fn a_listener_from_which_nobody_accepts() {
    let Some(report) = observe("group") else { return };
    assert_eq!(report.verdict.cause.as_deref(), Some("accept-queue-overflow"), "{report:#?}");
    assert!(report.verdict.summary.contains("SO_REUSEPORT"), "{}", report.verdict.summary);
}

#[test]
fn a_name_server_that_never_answers() {
    let Some(report) = observe("names") else { return };
    assert_eq!(report.verdict.cause.as_deref(), Some("blocking-dns"), "{report:#?}");
    assert!(report.verdict.summary.contains("127.9.9.9:53"), "{}", report.verdict.summary);
}

#[test]
fn a_child_that_is_passed_the_connections() {
    if !ready() {
        return;
    }
    for (mode, cause) in [("passes", Some("timer-wait")), ("hands", None)] {
        let (report, lines) = observe_with(mode, 1);
        let child: u32 = lines[0].trim_start_matches("child ").trim().parse().unwrap();
        assert!(report.subject.pids.contains(&child), "{mode}: {child}: {report:#?}");
        let service = report.services.first().unwrap_or_else(|| panic!("{mode}: {report:#?}"));
        // Four clients, every 0.2 s or less often.
        assert!(service.requests_per_s > 2.0, "{mode}: {service:#?}");
        if cause.is_some() {
            assert_eq!(report.verdict.cause.as_deref(), cause, "{report:#?}");
            assert!(report.verdict.summary.contains(&child.to_string()), "{}", report.verdict.summary);
        }
    }
}
