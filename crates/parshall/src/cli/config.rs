//! Arguments lowered into validated configs: what the rooms behind the command line may rely on.
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use parshall_evidence::Rung;

use super::args::{
    AttachArgs, ColorArg, DoctorArgs, FormatArg, ObserveArgs, PrintArgs, RunArgs, ShowArgs, SubjectArgs,
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
    /// Where the capture is written, if anywhere.
    pub save: Option<PathBuf>,
    /// How the report is printed.
    pub output: Output,
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
    /// Where the capture is written, if anywhere.
    pub save: Option<PathBuf>,
    /// How the report is printed.
    pub output: Output,
}

/// A validated `parshall show`.
#[derive(Debug, Clone)]
pub struct ShowConfig {
    /// A file written by `--save`.
    pub case: PathBuf,
    /// How the report is printed.
    pub output: Output,
}

/// A validated `parshall doctor`.
#[derive(Debug, Clone)]
pub struct DoctorConfig {
    /// How the findings are printed.
    pub output: Output,
}

/// How something is printed on stdout.
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
        let save = self.observe.save.clone();
        Ok(AttachConfig {
            select: self.subject.lower(self.only),
            observe: self.observe.lower(self.window),
            save,
            output: self.print.lower(),
        })
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
        let save = self.observe.save.clone();
        Ok(RunConfig {
            program,
            arguments: words.collect(),
            observe: self.observe.lower(self.window.unwrap_or(MAX_WINDOW)),
            save,
            output: self.print.lower(),
        })
    }
}

impl ShowArgs {
    /// Checks and lowers.
    pub fn lower(self) -> Result<ShowConfig, UserError> {
        Ok(ShowConfig { case: self.case, output: self.print.lower() })
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

impl PrintArgs {
    pub(super) fn lower(self) -> Output {
        let format = match self.format {
            FormatArg::Text => Format::Text,
            FormatArg::Json => Format::Json,
        };
        let color = match self.color {
            ColorArg::Always => Some(true),
            ColorArg::Never => Some(false),
            ColorArg::Auto => None,
        };
        Output { format, style: report::style(color) }
    }
}
