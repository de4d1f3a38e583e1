//! Metrics: where the number of a trial comes from, and which way is better.
use std::collections::BTreeMap;

use parshall_core::text::quote;
use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::tool_output::{ToolValue, document};
use crate::process::Ended;

/// The name of the measured command among the processes.
pub const COMMAND: &str = "command";
/// Stands for the command and all processes together.
const ALL: &str = "all";
const METRICS_MAX: usize = 32;
const SEVERAL_OUTPUTS: &str = "several processes have no output of their own";

/// One number of a trial.
#[derive(Debug, Clone)]
pub struct Metric {
    pub name: String,
    /// SI unit; `1` for a ratio.
    pub unit: String,
    pub better: Better,
    pub compare: Compare,
    source: Source,
    /// The processes whose output or use it is, [`COMMAND`] or [`ALL`]. Only measured values are summed over several.
    of: Vec<String>,
    /// It is divided by this metric.
    per: Option<String>,
    scale: f64,
}

/// The direction in which a value is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Higher,
    Lower,
    /// It is recorded, and no judgement is made of it.
    Neither,
}

/// How two values are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compare {
    /// By their ratio; both must be above 0.
    #[default]
    Ratio,
    /// By their difference, in the unit of the metric.
    Difference,
}

#[derive(Debug, Clone)]
enum Source {
    /// The first group of the last match in the output.
    Regex(Regex),
    /// A JSON pointer (RFC 6901) into the output, or into its last line that is JSON.
    Json(String),
    /// A value of another generator's output.
    Tool(ToolValue),
    Measure(Measure),
}

/// A value that the lab measures itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Measure {
    /// From the start of the command to its end, in s.
    WallTime,
    /// CPU time of the process and of descendants that it waited for, from its start to its end, in s.
    CpuTime,
    UserTime,
    SystemTime,
    /// Both kinds of context switches.
    ContextSwitches,
    /// The largest resident memory, in bytes.
    PeakRss,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawMetric {
    name: Spanned<String>,
    #[serde(default)]
    unit: String,
    better: Better,
    #[serde(default)]
    compare: Compare,
    regex: Option<Spanned<String>>,
    json: Option<Spanned<String>>,
    output: Option<Spanned<String>>,
    measure: Option<Measure>,
    of: Option<Spanned<Of>>,
    per: Option<Spanned<String>>,
    scale: Option<f64>,
}

/// One process or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Of {
    One(String),
    Several(Vec<String>),
}

/// The outputs and resources of a trial, from which its metrics are read.
#[derive(Debug)]
pub struct Trial {
    /// The command and the processes, by name.
    pub ended: BTreeMap<String, Ended>,
    pub wall_s: f64,
}

/// An error in the file: its range of bytes, the message, and the hint.
pub type Problem = (std::ops::Range<usize>, String, String);

/// Checks the metrics of a file.
pub fn check(raw: &[RawMetric], processes: &[String]) -> Result<Vec<Metric>, Problem> {
    if raw.is_empty() || raw.len() > METRICS_MAX {
        let hint = "add a [[metric]] with name, better and one of regex, json, output, measure; the first decides";
        return Err((0..0, format!("{} metrics", raw.len()), hint.to_owned()));
    }
    let names: Vec<&str> = raw.iter().map(|metric| metric.name.get_ref().as_str()).collect();
    let metrics = raw.iter().enumerate().map(|(i, metric)| metric.check(&names, i, processes));
    let metrics: Vec<Metric> = metrics.collect::<Result<_, _>>()?;
    if metrics[0].better == Better::Neither {
        let hint = "write better = \"higher\" or \"lower\", or put another metric first".to_owned();
        return Err((raw[0].name.span(), "the first metric decides, so it needs a direction".to_owned(), hint));
    }
    Ok(metrics)
}

impl RawMetric {
    fn check(&self, names: &[&str], index: usize, processes: &[String]) -> Result<Metric, Problem> {
        let name = self.name.get_ref();
        if name.is_empty() || names[..index].contains(&name.as_str()) {
            return Err((
                self.name.span(),
                format!("the metric {} stands there twice", quote(name)),
                "give each a name of its own".into(),
            ));
        }
        let of = match self.of.as_ref().map(Spanned::get_ref) {
            None => vec![COMMAND.to_owned()],
            Some(Of::One(one)) => vec![one.clone()],
            Some(Of::Several(several)) => several.clone(),
        };
        let span = self.of.as_ref().map_or(self.name.span(), Spanned::span);
        let listed = matches!(self.of.as_ref().map(Spanned::get_ref), Some(Of::Several(_)));
        let known = |of: &String| of == COMMAND || processes.contains(of) || (of == ALL && !listed);
        if let Some(of) = of.iter().find(|of| !known(of)) {
            let hint = "write `command`, `all`, the name of a [[process]], or a list of names".to_owned();
            return Err((span, format!("there is no process {}", quote(of)), hint));
        }
        if of.is_empty() {
            return Err((span, "the list of processes is empty".to_owned(), "name one of them".to_owned()));
        }
        let source = self.source(&of)?;
        if let Some(per) =
            self.per.as_ref().filter(|per| per.get_ref() == name || !names.contains(&per.get_ref().as_str()))
        {
            let hint = "write the name of another metric, such as one of bytes or requests".to_owned();
            return Err((per.span(), format!("there is no other metric {}", quote(per.get_ref())), hint));
        }
        let scale = self.scale.unwrap_or(1.0);
        if !scale.is_finite() || scale <= 0.0 {
            return Err((
                self.name.span(),
                format!("the scale {scale} of {}", quote(name)),
                "write a number above 0".into(),
            ));
        }
        Ok(Metric {
            name: name.clone(),
            unit: if self.unit.is_empty() { "1".to_owned() } else { self.unit.clone() },
            better: self.better,
            compare: self.compare,
            source,
            of,
            per: self.per.as_ref().map(|per| per.get_ref().clone()),
            scale,
        })
    }

    fn source(&self, of: &[String]) -> Result<Source, Problem> {
        let fail = |span, what: String, hint: &str| Err((span, what, hint.to_owned()));
        let is_one = of.len() == 1 && of[0] != ALL;
        if let (Some(output), None, None, None) = (&self.output, &self.regex, &self.json, self.measure) {
            return match ToolValue::parse(output.get_ref()) {
                Ok(_) if !is_one => fail(output.span(), SEVERAL_OUTPUTS.into(), "name one process in `of`"),
                Ok(value) => Ok(Source::Tool(value)),
                Err(hint) => fail(output.span(), format!("{} is no known value", quote(output.get_ref())), &hint),
            };
        }
        let named = (&self.regex, &self.json, self.measure);
        let source = match if self.output.is_some() { (&None, &None, None) } else { named } {
            (Some(regex), None, None) => match Regex::new(regex.get_ref()) {
                Ok(compiled) if compiled.captures_len() == 2 => Source::Regex(compiled),
                Ok(_) => {
                    let hint = "put the number into parentheses, and use (?:...) for other groups";
                    return fail(regex.span(), "the regular expression needs one group".into(), hint);
                }
                Err(error) => {
                    return fail(
                        regex.span(),
                        format!("the regular expression is wrong: {error}"),
                        "write it as 'rate: ([0-9.]+)'",
                    );
                }
            },
            (None, Some(pointer), None) if pointer.get_ref().is_empty() || pointer.get_ref().starts_with('/') => {
                Source::Json(pointer.get_ref().clone())
            }
            (None, Some(pointer), None) => {
                let hint = "begin it with a slash, as in \"/end/sum_received/bits_per_second\"";
                return fail(pointer.span(), format!("{} is no JSON pointer", quote(pointer.get_ref())), hint);
            }
            (None, None, Some(measure)) => Source::Measure(measure),
            _ => {
                let what = format!("the metric {} needs one source", quote(self.name.get_ref()));
                return fail(self.name.span(), what, "give it one of regex, json, output or measure");
            }
        };
        let summed = matches!(source, Source::Measure(measure) if measure != Measure::WallTime);
        if !is_one && !summed {
            return fail(self.name.span(), SEVERAL_OUTPUTS.into(), "name one process in `of`");
        }
        Ok(source)
    }
}

impl Metric {
    pub fn is_ratio(&self) -> bool {
        self.compare == Compare::Ratio
    }

    /// The value before it is divided by another metric.
    fn raw(&self, trial: &Trial) -> Result<f64, String> {
        let of = |ended: &Ended, measure| match measure {
            Measure::WallTime => trial.wall_s,
            Measure::CpuTime => ended.usage.user_s + ended.usage.system_s,
            Measure::UserTime => ended.usage.user_s,
            Measure::SystemTime => ended.usage.system_s,
            Measure::ContextSwitches => (ended.usage.voluntary_switches + ended.usage.involuntary_switches) as f64,
            Measure::PeakRss => ended.usage.peak_rss_bytes as f64,
        };
        let ended = |name: &String| trial.ended.get(name).ok_or_else(|| format!("{} did not run", quote(name)));
        let named = || ended(&self.of[0]);
        match &self.source {
            Source::Measure(Measure::WallTime) => Ok(trial.wall_s),
            Source::Measure(measure) if self.of[0] == ALL => {
                Ok(trial.ended.values().map(|ended| of(ended, *measure)).sum())
            }
            Source::Measure(measure) => self.of.iter().map(|name| Ok(of(ended(name)?, *measure))).sum(),
            Source::Regex(regex) => {
                let ended = named()?;
                let found = [&ended.stdout, &ended.stderr_tail].into_iter().find_map(|text| last_group(regex, text));
                let text = found.ok_or_else(|| format!("nothing in the output matches {}", quote(regex.as_str())))?;
                number(text)
            }
            Source::Tool(value) => value.read(&named()?.stdout),
            Source::Json(pointer) => {
                let document = document(&named()?.stdout).ok_or("the output is not JSON")?;
                let value = document.pointer(pointer).ok_or_else(|| format!("the output has no {}", quote(pointer)))?;
                match value.as_f64() {
                    Some(value) => Ok(value),
                    None => number(value.as_str().unwrap_or_default()),
                }
            }
        }
    }
}

/// The values of all metrics of a trial, by name; or what is wrong with one of them.
pub fn values(metrics: &[Metric], trial: &Trial) -> Result<BTreeMap<String, f64>, String> {
    let raw: Result<BTreeMap<&str, f64>, String> = metrics
        .iter()
        .map(|metric| Ok((metric.name.as_str(), metric.raw(trial).map_err(|why| format!("{}: {why}", metric.name))?)))
        .collect();
    let raw = raw?;
    let value = |metric: &Metric| {
        let per = metric.per.as_deref().and_then(|per| raw.get(per)).copied().unwrap_or(1.0);
        let value = raw[metric.name.as_str()] * metric.scale / per;
        let usable = value.is_finite() && (value > 0.0 || !metric.is_ratio() || metric.better == Better::Neither);
        match usable {
            true => Ok((metric.name.clone(), value)),
            false => Err(format!("{} is {value}, and a ratio needs a number above 0", metric.name)),
        }
    };
    metrics.iter().map(value).collect()
}

fn last_group<'t>(regex: &Regex, text: &'t str) -> Option<&'t str> {
    regex.captures_iter(text).last()?.get(1).map(|group| group.as_str())
}

/// A number, perhaps with commas between thousands.
fn number(text: &str) -> Result<f64, String> {
    let found = text.trim().replace(',', "").parse().ok().filter(|value: &f64| value.is_finite());
    found.ok_or_else(|| format!("{} is no number", quote(text)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use parshall_sys::measured_child::Usage;

    use super::*;

    fn trial(stdout: &str, stderr: &str) -> Trial {
        let usage = Usage { user_s: 0.5, system_s: 0.25, voluntary_switches: 7, ..Usage::default() };
        let status = ExitStatus::from_raw(0);
        let ended = |stdout: &str| Ended { status, usage, stdout: stdout.into(), stderr_tail: stderr.into() };
        Trial { ended: [(COMMAND.to_owned(), ended(stdout)), ("server".to_owned(), ended("{}"))].into(), wall_s: 2.0 }
    }

    fn metrics(text: &str) -> Vec<Metric> {
        #[derive(Deserialize)]
        struct File {
            metric: Vec<RawMetric>,
        }
        let file: File = toml::from_str(text).expect("it parses");
        check(&file.metric, &["server".to_owned()]).expect("it is valid")
    }

    fn one(source: &str, trial: &Trial) -> Result<f64, String> {
        let metrics = metrics(&format!("[[metric]]\nname = \"m\"\nbetter = \"lower\"\n{source}"));
        values(&metrics, trial).map(|values| values["m"])
    }

    #[test]
    fn numbers_come_from_the_output() {
        let text = trial("rate: 10\nrate: 1,234.5 /s\n", "\n  lag 3e-3");
        assert_eq!(one(r"regex = 'rate: ([0-9.,]+)'", &text), Ok(1234.5));
        assert_eq!(one(r"regex = 'lag ([0-9.e-]+)'", &text), Ok(0.003));
        let json = trial("hello\n{\"end\": [{\"bps\": 8e9}], \"text\": \"17\"}\n", "");
        assert_eq!(one("json = '/end/0/bps'\nscale = 0.125", &json), Ok(1e9));
        assert_eq!(one("json = '/text'", &json), Ok(17.0));
    }

    #[test]
    fn what_the_lab_measures_itself() {
        let trial = trial("{\"bytes\": 3000000}", "");
        assert_eq!(one("measure = 'wall-time'", &trial), Ok(2.0));
        assert_eq!(one("measure = 'cpu-time'", &trial), Ok(0.75));
        assert_eq!(one("measure = 'cpu-time'\nof = 'all'", &trial), Ok(1.5));
        assert_eq!(one("measure = 'context-switches'\nof = 'server'", &trial), Ok(7.0));
        assert_eq!(one("measure = 'context-switches'\nof = ['server', 'command']", &trial), Ok(14.0));
        let demand = metrics(
            "[[metric]]\nname = 'demand'\nbetter = 'lower'\nmeasure = 'cpu-time'\nper = 'bytes'\nscale = 1e9
[[metric]]\nname = 'bytes'\nbetter = 'neither'\njson = '/bytes'",
        );
        assert_eq!(values(&demand, &trial).expect("both")["demand"], 250.0);
    }

    #[test]
    fn other_generators_are_understood() {
        let wrk = trial("  Latency Distribution\n     99%   12.34ms\nRequests/sec:    970.64\n", "");
        assert_eq!(one("output = 'wrk.p99_us'\nscale = 1e-6", &wrk), Ok(0.01234));
        assert!(one("output = 'wrk.bytes_per_s'", &wrk).is_err_and(|why| why.contains("no bytes_per_s")));
    }

    #[test]
    fn what_is_not_there_is_said() {
        let empty = trial("nothing", "");
        assert!(
            one("regex = 'rate: ([0-9]+)'", &empty).is_err_and(|why| why.contains("nothing in the output matches"))
        );
        assert!(one("json = '/a'", &empty).is_err_and(|why| why.contains("not JSON")));
        assert!(one("json = '/a'", &trial("{}", "")).is_err_and(|why| why.contains("has no `/a`")));
        assert!(one("json = '/a'", &trial("{\"a\": 0}", "")).is_err_and(|why| why.contains("above 0")));
        assert_eq!(one("json = '/a'\ncompare = 'difference'", &trial("{\"a\": 0}", "")), Ok(0.0));
        assert!(one("regex = '(\\w+)'", &empty).is_err_and(|why| why.contains("is no number")));
    }
}
