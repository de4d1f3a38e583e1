//! From the results of a run to its report. Everything comes from the file of results, so an old run gives the same report again.
use std::collections::BTreeMap;

use parshall_core::experiment::sweep::{self, SweepRule, TurningPoint};
use parshall_core::experiment::{Answer, Effect, LOOK_ALPHA, Role, Rule, Verdict, family, judge, looks};
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::stats::quantile;
use parshall_core::stats::ranks::Interval;
use parshall_core::values;

use super::file::{Experiment, Kind};
use super::metric::{Better, Metric};
use super::report::{
    AbReport, CommandReport, CounterStep, Curve, EffectReport, MetricReport, Point, REPORT_SCHEMA, Report, Summary,
    TrialReport, TurnReport, VariableReport,
};
use super::results::{Run, TrialRecord};
use super::words;

/// Exit code: B is worse than A, or a later run worse than an earlier one.
pub const WORSE: u8 = 3;
/// Exit code: there is no answer.
pub const UNDECIDED: u8 = 4;

/// The probability that [`looks`] leave for a wrong difference.
const ERROR: f64 = 0.05;
/// Counters named at a turn.
const STEPS: usize = 5;
/// CPUs that are busy for more of the time are full.
const FULL: f64 = 0.95;
/// CPU time for each s that a thread uses which never waits.
const ONE_CPU: std::ops::RangeInclusive<f64> = 0.95..=1.02;

/// The trials of a block that counts.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    pub a: &'a TrialRecord,
    pub b: &'a TrialRecord,
    pub control: &'a TrialRecord,
    /// The trial that the control is compared with: A, or the one that ran beside it.
    pub beside: &'a TrialRecord,
}

impl<'a> Block<'a> {
    fn of(trials: BTreeMap<Role, &'a TrialRecord>, duet: bool) -> Option<Self> {
        let of = |role| trials.get(&role).copied();
        let a = of(Role::A)?;
        let beside = if duet { of(Role::Beside)? } else { a };
        Some(Self { a, b: of(Role::B)?, control: of(Role::Control)?, beside })
    }
}

/// The blocks of which all trials are there and none is spoilt.
pub fn blocks(run: &Run) -> Vec<Block<'_>> {
    let mut by_block: BTreeMap<u32, BTreeMap<Role, &TrialRecord>> = BTreeMap::new();
    for trial in run.trials.iter().filter(|trial| trial.spoilt.is_none()) {
        if let Some(role) = trial.role {
            by_block.entry(trial.block).or_default().insert(role, trial);
        }
    }
    by_block.into_values().filter_map(|trials| Block::of(trials, run.head.duet)).collect()
}

/// The passes in which every value has a trial that counts: for each value its last one.
pub fn passes(trials: &[TrialRecord], values: usize) -> Vec<Vec<&TrialRecord>> {
    let mut by_pass: BTreeMap<u32, BTreeMap<usize, &TrialRecord>> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| trial.spoilt.is_none()) {
        by_pass.entry(trial.block).or_default().insert(trial.index, trial);
    }
    by_pass.into_values().filter(|pass| pass.len() == values).map(|pass| pass.into_values().collect()).collect()
}

/// Asks for the answer of the blocks so far.
pub fn answer(experiment: &Experiment, blocks: &[Block<'_>], last: bool) -> Option<Answer> {
    let metric = &experiment.metrics[0];
    judge(&changes(metric, blocks), &repeats(metric, blocks), rule(experiment), last)
}

fn rule(experiment: &Experiment) -> Rule {
    let metric = &experiment.metrics[0];
    let smallest = if metric.is_ratio() { experiment.smallest.ln_1p() } else { experiment.smallest };
    Rule { lower_is_better: metric.better == Better::Lower, smallest }
}

/// Differences of B from A, of the same block.
pub fn changes(metric: &Metric, blocks: &[Block<'_>]) -> Vec<f64> {
    blocks.iter().filter_map(|block| difference(metric, block.b, block.a)).collect()
}

/// Differences of the repeat of A from A.
fn repeats(metric: &Metric, blocks: &[Block<'_>]) -> Vec<f64> {
    blocks.iter().filter_map(|block| difference(metric, block.control, block.beside)).collect()
}

fn difference(metric: &Metric, of: &TrialRecord, from: &TrialRecord) -> Option<f64> {
    let value = |trial: &TrialRecord| {
        let value = trial.metrics.get(&metric.name).copied()?;
        Some(if metric.is_ratio() { value.ln() } else { value })
    };
    Some(value(of)? - value(from)?)
}

/// The report of a run.
pub fn report(experiment: &Experiment, run: &Run) -> Report {
    let mut report = Report {
        schema: REPORT_SCHEMA.to_owned(),
        kind: run.head.kind,
        title: experiment.title.clone(),
        run: run.head.run.clone(),
        complete: run.complete,
        variable: VariableReport {
            name: experiment.variable.name.clone(),
            values: experiment.variable.values.iter().map(ToString::to_string).collect(),
        },
        summary: String::new(),
        hint: String::new(),
        ab: None,
        curves: Vec::new(),
        trials: run.trials.iter().map(trial_report).collect(),
        notes: notes(run),
        commands: commands(experiment),
        manifest: run.head.manifest.clone(),
    };
    match run.head.kind {
        Kind::Ab => report.ab = ab(experiment, run),
        Kind::Sweep => report.curves = curves(experiment, run),
    }
    (report.summary, report.hint) = words::summary(&report);
    report
}

fn ab(experiment: &Experiment, run: &Run) -> Option<AbReport> {
    let blocks = blocks(run);
    let answer = answer(experiment, &blocks, true)?;
    // The first metric decides alone; the others share one more probability of an error, and the repeats of A another.
    let others: Vec<Vec<f64>> = experiment.metrics[1..].iter().map(|metric| changes(metric, &blocks)).collect();
    let controls: Vec<Vec<f64>> = experiment.metrics[1..].iter().map(|metric| repeats(metric, &blocks)).collect();
    let effects = std::iter::once(Some(answer.effect.clone())).chain(family(&others, LOOK_ALPHA));
    let controls = std::iter::once(Some(answer.control.clone())).chain(family(&controls, LOOK_ALPHA));
    let metric = |(metric, (effect, control)): (&Metric, (Option<Effect>, Option<Effect>))| MetricReport {
        name: metric.name.clone(),
        unit: metric.unit.clone(),
        better: metric.better,
        compare: metric.compare,
        a: summary(metric, blocks.iter().flat_map(|block| [block.a, block.control])),
        b: summary(metric, blocks.iter().map(|block| block.b)),
        differs: effect.as_ref().and_then(|effect| effect.interval).is_some_and(Interval::excludes_zero),
        effect: effect.map(|effect| effect_report(metric, &effect)),
        control: control.map(|control| effect_report(metric, &control)),
    };
    Some(AbReport {
        verdict: answer.verdict,
        blocks: blocks.len(),
        looks: looks(run.head.most),
        error: ERROR,
        confidence: 1.0 - LOOK_ALPHA,
        smallest: experiment.smallest,
        more_blocks: answer.more_blocks,
        metrics: experiment.metrics.iter().zip(effects.zip(controls)).map(metric).collect(),
    })
}

fn summary<'a>(metric: &Metric, trials: impl Iterator<Item = &'a TrialRecord>) -> Summary {
    let values: Vec<f64> = trials.filter_map(|trial| trial.metrics.get(&metric.name).copied()).collect();
    let at = |q: f64| quantile(&values, q).unwrap_or(f64::NAN);
    Summary { median: at(0.5), q1: at(0.25), q3: at(0.75), count: values.len() }
}

fn effect_report(metric: &Metric, effect: &Effect) -> EffectReport {
    let shown = |value: f64| if metric.is_ratio() { value.exp_m1() } else { value };
    EffectReport {
        change: shown(effect.estimate),
        low: effect.interval.map(|interval| shown(interval.low)),
        high: effect.interval.map(|interval| shown(interval.high)),
        p: effect.p,
        detectable: effect.detectable.map(shown),
    }
}

fn curves(experiment: &Experiment, run: &Run) -> Vec<Curve> {
    let values = &experiment.variable.values;
    let passes = passes(&run.trials, values.len());
    let counters = counter_rates(&passes);
    let names: Vec<String> = values.iter().map(ToString::to_string).collect();
    let directed = experiment.metrics.iter().filter(|metric| metric.better != Better::Neither && metric.is_ratio());
    let curve = |metric: &Metric| {
        let of = |pass: &Vec<&TrialRecord>| pass.iter().map(|trial| trial.metrics.get(&metric.name).copied()).collect();
        let table: Vec<Vec<f64>> = passes.iter().map(of).collect::<Option<_>>()?;
        let lower_is_better = metric.better == Better::Lower;
        let rule = SweepRule { lower_is_better, knee: experiment.knee, collapse: experiment.collapse };
        let shape = sweep::shape(&table, rule, run.head.seed)?;
        let turn = |turn: TurningPoint| TurnReport {
            at: names[turn.at].clone(),
            from: names[turn.from].clone(),
            to: names[turn.to].clone(),
            counters: sweep::steps(&counters, turn.at, STEPS)
                .into_iter()
                .map(|step| CounterStep { counter: step.counter, before_per_s: step.before, after_per_s: step.after })
                .collect(),
        };
        let point = |(name, level): (&String, &sweep::Level)| Point {
            value: name.clone(),
            number: number(name),
            median: level.median,
            low: level.low,
            high: level.high,
        };
        Some(Curve {
            metric: metric.name.clone(),
            unit: metric.unit.clone(),
            better: metric.better,
            passes: passes.len(),
            points: names.iter().zip(&shape.levels).map(point).collect(),
            best: names[shape.best].clone(),
            knee: shape.knee.map(turn),
            collapse: shape.collapse.map(turn),
            rising_at_end: shape.rising_at_end,
        })
    };
    directed.filter_map(curve).collect()
}

/// A number, also with a unit of size.
fn number(text: &str) -> Option<f64> {
    text.parse()
        .ok()
        .or_else(|| values::size(text).ok().map(|bytes| bytes as f64))
        .filter(|number: &f64| number.is_finite())
}

/// Every counter that any trial saw, in 1/s, by pass and value.
fn counter_rates(passes: &[Vec<&TrialRecord>]) -> BTreeMap<String, Vec<Vec<f64>>> {
    let names: std::collections::BTreeSet<&String> =
        passes.iter().flatten().flat_map(|trial| trial.counters.keys()).into_set();
    let rate = |trial: &TrialRecord, name: &String| {
        trial.counters.get(name).copied().unwrap_or(0) as f64 / trial.wall_s.max(1e-9)
    };
    let table =
        |name: &String| passes.iter().map(|pass| pass.iter().map(|trial| rate(trial, name)).collect()).collect();
    names.into_iter().map(|name| (name.clone(), table(name))).into_map()
}

fn trial_report(trial: &TrialRecord) -> TrialReport {
    TrialReport {
        block: trial.block,
        role: trial.role,
        value: trial.value.clone(),
        at: trial.at.clone(),
        metrics: trial.metrics.clone(),
        wall_s: trial.wall_s,
        cpu_s: trial.cpu_s.clone(),
        conditions: trial.conditions,
        spoilt: trial.spoilt.clone(),
    }
}

fn notes(run: &Run) -> Vec<String> {
    let mut notes = Vec::new();
    if run.head.duet {
        notes.push("two trials ran at a time: each value is one beside the other's load".to_owned());
    }
    let spoilt: Vec<&TrialRecord> = run.trials.iter().filter(|trial| trial.spoilt.is_some()).collect();
    if let Some(last) = spoilt.last().and_then(|trial| trial.spoilt.as_deref()) {
        let mut by_value: BTreeMap<String, u32> = BTreeMap::new();
        for trial in &spoilt {
            *by_value.entry(words::variant(trial.role, &trial.value)).or_default() += 1;
        }
        let each: Vec<String> = by_value.iter().map(|(variant, count)| format!("{variant} {count}")).collect();
        let (were, do_not) = if spoilt.len() == 1 { ("was", "does not") } else { ("were", "do not") };
        notes.push(format!(
            "{} of {} {were} spoilt by the host and {do_not} count ({}); the last: {last}",
            spoilt.len(),
            parshall_core::units::plural(run.trials.len() as u64, "trial", "trials"),
            each.join(", ")
        ));
    }
    notes.extend(one_cpu(run));
    let busy: Vec<f64> = run.trials.iter().filter_map(|trial| trial.conditions.busy).collect();
    if let Some(share) = quantile(&busy, 0.5).filter(|share| *share > FULL) {
        let share = parshall_core::units::percent(share);
        notes.push(format!(
            "the CPUs were full ({share} busy): the result depends on the CPU time of all that ran, the load generator included"
        ));
    }
    notes
}

/// A process that used just one CPU all of the time is often a thread that could do no more.
fn one_cpu(run: &Run) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = run.trials.iter().flat_map(|trial| trial.cpu_s.keys()).into_set();
    let share = |name: &str| {
        let of = |trial: &TrialRecord| Some(trial.cpu_s.get(name)? / trial.wall_s.max(1e-9));
        quantile(&run.trials.iter().filter_map(of).collect::<Vec<_>>(), 0.5)
    };
    let full =
        names.into_iter().filter_map(|name| Some((name, share(name)?))).filter(|(_, share)| ONE_CPU.contains(share));
    full.map(|(name, share)| {
        let percent = parshall_core::units::percent(share);
        format!(
            "`{name}` used {percent} of one CPU: if that was one thread, it was the limit, and not what it measured"
        )
    })
    .collect()
}

fn commands(experiment: &Experiment) -> Vec<CommandReport> {
    let shell = |value| {
        let environment = experiment.environment(value);
        let environment = environment.iter().map(|(name, value)| format!("{name}={}", words::shell_quoted(value)));
        let command = experiment.command(value);
        let words: Vec<String> = environment.chain(command.iter().map(|word| words::shell_quoted(word))).collect();
        words.join(" ")
    };
    experiment
        .variable
        .values
        .iter()
        .map(|value| CommandReport { value: value.to_string(), shell: shell(value) })
        .collect()
}

/// Whether the verdict of a run asks for the attention of CI.
pub fn is_worse(report: &Report) -> bool {
    report.ab.as_ref().is_some_and(|ab| ab.verdict == Verdict::Worse)
}

/// Whether a run has no answer.
pub fn is_undecided(report: &Report) -> bool {
    let undecided = [Verdict::Inconclusive, Verdict::ControlDiffers];
    match report.kind {
        Kind::Ab => report.ab.as_ref().is_none_or(|ab| undecided.contains(&ab.verdict)),
        Kind::Sweep => report.curves.is_empty(),
    }
}
