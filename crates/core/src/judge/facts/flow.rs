//! A flow and what its record tells of it.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, FlowRecord, FlowStall, FlowState};

use crate::judge::ledger::flow::{FlowLedger, State, moved};
use crate::judge::ledger::flow_rules::{min_rtt_ns, serves};
use crate::judge::words;
use crate::stats::ratio;

/// How a flow talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// It moved nothing.
    Idle,
    /// Messages alternate: one is sent after one was received.
    RequestReply,
    /// It sends, and hardly receives.
    StreamOut,
    /// It receives, and hardly sends.
    StreamIn,
}

/// A flow and what is known of it.
#[derive(Debug)]
pub struct FlowFact<'a> {
    /// The record.
    pub rec: &'a FlowRecord,
    /// Its account.
    pub ledger: FlowLedger,
    /// `local->remote`.
    pub name: String,
    /// How it talks.
    pub shape: Shape,
    /// A stream whose sender should be sending: at least 10 sends and 1 kB a second.
    pub supplies: bool,
    /// It sends what its process receives as a stream from somebody else: when there is nothing to send, nothing has come.
    pub passes_on: bool,
    /// It writes twice and then reads, and most writes are smaller than a segment.
    pub write_write_read: bool,
    /// Segments retransmitted in the window.
    pub retransmitted: u64,
    /// Segments with data sent in the window.
    pub data_segs: u64,
    /// At least 0.5 % of its segments were retransmitted, or fewer that keep its congestion window small.
    pub lossy: bool,
    /// Segments that it has under way in a round trip, where its losses let no larger congestion window come about.
    pub window_by_loss: Option<f64>,
    /// The other end, when it is in the capture.
    pub pair: Option<usize>,
    /// Time in which it could have moved data.
    pub could_ns: f64,
}

/// The flows of a capture, in its order.
pub fn flow_facts(capture: &Capture) -> Vec<FlowFact<'_>> {
    let mut stalls: BTreeMap<u64, Vec<(usize, &FlowStall)>> = BTreeMap::new();
    for (index, stall) in capture.flow_stalls.iter().enumerate() {
        stalls.entry(stall.flow).or_default().push((index, stall));
    }
    // A second record of the same flow would count them twice.
    capture.flows.iter().map(|rec| flow_fact(rec, &stalls.remove(&rec.id).unwrap_or_default())).collect()
}

/// Notes the streams of a process that has received at least half as much as each of them sends, over one connection. That one may carry
/// messages the other way, too: HTTP/2 says in between that more may come.
pub fn note_passing_on(flows: &mut [FlowFact<'_>]) {
    let mut received: BTreeMap<u32, u64> = BTreeMap::new();
    for flow in flows.iter().filter(|flow| flow.rec.pid != 0) {
        let most = received.entry(flow.rec.pid).or_default();
        *most = (*most).max(flow.rec.received_bytes());
    }
    for flow in flows.iter_mut().filter(|flow| flow.shape == Shape::StreamOut) {
        flow.passes_on =
            received.get(&flow.rec.pid).is_some_and(|bytes| *bytes > 0 && *bytes >= flow.rec.acked_bytes() / 2);
        flow.supplies &= !flow.passes_on;
    }
}

/// Data in a segment of an Ethernet path, about.
const SEGMENT_BYTES: f64 = 1400.0;

fn flow_fact<'a>(rec: &'a FlowRecord, stalls: &[(usize, &FlowStall)]) -> FlowFact<'a> {
    let ledger = FlowLedger::new(rec, stalls);
    let shape = shape(rec);
    let (first, last) = (&rec.first, &rec.last);
    let retransmitted = last.total_retrans.saturating_sub(first.total_retrans);
    let data_segs = last.data_segs_out.saturating_sub(first.data_segs_out);
    let cuts = if last.ssthresh < SSTHRESH_NONE { window_cuts(stalls) } else { 0 };
    let window_by_loss = window_by_loss(&ledger, (retransmitted, cuts), data_segs);
    // Without calls (a sampling rung) the kernel's counts over the whole wall time must do.
    let (sends, sent, seconds) = if rec.calls.sends > 0 {
        (rec.calls.sends, rec.calls.send_bytes, ratio(ledger.wall_ns, ledger.scale) / 1e9)
    } else {
        let segs = last.data_segs_out.saturating_sub(first.data_segs_out);
        (segs, rec.acked_bytes(), ledger.wall_ns / 1e9)
    };
    // Messages of less than a segment come when there is something to say: nobody waits for the next one.
    let bulk = ratio(sent as f64, sends as f64) >= SEGMENT_BYTES;
    let supplies = bulk && shape == Shape::StreamOut && sends as f64 >= 10.0 * seconds;
    FlowFact {
        name: words::flow_name(rec),
        shape,
        supplies,
        passes_on: false,
        write_write_read: rec.calls.write_after_write > 0
            && rec.calls.recvs > 0
            && rec.calls.small_sends.saturating_mul(2) > rec.calls.sends,
        retransmitted,
        data_segs,
        lossy: window_by_loss.is_some() || retransmitted > 0 && retransmitted as f64 >= LOSSY * data_segs as f64,
        window_by_loss,
        pair: None,
        could_ns: 0.0,
        rec,
        ledger,
    }
}

/// Below this share of segments retransmitted, loss is not what a flow waits for, unless it keeps the congestion window small.
pub const LOSSY: f64 = 0.005;
/// Fewer losses may be chance.
const LOSSES_MIN: u64 = 3;
/// Over a shorter round trip a window grows again at once.
const LOSS_RTT_MIN_NS: f64 = 5e6;
/// The share of the time with data to send in which the congestion window is full.
const WINDOW_FULL: f64 = 0.3;
/// A congestion window that is halved by each loss, of which `p` is the share, has 1.22 / sqrt(p) segments (Mathis and others, 1997).
/// Cubic's has up to twice as many.
const MATHIS: f64 = 1.22;

/// The threshold of a flow that has had no loss, or that BBR controls, whose window becomes small without one (TCP_INFINITE_SSTHRESH).
const SSTHRESH_NONE: u32 = 0x7fff_ffff;
/// A window falls to at most this share of itself where it is cut: Cubic's to 0.7, Reno's to a half.
const CUT: f64 = 0.8;

/// How often the congestion window was cut, by its size in successive waits for it. A policer drops many segments of a burst at once, and
/// the window is cut once for them.
fn window_cuts(stalls: &[(usize, &FlowStall)]) -> u64 {
    let full = stalls.iter().filter(|(_, stall)| stall.state == FlowState::Cwnd && stall.cwnd > 0);
    let windows: Vec<f64> = full.map(|(_, stall)| f64::from(stall.cwnd)).collect();
    windows.windows(2).filter(|pair| pair[1] <= CUT * pair[0]).count() as u64
}

/// See [`FlowFact::window_by_loss`]. Of the segments that were sent again the window was cut for `cuts`, where that was seen.
fn window_by_loss(ledger: &FlowLedger, (retransmitted, cuts): (u64, u64), data_segs: u64) -> Option<f64> {
    let sending = [State::CwndLimited, State::LossRecovery, State::InFlight, State::SndbufLimited];
    let sending_ns: f64 = sending.into_iter().map(|state| ledger.of(state)).sum();
    let rtt_ns = ledger.context.min_rtt_ns;
    let segments = ratio(data_segs as f64 * rtt_ns, sending_ns);
    let losses = if cuts > 0 { cuts.min(retransmitted) } else { retransmitted };
    let allowed = 2.0 * MATHIS / ratio(losses as f64, data_segs as f64).sqrt();
    let full = ledger.of(State::CwndLimited) >= WINDOW_FULL * sending_ns;
    (retransmitted >= LOSSES_MIN && rtt_ns >= LOSS_RTT_MIN_NS && full && segments <= allowed).then_some(segments)
}

fn shape(rec: &FlowRecord) -> Shape {
    let calls = &rec.calls;
    if !moved(rec) {
        return Shape::Idle;
    }
    if calls.sends == 0 && calls.recvs == 0 {
        // No calls were seen (a sampling rung): the kernel's byte counts must do.
        return match (rec.acked_bytes(), rec.received_bytes()) {
            (s, r) if s / 100 > r => Shape::StreamOut,
            (s, r) if r / 100 > s => Shape::StreamIn,
            _ => Shape::RequestReply,
        };
    }
    let alternates = calls.exchanges >= 2 && calls.exchanges.saturating_mul(8) >= calls.sends.min(calls.recvs);
    if calls.recvs.saturating_mul(10) < calls.sends {
        if alternates && calls.exchanges.saturating_mul(64) >= calls.sends {
            Shape::RequestReply
        } else {
            Shape::StreamOut
        }
    } else if calls.sends.saturating_mul(10) < calls.recvs {
        if alternates && calls.exchanges.saturating_mul(64) >= calls.recvs {
            Shape::RequestReply
        } else {
            Shape::StreamIn
        }
    } else {
        Shape::RequestReply
    }
}

/// Wall time less the time in which there was nothing to move, or in which the other end of the connection, which is in
/// the capture too, has the same wait on its account.
pub fn could_have_moved(ledger: &FlowLedger, supply_ns: f64, explained_ns: f64) -> f64 {
    let idle = (ledger.of(State::NothingToSend) - supply_ns).max(0.0) + ledger.of(State::AckDelayed);
    (ledger.wall_ns - idle - explained_ns).max(0.0)
}

/// This end was opened by connect(), or by an unknown hand.
pub fn is_client(flow: &FlowRecord) -> bool {
    !serves(flow)
}

/// The minimum round trip of a flow in nanoseconds.
pub fn rtt_ns(flow: &FlowFact<'_>) -> f64 {
    min_rtt_ns(flow.rec)
}
