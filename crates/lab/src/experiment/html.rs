//! The report of an experiment as one file for a browser: nothing is fetched, nothing needs a script.
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::text::printable;
use parshall_core::units;
use sha2::{Digest, Sha256};

use super::report::{AbReport, Curve, Report, TurnReport};
use super::{svg, words};

const STYLE: &str = include_str!("experiment.css");

/// The report as a page.
pub fn page(report: &Report) -> String {
    let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    let policy = format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (clean(&report.title)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (clean(&report.title)) }
                    p.host { (clean(&host(report))) }
                }
                main {
                    (answer(report))
                    @for (name, picture) in svg::pictures(report) {
                        figure tabindex="0" role="group" aria-label=(clean(&name.trim_end_matches(".svg").replace('-', " "))) { (PreEscaped(picture)) }
                    }
                    @if let Some(ab) = &report.ab { (metrics(ab)) }
                    @for curve in &report.curves { (points(report, curve)) }
                    @if !report.notes.is_empty() {
                        section id="notes" { h2 { "Notes" } ul { @for note in &report.notes { li { (clean(note)) } } } }
                    }
                    (trials(report))
                    (commands(report))
                }
            }
        }
    }
    .into_string()
}

fn clean(text: &str) -> String {
    printable(text, ' ')
}

fn host(report: &Report) -> String {
    let host = &report.manifest.host;
    format!(
        "Linux {} · {} × {} {} · {} GiB · parshall {} · run {}",
        host.kernel, host.cpus, host.architecture, host.cpu, host.memory_gib, report.manifest.parshall, report.run
    )
}

fn answer(report: &Report) -> Markup {
    html! {
        section id="answer" {
            @if let Some(ab) = &report.ab { h2 { (words::answer(ab.verdict).to_uppercase()) } } @else { h2 { "Answer" } }
            p { (clean(&report.summary)) }
            @if !report.hint.is_empty() { p { "Next: " (clean(&report.hint)) "." } }
        }
    }
}

/// A table that scrolls by itself where it is wider than the window.
fn table(name: &str, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(name) {
            table {
                thead { tr { @for cell in head { th scope="col" { (clean(cell)) } } } }
                tbody {
                    @for row in rows {
                        tr { @for (at, cell) in row.iter().enumerate() {
                            @if at == 0 { th scope="row" { (clean(cell)) } } @else { td { (clean(cell)) } }
                        } }
                    }
                }
            }
        }
    }
}

fn metrics(ab: &AbReport) -> Markup {
    let rows = ab.metrics.iter().map(|metric| {
        let effect = metric.effect.map(|e| {
            let change = words::metric_change(metric);
            [change, words::interval(metric, &e), format!("{:.4}", e.p)]
        });
        let control = metric.control.map(|control| words::change(metric, control.change)).unwrap_or_default();
        let medians = [metric.a.median, metric.b.median].map(|median| words::value(median, &metric.unit));
        std::iter::once(metric.name.clone()).chain(medians).chain(effect.unwrap_or_default()).chain([control]).collect()
    });
    let percent = format!("{:.1} % interval", ab.confidence * 100.0);
    let head = ["metric", "A, median", "B, median", "B against A", &percent, "p", "A again"];
    html! {
        section id="metrics" {
            h2 { "Metrics" }
            (table("Metrics", &head, rows))
            @if ab.metrics.iter().any(|metric| metric.differs) {
                p { "* differs; without a difference at most " (units::percent(ab.error)) " of experiments say so." }
            }
        }
    }
}

fn points(report: &Report, curve: &Curve) -> Markup {
    let at = |turn: &Option<TurnReport>, value: &str| turn.as_ref().is_some_and(|turn| turn.at == value);
    let rows = curve.points.iter().map(|point| {
        let marks = [
            (at(&curve.knee, &point.value), "knee"),
            (at(&curve.collapse, &point.value), "collapse"),
            (curve.best == point.value, "best"),
        ];
        let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
        let [median, low, high] = [point.median, point.low, point.high].map(|value| words::value(value, &curve.unit));
        vec![point.value.clone(), median, format!("{low} to {high}"), marks.join(", ")]
    });
    let name = format!("{} by {}", clean(&curve.metric), clean(&report.variable.name));
    let head = [report.variable.name.as_str(), &curve.metric, "95 % interval", "turn"];
    html! { section { h2 { (name) } (table(&name, &head, rows)) } }
}

fn trials(report: &Report) -> Markup {
    let names: Vec<&String> = report.trials.first().map(|trial| trial.metrics.keys().collect()).unwrap_or_default();
    let head: Vec<&str> = ["trial", "block", "of"]
        .into_iter()
        .chain(names.iter().map(|name| name.as_str()))
        .chain(["wall, s", "spoilt"])
        .collect();
    let of_ab = report.ab.iter().flat_map(|ab| &ab.metrics).map(|metric| (&metric.name, &metric.unit));
    let of_curves = report.curves.iter().map(|curve| (&curve.metric, &curve.unit));
    let units: BTreeMap<&String, &String> = of_ab.chain(of_curves).into_map();
    let value = |name: &String, value: f64| match units.get(name) {
        Some(unit) => words::value(value, unit),
        None => units::figures(value),
    };
    let rows = (1..).zip(&report.trials).map(|(n, trial): (u64, _)| {
        let values = names.iter().map(|name| trial.metrics.get(*name).map(|v| value(name, *v)).unwrap_or_default());
        let front = [n.to_string(), trial.block.to_string(), words::variant(trial.role, &trial.value)];
        let back = [format!("{:.3}", trial.wall_s), trial.spoilt.clone().unwrap_or_default()];
        front.into_iter().chain(values).chain(back).collect()
    });
    html! { section id="trials" { h2 { "Trials" } (table("Trials", &head, rows)) } }
}

fn commands(report: &Report) -> Markup {
    let of = |i: usize| if report.ab.is_some() { ["A: ", "B: "].get(i).copied().unwrap_or("") } else { "" };
    html! {
        section id="commands" {
            h2 { "Commands" }
            dl {
                @for (i, command) in report.commands.iter().enumerate() {
                    dt { (of(i)) (clean(&report.variable.name)) " = " (clean(&command.value)) }
                    dd { code { (clean(&command.shell)) } }
                }
            }
        }
    }
}
