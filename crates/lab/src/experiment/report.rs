//! The report of a run as data: the JSON format, and what the others are made of.
use parshall_core::experiment::{Conditions, Role, Verdict};
use serde::{Deserialize, Serialize};

use super::file::Kind;
use super::manifest::Manifest;
use super::metric::{Better, Compare};

/// The format of the JSON document.
pub const REPORT_SCHEMA: &str = "parshall.lab-experiment/1";

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub kind: Kind,
    pub title: String,
    /// The id of the run.
    pub run: String,
    /// It went to its end.
    pub complete: bool,
    pub variable: VariableReport,
    /// One sentence, or two.
    pub summary: String,
    /// Advice on what to do next; empty where the answer is clear.
    pub hint: String,
    /// In `lab ab` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ab: Option<AbReport>,
    /// In `lab sweep` only: a curve for each metric that has a direction, the first decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
    /// In the order in which they ran.
    pub trials: Vec<TrialReport>,
    /// Limits of the answer.
    pub notes: Vec<String>,
    /// The command of each value, for a shell.
    pub commands: Vec<CommandReport>,
    pub manifest: Manifest,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariableReport {
    pub name: String,
    /// In `lab ab` A and B.
    pub values: Vec<String>,
}

/// An A/B experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AbReport {
    pub verdict: Verdict,
    /// Blocks that count.
    pub blocks: usize,
    /// The numbers of blocks after which the answer was looked for.
    pub looks: Vec<u32>,
    /// Probability at most that a whole experiment sees a difference where there is none.
    pub error: f64,
    /// The interval of a single look holds the difference with this probability.
    pub confidence: f64,
    /// The smallest difference that matters: a share, or in the unit of the first metric.
    pub smallest: f64,
    /// When inconclusive: how many further blocks would find the smallest difference in four of five experiments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more_blocks: Option<u32>,
    /// The first decides.
    pub metrics: Vec<MetricReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricReport {
    pub name: String,
    pub unit: String,
    pub better: Better,
    pub compare: Compare,
    pub a: Summary,
    pub b: Summary,
    /// B against A.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<EffectReport>,
    /// The repeat of A against A.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<EffectReport>,
    /// The interval of the effect excludes zero, with all metrics taken together.
    pub differs: bool,
}

/// The values of a metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub median: f64,
    /// Quartiles.
    pub q1: f64,
    pub q3: f64,
    pub count: usize,
}

/// A difference: a share of A, or in the unit of the metric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EffectReport {
    /// The Hodges-Lehmann estimate.
    pub change: f64,
    /// Ends of the interval; None with too few blocks.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Two-sided probability of such ranks without a difference.
    pub p: f64,
    /// The difference that as many blocks find in four of five experiments.
    pub detectable: Option<f64>,
}

/// The curve of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub metric: String,
    pub unit: String,
    pub better: Better,
    pub passes: usize,
    pub points: Vec<Point>,
    /// The value with the best median.
    pub best: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<TurnReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collapse: Option<TurnReport>,
    /// The knee lies beyond the last value.
    pub rising_at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub value: String,
    /// The value as a number, for a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<f64>,
    pub median: f64,
    /// Ends of the 95 % interval.
    pub low: f64,
    pub high: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnReport {
    /// The first value behind the turn.
    pub at: String,
    /// First and last value of the 95 % interval.
    pub from: String,
    pub to: String,
    /// Network counters that step there, in 1/s.
    pub counters: Vec<CounterStep>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CounterStep {
    pub counter: String,
    pub before_per_s: f64,
    pub after_per_s: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    pub block: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    pub value: String,
    pub at: String,
    pub metrics: std::collections::BTreeMap<String, f64>,
    pub wall_s: f64,
    pub cpu_s: std::collections::BTreeMap<String, f64>,
    pub conditions: Conditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spoilt: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandReport {
    pub value: String,
    pub shell: String,
}
