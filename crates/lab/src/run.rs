//! `lab run` of faults and controls: set up, observe, judge, and say whether the verdict was the right one.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use parshall_evidence::{Capture, Report, Rung};
use serde::Serialize;

use super::catalog::{Entry, Kind};
use super::load::Outcome;
use super::recipe::{Recipe, verdict_name};
use super::testbed::Testbed;
use super::units::Format;
use super::{Interrupt, case, catalog, terminal, testbed};
use parshall_diagnose::background::Background;
use parshall_diagnose::observe::observe;
use parshall_diagnose::request::ObserveOptions;
use parshall_diagnose::subject::Select;
use parshall_diagnose::{self as diagnose, report};
use parshall_host::output;
use parshall_host::private_file::PrivateFile;

/// The format of a run's result.
pub const RUN_SCHEMA: &str = "parshall.lab-run/1";
/// Between start and observation, so that handshakes and slow start are over.
pub const WARM_UP: Duration = Duration::from_millis(500);
/// Processes end by themselves this long after the observation should have.
pub const MARGIN: Duration = Duration::from_secs(25);

/// `parshall lab run`
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Cases, faults or controls; or `faults`, `controls`, `cases` for all of them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Length of the observation
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parshall_diagnose::cli::window)]
    pub window: Duration,
    /// How often
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// How results are printed; json is one document per run, a line each
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Save what was collected, as JSON
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The best rung of evidence to use (default: the best the host offers)
    #[arg(long, value_parser = rung())]
    pub rung: Option<Rung>,
}

fn rung() -> impl TypedValueParser<Value = Rung> {
    const RUNGS: [Rung; 3] = [Rung::Btf, Rung::Tracepoint, Rung::Procfs];
    PossibleValuesParser::new(RUNGS.map(Rung::as_str)).map(|name: String| {
        let found = RUNGS.into_iter().find(|rung| rung.as_str() == name);
        found.expect("clap admits only these names")
    })
}

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
    /// What the loads did, by process: the fault's own measure of how much it hurts.
    loads: BTreeMap<String, Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<&'a Report>,
}

/// Runs everything the arguments name. True: every verdict was the right one.
pub fn run(args: &RunArgs, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let mut entries: Vec<Entry> = Vec::new();
    for name in &args.names {
        entries.extend(catalog::find(name)?);
    }
    testbed::sweep();
    let mut all_right = true;
    let many = args.runs > 1 || entries.len() > 1;
    for entry in &entries {
        for n in 1..=args.runs {
            interrupt.check()?;
            let save = args.save.as_deref().map(|path| if many { numbered(path, entry.name, n) } else { path.into() });
            // A path that cannot be written is reported before the testbed is made.
            let save = save.as_deref().map(diagnose::case::create).transpose()?;
            all_right &= run_one(entry, args, save, interrupt).with_context(|| format!("lab run {}", entry.name))?;
        }
    }
    Ok(all_right)
}

/// `dir/file.json` becomes `dir/file-NAME-N.json`.
fn numbered(path: &Path, name: &str, n: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{name}-{n}{extension}"))
}

fn run_one(entry: &Entry, args: &RunArgs, save: Option<PrivateFile>, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let recipe = entry.recipe()?;
    if let Some(program) = recipe.needs.iter().find(|program| !installed(program)) {
        return skip(entry, &recipe, args, &format!("needs {program}"));
    }
    if entry.kind == Kind::Case {
        return case::run(&recipe, args, save, interrupt);
    }
    let progress = terminal::Progress::start(&format!("{}: {}", recipe.id, recipe.title));
    let mut testbed = Testbed::make(&recipe, WARM_UP + args.window + MARGIN, interrupt)?;
    testbed.start_all(&recipe, interrupt)?;
    progress.say("warming up");
    interrupt.sleep(WARM_UP)?;
    testbed.check_alive()?;
    progress.say(&format!("observing for {} s", args.window.as_secs_f64()));
    let capture = observe_subject(&recipe, &testbed, args)?;
    interrupt.check()?;
    testbed.check_alive()?;
    let loads = testbed.end_all();
    drop(testbed);
    drop(progress);
    save.map_or(Ok(()), |file| diagnose::case::write(&capture, file))?;
    let report = parshall_core::judge::judge(&capture);
    let matched = recipe.expect.matches(&report);
    print(entry, &recipe, args, &report, matched, loads)?;
    Ok(matched)
}

/// Observes whom the recipe names, in the testbed as it runs now.
pub fn observe_subject(recipe: &Recipe, testbed: &Testbed, args: &RunArgs) -> anyhow::Result<Capture> {
    let select = match &recipe.subject.process {
        Some(name) => {
            let pid = testbed.pid(name).with_context(|| format!("the process {name} is not running"))?;
            Select::Pids(vec![pid])
        }
        None => Select::Port(testbed.port()),
    };
    observe(
        &select,
        &ObserveOptions {
            window: args.window,
            rung: args.rung,
            progress: false,
            name_all: args.save.is_some(),
            // No fault is a relay of parshall's own.
            read_relay: |_| None,
        },
        &mut Background::enter(),
    )
}

fn print(
    entry: &Entry,
    recipe: &Recipe,
    args: &RunArgs,
    report: &Report,
    matched: bool,
    loads: BTreeMap<String, Outcome>,
) -> anyhow::Result<()> {
    let got = verdict_name(report);
    let expected = recipe.expect.to_string();
    if args.format == Format::Json {
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
        return terminal::line(&serde_json::to_string(&result)?);
    }
    let style = output::style(None);
    let title = terminal::heading(&format!("{} · {}", recipe.id, recipe.title), style);
    let loads: String = loads.iter().map(|(name, outcome)| format!("{name:<9} {}\n", outcome.line())).collect();
    let judgement = if matched { "as expected" } else { "NOT as expected" };
    terminal::line(&format!(
        "{title}\nbroken    {}\nmoves     {}\n{loads}\n{}\n\nexpected {expected} · got {got} · {judgement}\n",
        recipe.broken,
        recipe.moves,
        report::text(report, style).trim_end(),
    ))?;
    Ok(())
}

fn skip(entry: &Entry, recipe: &Recipe, args: &RunArgs, why: &str) -> anyhow::Result<bool> {
    match args.format {
        Format::Text => terminal::line(&format!("{}: skipped: {why}", entry.name))?,
        Format::Json => {
            let result = RunResult {
                schema: RUN_SCHEMA,
                name: entry.name,
                kind: entry.kind,
                status: "skipped",
                expected: recipe.expect.to_string(),
                got: None,
                matched: false,
                skipped: Some(why.to_owned()),
                loads: BTreeMap::new(),
                report: None,
            };
            terminal::line(&serde_json::to_string(&result)?)?;
        }
    }
    Ok(true)
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
