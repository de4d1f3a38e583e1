//! Lost time: which intervals count as lost, and who is to blame for each.
//!
//! Only intervals of at least 1 ms count, because shorter ones are the ordinary rhythm of a busy healthy flow: an
//! iperf3 over loopback is window-limited for microseconds at a time, and a server under saturating load queues
//! requests for some hundred. A hold of a write-write-read flow counts whatever its length: it is paid once per
//! request.
use parshall_evidence::{FlowRecord, FlowState, Release, Rung};

use super::doing::{Doing, wait_of};
use super::flow::{FlowFact, Shape};
use super::held_back;
use super::part::{Blame, Part};
use super::prepared::Facts;
use crate::judge::ledger::flow::{Interval, State};
use crate::judge::ledger::flow_rules::{DELACK_NS, serves};
use crate::stats::ratio;
use crate::wait::Wait;

/// Thinking shorter than this is an answer, not a wait.
pub const THINK_MIN_NS: f64 = 2e6;
/// A message that is held for less is held for a round trip of this host to itself.
const HOLD_MIN_NS: f64 = 100_000.0;

/// The time that is lost before both ends of a connection are compared, and the time that was excused.
#[derive(Debug, Default)]
pub struct Raw {
    /// Lost time.
    pub parts: Vec<Part>,
    /// Local time that is not lost, since a thread was busy with cheap requests: flow, span, share of the span.
    pub excused: Vec<(usize, (u64, u64), f64)>,
}

/// The lost time of every flow.
pub fn parts(facts: &Facts<'_>) -> Raw {
    let mut raw = Raw::default();
    for (index, flow) in facts.flows.iter().enumerate() {
        let typical_think_ns = typical_think(flow);
        for interval in &flow.ledger.intervals {
            let part = part(index, flow, interval);
            let part = Part { ns: part.ns * (1.0 - held_anyway(facts, flow, interval)), ..part };
            match attribute(flow, interval, typical_think_ns) {
                Attribution::NotLost => {}
                Attribution::To(blame) => raw.parts.push(Part { blame, ..part }),
                Attribution::Local => local(facts, flow, interval, part, &mut raw),
            }
        }
    }
    raw.parts.extend(held_back::parts(facts));
    raw
}

/// The account to which the time of an interval belongs.
enum Attribution {
    /// Not counted as lost.
    NotLost,
    To(Blame),
    /// Somewhere in the local application.
    Local,
}

fn attribute(flow: &FlowFact<'_>, interval: &Interval, typical_think_ns: f64) -> Attribution {
    let long = interval.long;
    let delays = flow.write_write_read && interval.each_ns(flow.ledger.scale) >= HOLD_MIN_NS;
    let hold = |blame| if long || delays { Attribution::To(blame) } else { Attribution::NotLost };
    let stall = |blame| if long { Attribution::To(blame) } else { Attribution::NotLost };
    match interval.state {
        State::HeldByNagle => hold(Blame::Nagle),
        State::HeldByNagleDelayedAck => hold(Blame::NagleDelack),
        // A process that passes a stream on announces more data (MSG_MORE), and waits for it.
        State::Corked if flow.passes_on => Attribution::NotLost,
        State::Corked => hold(Blame::Cork),
        State::PeerHeld if DELACK_NS.contains(&interval.each_ns(flow.ledger.scale)) => Attribution::To(Blame::PeerHeld),
        // Recovery is no flow's ordinary rhythm: on a lossy flow it counts whatever its length.
        State::LossRecovery if flow.lossy => Attribution::To(Blame::Loss),
        State::LossRecovery => stall(Blame::Loss),
        State::RetransmissionTimeout => Attribution::To(Blame::Rto),
        // Without loss a full congestion window is the path at its capacity; with it, the window is too small.
        // (ssthresh does not tell: HyStart leaves slow start by it without a loss.)
        State::CwndLimited if flow.lossy => Attribution::To(Blame::Cwnd),
        State::CwndLimited if flow.retransmitted > 0 => stall(Blame::Cwnd),
        State::PeerWindowLimited => stall(Blame::PeerWindow),
        State::SndbufLimited => stall(Blame::Sndbuf),
        State::Paced => stall(Blame::Paced),
        State::QdiscQueued => stall(Blame::Qdisc),
        State::ReaderWaiting | State::AppThinking if long => Attribution::Local,
        State::NothingToSend
            if long && flow.supplies && matches!(interval.release, Release::AppSend | Release::Sampled) =>
        {
            Attribution::Local
        }
        State::PeerThinking => peer_thinking(flow, interval, typical_think_ns),
        _ => Attribution::NotLost,
    }
}

/// A peer streams if it sends at least this many times the bytes that it gets: they are acknowledgements of a protocol above TCP.
const ACKNOWLEDGES: u64 = 8;

/// A writer streams if it has more holds than this for each exchange: most of them are in the middle of a message.
const STREAMS: u64 = 4;

/// The share of a hold by Nagle's algorithm that delays nobody: the writer of a stream is at work on what it writes next meanwhile, or
/// the peer, which streams, goes on sending without what is held.
fn held_anyway(facts: &Facts<'_>, flow: &FlowFact<'_>, interval: &Interval) -> f64 {
    if !matches!(interval.state, State::HeldByNagle | State::HeldByNagleDelayedAck) {
        return 0.0;
    }
    let (sent, received) = (flow.rec.calls.send_bytes, flow.rec.calls.recv_bytes);
    let goes_on = matches!(interval.release, Release::RxData | Release::Cut);
    if goes_on && sent > 0 && received >= sent.saturating_mul(ACKNOWLEDGES) {
        return 1.0;
    }
    let tid = facts.server_of(flow.rec, interval.tid);
    let holds = flow.rec.cells.iter().filter(|cell| cell.state == FlowState::Nagle);
    let holds = holds.fold(0u64, |n, cell| n.saturating_add(cell.count));
    let streams = flow.shape == Shape::StreamOut || holds > flow.rec.calls.exchanges.saturating_mul(STREAMS);
    if !streams || tid == 0 {
        return 0.0;
    }
    // Where a thread writes to many, its work for one is the delay of another.
    let doing = Doing::of(facts, tid, interval.span);
    (doing.on_cpu + doing.runnable).min(1.0)
}

fn peer_thinking(flow: &FlowFact<'_>, interval: &Interval, typical_ns: f64) -> Attribution {
    let each = interval.each_ns(flow.ledger.scale);
    if !interval.long || each < THINK_MIN_NS || each <= 4.0 * flow.ledger.context.min_rtt_ns {
        return Attribution::NotLost;
    }
    // A subscriber that hears little is idle; one that downloads waits.
    let seconds = flow.ledger.wall_ns / 1e9;
    let received = flow.rec.received_bytes() as f64;
    let received = received.max(flow.rec.calls.recv_bytes as f64 * flow.ledger.scale);
    if flow.shape == Shape::StreamIn && received < 1e5 * seconds {
        return Attribution::NotLost;
    }
    // On a lossy path the reply gets lost too; we see only that it comes a timeout late.
    if flow.lossy && each >= 190e6 && each > 5.0 * typical_ns {
        return Attribution::To(Blame::Rto);
    }
    Attribution::To(Blame::PeerThink)
}

/// The median wait for the peer, over long and short ones.
fn typical_think(flow: &FlowFact<'_>) -> f64 {
    let waits: Vec<(f64, f64)> = flow
        .ledger
        .intervals
        .iter()
        .filter(|i| i.state == State::PeerThinking || (i.state == State::InFlight && i.release == Release::RxData))
        .map(|i| (i.each_ns(flow.ledger.scale), i.count.max(1) as f64))
        .collect();
    crate::stats::weighted_quantile(&waits, 0.5).unwrap_or(0.0)
}

fn part(index: usize, flow: &FlowFact<'_>, interval: &Interval) -> Part {
    Part {
        flow: index,
        blame: Blame::PeerThink,
        state: interval.state,
        ns: interval.ns,
        count: interval.count,
        each_ns: interval.each_ns(flow.ledger.scale),
        release: interval.release,
        tid: 0,
        span: interval.span,
        stall: interval.stall,
        off: None,
        supply: interval.state == State::NothingToSend,
    }
}

/// Whether the process at this end is a client that pauses before it reads its reply, or the next piece of it, or before it sends more. Of a
/// stream, pauses are its own fault where the user asked about this client.
pub fn pauses(facts: &Facts<'_>, end: &FlowFact<'_>, tid: u32, wait: Option<Wait>) -> bool {
    let capture = facts.capture;
    let by_port = capture.timeline.as_ref().is_some_and(|timeline| !timeline.asked_ports.is_empty());
    let asked_for = !by_port && capture.subject.pids.contains(&end.rec.pid);
    let client = !serves(end.rec) && (end.shape == Shape::RequestReply || !asked_for);
    let by_timers = || facts.thread(tid).is_some_and(|thread| thread.woken_by_timers);
    client
        && match wait {
            Some(wait) => wait == Wait::Sleep || wait == Wait::Multiplex && by_timers(),
            None => never_ran(facts, end.rec),
        }
}

/// A process of this host of which no thread ran in the whole window: it sleeps for longer, and what for is not the service's.
fn never_ran(facts: &Facts<'_>, end: &FlowRecord) -> bool {
    let quiet = end.calls.sends == 0 && end.calls.recvs == 0;
    facts.capture.rung == Rung::Btf && end.pid != 0 && quiet && facts.threads_of(end.pid).next().is_none()
}

/// Divides time that the local application took by what its thread did.
fn local(facts: &Facts<'_>, flow: &FlowFact<'_>, interval: &Interval, part: Part, raw: &mut Raw) {
    let tid = facts.server_of(flow.rec, interval.tid);
    let doing = match tid {
        0 => Doing::of_process(facts, flow.rec.pid, interval.span),
        _ => Doing::of(facts, tid, interval.span),
    };
    let thread = facts.thread(if doing.tid != 0 { doing.tid } else { tid });
    let each = interval.each_ns(flow.ledger.scale);
    let blocked = match interval.state {
        State::NothingToSend => Blame::SupplyBlocked,
        State::ReaderWaiting if flow.shape != Shape::RequestReply => Blame::ReaderBlocked,
        _ => Blame::AppBlocked,
    };
    let part = Part { tid: if doing.tid != 0 { doing.tid } else { tid }, off: doing.off, ..part };
    let mut give = |blame, share: f64| {
        if share > 0.0 {
            raw.parts.push(Part { blame, ns: part.ns * share, ..part.clone() });
        }
    };
    let mut excused = 0.0;
    let expensive = thread.is_some_and(|t| t.expensive);
    if expensive {
        let ledger = thread.map(|t| &t.ledger);
        let user = ledger.map_or(0.0, |l| l.user_share.unwrap_or(1.0));
        // A majority of 60 % names the thread's CPU time.
        let user = if user >= 0.6 { 1.0 } else { user };
        use crate::judge::ledger::thread::State as T;
        let queued_by_itself = ledger.is_some_and(|l| l.of(T::Runnable) < l.on_cpu());
        let at_work = doing.on_cpu + if queued_by_itself { doing.runnable } else { 0.0 };
        give(Blame::CpuUser, at_work * user);
        give(Blame::CpuKernel, at_work * (1.0 - user));
        give(Blame::RunQueue, if queued_by_itself { 0.0 } else { doing.runnable });
    } else {
        excused += doing.on_cpu + doing.runnable;
    }
    give(Blame::Throttled, doing.throttled);
    let wait = doing.off.map(|i| wait_of(facts, i));
    // Samples cannot tell a request that is incomplete from one that is not answered. Does the thread wait for work?
    let unclear =
        part.state == State::AppThinking && part.release == Release::Sampled && wait.is_none_or(Wait::is_for_work);
    let pauses =
        matches!(part.state, State::ReaderWaiting | State::NothingToSend) && pauses(facts, flow, part.tid, wait);
    if pauses && blocked == Blame::SupplyBlocked {
        give(Blame::SenderPauses, doing.blocked);
    } else if pauses && flow.shape != Shape::RequestReply {
        give(Blame::ReaderPauses, doing.blocked);
    } else if unclear || pauses {
        // Not counted as lost here, and no reason for what the other end sees.
    } else if blocked != Blame::AppBlocked || each >= THINK_MIN_NS {
        give(blocked, doing.blocked);
    } else {
        excused += doing.blocked;
    }
    if let Some((begin, ns)) = part.span {
        let share = ratio(part.ns, ns as f64 * flow.ledger.scale).min(1.0);
        raw.excused.push((part.flow, (begin, begin.saturating_add(ns)), excused * share));
    }
}
