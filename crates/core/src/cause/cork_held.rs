//! TCP_CORK or MSG_MORE left on: a partial segment waits for more, until the kernel flushes it after 200 ms.
//!
//! Look-alike: a retransmission timeout lasts 200 ms too, but resends something.
use parshall_evidence::{Confidence, Release};

use super::{Candidate, Cause, Outcome, place_of, stalls};
use crate::facts::{Blame, Facts};
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "cork-held", title: "A cork holds the last segment", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::Cork]);
    let Some(worst) = lost.worst() else {
        return Outcome::Rejected("no partial segment was held by TCP_CORK or MSG_MORE".to_string());
    };
    let flow = &facts.flows[worst];
    let flushed = facts.lost(|p| p.blame == Blame::Cork && p.release == Release::WriteTimer).count;
    let by = if flow.rec.last.nonagle != 255 && flow.rec.last.nonagle & 2 != 0 {
        "TCP_CORK"
    } else {
        "TCP_CORK or MSG_MORE"
    };
    let until =
        if flushed > 0 { "the kernel's write timer flushes it" } else { "the application writes again or uncorks" };
    let summary = format!(
        "{}: {by} holds a partial segment although nothing is in flight, for {} each time, until {until}.",
        words::flow_arrow(flow.rec),
        words::duration(lost.p50_ns)
    );
    let mut evidence = vec![stalls("partial segments held by a cork", &lost)];
    if flushed > 0 {
        evidence.push(words::counted("flushes by the write timer, nothing resent", flushed));
    }
    if flow.rec.last.nonagle != 255 {
        evidence.push(words::valued("TCP_CORK", f64::from((flow.rec.last.nonagle >> 1) & 1), "1"));
    }
    evidence.push(words::counted("segments resent on this flow", flow.resent));
    let fix = "Clear TCP_CORK after the last part of a message, and do not set MSG_MORE on its last write.";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    if flushed == 0 {
        candidate.confidence = Confidence::Medium;
    }
    candidate.holds()
}
