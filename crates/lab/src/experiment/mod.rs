//! `lab ab` and `lab sweep`: experiments on any commands that differ in one variable, and `lab compare` of two of their runs.
//!
//! `file` and `metric` read what is to be done, `trial` does it once, `run` again and again into `results`; `analyse` makes a
//! `report` of these, and `text`, `markdown`, `html` and `svg` show it. The decisions are [`parshall_core::experiment`]'s.
mod analyse;
mod compare;
mod conditions;
mod duet;
mod file;
#[cfg(test)]
mod golden;
mod html;
mod manifest;
mod markdown;
mod metric;
mod profile;
mod report;
mod results;
mod run;
mod svg;
mod text;
mod tool_output;
mod trial;
mod words;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use parshall_core::units;
use parshall_host::error::UserError;
use parshall_host::output::{self, style_for};
use parshall_host::private_file::PrivateFile;

pub use analyse::is_undecided;
pub use compare::compare;
pub use file::{Experiment, Kind};
pub use html::page;
pub use metric::Better;
pub use report::Report;
pub use text::{ab_table, curve_table};
pub use words::{answer, metric_change};

use crate::interrupt::Interrupt;
use crate::request::{ExperimentRequest, Source};
use crate::testbed;
use crate::units::ReportFormat;
use run::Session;

/// `lab ab` or `lab sweep`.
pub fn experiment(kind: Kind, request: &ExperimentRequest, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let experiment = match &request.source {
        Source::File(file) => Experiment::read(file)?,
        Source::Commands(commands) => Experiment::of_commands(commands)?,
    };
    if experiment.variable.kind != kind {
        let (has, command) = match kind {
            Kind::Ab => ("values = [...]", "parshall lab sweep"),
            Kind::Sweep => ("a and b", "parshall lab ab"),
        };
        let what = format!("{}: its variable has {has}", experiment.path);
        return Err(UserError::new(what, format!("use: {command} {}", experiment.path)).into());
    }
    if request.duet && experiment.limits.other_cpu.is_some() {
        let what =
            format!("{}: with --duet each trial would break the limit other_cpu of the other one", experiment.path);
        return Err(UserError::new(what, "leave out --duet, or the limit").into());
    }
    experiment.check_programs()?;
    if request.check {
        return output::print(&plan(&experiment, request)).map(|()| ExitCode::SUCCESS);
    }
    // A path that cannot be written is an error before hours of trials.
    let page = request.html.as_deref().map(|path| PrivateFile::create(path, "--html")).transpose()?;
    testbed::sweep();
    let kept = run::results_path(request);
    let scratch = tempfile::tempdir().context("making a directory for the results")?;
    let path = kept.clone().unwrap_or_else(|| scratch.path().join("results.jsonl"));
    let mut session = Session::begin(&experiment, request, &path, interrupt)?;
    let finished = session.finish();
    // The bar on stderr ends with the session.
    let run = session.into_run();
    if let Err(error) = finished {
        if let Some(path) = kept.filter(|_| !run.trials.is_empty()) {
            let trials = units::plural(run.trials.len() as u64, "trial", "trials");
            tracing::info!("{trials} kept in {}; the same command with --resume goes on from there", path.display());
        }
        return Err(error);
    }
    let report = analyse::report(&experiment, &run);
    print(&report, request.format)?;
    if let Some(file) = page {
        file.write(html::page(&report).as_bytes())?;
    }
    if let Some(directory) = &request.pictures {
        draw(&report, directory)?;
    }
    Ok(match (analyse::is_worse(&report), analyse::is_undecided(&report)) {
        (true, _) => ExitCode::from(analyse::WORSE),
        (_, true) => ExitCode::from(analyse::UNDECIDED),
        _ => ExitCode::SUCCESS,
    })
}

/// Makes an experiment of a case, with its results in a new file.
pub fn measure(
    experiment: &Experiment,
    results: &Path,
    most: Option<u32>,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    experiment.check_programs()?;
    let request = ExperimentRequest {
        source: Source::File(experiment.path.clone().into()),
        check: false,
        most,
        results: Some(results.to_owned()),
        resume: false,
        duet: false,
        format: ReportFormat::Text,
        pictures: None,
        html: None,
    };
    let mut session = Session::begin(experiment, &request, results, interrupt)?;
    session.finish()?;
    Ok(analyse::report(experiment, &session.into_run()))
}

/// Makes a trial of each value and keeps nothing.
pub fn try_out(experiment: &Experiment, interrupt: &Interrupt) -> anyhow::Result<()> {
    experiment.check_programs()?;
    let run = |value| trial::run(experiment, value, None, interrupt).map(drop);
    experiment.variable.values.iter().try_for_each(|value| {
        // A trial that fails once, on a host that was busy just then, may still succeed.
        run(value).or_else(|_| interrupt.check().and_then(|()| run(value)))
    })
}

fn print(report: &Report, format: ReportFormat) -> anyhow::Result<()> {
    output::print(&match format {
        ReportFormat::Text => {
            let style = style_for(&output::Destination::Stdout, None);
            style.charset.text(&text::text(report, style)).into_owned()
        }
        ReportFormat::Markdown => markdown::markdown(report),
        ReportFormat::Json => output::json(report)?,
    })
}

fn draw(report: &Report, directory: &Path) -> anyhow::Result<()> {
    let pictures = svg::pictures(report);
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    for (name, picture) in &pictures {
        let path = directory.join(name);
        std::fs::write(&path, picture).with_context(|| format!("writing {}", path.display()))?;
    }
    tracing::info!("{}", svg::written(pictures.len(), directory));
    Ok(())
}

/// The plan that `--check` prints.
fn plan(experiment: &Experiment, request: &ExperimentRequest) -> String {
    let variable = &experiment.variable;
    let values: Vec<String> = variable.values.iter().map(ToString::to_string).collect();
    let (trials, kind) = match variable.kind {
        Kind::Ab => {
            let blocks = request.most.unwrap_or(experiment.blocks);
            let (each, how) = if request.duet { (4, ", two trials at a time") } else { (3, "") };
            (each * blocks, format!("A and B in at most {blocks} blocks{how}"))
        }
        Kind::Sweep => {
            let passes = request.most.unwrap_or(experiment.passes);
            (passes * values.len() as u32, format!("{} values in {passes} passes", values.len()))
        }
    };
    let metrics: Vec<&str> = experiment.metrics.iter().map(|metric| metric.name.as_str()).collect();
    format!(
        "{} is right\n  {}: {}\n  {kind}, {trials} trials at most\n  decides: {}; beside it: {}\n  results: {}\n",
        experiment.path,
        variable.name,
        values.join(", "),
        metrics[0],
        if metrics.len() > 1 { metrics[1..].join(", ") } else { "nothing".to_owned() },
        run::results_path(request).map_or_else(|| "not kept".to_owned(), |path| path.display().to_string()),
    )
}
