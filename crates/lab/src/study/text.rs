//! The answers of a study on a terminal.
use parshall_core::experiment::Verdict;
use parshall_host::output::{TextStyle, clean, words as wrap};

use super::{ComparisonResult, Expected, Outcome, Study};
use crate::experiment::{Better, Report, ab_table, answer, curve_table, metric_change};
use crate::terminal;

const INDENT: usize = 3;

/// The head of the text: the question of the study.
pub fn question(study: &Study, style: TextStyle) -> String {
    indented(study.question.trim(), 0, style) + "\n"
}

/// One comparison: its answer, its table, and whether that was expected.
pub fn comparison(n: usize, made: &ComparisonResult<'_>, style: TextStyle) -> String {
    let heading = terminal::heading(&format!("{n}  {}", made.name), style);
    let report = &made.report;
    let mut lines = vec![String::new(), heading, indented(&format!("{}: {}", made.got, report.summary), INDENT, style)];
    let mut table = Vec::new();
    if let Some(ab) = &report.ab {
        let values = report.variable.values.iter().zip(["A", "B"]);
        lines.extend(values.map(|(value, name)| indented(&format!("{name} = {}", clean(value)), INDENT, style)));
        table = ab_table(ab);
    }
    table.extend(report.curves.iter().flat_map(|curve| curve_table(report, curve, style)));
    lines.extend(table.into_iter().map(|line| format!(" {line}")));
    lines.extend(report.notes.iter().map(|note| indented(&format!("note: {}", clean(note)), INDENT, style)));
    if let Some(diagnosed) = &made.diagnosis {
        let judgement = if diagnosed.matched { "as expected" } else { "NOT as expected" };
        let text = format!(
            "parshall says of {}: {} (expected {}, {judgement}). {}",
            diagnosed.of,
            diagnosed.got,
            diagnosed.expected,
            clean(&diagnosed.report.verdict.summary),
        );
        lines.push(indented(&text, INDENT, style));
    }
    let judgement = match made.outcome {
        Outcome::Matched => "as expected",
        Outcome::Mismatched => "this machine shows something else",
        Outcome::Undecided => "undecided: more --blocks would tell",
    };
    let expected = format!("expected {}, because {} · {judgement}", made.expected, made.because);
    lines.push(indented(&expected, INDENT, style));
    lines.join("\n") + "\n"
}

/// All comparisons in one table: how each metric with a direction changed, as far as the terminal is wide enough.
pub fn result(made: &[ComparisonResult<'_>], style: TextStyle) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for made in made {
        let Some(ab) = &made.report.ab else { continue };
        let metrics = || ab.metrics.iter().filter(|metric| metric.better != Better::Neither);
        if rows.is_empty() {
            let names = metrics().map(|metric| clean(&metric.name));
            rows.push(["comparison", "answer"].map(str::to_owned).into_iter().chain(names).collect());
        }
        let changes = metrics().map(metric_change);
        rows.push([made.name.to_owned(), made.got.clone()].into_iter().chain(changes).collect());
    }
    let mut lines = vec![String::new(), terminal::heading("Result", style)];
    let table = terminal::aligned(&rows, 2, style.width.saturating_sub(1));
    lines.extend(table.into_iter().map(|line| format!(" {line}")));
    let count = |outcome| made.iter().filter(|made| made.outcome == outcome).count();
    let undecided = match count(Outcome::Undecided) {
        0 => String::new(),
        n => format!(", {n} undecided"),
    };
    lines.push(match count(Outcome::Mismatched) {
        0 => format!("   {} of {} as expected{undecided}", count(Outcome::Matched), made.len()),
        n => format!("   {n} of {} NOT as expected: this machine shows something else{undecided}", made.len()),
    });
    lines.join("\n") + "\n"
}

fn indented(text: &str, indent: usize, style: TextStyle) -> String {
    let width = style.width.saturating_sub(indent).max(20);
    let front = " ".repeat(indent);
    wrap(text, width, width).iter().map(|line| format!("{front}{line}")).collect::<Vec<_>>().join("\n")
}

/// The answer of an experiment in words.
pub fn got(report: &Report) -> String {
    match (&report.ab, report.curves.first()) {
        (Some(ab), _) => answer(ab.verdict).to_owned(),
        (None, Some(curve)) => shape(curve.knee.is_some(), curve.collapse.is_some()),
        (None, None) => "nothing".to_owned(),
    }
}

/// An expected answer in words.
pub fn expected(expected: &Expected) -> String {
    match expected {
        Expected::Verdicts(verdicts) => {
            let words: Vec<&str> = verdicts.iter().map(|verdict: &Verdict| answer(*verdict)).collect();
            words.join(" or ")
        }
        Expected::Shape { knee, collapse } => shape(*knee, *collapse),
    }
}

fn shape(knee: bool, collapse: bool) -> String {
    let words = |has: bool, what: &str| format!("{} {what}", if has { "a" } else { "no" });
    format!("{} and {}", words(knee, "knee"), words(collapse, "collapse"))
}
