//! All that one observation collected: what `parshall-core` judges and what a saved case holds.
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::event::EventCounts;
use crate::flow::{FlowRecord, FlowStall};
use crate::followed::Followed;
use crate::log::Log;
use crate::origin::{Origin, StartedCommand};
use crate::sample::{CpuSample, Stack};
use crate::service::Service;
use crate::subject::{Rung, Subject};
use crate::thread::{ThreadRecord, ThreadStall};
use crate::timeline::Timeline;
use crate::uring::Uring;
use crate::usage::CpuTime;
use crate::waiting::Waiting;
use crate::zero::is_zero;

/// The format of a saved capture.
pub const CAPTURE_SCHEMA: &str = "parshall.capture/2";

/// Shorter intervals are counted in the cells and do not travel one by one.
pub const STALL_MIN_NS: u64 = 1_000_000;

/// One observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capture {
    /// [`CAPTURE_SCHEMA`].
    pub schema: String,
    /// The processes and sockets that it is about.
    pub subject: Subject,
    /// When, where and by what it was made; None in cases of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The command that `run` started; None for the other commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<StartedCommand>,
    /// The subject's processes that are relays of parshall's own. Command lines are not kept: they may hold secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_relays: Vec<OwnRelay>,
    /// Processes outside of the subject that were observed with it, in the order in which they were added. `flows` and `threads`
    /// are the subject's alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub followed: Vec<Followed>,
    /// The host on which it was taken.
    pub host: Host,
    /// Length of the observation, wall time.
    pub window_ns: u64,
    /// How the evidence was collected.
    pub rung: Rung,
    /// Gaps of this rung or this host, a sentence each.
    pub blind: Vec<String>,
    /// Evidence that this rung has elsewhere and not on this host, with the causes that cannot be ruled out without it. `blind` says it too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<Unseen>,
    /// When per-event probes ran.
    pub slices: Slices,
    /// The flows of the subject.
    pub flows: Vec<FlowRecord>,
    /// The threads of the subject.
    pub threads: Vec<ThreadRecord>,
    /// The events of threads and sockets; None on rungs that do not see single events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// The services of a case of `parshall.capture/1`, which kept them in place of the timeline that they were found in. Empty in
    /// all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Long intervals of flows.
    pub flow_stalls: Vec<FlowStall>,
    /// Long times off the CPU.
    pub thread_stalls: Vec<ThreadStall>,
    /// CPU samples.
    pub samples: Vec<CpuSample>,
    /// The stacks that stalls, samples and events refer to.
    pub stacks: Vec<Stack>,
    /// CPU quota of the subject's control groups.
    pub cgroups: Vec<CgroupCpu>,
    /// Connection-level events of the subject over the whole window.
    pub net: NetCounts,
    /// Counters and settings of the subject's network namespaces and processes; None in captures of versions that did not read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// Waits at the end of the window, and since when; None in captures of versions that did not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// The processor's counters for the subject's threads; None on hosts (and rungs) without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareCounts>,
    /// Events of the kernel that were asked for, in the order in which they were named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventCounts>,
    /// Requests to io_uring; None where nobody was seen to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uring: Option<Uring>,
    /// Log lines; None unless they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Log>,
    /// Cost and losses of the observation.
    pub probe: ProbeCost,
}

/// Something that was not observed because the kernel refused the program that does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// A sentence, with the kernel's reason.
    pub what: String,
    /// The ids of the causes.
    pub causes: Vec<String>,
}

/// The processor's counters while the subject's threads ran, over the whole window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// CPU cycles.
    pub cycles: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// Misses of the last-level cache.
    pub cache_misses: u64,
    /// Mispredicted branches.
    pub branch_misses: u64,
}

/// A relay of parshall's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnRelay {
    /// The process.
    pub pid: u32,
    /// The source of its settings.
    #[serde(flatten)]
    pub start: RelayStart,
}

/// How a relay was started, as far as a fix must say what to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RelayStart {
    /// With a configuration file, which holds everything else.
    File {
        /// Its path, as it was given.
        config: String,
    },
    /// With flags.
    Flags {
        /// `--engine`, or its default.
        engine: String,
        /// `--buffer`, or its default.
        buffer_bytes: u64,
    },
}

/// The host, as far as it matters to a verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release.
    pub kernel: String,
    /// Online CPUs.
    pub cpus: u32,
    /// Busy time of all CPUs within the window; None when unknown.
    pub busy_ns: Option<u64>,
    /// Of it, what the hypervisor gave to others while we had work.
    #[serde(default)]
    pub stolen_ns: u64,
    /// Context switches of all CPUs within the window; 0 when unknown.
    #[serde(default)]
    pub switches: u64,
    /// Each online CPU; empty when unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<CpuTime>,
}

/// When per-event probes ran. Counts and cells cover only this time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Slices {
    /// Number of slices; 1 that covers the window when the service is slow enough for full-time probes.
    pub count: u32,
    /// Their total length.
    pub observed_ns: u64,
    /// Events that the probes handled in them.
    pub events: u64,
    /// Begin and length of each slice.
    pub spans: Vec<(u64, u64)>,
}

/// CPU bandwidth control of a control group over the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupCpu {
    /// Its path in the hierarchy.
    pub path: String,
    /// The quota per period in microseconds; None when there is no limit.
    pub quota_us: Option<u64>,
    /// The period in microseconds.
    pub period_us: u64,
    /// Periods that elapsed within the window.
    pub periods: u64,
    /// Of these, those in which the group was throttled.
    pub throttled_periods: u64,
    /// Time for which the group (the sum over its CPUs) was throttled.
    pub throttled_ns: u64,
}

/// Connection-level events of the subject, over the whole window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCounts {
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Resets received.
    pub resets_received: u64,
    /// Of the resets sent, those on connections that the subject had opened itself, as far as it was seen to.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets_by_opener: u64,
    /// Of the resets received, those on connections that the subject had accepted: the opener sent them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets_from_opener: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections closed.
    pub closed: u64,
    /// Delayed-ACK timers that fired on the host within the slices: whose they are cannot be told when they fire.
    pub delack_timers: u64,
    /// Connections accepted, by the listener at which they arrived; empty on rungs that do not count them, and where there were
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<AtListener>,
    /// Segments that would have opened connections to the subject's listeners, and that a packet filter of this host dropped (netfilter: a
    /// rule, or a full table of connections); empty on rungs and kernels that do not count them, and where there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filtered_syns: Vec<AtListener>,
}

/// Events at a listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtListener {
    /// Inode of its network namespace.
    pub netns: u64,
    /// Its port.
    pub port: u16,
    /// Their number.
    pub count: u64,
}

/// Cost and losses of the observation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeCost {
    /// CPU time of the probes inside the kernel, estimated from a measured cost per event.
    pub kernel_cpu_ns: u64,
    /// CPU time of parshall itself during the window.
    pub own_cpu_ns: u64,
    /// Resident memory of parshall at the end, in bytes.
    pub rss_bytes: u64,
    /// Events that found the ring full.
    pub lost_events: u64,
    /// Events for which the kernel did not run the probe, since it was at work on the same CPU.
    #[serde(default)]
    pub missed_events: u64,
    /// Events that reached user space.
    pub events: u64,
    /// Flows and threads beyond the limits of the maps: not seen at all.
    pub untracked: u64,
    /// Time from start until the probes were attached.
    pub attach_ms: f64,
}

impl ProbeCost {
    /// The share of the events for which the ring was full.
    pub fn overflowed_share(&self) -> f64 {
        share(self.lost_events as f64, self.events as f64)
    }
}

impl Capture {
    /// The share of the events that never reached user space.
    pub fn lost_share(&self) -> f64 {
        let reached = (1.0 - self.probe.overflowed_share()) * (1.0 - self.missed_share());
        1.0 - reached
    }

    /// The share of the runs of probes that the kernel left out. Nothing tells whose events these were: probes also run for what is not the
    /// subject's, at least once for each context switch of the host.
    pub fn missed_share(&self) -> f64 {
        let observed = self.slices.observed_ns as f64 / self.window_ns.max(1) as f64;
        let switches = self.host.switches as f64 * observed.min(1.0);
        share(self.probe.missed_events as f64, switches.max(self.slices.events.max(self.probe.events) as f64))
    }
}

fn share(lost: f64, seen: f64) -> f64 {
    if lost > 0.0 { lost / (seen + lost) } else { 0.0 }
}
