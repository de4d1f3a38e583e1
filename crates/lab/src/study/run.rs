//! `lab run` of a study: its experiments one after the other, and what parshall says about the variants.
use parshall_core::judge::judge;
use parshall_host::output;
use parshall_host::private_file::PrivateFile;
use serde::Serialize;

use super::{Comparison, ComparisonResult, Diagnosed, Diagnosis, Outcome, STUDY_SCHEMA, Study, text};
use crate::experiment::{self, Kind, Report};
use crate::interrupt::Interrupt;
use crate::kept::Paths;
use crate::observe::{MARGIN, WARM_UP, observe_subject};
use crate::recipe::verdict_name;
use crate::request::{RunRequest, one_of_several};
use crate::terminal::{self, Progress};
use crate::testbed::Testbed;
use crate::units::Format;

/// A study, as JSON.
#[derive(Debug, Serialize)]
struct StudyResult<'a> {
    schema: &'static str,
    name: &'a str,
    /// No answer was other than expected; some may be undecided.
    matched: bool,
    comparisons: &'a [ComparisonResult<'a>],
}

/// Runs a study. Returns whether no answer was other than expected. The trials of each comparison are kept, and
/// drawn on a page, where that is asked for.
pub fn run(study: &Study, request: &RunRequest, paths: &Paths, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let page = paths.page(&study.id)?;
    let style = output::style(None);
    let is_text = request.format == Format::Text;
    if is_text {
        terminal::line(&terminal::heading(&format!("{} · {}", study.id, study.title), style))?;
        terminal::text(&text::question(study, style))?;
    }
    let scratch = tempfile::tempdir()?;
    let mut made = Vec::new();
    for (n, comparison) in (1..).zip(&study.comparisons) {
        let path = match &paths.save {
            Some(path) => one_of_several(path, &n.to_string()),
            None => scratch.path().join(format!("{n}.jsonl")),
        };
        let page = page.map(|path| one_of_several(path, &n.to_string()));
        let page = page.as_deref().map(|path| PrivateFile::create(path, "--html")).transpose()?;
        let report = experiment::measure(&comparison.experiment, &path, request.blocks, interrupt)?;
        page.map_or(Ok(()), |file| file.write(experiment::page(&report).as_bytes()))?;
        let diagnosis =
            comparison.diagnosis.as_ref().map(|diagnosis| diagnose(diagnosis, request, interrupt)).transpose()?;
        let comparison = compared(comparison, report, diagnosis);
        if is_text {
            terminal::text(&text::comparison(n, &comparison, style))?;
        }
        made.push(comparison);
    }
    let matched = made.iter().all(|made| made.outcome != Outcome::Mismatched);
    match request.format {
        Format::Text => terminal::text(&text::result(&made, style))?,
        Format::Json => {
            let result = StudyResult { schema: STUDY_SCHEMA, name: &study.id, matched, comparisons: &made };
            terminal::line(&output::json_line(&result)?)?;
        }
    }
    Ok(matched)
}

/// Makes a trial of each variant and keeps nothing.
pub fn check(study: &Study, interrupt: &Interrupt) -> anyhow::Result<bool> {
    for comparison in &study.comparisons {
        let progress = Progress::start(&comparison.name);
        experiment::try_out(&comparison.experiment, interrupt)?;
        progress.line(&format!("{}: {} can run here", study.id, comparison.name))?;
    }
    Ok(true)
}

fn compared<'a>(comparison: &'a Comparison, report: Report, diagnosis: Option<Diagnosed>) -> ComparisonResult<'a> {
    let expect = &comparison.expect;
    let outcome = match &diagnosis {
        Some(diagnosis) if !diagnosis.matched => Outcome::Mismatched,
        _ => expect.answer.compare(&report),
    };
    ComparisonResult {
        name: &comparison.name,
        expected: text::expected(&expect.answer),
        got: text::got(&report),
        outcome,
        because: &expect.because,
        diagnosis,
        report,
    }
}

/// Runs a trial that nobody measures, and observes its subject.
fn diagnose(diagnosis: &Diagnosis, request: &RunRequest, interrupt: &Interrupt) -> anyhow::Result<Diagnosed> {
    let experiment = &diagnosis.experiment;
    let value = &experiment.variable.values[diagnosis.value];
    let progress = Progress::start(&experiment.title);
    progress.show(&format!("observing for {} s", request.window.as_secs_f64()));
    let stage = experiment.stage(value);
    let mut testbed = Testbed::make(&stage, WARM_UP + request.window + MARGIN)?;
    testbed.start_all(&stage, interrupt)?;
    let load = testbed.start_command(&experiment.command(value), &experiment.environment(value), &experiment.cpus)?;
    interrupt.sleep(WARM_UP)?;
    let capture = observe_subject(&diagnosis.subject, &testbed, request)?;
    interrupt.check()?;
    testbed.check_alive()?;
    drop(load);
    let report = judge(&capture);
    Ok(Diagnosed {
        of: match experiment.variable.kind {
            Kind::Ab => ["A", "B"][diagnosis.value].to_owned(),
            Kind::Sweep => value.to_string(),
        },
        expected: diagnosis.expect.to_string(),
        got: verdict_name(&report),
        matched: diagnosis.expect.matches(&report),
        report,
    })
}
