//! One answer after the other: flows that are in flight all the time with one small request, and services that ask another one many
//! times in each request.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::{FlowRecord, Service};

use super::findings::Chatter;
use super::whole::whole;
use crate::judge::facts::flow::{FlowFact, Shape, rtt_ns};
use crate::judge::facts::part::{Blame, Part};
use crate::judge::facts::prepared::Facts;
use crate::judge::ledger::flow::State;
use crate::judge::ledger::flow_rules::serves;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

/// Shorter round trips are the host's own work.
const RTT_MIN_NS: f64 = 1e6;
/// A flow that waits this share of its time for round trips has nothing else to do.
const IN_FLIGHT_MIN: f64 = 0.6;
/// Fewer exchanges in the window say nothing.
const EXCHANGES_MIN: f64 = 10.0;
/// An exchange of fewer segments is small: it takes no further round trip.
const SMALL_SEGMENTS: f64 = 10.0;
/// What is in flight for no more round trips than this came in one: neither a window, nor the rate of the path, nor the server held it up.
const ONE_ROUND_TRIP: f64 = 1.5;
/// From this share of the exchanges on, each is a request of its own.
const REQUESTS_MIN: f64 = 0.5;
/// From this many questions per request on, one would do.
const PER_REQUEST_MIN: f64 = 5.0;
/// A question that takes longer, and longer than a round trip of its path, is a slow answer first.
const ANSWER_MAX_NS: f64 = 10e6;
/// Share of a request's time that the questions take.
const OF_REQUEST_MIN: f64 = 0.3;

/// The states of a flow from a question to the reading of its answer.
const WAITS: [State; 3] = [State::InFlight, State::PeerThinking, State::ReaderWaiting];

/// Adds the time that goes into round trips, and returns who asks how often.
pub fn add(facts: &Facts<'_>, parts: &mut Vec<Part>) -> Vec<Chatter> {
    let mut lost = vec![0.0; facts.flows.len()];
    parts.iter().for_each(|part| lost[part.flow] += part.ns);
    let mut added = BTreeMap::new();
    let exchanges = exchanges_of_ports(facts);
    for (index, flow) in facts.flows.iter().enumerate() {
        if let Some((ns, count)) = serial(facts, flow, &exchanges).filter(|(ns, _)| lost[index] < 0.3 * ns) {
            added.insert(index, whole(index, Blame::RoundTrips, State::InFlight, (ns, flow.ledger.scale), count));
        }
    }
    parts.retain(|part| !added.contains_key(&part.flow));
    parts.extend(added.into_values());
    let found = chatter(facts);
    move_requests(facts, &found, parts);
    found
}

/// A flow with one request on its way at a time, and the next one right behind the reply: a small one, or one that takes no more than
/// the round trip although its answer is large. Returns the time of its round trips and their number; an acknowledgement may come before the
/// reply, which makes two intervals of one.
fn serial(facts: &Facts<'_>, flow: &FlowFact<'_>, exchanges_of: &ByPort) -> Option<(f64, u64)> {
    let shown_there = serves(flow.rec) && flow.pair.is_some();
    if shown_there || flow.shape != Shape::RequestReply || rtt_ns(flow) < RTT_MIN_NS {
        return None;
    }
    let ns = flow.ledger.of(State::InFlight);
    let exchanges = flow.rec.calls.exchanges as f64 * flow.ledger.scale;
    let each = ratio(ns, exchanges);
    let one_at_a_time = each >= 0.7 * rtt_ns(flow);
    let busy = ns >= IN_FLIGHT_MIN * flow.ledger.wall_ns;
    let mss = f64::from(flow.rec.last.mss.max(1));
    let bytes = (flow.rec.calls.send_bytes.max(flow.rec.calls.recv_bytes)) as f64 * flow.ledger.scale;
    let small = ratio(bytes, exchanges) < SMALL_SEGMENTS * mss;
    let in_one = each <= ONE_ROUND_TRIP * rtt_ns(flow);
    let whole = || small || in_one && asks_for_much(facts, flow, exchanges_of);
    (busy && one_at_a_time && exchanges >= EXCHANGES_MIN && whole()).then_some((ns, flow.rec.calls.exchanges))
}

/// Exchanges of the flows of a service, by whether they are its own ends or those of its clients, and by its port.
type ByPort = BTreeMap<(bool, u16), f64>;

fn exchanges_of_ports(facts: &Facts<'_>) -> ByPort {
    let mut sums = ByPort::new();
    for flow in &facts.flows {
        let exchanges = flow.rec.calls.exchanges as f64 * flow.ledger.scale;
        *sums.entry((serves(flow.rec), service_port(flow.rec))).or_default() += exchanges;
    }
    sums
}

fn service_port(flow: &FlowRecord) -> u16 {
    if serves(flow) { flow.local.port() } else { flow.remote.port() }
}

/// Each exchange of a flow is a request with a large answer. Messages that let a sender go on (a window of HTTP/2) make exchanges,
/// too, and are no requests.
fn asks_for_much(facts: &Facts<'_>, flow: &FlowFact<'_>, exchanges_of: &ByPort) -> bool {
    let (calls, own, port) = (&flow.rec.calls, serves(flow.rec), service_port(flow.rec));
    let (question, answer) =
        if own { (calls.recv_bytes, calls.send_bytes) } else { (calls.send_bytes, calls.recv_bytes) };
    let services = facts.requests.all.iter().filter(|s| !s.waited && s.address.port() == port);
    let scale = |s: &Service| ratio(facts.capture.window_ns as f64, s.observed_ns as f64).max(1.0);
    let requests: f64 = services.map(|s| s.requests as f64 * scale(s)).sum();
    let exchanges = exchanges_of.get(&(own, port)).copied().unwrap_or(0.0);
    answer > question && requests >= REQUESTS_MIN * exchanges
}

/// Questions to one service.
#[derive(Default)]
struct Asked {
    exchanges: f64,
    waited_ns: f64,
    /// Of their paths, the longest.
    rtt_ns: f64,
}

fn chatter(facts: &Facts<'_>) -> Vec<Chatter> {
    let mut served: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    let mut asked: BTreeMap<(u32, SocketAddr), Asked> = BTreeMap::new();
    for flow in facts.flows.iter().filter(|f| f.shape == Shape::RequestReply && f.rec.pid != 0) {
        let exchanges = flow.rec.calls.exchanges as f64 * flow.ledger.scale;
        if serves(flow.rec) {
            let sum = served.entry(flow.rec.pid).or_default();
            *sum = (sum.0 + exchanges, sum.1 + flow.ledger.of(State::AppThinking));
        } else {
            let sum = asked.entry((flow.rec.pid, flow.rec.remote)).or_default();
            sum.exchanges += exchanges;
            sum.waited_ns += WAITS.iter().map(|&state| flow.ledger.of(state)).sum::<f64>();
            sum.rtt_ns = sum.rtt_ns.max(rtt_ns(flow));
        }
    }
    let found = asked.into_iter().filter_map(|((pid, remote), asked)| {
        let &(requests, thinking_ns) = served.get(&pid)?;
        let chatter = Chatter {
            pid,
            asked: remote,
            per_request: ratio(asked.exchanges, requests),
            questions: asked.exchanges,
            each_ns: ratio(asked.waited_ns, asked.exchanges),
            share: ratio(asked.waited_ns, thinking_ns).min(1.0),
        };
        let many = requests >= 3.0 && chatter.per_request >= PER_REQUEST_MIN;
        let at_once = chatter.each_ns <= ANSWER_MAX_NS.max(ONE_ROUND_TRIP * asked.rtt_ns);
        (many && at_once && chatter.share >= OF_REQUEST_MIN).then_some(chatter)
    });
    found.collect()
}

/// The requests' time that goes into the questions is lost on the connections that carry them, whatever it seemed to be lost to.
fn move_requests(facts: &Facts<'_>, found: &[Chatter], parts: &mut Vec<Part>) {
    let asked: BTreeSet<(u32, SocketAddr)> = found.iter().map(|one| (one.pid, one.asked)).into_set();
    let mut kept_of: BTreeMap<u32, f64> = BTreeMap::new();
    for one in found {
        *kept_of.entry(one.pid).or_insert(1.0) *= 1.0 - one.share;
    }
    let mut kept = vec![1.0; facts.flows.len()];
    let mut added: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
    for (index, flow) in facts.flows.iter().enumerate() {
        let Some(of_process) = kept_of.get(&flow.rec.pid) else { continue };
        if serves(flow.rec) {
            [Some(index), flow.pair].into_iter().flatten().for_each(|end| kept[end] *= of_process);
        } else if asked.contains(&(flow.rec.pid, flow.rec.remote)) {
            // As observed: what is summed up of parts is scaled.
            let count = flow.rec.calls.exchanges;
            let waits = WAITS.into_iter().map(|state| (state, flow.ledger.of(state))).filter(|(_, ns)| *ns > 0.0);
            let moved = waits.map(|(state, ns)| whole(index, Blame::RoundTrips, state, (ns, flow.ledger.scale), count));
            added.insert(index, moved.collect());
        }
    }
    parts.iter_mut().for_each(|part| part.ns *= kept[part.flow]);
    parts.retain(|part| !added.contains_key(&part.flow));
    parts.extend(added.into_values().flatten());
}
