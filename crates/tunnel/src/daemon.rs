//! A tunnel as a daemon: another process, in a session of its own, of which the first one waits until the tunnel is up.
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use parshall_host::error::UserError;
use rustix::fs::OFlags;

use crate::request::UpRequest;
use crate::{ready, state};

/// The flag that makes a command a daemon, and the one that its process has instead.
const FLAGS: [&str; 2] = ["--daemon", "--detached"];

/// Starts this command again as a daemon, and returns once the tunnel is up or has failed.
pub fn start(request: &UpRequest) -> anyhow::Result<ExitCode> {
    let (log, file) = match &request.log {
        Some(log) => (log.clone(), open(log, 0)?),
        None => {
            // Root's directory, in which a link is nobody's choice.
            let log = state::log(&request.interface)?;
            let file = open(&log, (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)?;
            (log, file)
        }
    };
    let (ours, theirs) = UnixStream::pair()?;
    let [own, other] = FLAGS;
    let arguments = std::env::args_os().skip(1).map(|word| if word == own { other.into() } else { word });
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(arguments).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(file);
    let mut child = command.spawn().context("starting the daemon")?;
    // The command has the other end of the pair.
    drop(command);
    match ready::wait(ours) {
        Some(outcome) => outcome?,
        None => {
            let status = child.wait()?;
            let what = format!("the daemon ended before the tunnel was up: {status}");
            return Err(UserError::new(what, format!("its log is {}", log.display())).into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn open(log: &Path, flags: i32) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).write(true).truncate(true).mode(0o600).custom_flags(flags).open(log);
    file.map_err(|error| {
        let what = format!("the log {} cannot be written: {error}", log.display());
        UserError::new(what, "give --log a path in a directory that exists").into()
    })
}

/// Runs `work` as the daemon. `work` calls the function that it is passed when the tunnel is up.
pub fn serve(work: impl FnOnce(&dyn Fn()) -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    // Fails for the leader of a process group, which needs no session of its own.
    rustix::process::setsid().ok();
    let waiting = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let is_up = Cell::new(false);
    let result = work(&|| {
        is_up.set(true);
        ready::report(&waiting, &anyhow::Ok(()));
    });
    if !is_up.get() {
        ready::report(&waiting, &result);
    }
    result
}
