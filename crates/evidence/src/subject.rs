//! The subject of an observation.
use serde::{Deserialize, Serialize};

/// The processes, ports and network namespaces that were observed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Process ids (thread group ids), as seen from the initial pid namespace of the observer.
    pub pids: Vec<u32>,
    /// Local ports the user asked for or that the subject listens on.
    pub ports: Vec<u16>,
    /// Inode numbers of the network namespaces in which the subject's sockets live.
    pub netns: Vec<u64>,
    /// Inode number of the network namespace that the observer ran in: commands for another one need `--netns`. 0 when unknown.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub observer_netns: u64,
    /// Command names of `pids`, in the same order; for people only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comms: Vec<String>,
}

fn is_unknown(netns: &u64) -> bool {
    *netns == 0
}

/// How evidence was collected; each rung sees less than the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// SOCK_DIAG and /proc, sampled; no BPF.
    Procfs,
    /// Classic tracepoints for the threads, SOCK_DIAG samples for the flows.
    Tracepoint,
    /// tp_btf tracepoints and BPF iterators: every event of the slices.
    Btf,
}

impl Rung {
    /// The name used on the command line and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Rung::Btf => "btf",
            Rung::Tracepoint => "tracepoint",
            Rung::Procfs => "procfs",
        }
    }
}
