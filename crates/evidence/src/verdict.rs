//! The verdict contract: what `run`, `attach` and `show` print with `--format json`.
use serde::{Deserialize, Serialize};

use crate::origin::{Origin, StartedCommand};
use crate::subject::{Rung, Subject};

/// The format of a report.
pub const VERDICT_SCHEMA: &str = "parshall.verdict/1";

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERDICT_SCHEMA`].
    pub schema: String,
    /// Whom it is about.
    pub subject: Subject,
    /// When, where and by what the observation was made; None in cases of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The command that `run` started; None for the other commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<StartedCommand>,
    /// Length of the observation.
    pub window_s: f64,
    /// How the evidence was collected.
    pub rung: Rung,
    /// What this rung or this host could not show.
    pub blind: Vec<String>,
    /// The answer.
    pub verdict: Verdict,
    /// Causes found, the one that owns most of the lost time first.
    pub findings: Vec<Finding>,
    /// Causes tested and rejected.
    pub ruled_out: Vec<RuledOut>,
    /// Causes that this observation could not test: nothing is known of them.
    #[serde(default)]
    pub not_tested: Vec<NotTested>,
    /// Where the time went.
    pub time: TimeAccount,
    /// What the observation cost and lost.
    pub probe: ProbeReport,
}

/// The answer in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What kind of answer.
    pub status: Status,
    /// The id of the first finding when `status` is `cause`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// How sure.
    pub confidence: Confidence,
    /// One sentence a person can act on.
    pub summary: String,
}

/// What kind of answer a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// One cause owns the lost time.
    Cause,
    /// No time worth naming was lost.
    Healthy,
    /// Time was lost, and no cause owns enough of it.
    NoDominantCause,
    /// Too little was seen to judge.
    InsufficientEvidence,
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Few or lost events, or inferred only.
    Low,
    /// The account is good, one link is inferred.
    Medium,
    /// Every link was seen.
    High,
}

/// A cause that holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Cause id.
    pub cause: String,
    /// Its title for people, such as `Small writes wait for a delayed ACK`.
    pub title: String,
    /// Share of the time in which the affected flows could have moved data, and did not because of this.
    pub share: f64,
    /// Wall time lost to it, averaged over the affected flows; never more than the window.
    pub lost_ms: f64,
    /// Share of all lost time that this cause accounts for.
    pub lost_share: f64,
    /// `share` and `lost_ms` were measured in slices and scaled to the window.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// How sure.
    pub confidence: Confidence,
    /// One sentence that names who waits for whom.
    pub summary: String,
    /// Where it was seen most.
    #[serde(rename = "where")]
    pub place: Place,
    /// The numbers it rests on.
    pub evidence: Vec<Evidence>,
    /// What to do.
    pub fix: Fix,
}

/// Where a cause was seen most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Flow, as `local->remote`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Control group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// How many flows are affected.
    #[serde(default)]
    pub flows: u64,
}

/// One number and what it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was counted or timed.
    pub what: String,
    /// How often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The count, or the value where there is no count, was measured in slices and scaled to the window.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// Median duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// 99th percentile of the duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// Another number, with its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// SI unit of `value`: `B`, `1` for ratios, `B/s`, `ms`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// A stack that shows it, innermost frame first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

/// What to do about a cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// In words.
    pub text: String,
    /// A `parshall try` that makes a change which may help, measures it and reverts it; None where there is none.
    #[serde(rename = "try", skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A diagnosis of the process at the other end, when the reason lies there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerCommand>,
}

/// A diagnosis of the process at the other end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCommand {
    /// The command to type, such as `parshall attach --pid 1200`.
    pub command: String,
    /// The address of the host on which to type it; None for this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A cause that was tested and does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuledOut {
    /// Cause id.
    pub cause: String,
    /// The number that says so.
    pub why: String,
}

/// A cause that could not be tested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTested {
    /// Cause id.
    pub cause: String,
    /// What was not seen.
    pub why: String,
}

/// Where the time went.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeAccount {
    /// Flow time by state.
    pub flows: Account,
    /// Thread time by state.
    pub threads: Account,
}

/// Time by state; the shares sum to 1 within 1 %.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// How many flows or threads.
    pub n: u64,
    /// Their wall time together.
    pub wall_ms: f64,
    /// By state, largest first.
    pub states: Vec<TimeShare>,
    /// The busiest ones, at most 16.
    pub each: Vec<AccountOf>,
}

/// The account of one flow or thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AccountOf {
    /// `127.0.0.1:1->127.0.0.1:2`, or `tid 4121 name`.
    pub name: String,
    /// Its wall time.
    pub wall_ms: f64,
    /// By state, largest first.
    pub states: Vec<TimeShare>,
}

/// Time in one state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeShare {
    /// State id.
    pub state: String,
    /// The state for people, such as `held by Nagle`.
    pub label: String,
    /// Milliseconds.
    pub ms: f64,
    /// Share of the wall time.
    pub share: f64,
}

/// What the observation cost and lost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// CPU time of the probes and of parshall itself.
    pub cpu_ms: f64,
    /// Of this, inside the kernel.
    pub kernel_cpu_ms: f64,
    /// Share of the window in which per-event probes ran.
    pub observed_share: f64,
    /// Events handled.
    pub events: u64,
    /// Events that found the ring full.
    pub lost_events: u64,
    /// Flows and threads beyond the limits.
    pub untracked: u64,
    /// Resident memory in MiB.
    pub rss_mib: f64,
    /// Time until the probes were attached.
    pub attach_ms: f64,
}
