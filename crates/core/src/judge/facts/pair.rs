//! Both ends of a connection on one host see the same wait. Here it goes on one account: that of its cause.
use std::collections::BTreeMap;

use parshall_evidence::FlowRecord;

use super::blame::{Raw, pauses};
use super::doing::{Doing, wait_of};
use super::flow::FlowFact;
use super::part::{Blame, Part};
use super::prepared::Facts;
use crate::judge::ledger::flow::State;
use crate::sorting::IntoOrdered as _;
use crate::stats::{Spans, Weighted, overlap, ratio};
use crate::wait::Wait;

/// Of more connections between the same two addresses that overlap in time, so many are compared. A host has one at a time in each
/// of its namespaces.
const SAME_MAX: usize = 64;

/// Flows between the same two addresses, by when they begin.
#[derive(Default)]
struct Same {
    begins: Vec<(u64, usize)>,
    /// The latest end of each flow and of those before it.
    ends: Vec<u64>,
}

/// Finds the flows whose other end is in the capture.
pub fn join(flows: &mut [FlowFact<'_>]) {
    let mut ends: BTreeMap<_, Same> = BTreeMap::new();
    for (index, flow) in flows.iter().enumerate() {
        ends.entry((flow.rec.local, flow.rec.remote)).or_default().begins.push((flow.rec.begin_ns, index));
    }
    for same in ends.values_mut() {
        same.begins.sort_unstable();
        let latest = same.begins.iter().scan(0, |latest: &mut u64, (_, index)| {
            *latest = (*latest).max(flows[*index].rec.end_ns);
            Some(*latest)
        });
        same.ends = latest.collect();
    }
    for index in 0..flows.len() {
        let rec: &FlowRecord = flows[index].rec;
        flows[index].pair = ends.get(&(rec.remote, rec.local)).and_then(|same| same.other_end(flows, index));
    }
}

impl Same {
    /// The ends may live in different namespaces; a tuple that two connections share is told apart by their times.
    fn other_end(&self, flows: &[FlowFact<'_>], index: usize) -> Option<usize> {
        let span = |i: usize| (flows[i].rec.begin_ns, flows[i].rec.end_ns);
        let own = span(index);
        let from = self.ends.partition_point(|end| *end <= own.0);
        let overlapping = self.begins[from..].iter().take_while(|(begin, _)| *begin < own.1).map(|(_, i)| *i);
        let longest = overlapping
            .filter(|i| *i != index)
            .take(SAME_MAX)
            .max_by_key(|&i| (overlap(own, span(i)), i))
            .filter(|&i| overlap(own, span(i)) > 0);
        let any = || self.begins.iter().rev().map(|(_, i)| *i).find(|i| *i != index);
        longest.or_else(any)
    }
}

/// The spans of one flow that explain waits of its other end, each with the share of it that does.
#[derive(Debug, Default)]
struct Reasons {
    /// Why no reply comes.
    think: Weighted,
    /// Why the window is shut.
    window: Weighted,
}

/// Removes what is on two accounts. Returns what remains, and for each flow the time that was taken off.
pub fn resolve(facts: &Facts<'_>, raw: Raw) -> (Vec<Part>, Vec<f64>) {
    let reasons = reasons(facts, &raw);
    let thinking = spans_of(facts, &raw.parts, |p| {
        let held = matches!(p.blame, Blame::Nagle | Blame::NagleDelack | Blame::Cork | Blame::Rto | Blame::Loss);
        held || p.blame == Blame::PeerThink
    });
    let account = think_account(facts, &raw.parts);
    let outside = Outside::new(facts, &raw.parts);
    let mut explained = vec![0.0; facts.flows.len()];
    let mut kept = Vec::with_capacity(raw.parts.len());
    for mut part in raw.parts {
        let flow = &facts.flows[part.flow];
        let share = match flow.pair {
            Some(other) => explained_by_peer(facts, &part, other, &reasons, &thinking, account[other]),
            None => 0.0,
        };
        let beyond = explained_by_outbound(facts, &part, &outside).max(explained_by_passing_on(facts, &part, &outside));
        let share = share.max(beyond).clamp(0.0, 1.0);
        explained[part.flow] += part.ns * share;
        part.ns *= 1.0 - share;
        if let Some(other) =
            flow.pair.filter(|&other| part.blame == Blame::PeerWindow && shuts_window(facts, other, &part, share))
        {
            explained[part.flow] += part.ns;
            match at_reader(facts, other, part) {
                Some(moved) => part = moved,
                None => continue,
            }
        }
        // The rest of a wait that was explained must still be a stall by itself.
        let left_ns = part.each_ns * (1.0 - share);
        if share == 0.0 || (share < 0.95 && left_ns >= 1e6) {
            kept.push(part);
        }
    }
    (kept, explained)
}

/// Share of a wait for the window that must have been seen with data unread at the other end.
const SEEN_UNREAD: f64 = 0.25;

/// Is the reader at the other end, on this host, what shuts the window in all of this wait, of which `share` is explained by
/// unread data that was seen? It is if it never catches up, in steps too short to travel one by one or to be sampled. It also
/// is if the window stays shut far longer than the news of an open one needs on the way (RFC 9293 3.8.6): what was not seen
/// of the reader then lay between two samples, or before the slice.
fn shuts_window(facts: &Facts<'_>, reader: usize, wait: &Part, share: f64) -> bool {
    let ledger = &facts.flows[reader].ledger;
    let update_ns = 4.0 * facts.flows[wait.flow].ledger.context.min_rtt_ns + 1e6;
    ledger.of(State::ReaderWaiting) >= 0.5 * ledger.wall_ns || (share >= SEEN_UNREAD && wait.each_ns > update_ns)
}

/// A wait for the window, on the account of the reader that shuts it; None when that one is at work on cheap data.
fn at_reader(facts: &Facts<'_>, reader: usize, part: Part) -> Option<Part> {
    let rec = facts.flows[reader].rec;
    let tid = facts.server_of(rec, 0);
    let doing = if tid == 0 { Doing::of_process(facts, rec.pid, part.span) } else { Doing::of(facts, tid, part.span) };
    let tid = if doing.tid != 0 { doing.tid } else { tid };
    let (blame, ns) = match facts.thread(tid) {
        Some(_) if doing.throttled >= 0.5 => (Blame::Throttled, part.ns),
        Some(t) if doing.blocked < 0.5 && t.expensive => (Blame::CpuUser, part.ns),
        Some(_) if doing.blocked < 0.5 => return None,
        _ if pauses(facts, &facts.flows[reader], tid, doing.off.map(|i| wait_of(facts, i))) => {
            (Blame::ReaderPauses, part.ns * doing.blocked)
        }
        _ => (Blame::ReaderBlocked, part.ns * doing.blocked),
    };
    Some(Part { flow: reader, blame, state: State::ReaderWaiting, ns, tid, off: doing.off, stall: None, ..part })
}

fn explained_by_peer(
    facts: &Facts<'_>,
    part: &Part,
    other: usize,
    reasons: &[Reasons],
    thinking: &[Spans],
    account_ns: f64,
) -> f64 {
    match (part.blame, part.span) {
        (Blame::PeerHeld, _) => 1.0,
        (Blame::PeerThink | Blame::PeerWindow, Some((begin, ns))) => {
            let Reasons { think, window } = &reasons[other];
            let reasons = if part.blame == Blame::PeerWindow { window } else { think };
            ratio(reasons.covered(begin, begin.saturating_add(ns)), ns as f64)
        }
        // The end that waits for the answer says so better than the end that owes it; and an end that still holds a part
        // of its request is not owed one.
        (Blame::AppBlocked, Some((begin, ns))) => {
            ratio(thinking[other].covered(begin, begin.saturating_add(ns)) as f64, ns as f64)
        }
        // No spans (stalls were lost): compare the accounts as a whole.
        (Blame::PeerWindow, None) => {
            let (a, b) = (&facts.flows[part.flow].ledger, &facts.flows[other].ledger);
            ratio(b.of(State::ReaderWaiting), a.of(State::PeerWindowLimited))
        }
        (Blame::PeerThink, None) => ratio(account_ns, facts.flows[part.flow].ledger.of(State::PeerThinking)),
        _ => 0.0,
    }
}

/// For each flow, the lost time that explains why its other end gets no reply.
fn think_account(facts: &Facts<'_>, parts: &[Part]) -> Vec<f64> {
    let mut account = vec![0.0; facts.flows.len()];
    for part in parts.iter().filter(|p| explains_silence(p.blame)) {
        account[part.flow] += part.ns;
    }
    account
}

fn explains_silence(blame: Blame) -> bool {
    !matches!(blame, Blame::AppBlocked | Blame::PeerThink | Blame::PeerHeld)
}

fn reasons(facts: &Facts<'_>, raw: &Raw) -> Vec<Reasons> {
    type Explained = Vec<((u64, u64), f64)>;
    let mut reasons: Vec<(Explained, Explained)> = vec![Default::default(); facts.flows.len()];
    let mut add = |flow: usize, span: (u64, u64), think: f64, window: f64| {
        reasons[flow].0.extend((think > 0.0).then_some((span, think)));
        reasons[flow].1.extend((window > 0.0).then_some((span, window)));
    };
    for part in &raw.parts {
        let Some((begin, ns)) = part.span else { continue };
        let share = ratio(part.ns, ns as f64 * facts.flows[part.flow].ledger.scale).min(1.0);
        let think = if explains_silence(part.blame) { share } else { 0.0 };
        let window = if part.state == State::ReaderWaiting { share } else { 0.0 };
        add(part.flow, (begin, begin.saturating_add(ns)), think, window);
    }
    for &(flow, span, share) in &raw.excused {
        add(flow, span, share, share);
    }
    let of = |(think, window)| Reasons { think: Weighted::new(think), window: Weighted::new(window) };
    reasons.into_iter().map(of).collect()
}

fn spans_of(facts: &Facts<'_>, parts: &[Part], take: impl Fn(&Part) -> bool) -> Vec<Spans> {
    let mut raw: Vec<Vec<(u64, u64)>> = vec![Vec::new(); facts.flows.len()];
    for part in parts.iter().filter(|p| take(p)) {
        if let Some((begin, ns)) = part.span {
            raw[part.flow].push((begin, begin.saturating_add(ns)));
        }
    }
    raw.into_iter().map(Spans::union).collect()
}

/// What processes have to do with others outside of the capture.
struct Outside {
    /// When a process waited for somebody there.
    waits: BTreeMap<u32, Spans>,
    /// When it expected more from there, however short each time was: the next part of a reply comes a round trip later.
    silence: BTreeMap<u32, Spans>,
    /// Bytes that it received from there.
    heard: BTreeMap<u32, u64>,
}

impl Outside {
    fn new(facts: &Facts<'_>, parts: &[Part]) -> Outside {
        let mut raw: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for part in parts {
            let flow = &facts.flows[part.flow];
            let outside = matches!(
                part.blame,
                Blame::PeerThink | Blame::PeerWindow | Blame::Rto | Blame::Loss | Blame::Cwnd | Blame::NagleDelack
            );
            if let (true, None, Some((begin, ns))) = (outside, flow.pair, part.span) {
                raw.entry(flow.rec.pid).or_default().push((begin, begin.saturating_add(ns)));
            }
        }
        let mut heard: BTreeMap<u32, u64> = BTreeMap::new();
        let mut silent: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for flow in facts.flows.iter().filter(|flow| flow.pair.is_none()) {
            let bytes = heard.entry(flow.rec.pid).or_default();
            *bytes = bytes.saturating_add(flow.rec.received_bytes());
            let silence = flow.ledger.intervals.iter().filter(|interval| interval.state == State::PeerThinking);
            let spans = silence.filter_map(|interval| interval.span);
            silent.entry(flow.rec.pid).or_default().extend(spans.map(|(begin, ns)| (begin, begin.saturating_add(ns))));
        }
        let union =
            |raw: BTreeMap<u32, Vec<(u64, u64)>>| raw.into_iter().map(|(pid, spans)| (pid, Spans::union(spans)));
        Outside { waits: union(raw).into_map(), silence: union(silent).into_map(), heard }
    }
}

/// The share of a time in which the process waited for somebody outside.
fn share_of(waits: &BTreeMap<u32, Spans>, pid: u32, (begin, ns): (u64, u64)) -> f64 {
    let covered = |spans: &Spans| ratio(spans.covered(begin, begin.saturating_add(ns)) as f64, ns as f64);
    waits.get(&pid).map_or(0.0, covered)
}

/// A wait for a process of this host that waits for somebody outside, and passes on what it hears from there: the wait belongs to that
/// connection of the process.
fn explained_by_passing_on(facts: &Facts<'_>, part: &Part, outside: &Outside) -> f64 {
    let pair = facts.flows[part.flow].pair.map(|other| &facts.flows[other]);
    let (Blame::PeerThink, Some((begin, ns)), Some(other)) = (part.blame, part.span, pair) else { return 0.0 };
    let heard = outside.heard.get(&other.rec.pid).is_some_and(|bytes| *bytes >= other.rec.acked_bytes() / 2);
    let share = share_of(&outside.silence, other.rec.pid, (begin, ns));
    if heard && share >= 0.8 { share } else { 0.0 }
}

/// A thread that owes an answer or a read and waits for another connection of its process, which itself waits for
/// somebody outside: the wait belongs to that connection.
fn explained_by_outbound(facts: &Facts<'_>, part: &Part, outside: &Outside) -> f64 {
    let (Blame::AppBlocked | Blame::ReaderBlocked, Some((begin, ns)), Some(off)) = (part.blame, part.span, part.off)
    else {
        return 0.0;
    };
    let stall = &facts.capture.thread_stalls[off];
    let wait = Wait::of(&stall.syscall_name, stall.fd, stall.syscall);
    if !matches!(wait, Wait::Multiplex | Wait::SocketReceive | Wait::SocketSend) {
        return 0.0;
    }
    let share = share_of(&outside.waits, facts.flows[part.flow].rec.pid, (begin, ns));
    if share >= 0.8 { share } else { 0.0 }
}
