//! Lost time that is known as a sum.
use crate::judge::facts::part::{Blame, Part};
use crate::judge::ledger::flow::State;

/// A piece of lost time that stands for all intervals of a flow in one state: `ns` is scaled to the flow's wall time, by `scale`, and `count` is
/// what was observed.
pub fn whole(flow: usize, blame: Blame, state: State, (ns, scale): (f64, f64), count: u64) -> Part {
    Part {
        flow,
        blame,
        state,
        ns,
        count: count.max(1),
        each_ns: crate::stats::ratio(ns, scale.max(1.0) * count.max(1) as f64),
        release: parshall_evidence::Release::RxAck,
        tid: 0,
        span: None,
        stall: None,
        off: None,
        supply: state == State::NothingToSend,
    }
}
