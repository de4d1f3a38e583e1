//! `lab run` of faults and controls: set up, observe, judge, and check the verdict.
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use parshall_core::units;
use parshall_diagnose::report;
use parshall_evidence::Report;
use parshall_host::output;
use serde::Serialize;

use crate::catalog::{Content, Entry, Kind};
use crate::interrupt::Interrupt;
use crate::kept::Paths;
use crate::load::Outcome;
use crate::observe::{MARGIN, WARM_UP, observe_subject};
use crate::process::program_path;
use crate::recipe::{Recipe, verdict_name};
use crate::request::RunRequest;
use crate::testbed::Testbed;
use crate::units::Format;
use crate::{case, catalog, study, terminal, testbed};

/// How long a load runs with `--check`.
const CHECK_TIME: Duration = Duration::from_millis(300);
/// The format of a run's result.
pub const RUN_SCHEMA: &str = "parshall.lab-run/1";
/// One run, as JSON.
#[derive(Debug, Serialize)]
struct RunResult<'a> {
    schema: &'static str,
    name: &'a str,
    kind: Kind,
    /// `matched`, `mismatched` or `skipped`.
    status: &'static str,
    expected: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    got: Option<String>,
    matched: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    /// The results of the loads, by process: they show how much the fault costs.
    loads: BTreeMap<String, Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<&'a Report>,
}

/// Runs everything that the request names. Returns whether every verdict was right.
pub fn run(request: &RunRequest, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let mut entries: Vec<Entry> = Vec::new();
    for name in &request.names {
        entries.extend(catalog::find(name)?);
    }
    testbed::sweep();
    let mut all_right = true;
    let many = request.runs > 1 || entries.len() > 1;
    for entry in &entries {
        for n in 1..=request.runs {
            interrupt.check()?;
            let paths = Paths::of(request, many.then(|| format!("{}-{n}", entry.name)).as_deref());
            all_right &=
                run_one(entry, request, &paths, interrupt).with_context(|| format!("lab run {}", entry.name))?;
        }
    }
    Ok(all_right)
}

fn run_one(entry: &Entry, request: &RunRequest, paths: &Paths, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let recipe = match entry.read(request.window, request.check.then_some(CHECK_TIME))? {
        Content::Recipe(recipe) => recipe,
        Content::Study(study) => {
            return match missing(&study.needs) {
                Some(program) => skip(entry, "the expected answers", request, program),
                None if request.check => study::check(&study, interrupt),
                None => study::run(&study, request, paths, interrupt),
            };
        }
    };
    if let Some(program) = missing(&recipe.needs) {
        return skip(entry, &recipe.expect.to_string(), request, program);
    }
    if request.check {
        return check(&recipe, interrupt);
    }
    let kept = paths.open()?;
    if entry.kind == Kind::Case {
        return case::run(&recipe, request, kept, interrupt);
    }
    let progress = terminal::Progress::start(&format!("{}: {}", recipe.id, recipe.title));
    let stage = recipe.stage();
    let mut testbed = Testbed::make(&stage, WARM_UP + request.window + MARGIN)?;
    testbed.start_all(&stage, interrupt)?;
    progress.show("warming up");
    interrupt.sleep(WARM_UP)?;
    testbed.check_alive()?;
    progress.show(&format!("observing for {} s", request.window.as_secs_f64()));
    let capture = observe_subject(&recipe.subject, &testbed, request)?;
    interrupt.check()?;
    testbed.check_alive()?;
    let loads = testbed.end_all();
    drop(testbed);
    drop(progress);
    let report = kept.write(capture)?;
    let matched = recipe.expect.matches(&report);
    print(entry, &recipe, request, &report, matched, loads)?;
    Ok(matched)
}

/// Makes the testbed and starts the processes, and nothing else.
fn check(recipe: &Recipe, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let stage = recipe.stage();
    let mut testbed = Testbed::make(&stage, WARM_UP + MARGIN)?;
    testbed.start_all(&stage, interrupt)?;
    interrupt.sleep(CHECK_TIME)?;
    testbed.check_alive()?;
    terminal::line(&format!(
        "{}: {} can run here",
        recipe.id,
        units::plural(stage.processes.len() as u64, "process", "processes")
    ))?;
    Ok(true)
}

fn print(
    entry: &Entry,
    recipe: &Recipe,
    request: &RunRequest,
    report: &Report,
    matched: bool,
    loads: BTreeMap<String, Outcome>,
) -> anyhow::Result<()> {
    let got = verdict_name(report);
    let expected = recipe.expect.to_string();
    if request.format == Format::Json {
        let result = RunResult {
            schema: RUN_SCHEMA,
            name: entry.name,
            kind: entry.kind,
            status: if matched { "matched" } else { "mismatched" },
            expected,
            got: Some(got),
            matched,
            skipped: None,
            loads,
            report: Some(report),
        };
        return terminal::line(&output::json_line(&result)?);
    }
    let style = output::style(None);
    let title = terminal::heading(&format!("{} · {}", recipe.id, recipe.title), style);
    let loads: String = loads.iter().map(|(name, outcome)| format!("{name:<9} {}\n", outcome.line())).collect();
    let judgement = if matched { "as expected" } else { "NOT as expected" };
    terminal::line(&style.charset.text(&format!(
        "{title}\nbroken    {}\nmoves     {}\n{loads}\n{}\n\nexpected {expected} · got {got} · {judgement}\n",
        recipe.broken,
        recipe.moves,
        report::text(report, style, request.detail).trim_end(),
    )))?;
    Ok(())
}

fn skip(entry: &Entry, expected: &str, request: &RunRequest, program: &str) -> anyhow::Result<bool> {
    let why = format!("needs {program}");
    match request.format {
        Format::Text => terminal::line(&format!("{}: skipped: {why}", entry.name))?,
        Format::Json => {
            let result = RunResult {
                schema: RUN_SCHEMA,
                name: entry.name,
                kind: entry.kind,
                status: "skipped",
                expected: expected.to_owned(),
                got: None,
                matched: false,
                skipped: Some(why),
                loads: BTreeMap::new(),
                report: None,
            };
            terminal::line(&output::json_line(&result)?)?;
        }
    }
    Ok(true)
}

/// The first of these programs that is not installed.
fn missing(programs: &[String]) -> Option<&String> {
    programs.iter().find(|program| program_path(program).is_none())
}
