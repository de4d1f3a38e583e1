//! A service that is asked over a connection of its own each time, on the rungs that sample.

use parshall_evidence::{Confidence, Rung, Status};

use crate::common::{has, parshall, service};

#[test]
fn they_are_no_proof_of_health_where_samples_miss_them() {
    if !has(&["python3"], "short connections on the rungs that sample") {
        return;
    }
    for pause_ms in ["1", "50"] {
        let (_service, port) = service(&["short", "--pause-ms", pause_ms]);
        let port = port.to_string();
        for rung in [Rung::Procfs, Rung::Tracepoint] {
            let attach = ["attach", "--port", &port, "--for", "2s", "--format", "json", "--rung", rung.as_str()];
            let report = parshall(&attach).orderly().report();
            let (verdict, what) = (&report.verdict, format!("{pause_ms} ms, {rung:?}: {report:#?}"));
            // That the other end takes its time is true where it does, and may be seen of one connection by chance.
            let true_of_one = pause_ms == "50"
                && verdict.cause.as_deref() == Some("peer-think-time")
                && verdict.confidence == Confidence::Low;
            assert!(verdict.status == Status::InsufficientEvidence || true_of_one, "{what}");
        }
    }
}
