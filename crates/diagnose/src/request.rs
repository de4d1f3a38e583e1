//! The validated requests of `parshall attach`, `run`, `show` and `doctor`.
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use parshall_bpf::diagnose::event::Source;
use parshall_evidence::{RelayStart, Rung};
use parshall_host::output::{Destination, Output};

use crate::log::Logs;
use crate::report::{Beside, Print};
use crate::subject::Select;

/// A validated `parshall attach`.
#[derive(Debug, Clone)]
pub struct AttachRequest {
    /// The subject.
    pub select: Select,
    /// How.
    pub observe: ObserveOptions,
    /// The destination of the results.
    pub results: ResultOptions,
}

/// A validated `parshall run`.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How to observe; the window is the longest one: it ends with the command.
    pub observe: ObserveOptions,
    /// Exit with the command's own status.
    pub exit_code: bool,
    /// The destination of the results.
    pub results: ResultOptions,
}

/// A validated `parshall show`.
#[derive(Debug, Clone)]
pub struct ShowRequest {
    /// A file written by `--save`.
    pub case: PathBuf,
    /// The destination of the report.
    pub results: ResultOptions,
}

/// How to observe.
#[derive(Debug, Clone)]
pub struct ObserveOptions {
    /// The longest that a window may be.
    pub window: Duration,
    /// The best rung to use; None for the best the host offers.
    pub rung: Option<Rung>,
    /// The first bytes of what sockets send and receive may be looked at.
    pub peek: bool,
    /// The functions that interpreters run are named.
    pub interpreters: bool,
    /// Draw progress on stderr.
    pub progress: bool,
    /// The stacks whose functions are named.
    pub naming: Naming,
    /// Events of the kernel that are counted besides.
    pub events: Vec<Source>,
    /// Log lines that are kept; None for none.
    pub log: Option<Logs>,
    /// The subject is a command that has not begun.
    pub from_its_start: bool,
    /// Reads a command line of parshall's own, its name first: how it starts a relay, or None when it starts none. The
    /// relay's arguments are not known here.
    pub read_relay: fn(&[String]) -> Option<RelayStart>,
}

/// The stacks of a capture whose functions are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// None: nobody reads them.
    Nothing,
    /// Those that a report could show.
    Shown,
    /// All, and as they come: the capture is kept, or its processes may end before it does.
    All,
}

/// A validated `parshall doctor`.
#[derive(Debug, Clone)]
pub struct DoctorRequest {
    /// The file for the text of a report of a bug.
    pub bundle: Option<PathBuf>,
    /// How the findings are printed.
    pub output: Output,
}

/// The destination of the results of an observation, and their format.
#[derive(Debug, Clone)]
pub struct ResultOptions {
    /// The file for the capture; None for none.
    pub save: Option<PathBuf>,
    /// The destination of the report.
    pub to: Destination,
    /// How the report is printed.
    pub output: Print,
    /// Further forms of it, and where each is written.
    pub beside: Vec<(Beside, PathBuf)>,
    /// All of these are of the capture under pseudonyms.
    pub mask: bool,
}
