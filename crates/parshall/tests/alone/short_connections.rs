//! A service that is asked over a connection of its own each time, on the rungs that sample.

use parshall_evidence::{Confidence, Rung, Status};

use crate::common::{has, parshall, service, some_of};

#[test]
fn they_are_no_proof_of_health_where_samples_miss_them() {
    if !has(&["python3"], "short connections on the rungs that sample") {
        return;
    }
    for pause_ms in some_of(&["1", "50"], 1) {
        let (_service, port) = service(&["short", "--pause-ms", pause_ms]);
        let port = port.to_string();
        for rung in [Rung::Procfs, Rung::Tracepoint] {
            let attach = ["attach", "--port", &port, "--for", "2s", "--format", "json", "--rung", rung.as_str()];
            let report = parshall(&attach).orderly().report();
            let verdict = &report.verdict;
            // The part of one connection that a sample happens to see may be true of it, and says little of the others.
            let denies = matches!(verdict.status, Status::Healthy | Status::AtCapacity);
            let unsure = !denies && verdict.confidence == Confidence::Low;
            assert!(unsure, "{pause_ms} ms, {rung:?}: {verdict:#?} of {:#?}", report.time.flows);
        }
    }
}
