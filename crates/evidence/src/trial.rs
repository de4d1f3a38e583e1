//! The result of a trial: what `parshall try` prints with `--format json`.
use serde::{Deserialize, Serialize};

use crate::subject::{Rung, Subject};

/// The format of a trial's result.
pub const TRIAL_SCHEMA: &str = "parshall.trial/1";

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    /// [`TRIAL_SCHEMA`].
    pub schema: String,
    /// The service that was measured.
    pub subject: Subject,
    /// The change.
    pub change: TriedChange,
    /// The answer in short.
    pub outcome: TrialOutcome,
    /// How the windows were measured; None when none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rung: Option<Rung>,
    /// Figures of the service without the change and with it. The first one decides.
    pub figures: Vec<ComparedFigure>,
    /// The windows, in the order of time.
    pub windows: Vec<TrialWindow>,
    /// How many places the change reached.
    pub places: PlaceCounts,
    /// The values that were reverted.
    pub reverted: Reverted,
    /// Limits of the answer, a sentence each.
    pub notes: Vec<String>,
}

/// The change of a trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedChange {
    /// As on the command line, such as `nodelay` or `quota=2`.
    pub name: String,
    /// The setting and its value, for people: `TCP_NODELAY on`.
    pub sets: String,
    /// The kind of place: `connection`, `thread`, `control group` or `network namespace`.
    pub on: String,
    /// Effects that reverting does not bring back, a sentence each.
    pub not_undone: Vec<String>,
    /// How to keep the change.
    pub keep: String,
}

/// The answer in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialOutcome {
    /// Whether it helped.
    pub status: TrialStatus,
    /// One sentence.
    pub summary: String,
}

/// Whether a change helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialStatus {
    /// The deciding figure is better with the change, and the interval leaves no doubt.
    Helped,
    /// It is worse, and the interval leaves no doubt.
    Worse,
    /// Neither can be said.
    NoDifference,
    /// The places had the value already: nothing was changed.
    InPlace,
    /// Too little moved, or too few windows were measured.
    InsufficientEvidence,
}

/// A figure without the change and with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedFigure {
    /// Its id: `time-per-request`, `requests`, `throughput`, `cpu-per-request` or `cpu-per-byte`.
    pub figure: String,
    /// SI unit of the two values: `ms`, `1/s`, `B/s`, `us` or `ns`.
    pub unit: String,
    /// A smaller value is the better one.
    pub lower_is_better: bool,
    /// Geometric mean of the windows without the change.
    pub without: f64,
    /// Geometric mean of the windows with it.
    pub with: f64,
    /// The difference as a share of `without`: -0.5 is half.
    pub change: f64,
    /// The 99 % interval of `change`.
    pub interval: (f64, f64),
    /// The smallest difference, as a share of `without`, that this trial would have shown with a chance of 80 %.
    pub detectable: f64,
}

/// One window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialWindow {
    /// The pair that it belongs to, from 1; 0 for the first look, which is in no pair.
    pub pair: u32,
    /// The change was in place.
    pub changed: bool,
    /// When it began, in seconds since the first one did.
    pub begin_s: f64,
    /// Its length.
    pub length_s: f64,
    /// Requests that were answered; 0 where they are not seen.
    pub requests: f64,
    /// Time in which requests were under way, summed over the connections.
    pub busy_ms: f64,
    /// Bytes that the connections carried, both directions together.
    pub bytes: u64,
    /// CPU time of the subject's processes.
    pub cpu_ms: f64,
    /// Segments with data sent, retransmitted ones included.
    pub data_segments: u64,
    /// Segments retransmitted.
    pub retransmitted: u64,
    /// Connections that moved data.
    pub connections: u64,
}

/// How many places a change reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceCounts {
    /// Places seen in the trial.
    pub seen: u64,
    /// Of these, those that were changed.
    pub changed: u64,
    /// Those that had the value before.
    pub in_place: u64,
    /// Those that appeared after the first change and were changed, too.
    pub late: u64,
    /// Those that could not be changed.
    pub refused: u64,
}

/// The values that were reverted at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reverted {
    /// Places with their old value again.
    pub restored: u64,
    /// Places that were gone by then.
    pub gone: u64,
    /// The values that could not be reverted, a sentence each.
    pub failed: Vec<String>,
}
