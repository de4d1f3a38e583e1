//! `attach --rung tracepoint` on a client that stalls and on one that does not. Needs root and tracefs.

use std::process::Command;

use parshall_evidence::{Confidence, Report, Rung};

use crate::common::{PARSHALL, Pair, finish, has, parshall, skip, verdict};

const WHAT: &str = "attach --rung tracepoint end to end";

/// The report on the client of a pair. None if this host does not allow the rung.
pub fn attach(client_options: &[&str]) -> Option<Report> {
    if !has(&["python3"], WHAT) {
        return None;
    }
    let pair = Pair::start(client_options);
    let pid = pair.client.pid().to_string();
    let words = ["attach", "--rung", "tracepoint", "--pid", &pid, "--for", "1s", "--format", "json"];
    let report = parshall(&words).report();
    if report.rung != Rung::Tracepoint {
        skip(WHAT, &report.blind.join("; "));
        return None;
    }
    Some(report)
}

#[test]
fn a_nagle_stall_is_named_without_btf() {
    let Some(report) = attach(&[]) else { return };
    assert_eq!(verdict(&report), "nagle-delayed-ack", "{report:#?}");
    assert_ne!(report.verdict.confidence, Confidence::High, "sampled flows do not show every link: {report:#?}");
}

/// An empty mount hides the kernel's BTF from the observer. It must choose this rung, and the BPF object must load without BTF.
#[test]
fn without_btf_the_rung_is_chosen_and_loads() {
    if !has(&["python3", "unshare"], WHAT) {
        return;
    }
    let pair = Pair::start(&[]);
    let script = r#"mount -t tmpfs none /sys/kernel/btf && exec "$0" attach --pid "$1" --for 1s --format json"#;
    let pid = pair.client.pid().to_string();
    let done = finish(Command::new("unshare").args(["-m", "sh", "-c", script, PARSHALL, &pid]));
    if done.code != Some(0) {
        return skip(WHAT, "/sys/kernel/btf cannot be hidden from one process");
    }
    let report = done.report();
    assert_eq!(report.rung, Rung::Tracepoint, "{report:#?}");
    assert!(report.blind.iter().any(|note| note.contains("btf/vmlinux cannot be read")), "{report:#?}");
}
