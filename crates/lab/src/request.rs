//! Validated requests of `parshall lab`.
use std::path::{Path, PathBuf};
use std::time::Duration;

use parshall_core::report::Detail;
use parshall_diagnose::report::Beside;
use parshall_evidence::Rung;

use crate::load::LoadArgs;
use crate::recipe::Wire;
use crate::units::{Format, ReportFormat};

/// A validated `parshall lab`.
#[derive(Debug)]
pub enum LabRequest {
    List(ListRequest),
    Run(RunRequest),
    Load(LoadArgs),
    Testbed(TestbedRequest),
    Wire(WireRequest),
    Ab(ExperimentRequest),
    Sweep(ExperimentRequest),
    Compare(CompareRequest),
}

/// A validated `parshall lab list`.
#[derive(Debug)]
pub struct ListRequest {
    pub format: Format,
}

/// A validated `parshall lab run`.
#[derive(Debug)]
pub struct RunRequest {
    /// Names of cases, faults and controls, or of all of a kind.
    pub names: Vec<String>,
    /// Length of each observation.
    pub window: Duration,
    /// Runs of each.
    pub runs: u32,
    pub format: Format,
    /// How much of a report is printed as text.
    pub detail: Detail,
    /// The file for captures, or for results of comparisons; several get names and numbers in their file names.
    pub save: Option<PathBuf>,
    /// Further forms of the reports, and where each is written; several get names and numbers in their file names.
    pub beside: Vec<(Beside, PathBuf)>,
    /// All of these are of the capture under pseudonyms.
    pub mask: bool,
    /// The best rung of evidence to use; None for the best that the host offers.
    pub rung: Option<Rung>,
    /// Blocks or passes at most in cases that compare, instead of those of the case.
    pub blocks: Option<u32>,
    /// Only try whether everything can run.
    pub check: bool,
}

/// The name of one of several saved files: `dir/file.json` becomes `dir/file-WHICH.json`. A device takes all of them.
pub fn one_of_several(path: &Path, which: &str) -> PathBuf {
    if path.starts_with("/dev") {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{which}{extension}"))
}

/// A validated `parshall lab testbed`.
#[derive(Debug)]
pub struct TestbedRequest {
    /// The file of the testbed.
    pub file: PathBuf,
    /// Only check the file.
    pub check: bool,
    /// Only print the commands that make the same.
    pub show_as_shell: bool,
    /// The testbed is removed after this time.
    pub time: Duration,
}

/// A validated `parshall lab wire`.
#[derive(Debug)]
pub struct WireRequest {
    pub wire: Wire,
    /// The wire is removed after this time.
    pub time: Duration,
}

/// The source of an experiment.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// A and B, for a shell.
    Commands([String; 2]),
}

/// A validated `parshall lab ab` or `parshall lab sweep`.
#[derive(Debug)]
pub struct ExperimentRequest {
    pub source: Source,
    /// Only check the file.
    pub check: bool,
    /// Blocks at most, or passes, instead of those of the file.
    pub most: Option<u32>,
    /// The file to which results are appended; None for one beside the experiment's. Those of two commands are not kept then.
    pub results: Option<PathBuf>,
    /// Go on with the run that was interrupted.
    pub resume: bool,
    /// Two trials at a time. Only of `lab ab`.
    pub duet: bool,
    pub format: ReportFormat,
    /// A directory for pictures.
    pub pictures: Option<PathBuf>,
    /// The file for a page; None for none.
    pub html: Option<PathBuf>,
}

/// A validated `parshall lab compare`.
#[derive(Debug)]
pub struct CompareRequest {
    pub before: PathBuf,
    /// None for the last two runs of one file.
    pub after: Option<PathBuf>,
    pub format: ReportFormat,
}
