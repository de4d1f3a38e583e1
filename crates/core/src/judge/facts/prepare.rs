//! Prepares the evidence of a capture.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, OffCpu, Service};

use super::flow::{could_have_moved, flow_facts, note_passing_on};
use super::network::findings::Network;
use super::part::{Blame, Part};
use super::prepared::{Facts, throttled_periods};
use super::requests::Requests;
use super::thread::thread_facts;
use super::{blame, broadcast, network, pair, requests};
use crate::critical_path;
use crate::judge::waiting::Quiet;
use crate::sorting::IntoOrdered as _;

impl<'a> Facts<'a> {
    /// Prepares a capture and the services that were found in it.
    pub fn new(capture: &'a Capture, services: &'a [Service]) -> Facts<'a> {
        let mut flows = flow_facts(capture);
        pair::join(&mut flows);
        note_passing_on(&mut flows);
        let threads = thread_facts(capture, &flows);
        let mut by_tid = BTreeMap::new();
        let mut by_pid: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, thread) in threads.iter().enumerate() {
            by_tid.entry(thread.rec.tid).or_insert(index);
            by_pid.entry(thread.rec.pid).or_default().push(index);
        }
        let hidden_throttling = hidden_throttling(capture);
        let counters = capture.counters.as_ref();
        let mut facts = Facts {
            capture,
            figures: first_by(counters.map_or(&[][..], |c| &c.sockets), |figures| figures.flow),
            spaces: first_by(counters.map_or(&[][..], |c| &c.namespaces), |space| space.netns),
            local_ips: capture.flows.iter().map(|flow| flow.local.ip().to_canonical()).into_set(),
            flows,
            threads,
            parts: Vec::new(),
            requests: Requests::default(),
            quiet: Quiet::default(),
            clients: Vec::new(),
            network: Network::default(),
            raw_ns: BTreeMap::new(),
            hidden_throttling,
            by_tid,
            by_pid,
        };
        // The services, with how often each of them is asked, are set before the use of that time is decided.
        facts.requests.all = services;
        let mut raw = blame::parts(&facts);
        drop_unowed(&facts, &mut raw.parts);
        for part in &raw.parts {
            *facts.raw_ns.entry(part.blame).or_default() += part.ns;
        }
        let (mut parts, explained) = pair::resolve(&facts, raw);
        broadcast::drop_pauses(&facts, &mut parts);
        (facts.parts, facts.network) = network::refine(&facts, parts);
        facts.requests = Requests::new(capture, services, &facts.flows, &facts.parts);
        let waited = crate::judge::waiting::flows(capture, services);
        requests::supersede(&facts.requests, &facts.flows, &mut facts.parts, &waited);
        let mut supply = vec![0.0; facts.flows.len()];
        for part in facts.parts.iter().filter(|p| p.supply) {
            supply[part.flow] += part.ns;
        }
        for (i, flow) in facts.flows.iter_mut().enumerate() {
            flow.could_ns = could_have_moved(&flow.ledger, supply[i], explained[i]);
        }
        facts
    }
}

/// Drops waits for peers that owe nothing: nobody waits for what follows a message without an answer.
fn drop_unowed(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    let Some(timeline) = &facts.capture.timeline else { return };
    let waiting = parts.iter().filter(|part| part.blame == Blame::PeerThink).map(|part| part.flow).into_set();
    let unowed = waiting.into_iter().filter(|&at| critical_path::is_owed_nothing(timeline, facts.flows[at].rec.id));
    let unowed = unowed.into_set();
    parts.retain(|part| part.blame != Blame::PeerThink || !unowed.contains(&part.flow));
}

/// The records by a number; of those with the same one the first.
fn first_by<T>(records: &[T], number: impl Fn(&T) -> u64) -> BTreeMap<u64, &T> {
    let mut found = BTreeMap::new();
    for record in records {
        found.entry(number(record)).or_insert(record);
    }
    found
}

fn hidden_throttling(capture: &Capture) -> f64 {
    let seen = capture.threads.iter().any(|t| t.off_cpu.iter().any(|c| c.why == OffCpu::Throttled));
    let share = throttled_periods(capture);
    if seen || share < 0.3 { 0.0 } else { share }
}
