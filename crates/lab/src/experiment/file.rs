//! The file of an experiment: read from TOML and checked once. Every error names the file and the line.
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use parshall_core::experiment::{BLOCKS_MAX, BLOCKS_MIN, Limits};
use parshall_core::sorting::IntoOrdered as _;
use parshall_core::testbed::{RawTestbed, Testbed};
use parshall_core::text::{position, quote, unknown_key_hint};
use parshall_core::values::{ValueError, duration_within};
use parshall_host::error::UserError;
use serde::Deserialize;
use toml::Spanned;

use super::metric::{Metric, Problem, RawMetric};
use crate::process::program_path;
use crate::recipe::{FileSpec, ProcessSpec, Stage, Wire, check_side, network};

/// Placeholders that the testbed fills in; a variable cannot have their names.
const PLACEHOLDERS: [&str; 8] = ["parshall", "addr", "port", "port2", "port3", "dir", "for", "seconds"];
const DOCS: &str = "docs/lab.md describes the file";
const VALUES_MAX: usize = 64;
const PASSES_DEFAULT: u32 = 8;
const BLOCKS_DEFAULT: u32 = 32;

/// A checked experiment.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// The path as it was given.
    pub path: String,
    /// The text of the file.
    pub text: String,
    pub title: String,
    /// The one thing that differs.
    pub variable: Variable,
    /// Program and arguments of a trial, with placeholders.
    pub command: Vec<String>,
    /// Variables in its environment, with placeholders.
    pub environment: BTreeMap<String, String>,
    /// CPUs that it may use; empty for all.
    pub cpus: Vec<usize>,
    /// A trial that takes longer has failed.
    pub timeout: Duration,
    /// Blocks at most, in `lab ab`.
    pub blocks: u32,
    /// Passes over all values, in `lab sweep`.
    pub passes: u32,
    /// The smallest difference of the first metric that matters: a share, or in its unit.
    pub smallest: f64,
    /// Shares of the best that make a knee and a collapse.
    pub knee: f64,
    pub collapse: f64,
    /// Sample the kernel on all CPUs during each trial.
    pub profile: bool,
    /// The seed of the order; None for a new one in each run.
    pub seed: Option<u64>,
    pub limits: Limits,
    /// Programs that must be installed, with their lines.
    needs: Vec<(u32, String)>,
    /// The testbed of each trial, with placeholders.
    pub stage: Stage,
    /// The first decides.
    pub metrics: Vec<Metric>,
}

/// The variable and its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    pub name: String,
    /// Two in `lab ab`: A and B.
    pub values: Vec<Value>,
    pub kind: Kind,
}

/// The kind of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Ab,
    Sweep,
}

/// A value: a word, or several where it stands for a whole argument.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Word(String),
    Integer(i64),
    Number(f64),
    Switch(bool),
    Words(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    title: Option<String>,
    variable: Spanned<RawVariable>,
    command: Spanned<Vec<String>>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    cpus: Vec<usize>,
    timeout: Option<Spanned<String>>,
    blocks: Option<Spanned<u32>>,
    passes: Option<Spanned<u32>>,
    smallest_effect: Option<Spanned<RawShare>>,
    knee: Option<Spanned<RawShare>>,
    collapse: Option<Spanned<RawShare>>,
    #[serde(default)]
    profile: bool,
    seed: Option<u64>,
    limits: Option<Spanned<RawLimits>>,
    #[serde(default)]
    needs: Vec<Spanned<String>>,
    wire: Option<Spanned<Wire>>,
    testbed: Option<RawTestbed>,
    #[serde(default, rename = "file")]
    files: Vec<FileSpec>,
    #[serde(default, rename = "process")]
    processes: Vec<Spanned<ProcessSpec>>,
    #[serde(default, rename = "metric")]
    metrics: Vec<RawMetric>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVariable {
    name: String,
    a: Option<Value>,
    b: Option<Value>,
    values: Option<Vec<Value>>,
}

/// `"2%"`, or a number in the unit of the metric.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawShare {
    Percent(String),
    Number(f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    steal: Option<String>,
    other_cpu: Option<String>,
    memory_pressure: Option<String>,
    io_pressure: Option<String>,
    frequency: Option<String>,
}

impl Experiment {
    /// Reads and checks the file.
    pub fn read(path: &Path) -> Result<Self, UserError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            UserError::new(format!("{name} cannot be read: {error}"), "give the path of the experiment's file")
        })?;
        Self::parse(&name, &text)
    }

    /// Checks a text; errors call it `path`.
    pub fn parse(path: &str, text: &str) -> Result<Self, UserError> {
        let at = |offset: usize, what: &str, hint: String| {
            UserError::new(format!("{path}:{}: {what}", position(text, offset).0), hint)
        };
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            at(error.span().map_or(0, |span| span.start), error.message(), unknown_key_hint(error.message(), DOCS))
        })?;
        raw.check(path, text).map_err(|(span, what, hint)| at(span.start, &what, hint))
    }

    /// An experiment that compares the time that two command lines take in a shell, and their CPU time and memory beside it.
    pub fn of_commands([a, b]: &[String; 2]) -> Result<Self, UserError> {
        let variable = BTreeMap::from([("name", "command"), ("a", a), ("b", b)]);
        let metric = |name: &str, measure: &str, unit: &str| {
            let keys = [("name", name), ("better", "lower"), ("unit", unit), ("measure", measure)];
            toml::Value::from(keys.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().into_map())
        };
        let mut file = toml::Table::new();
        file.insert("title".to_owned(), "two commands".into());
        file.insert("command".to_owned(), vec!["sh", "-c", "{command}"].into());
        file.insert("variable".to_owned(), toml::Value::try_from(variable).expect("a table of strings"));
        let metrics =
            [metric("time", "wall-time", "s"), metric("cpu", "cpu-time", "s"), metric("memory", "peak-rss", "B")];
        file.insert("metric".to_owned(), metrics.to_vec().into());
        Self::parse("the command line", &file.to_string())
    }

    /// Fails if a program that the experiment needs is not installed here.
    pub fn check_programs(&self) -> Result<(), UserError> {
        let missing = self.needs.iter().find(|(_, program)| program_path(program).is_none());
        missing.map_or(Ok(()), |(line, program)| {
            let what = format!("{}:{line}: {} is not installed", self.path, quote(program));
            Err(UserError::new(what, "install it, or take it out of needs"))
        })
    }

    /// The words of a trial with one value.
    pub fn command(&self, value: &Value) -> Vec<String> {
        self.variable.fill_words(&self.command, value)
    }

    /// The environment of a trial with one value.
    pub fn environment(&self, value: &Value) -> BTreeMap<String, String> {
        let fill = |(name, text): (&String, &String)| (name.clone(), self.variable.fill(text, value));
        self.environment.iter().map(fill).into_map()
    }

    /// The testbed of a trial with one value.
    pub fn stage(&self, value: &Value) -> Stage {
        let mut stage = self.stage.clone();
        for file in &mut stage.files {
            file.text = self.variable.fill(&file.text, value);
        }
        let namespaces = stage.network.iter_mut().flat_map(|testbed| &mut testbed.namespaces);
        for (_, text) in namespaces.flat_map(|namespace| &mut namespace.sysctls) {
            *text = self.variable.fill(text, value);
        }
        for process in &mut stage.processes {
            process.command = self.variable.fill_words(&process.command, value);
        }
        stage
    }
}

impl Variable {
    fn placeholder(&self) -> String {
        format!("{{{}}}", self.name)
    }

    fn fill(&self, text: &str, value: &Value) -> String {
        text.replace(&self.placeholder(), &value.to_string())
    }

    /// An argument that is nothing but the placeholder becomes all words of the value, which may be none.
    fn fill_words(&self, words: &[String], value: &Value) -> Vec<String> {
        let one = |word: &String| match value {
            Value::Words(words) if *word == self.placeholder() => words.clone(),
            _ => vec![self.fill(word, value)],
        };
        words.iter().flat_map(one).collect()
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Switch(on) => on.fmt(f),
            Self::Words(words) => f.write_str(&words.join(" ")),
        }
    }
}

impl RawFile {
    fn check(self, path: &str, text: &str) -> Result<Experiment, Problem> {
        let variable = check_variable(&self.variable)?;
        let network = self.network(text.len())?;
        if self.command.get_ref().is_empty() {
            let hint = "write command = [\"PROGRAM\", \"ARGUMENT\", ...]".to_owned();
            return Err((self.command.span(), "the command is empty".to_owned(), hint));
        }
        self.check_placeholder(&variable, network.as_ref())?;
        self.check_stage(network.as_ref())?;
        let metrics = super::metric::check(&self.metrics, &self.process_names())?;
        if variable.kind == Kind::Sweep && !metrics[0].is_ratio() {
            let what = format!("{} is compared by its difference", quote(&metrics[0].name));
            return Err((
                self.variable.span(),
                what,
                "a sweep needs a first metric that is compared by its ratio".to_owned(),
            ));
        }
        let smallest = match &self.smallest_effect {
            Some(raw) => positive(raw, if metrics[0].is_ratio() { Some("2%") } else { None })?,
            None if metrics[0].is_ratio() => 0.02,
            None => {
                let what =
                    format!("{} is compared by its difference, and no smallest_effect is set", quote(&metrics[0].name));
                return Err((0..0, what, format!("write smallest_effect = NUMBER, in {}", metrics[0].unit)));
            }
        };
        let within = |raw: &Option<Spanned<RawShare>>, default: f64| match raw {
            Some(raw) => positive(raw, Some("5%")),
            None => Ok(default),
        };
        let stem = Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        Ok(Experiment {
            path: path.to_owned(),
            text: text.to_owned(),
            title: self.title.clone().or(stem).unwrap_or_default(),
            environment: self.environment,
            cpus: self.cpus,
            timeout: self.timeout.as_ref().map_or(Ok(Duration::from_secs(60)), timed)?,
            blocks: counted(self.blocks.as_ref(), BLOCKS_MIN, BLOCKS_MAX, BLOCKS_DEFAULT)?,
            passes: counted(self.passes.as_ref(), 3, 1000, PASSES_DEFAULT)?,
            smallest,
            knee: within(&self.knee, 0.05)?,
            collapse: within(&self.collapse, 0.1)?,
            profile: self.profile,
            seed: self.seed,
            needs: self.needs.iter().map(|n| (position(text, n.span().start).0, n.get_ref().clone())).collect(),
            limits: self.limits.as_ref().map_or(Ok(Limits::default()), limits)?,
            stage: Stage {
                network,
                files: self.files,
                processes: self.processes.into_iter().map(Spanned::into_inner).collect(),
            },
            command: self.command.into_inner(),
            variable,
            metrics,
        })
    }

    /// The one variable must make a difference.
    fn check_placeholder(&self, variable: &Variable, network: Option<&Testbed>) -> Result<(), Problem> {
        let placeholder = variable.placeholder();
        let processes = self.processes.iter().flat_map(|process| &process.get_ref().command);
        let files = self.files.iter().map(|file| &file.text);
        let namespaces = network.into_iter().flat_map(|testbed| &testbed.namespaces);
        let sysctls = namespaces.flat_map(|namespace| &namespace.sysctls).map(|(_, value)| value);
        let of_command = self.command.get_ref().iter().chain(self.environment.values());
        let mut texts = of_command.chain(processes).chain(files).chain(sysctls);
        if texts.any(|text| text.contains(&placeholder)) {
            return Ok(());
        }
        let what = format!("{} is used nowhere, so all trials would be alike", quote(&placeholder));
        Err((
            self.variable.span(),
            what,
            format!("write {placeholder} into the command, a process, a file, the environment or a sysctl"),
        ))
    }

    /// The network that `wire` or `testbed` makes. `end` is the length of the file.
    fn network(&self, end: usize) -> Result<Option<Testbed>, Problem> {
        if let Some(wire) = &self.wire {
            wire.get_ref().check().map_err(|(what, hint)| (wire.span(), what, hint))?;
        }
        let wire = self.wire.as_ref().map(|wire| wire.get_ref().clone()).unwrap_or_default();
        network(&wire, self.testbed.as_ref(), end)
            .map_err(|problem| (problem.at..problem.at, problem.error.what, problem.error.hint))
    }

    fn check_stage(&self, network: Option<&Testbed>) -> Result<(), Problem> {
        for (i, process) in self.processes.iter().enumerate() {
            let name = &process.get_ref().name;
            check_side(network, &process.get_ref().side).map_err(|(what, hint)| (process.span(), what, hint))?;
            if process.get_ref().command.is_empty() {
                let hint = "give every [[process]] a command = [...]".to_owned();
                return Err((process.span(), format!("the process {} has no command", quote(name)), hint));
            }
            let taken =
                name == "command" || name == "all" || self.processes[..i].iter().any(|p| p.get_ref().name == *name);
            if taken {
                let hint = "give each [[process]] a name of its own; `command` and `all` are taken".to_owned();
                return Err((process.span(), format!("the name {} is taken", quote(name)), hint));
            }
        }
        Ok(())
    }

    fn process_names(&self) -> Vec<String> {
        self.processes.iter().map(|process| process.get_ref().name.clone()).collect()
    }
}

fn check_variable(raw: &Spanned<RawVariable>) -> Result<Variable, Problem> {
    let fail = |what: String, hint: &str| Err((raw.span(), what, hint.to_owned()));
    let RawVariable { name, a, b, values } = raw.get_ref();
    let word = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !word || PLACEHOLDERS.contains(&name.as_str()) {
        let hint = "take small letters, digits and _, and none of the placeholders of docs/lab.md";
        return fail(format!("{} cannot be the name of a variable", quote(name)), hint);
    }
    let (values, kind) = match (a, b, values) {
        (Some(a), Some(b), None) => (vec![a.clone(), b.clone()], Kind::Ab),
        (None, None, Some(values)) => (values.clone(), Kind::Sweep),
        _ => {
            return fail(
                "the variable needs its values".to_owned(),
                "write a = ... and b = ... for `lab ab`, values = [...] for `lab sweep`",
            );
        }
    };
    if kind == Kind::Sweep && !(2..=VALUES_MAX).contains(&values.len()) {
        return fail(format!("a sweep over {} values", values.len()), "give 2 to 64 values, in ascending order");
    }
    let repeated = values.iter().enumerate().find(|(i, value)| kind == Kind::Sweep && values[..*i].contains(value));
    if let Some((_, value)) = repeated {
        return fail(
            format!("the value {} stands there twice", quote(&value.to_string())),
            "give each value once: passes repeat them",
        );
    }
    Ok(Variable { name: name.clone(), values, kind })
}

fn problem<T>(span: std::ops::Range<usize>, found: Result<T, ValueError>) -> Result<T, Problem> {
    found.map_err(|error| (span, error.what, error.hint))
}

fn timed(raw: &Spanned<String>) -> Result<Duration, Problem> {
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(86_400));
    problem(raw.span(), duration_within(raw.get_ref(), least, most, "choose a time from 100ms to 24h"))
}

fn counted(raw: Option<&Spanned<u32>>, least: u32, most: u32, default: u32) -> Result<u32, Problem> {
    let Some(raw) = raw else { return Ok(default) };
    let count = *raw.get_ref();
    let fits = (least..=most).contains(&count).then_some(count);
    fits.ok_or_else(|| (raw.span(), format!("{count} is out of range"), format!("choose from {least} to {most}")))
}

/// A share of one, above 0. `example` is None where a number in the unit of the metric is wanted instead.
fn positive(raw: &Spanned<RawShare>, example: Option<&str>) -> Result<f64, Problem> {
    match (raw.get_ref(), example) {
        (RawShare::Number(number), None) if *number > 0.0 && number.is_finite() => Ok(*number),
        (RawShare::Percent(text), Some(_)) => share(text)
            .filter(|share| *share > 0.0)
            .ok_or_else(|| (raw.span(), format!("{} is no share", quote(text)), "write it as \"2%\"".to_owned())),
        (_, None) => {
            Err((raw.span(), "a number above 0 is needed".to_owned(), "write it in the unit of the metric".to_owned()))
        }
        (_, Some(example)) => Err((raw.span(), "a share is needed".to_owned(), format!("write it as {example:?}"))),
    }
}

/// `2%` as 0.02; below 100 %.
fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (0.0..100.0).contains(&percent).then_some(percent / 100.0)
}

fn limits(raw: &Spanned<RawLimits>) -> Result<Limits, Problem> {
    let of = |text: &Option<String>, default: Option<f64>| match text.as_deref() {
        None => Ok(default),
        Some("off") => Ok(None),
        Some(text) => share(text).map(Some).ok_or_else(|| {
            (raw.span(), format!("{} is no limit", quote(text)), "write it as \"2%\" or \"off\"".to_owned())
        }),
    };
    let (raw, default) = (raw.get_ref(), Limits::default());
    Ok(Limits {
        steal: of(&raw.steal, default.steal)?,
        other_cpu: of(&raw.other_cpu, default.other_cpu)?,
        memory_pressure: of(&raw.memory_pressure, default.memory_pressure)?,
        io_pressure: of(&raw.io_pressure, default.io_pressure)?,
        frequency: of(&raw.frequency, default.frequency)?,
    })
}

#[cfg(test)]
mod tests;
