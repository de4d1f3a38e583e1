//! The peer's receive window is full: unsent data waits until the peer's application reads.
//!
//! Look-alikes: the congestion window (its state is its own), and a slow reader on this host, which is then the cause.
use parshall_evidence::Confidence;

use super::{Candidate, Cause, Outcome, place_of, stalls, who};
use crate::facts::{Blame, Facts};
use crate::ledger::flow::State;
use crate::stats::ratio;
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "peer-window-limited", title: "The peer's receive window is full", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::PeerWindow]);
    let Some(worst) = lost.worst() else { return Outcome::Rejected(why_not(facts)) };
    let flow = &facts.flows[worst];
    let (first, last) = (&flow.rec.first, &flow.rec.last);
    let busy = last.busy_us.saturating_sub(first.busy_us) as f64;
    let limited = ratio(last.rwnd_limited_us.saturating_sub(first.rwnd_limited_us) as f64, busy).min(1.0);
    let summary = format!(
        "{} has data to send, and the peer's window is full ({} each time): the peer's application does not read, or its \
         receive buffer is too small for this path.",
        who(facts, &lost),
        words::duration(lost.p50_ns)
    );
    let window = lowest_window(facts, worst);
    let mut evidence = vec![stalls("waits with the peer's window full", &lost)];
    if busy > 0.0 {
        evidence.push(words::valued("rwnd_limited of the busy time, by the kernel's account", limited, "1"));
    }
    if let Some(window) = window {
        evidence.push(words::valued("smallest window of the peer during these waits", window, "B"));
    }
    let mss = f64::from(last.mss.max(1));
    evidence.push(words::valued("congestion window", f64::from(last.cwnd) * mss, "B"));
    let fix = "Look at the peer: run parshall where it runs. A reader that does not keep up shows there; if it does, raise \
               its receive buffer (SO_RCVBUF, tcp_rmem).";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    // A saturated receiver shuts its window for a moment now and then.
    candidate.min_share = 0.25;
    if busy > 0.0 && limited < 0.1 {
        candidate.confidence = Confidence::Medium;
    }
    candidate.holds()
}

fn lowest_window(facts: &Facts<'_>, flow: usize) -> Option<f64> {
    facts
        .parts
        .iter()
        .filter(|p| p.flow == flow && p.blame == Blame::PeerWindow)
        .filter_map(|p| p.stall.and_then(|i| facts.capture.flow_stalls.get(i)))
        .map(|s| f64::from(s.snd_wnd))
        .min_by(f64::total_cmp)
}

fn why_not(facts: &Facts<'_>) -> String {
    let full: f64 = facts.flows.iter().map(|f| f.ledger.of(State::PeerWindowLimited)).sum();
    let wall: f64 = facts.flows.iter().map(|f| f.ledger.wall_ns).sum();
    match ratio(full, wall) {
        share if share < 0.001 => "the peer's window was never full".to_string(),
        share if share < 0.05 => format!("the peer's window was full for {} of the time", words::percent(share)),
        share => format!(
            "the peer's window was full for {} of the time, for a reason found elsewhere or under 1 ms each",
            words::percent(share)
        ),
    }
}
