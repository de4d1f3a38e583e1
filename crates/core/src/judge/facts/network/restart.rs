//! Connections whose congestion window begins again after each pause: the kernel gives it up when nothing was sent for a retransmission
//! timeout (RFC 5681, section 4.1; net/ipv4/tcp_output.c, tcp_cwnd_restart()), and the next message waits for it to grow.
use super::path::adds_delay;
use super::whole::whole;
use super::window::OWN_RTT_MIN_NS;
use crate::judge::facts::part::{Blame, Part};
use crate::judge::facts::prepared::Facts;
use crate::judge::facts::{FlowFact, rtt_ns};
use crate::judge::ledger::flow::State;
use crate::judge::ledger::flow_rules::same_address;
use crate::stats::ratio;

/// Fewer messages may be late by chance.
const MESSAGES_MIN: u64 = 3;
/// Round trips that a message waits for the window, at least.
const ROUND_TRIPS_MIN: f64 = 0.8;

/// Adds the time in which messages wait for a congestion window that had been large enough for all of each before a pause. It is on no other
/// account: those of full congestion windows are of flows with losses, or with a queue on their path.
pub fn add(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    for (index, flow) in facts.flows.iter().enumerate().filter(|(_, flow)| restarts(facts, flow)) {
        let ns = flow.ledger.of(State::CwndLimited);
        parts.push(whole(index, Blame::Restart, State::CwndLimited, (ns, flow.ledger.scale), flow.rec.calls.exchanges));
    }
}

fn restarts(facts: &Facts<'_>, flow: &FlowFact<'_>) -> bool {
    let (ledger, last) = (&flow.ledger, &flow.rec.last);
    let messages = flow.rec.calls.exchanges;
    let each = |ns: f64| ratio(ns, messages as f64);
    let pauses = [State::NothingToSend, State::AppThinking, State::PeerThinking, State::ReaderWaiting];
    let pause_ns: f64 = pauses.into_iter().map(|state| ledger.of(state)).sum();
    messages >= MESSAGES_MIN
        && facts.settings(flow.rec.netns).is_none_or(|settings| settings.slow_start_after_idle)
        && rtt_ns(flow) >= OWN_RTT_MIN_NS
        && !same_address(flow.rec)
        && !flow.lossy
        && flow.retransmitted == 0
        && !adds_delay(flow)
        && each(pause_ns) >= f64::from(last.rto_us) * 1e3
        && each(ledger.of(State::CwndLimited)) >= ROUND_TRIPS_MIN * rtt_ns(flow)
        && largest_window(flow) >= each(flow.rec.acked_bytes() as f64)
}

/// The larger of the congestion windows at the begin and at the end, in bytes: during a pause it is what it had grown to.
pub fn largest_window(flow: &FlowFact<'_>) -> f64 {
    let (first, last) = (&flow.rec.first, &flow.rec.last);
    f64::from(first.cwnd.max(last.cwnd)) * f64::from(last.mss.max(1))
}
