//! A client that waits for an interim answer, for a second each time: beside other programs it would be observed in slices, which cut that.

use parshall_evidence::Status;

use crate::asked::{observe, observe_whole};

#[test]
fn a_client_that_waits_for_an_interim_answer() {
    let Some(report) = observe_whole("expect") else { return };
    assert_eq!(report.verdict.cause.as_deref(), Some("timer-wait"), "{report:#?}");
    assert!(report.verdict.summary.contains("a timer of the client"), "{}", report.verdict.summary);
    // Where slices miss its few requests, only its flows are left to judge by.
    let thinks = observe("thinks").expect("it could be observed");
    assert!(!thinks.verdict.summary.contains("the rest of requests"), "{thinks:#?}");
    assert_ne!(thinks.verdict.status, Status::NoDominantCause, "{thinks:#?}");
}
