//! The record of the capture, for the causes' symptoms: read from the accounts and the counters, and not from what a cause says.
use crate::judge::facts::{Facts, ThreadFact};
use crate::judge::ledger::flow;

/// There is an account of flows, or of flows that moved nothing.
pub fn flows(facts: &Facts<'_>) -> bool {
    let capture = facts.capture;
    let idle = !capture.flows.is_empty() && !capture.flows.iter().any(flow::moved);
    idle || flows_observed(facts)
}

fn flows_observed(facts: &Facts<'_>) -> bool {
    facts.capture.flows.iter().any(|flow| !flow.cells.is_empty() || flow.observed_ns > 0)
}

/// Segments with data were sent, or sent again.
pub fn segments(facts: &Facts<'_>) -> bool {
    let moved = |f: &parshall_evidence::FlowRecord| {
        f.last.data_segs_out > f.first.data_segs_out || f.last.total_retrans > f.first.total_retrans
    };
    facts.capture.flows.iter().any(moved)
}

/// Threads were seen, or what they did for requests.
pub fn threads(facts: &Facts<'_>) -> bool {
    !facts.capture.threads.is_empty() || !facts.requests.services.is_empty()
}

/// Services were seen, or what waits on them.
pub fn requests(facts: &Facts<'_>) -> bool {
    !facts.requests.services.is_empty() || facts.capture.waiting.is_some()
}

/// The kernel's counters were read.
pub fn counters(facts: &Facts<'_>) -> bool {
    facts.capture.counters.is_some()
}

/// By how much a counter of the kernel rose.
pub fn rose(facts: &Facts<'_>, name: &str) -> u64 {
    facts.capture.counters.as_ref().map_or(0, |counters| counters.rose(name))
}

/// The largest value of a figure over the threads; 0 without threads.
pub fn most<'a>(facts: &Facts<'a>, figure: impl Fn(&ThreadFact<'a>) -> f64) -> f64 {
    facts.threads.iter().map(figure).fold(0.0, f64::max)
}
