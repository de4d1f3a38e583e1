//! Nagle's algorithm against a delayed ACK (RFC 896, RFC 1122 4.2.3.2): a small write is held until the one before it is
//! acknowledged, and the peer, which has nothing to send, delays that ACK.
//!
//! Look-alikes: a cork (nothing is in flight), a retransmission timeout (something is resent), a slow peer (its ACK comes
//! at once, only its reply is late), Nagle alone (released after one round trip).
use parshall_evidence::{Confidence, Evidence, Release};

use super::{Candidate, Cause, Outcome, place_of, stalls};
use crate::facts::{Blame, Facts, FlowFact, Lost, is_client};
use crate::words;

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "nagle-delayed-ack", title: "Small writes wait for a delayed ACK", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let lost =
        facts.lost(|p| matches!(p.blame, Blame::NagleDelack | Blame::PeerHeld) && !nodelay(&facts.flows[p.flow]));
    let Some(worst) = lost.worst() else { return Outcome::Rejected(why_not(facts)) };
    let own = facts.lost(|p| p.blame == Blame::NagleDelack && p.flow == worst).ns;
    let held_here = own * 2.0 >= lost.by_flow[0].1;
    let timers = timers_seen(facts, worst);
    let flow = &facts.flows[worst];
    let (summary, fix) = if held_here { told_by_sender(flow, &lost) } else { told_by_peer(flow, &lost) };
    let mut candidate =
        Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence(facts, &lost, timers, held_here), fix);
    candidate.confidence = if timers > 0 { Confidence::High } else { Confidence::Medium };
    candidate.holds()
}

fn nodelay(flow: &FlowFact<'_>) -> bool {
    let off = |nonagle: u8| nonagle != 255 && nonagle & 1 == 1;
    off(flow.rec.first.nonagle) && off(flow.rec.last.nonagle)
}

/// Holds that a delayed-ACK timer on this host was seen to end.
fn timers_seen(facts: &Facts<'_>, flow: usize) -> u64 {
    let seen = |r| matches!(r, Release::RxAckDelayed | Release::RxDataAfterOwnDelack);
    facts.lost(|p| p.flow == flow && matches!(p.blame, Blame::NagleDelack | Blame::PeerHeld) && seen(p.release)).count
}

fn told_by_sender(flow: &FlowFact<'_>, lost: &Lost) -> (String, String) {
    let name = words::flow_arrow(flow.rec);
    let timer = format!("{:.0} ms", lost.p50_ns / 1e6);
    let summary = match flow.rec.calls.last_pair_bytes {
        (0, _) | (_, 0) => format!(
            "{name} sends its messages in two or more small writes. Nagle holds the second until the first is \
             acknowledged; the peer has nothing to send yet and its delayed-ACK timer ({timer}) sends that ACK."
        ),
        (first, second) => {
            let (first, second) = (words::bytes(f64::from(first)), words::bytes(f64::from(second)));
            format!(
                "{name} sends {first}, then {second}. Nagle holds the {second} until the {first} are acknowledged; the \
                 peer has nothing to send yet and its delayed-ACK timer ({timer}) sends that ACK."
            )
        }
    };
    let end = if is_client(flow.rec) { "client's" } else { "server's" };
    let fix = format!("Write both parts at once (writev or a buffer), or set TCP_NODELAY on the {end} socket.");
    (summary, fix)
}

fn told_by_peer(flow: &FlowFact<'_>, lost: &Lost) -> (String, String) {
    let end = if is_client(flow.rec) { "server" } else { "client" };
    let summary = format!(
        "{}: the peer sends each message in two or more small writes. Its Nagle algorithm holds the second until we \
         acknowledge the first; we have nothing to send yet and our delayed-ACK timer ({:.0} ms) sends that ACK.",
        words::flow_arrow(flow.rec),
        lost.p50_ns / 1e6
    );
    let fix = format!(
        "The fix is on the {end}: write the whole message at once (writev or a buffer), or set TCP_NODELAY on its socket."
    );
    (summary, fix)
}

fn evidence(facts: &Facts<'_>, lost: &Lost, timers: u64, held_here: bool) -> Vec<Evidence> {
    let mut list = vec![if held_here {
        stalls("bytes held by Nagle while an ACK was outstanding", lost)
    } else {
        stalls("data of the peer that came right after our own delayed ACK", lost)
    }];
    if timers > 0 {
        list.push(Evidence {
            scaled: lost.scaled,
            ..words::counted("delayed-ACK timers seen to end such a wait", timers)
        });
    }
    let Some(flow) = lost.worst().map(|i| &facts.flows[i]) else { return list };
    let calls = &flow.rec.calls;
    if held_here && calls.write_after_write > 0 {
        let n = (calls.write_after_write as f64 * flow.ledger.scale).round() as u64;
        list.push(Evidence {
            scaled: flow.ledger.scaled,
            ..words::counted("writes after a write with no read between", n)
        });
    }
    if held_here && calls.last_pair_bytes.0 > 0 {
        list.push(words::valued("first write of a pair", f64::from(calls.last_pair_bytes.0), "B"));
        list.push(words::valued("second write of a pair", f64::from(calls.last_pair_bytes.1), "B"));
    }
    if held_here && flow.rec.last.nonagle != 255 {
        list.push(words::valued("TCP_NODELAY", f64::from(flow.rec.last.nonagle & 1), "1"));
    }
    list
}

fn why_not(facts: &Facts<'_>) -> String {
    let held: f64 = facts.flows.iter().map(|f| f.rec.calls.held_sends as f64 * f.ledger.scale).sum();
    let sends: f64 = facts.flows.iter().map(|f| f.rec.calls.sends as f64 * f.ledger.scale).sum();
    if sends > 0.0 {
        format!("{} of {} sends were held, none by a delayed ACK", words::count_f(held), words::count_f(sends))
    } else {
        "no flow waited for a delayed ACK".to_string()
    }
}
