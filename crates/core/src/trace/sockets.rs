//! Lanes of sockets: the times in which a flow moved nothing.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, FlowId, FlowRecord, FlowStall, FlowState, Release};

use super::lane::{Draft, Of, Span, Texts};
use super::state::State;
use crate::judge::ledger::flow_rules::serves;
use crate::sorting::{IntoOrdered as _, StableSort as _};
use crate::units::{bytes, plural};

/// The flow that waited longest comes first.
pub fn lanes(capture: &Capture, texts: &mut Texts) -> Vec<Draft> {
    let records: BTreeMap<FlowId, &FlowRecord> = capture.flows.iter().map(|flow| (flow.id, flow)).into_map();
    let mut by_flow: BTreeMap<FlowId, Vec<&FlowStall>> = BTreeMap::new();
    for stall in &capture.flow_stalls {
        by_flow.entry(stall.flow).or_default().push(stall);
    }
    let mut lanes: Vec<Draft> = Vec::new();
    for (id, mut stalls) in by_flow {
        stalls.stable_sort_by_key(|stall| stall.begin_ns);
        let record = records.get(&id);
        let spans: Vec<(Span, u32)> = stalls.iter().map(|stall| span(stall, record.copied(), texts)).collect();
        let name = record.map_or_else(|| format!("socket {id}"), |f| format!("{} → {}", f.local, f.remote));
        lanes.push(Draft { of: Of::Socket(id), group: "sockets".to_owned(), name, spans });
    }
    lanes.sort_by_cached_key(|lane| (std::cmp::Reverse(lane.waits_ns()), lane.of));
    lanes
}

/// The state, in the words of who waits in it: the end that asked, or the one that reads a stream.
fn state(stall: &FlowStall, flow: Option<&FlowRecord>) -> State {
    match (stall.state, flow) {
        (FlowState::IdleAfterSend, Some(flow)) if stall.release == Release::AppSend && flow.calls.recvs == 0 => {
            State::Supply
        }
        (FlowState::IdleAfterSend, Some(flow)) if !serves(flow) => State::Reply,
        (state, _) => State::Flow(state),
    }
}

/// With what lay in the socket at its end.
fn span(stall: &FlowStall, flow: Option<&FlowRecord>, texts: &mut Texts) -> (Span, u32) {
    let held = [
        (stall.unsent_bytes > 0).then(|| format!("{} unsent", bytes(f64::from(stall.unsent_bytes)))),
        (stall.packets_out > 0)
            .then(|| format!("{} in flight", plural(u64::from(stall.packets_out), "segment", "segments"))),
        (stall.unread_bytes > 0).then(|| format!("{} unread", bytes(f64::from(stall.unread_bytes)))),
    ];
    let text = texts.id(held.into_iter().flatten().collect::<Vec<_>>().join(", "));
    let end_ns = stall.begin_ns.saturating_add(stall.ns);
    (Span { begin_ns: stall.begin_ns, end_ns, state: state(stall, flow), text, ended_by: None, stack: None }, stall.tid)
}
