//! Figures and evidence of a stream, for the causes about windows, buffers and paths: its rate, its round trip, and what it lost.
use parshall_evidence::Evidence;

use crate::judge::facts::{Blame, Facts, FlowFact, Lost, Part, rtt_ns};
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// Bytes per second that a flow moved over the window, in the direction in which it moved more.
pub fn rate(flow: &FlowFact<'_>) -> f64 {
    ratio(flow.rec.acked_bytes().max(flow.rec.received_bytes()) as f64, flow.ledger.wall_ns / 1e9)
}

/// Bytes that would be under way if the flow moved at this rate over its least round trip.
pub fn per_round_trip(flow: &FlowFact<'_>) -> f64 {
    rate(flow) * rtt_ns(flow) / 1e9
}

/// Throughput and round trip as evidence.
pub fn evidence(flow: &FlowFact<'_>) -> Vec<Evidence> {
    vec![
        words::valued("throughput of this flow", rate(flow), "B/s"),
        words::valued("least round trip", rtt_ns(flow) / 1e6, "ms"),
        words::valued("smoothed round trip at the end", f64::from(flow.rec.last.srtt_us) / 1e3, "ms"),
    ]
}

/// `10.1 kB/s over 20 ms of round trip`.
pub fn pace(flow: &FlowFact<'_>) -> String {
    format!("{} over {} of round trip", words::per_second(rate(flow)), units::duration(rtt_ns(flow)))
}

/// The end of a flow that receives, if it is in the capture.
pub fn receiver<'f, 'a>(facts: &'f Facts<'a>, flow: usize) -> Option<&'f FlowFact<'a>> {
    let fact = &facts.flows[flow];
    if fact.rec.received_bytes() > fact.rec.acked_bytes() {
        Some(fact)
    } else {
        fact.pair.map(|other| &facts.flows[other])
    }
}

/// The lost time of one blame, if any, and the flow that lost most.
pub fn lost_to(facts: &Facts<'_>, blame: Blame) -> Option<(Lost, usize)> {
    let lost = facts.lost(|p: &Part| p.blame == blame);
    let worst = lost.worst()?;
    Some((lost, worst))
}
