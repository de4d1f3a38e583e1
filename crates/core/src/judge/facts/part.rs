//! A piece of lost time.
use parshall_evidence::Release;

pub use crate::judge::evidence_type::Blame;
use crate::judge::ledger::flow::State;

/// A piece of lost time.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Index into [`Facts::flows`](super::Facts::flows).
    pub flow: usize,
    /// The party or the mechanism that it belongs to.
    pub blame: Blame,
    /// The state of the ledger it comes from.
    pub state: State,
    /// Lost time, scaled to the wall time of the flow.
    pub ns: f64,
    /// How many intervals (observed, not scaled).
    pub count: u64,
    /// Length of one interval on the clock, the mean when it stands for many.
    pub each_ns: f64,
    /// The event that ended it.
    pub release: Release,
    /// The responsible thread, 0 when unknown.
    pub tid: u32,
    /// Begin and length on the clock, when known.
    pub span: Option<(u64, u64)>,
    /// Index of the flow's stall in the capture.
    pub stall: Option<usize>,
    /// Index of the longest time off the CPU of the responsible thread within it.
    pub off: Option<usize>,
    /// It is time with nothing to send of a flow that should have been sending.
    pub supply: bool,
}
