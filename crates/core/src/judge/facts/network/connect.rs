//! Opening connections: requests that were dropped or repeated, and connections that are opened for a few exchanges only.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::ListenerCounters;
use parshall_evidence::socket::selection::state::CLOSE;

use super::findings::{Refusals, Setup};
use super::whole::whole;
use crate::judge::facts::flow::{FlowFact, Shape};
use crate::judge::facts::part::{Blame, Part};
use crate::judge::facts::prepared::Facts;
use crate::judge::ledger::flow::State;
use crate::judge::ledger::flow_rules::{min_rtt_ns, serves};
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

/// A SYN is repeated after one second, then after two more, four more (TCP_TIMEOUT_INIT, RFC 6298 2.1).
pub const SYN_TIMEOUT_NS: f64 = 1e9;
/// Connections with more exchanges are kept for many requests.
const EXCHANGES_MAX: u64 = 5;
/// As many connections must have been opened in the window.
const OPENED_MIN: usize = 10;
/// A service with fewer new connections than this for each of its requests keeps them.
const QUESTIONS_PER_REQUEST_MIN: f64 = 0.5;
/// With less of a connection's life in its opening, keeping it would help little.
pub const OF_LIFE_MIN: f64 = 0.2;
/// A connection that lives longer is not one of a request.
const LIFE_MAX_NS: f64 = 2e9;

/// Listeners whose queue overflowed: drops at the socket while the namespace counts overflows. A listener also drops SYN-ACKs that
/// were never answered, which is a matter of the path.
pub fn overflowed<'a>(facts: &Facts<'a>) -> Vec<&'a ListenerCounters> {
    let Some(counters) = &facts.capture.counters else { return Vec::new() };
    let overflows = |l: &&ListenerCounters| {
        let space = facts.space(l.netns);
        l.drops > 0 && space.is_some_and(|space| space.rose("TcpExt.ListenOverflows") > 0)
    };
    counters.listeners.iter().filter(overflows).collect()
}

/// The listeners that dropped connection requests.
pub fn refusals(facts: &Facts<'_>) -> Refusals {
    let found = overflowed(facts);
    Refusals {
        overflowed: found.iter().map(|l| (l.netns, l.local.port())).into_set(),
        ports: found.iter().map(|l| l.local.port()).into_set(),
    }
}

/// Adds what connections of few exchanges spend on being opened.
pub fn add_setup(facts: &Facts<'_>, parts: &mut Vec<Part>) -> Setup {
    let short: Vec<usize> = (0..facts.flows.len()).filter(|&i| is_short(facts, &facts.flows[i])).collect();
    if short.len() < OPENED_MIN {
        return Setup::default();
    }
    let whole_seen: Vec<&FlowFact<'_>> =
        short.iter().map(|&i| &facts.flows[i]).filter(|f| seen_whole(f) && exchanges_on(f) > 0).collect();
    let (mut cost, mut life, mut exchanges) = (0.0, 0.0, 0.0);
    for flow in &whole_seen {
        cost += setup_ns(flow);
        life += flow.ledger.wall_ns;
        exchanges += exchanges_on(flow) as f64;
    }
    let n = whole_seen.len() as f64;
    let share = ratio(cost, life);
    let setup = Setup {
        connections: short.len(),
        opened: facts.capture.net.opened.max(short.len() as u64),
        exchanges: ratio(exchanges, n),
        life_ns: ratio(life, n),
        setup_ns: ratio(cost, n),
        service: service(facts, &short),
    };
    if share < OF_LIFE_MIN {
        return setup;
    }
    let mut lost = vec![0.0; facts.flows.len()];
    parts.iter().for_each(|p| lost[p.flow] += p.ns);
    for &index in &short {
        let flow = &facts.flows[index];
        let free = flow.ledger.wall_ns - lost[index];
        let ns = if seen_whole(flow) { setup_ns(flow) } else { share * flow.ledger.wall_ns }.min(free);
        if ns > 0.0 {
            let idle = ns.min(flow.ledger.of(State::NothingToSend));
            let rest = if idle > 0.0 { State::InFlight } else { State::Other };
            for (state, ns) in [(State::NothingToSend, idle), (rest, ns - idle)].into_iter().filter(|s| s.1 > 0.0) {
                parts.push(whole(index, Blame::Setup, state, (ns, 1.0), 1));
            }
        }
    }
    move_requests(facts, &short.iter().copied().into_set(), parts);
    setup
}

/// A process that opens a connection for each question that its own requests ask: their time goes into the opening, which is on the
/// account of the new connections, and into the round trip of the question, whatever it seemed to be lost to.
fn move_requests(facts: &Facts<'_>, short: &BTreeSet<usize>, parts: &mut [Part]) {
    let mut asked: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for flow in short.iter().map(|&i| &facts.flows[i]).filter(|f| !serves(f.rec) && f.rec.pid != 0) {
        let sum = asked.entry(flow.rec.pid).or_default();
        // The unseen part of a connection's life went the same way as the seen one.
        *sum = (sum.0 + 1.0, sum.1 + setup_ns(flow) + min_rtt_ns(flow.rec));
    }
    let mut served: BTreeMap<u32, (f64, f64, Vec<usize>)> = BTreeMap::new();
    for (index, flow) in facts.flows.iter().enumerate() {
        if serves(flow.rec) && flow.shape == Shape::RequestReply && !short.contains(&index) {
            let (requests, thinking, flows) = served.entry(flow.rec.pid).or_default();
            *requests += flow.rec.calls.exchanges as f64 * flow.ledger.scale;
            *thinking += flow.ledger.of(State::AppThinking);
            flows.push(index);
        }
    }
    let mut kept = vec![1.0; facts.flows.len()];
    for (pid, (questions, taken)) in asked {
        let Some((requests, thinking, flows)) = served.get(&pid) else { continue };
        if questions < QUESTIONS_PER_REQUEST_MIN * requests || *requests == 0.0 {
            continue;
        }
        let share = ratio(taken, *thinking).min(1.0);
        for &index in flows {
            kept[index] *= 1.0 - share;
            facts.flows[index].pair.into_iter().for_each(|other| kept[other] *= 1.0 - share);
        }
    }
    parts.iter_mut().for_each(|part| part.ns *= kept[part.flow]);
}

/// Opened and closed in the window, for a request or a few. Of two ends in the capture, the one that opened it counts.
fn is_short(facts: &Facts<'_>, flow: &FlowFact<'_>) -> bool {
    let opened = flow.rec.begin_ns > 0 && flow.rec.last.state == CLOSE;
    let counted_there = serves(flow.rec) && flow.pair.is_some_and(|other| facts.flows[other].rec.begin_ns > 0);
    opened
        && !counted_there
        && flow.shape != Shape::Idle
        && exchanges_on(flow) <= EXCHANGES_MAX
        && flow.ledger.wall_ns <= LIFE_MAX_NS
}

/// Requests and their replies. The first send of a client follows no receive, so it is in none of the changes of direction.
fn exchanges_on(flow: &FlowFact<'_>) -> u64 {
    let calls = &flow.rec.calls;
    let first = !serves(flow.rec) && calls.sends > 0 && calls.recvs > 0;
    calls.exchanges.saturating_add(u64::from(first))
}

fn seen_whole(flow: &FlowFact<'_>) -> bool {
    flow.rec.observed_ns as f64 >= 0.9 * flow.ledger.wall_ns
}

/// One round trip for the handshake; and of the exchanges, all but the last one: it is the request.
fn setup_ns(flow: &FlowFact<'_>) -> f64 {
    let handshake = min_rtt_ns(flow.rec).min(flow.ledger.wall_ns);
    let before = exchanges_on(flow).saturating_sub(1) as f64;
    let states = [State::InFlight, State::PeerThinking, State::AppThinking, State::ReaderWaiting];
    let waiting: f64 = states.into_iter().map(|state| flow.ledger.of(state)).sum();
    handshake + waiting * ratio(before, before + 1.0)
}

fn service(facts: &Facts<'_>, short: &[usize]) -> Option<SocketAddr> {
    let mut by_service = BTreeMap::<SocketAddr, usize>::new();
    for &index in short {
        let flow = facts.flows[index].rec;
        *by_service.entry(if serves(flow) { flow.local } else { flow.remote }).or_default() += 1;
    }
    by_service.into_iter().max_by_key(|(address, n)| (*n, std::cmp::Reverse(*address))).map(|(address, _)| address)
}
