//! The file of a study: an experiment without its variable, and the comparisons that fill it in.
use std::collections::BTreeMap;
use std::time::Duration;

use parshall_core::experiment::Verdict;
use parshall_core::text::quote;
use parshall_core::values::duration_within;
use parshall_host::error::UserError;
use serde::Deserialize;
use toml::{Table, Value};

use super::{Comparison, Diagnosis, Expect, Expected, Study};
use crate::experiment::Experiment;
use crate::recipe::{Expect as ExpectedCause, SubjectSpec};

/// The placeholder for how long the load of a trial lasts.
const TIME: &str = "time";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStudy {
    id: String,
    title: String,
    question: String,
    /// How long the load of a trial lasts.
    time: String,
    #[serde(default)]
    needs: Vec<String>,
    experiment: Table,
    #[serde(rename = "comparison")]
    comparisons: Vec<RawComparison>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawComparison {
    name: String,
    variable: Table,
    /// Values of further placeholders.
    #[serde(default)]
    with: BTreeMap<String, Words>,
    expect: RawExpect,
    diagnosis: Option<RawDiagnosis>,
}

/// A word, or several for an argument that is nothing but the placeholder.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpect {
    verdicts: Option<Vec<Verdict>>,
    knee: Option<bool>,
    collapse: Option<bool>,
    because: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDiagnosis {
    /// The index of the variable's value; A is 0 and B is 1.
    value: usize,
    subject: SubjectSpec,
    expect: ExpectedCause,
}

impl Study {
    /// Whether a case's text is a study.
    pub fn is_one(text: &str) -> bool {
        text.lines().any(|line| line.trim() == "[experiment]")
    }

    /// Parses and checks a study; errors call it `name`. Observations last for `window`, and the load of a trial for `time`, if that is
    /// given.
    pub fn parse(name: &str, text: &str, window: Duration, time: Option<Duration>) -> Result<Self, UserError> {
        let fail = |what: String, hint: &str| UserError::new(format!("{name}: {what}"), hint);
        let raw: RawStudy =
            toml::from_str(text).map_err(|error| fail(error.to_string(), "docs/lab.md describes the file"))?;
        let written = duration_within(&raw.time, Duration::from_millis(100), Duration::from_secs(60), "")
            .map_err(|error| fail(error.what, "write the time as \"2s\""))?;
        let time = time.unwrap_or(written);
        let comparisons = raw.comparisons.into_iter().map(|comparison| {
            comparison.check(&raw.experiment, time, window).map_err(|error| fail(error.what, &error.hint))
        });
        Ok(Self {
            comparisons: comparisons.collect::<Result<_, _>>()?,
            id: raw.id,
            title: raw.title,
            question: raw.question,
            needs: raw.needs,
        })
    }
}

impl RawComparison {
    fn check(self, base: &Table, time: Duration, window: Duration) -> Result<Comparison, UserError> {
        let experiment = self.experiment(base, time)?;
        let answer = match &self.expect {
            RawExpect { verdicts: Some(verdicts), knee: None, collapse: None, .. } => {
                Expected::Verdicts(verdicts.clone())
            }
            RawExpect { verdicts: None, knee: Some(knee), collapse: Some(collapse), .. } => {
                Expected::Shape { knee: *knee, collapse: *collapse }
            }
            _ => {
                let what = format!("expect of {} is ambiguous", quote(&self.name));
                return Err(UserError::new(what, "give it either verdicts, or knee and collapse"));
            }
        };
        let diagnosis = match &self.diagnosis {
            Some(raw) => Some(Diagnosis {
                experiment: self.experiment(base, window + super::DIAGNOSIS_MARGIN)?,
                value: raw.value,
                subject: raw.subject.clone(),
                expect: raw.expect.clone(),
            }),
            None => None,
        };
        if diagnosis.as_ref().is_some_and(|diagnosis| diagnosis.value >= experiment.variable.values.len()) {
            let what = format!("the diagnosis of {} is of no value of the variable", quote(&self.name));
            return Err(UserError::new(what, "its value is an index, from 0"));
        }
        Ok(Comparison {
            experiment,
            expect: Expect { answer, because: self.expect.because },
            diagnosis,
            name: self.name,
        })
    }

    /// The experiment with this variable, as if it had a file of its own.
    fn experiment(&self, base: &Table, time: Duration) -> Result<Experiment, UserError> {
        let mut with = self.with.clone();
        with.insert(TIME.to_owned(), Words::One(format!("{}ms", time.as_millis())));
        let mut file = base.clone();
        file.iter_mut().for_each(|(_, value)| fill(value, &with));
        file.insert("title".to_owned(), Value::String(self.name.clone()));
        file.insert("variable".to_owned(), Value::Table(self.variable.clone()));
        let text = toml::to_string(&file).expect("tables of strings are TOML");
        Experiment::parse(&self.name, &text)
    }
}

/// Replaces the placeholders in all strings below a value.
fn fill(value: &mut Value, with: &BTreeMap<String, Words>) {
    match value {
        Value::String(text) => *text = filled(text, with),
        Value::Array(values) => {
            *values = std::mem::take(values).into_iter().flat_map(|value| spread(value, with)).collect()
        }
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| fill(value, with)),
        _ => {}
    }
}

/// An element of an array: several where it is nothing but the placeholder of several words.
fn spread(mut element: Value, with: &BTreeMap<String, Words>) -> Vec<Value> {
    let several = with.iter().find_map(|(name, words)| match words {
        Words::Several(words) if element.as_str() == Some(&placeholder(name)) => Some(words),
        _ => None,
    });
    if let Some(words) = several {
        return words.iter().map(|word| Value::String(word.clone())).collect();
    }
    fill(&mut element, with);
    vec![element]
}

fn filled(text: &str, with: &BTreeMap<String, Words>) -> String {
    with.iter().fold(text.to_owned(), |text, (name, words)| match words {
        Words::One(word) => text.replace(&placeholder(name), word),
        Words::Several(words) => text.replace(&placeholder(name), &words.join(" ")),
    })
}

fn placeholder(name: &str) -> String {
    format!("{{{name}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        id = "x"
        title = "t"
        question = "q"
        time = "2s"

        [experiment]
        command = ["{parshall}", "{words}", "{kind}", "--threads", "{threads}", "--for", "{time}"]
        [[experiment.metric]]
        name = "rate"
        better = "higher"
        json = "/rate_per_s"

        [[comparison]]
        name = "two threads"
        variable = { name = "threads", a = 1, b = 2 }
        with = { kind = "rpc", words = ["lab", "load"] }
        expect = { verdicts = ["better", "real-but-small"], because = "there are two CPUs" }
        diagnosis = { value = 1, subject = { port = true }, expect = { cause = "app-limited" } }

        [[comparison]]
        name = "more threads"
        variable = { name = "threads", values = [1, 2, 4] }
        with = { kind = "rpc", words = ["lab", "load"] }
        expect = { knee = true, collapse = false, because = "there are two CPUs" }
    "#;

    #[test]
    fn comparisons_fill_in_the_experiment() {
        assert!(Study::is_one(GOOD));
        let study = Study::parse("x", GOOD, Duration::from_secs(5), None).expect("it is valid");
        let [two, more] = &study.comparisons[..] else { panic!("two of them") };
        let words = |experiment: &Experiment, value: usize| {
            experiment.command(&experiment.variable.values[value])[3..].join(" ")
        };
        assert_eq!(words(&two.experiment, 1), "rpc --threads 2 --for 2000ms");
        assert_eq!(words(&more.experiment, 2), "rpc --threads 4 --for 2000ms");
        let diagnosis = two.diagnosis.as_ref().expect("one");
        assert_eq!(words(&diagnosis.experiment, diagnosis.value), "rpc --threads 2 --for 8000ms");
        assert_eq!(more.expect.answer, Expected::Shape { knee: true, collapse: false });
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, what) in [
            ("time = \"2s\"", "time = \"2\"", "x: "),
            ("because = \"there", "knee = true, because = \"there", "expect of `two threads` is ambiguous"),
            ("value = 1", "value = 2", "the diagnosis of `two threads` is of no value"),
            ("a = 1, b = 2", "a = 1", "the variable needs its values"),
            ("\"{threads}\"", "\"1\"", "is used nowhere"),
        ] {
            let error = Study::parse("x", &GOOD.replacen(from, to, 1), Duration::from_secs(5), None).expect_err(to);
            assert!(error.what.contains(what), "{to}: {}", error.what);
        }
    }
}
