//! The path between the hosts, or between the socket and the wire: shapers, bottlenecks, and paths that lose large packets only.
use std::collections::BTreeSet;
use std::net::IpAddr;

use parshall_evidence::socket::selection::state::SYN_SENT;
use parshall_evidence::{DeviceQueue, FlowState, Release};

use super::findings::Refusals;
use super::whole::whole;
use crate::judge::facts::flow::{FlowFact, Shape, rtt_ns};
use crate::judge::facts::part::{Blame, Part};
use crate::judge::facts::prepared::Facts;
use crate::judge::ledger::flow::State;
use crate::judge::ledger::flow_rules::same_address;
use crate::sorting::IntoOrdered as _;

/// Every path carries packets of 576 bytes (RFC 791): data of a segment that fits into one passes.
const ALWAYS_PASSES: u64 = 536;

/// A queue on the path adds at least this much to the round trip before it is worth naming.
pub const QUEUE_MIN_NS: f64 = 5e6;

/// Peers behind a path on which large packets vanish.
pub fn black_holes(facts: &Facts<'_>) -> BTreeSet<IpAddr> {
    let answers = |f: &&FlowFact<'_>| f.rec.last.segs_in > f.rec.first.segs_in && f.rec.begin_ns > 0;
    let answering = facts.flows.iter().filter(answers).map(|flow| flow.rec.remote.ip()).into_set();
    let stuck = (0..facts.flows.len()).filter(|&i| is_black_hole(&facts.flows[i], &answering));
    stuck.map(|i| facts.flows[i].rec.remote.ip()).into_set()
}

/// The party or the mechanism that the loss, or the timeout, belongs to.
pub fn of_loss(facts: &Facts<'_>, refusals: &Refusals, black_holes: &BTreeSet<IpAddr>, part: &Part) -> Blame {
    let flow = &facts.flows[part.flow];
    if refusals.overflows(flow.rec) {
        return Blame::AcceptQueue;
    }
    // No segment of the peer has told its window yet: it is the SYN that is repeated.
    let unanswered = part.stall.and_then(|i| facts.capture.flow_stalls.get(i)).is_some_and(|s| s.snd_wnd == 0);
    if flow.rec.last.state == SYN_SENT || (unanswered && !matches!(part.state, State::PeerThinking)) {
        return Blame::Syn;
    }
    // The timeout of an older flow has doubled so often that the window saw one of them at most.
    if black_holes.contains(&flow.rec.remote.ip()) && flow.rec.acked_bytes() < u64::from(flow.rec.last.mss.max(1)) {
        return Blame::BlackHole;
    }
    if !fills_the_path(flow) {
        return part.blame;
    }
    of_queue(facts, flow).unwrap_or(part.blame)
}

/// The blame for the queue in which a stream's own data waits; None without one.
fn of_queue(facts: &Facts<'_>, flow: &FlowFact<'_>) -> Option<Blame> {
    match shaper(facts, flow) {
        Some(_) => Some(Blame::Shaper),
        None => is_queued(flow).then_some(Blame::Bottleneck),
    }
}

/// The queue of the local device that holds this flow back by its rate.
pub fn shaper<'a>(facts: &Facts<'a>, flow: &FlowFact<'_>) -> Option<&'a DeviceQueue> {
    let space = facts.space(flow.rec.netns)?;
    let sent = flow.rec.acked_bytes();
    let holds = |q: &&DeviceQueue| q.overlimits > 0 && (q.backlog_bytes > 0 || q.drops > 0) && q.sent_bytes >= sent / 2;
    let of = space.queues.iter().filter(holds);
    let adds = of.filter(|_| sent > 0 && adds_delay(flow)).max_by_key(|q| q.sent_bytes);
    adds.or_else(|| closed_into(facts, flow))
}

/// Packets of this size at least, for each of which a queue may hold one back.
const PACKET_BYTES: u64 = 1_500;
/// A queue that holds back one packet in this number limits the rate of what goes through it.
const HELD_OF: u64 = 10;

/// The queue of the local device that limits the rate, where the flow's data waited in a local queue when its process closed it. The process
/// has nothing to do with the rest.
fn closed_into<'a>(facts: &Facts<'a>, flow: &FlowFact<'_>) -> Option<&'a DeviceQueue> {
    flow.rec.cells.iter().find(|cell| (cell.state, cell.release) == (FlowState::Qdisc, Release::Close))?;
    let sent = flow.rec.acked_bytes();
    let limits = |q: &&DeviceQueue| {
        q.overlimits.saturating_mul(HELD_OF) >= (q.sent_bytes / PACKET_BYTES).max(1) && q.sent_bytes >= sent / 2
    };
    facts.space(flow.rec.netns)?.queues.iter().filter(limits).max_by_key(|q| q.sent_bytes)
}

/// The round trip is far above its minimum while the flow streams: its own data queues somewhere on the path.
pub fn is_queued(flow: &FlowFact<'_>) -> bool {
    fills_the_path(flow) && adds_delay(flow) && !same_address(flow.rec)
}

/// Data of one reply from which on it is more than the first windows of a connection, in segments.
const LONG_REPLY_SEGS: u64 = 30;

/// It streams, or its replies are long.
fn fills_the_path(flow: &FlowFact<'_>) -> bool {
    let (sent, received) = (flow.rec.acked_bytes(), flow.rec.received_bytes());
    let reply = sent / flow.rec.calls.exchanges.max(1);
    let long = reply >= LONG_REPLY_SEGS * u64::from(flow.rec.last.mss.max(1)) && sent / 100 > received;
    flow.shape == Shape::StreamOut || long
}

/// The round trip is so far above its minimum that something must queue.
pub fn adds_delay(flow: &FlowFact<'_>) -> bool {
    let (srtt, least) = (f64::from(flow.rec.last.srtt_us) * 1e3, rtt_ns(flow));
    least > 0.0 && srtt >= 2.0 * least && srtt >= least + QUEUE_MIN_NS
}

/// Small segments pass and large ones are never acknowledged: the flow retransmits the same bytes again and again, while the same
/// peer answers handshakes and small messages. `answering` are the peers that answered on a connection that was opened in the window.
fn is_black_hole(flow: &FlowFact<'_>, answering: &BTreeSet<IpAddr>) -> bool {
    let (first, last) = (&flow.rec.first, &flow.rec.last);
    let several =
        flow.data_segs.saturating_sub(flow.retransmitted) >= 2 || last.packets_out.max(first.packets_out) >= 2;
    let stuck = flow.retransmitted >= 2
        && flow.rec.acked_bytes() < u64::from(last.mss.max(1))
        && (several || last.unsent_bytes > last.mss || is_larger(flow));
    if !stuck || last.state == SYN_SENT || !sends_large(flow) {
        return false;
    }
    let opened = flow.rec.begin_ns > 0 || first.segs_in == 0;
    let small_passes = last.segs_in > first.segs_in && (opened || last.bytes_received > first.bytes_received);
    small_passes || answering.contains(&flow.rec.remote.ip())
}

/// The data that it sent, or has still to send, fills a segment. Small requests that are never acknowledged are no sign of a small path.
fn sends_large(flow: &FlowFact<'_>) -> bool {
    let (calls, mss) = (&flow.rec.calls, flow.rec.last.mss.max(1));
    let largest = u64::from(calls.send_max_bytes).max(calls.send_bytes);
    // Without calls that were seen, the segments under way must do.
    calls.send_bytes == 0 || largest >= u64::from(mss) || flow.rec.last.unsent_bytes >= mss || is_larger(flow)
}

/// Of a connection that was opened in the window, a first small message was acknowledged, and a larger one is retransmitted again and again:
/// it need not fill a segment.
fn is_larger(flow: &FlowFact<'_>) -> bool {
    let (acked, calls) = (flow.rec.acked_bytes(), &flow.rec.calls);
    let largest = u64::from(calls.send_max_bytes);
    let opened = flow.rec.begin_ns > 0 && flow.rec.last.segs_in > flow.rec.first.segs_in;
    let small_passed = acked > 0 && acked <= ALWAYS_PASSES && u64::from(calls.send_min_bytes) <= acked;
    opened && small_passed && largest > ALWAYS_PASSES && flow.retransmitted >= 3
}

/// Adds the time in which streams fill their congestion window because their own data queues on the path, without a loss, and in which what
/// was left of closed ones waits for a shaper.
pub fn add_queued(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    let counted: BTreeSet<usize> = parts.iter().filter(|p| p.state == State::CwndLimited).map(|p| p.flow).into_set();
    for (index, flow) in facts.flows.iter().enumerate() {
        let ns = flow.ledger.of(State::CwndLimited);
        if ns == 0.0 || counted.contains(&index) {
            continue;
        }
        let blame = match closed_into(facts, flow) {
            Some(_) => Some(Blame::Shaper),
            None => of_queue(facts, flow).filter(|_| fills_the_path(flow)),
        };
        let Some(blame) = blame else { continue };
        let intervals = flow.ledger.intervals.iter().filter(|i| i.state == State::CwndLimited);
        let count = intervals.fold(0u64, |n, i| n.saturating_add(i.count));
        parts.push(whole(index, blame, State::CwndLimited, (ns, flow.ledger.scale), count));
    }
}
