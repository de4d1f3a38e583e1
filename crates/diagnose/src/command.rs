//! `run`: starts the command behind a gate process, attaches, opens the gate, and observes until the command ends.
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use parshall_evidence::{Capture, CommandEnd, Role, StartedCommand};
use parshall_sys::gate::{self, Gate, GateEnds};
use parshall_sys::pidfd::Pidfd;

use super::background::Background;
use super::forward::Forward;
use super::observe::Session;
pub use super::origin::GATE;
use super::request::{Naming, ObserveOptions};
use super::subject::{self, Select};
use super::window::Stop;
use parshall_core::sorting::IntoOrdered as _;
use parshall_host::error::UserError;
use parshall_host::proc_fs;

/// How long the gate process may take to stop itself, which is all that it does at first.
const GATE_WITHIN: Duration = Duration::from_secs(5);
/// A shell's exit status for a command that it cannot run.
const CANNOT_RUN: u8 = 127;
/// A shell's exit status for a command that a signal killed: this and the signal's number.
const KILLED: i32 = 128;

/// The command, from its gate to its end. It keeps parshall's stdin, stdout and stderr.
pub struct Started {
    gate: Gate,
    forward: Forward,
}

impl Started {
    /// Starts the gate process; the command itself does not run yet.
    pub fn start(program: &OsStr, arguments: &[OsString]) -> anyhow::Result<Self> {
        let ends = GateEnds::new().context("making the command's gate")?;
        let own = std::env::current_exe().context("finding our own program")?;
        let mut command = Command::new(own);
        command.arg(GATE).arg(ends.number().to_string()).arg(program).args(arguments);
        let gate = ends.spawn(&mut command).context("starting the command")?;
        let forward = Forward::to(gate.pid())?;
        Ok(Self { gate, forward })
    }

    /// Opens the gate once the probes are attached, and observes the command until it or the window ends, or a signal ends the
    /// observation.
    pub fn observe(&mut self, options: &ObserveOptions) -> anyhow::Result<Capture> {
        if !self.gate.wait_stopped(GATE_WITHIN).context("waiting for the command's gate")? {
            anyhow::bail!("the command's gate did not open");
        }
        // The gate stays in the control group that it was started in.
        let background = Background::enter();
        let pid = self.gate.pid();
        let resolved = subject::resolve(&Select::Pids(vec![pid]))?;
        let ended = Pidfd::open(pid).context("opening the command's process")?;
        let stop = UntilEnd { ended, forward: &self.forward };
        // A progress bar would garble what the command writes to the terminal.
        let options = ObserveOptions { progress: false, naming: Naming::All, from_its_start: true, ..options.clone() };
        let mut session = Session::open(resolved, &options, background)?;
        let gate = &mut self.gate;
        let mut capture = session.window(options.window, &stop, || {
            let opened = gate.open().context("starting the command")?;
            opened.map_err(|error| cannot_run(&error).into())
        })?;
        drop(session);
        // Not reaped yet, so the name can be read even of a command that has ended.
        let name = proc_fs::stat(pid).map(|stat| stat.comm).unwrap_or_default();
        describe(&mut capture, pid, &name);
        let end =
            self.gate.child().try_wait().context("asking for the command's end")?.map_or(CommandEnd::Running, end);
        capture.command = Some(StartedCommand { pid, name, end });
        Ok(capture)
    }

    /// Waits until the command has ended. With --for the window may end before it; the command then stays in the foreground.
    pub fn wait(mut self) -> anyhow::Result<ExitStatus> {
        self.gate.child().wait().context("waiting for the command")
    }

    /// Whether the gate has become the command. A command that runs is left alone even if it cannot be observed.
    pub fn has_begun(&self) -> bool {
        self.gate.has_opened()
    }
}

/// Corrects the names and ports: when the subject was resolved the process was still the gate, with the name of parshall and
/// without listeners.
fn describe(capture: &mut Capture, pid: u32, name: &str) {
    let served = capture.flows.iter().filter(|flow| flow.role == Role::Server).map(|flow| flow.local.port());
    let ports: BTreeSet<u16> = served.into_set();
    let subject = &mut capture.subject;
    subject.ports = ports.into_iter().collect();
    let named = subject.pids.iter().zip(&mut subject.comms).filter(|(of, _)| **of == pid).map(|(_, comm)| comm);
    let threads = capture.threads.iter_mut().filter(|thread| thread.tid == pid).map(|thread| &mut thread.comm);
    named.chain(threads).for_each(|comm| *comm = name.to_owned());
}

/// How a command has ended, for the report.
fn end(status: ExitStatus) -> CommandEnd {
    match status.signal() {
        Some(signal) => {
            let signal_name = signal_hook::low_level::signal_name(signal).unwrap_or_default().to_owned();
            CommandEnd::Killed { signal, signal_name }
        }
        None => CommandEnd::Exited { exit_status: status.code().unwrap_or_default() },
    }
}

/// The exit code that passes a command's status on, as a shell would.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| KILLED + status.signal().unwrap_or_default());
    ExitCode::from(code.to_le_bytes()[0])
}

/// Ends when the command does.
struct UntilEnd<'a> {
    ended: Pidfd,
    forward: &'a Forward,
}

impl Stop for UntilEnd<'_> {
    fn requested(&self) -> bool {
        self.forward.over()
    }

    fn subject_gone(&self) -> bool {
        // The window ends with the command, even if its children still run.
        self.ended.exited()
    }
}

/// The gate process: stops itself, and executes the command when it gets SIGCONT.
pub fn become_command(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let number = words.next().and_then(|word| word.to_str()?.parse().ok()).filter(|number| *number > 2);
    let (Some(number), Some(program)) = (number, words.next()) else { return ExitCode::from(2) };
    gate::stop_self();
    // On failure the error reaches parshall over the descriptor, and parshall reports it.
    let _ = gate::become_program(Command::new(program).args(words), number);
    ExitCode::from(CANNOT_RUN)
}

fn cannot_run(error: &io::Error) -> UserError {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "its interpreter is missing: check the first line of the script (#!)",
        io::ErrorKind::PermissionDenied => {
            "check the permissions of the file and of its directories, and the mount options"
        }
        io::ErrorKind::ArgumentListTooLong => "give it fewer or shorter arguments",
        _ => "give an executable file of this machine's kind, or its interpreter first: `parshall run -- python3 FILE`",
    };
    UserError::new(format!("the command could not be run: {error}"), hint)
}

/// An error unless `program` is an executable file, before anything is started.
pub fn find_program(program: &OsStr) -> Result<(), UserError> {
    let path = Path::new(program);
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let named = path.components().count() > 1;
    let found = if named {
        executable(path)
    } else {
        std::env::var_os("PATH")
            .is_some_and(|paths| std::env::split_paths(&paths).any(|dir| executable(&dir.join(program))))
    };
    if found {
        return Ok(());
    }
    if named && path.exists() {
        return Err(UserError::new(
            format!("{} is not a program", path.display()),
            "give an executable file, or its interpreter first: `parshall run -- python3 FILE`",
        ));
    }
    Err(UserError::new(
        format!("the command {} was not found", path.display()),
        "give its path, or check the spelling and $PATH; options of parshall go before `--`",
    ))
}
