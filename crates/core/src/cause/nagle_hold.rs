//! Nagle's algorithm alone: a small write waits one round trip for the ACK of the one before it.
//!
//! Look-alikes: the delayed ACK (40 ms and more), and a bulk sender whose last partial segment is topped up by its next
//! write: that delays nobody.
use super::{Candidate, Cause, Outcome, place_of, stalls, who};
use crate::facts::{Blame, Facts, FlowFact};
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "nagle-hold", title: "Small writes wait a round trip for an ACK", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.lost(|p| p.blame == Blame::Nagle && small_writer(&facts.flows[p.flow]));
    let Some(worst) = lost.worst() else {
        let held = facts.blamed(&[Blame::Nagle]);
        return Outcome::Rejected(match held.count {
            0 => "no write was held for a round trip".to_string(),
            n => format!("{} holds, all of a bulk sender", words::count(n)),
        });
    };
    let flow = &facts.flows[worst];
    let (first, second) = flow.rec.calls.last_pair_bytes;
    let sizes = if first > 0 && second > 0 {
        format!(" ({}, then {})", words::bytes(f64::from(first)), words::bytes(f64::from(second)))
    } else {
        String::new()
    };
    let summary = format!(
        "{} writes its messages in pieces{sizes}. Nagle holds each piece until the one before it is acknowledged, {} later.",
        who(facts, &lost),
        words::duration(lost.p50_ns)
    );
    let mut evidence = vec![stalls("bytes held by Nagle for one round trip", &lost)];
    let rtt_us = flow.rec.last.min_rtt_us;
    if rtt_us > 0 {
        evidence.push(words::valued("minimum RTT", f64::from(rtt_us) / 1e3, "ms"));
    }
    evidence.push(words::counted("writes after a write with no read between", flow.rec.calls.write_after_write));
    Candidate::new(
        lost.clone(),
        place_of(facts, &lost),
        summary,
        evidence,
        "Write the whole message at once (writev or a buffer), or set TCP_NODELAY.",
    )
    .holds()
}

fn small_writer(flow: &FlowFact<'_>) -> bool {
    let calls = &flow.rec.calls;
    calls.sends == 0 || calls.small_sends.saturating_mul(2) > calls.sends
}
