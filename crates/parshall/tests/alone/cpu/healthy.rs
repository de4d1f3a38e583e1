//! Healthy twins of services that are diagnosed elsewhere. Beside other programs they do wait for a CPU.

use std::time::Duration;

use parshall_evidence::Status;

use crate::common::{Pair, has, parshall, undisturbed};
use crate::{attach, attach_port, tracepoint_rung};

#[test]
fn the_service_without_nagle() {
    let what = "attach: the service without Nagle";
    if !attach::ready(what) {
        return;
    }
    let pair = Pair::start(&["--nodelay", "--pause-ms", "1"]);
    let Some(report) = undisturbed(what, || attach::attach(&["--port", &pair.port.to_string()])) else { return };
    assert_ne!(report.verdict.status, Status::Cause, "{report:#?}");
    assert_ne!(report.verdict.status, Status::InsufficientEvidence, "{report:#?}");
    assert!(report.ruled_out.iter().any(|ruled_out| ruled_out.cause == attach::CAUSE), "{:?}", report.ruled_out);
}

#[test]
fn the_service_without_nagle_on_the_rung_procfs() {
    let what = "attach --rung procfs: the service without Nagle";
    if !has(&["python3"], what) {
        return;
    }
    let pair = Pair::start(&["--nodelay", "--pause-ms", "1"]);
    let port = pair.port.to_string();
    let attach = ["attach", "--port", &port, "--for", "1s", "--format", "json", "--rung", "procfs"];
    let Some(report) = undisturbed(what, || parshall(&attach).report()) else { return };
    assert_ne!(report.verdict.status, Status::Cause, "{report:#?}");
}

#[test]
fn the_udp_service_without_the_sleep() {
    let what = "attach --port: a healthy UDP service";
    if !attach_port::ready(what) {
        return;
    }
    let (_server, port) = attach_port::echo(&[], &["udp", "127.0.0.1", "0"]);
    attach_port::ask(port, 1, Duration::from_millis(2));
    let Some((report, capture)) = undisturbed(what, || attach_port::attach(port)) else { return };
    let service = attach_port::udp_service(&capture, port);
    assert!(
        !service.outbound && service.requests >= 50 && service.p50_ns.is_some_and(|ns| ns < 10_000_000),
        "{service:#?}"
    );
    assert_eq!(report.verdict.status, Status::Healthy, "{report:#?}");
}

#[test]
fn the_client_without_nagle_on_the_rung_tracepoint() {
    let seen = undisturbed("attach --rung tracepoint: a healthy client", || {
        tracepoint_rung::attach(&["--nodelay", "--pause-ms", "1"])
    });
    let Some(report) = seen.flatten() else { return };
    assert_ne!(report.verdict.status, Status::InsufficientEvidence, "{report:#?}");
    // On a busy host it does wait for a CPU.
    let harmless = ["user-cpu-bound", "run-queue-latency"];
    assert!(report.findings.iter().all(|found| harmless.contains(&found.cause.as_str())), "{report:#?}");
}
