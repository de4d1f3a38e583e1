//! The ledgers as the report prints them: shares by state, largest first, and the busiest flows and threads.
use parshall_evidence::{Account, AccountOf, TimeAccount, TimeShare};

use crate::judge::facts::{Facts, FlowFact, ThreadFact};
use crate::judge::ledger::{flow, thread};
use crate::sorting::StableSort as _;
use crate::stats::ratio;

/// How many flows and threads are printed one by one.
pub const EACH_MAX: usize = 16;

/// Both accounts.
pub fn time(facts: &Facts<'_>) -> TimeAccount {
    TimeAccount { flows: flows(facts), threads: threads(facts) }
}

fn flows(facts: &Facts<'_>) -> Account {
    let mut sums = [0.0; flow::State::N];
    for f in &facts.flows {
        sums.iter_mut().zip(f.ledger.ns).for_each(|(sum, ns)| *sum += ns);
    }
    let busy = |f: &FlowFact<'_>| f.ledger.wall_ns - f.ledger.of(flow::State::NothingToSend);
    let mut order: Vec<&FlowFact<'_>> = facts.flows.iter().collect();
    order.stable_sort_by(|a, b| busy(b).total_cmp(&busy(a)).then(a.rec.id.cmp(&b.rec.id)));
    let each = order.iter().take(EACH_MAX).map(|f| AccountOf {
        name: f.name.clone(),
        wall_ms: f.ledger.wall_ns / 1e6,
        states: shares(flow_states(&f.ledger.ns)),
    });
    Account {
        n: facts.flows.iter().map(|flow| flow.rec.connections()).sum(),
        wall_ms: sums.iter().sum::<f64>() / 1e6,
        states: shares(flow_states(&sums)),
        each: each.collect(),
    }
}

fn threads(facts: &Facts<'_>) -> Account {
    let mut sums = [0.0; thread::State::N];
    for t in &facts.threads {
        sums.iter_mut().zip(t.ledger.ns).for_each(|(sum, ns)| *sum += ns);
    }
    let mut order: Vec<&ThreadFact<'_>> = facts.threads.iter().collect();
    order.stable_sort_by(|a, b| b.ledger.not_idle().total_cmp(&a.ledger.not_idle()).then(a.rec.tid.cmp(&b.rec.tid)));
    let each = order.iter().take(EACH_MAX).map(|t| AccountOf {
        name: format!("tid {} {}", t.rec.tid, t.rec.comm).trim_end().to_string(),
        wall_ms: t.ledger.wall_ns / 1e6,
        states: shares(thread_states(&t.ledger.ns)),
    });
    Account {
        n: facts.threads.len() as u64,
        wall_ms: sums.iter().sum::<f64>() / 1e6,
        states: shares(thread_states(&sums)),
        each: each.collect(),
    }
}

fn flow_states(ns: &[f64; flow::State::N]) -> Vec<(&'static str, &'static str, f64)> {
    flow::State::ALL.iter().map(|s| (s.id(), s.label(), ns[*s as usize])).collect()
}

fn thread_states(ns: &[f64; thread::State::N]) -> Vec<(&'static str, &'static str, f64)> {
    thread::State::ALL.iter().map(|s| (s.id(), s.label(), ns[*s as usize])).collect()
}

fn shares(states: Vec<(&'static str, &'static str, f64)>) -> Vec<TimeShare> {
    let wall: f64 = states.iter().map(|s| s.2).sum();
    let mut list: Vec<TimeShare> = states
        .into_iter()
        .filter(|s| s.2 > 0.0)
        .map(|(id, label, ns)| TimeShare {
            state: id.to_string(),
            label: label.to_string(),
            ms: ns / 1e6,
            share: ratio(ns, wall),
        })
        .collect();
    list.stable_sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.state.cmp(&b.state)));
    list
}
