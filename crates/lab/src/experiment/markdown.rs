//! The report as Markdown, for a pull request or a wiki.
use parshall_core::text::printable;
use parshall_core::units;

use super::report::{AbReport, Curve, Report};
use super::words;

/// The report as Markdown.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("## {}\n\n", escaped(&report.title));
    let verdict =
        report.ab.as_ref().map(|ab| format!("**{}.** ", words::answer(ab.verdict).to_uppercase())).unwrap_or_default();
    out += &format!("{verdict}{}\n", escaped(&report.summary));
    if !report.hint.is_empty() {
        out += &format!("\nNext: {}.\n", escaped(&report.hint));
    }
    if let Some(ab) = &report.ab {
        out += &ab_table(ab);
    }
    for curve in &report.curves {
        out += &curve_table(report, curve);
    }
    if !report.notes.is_empty() {
        out += "\n";
        out.extend(report.notes.iter().map(|note| format!("- {}\n", escaped(note))));
    }
    out += "\n### Trials\n\n";
    out += &trials(report);
    out += "\n### Commands\n\n```sh\n";
    let of = |i: usize| if report.ab.is_some() { ["A: ", "B: "].get(i).copied().unwrap_or("") } else { "" };
    let commands = report.commands.iter().enumerate();
    out.extend(
        commands.map(|(i, command)| {
            format!("# {}{} = {}\n{}\n", of(i), report.variable.name, command.value, command.shell)
        }),
    );
    out += "```\n\n### Host\n\n";
    out += &host(report);
    out
}

fn ab_table(ab: &AbReport) -> String {
    let rows = ab.metrics.iter().map(|metric| {
        let effect = metric
            .effect
            .map(|e| (words::change(metric, e.change), words::interval(metric, &e), format!("{:.4}", e.p)));
        let (change, interval, p) = effect.unwrap_or_default();
        let mark = if metric.differs { "**" } else { "" };
        [
            metric.name.clone(),
            words::value(metric.a.median, &metric.unit),
            words::value(metric.b.median, &metric.unit),
            format!("{mark}{change}{mark}"),
            interval,
            p,
            metric.control.map(|control| words::change(metric, control.change)).unwrap_or_default(),
        ]
    });
    let percent = format!("{:.1} % interval", ab.confidence * 100.0);
    let head = ["metric", "A, median", "B, median", "B against A", &percent, "p", "A again"];
    format!("\n{}", table(head, rows))
}

fn curve_table(report: &Report, curve: &Curve) -> String {
    let rows = curve.points.iter().map(|point| {
        let at = |turn: &Option<super::report::TurnReport>| turn.as_ref().is_some_and(|turn| turn.at == point.value);
        let marks = [(at(&curve.knee), "knee"), (at(&curve.collapse), "collapse"), (curve.best == point.value, "best")];
        let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
        let interval = format!("{} to {}", words::value(point.low, &curve.unit), words::value(point.high, &curve.unit));
        [point.value.clone(), words::value(point.median, &curve.unit), interval, marks.join(", ")]
    });
    let mut out = format!("\n{}", table([&report.variable.name, &curve.metric, "95 % interval", ""], rows));
    for (word, turn) in [("knee", &curve.knee), ("collapse", &curve.collapse)] {
        let steps = turn.iter().flat_map(|turn| &turn.counters);
        out.extend(steps.map(|step| {
            let rates = [step.before_per_s, step.after_per_s].map(units::decimal);
            format!("\n`{}` steps at the {word}: {}/s to {}/s.\n", step.counter, rates[0], rates[1])
        }));
    }
    out
}

fn trials(report: &Report) -> String {
    let names: Vec<&String> = report.trials.first().map(|trial| trial.metrics.keys().collect()).unwrap_or_default();
    let head: Vec<&str> = ["block", "of"]
        .into_iter()
        .chain(names.iter().map(|name| name.as_str()))
        .chain(["wall, s", "spoilt"])
        .collect();
    let mut out = row(&head) + &row(&vec!["---"; head.len()]);
    for trial in &report.trials {
        let metrics =
            names.iter().map(|name| trial.metrics.get(*name).map(|value| format!("{value:.6e}")).unwrap_or_default());
        let front = [trial.block.to_string(), words::variant(trial.role, &trial.value)];
        let back = [format!("{:.3}", trial.wall_s), trial.spoilt.clone().unwrap_or_default()];
        let cells: Vec<String> = front.into_iter().chain(metrics).chain(back).collect();
        out += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    out
}

fn host(report: &Report) -> String {
    let host = &report.manifest.host;
    let mut rows: Vec<[String; 2]> = [
        ("kernel", host.kernel.clone()),
        ("CPU", format!("{} × {} {}", host.cpus, host.architecture, host.cpu)),
        ("memory", format!("{} GiB", host.memory_gib)),
        ("governor", host.governor.clone()),
        ("steal since boot", units::percent(report.manifest.steal_since_boot)),
        ("parshall", report.manifest.parshall.clone()),
        ("run", report.run.clone()),
    ]
    .map(|(name, value)| [name.to_owned(), value])
    .into();
    let pairs = host.sysctls.iter().map(|(name, value)| [name.clone(), value.clone()]);
    rows.extend(pairs.chain(host.mitigations.iter().map(|(name, value)| [name.clone(), value.clone()])));
    rows.extend(host.offloads.iter().map(|(name, on)| [format!("offloads of {name}"), on.join(" ")]));
    rows.extend(report.manifest.files.iter().map(|(path, hash)| [path.clone(), format!("sha256 {hash}")]));
    table(["what", "value"], rows.into_iter())
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut out = row(&head) + &row(&["---"; N]);
    out.extend(rows.map(|cells| row(&cells.each_ref().map(String::as_str))));
    out
}

fn row(cells: &[&str]) -> String {
    format!("| {} |\n", cells.iter().map(|cell| escaped(cell)).collect::<Vec<_>>().join(" | "))
}

/// Texts of users and hosts cannot end a table's cell or begin a tag.
fn escaped(text: &str) -> String {
    printable(text, ' ').replace('|', "\\|").replace('<', "&lt;")
}
