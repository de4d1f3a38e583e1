//! The process that runs on a CPU while requests wait for it.

use std::process::Command;

use parshall_evidence::HopKind;

use crate::common::{Pair, finish, has, parshall, some_of, start_lines, undisturbed, verdict};
use crate::follow::{Chain, observe, ready, targets};

#[test]
fn who_uses_the_cpu_instead_is_named() {
    let what = "who uses the CPU instead";
    if !ready(what) || !has(&["taskset"], what) {
        return;
    }
    let chain = Chain::start_in(&["taskset", "-c", "0", "python3"], &["serve", "127.0.0.1"], 1);
    chain.load();
    let spins = "echo spins; end=$((SECONDS+20)); while [ $SECONDS -lt $end ]; do :; done";
    let (hog, _) = start_lines(Command::new("taskset").args(["-c", "0", "bash", "-c", spins]), 1);
    let Some(capture) = undisturbed(what, || observe(&["--port", &chain.port.to_string()])) else { return };
    let found = targets(&capture, HopKind::RunQueue);
    let named = format!("bash {}", hog.pid());
    assert!(found.contains(&named), "{found:?}, not {named}");
    assert!(!found.iter().any(|target| target.starts_with("thread ")), "{found:?}");
}

#[test]
fn threads_that_wait_for_a_cpu_are_not_healthy_where_requests_are_not_seen() {
    let what = "who waits for a CPU, by its threads";
    if !has(&["python3", "taskset"], what) {
        return;
    }
    let pair = Pair::start(&["--nodelay"]);
    let pin = |cpu: &str, pid: u32| {
        let done = finish(Command::new("taskset").args(["-a", "-p", "-c", cpu, &pid.to_string()]));
        assert_eq!(done.code, Some(0), "{done:?}");
    };
    pin("0", pair.server.pid());
    let spins = "echo spins; end=$((SECONDS+60)); while [ $SECONDS -lt $end ]; do :; done";
    let hogs: Vec<_> =
        (0..4).map(|_| start_lines(Command::new("taskset").args(["-c", "0", "bash", "-c", spins]), 1)).collect();
    let pid = pair.server.pid().to_string();
    for rung in some_of(&["procfs", "tracepoint"], 1) {
        let attach = ["attach", "--pid", &pid, "--for", "2s", "--format", "json", "--rung", rung];
        let Some(report) = undisturbed(what, || parshall(&attach).report()) else { return };
        assert_eq!(verdict(&report), "run-queue-latency", "{rung}: {report:#?}");
    }
    drop(hogs);
}
