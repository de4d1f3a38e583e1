//! Arguments checked and made requests of: what everything behind the command line may rely on.
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parshall_bpf::diagnose::PORTS_MAX;
use parshall_core::report::Detail;
use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_core::units::plural;
use parshall_evidence::{RelayStart, Rung};
use parshall_host::error::UserError;
use parshall_host::netns::Netns;
use parshall_host::output::{Destination, style_for};

use super::args::{
    AttachArgs, BesideArgs, DoctorArgs, ObserveArgs, Ports, ReportArgs, RunArgs, ShowArgs, SubjectArgs, TryArgs,
    TrySubjectArgs,
};
use super::value::MAX_WINDOW;
use crate::event;
use crate::log;
use crate::report::{Beside, Print};
use crate::request::{AttachRequest, DoctorRequest, Naming, ObserveOptions, ResultOptions, RunRequest, ShowRequest};
use crate::subject::Select;
use crate::trial::TryRequest;

/// [`ObserveOptions::read_relay`].
type ReadRelay = fn(&[String]) -> Option<RelayStart>;

impl AttachArgs {
    /// Checks them.
    pub fn validate(self, read_relay: ReadRelay) -> Result<AttachRequest, UserError> {
        // Not clap's `requires`: that says nothing where another of the group excludes --pid.
        if self.only && self.subject.pid.is_empty() && self.subject.process.is_empty() {
            return Err(UserError::new(
                "`--only` goes with `--pid` or `--process`, and no process is given",
                "`parshall attach --pid N --only` observes the process N without its children",
            ));
        }
        let results = self.report.validate(self.observe.save.clone(), Destination::Stdout)?;
        Ok(AttachRequest {
            select: self.subject.validate(self.only)?,
            observe: self.observe.validate(self.window, read_relay)?,
            results,
        })
    }
}

impl RunArgs {
    /// Checks them.
    pub fn validate(self, read_relay: ReadRelay) -> Result<RunRequest, UserError> {
        let mut words = self.command.into_iter();
        let Some(program) = words.next().filter(|p| !p.is_empty()) else {
            return Err(UserError::new(
                "the command to run is empty",
                "put it behind `--`, as in `parshall run -- ./server --port 7000`",
            ));
        };
        let results = self.report.validate(self.observe.save.clone(), Destination::Stderr)?;
        Ok(RunRequest {
            program,
            arguments: words.collect(),
            observe: self.observe.validate(self.window.unwrap_or(MAX_WINDOW), read_relay)?,
            exit_code: self.exit_code,
            results,
        })
    }
}

impl ShowArgs {
    /// Checks them.
    pub fn validate(self) -> Result<ShowRequest, UserError> {
        let to_report = self.report.output.as_ref().map(|path| ("-o", path.as_path()));
        let to_case = self.save.as_ref().map(|path| ("--save", path.as_path()));
        let beside = self.report.beside.clone().files();
        let beside = beside.iter().map(|(what, path)| (what.option(), path.as_path()));
        if let Some((option, _)) =
            to_report.into_iter().chain(to_case).chain(beside).find(|(_, path)| *path == self.case)
        {
            return Err(UserError::new(
                format!("{option} names the case itself"),
                "give what is written a file of its own",
            ));
        }
        Ok(ShowRequest { case: self.case, results: self.report.validate(self.save, Destination::Stdout)? })
    }
}

impl TryArgs {
    /// Checks them.
    pub fn validate(self) -> Result<TryRequest, UserError> {
        if !self.yes && !std::io::stdin().is_terminal() {
            return Err(UserError::new(
                "nobody can be asked whether the change may be made: stdin is not a terminal",
                "`--yes` makes it without a question",
            ));
        }
        Ok(TryRequest {
            change: self.change,
            select: self.subject.validate(self.within.netns)?,
            pairs: self.pairs,
            observe: ObserveOptions {
                window: self.window,
                rung: None,
                peek: !self.peek.no_peek,
                interpreters: false,
                progress: std::io::stderr().is_terminal(),
                naming: Naming::Nothing,
                events: Vec::new(),
                log: None,
                from_its_start: false,
                read_relay: |_| None,
            },
            ask: !self.yes,
            output: self.print.output(),
        })
    }
}

impl TrySubjectArgs {
    /// clap's group has made sure that exactly one is given.
    fn validate(self, netns: Option<Netns>) -> Result<Select, UserError> {
        if !self.process.is_empty() {
            return Ok(Select::Named { names: self.process, only: false });
        }
        match self.port.is_empty() {
            false => Ok(Select::Ports(ports(self.port)?, netns.into())),
            true => Ok(Select::Pids(once_each(self.pid))),
        }
    }
}

impl DoctorArgs {
    /// Nothing in them can be wrong.
    pub fn validate(self) -> DoctorRequest {
        DoctorRequest { bundle: self.bundle, output: self.print.output() }
    }
}

impl SubjectArgs {
    /// clap has made sure that one is given, and no two that exclude each other.
    fn validate(self, only: bool) -> Result<Select, UserError> {
        let SubjectArgs { pid, process, port, cgroup, netns, all: _ } = self;
        if !process.is_empty() {
            return Ok(Select::Named { names: process, only });
        }
        if !pid.is_empty() {
            let pids = once_each(pid);
            return Ok(if only { Select::Only(pids) } else { Select::Pids(pids) });
        }
        if !port.is_empty() {
            return Ok(Select::Ports(ports(port)?, netns.into()));
        }
        Ok(match (cgroup, netns) {
            (Some(path), _) => Select::Cgroup(path),
            (None, Some(Netns::All) | None) => Select::All,
            (None, Some(netns)) => Select::Netns(netns),
        })
    }
}

/// All of several lists, each once and in order.
fn once_each<T: Ord>(lists: Vec<Vec<T>>) -> Vec<T> {
    lists.into_iter().flatten().into_set().into_iter().collect()
}

fn ports(given: Vec<Ports>) -> Result<Vec<u16>, UserError> {
    let ports = once_each(given);
    if ports.len() > PORTS_MAX {
        let what = format!(
            "{} given, and a subject has at most {PORTS_MAX}",
            plural(ports.len() as u64, "port is", "ports are")
        );
        return Err(UserError::new(what, "name the processes instead, with --process or --pid"));
    }
    Ok(ports)
}

impl ObserveArgs {
    /// Checks them. Events are looked up in the kernel, and logs in the file system.
    fn validate(self, window: Duration, read_relay: ReadRelay) -> Result<ObserveOptions, UserError> {
        Ok(ObserveOptions {
            window,
            rung: self.rung.map(Rung::from),
            peek: !self.peek.no_peek,
            interpreters: self.interpreters,
            progress: std::io::stderr().is_terminal(),
            naming: if self.save.is_some() { Naming::All } else { Naming::Shown },
            events: event::find(&self.event)?,
            log: log::find(self.log)?,
            from_its_start: false,
            read_relay,
        })
    }
}

impl ReportArgs {
    /// Checks them; without -o the report goes to `usual`.
    fn validate(self, save: Option<PathBuf>, usual: Destination) -> Result<ResultOptions, UserError> {
        let beside = self.beside.files();
        let mut files: Vec<(&str, &Path)> = beside.iter().map(|(what, path)| (what.option(), path.as_path())).collect();
        files.extend(save.iter().map(|path| ("--save", path.as_path())));
        files.extend(self.output.iter().map(|path| ("-o", path.as_path())));
        different_files(files)?;
        let to = match self.output {
            None => usual,
            Some(path) if path == Path::new("-") || path == Path::new("/dev/stdout") => Destination::Stdout,
            Some(path) if path == Path::new("/dev/stderr") => Destination::Stderr,
            Some(path) => Destination::File(path),
        };
        let output = Print {
            format: self.format,
            style: style_for(&to, self.color.choice()),
            detail: if self.full { Detail::Full } else { Detail::Short },
        };
        Ok(ResultOptions { save, beside, to, output, mask: self.mask })
    }
}

/// Fails for two options that name the same file.
pub fn different_files(mut files: Vec<(&str, &Path)>) -> Result<(), UserError> {
    // A device is written in place and may take several outputs, one after the other.
    files.retain(|(_, path)| !path.starts_with("/dev"));
    files.stable_sort_by_key(|(_, path)| *path);
    match files.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        Some([first, second]) => Err(UserError::new(
            format!("{} and {} name the same file", first.0, second.0),
            "give the report, each of its other forms and the case a file of their own",
        )),
        _ => Ok(()),
    }
}

impl BesideArgs {
    /// The forms that are asked for, with their files.
    pub fn files(self) -> Vec<(Beside, PathBuf)> {
        // The list is text, and a terminal is where it is read.
        let stdout = |path: PathBuf| if path == Path::new("-") { PathBuf::from("/dev/stdout") } else { path };
        let all = [
            (Beside::Html, self.html),
            (Beside::Perfetto, self.perfetto),
            (Beside::Folded, self.folded),
            (Beside::Flamegraph, self.flamegraph),
            (Beside::Summary, self.summary.map(stdout)),
        ];
        all.into_iter().filter_map(|(what, path)| Some((what, path?))).collect()
    }
}
