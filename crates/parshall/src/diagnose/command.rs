//! `run`: starts the command behind a gate, attaches, lets it go, and observes until it ends.
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context;
use parshall_evidence::Capture;
use parshall_sys::gate;

use super::observe::{ObserveOptions, Stop, Until, observe_resolved};
use super::subject::{self, Select};
use crate::cli::{Format, RunConfig};
use crate::error::UserError;

/// First argument of the process that becomes the command.
pub const GATE: &str = "__gate";
/// The gate has nothing to do but to stop itself.
const GATE_WITHIN: Duration = Duration::from_secs(5);

/// Starts the command, observes it, and leaves it running when the window ends before it does.
pub fn observe(config: &RunConfig) -> anyhow::Result<(Capture, Child)> {
    find_program(&config.program)?;
    let mut child = spawn(config)?;
    match observe_child(config, &mut child) {
        Ok(capture) => Ok((capture, child)),
        Err(error) => {
            // It is ours and has not begun, or cannot be judged: nothing of it may stay behind.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn observe_child(config: &RunConfig, child: &mut Child) -> anyhow::Result<Capture> {
    if !gate::wait_stopped(child.id(), GATE_WITHIN).context("waiting for the command's gate")? {
        anyhow::bail!("the command's gate did not open");
    }
    let resolved = subject::resolve(&Select::Pids(vec![child.id()]))?;
    let until = Until::new(&resolved)?;
    let stop = ChildEnds { child: RefCell::new(child), until, going: Cell::new(false) };
    let options =
        ObserveOptions { progress: config.observe.progress && quiet(config), name_all: true, ..config.observe.clone() };
    observe_resolved(&resolved, &options, &stop)
}

/// A command that writes to the terminal would tear the progress bar.
fn quiet(_config: &RunConfig) -> bool {
    !std::io::stdout().is_terminal()
}

/// Ends when the command does; on the first look, which comes after the probes are attached, it opens the gate.
struct ChildEnds<'a> {
    child: RefCell<&'a mut Child>,
    until: Until,
    going: Cell<bool>,
}

impl Stop for ChildEnds<'_> {
    fn attached(&self) -> anyhow::Result<()> {
        self.going.set(true);
        gate::resume(&self.child.borrow()).context("starting the command")
    }

    fn requested(&self) -> bool {
        self.until.requested()
    }

    fn subject_gone(&self) -> bool {
        // Its own children may live on; the window is the command's.
        self.going.get() && !matches!(self.child.borrow_mut().try_wait(), Ok(None))
    }
}

fn spawn(config: &RunConfig) -> anyhow::Result<Child> {
    let own = std::env::current_exe().context("finding our own program")?;
    let mut command = Command::new(own);
    command.arg(GATE).arg(&config.program).args(&config.arguments);
    if config.output.format == Format::Json {
        // stdout is for the document alone.
        command.stdout(Stdio::from(std::io::stderr().as_fd().try_clone_to_owned()?));
    }
    command.spawn().context("starting the command")
}

/// The gate: stops itself, and becomes the command when it is told to go on.
pub fn become_command(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = words.next() else { return ExitCode::from(2) };
    gate::stop_self();
    let error = Command::new(&program).args(words).exec();
    eprintln!("error: {} could not be run: {error}", program.to_string_lossy());
    ExitCode::from(127)
}

fn find_program(program: &std::ffi::OsStr) -> Result<(), UserError> {
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
