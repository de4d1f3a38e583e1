//! The verdict contract: what `run`, `attach` and `show` print with `--format json`.
use serde::{Deserialize, Serialize};

use crate::event::EventReport;
use crate::log::Log;
use crate::origin::{Origin, StartedCommand};
use crate::subject::{Rung, Subject};
use crate::uring::UringReport;
use crate::usage::{CallReport, CpuReport};
use crate::zero::{is_zero, is_zero_share};

/// The format of a report.
pub const VERDICT_SCHEMA: &str = "parshall.verdict/1";

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERDICT_SCHEMA`].
    pub schema: String,
    /// The processes and sockets that it is about.
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
    /// Gaps of this rung or this host.
    pub blind: Vec<String>,
    /// The answer.
    pub verdict: Verdict,
    /// The service that the report is about; None where none was seen of one that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceReport>,
    /// All services of the subject, the one that lost most time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceReport>,
    /// The way from the service to what its requests wait for, process by process; None where the verdict names no such cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Chain>,
    /// Causes found, the one that owns most of the lost time first.
    pub findings: Vec<Finding>,
    /// Causes tested and rejected.
    pub ruled_out: Vec<RuledOut>,
    /// Causes that this observation could not test: nothing is known of them.
    #[serde(default)]
    pub not_tested: Vec<NotTested>,
    /// The accounts of the observed time.
    pub time: TimeAccount,
    /// The system calls of the subject, those first that took most CPU time; empty on rungs that do not see them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallReport>,
    /// The host's CPUs; empty when unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<CpuReport>,
    /// Events of the kernel that were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventReport>,
    /// Requests to io_uring; None where nobody was seen to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uring: Option<UringReport>,
    /// Log lines; None unless they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Log>,
    /// Cost and losses of the observation.
    pub probe: ProbeReport,
}

/// The answer in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The kind of answer.
    pub status: Status,
    /// The id of the first finding when `status` is `cause`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// How sure.
    pub confidence: Confidence,
    /// Why no surer: empty where the confidence is high.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    /// One sentence a person can act on.
    pub summary: String,
}

/// A link of the argument for a verdict that was not seen, or that another cause would explain as well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Its id, such as `end` or `rival`.
    pub link: String,
    /// The missing evidence, as a phrase.
    pub why: String,
}

/// The kind of answer that a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// One cause owns the lost time.
    Cause,
    /// No time worth naming was lost.
    Healthy,
    /// No time worth naming was lost, and a resource is full: more requests would wait for it.
    AtCapacity,
    /// Time was lost, and no cause owns enough of it.
    NoDominantCause,
    /// Too little was seen to judge.
    InsufficientEvidence,
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Two links or more were not seen, or many events were lost.
    Low,
    /// One link was not seen.
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
    /// How much of `share_of` it takes.
    pub share: f64,
    /// The whole that `share` is a share of.
    #[serde(default)]
    pub share_of: ShareOf,
    /// Wall time lost to it, averaged over the affected flows, or over the requests where `place.requests` is above 0; never
    /// more than the window.
    pub lost_ms: f64,
    /// Share of all lost time that this cause accounts for.
    pub lost_share: f64,
    /// `share` and `lost_ms` were measured in slices and scaled to the window.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// It is about the slowest requests only, and `share` is one of their time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tail: bool,
    /// How sure.
    pub confidence: Confidence,
    /// Why no surer: empty where the confidence is high.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    /// One sentence that names who waits for whom.
    pub summary: String,
    /// The place at which it was seen most.
    #[serde(rename = "where")]
    pub place: Place,
    /// The way from the service to this cause, thread by thread; empty where it was found in flows or threads alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<ChainHop>,
    /// The gain that its removal would give, by the account; None where the account does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// The numbers it rests on.
    pub evidence: Vec<Evidence>,
    /// The remedy.
    pub fix: Fix,
}

/// The gain that the removal of a cause would give. It is predicted and not measured: nothing else is expected to become the limit instead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Mean time of an affected request now; of the slow ones, where the finding is about these.
    pub now_ms: f64,
    /// Its mean time without the cause, and the queue behind it: the least and the most, which is that after the smallest change.
    pub without_ms: (f64, f64),
}

/// The whole that the share of a finding is a share of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareOf {
    /// The time in which the affected flows could have moved data.
    #[default]
    FlowTime,
    /// The time of the requests of the affected services.
    RequestTime,
    /// The time in which the affected threads could have worked.
    ThreadTime,
    /// The connections that were opened or asked for.
    Connections,
    /// The datagrams that arrived.
    Datagrams,
}

/// The place at which a cause was seen most.
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
    /// How many requests are affected, in the observed time; 0 where the cause was found in flows or threads.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requests: u64,
}

/// A service in short: its requests and where their time went.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its port.
    pub port: u16,
    /// Its address and port.
    pub address: String,
    /// `tcp` or `udp`.
    pub transport: String,
    /// The process that answered most requests; empty for a service outside of this host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// The processes that answered, the one with most requests first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
    /// The subject is its client, and the service was not observed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outbound: bool,
    /// It was found by following a wait of a service that was asked about.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub followed: bool,
    /// Answered requests a second, in the observed time.
    pub requests_per_s: f64,
    /// Median time from the arrival of a request to the beginning of its reply; None where what was seen does not tell: nothing was
    /// answered, or requests are longer than the slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// 99th percentile of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// Its mean, by Little's law: outstanding requests divided by their rate. None where nothing was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// The rate and the times were measured in slices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// Mean number of requests that had arrived and had no reply yet.
    pub outstanding: f64,
    /// Requests that had no reply when the window ended.
    pub unanswered: u64,
    /// For how long the longest of them had waited by then.
    pub unanswered_longest_ms: f64,
    /// Requests whose connection closed before they had a reply.
    #[serde(default)]
    pub abandoned: u64,
    /// Connections on which several requests were under way while nothing showed which reply was whose.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overlapping: u64,
    /// The time of the requests and of their replies, by state.
    pub time: RequestTime,
    /// The slowest requests; None where too few were seen to tell these from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailReport>,
}

/// The slowest requests of a service: at most the slowest 5 %, or the slowest ten where these are more.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TailReport {
    /// A request belongs to them from this time on.
    pub from_ms: f64,
    /// How many they are, in the observed time.
    pub requests: u64,
    /// Of all requests, the share that they are.
    pub share: f64,
    /// Mean time that they took, as far as they were seen.
    pub mean_ms: f64,
    /// They take much longer than the typical request: the 99th percentile is ten times the median and 2 ms at least, or they wait long enough for a cause.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub notable: bool,
    /// Their time by use, the largest share first; `work` is the work that they asked for themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub time: Vec<TimeShare>,
    /// The one that most of them waited for: a program on their CPU, the client of another request, the holder of a lock, a server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub behind: String,
    /// The cause that they wait for, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// Shares of the time from the arrival of requests until their replies were sent; they sum to 1, or are all 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestTime {
    /// The connection waited for accept().
    pub accept_queue: f64,
    /// The request lay in the socket until a thread read it.
    pub unread: f64,
    /// Its begin had been read, and its reader slept until the client sent more.
    #[serde(default)]
    pub incomplete: f64,
    /// It had been read, and its reply had not begun.
    pub working: f64,
    /// The time of the service's threads by use, the largest share first. Shares are of the whole time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<TimeShare>,
    /// The reply was written and waited in the socket: held by Nagle's algorithm or a cork, or for the peer's window, the
    /// congestion window, pacing, the local qdisc or a retransmission.
    pub reply_unsent: f64,
}

/// The way from a service to what its requests wait for: a hop for each process, and the leaf.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// From the service inwards, neighbouring threads of one process as one hop; the last one is the leaf's process.
    pub hops: Vec<ChainHop>,
    /// Its last link.
    pub leaf: ChainLeaf,
}

/// A process or thread on the way, and what it waits for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainHop {
    /// Name of the process; empty when it is not known.
    pub process: String,
    /// Its id, 0 when it is not known. Where several processes did the same, the one with most of the time.
    pub pid: u32,
    /// All processes that did the same, `pid` first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
    /// Name of the thread.
    pub thread: String,
    /// Its id, 0 when it is not known.
    pub tid: u32,
    /// How many threads did the same.
    pub threads: u64,
    /// Of how many: processes that serve there where `pids` has several, serving threads otherwise; 0 when it is not known.
    pub of: u64,
    /// The object of its wait: the name of the next hop's process, or a resource such as `disk` or `timer`.
    pub waits_on: String,
    /// Its action or wait, in words.
    pub text: String,
    /// Share of the requests' time that goes through it.
    pub share: f64,
    /// Its stack in this wait, innermost frame first; kernel frames end with `[k]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

/// The end of a chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainLeaf {
    /// Name of the process.
    pub process: String,
    /// Its id, 0 when it is not known.
    pub pid: u32,
    /// Name of the thread.
    pub thread: String,
    /// Its id, 0 when it is not known.
    pub tid: u32,
    /// The cause that it is: the verdict's.
    pub cause: String,
    /// The object of the leaf's wait was seen; otherwise the chain goes on where the observation did not reach.
    pub seen: bool,
}

/// One number and what it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The name of the figure.
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
    /// Mean duration; None where nothing was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// The longest duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<f64>,
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

/// The remedy of a cause.
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RuledOut {
    /// Cause id.
    pub cause: String,
    /// The figure that speaks against it most.
    #[serde(flatten)]
    pub first: Figure,
    /// Further figures that belong to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Figure>,
    /// Anything was seen of it; otherwise each figure is 0.
    #[serde(default)]
    pub seen: bool,
    /// Why what was seen is not the cause, as a phrase; None where nothing was seen, or the figures say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// The other fields as a sentence for people.
    pub why: String,
}

/// A number that was measured, and what it is a number of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number.
    #[serde(default)]
    pub figure: f64,
    /// Its unit: `1` for a share, `ms`, `B`, or what was counted, such as `segments`.
    #[serde(default)]
    pub unit: String,
    /// The number of all of them, in the same unit; None where that is not known, or the figure is no part of anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<f64>,
    /// The cause needs at least this much, in the same unit; None where no limit decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// It was measured in slices and scaled to the window.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// The object of the figure, as the phrase that follows number and unit: `retransmitted`, `of the flows' time held by Nagle`.
    #[serde(default)]
    pub what: String,
}

/// A cause that could not be tested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTested {
    /// Cause id.
    pub cause: String,
    /// The missing evidence.
    pub why: String,
}

/// The accounts of the observed time.
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

/// Cost and losses of the observation.
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
    /// Events for which the kernel did not run the probe, since it was at work on the same CPU.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed_events: u64,
    /// Their share of all runs of probes, those for other programs of the host included.
    #[serde(default, skip_serializing_if = "is_zero_share")]
    pub missed_share: f64,
    /// Flows and threads beyond the limits.
    pub untracked: u64,
    /// Resident memory in MiB.
    pub rss_mib: f64,
    /// Time until the probes were attached.
    pub attach_ms: f64,
}
