//! Arguments lowered into validated configs: what the rooms behind the command line may rely on.
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parshall_evidence::Rung;

use super::args::{
    AttachArgs, ColorArg, DoctorArgs, FormatArg, ObserveArgs, PrintArgs, ReportArgs, RunArgs, ShowArgs, SubjectArgs,
};
use super::value::MAX_WINDOW;
use crate::diagnose::observe::ObserveOptions;
use crate::diagnose::subject::Select;
use crate::error::UserError;
use crate::report::{self, TextStyle};

/// A validated `parshall attach`.
#[derive(Debug, Clone)]
pub struct AttachConfig {
    /// Whom to observe.
    pub select: Select,
    /// How.
    pub observe: ObserveOptions,
    /// Where the results go.
    pub results: ResultConfig,
}

/// A validated `parshall run`.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How to observe; the window is the longest one: it ends with the command.
    pub observe: ObserveOptions,
    /// Exit with the command's own status.
    pub exit_code: bool,
    /// Where the results go.
    pub results: ResultConfig,
}

/// A validated `parshall show`.
#[derive(Debug, Clone)]
pub struct ShowConfig {
    /// A file written by `--save`.
    pub case: PathBuf,
    /// Where the report goes.
    pub results: ResultConfig,
}

/// A validated `parshall doctor`.
#[derive(Debug, Clone)]
pub struct DoctorConfig {
    /// How the findings are printed.
    pub output: Output,
}

/// Where the results of an observation go, and how they look.
#[derive(Debug, Clone)]
pub struct ResultConfig {
    /// Where the capture is written, if anywhere.
    pub save: Option<PathBuf>,
    /// Where the report goes.
    pub to: Destination,
    /// How the report is printed.
    pub output: Output,
}

/// Where a report goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// Standard error: stdout belongs to the command that is diagnosed.
    Stderr,
    /// A file that only its owner may read.
    File(PathBuf),
}

/// How something is printed.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// The format.
    pub format: Format,
    /// How text is drawn.
    pub style: TextStyle,
}

/// The formats of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

impl AttachArgs {
    /// Checks and lowers.
    pub fn lower(self) -> Result<AttachConfig, UserError> {
        // Not clap's `requires`: that says nothing where another of the group excludes --pid.
        if self.only && self.subject.pid.is_empty() {
            return Err(UserError::new(
                "`--only` goes with `--pid`, and no process is given",
                "`parshall attach --pid N --only` observes the process N without its children",
            ));
        }
        let results = self.report.lower(self.observe.save.clone(), Destination::Stdout)?;
        Ok(AttachConfig { select: self.subject.lower(self.only), observe: self.observe.lower(self.window), results })
    }
}

impl RunArgs {
    /// Checks and lowers.
    pub fn lower(self) -> Result<RunConfig, UserError> {
        let mut words = self.command.into_iter();
        let Some(program) = words.next().filter(|p| !p.is_empty()) else {
            return Err(UserError::new(
                "the command to run is empty",
                "put it behind `--`, as in `parshall run -- ./server --port 7000`",
            ));
        };
        let results = self.report.lower(self.observe.save.clone(), Destination::Stderr)?;
        Ok(RunConfig {
            program,
            arguments: words.collect(),
            observe: self.observe.lower(self.window.unwrap_or(MAX_WINDOW)),
            exit_code: self.exit_code,
            results,
        })
    }
}

impl ShowArgs {
    /// Checks and lowers.
    pub fn lower(self) -> Result<ShowConfig, UserError> {
        if self.report.output.as_ref() == Some(&self.case) {
            return Err(UserError::new("-o names the case itself", "give the report a file of its own"));
        }
        Ok(ShowConfig { case: self.case, results: self.report.lower(None, Destination::Stdout)? })
    }
}

impl DoctorArgs {
    /// Lowers.
    pub fn lower(self) -> DoctorConfig {
        DoctorConfig { output: self.print.lower() }
    }
}

impl SubjectArgs {
    /// clap's group has made sure that exactly one is given.
    fn lower(self, only: bool) -> Select {
        let SubjectArgs { mut pid, port, cgroup, netns, all: _ } = self;
        if !pid.is_empty() {
            pid.sort_unstable();
            pid.dedup();
            return if only { Select::Only(pid) } else { Select::Pids(pid) };
        }
        match (port, cgroup, netns) {
            (Some(port), _, _) => Select::Port(port),
            (_, Some(path), _) => Select::Cgroup(path),
            (_, _, Some(name)) => Select::Netns(name),
            (None, None, None) => Select::All,
        }
    }
}

impl ObserveArgs {
    fn lower(self, window: Duration) -> ObserveOptions {
        ObserveOptions {
            window,
            rung: self.rung.map(Rung::from),
            progress: std::io::stderr().is_terminal(),
            name_all: self.save.is_some(),
        }
    }
}

impl ReportArgs {
    /// Checks and lowers; without -o the report goes to `usual`.
    fn lower(self, save: Option<PathBuf>, usual: Destination) -> Result<ResultConfig, UserError> {
        if save.is_some() && save == self.output {
            return Err(UserError::new("-o and --save name the same file", "give the report and the case a file each"));
        }
        let to = match self.output {
            None => usual,
            Some(path) if path == Path::new("-") || path == Path::new("/dev/stdout") => Destination::Stdout,
            Some(path) if path == Path::new("/dev/stderr") => Destination::Stderr,
            Some(path) => Destination::File(path),
        };
        let output = self.print.lower_for(&to);
        Ok(ResultConfig { save, to, output })
    }
}

impl PrintArgs {
    /// Lowers for stdout.
    pub(super) fn lower(self) -> Output {
        self.lower_for(&Destination::Stdout)
    }

    fn lower_for(self, to: &Destination) -> Output {
        let format = match self.format {
            FormatArg::Text => Format::Text,
            FormatArg::Json => Format::Json,
        };
        let color = match self.color {
            ColorArg::Always => Some(true),
            ColorArg::Never => Some(false),
            ColorArg::Auto => None,
        };
        Output { format, style: report::style_for(to, color) }
    }
}
