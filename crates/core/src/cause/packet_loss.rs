//! Segments are lost: the time goes into recovery, into the retransmission timer, and into a congestion window that was
//! cut for it.
//!
//! Look-alikes: Nagle's algorithm and a peer that thinks resend nothing.
use parshall_evidence::{Confidence, Evidence};

use super::{Candidate, Cause, Outcome, place_of, stalls, who};
use crate::facts::{Blame, Facts};
use crate::stats::ratio;
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "packet-loss", title: "Segments are lost on the way", test };

/// Below this share of segments resent, loss is not what a flow waits for.
const MIN_RATE: f64 = 0.005;

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::Loss, Blame::Rto, Blame::Cwnd]);
    let (resent, sent) = facts.resent();
    let counts = format!("{} of {} segments resent", words::count(resent), words::count(sent));
    let flows: Vec<_> = lost.affected(facts).into_iter().map(|i| &facts.flows[i]).collect();
    let own = flows.iter().fold((0u64, 0u64), |(r, d), f| (r.saturating_add(f.resent), d.saturating_add(f.data_segs)));
    let rate = ratio(own.0 as f64, own.1 as f64).min(1.0);
    if lost.ns == 0.0 || own.0 == 0 || rate < MIN_RATE {
        return Outcome::Rejected(counts);
    }
    let timeouts = facts.blamed(&[Blame::Rto]);
    let rto_events: u64 =
        flows.iter().fold(0, |n, f| n.saturating_add(f.rec.last.total_rto.saturating_sub(f.rec.first.total_rto)));
    let summary = format!(
        "{}: {} of the segments are lost and sent again ({} of {}); the flow waits for {}.",
        who(facts, &lost),
        words::percent(rate),
        words::count(own.0),
        words::count(own.1),
        if timeouts.ns * 2.0 > lost.ns { "the retransmission timer" } else { "recovery" }
    );
    let mut evidence = vec![
        words::valued("share of data segments resent", rate, "1"),
        words::counted("segments resent", own.0),
        stalls("waits for recovery or for the retransmission timer", &lost),
    ];
    if timeouts.ns > 0.0 {
        evidence.push(Evidence { what: "of these, retransmission timeouts".into(), ..stalls("", &timeouts) });
    }
    if rto_events > 0 {
        evidence.push(words::counted("retransmission timeouts counted by the kernel", rto_events));
    }
    let fix = "Look for the drop: interface and qdisc counters on the path, a policer, a full queue. Congestion control \
               that tolerates loss (BBR) helps until it is found.";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    if own.0 < 5 {
        candidate.confidence = Confidence::Medium;
    }
    candidate.holds()
}
