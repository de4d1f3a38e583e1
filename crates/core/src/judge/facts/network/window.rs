//! Windows and buffers that are smaller than what a path holds in one round trip.
//!
//! A protocol above TCP may have a window of its own: a stream of which no more than a certain amount is under way, until a message of the
//! receiver says that more may come (HTTP/2 has one for each stream, and one for the connection). Its look-alikes: data that comes when it
//! comes, such as a replication stream; requests of little data, one at a time (`round_trips`).
use std::collections::{BTreeMap, BTreeSet};

use parshall_evidence::timeline::{Op, SocketCall};
use parshall_evidence::{FlowRecord, SocketFigures};

use super::path;
use super::whole::whole;
use crate::judge::facts::flow::{FlowFact, Shape, rtt_ns};
use crate::judge::facts::part::{Blame, Part};
use crate::judge::facts::prepared::Facts;
use crate::judge::ledger::flow::State;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

/// `sk_userlocks`, include/net/sock.h.
const SNDBUF_LOCK: u8 = 1;
/// The same of SO_RCVBUF.
pub const RCVBUF_LOCK: u8 = 2;
/// Below this round trip a window that fills is news of microseconds.
const RTT_MIN_NS: f64 = 5e5;
/// A window that is used up once a round trip gives this share of itself per round trip.
const FULL_EACH_RTT: f64 = 0.6;
/// A reply of as many windows is a stream by itself.
const LONG_REPLY_WINDOWS: u64 = 4;
/// A buffer this near to the largest that the kernel gives will not grow.
const AT_CAP: f64 = 0.9;
/// The most bytes that the kernel sends at once over the shortest paths: the largest superframe.
const BURST_BYTES: u32 = 65_536;
/// From this share of its time on, a stream is bound by a window that fills for microseconds.
const BOUND_MIN: f64 = 0.4;
/// A reader that has something to do for a larger share of its time is what its sender waits for.
const READER_FULL: f64 = 0.9;
/// Received data that takes more memory than this many times its size makes the kernel collapse queues.
const COLLAPSES_MIN: u64 = 3;

/// Shorter round trips are the host's own work.
pub const OWN_RTT_MIN_NS: f64 = 5e6;
/// Share of its time for which a stream has data under way and none to send.
const OWN_IN_FLIGHT_MIN: f64 = 0.6;
/// The time that was lost otherwise is at most this part of it.
const OWN_LOST_MAX: f64 = 0.3;
/// Waits for the kernel's windows and buffers are at most this share.
const OWN_OTHERS_MAX: f64 = 0.05;
/// It sends this many times as much as it receives.
const ONE_WAY: u64 = 16;
/// A call this soon after the call before it on the connection was made because of it.
const AT_ONCE_NS: u64 = 1_000_000;
/// This share of what is sent follows a message of the receiver.
const PROMPTED: f64 = 0.9;
/// As many sends that began after a receive tell it.
const TURNS_MIN: usize = 10;

/// A window that is found in as many waits at most is large enough: the kernel doubles it.
const GROWS_IN_MAX: u64 = 2;
/// A reader that leaves data for longer does something else than to read.
const GROWS_NS_MAX: f64 = 10e6;
/// A transfer that waits for more of its time is held back by its reader.
const GROWS_SHARE_MAX: f64 = 0.5;

/// The peer's windows of the flows that waited for them.
pub struct Windows {
    /// Flows that fill a steady window once in each round trip.
    bound: BTreeMap<usize, bool>,
    /// Flows whose windows were full while the kernel of the peer still found their size.
    growing: BTreeSet<usize>,
}

impl Windows {
    /// Looks at each flow with lost time of this kind.
    pub fn of(facts: &Facts<'_>, parts: &[Part]) -> Self {
        let mut seen: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for part in parts.iter().filter(|p| p.blame == Blame::PeerWindow) {
            let windows = seen.entry(part.flow).or_default();
            windows.extend(part.stall.and_then(|i| facts.capture.flow_stalls.get(i)).map(|s| s.snd_wnd));
        }
        let growing = seen.iter().filter(|(flow, windows)| grows(facts, parts, **flow, windows)).map(|(flow, _)| *flow);
        let growing = growing.into_set();
        let bound = seen.into_iter().map(|(flow, windows)| (flow, is_bound(&facts.flows[flow], &windows)));
        Self { bound: bound.into_map(), growing }
    }

    /// Whether this is time that a flow waits at its begin, as in slow start.
    pub fn is_growth(&self, part: &Part) -> bool {
        part.blame == Blame::PeerWindow && self.growing.contains(&part.flow)
    }

    /// Why the peer's window was full: its buffer is too small for the path, or its application did not read.
    pub fn of_peer(&self, facts: &Facts<'_>, part: &Part) -> Blame {
        let flow = &facts.flows[part.flow];
        let once_a_round_trip = part.each_ns <= 2.0 * rtt_ns(flow) + 5e6;
        if !once_a_round_trip || !self.bound.get(&part.flow).copied().unwrap_or(false) {
            return Blame::PeerWindow;
        }
        let receiver = flow.pair.map(|other| facts.flows[other].rec);
        receiver.and_then(|receiver| receive_limit(facts, receiver)).unwrap_or(Blame::WindowPerRtt)
    }
}

/// A connection begins with a small window, and the kernel of the receiver makes room as its application reads
/// (tcp_rcv_space_adjust): a transfer at the begin of its connection fills it once or twice. The window of a reader that does not read, or
/// whose buffer cannot grow, is not larger afterwards.
fn grows(facts: &Facts<'_>, parts: &[Part], flow: usize, windows: &[u32]) -> bool {
    let waits = || parts.iter().filter(|part| part.blame == Blame::PeerWindow && part.flow == flow);
    let (rec, life_ns) = (facts.flows[flow].rec, facts.flows[flow].ledger.wall_ns);
    let count = waits().map(|part| part.count).fold(0, u64::saturating_add);
    rec.begin_ns > 0
        && count <= GROWS_IN_MAX
        && windows.len() as u64 == count
        && windows.iter().all(|&window| window > 0 && window.saturating_mul(2) <= rec.last.snd_wnd)
        && waits().all(|part| part.each_ns <= GROWS_NS_MAX)
        && waits().map(|part| part.ns).sum::<f64>() <= GROWS_SHARE_MAX * life_ns
}

/// A window of much the same size that carries most of itself in each round trip.
fn is_bound(flow: &FlowFact<'_>, windows: &[u32]) -> bool {
    let rtt = rtt_ns(flow);
    let last = flow.rec.last.snd_wnd.max(flow.rec.first.snd_wnd);
    let largest = f64::from(windows.iter().copied().max().unwrap_or(last));
    let small = windows.iter().filter(|&&w| f64::from(w) < 0.5 * largest).count();
    let steady = small * 4 <= windows.len();
    let srtt = f64::from(flow.rec.last.srtt_us) * 1e3;
    let sent = flow.rec.acked_bytes() as f64;
    let per_rtt = ratio(sent, flow.ledger.wall_ns) * srtt.max(rtt);
    rtt >= RTT_MIN_NS && steady && largest > 0.0 && per_rtt >= FULL_EACH_RTT * largest
}

/// The limit that keeps the window of a receiver small; None when it may still grow.
fn receive_limit(facts: &Facts<'_>, receiver: &FlowRecord) -> Option<Blame> {
    let space = facts.space(receiver.netns);
    if collapses(facts, receiver) {
        return Some(Blame::QueueCollapse);
    }
    if receiver.last.userlocks & RCVBUF_LOCK != 0 {
        return Some(Blame::RcvbufLocked);
    }
    let cap = space.and_then(|space| space.settings).map_or(0, |settings| settings.tcp_rmem[2]);
    if cap > 0 && f64::from(receiver.last.rcvbuf) >= AT_CAP * cap as f64 {
        return Some(Blame::SysctlCap);
    }
    let scales = facts.figures(receiver.id).map(|figures| figures.window_scales);
    (scales == Some(None)).then_some(Blame::WindowPerRtt)
}

/// The kernel merged or dropped what waited in receive queues of this namespace.
fn collapses(facts: &Facts<'_>, receiver: &FlowRecord) -> bool {
    let space = facts.space(receiver.netns);
    let rose = |name: &str| space.map_or(0, |space| space.rose(name));
    ["TcpExt.PruneCalled", "TcpExt.TCPRcvCollapsed", "TcpExt.RcvPruned"].iter().any(|name| rose(name) >= COLLAPSES_MIN)
}

/// A reader that empties its queue each time takes what the queue holds, and that is little where it collapses. A sender that
/// sends all the time adds to it during the read; then the queue held little beside its memory.
pub fn of_reader(facts: &Facts<'_>, part: &Part) -> Blame {
    let flow = &facts.flows[part.flow];
    let calls = &flow.rec.calls;
    let empties = calls.recvs > 0 && calls.recv_left_over < calls.recvs / 4;
    let unread = facts.figures(flow.rec.id).map_or(0, |figures| figures.unread_memory.1);
    let held = ratio(calls.recv_bytes as f64, calls.recvs as f64) + f64::from(unread);
    let little = calls.recvs > 0 && held < f64::from(flow.rec.last.rcvbuf) / 8.0;
    if (empties || little) && collapses(facts, flow.rec) { Blame::QueueCollapse } else { part.blame }
}

/// Why a writer waited for its own send buffer, or for the queue below it.
pub fn of_send_buffer(facts: &Facts<'_>, part: &Part) -> Blame {
    let flow = &facts.flows[part.flow];
    if path::shaper(facts, flow).is_some() {
        return Blame::Shaper;
    }
    if path::is_queued(flow) {
        return Blame::Bottleneck;
    }
    // Next door, a full buffer is waited for until the other end has had its turn on a CPU.
    if part.blame == Blame::Qdisc || rtt_ns(flow) < RTT_MIN_NS {
        return part.blame;
    }
    if flow.rec.last.userlocks & SNDBUF_LOCK != 0 {
        return Blame::SndbufLocked;
    }
    let space = facts.space(flow.rec.netns);
    let cap = space.and_then(|space| space.settings).map_or(0, |settings| settings.tcp_wmem[2]);
    if cap > 0 && f64::from(flow.rec.last.sndbuf) >= AT_CAP * cap as f64 {
        return Blame::SysctlCap;
    }
    Blame::Sndbuf
}

/// Adds the time of streams between neighbours whose window holds less than two bursts and cannot grow: sender and reader then take
/// turns, although both have time left. Each wait is of microseconds, as on any fast path; in sum they are what the stream loses.
pub fn add_turns(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    let mut added = BTreeMap::new();
    for (index, flow) in facts.flows.iter().enumerate() {
        let Some(receiver) = flow.pair.map(|other| &facts.flows[other]) else { continue };
        let (lost, window) =
            (flow.ledger.of(State::PeerWindowLimited), flow.rec.last.snd_wnd.max(flow.rec.first.snd_wnd));
        let bound = flow.shape == Shape::StreamOut && rtt_ns(flow) < RTT_MIN_NS && window < 2 * BURST_BYTES;
        if !bound || lost < BOUND_MIN * flow.could_ns || is_full(facts, receiver) {
            continue;
        }
        let Some(blame @ (Blame::RcvbufLocked | Blame::SysctlCap)) = receive_limit(facts, receiver.rec) else {
            continue;
        };
        let waits = flow.ledger.intervals.iter().filter(|interval| interval.state == State::PeerWindowLimited);
        let count = waits.fold(0u64, |n, interval| n.saturating_add(interval.count));
        added.insert(index, whole(index, blame, State::PeerWindowLimited, (lost, flow.ledger.scale), count));
    }
    parts.retain(|part| part.state != State::PeerWindowLimited || !added.contains_key(&part.flow));
    parts.extend(added.into_values());
}

/// The thread that reads has no time left, or is not known.
fn is_full(facts: &Facts<'_>, flow: &FlowFact<'_>) -> bool {
    let reader = facts.thread(facts.server_of(flow.rec, 0));
    reader.is_none_or(|reader| reader.ledger.not_idle() >= READER_FULL * reader.ledger.wall_ns)
}

/// The round trip as a receiver knows it, in nanoseconds; 0 when unknown.
fn receive_rtt_ns(flow: &FlowFact<'_>, figures: Option<&SocketFigures>) -> f64 {
    let estimate = figures.map_or(0.0, |f| f64::from(f.rcv_rtt_us) * 1e3);
    // The estimate counts the time in which a window is filled, so it is never below the round trip.
    if estimate > 0.0 { estimate } else { rtt_ns(flow) }
}

/// The time in which a receiver could have received more, by the states that its account has it in: all of a stream that comes in, and of
/// replies that are many windows long what it waits for them. None of others.
fn receiving(flow: &FlowFact<'_>) -> Option<(f64, &'static [State])> {
    let window = u64::from(flow.rec.last.rcv_wnd);
    let long = flow.rec.calls.exchanges.max(1).saturating_mul(LONG_REPLY_WINDOWS).saturating_mul(window);
    match flow.shape {
        Shape::StreamIn => Some((flow.ledger.wall_ns, &[State::NothingToSend, State::PeerThinking])),
        Shape::RequestReply if flow.rec.received_bytes() >= long => {
            Some((flow.ledger.wall_ns - flow.ledger.of(State::NothingToSend), &[State::PeerThinking]))
        }
        _ => None,
    }
}

/// Adds the time of receivers whose own window is what limits them, where the sender is not in the capture to show it.
pub fn add_receivers(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    let mut added: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
    for (index, flow) in facts.flows.iter().enumerate() {
        let Some((receiving_ns, states)) = receiving(flow) else { continue };
        if flow.pair.is_some() || rtt_ns(flow) < RTT_MIN_NS {
            continue;
        }
        let received = flow.rec.received_bytes() as f64;
        let per_rtt = ratio(received, receiving_ns) * receive_rtt_ns(flow, facts.figures(flow.rec.id));
        let window = f64::from(flow.rec.last.rcv_wnd);
        if window == 0.0 || per_rtt < FULL_EACH_RTT * window {
            continue;
        }
        let Some(blame) = receive_limit(facts, flow.rec) else { continue };
        let of_flow = added.entry(index).or_default();
        // In the time that was observed: what is summed up of parts is scaled.
        let round_trips = |ns: f64| (ns / flow.ledger.scale.max(1.0) / rtt_ns(flow)).round() as u64;
        for &state in states {
            let ns = flow.ledger.of(state);
            if ns > 0.0 {
                of_flow.push(whole(index, blame, state, (ns, flow.ledger.scale), round_trips(ns)));
            }
        }
    }
    parts.retain(|part| part.blame != Blame::PeerThink || !added.contains_key(&part.flow));
    parts.extend(added.into_values().flatten());
}

/// Adds the time in which senders wait to be told that more may come.
pub fn add_own(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    let mut lost = vec![0.0; facts.flows.len()];
    parts.iter().for_each(|part| lost[part.flow] += part.ns);
    let little = |index: usize, flow: &FlowFact<'_>| lost[index] < OWN_LOST_MAX * flow.ledger.of(State::InFlight);
    let flows = facts.flows.iter().enumerate().filter(|(index, flow)| little(*index, flow));
    let bound: Vec<Part> = flows
        .filter(|(_, flow)| is_own_bound(flow) && is_prompted(facts, flow))
        .map(|(index, flow)| {
            let waits = flow.ledger.intervals.iter().filter(|interval| interval.state == State::InFlight);
            let count = waits.fold(0u64, |n, interval| n.saturating_add(interval.count));
            let ns = flow.ledger.of(State::InFlight);
            whole(index, Blame::WindowPerRtt, State::InFlight, (ns, flow.ledger.scale), count)
        })
        .collect();
    parts.extend(bound);
}

/// Much is sent one way, all of it is under way for most of the time, and nothing in the kernel holds any back.
fn is_own_bound(flow: &FlowFact<'_>) -> bool {
    let (ledger, calls, last) = (&flow.ledger, &flow.rec.calls, &flow.rec.last);
    let others =
        [State::CwndLimited, State::PeerWindowLimited, State::SndbufLimited, State::Paced, State::LossRecovery];
    let held: f64 = others.into_iter().map(|state| ledger.of(state)).sum();
    let per_rtt = ratio(flow.rec.acked_bytes() as f64, ledger.wall_ns) * rtt_ns(flow);
    matches!(flow.shape, Shape::RequestReply | Shape::StreamOut)
        && rtt_ns(flow) >= OWN_RTT_MIN_NS
        && last.app_limited
        && last.unsent_bytes == 0
        && calls.send_bytes >= ONE_WAY.saturating_mul(calls.recv_bytes)
        && ledger.of(State::InFlight) >= OWN_IN_FLIGHT_MIN * ledger.wall_ns
        && held <= OWN_OTHERS_MAX * ledger.wall_ns
        && per_rtt >= 10.0 * f64::from(last.mss.max(1))
}

/// Its sends follow at once after receives, and never come at a time of their own.
fn is_prompted(facts: &Facts<'_>, flow: &FlowFact<'_>) -> bool {
    let calls = facts.capture.timeline.as_ref().and_then(|timeline| timeline.calls.get(&flow.rec.id));
    let calls = calls.map_or(&[][..], Vec::as_slice);
    let soon = |pair: &[SocketCall]| pair[1].since_ns.saturating_sub(pair[0].at_ns) <= AT_ONCE_NS;
    let sends: Vec<&[SocketCall]> = calls.windows(2).filter(|pair| pair[1].op == Op::Send).collect();
    let turns = sends.iter().filter(|pair| pair[0].op == Op::Receive).count();
    let prompted = sends.iter().filter(|pair| soon(pair)).count();
    turns >= TURNS_MIN && prompted as f64 >= PROMPTED * sends.len() as f64
}
