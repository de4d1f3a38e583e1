//! The meaning of an interval of a flow: from the socket's fields, the event that ended it and the flow's role to a state.
//!
//! The kernel side reports [`FlowState`] × [`Release`]. Two of these do not tell enough by themselves: time in flight
//! (one round trip is the network, the rest is somebody waiting), and a Nagle hold that the application's next call
//! interrupts (the hold goes on, and belongs to what ends it in this flow).
use parshall_evidence::{FlowCell, FlowRecord, FlowStall, FlowState, Release, Role};

use super::flow_state::State;

/// Delayed ACKs of Linux last 40 ms (TCP_DELACK_MIN, HZ/25) to 200 ms (TCP_DELACK_MAX, net/ipv4/tcp_output.c);
/// with the jitter of a busy host.
pub const DELACK_NS: std::ops::RangeInclusive<f64> = 35e6..=210e6;

/// Time in flight up to which nothing but the network is waited for, at least.
const IN_FLIGHT_MIN_NS: f64 = 1e6;

/// The properties of a flow that the rules need.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// It waits for replies (role client or unknown).
    client: bool,
    /// It received data in the window.
    received: bool,
    /// It received and sent data in the window.
    answers: bool,
    /// Per interval, time that counts as in flight.
    pub bound_ns: f64,
    /// Minimum RTT, 0 when unknown.
    pub min_rtt_ns: f64,
    /// After an ACK that came late and carried nothing, the flow waited for a reply more often than it sent.
    waits_after_ack: bool,
    /// After what it sent, the flow waits for replies for longer than for its own next send: what it waited for when a slice ended
    /// was a reply. A client that sends at times of its own waits for nothing.
    waits_after_send: bool,
    /// Share of the delayed ACKs in the Nagle holds whose end tells.
    delack_share: f64,
}

/// The state to which the part of an interval beyond the time in flight belongs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rest {
    One(State),
    /// A Nagle hold that went on: split like the holds whose end tells.
    Hold,
}

impl Context {
    /// Reads a flow's habits from its cells and stalls.
    pub fn new(flow: &FlowRecord, stalls: &[&FlowStall]) -> Context {
        let min_rtt_ns = min_rtt_ns(flow);
        let received = flow.calls.recvs > 0 || flow.last.bytes_received > flow.first.bytes_received;
        let mut context = Context {
            client: !serves(flow),
            received,
            answers: received && flow.last.data_segs_out > flow.first.data_segs_out,
            bound_ns: (2.0 * min_rtt_ns).max(IN_FLIGHT_MIN_NS),
            min_rtt_ns,
            waits_after_ack: waits_after_ack(flow, received),
            waits_after_send: waits_after_send(flow, received),
            delack_share: 0.0,
        };
        context.delack_share = context.delack_share_of(flow, stalls);
        context
    }

    /// Splits `ns` of `count` intervals: at most two states, with their time.
    pub fn split(&self, state: FlowState, release: Release, ns: f64, count: u64) -> [(State, f64); 2] {
        let mean_ns = ns / count.max(1) as f64;
        let in_flight =
            if keeps_flight_time(state, release) { ns.min(self.bound_ns * count.max(1) as f64) } else { 0.0 };
        match self.rest(state, release, mean_ns) {
            Rest::One(rest) => [(State::InFlight, in_flight), (rest, ns - in_flight)],
            Rest::Hold => {
                let delayed = ns * self.delack_share;
                [(State::HeldByNagleDelayedAck, delayed), (State::HeldByNagle, ns - delayed)]
            }
        }
    }

    fn rest(&self, state: FlowState, release: Release, mean_ns: f64) -> Rest {
        use FlowState as F;
        if release == Release::RtoTimer {
            return Rest::One(State::RetransmissionTimeout);
        }
        let retransmitted = release == Release::Retransmit;
        Rest::One(match state {
            F::IdleAfterRecv => self.idle_after_recv(release),
            F::IdleAfterSend => self.idle_after_send(release),
            F::InFlight if retransmitted => State::LossRecovery,
            F::InFlight => self.in_flight(release),
            F::Nagle if retransmitted => State::LossRecovery,
            F::Nagle => return self.nagle(release, mean_ns),
            F::Corked => State::Corked,
            F::PeerWindow => State::PeerWindowLimited,
            F::Cwnd if retransmitted => State::LossRecovery,
            F::Cwnd => State::CwndLimited,
            F::Sndbuf => State::SndbufLimited,
            // Closed in this state, which may have ended soon: the rest left as the window allowed.
            F::Paced | F::Qdisc if release == Release::Close => State::CwndLimited,
            F::Paced => State::Paced,
            F::Qdisc => State::QdiscQueued,
            F::Recovery => State::LossRecovery,
            F::Loss => State::RetransmissionTimeout,
            F::RxWaiting => State::ReaderWaiting,
            F::Other => State::Other,
        })
    }

    fn idle_after_recv(&self, release: Release) -> State {
        match release {
            Release::AppSend if !self.client => State::AppThinking,
            // Sampled after a receive: a server that also answers owes an answer.
            Release::Sampled if !self.client && self.answers => State::AppThinking,
            Release::RxData if self.client => State::PeerThinking,
            Release::RxDataAfterOwnDelack => State::PeerHeld,
            _ => State::NothingToSend,
        }
    }

    fn idle_after_send(&self, release: Release) -> State {
        match release {
            Release::RxData if self.client => State::PeerThinking,
            Release::RxDataAfterOwnDelack => State::PeerHeld,
            Release::Cut if self.client && self.waits_after_send => State::PeerThinking,
            Release::Sampled if self.client && self.received => State::PeerThinking,
            _ => State::NothingToSend,
        }
    }

    /// Beyond the round trip: the reply carried the ACK, or the ACK came alone and late. A late ACK by itself delays
    /// no data, unless the flow waits for the reply to what was acknowledged.
    fn in_flight(&self, release: Release) -> State {
        match release {
            Release::RxData | Release::RxDataAfterOwnDelack => self.idle_after_send(Release::RxData),
            Release::AppSend | Release::Close => State::NothingToSend,
            Release::Sampled | Release::Cut => match self.idle_after_send(release) {
                State::PeerThinking => State::PeerThinking,
                _ => State::AckDelayed,
            },
            _ if self.client && self.waits_after_ack => State::PeerThinking,
            _ => State::AckDelayed,
        }
    }

    fn nagle(&self, release: Release, mean_ns: f64) -> Rest {
        match release {
            Release::RxAckDelayed => Rest::One(State::HeldByNagleDelayedAck),
            // Sampled, the number of intervals is that of segments: too high, and the mean too short. Far above a known
            // round trip it is a delayed ACK all the same.
            Release::Sampled if self.min_rtt_ns > 0.0 && self.far_above_rtt(mean_ns) => {
                Rest::One(State::HeldByNagleDelayedAck)
            }
            Release::RxAck | Release::RxData | Release::RxDataAfterOwnDelack | Release::Sampled => {
                Rest::One(if self.looks_delayed(mean_ns) { State::HeldByNagleDelayedAck } else { State::HeldByNagle })
            }
            _ => Rest::Hold,
        }
    }

    /// A hold of this length is the delayed-ACK timer of a peer whose timer we could not see.
    fn looks_delayed(&self, ns: f64) -> bool {
        DELACK_NS.contains(&ns) && self.far_above_rtt(ns)
    }

    fn far_above_rtt(&self, ns: f64) -> bool {
        ns > 4.0 * self.min_rtt_ns + 5e6
    }

    fn delack_share_of(&self, flow: &FlowRecord, stalls: &[&FlowStall]) -> f64 {
        let (mut delayed, mut total) = (0.0, 0.0);
        for cell in flow.cells.iter().filter(|c| c.state == FlowState::Nagle) {
            let seen: Vec<f64> = stalls
                .iter()
                .filter(|s| s.state == FlowState::Nagle && s.release == cell.release)
                .map(|s| s.ns as f64)
                .collect();
            let long: f64 = seen.iter().sum();
            let (rest, count) = remainder(flow, cell, long, seen.len() as u64);
            for (ns, mean) in seen.iter().map(|&ns| (ns, ns)).chain([(rest, rest / count.max(1) as f64)]) {
                match self.nagle(cell.release, mean) {
                    Rest::One(State::HeldByNagleDelayedAck) => (delayed, total) = (delayed + ns, total + ns),
                    Rest::One(_) => total += ns,
                    Rest::Hold => {}
                }
            }
        }
        crate::stats::ratio(delayed, total)
    }
}

/// This end waits for requests: it was accepted, or it looks so by its ports (Linux hands out 32768 and above).
pub fn serves(flow: &FlowRecord) -> bool {
    const EPHEMERAL: u16 = 32_768;
    match flow.role {
        Role::Server => true,
        Role::Client => false,
        Role::Unknown => flow.local.port() < EPHEMERAL && flow.remote.port() >= EPHEMERAL,
    }
}

/// The part of a cell that its own stalls do not account for: time in ns and number of intervals.
///
/// Samples count themselves, not intervals. But each segment with data begins at most one interval of a kind, and the
/// kernel counts those: time in a state by that number is its mean length, however slowly it was sampled.
pub fn remainder(flow: &FlowRecord, cell: &FlowCell, stalls_ns: f64, stalls: u64) -> (f64, u64) {
    let mut count = cell.count.saturating_sub(stalls);
    if cell.release == Release::Sampled {
        let sent = flow.last.data_segs_out.saturating_sub(flow.first.data_segs_out);
        let seen = flow.last.segs_in.saturating_sub(flow.first.segs_in);
        count = count.max(sent.max(seen).saturating_sub(stalls));
    }
    ((cell.ns as f64 - stalls_ns).max(0.0), count)
}

/// The minimum RTT in nanoseconds; 0 when unknown. Both ends on one address share a kernel: whatever was measured there
/// beyond 1 ms is scheduling or a delayed ACK, not distance.
pub fn min_rtt_ns(flow: &FlowRecord) -> f64 {
    let us = if flow.last.min_rtt_us > 0 { flow.last.min_rtt_us } else { flow.first.min_rtt_us };
    let ns = f64::from(us) * 1e3;
    if same_address(flow) { ns.min(1e6) } else { ns }
}

/// Both ends have one address, so they run on one host.
pub fn same_address(flow: &FlowRecord) -> bool {
    let remote = flow.remote.ip().to_canonical();
    flow.local.ip().to_canonical() == remote || remote.is_loopback()
}

fn keeps_flight_time(state: FlowState, release: Release) -> bool {
    state == FlowState::InFlight || release == Release::RtoTimer
}

fn waits_after_send(flow: &FlowRecord, received: bool) -> bool {
    let after_send = |cell: &&FlowCell| matches!(cell.state, FlowState::IdleAfterSend | FlowState::InFlight);
    let ns = |releases: &[Release]| {
        let ended = flow.cells.iter().filter(after_send).filter(|c| releases.contains(&c.release));
        ended.fold(0u64, |n, c| n.saturating_add(c.ns))
    };
    let (replies, sends) = (ns(&[Release::RxData, Release::RxDataAfterOwnDelack]), ns(&[Release::AppSend]));
    if replies == 0 && sends == 0 { received || flow.calls.exchanges > 0 } else { replies >= sends }
}

fn waits_after_ack(flow: &FlowRecord, received: bool) -> bool {
    let count = |release| {
        flow.cells
            .iter()
            .filter(|c| c.state == FlowState::IdleAfterSend && c.release == release)
            .fold(0u64, |n, c| n.saturating_add(c.count))
    };
    let (replies, sends) = (count(Release::RxData), count(Release::AppSend));
    if replies == 0 && sends == 0 { received && flow.calls.exchanges > 0 } else { replies >= sends }
}

/// Bytes that arrived on a connection from which on they are no single request that nobody reads.
const BULK_BYTES: u64 = 65_536;

/// A stream that its reader has left until the window shut: this end has never sent anything, so none of it is owed a reply, and its sender
/// has more. On the rung btf only: others do not see the window.
pub fn is_shut(flow: &FlowRecord) -> bool {
    let last = &flow.last;
    let one_way = last.bytes_acked <= 1 && last.data_segs_out == 0 && last.bytes_received >= BULK_BYTES;
    serves(flow) && flow.observed_ns > 0 && one_way && last.rcv_wnd == 0 && last.unread_bytes > 0
}
