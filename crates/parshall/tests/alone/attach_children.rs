//! `attach --pid` of a process whose children do the work, as with nginx and postgres. The subject is the process with its
//! children on every rung, also those that it starts during the window; with `--only` the process alone. Needs root and Python.

use std::process::Command;

use crate::common::{self, PARSHALL, Running, children, has, verdict};
use parshall_evidence::{Report, Status};

const RUNGS: [&str; 3] = ["btf", "tracepoint", "procfs"];

/// The report on `rung`. None, with a reported skip, if this host does not offer it.
fn attach(rung: &str, arguments: &[&str]) -> Option<Report> {
    let what = format!("attach --pid of a process with children, rung {rung}");
    // The classic tracepoints need tracefs. It is mounted in a mount namespace of the observer, which does not change the host.
    let script = r#"mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
        exec "$0" attach "$@" --for 1s --format json"#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, PARSHALL, "--rung", rung]).args(arguments);
    let report = common::finish(&mut command).report();
    if report.rung.as_str() != rung {
        common::skip(&what, &report.blind.join("; "));
        return None;
    }
    Some(report)
}

fn prefork(what: &str) -> Option<Running> {
    let ready = has(&["python3", "unshare"], what) && common::root(what);
    ready.then(|| common::service(&["prefork"]).0)
}

#[test]
fn a_process_and_its_children_are_the_subject() {
    let Some(master) = prefork("attach --pid of a process with children") else { return };
    for rung in RUNGS {
        let before = children(master.pid());
        let Some(report) = attach(rung, &["--pid", &master.pid().to_string()]) else { continue };
        let pids = &report.subject.pids;
        assert_eq!(pids[0], master.pid(), "{rung}: {pids:?}");
        // The oldest two run all the time, the others are replaced.
        assert!(
            before.len() >= 2 && before[..2].iter().all(|child| pids.contains(child)),
            "{rung}: {before:?} {pids:?}"
        );
        let made_later = pids[1..].iter().filter(|pid| !before.contains(pid)).count();
        assert!(made_later >= 1, "{rung}: children made in the window: {before:?} {pids:?}");
        assert_eq!(pids.len(), report.subject.comms.len(), "{rung}");
        assert_eq!(verdict(&report), "nagle-delayed-ack", "{rung}: {report:#?}");
        let culprit = report.findings[0].place.pid.unwrap();
        assert!(culprit != master.pid() && pids.contains(&culprit), "{rung}: {culprit} of {pids:?}");
    }
}

#[test]
fn only_the_process_itself() {
    let Some(master) = prefork("attach --pid --only") else { return };
    for rung in RUNGS {
        let Some(report) = attach(rung, &["--only", "--pid", &master.pid().to_string()]) else { continue };
        assert_eq!(report.subject.pids, [master.pid()], "{rung}");
        // It listens, but its children accept the connections.
        assert_eq!(report.verdict.status, Status::InsufficientEvidence, "{rung}: {report:#?}");
        // A connection that waits to be accepted is still the listener's.
        let account = &report.time.flows;
        assert!(account.states.iter().all(|state| state.state == "other"), "{rung}: {account:?}");
    }
}
