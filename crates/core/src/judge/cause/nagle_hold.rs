//! Nagle's algorithm alone: a small write waits one round trip for the ACK of the one before it.
//!
//! Look-alikes: the delayed ACK (40 ms and more), and a bulk sender whose last partial segment is topped up by its next
//! write: that delays no message.
use parshall_evidence::{Evidence, Figure};

use super::base::{Candidate, Cause, Outcome, denied, nodelay_is_on, not_lost, place_of, stalls, try_command, who};
use crate::judge::denial::{Denial, count};
use crate::judge::facts::{Blame, Facts, FlowFact};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "nagle-hold",
    title: "Small writes wait a round trip for an ACK",
    test,
    symptom: |facts| facts.share_in(&[State::HeldByNagle]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.lost(|p| p.blame == Blame::Nagle && small_writer(&facts.flows[p.flow]));
    let Some(worst) = lost.worst() else {
        let held = facts.blamed(&[Blame::Nagle]);
        return match held.count {
            0 => not_lost(facts, "held by Nagle for a round trip", &[State::HeldByNagle], "under 1 ms each"),
            n => {
                let holds = Figure { scaled: held.scaled, ..count(n, "holds", "by Nagle's algorithm") };
                denied(Denial::of(holds).because("all of a bulk sender"))
            }
        };
    };
    let flow = &facts.flows[worst];
    let (first, second) = flow.rec.calls.last_pair_bytes;
    let sizes = if first > 0 && second > 0 {
        format!(" ({}, then {})", units::bytes(f64::from(first)), units::bytes(f64::from(second)))
    } else {
        String::new()
    };
    let summary = format!(
        "{} writes its messages in pieces{sizes}. Nagle holds each piece until the last is acknowledged, {} later.",
        who(facts, &lost),
        units::duration(lost.p50_ns)
    );
    let mut evidence = vec![stalls("bytes held by Nagle for one round trip", &lost)];
    let rtt_us = flow.rec.last.min_rtt_us;
    if rtt_us > 0 {
        evidence.push(words::valued("minimum RTT", f64::from(rtt_us) / 1e3, "ms"));
    }
    let pairs = flow.rec.calls.write_after_write as f64 * flow.ledger.scale;
    evidence.push(Evidence {
        scaled: flow.ledger.scaled,
        ..words::counted("writes after a write with no read between", pairs.round() as u64)
    });
    let mut candidate = Candidate::new(
        lost.clone(),
        place_of(facts, &lost),
        summary,
        evidence,
        match nodelay_is_on(flow) {
            true => "Write the whole message at once (writev or a buffer). TCP_NODELAY was set meanwhile.",
            false => "Write the whole message at once (writev or a buffer), or set TCP_NODELAY.",
        },
    );
    candidate.trial = try_command(facts, worst, "nodelay");
    candidate.holds()
}

fn small_writer(flow: &FlowFact<'_>) -> bool {
    let calls = &flow.rec.calls;
    calls.sends == 0 || calls.small_sends.saturating_mul(2) > calls.sends
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    #[test]
    fn one_round_trip_per_request() {
        let mut flow = FlowBuilder::new(1, Role::Client).remote_host();
        flow.record.last.min_rtt_us = 20_000;
        let flow = flow.every(25 * MS, 0, 21 * MS, FlowState::Nagle, Release::RxAck).talks_in_parts(40);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "nagle-hold");
    }

    #[test]
    fn short_holds_count_in_a_write_write_read_flow() {
        let flow = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::Nagle, Release::RxAck, 500 * MS, 5000)
            .talks_in_parts(5000);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "nagle-hold");
    }

    #[test]
    fn a_bulk_sender_that_tops_up_is_healthy() {
        let flow = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::Nagle, Release::AppSend, 500 * MS, 50_000)
            .cell(FlowState::Nagle, Release::RxAck, 200 * MS, 20_000)
            .streams(70_000, 16_384);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }
}
