//! The results: JSON lines that are only ever appended to. A run is a line with its manifest, a line for each trial, and a line at
//! its end. A run without that line was interrupted, and can be resumed.
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use parshall_core::experiment::{Conditions, Role};
use parshall_host::error::UserError;
use serde::{Deserialize, Serialize};

use super::file::Kind;
use super::manifest::Manifest;

/// The format of the file.
pub const RESULTS_SCHEMA: &str = "parshall.lab-results/1";

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    Run(Box<RunRecord>),
    Trial(Box<TrialRecord>),
    End(EndRecord),
}

/// The beginning of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub schema: String,
    /// The id of the run: when it began, in UTC.
    pub run: String,
    pub kind: Kind,
    /// The path of the experiment's file as it was given.
    pub experiment: String,
    /// The text of that file.
    pub text: String,
    /// Of the order of the trials.
    pub seed: u64,
    /// Blocks at most, or passes.
    pub most: u32,
    /// Two trials at a time: B beside A, and the repeat of A beside another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duet: bool,
    pub manifest: Manifest,
}

/// A trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    pub run: String,
    /// The block or the pass that it belongs to, from 0; blocks that are spoilt count too.
    pub block: u32,
    /// In `lab ab` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The index of the variable's value.
    pub index: usize,
    pub value: String,
    /// When it ended, in UTC.
    pub at: String,
    pub metrics: BTreeMap<String, f64>,
    pub wall_s: f64,
    /// CPU time by process; `command` is the command.
    pub cpu_s: BTreeMap<String, f64>,
    pub conditions: Conditions,
    /// Why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spoilt: Option<String>,
    /// How much the network counters grew.
    pub counters: BTreeMap<String, u64>,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndRecord {
    pub run: String,
    /// When it ended, in UTC.
    pub at: String,
}

/// A run as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub head: RunRecord,
    pub trials: Vec<TrialRecord>,
    pub complete: bool,
}

/// The runs of a file, in their order; none if there is no such file.
pub fn read(path: &Path) -> Result<Vec<Run>, UserError> {
    let fail =
        |what: String| UserError::new(what, "give the path of a results file of `parshall lab ab` or `lab sweep`");
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fail(format!("{} cannot be read: {error}", path.display()))),
    };
    let mut runs: Vec<Run> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(Record::Run(head)) if head.schema == RESULTS_SCHEMA => {
                runs.push(Run { head: *head, trials: Vec::new(), complete: false });
            }
            Ok(Record::Trial(trial)) => {
                let run = runs.iter_mut().rev().find(|run| run.head.run == trial.run);
                run.ok_or_else(|| fail(format!("{}:{}: a trial of no run", path.display(), number + 1)))?
                    .trials
                    .push(*trial);
            }
            Ok(Record::End(end)) => {
                runs.iter_mut().filter(|run| run.head.run == end.run).for_each(|run| run.complete = true)
            }
            // A write that a full disk or a crash cut off. Its trial is made again.
            Err(error) if error.is_eof() && !runs.is_empty() => {}
            _ => return Err(fail(format!("{}:{} is no line of results", path.display(), number + 1))),
        }
    }
    Ok(runs)
}

/// The file, open for appending.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Opens the file, or makes it. A line that was cut off is ended.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let open = || -> io::Result<File> {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            if file.seek(SeekFrom::End(-1)).is_ok() {
                let mut last = [0];
                file.read_exact(&mut last)?;
                if last != *b"\n" {
                    file.write_all(b"\n")?;
                }
            }
            Ok(file)
        };
        let file = open().map_err(|error| {
            let what = format!("{} cannot be written: {error}", path.display());
            UserError::new(what, "give --results a path in a directory that exists and that you may write to")
        })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a line. It is on the disk when this returns.
    pub fn append(&mut self, record: &Record) -> anyhow::Result<()> {
        let line = serde_json::to_string(record)? + "\n";
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("writing {}; what was measured before is kept", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(run: &str) -> Record {
        Record::Run(Box::new(RunRecord {
            schema: RESULTS_SCHEMA.into(),
            run: run.into(),
            kind: Kind::Ab,
            experiment: "x.toml".into(),
            text: String::new(),
            seed: 1,
            most: 8,
            duet: false,
            manifest: Manifest::default(),
        }))
    }

    fn trial(run: &str, block: u32) -> TrialRecord {
        TrialRecord {
            run: run.into(),
            block,
            role: Some(Role::A),
            index: 0,
            value: "1".into(),
            at: String::new(),
            metrics: BTreeMap::from([("m".into(), 0.1 + 0.2)]),
            wall_s: 1.0,
            cpu_s: BTreeMap::new(),
            conditions: Conditions::default(),
            spoilt: None,
            counters: BTreeMap::new(),
        }
    }

    #[test]
    fn what_was_appended_is_read_back() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("x.jsonl");
        assert_eq!(read(&path).expect("none yet"), []);
        let mut log = Log::open(&path).expect("writable");
        for record in [
            head("1"),
            Record::Trial(Box::new(trial("1", 0))),
            Record::End(EndRecord { run: "1".into(), at: String::new() }),
            head("2"),
        ] {
            log.append(&record).expect("written");
        }
        let runs = read(&path).expect("readable");
        assert_eq!(
            runs.iter().map(|run| (run.complete, run.trials.len())).collect::<Vec<_>>(),
            [(true, 1), (false, 0)]
        );
        assert_eq!(runs[0].trials[0], trial("1", 0));
    }

    #[test]
    fn a_line_that_was_cut_off_is_left_out_and_the_next_begins_anew() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("x.jsonl");
        let mut log = Log::open(&path).expect("writable");
        log.append(&head("1")).expect("written");
        log.append(&Record::Trial(Box::new(trial("1", 0)))).expect("written");
        let text = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, &text[..text.len() - 20]).expect("cut off");
        Log::open(&path).expect("writable").append(&Record::Trial(Box::new(trial("1", 1)))).expect("written");
        let runs = read(&path).expect("readable");
        assert_eq!(runs[0].trials, [trial("1", 1)]);
    }

    #[test]
    fn another_file_is_refused_with_its_line() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("x.jsonl");
        for (text, line) in [("hello\n", ":1"), ("{\"record\":\"trial\"}\n", ":1")] {
            std::fs::write(&path, text).expect("written");
            let error = read(&path).expect_err(text);
            assert!(error.what.contains(line), "{error:?}");
        }
        assert!(Log::open(Path::new("/no/such/directory/x")).is_err());
    }
}
