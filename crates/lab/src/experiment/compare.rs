//! `lab compare`: a run against an earlier one, on like hosts only.
//!
//! Runs of different days share no blocks, and hosts drift. So of A/B experiments the effects are compared, B against A in each run:
//! what changed for both cancels out. Of sweeps the values are compared as they are, each with an interval that holds for all of them.
use std::path::Path;
use std::process::ExitCode;

use parshall_core::experiment::LOOK_ALPHA;
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::stats::ranks::{Interval, RankSum};
use parshall_core::trial::signed;
use parshall_host::error::UserError;
use parshall_host::output;
use serde::{Deserialize, Serialize};

use super::analyse::{self, UNDECIDED, WORSE};
use super::file::{Experiment, Kind};
use super::metric::Better;
use super::results::{self, Run};
use crate::request::CompareRequest;
use crate::units::ReportFormat;

/// The format of the JSON document.
const COMPARE_SCHEMA: &str = "parshall.lab-compare/1";

/// A run against an earlier one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Comparison {
    schema: String,
    before: String,
    after: String,
    /// Some line is worse.
    worse: bool,
    /// Files that differ: programs, scripts.
    changed_files: Vec<String>,
    lines: Vec<Line>,
}

/// A compared value, with its change from the earlier run to the later one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Line {
    metric: String,
    /// `B against A`, or a value of the sweep.
    of: String,
    /// The ratio of later to earlier, less 1.
    change: f64,
    low: Option<f64>,
    high: Option<f64>,
    verdict: LineVerdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LineVerdict {
    Better,
    Worse,
    NoDifference,
    TooFewBlocks,
}

/// `lab compare`.
pub fn compare(request: &CompareRequest) -> anyhow::Result<ExitCode> {
    let (before, after) = match &request.after {
        Some(path) => (last(&request.before, 1)?, last(path, 1)?),
        None => (last(&request.before, 2)?, last(&request.before, 1)?),
    };
    let comparison = comparison(&before, &after)?;
    output::print(&match request.format {
        ReportFormat::Json => output::json(&comparison)?,
        ReportFormat::Text => text(&comparison),
        ReportFormat::Markdown => markdown(&comparison),
    })?;
    let undecided = comparison.lines.iter().all(|line| line.verdict == LineVerdict::TooFewBlocks);
    Ok(match (comparison.worse, undecided) {
        (true, _) => ExitCode::from(WORSE),
        (_, true) => ExitCode::from(UNDECIDED),
        _ => ExitCode::SUCCESS,
    })
}

/// The complete run that is the last one (1), or the one before it (2).
fn last(path: &Path, from_end: usize) -> Result<Run, UserError> {
    // A run begins without a file of results; a comparison does not.
    if let Err(error) = std::fs::metadata(path) {
        let what = format!("{} cannot be read: {error}", path.display());
        return Err(UserError::new(what, "give the path of a results file of `parshall lab ab` or `lab sweep`"));
    }
    let mut runs: Vec<Run> = results::read(path)?.into_iter().filter(|run| run.complete).collect();
    let wanted = runs.len().checked_sub(from_end).map(|at| runs.swap_remove(at));
    wanted.ok_or_else(|| {
        let what = format!("{} holds {} complete runs", path.display(), runs.len());
        UserError::new(what, "run the experiment to its end, twice for a comparison; or name a second file")
    })
}

fn comparison(before: &Run, after: &Run) -> Result<Comparison, UserError> {
    let refuse = |what: String| {
        Err(UserError::new(what, "compare runs of one experiment on one host, or on hosts set up alike"))
    };
    let (old, new) = (&before.head, &after.head);
    if let Some(difference) = old.manifest.host.differences(&new.manifest.host).into_iter().next() {
        return refuse(format!("the hosts of the two runs differ: {difference}"));
    }
    let experiments = [old, new].map(|head| Experiment::parse(&head.experiment, &head.text));
    let [one, two] = experiments;
    let (one, two) = (one?, two?);
    if (old.kind, old.duet) != (new.kind, new.duet)
        || one.variable != two.variable
        || one.stage.network != two.stage.network
    {
        return refuse(
            "the two runs are not of one experiment: the variable, the network or --duet differs".to_owned(),
        );
    }
    let lines = match old.kind {
        Kind::Ab => effects(&one, before, after),
        Kind::Sweep => levels(&one, before, after),
    };
    let same = |path: &&String| old.manifest.files.get(*path) == new.manifest.files.get(*path);
    let files: std::collections::BTreeSet<&String> =
        old.manifest.files.keys().chain(new.manifest.files.keys()).into_set();
    Ok(Comparison {
        schema: COMPARE_SCHEMA.to_owned(),
        before: old.run.clone(),
        after: new.run.clone(),
        worse: lines.iter().any(|line| line.verdict == LineVerdict::Worse),
        changed_files: files.into_iter().filter(|path| !same(path)).cloned().collect(),
        lines,
    })
}

/// Of each metric that is compared by ratio. The level of the intervals is divided by the number of lines.
fn effects(experiment: &Experiment, before: &Run, after: &Run) -> Vec<Line> {
    let (old, new) = (analyse::blocks(before), analyse::blocks(after));
    let metrics: Vec<_> = experiment.metrics.iter().filter(|m| m.is_ratio() && m.better != Better::Neither).collect();
    let alpha = LOOK_ALPHA / metrics.len().max(1) as f64;
    let line = |metric: &&super::metric::Metric| {
        let [old, new] = [&old, &new].map(|blocks| analyse::changes(metric, blocks));
        line(&metric.name, "B against A", metric.better, &old, &new, alpha)
    };
    metrics.iter().filter_map(line).collect()
}

/// Of the first metric, each value.
fn levels(experiment: &Experiment, before: &Run, after: &Run) -> Vec<Line> {
    let (metric, values) = (&experiment.metrics[0], &experiment.variable.values);
    let alpha = LOOK_ALPHA / values.len() as f64;
    let of = |run: &Run, index: usize| -> Vec<f64> {
        let passes = analyse::passes(&run.trials, values.len());
        passes.iter().filter_map(|pass| pass.get(index)?.metrics.get(&metric.name).map(|value| value.ln())).collect()
    };
    let each = values.iter().enumerate();
    each.filter_map(|(i, value)| {
        line(&metric.name, &value.to_string(), metric.better, &of(before, i), &of(after, i), alpha)
    })
    .collect()
}

fn line(metric: &str, of: &str, better: Better, before: &[f64], after: &[f64], alpha: f64) -> Option<Line> {
    let ranks = RankSum::new(before, after)?;
    let interval = ranks.interval(alpha);
    let rises = ranks.estimate() > 0.0;
    let verdict = match interval {
        None => LineVerdict::TooFewBlocks,
        Some(interval) if !interval.excludes_zero() => LineVerdict::NoDifference,
        Some(_) if rises == (better == Better::Higher) => LineVerdict::Better,
        Some(_) => LineVerdict::Worse,
    };
    let end = |of: fn(Interval) -> f64| interval.map(|interval| of(interval).exp_m1());
    Some(Line {
        metric: metric.to_owned(),
        of: of.to_owned(),
        change: ranks.estimate().exp_m1(),
        low: end(|interval| interval.low),
        high: end(|interval| interval.high),
        verdict,
    })
}

fn word(verdict: LineVerdict) -> &'static str {
    match verdict {
        LineVerdict::Better => "better",
        LineVerdict::Worse => "WORSE",
        LineVerdict::NoDifference => "no difference seen",
        LineVerdict::TooFewBlocks => "too few blocks",
    }
}

fn interval(line: &Line) -> String {
    match (line.low, line.high) {
        (Some(low), Some(high)) => format!("{} to {}", signed(low), signed(high)),
        _ => String::new(),
    }
}

fn text(comparison: &Comparison) -> String {
    let mut out = format!("run {} against {}\n", comparison.after, comparison.before);
    for line in &comparison.lines {
        let of = format!("{}, {}", output::clean(&line.metric), output::clean(&line.of));
        out += &format!("  {of:<32} {:>9}   {:<24} {}\n", signed(line.change), interval(line), word(line.verdict));
    }
    out.extend(comparison.changed_files.iter().map(|path| format!("  changed: {}\n", output::clean(path))));
    out
}

fn markdown(comparison: &Comparison) -> String {
    let mut out = format!(
        "Run {} against {}.\n\n| metric | of | change | interval | |\n|---|---|---|---|---|\n",
        comparison.after, comparison.before
    );
    for line in &comparison.lines {
        let of = output::clean(&line.of).replace('|', "\\|");
        out += &format!(
            "| {} | {of} | {} | {} | {} |\n",
            line.metric,
            signed(line.change),
            interval(line),
            word(line.verdict)
        );
    }
    out.extend(comparison.changed_files.iter().map(|path| format!("\nChanged: `{}`\n", output::clean(path))));
    out
}
