//! The report for a terminal.
use parshall_core::units;
use parshall_host::output::{TextStyle, clean, columns, words as wrap};

use super::file::Kind;
use super::report::{AbReport, Curve, Report, TurnReport};
use super::words;
use crate::terminal;

const INDENT: usize = 7;
const BAR: usize = 30;

/// The report as text.
pub fn text(report: &Report, style: TextStyle) -> String {
    let mut lines = vec![head(report), String::new()];
    let mark = match (&report.ab, report.kind) {
        (Some(ab), _) => words::answer(ab.verdict).to_uppercase(),
        (None, Kind::Sweep) if !report.curves.is_empty() => "SWEEP".to_owned(),
        _ => "NOTHING".to_owned(),
    };
    lines.extend(paragraph(&mark, &report.summary, style));
    if !report.hint.is_empty() {
        lines.extend(paragraph("NEXT", &report.hint, style));
    }
    if let Some(ab) = &report.ab {
        lines.push(String::new());
        lines.extend(ab_table(ab));
    }
    for curve in &report.curves {
        lines.push(String::new());
        lines.extend(curve_table(report, curve, style));
    }
    lines.push(String::new());
    for note in &report.notes {
        lines.extend(paragraph("NOTE", note, style));
    }
    lines.extend(paragraph("HOST", &host(report), style));
    lines.join("\n") + "\n"
}

fn head(report: &Report) -> String {
    let variable = &report.variable;
    let values = match (report.kind, &variable.values[..]) {
        (Kind::Ab, [a, b]) => format!("{}: A = {}, B = {}", variable.name, clean(a), clean(b)),
        _ => format!("{}: {} values", variable.name, variable.values.len()),
    };
    let progress = match &report.ab {
        Some(ab) => format!("{} of at most {} blocks", ab.blocks, ab.looks.last().unwrap_or(&0)),
        None => units::plural(report.curves.first().map_or(0, |curve| curve.passes) as u64, "pass", "passes"),
    };
    let trials = units::plural(report.trials.len() as u64, "trial", "trials");
    let unfinished = if report.complete { "" } else { " · unfinished" };
    format!("parshall lab · {} · {values} · {progress} · {trials}{unfinished}", clean(&report.title))
}

/// A mark in front, and the text wrapped beside it.
fn paragraph(mark: &str, text: &str, style: TextStyle) -> Vec<String> {
    let indent = INDENT.max(columns(mark) + 2);
    let width = style.width.saturating_sub(indent).max(20);
    let lines = wrap(&clean(text), width, width);
    let front = |i: usize| match i {
        0 => format!("{}{}", terminal::heading(mark, style), " ".repeat(indent - columns(mark))),
        _ => " ".repeat(indent),
    };
    lines.iter().enumerate().map(|(i, line)| format!("{}{line}", front(i))).collect()
}

/// The metrics of an A/B experiment.
pub fn ab_table(ab: &AbReport) -> Vec<String> {
    let percent = format!("{:.1} % interval", ab.confidence * 100.0);
    let mut rows = vec![["metric", "A", "B", "B against A", &percent, "A again"].map(str::to_owned)];
    for metric in &ab.metrics {
        let of = |effect: Option<super::report::EffectReport>| {
            effect.map(|e| (words::change(metric, e.change), words::interval(metric, &e)))
        };
        let (_, interval) = of(metric.effect).unwrap_or_default();
        rows.push([
            clean(&metric.name),
            words::value(metric.a.median, &metric.unit),
            words::value(metric.b.median, &metric.unit),
            words::metric_change(metric),
            interval,
            of(metric.control).map(|(change, _)| change).unwrap_or_default(),
        ]);
    }
    let mut lines = terminal::aligned(&rows, 1, usize::MAX);
    if ab.metrics.iter().any(|metric| metric.differs) {
        let error = units::percent(ab.error);
        lines.push(format!("  * differs; without a difference at most {error} of experiments say so"));
    }
    lines
}

/// The curve of a sweep, with what steps at its turns.
pub fn curve_table(report: &Report, curve: &Curve, style: TextStyle) -> Vec<String> {
    let mut lines =
        vec![terminal::heading(&format!("{} by {}", clean(&curve.metric), clean(&report.variable.name)), style)];
    let most = curve.points.iter().map(|point| point.median).fold(f64::MIN_POSITIVE, f64::max);
    let row = |point: &super::report::Point| {
        // Any value above 0 gets a bar: a blank would look like 0.
        let bar = "█".repeat(((point.median / most * BAR as f64).round() as usize).max(1));
        let interval = format!("{} to {}", words::value(point.low, &curve.unit), words::value(point.high, &curve.unit));
        let turn =
            |turn: &Option<TurnReport>, word| turn.as_ref().filter(|turn| turn.at == point.value).map_or("", |_| word);
        let mark = format!("{}{}", turn(&curve.knee, "knee "), turn(&curve.collapse, "collapse"));
        [clean(&point.value), words::value(point.median, &curve.unit), interval, format!("{bar:<BAR$}"), mark]
    };
    lines.extend(terminal::aligned(&curve.points.iter().map(row).collect::<Vec<_>>(), 1, usize::MAX));
    for (word, turn) in [("knee", &curve.knee), ("collapse", &curve.collapse)] {
        let Some(turn) = turn else { continue };
        for step in &turn.counters {
            let rates = [step.before_per_s, step.after_per_s].map(units::decimal);
            lines.push(format!("  {} steps at the {word}: {}/s to {}/s", step.counter, rates[0], rates[1]));
        }
    }
    lines
}

fn host(report: &Report) -> String {
    let host = &report.manifest.host;
    let congestion = host.sysctls.get("net.ipv4.tcp_congestion_control").map_or("", String::as_str);
    let governor = if host.governor.is_empty() { "none" } else { &host.governor };
    let cpu = if host.cpu.is_empty() { &host.architecture } else { &host.cpu };
    format!("Linux {} · {} × {cpu} · governor {governor} · {congestion} · run {}", host.kernel, host.cpus, report.run)
}
