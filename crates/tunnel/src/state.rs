//! The files of a tunnel that runs, in `/run/parshall/tunnel`: `NAME.lock`, which is locked as long as it runs, `NAME.pid`,
//! `NAME.undo` and the log of a daemon.
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use parshall_host::error::UserError;
use parshall_sys::file_lock::FileLock;
use parshall_sys::pidfd::Pidfd;
use signal_hook::consts::SIGTERM;

use crate::undo::{self, Undo};

const DIRECTORY: &str = "/run/parshall/tunnel";

/// How long `tunnel down` waits for hooks and the end.
const DOWN_MAX: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(10);

fn path(interface: &str, extension: &str) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("{interface}.{extension}"))
}

/// Where the log of a daemon goes.
pub fn log(interface: &str) -> anyhow::Result<PathBuf> {
    make_directory()?;
    Ok(path(interface, "log"))
}

fn make_directory() -> anyhow::Result<()> {
    for (directory, mode) in [("/run/parshall", 0o755), (DIRECTORY, 0o700)] {
        match DirBuilder::new().mode(mode).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let hint = "run it as root: interfaces, routes and the socket for `wg` need that";
                return Err(UserError::new(format!("{directory} cannot be made: {error}"), hint).into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// The place of a tunnel among those that run. It ends when this is dropped, or the process is killed.
#[derive(Debug)]
pub struct Running {
    interface: String,
    _lock: FileLock,
}

impl Running {
    /// Takes the place, and undoes what a process that was killed has left there.
    pub fn take(interface: &str) -> anyhow::Result<Self> {
        make_directory()?;
        let at = path(interface, "lock");
        let lock = FileLock::take(&at).with_context(|| format!("locking {}", at.display()))?;
        let Some(lock) = lock else {
            let what = format!("a tunnel {interface} is up already");
            return Err(UserError::new(what, format!("`parshall tunnel down {interface}` ends it")).into());
        };
        undo::leftovers(&path(interface, "undo"));
        let at = path(interface, "pid");
        fs::write(&at, format!("{}\n", std::process::id())).with_context(|| format!("writing {}", at.display()))?;
        Ok(Self { interface: interface.to_owned(), _lock: lock })
    }

    /// The record of what is to be undone.
    pub fn undo(&self) -> io::Result<Undo> {
        Undo::new(path(&self.interface, "undo"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        fs::remove_file(path(&self.interface, "pid")).ok();
    }
}

/// Ends a tunnel and waits until everything is undone.
pub fn end(interface: &str) -> anyhow::Result<()> {
    let not_up =
        || UserError::new(format!("no tunnel {interface} is up"), "`parshall tunnel show` lists those that are");
    let lock = FileLock::take_existing(&path(interface, "lock"));
    match lock {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_up().into()),
        Err(error) => return Err(error).with_context(|| format!("asking for the tunnel {interface}")),
        // Nobody has it: the lock is dropped before it is taken again.
        Ok(Some(lock)) => {
            drop(lock);
            let left = path(interface, "undo").exists();
            return if left { Running::take(interface).map(drop) } else { Err(not_up().into()) };
        }
        Ok(None) => {}
    }
    let text = fs::read_to_string(path(interface, "pid")).unwrap_or_default();
    let pid: u32 = text.trim().parse().map_err(|_| not_up())?;
    let process = Pidfd::open(pid).map_err(|_| not_up())?;
    process.send(SIGTERM).with_context(|| format!("ending the tunnel {interface}, process {pid}"))?;
    let begun = Instant::now();
    while !process.exited() {
        if begun.elapsed() < DOWN_MAX {
            std::thread::sleep(STEP);
            continue;
        }
        let what = format!("process {pid} of the tunnel {interface} has not ended after {} s", DOWN_MAX.as_secs());
        return Err(UserError::new(what, "a PreDown or PostDown command may still be running").into());
    }
    Ok(())
}
