//! A case: measure, diagnose, make one change, measure again.
use std::time::Duration;

use anyhow::Context;
use parshall_core::units::decimal;
use parshall_evidence::Report;
use serde::Serialize;

use super::interrupt::Interrupt;
use super::kept::Kept;
use super::load::Outcome;
use super::observe::{MARGIN, WARM_UP, observe_subject};
use super::recipe::{Change, Recipe, Stage, Wire, WireKind, verdict_name};
use super::request::RunRequest;
use super::terminal::{self, Progress};
use super::testbed::Testbed;
use super::units::Format;
use parshall_diagnose::report;
use parshall_host::output::{self, TextStyle};

/// The format of a case's result.
pub const CASE_SCHEMA: &str = "parshall.lab-case/1";
/// Length of each measurement. No probes run meanwhile, so that both rates are those of the program alone.
const MEASURE: Duration = Duration::from_secs(2);

/// A case, as JSON.
#[derive(Debug, Serialize)]
struct CaseResult<'a> {
    schema: &'static str,
    name: &'a str,
    expected: String,
    got: String,
    matched: bool,
    change: &'a str,
    factor: f64,
    before: Outcome,
    after: Outcome,
    report: &'a Report,
}

/// Runs a case. Returns whether the verdict was right and the change helped.
pub fn run(recipe: &Recipe, request: &RunRequest, kept: Kept, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let (change, measured) = match (&recipe.change, &recipe.measure) {
        (Some(change), Some(measured)) => (change, measured.as_str()),
        _ => anyhow::bail!("{} has no change or nothing to measure", recipe.id),
    };
    let steps = Steps {
        style: output::style(None),
        text: request.format == Format::Text,
        progress: Progress::start(&recipe.id),
    };
    steps.heading(&format!("{} · {}", recipe.id, recipe.title))?;
    steps.line(&format!("{}\n", recipe.broken))?;
    let stage = recipe.stage();
    let mut testbed = Testbed::make(&stage, 3 * MEASURE + request.window + MARGIN)?;
    testbed.check(interrupt)?;
    for process in recipe.processes.iter().filter(|process| process.name != measured) {
        testbed.start(&stage, &process.name, &[], interrupt)?;
    }
    steps.progress.show("measuring");
    let before = measure(&stage, measured, None, &mut testbed, interrupt)?;
    steps.heading(&format!("1  Measure: {}", place(recipe)))?;
    steps.line(&format!("   {}\n", before.line()))?;

    steps.progress.show(&format!("observing for {} s", request.window.as_secs_f64()));
    testbed.start(&stage, measured, &[], interrupt)?;
    interrupt.sleep(WARM_UP)?;
    let capture = observe_subject(&recipe.subject, &testbed, request)?;
    interrupt.check()?;
    testbed.end(measured);
    let report = kept.write(capture)?;
    steps.heading("2  Diagnose: what the kernel saw")?;
    steps.line(&format!("{}\n", report::text(&report, steps.style, request.detail).trim_end()))?;

    steps.progress.show("measuring again");
    let after = measure(&stage, measured, Some(change), &mut testbed, interrupt)?;
    testbed.end_all();
    drop(testbed);
    steps.heading(&format!("3  Change one thing: {}", change.text))?;
    steps.line(&format!("   {}\n", after.line()))?;

    let matched = recipe.expect.matches(&report);
    let result = CaseResult {
        schema: CASE_SCHEMA,
        name: &recipe.id,
        expected: recipe.expect.to_string(),
        got: verdict_name(&report),
        matched,
        change: &change.text,
        factor: after.rate_per_s / before.rate_per_s.max(1e-9),
        before,
        after,
        report: &report,
    };
    match request.format {
        Format::Json => terminal::line(&output::json_line(&result)?)?,
        Format::Text => steps.end(&result)?,
    }
    Ok(matched && result.factor > 1.0)
}

fn measure(
    stage: &Stage,
    process: &str,
    change: Option<&Change>,
    testbed: &mut Testbed,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    for changed in change.iter().filter(|change| change.process != process) {
        testbed.end(&changed.process);
        testbed.start(stage, &changed.process, &changed.add, interrupt)?;
    }
    let extra = change.filter(|change| change.process == process).map(|change| change.add.as_slice());
    testbed.start(stage, process, extra.unwrap_or_default(), interrupt)?;
    interrupt.sleep(MEASURE)?;
    testbed.check_alive()?;
    testbed.end(process).with_context(|| format!("the process {process} printed no result"))
}

fn place(recipe: &Recipe) -> String {
    if recipe.wire == Wire::default() && recipe.network.is_some() {
        return "over its testbed".into();
    }
    match recipe.wire.kind {
        WireKind::Loopback => "over the loopback interface".into(),
        WireKind::Veth => "two network namespaces and a veth pair".into(),
        WireKind::Delay => format!("two network namespaces, {} ms apart", recipe.wire.delay_ms),
    }
}

/// Prints the steps of a case on a terminal; prints nothing when the result is a document.
struct Steps {
    style: TextStyle,
    text: bool,
    progress: Progress,
}

impl Steps {
    fn line(&self, line: &str) -> anyhow::Result<()> {
        if self.text { self.progress.line(&self.style.charset.text(line)) } else { Ok(()) }
    }

    fn heading(&self, line: &str) -> anyhow::Result<()> {
        self.line(&terminal::heading(line, self.style))
    }

    fn end(&self, result: &CaseResult<'_>) -> anyhow::Result<()> {
        let rates = [result.before.rate_per_s, result.after.rate_per_s];
        let widest = rates[0].max(rates[1]).max(1e-9);
        self.heading("Result")?;
        for (label, rate) in [("before", rates[0]), ("after", rates[1])] {
            // Any rate above 0 gets a bar: a blank would look like 0.
            let bar = self.style.charset.bar(rate / widest, 40);
            self.line(&format!("   {label:<7} {:>10}/s  {bar}", decimal(rate)))?;
        }
        let [before, after] = rates.map(decimal);
        let factor = terminal::good(&format!("×{}", decimal(result.factor)), self.style);
        let judgement = if result.matched { "as expected" } else { "NOT as expected" };
        self.line(&format!("\n   rate {before}/s → {after}/s  {factor}"))?;
        self.line(&format!("   verdict {} · expected {} · {judgement}", result.got, result.expected))
    }
}
