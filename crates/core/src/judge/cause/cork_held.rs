//! TCP_CORK or MSG_MORE left on: a partial segment waits for more, until the kernel flushes it after 200 ms.
//!
//! Look-alike: a retransmission timeout lasts 200 ms too, but retransmits a segment.
use parshall_evidence::{Evidence, Release};

use super::base::{Candidate, Cause, Outcome, not_lost, place_of, stalls};
use crate::judge::confidence::Gap;
use crate::judge::facts::{Blame, Facts};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "cork-held",
    title: "A cork holds the last segment",
    test,
    symptom: |facts| facts.share_in(&[State::Corked]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::Cork]);
    let Some(worst) = lost.worst() else {
        return not_lost(
            facts,
            "with a partial segment held by TCP_CORK or MSG_MORE",
            &[State::Corked],
            "under 1 ms each",
        );
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
        units::duration(lost.p50_ns)
    );
    let mut evidence = vec![stalls("partial segments held by a cork", &lost)];
    if flushed > 0 {
        let flushes = words::counted("flushes by the write timer, nothing retransmitted", flushed);
        evidence.push(Evidence { scaled: lost.scaled, ..flushes });
    }
    if flow.rec.last.nonagle != 255 {
        let state = if flow.rec.last.nonagle & 2 == 0 { "off" } else { "on" };
        evidence.push(Evidence { what: format!("TCP_CORK of this socket is {state}"), ..Evidence::default() });
    }
    evidence.push(words::counted("segments retransmitted on this flow", flow.retransmitted));
    let fix = "Clear TCP_CORK after the last part of a message, and do not set MSG_MORE on its last write.";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    if flushed == 0 {
        candidate.gaps.push(Gap::Inferred("the kernel's timer was not seen to send what was held"));
    }
    candidate.always_wrong = true;
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Role};

    use super::*;
    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    #[test]
    fn the_write_timer_flushes_it() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(205 * MS, 0, 200 * MS, FlowState::Corked, Release::WriteTimer)
            .talks_in_parts(5);
        let report = crate::judge::judge(&capture(vec![flow], vec![]));
        assert_eq!(report.verdict.cause.as_deref(), Some("cork-held"));
        assert!(report.verdict.summary.contains("200 ms"), "{}", report.verdict.summary);
    }

    #[test]
    fn a_retransmission_timeout_is_not_a_cork() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(205 * MS, 0, 200 * MS, FlowState::InFlight, Release::RtoTimer)
            .talks(5, 100)
            .retransmitted(4);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "retransmission-timeout");
    }

    #[test]
    fn short_corks_of_a_bulk_sender_are_healthy() {
        let flow = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::Corked, Release::AppSend, 300 * MS, 30_000)
            .streams(60_000, 16_384);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }
}
