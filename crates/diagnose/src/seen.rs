//! Evidence of a rung in one window, before anything is added that all rungs have in common.
use parshall_evidence::{
    CgroupCpu, CpuSample, FlowRecord, FlowStall, Followed, NetCounts, Rung, Slices, Subject, ThreadRecord, ThreadStall,
    Timeline, Unseen,
};
use parshall_host::symbols::Stacks;

/// The part of a capture that a rung makes. Parts that it does not have stay as in [`Seen::nothing`].
pub struct Seen {
    pub rung: Rung,
    pub window_ns: u64,
    /// When the window began, by the monotonic clock; 0 on rungs without probes.
    pub begin_ns: u64,
    pub subject: Subject,
    pub followed: Vec<Followed>,
    pub blind: Vec<String>,
    pub unseen: Vec<Unseen>,
    pub slices: Slices,
    pub flows: Vec<FlowRecord>,
    pub threads: Vec<ThreadRecord>,
    pub timeline: Option<Timeline>,
    pub flow_stalls: Vec<FlowStall>,
    pub thread_stalls: Vec<ThreadStall>,
    /// Those of followed processes. They are not part of the capture, but what waited for these processes may lead to their stacks.
    pub followed_stalls: Vec<ThreadStall>,
    pub samples: Vec<CpuSample>,
    /// The stacks that the others refer to, without names; None where the rung has none.
    pub stacks: Option<Stacks>,
    pub cgroups: Vec<CgroupCpu>,
    pub net: NetCounts,
    pub cost: Cost,
}

/// Cost and losses of a rung's probes in a window; see `parshall_evidence::ProbeCost`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub kernel_cpu_ns: u64,
    pub lost_events: u64,
    pub missed_events: u64,
    pub events: u64,
    pub untracked: u64,
}

impl Seen {
    /// A window in which nothing was seen.
    pub fn nothing(rung: Rung) -> Self {
        Self {
            rung,
            window_ns: 0,
            begin_ns: 0,
            subject: Subject::default(),
            followed: Vec::new(),
            blind: Vec::new(),
            unseen: Vec::new(),
            slices: Slices::default(),
            flows: Vec::new(),
            threads: Vec::new(),
            timeline: None,
            flow_stalls: Vec::new(),
            thread_stalls: Vec::new(),
            followed_stalls: Vec::new(),
            samples: Vec::new(),
            stacks: None,
            cgroups: Vec::new(),
            net: NetCounts::default(),
            cost: Cost::default(),
        }
    }
}
