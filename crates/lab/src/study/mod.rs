//! A case that is made of comparisons: experiments on one setup that each change one thing, with the answer that is expected.
//!
//! `file` reads the case, `run` makes the experiments with [`crate::experiment`], and `text` shows their answers side by side.
mod file;
mod run;
mod text;

use std::time::Duration;

use parshall_core::experiment::Verdict;
use serde::Serialize;

use crate::experiment::{Experiment, Report, is_undecided};
use crate::recipe::{Expect as ExpectedCause, SubjectSpec};

pub use run::{check, run};

/// The format of a study's result.
pub const STUDY_SCHEMA: &str = "parshall.lab-study/1";

/// A checked case.
#[derive(Debug, Clone)]
pub struct Study {
    /// Its name: that of the file.
    pub id: String,
    /// One line.
    pub title: String,
    /// The question in a few sentences: the comparisons and their reason.
    pub question: String,
    /// Programs that must be installed.
    pub needs: Vec<String>,
    pub comparisons: Vec<Comparison>,
}

/// One experiment of a study.
#[derive(Debug, Clone)]
pub struct Comparison {
    pub name: String,
    pub experiment: Experiment,
    pub expect: Expect,
    pub diagnosis: Option<Diagnosis>,
}

/// The answer that an experiment gives on the machine for which the case was written, and why it does.
#[derive(Debug, Clone, PartialEq)]
pub struct Expect {
    pub answer: Expected,
    pub because: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    /// One of these verdicts about B.
    Verdicts(Vec<Verdict>),
    /// In a sweep: more gains nothing from a value on, or it always gains; it falls off, or it does not.
    Shape { knee: bool, collapse: bool },
}

/// The diagnosis that parshall itself makes of a variant while it is measured.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    /// The same experiment with a load that lasts for the observation.
    pub experiment: Experiment,
    /// The index of the variable's value.
    pub value: usize,
    pub subject: SubjectSpec,
    pub expect: ExpectedCause,
}

/// The load of a diagnosis lasts this long beside the observation: warm-up, attaching the probes, a margin.
pub const DIAGNOSIS_MARGIN: Duration = Duration::from_secs(3);

/// A comparison that has been made.
#[derive(Debug, Serialize)]
pub struct ComparisonResult<'a> {
    pub name: &'a str,
    pub expected: String,
    pub got: String,
    pub outcome: Outcome,
    pub because: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Diagnosed>,
    pub report: Report,
}

/// How an answer compares with the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Matched,
    /// This machine shows something else.
    Mismatched,
    /// The trials do not suffice for an answer.
    Undecided,
}

/// A diagnosis that has been made.
#[derive(Debug, Serialize)]
pub struct Diagnosed {
    /// `A` or `B`, or the value in a sweep.
    pub of: String,
    pub expected: String,
    pub got: String,
    pub matched: bool,
    pub report: parshall_evidence::Report,
}

impl Expected {
    /// Compares it with the answer of the experiment.
    pub fn compare(&self, report: &Report) -> Outcome {
        let same = match self {
            Self::Verdicts(verdicts) => report.ab.as_ref().is_some_and(|ab| verdicts.contains(&ab.verdict)),
            Self::Shape { knee, collapse } => report
                .curves
                .first()
                .is_some_and(|curve| curve.knee.is_some() == *knee && curve.collapse.is_some() == *collapse),
        };
        match (same, is_undecided(report)) {
            (true, _) => Outcome::Matched,
            (false, true) => Outcome::Undecided,
            (false, false) => Outcome::Mismatched,
        }
    }
}
