//! Windows of protocols above TCP: a stream of which no more than a certain amount is under way, until a message of the receiver says that
//! more may come. HTTP/2 has one for each stream, and one for the connection.
//!
//! Look-alikes: data that comes when it comes, such as a replication stream, which is sent when it is there and not when a message of the
//! receiver has come; requests of little data, one at a time (`round_trips`); TCP's own windows, which the kernel accounts for.
use parshall_evidence::timeline::{Op, SocketCall};

use super::whole;
use crate::judge::facts::{Blame, Facts, FlowFact, Part, Shape, rtt_ns};
use crate::judge::ledger::flow::State;
use crate::stats::ratio;

/// Shorter round trips are the host's own work.
const RTT_MIN_NS: f64 = 5e6;
/// Share of its time for which a stream has data under way and none to send.
const IN_FLIGHT_MIN: f64 = 0.6;
/// What was lost otherwise is at most this part of it.
const LOST_MAX: f64 = 0.3;
/// Waits for the kernel's windows and buffers are at most this share.
const OTHERS_MAX: f64 = 0.05;
/// It sends this many times as much as it receives.
const ONE_WAY: u64 = 16;
/// A call this soon after the call before it on the connection was made because of it.
const AT_ONCE_NS: u64 = 1_000_000;
/// This share of what is sent follows a message of the receiver.
const PROMPTED: f64 = 0.9;
/// As many sends that began after a receive tell it.
const TURNS_MIN: usize = 10;

/// Adds the time in which senders wait to be told that more may come.
pub fn add(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    let mut lost = vec![0.0; facts.flows.len()];
    parts.iter().for_each(|part| lost[part.flow] += part.ns);
    let little = |index: usize, flow: &FlowFact<'_>| lost[index] < LOST_MAX * flow.ledger.of(State::InFlight);
    let flows = facts.flows.iter().enumerate().filter(|(index, flow)| little(*index, flow));
    let bound: Vec<Part> = flows
        .filter(|(_, flow)| is_bound(flow) && is_prompted(facts, flow))
        .map(|(index, flow)| {
            let waits = flow.ledger.intervals.iter().filter(|interval| interval.state == State::InFlight);
            let count = waits.fold(0u64, |n, interval| n.saturating_add(interval.count));
            whole(index, Blame::WindowPerRtt, State::InFlight, flow.ledger.of(State::InFlight), count)
        })
        .collect();
    parts.extend(bound);
}

/// Much is sent one way, all of it is under way for most of the time, and nothing in the kernel holds any back.
fn is_bound(flow: &FlowFact<'_>) -> bool {
    let (ledger, calls, last) = (&flow.ledger, &flow.rec.calls, &flow.rec.last);
    let others =
        [State::CwndLimited, State::PeerWindowLimited, State::SndbufLimited, State::Paced, State::LossRecovery];
    let held: f64 = others.into_iter().map(|state| ledger.of(state)).sum();
    let per_rtt = ratio(flow.rec.acked_bytes() as f64, ledger.wall_ns) * rtt_ns(flow);
    matches!(flow.shape, Shape::RequestReply | Shape::StreamOut)
        && rtt_ns(flow) >= RTT_MIN_NS
        && last.app_limited
        && last.unsent_bytes == 0
        && calls.send_bytes >= ONE_WAY.saturating_mul(calls.recv_bytes)
        && ledger.of(State::InFlight) >= IN_FLIGHT_MIN * ledger.wall_ns
        && held <= OTHERS_MAX * ledger.wall_ns
        && per_rtt >= 10.0 * f64::from(last.mss.max(1))
}

/// What is sent follows at once what was received, and never comes at a time of its own.
fn is_prompted(facts: &Facts<'_>, flow: &FlowFact<'_>) -> bool {
    let calls = facts.capture.timeline.as_ref().and_then(|timeline| timeline.calls.get(&flow.rec.id));
    let calls = calls.map_or(&[][..], Vec::as_slice);
    let soon = |pair: &[SocketCall]| pair[1].since_ns.saturating_sub(pair[0].at_ns) <= AT_ONCE_NS;
    let sends: Vec<&[SocketCall]> = calls.windows(2).filter(|pair| pair[1].op == Op::Send).collect();
    let turns = sends.iter().filter(|pair| pair[0].op == Op::Receive).count();
    let prompted = sends.iter().filter(|pair| soon(pair)).count();
    turns >= TURNS_MIN && prompted as f64 >= PROMPTED * sends.len() as f64
}
