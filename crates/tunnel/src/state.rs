//! The files of a tunnel that runs, in `/run/parshall/tunnel`: `NAME.lock`, which is locked as long as it runs and names its process,
//! `NAME.pid` for other programs, `NAME.undo` and the log of a daemon. The directory is root's: what is in these files is acted on.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use parshall_host::error::UserError;
use parshall_host::own_directory;
use parshall_sys::file_lock::FileLock;
use parshall_sys::owner::Owner;
use parshall_sys::pidfd::Pidfd;
use parshall_sys::privileges::current;
use signal_hook::consts::SIGTERM;

use crate::undo::{self, Undo};

pub const DIRECTORY: &str = "/run/parshall/tunnel";

/// How long `tunnel down` waits for hooks and the end.
const DOWN_MAX: Duration = Duration::from_secs(60);
/// How long a process that has the lock may take to say which one it is.
const UNNAMED_MAX: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(10);

fn path(interface: &str, extension: &str) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("{interface}.{extension}"))
}

/// The path of a daemon's log.
pub fn log(interface: &str) -> anyhow::Result<PathBuf> {
    make_directory()?;
    Ok(path(interface, "log"))
}

fn make_directory() -> anyhow::Result<()> {
    for (directory, mode) in [("/run/parshall", 0o755), (DIRECTORY, 0o700)] {
        own_directory::make(Path::new(directory), mode, &current()).map_err(|error| refused(directory, &error))?;
    }
    Ok(())
}

/// The error for a directory that cannot be made, or is not only root's.
pub fn refused(directory: &str, error: &io::Error) -> UserError {
    let hint = if current().uid != 0 {
        "run it as root: interfaces, routes and the socket for `wg` need that"
    } else {
        "it has to be root's, and writable by nobody else; a service with User= and RuntimeDirectory=parshall needs another name there"
    };
    UserError::new(format!("{directory} cannot be used: {error}"), hint)
}

/// The place of a tunnel among those that run. It ends when this is dropped, or the process is killed.
#[derive(Debug)]
pub struct Running {
    interface: String,
    lock: FileLock,
}

impl Running {
    /// Takes the place. A record that a killed process has left there stays.
    pub fn take(interface: &str) -> anyhow::Result<Self> {
        make_directory()?;
        let at = path(interface, "lock");
        let begun = Instant::now();
        let lock = loop {
            let lock = FileLock::take_removable(&at).with_context(|| format!("locking {}", at.display()))?;
            match lock {
                Some(lock) => break lock,
                None if holder(&at).is_some() => {
                    let what = format!("a tunnel {interface} is up already");
                    return Err(UserError::new(what, format!("`parshall tunnel down {interface}` ends it")).into());
                }
                // It begins, or only looks whether somebody has the lock.
                None => wait_for_holder(&at, begun)?,
            }
        };
        let owner = Owner::this().context("reading the start time of this process")?;
        lock.write(owner.name(interface).as_bytes()).with_context(|| format!("writing {}", at.display()))?;
        let running = Self { interface: interface.to_owned(), lock };
        let at = path(interface, "pid");
        own_directory::replace(&at, format!("{}\n", owner.pid).as_bytes())
            .with_context(|| format!("writing {}", at.display()))?;
        Ok(running)
    }

    /// The record of what is to be undone. If a process died, what it has blocked is held until the new tunnel is up.
    pub fn take_over(&self) -> io::Result<Undo> {
        Undo::take_over(path(&self.interface, "undo"))
    }

    /// Undoes what a process that died has left.
    pub fn clean_up(&self) {
        undo::leftovers(&path(&self.interface, "undo"));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        fs::remove_file(path(&self.interface, "pid")).ok();
        self.lock.remove(&path(&self.interface, "lock"));
    }
}

/// The process that is named in a lock file, if it runs.
fn holder(lock: &Path) -> Option<Pidfd> {
    let owner = Owner::parse(fs::read_to_string(lock).ok()?.trim())?;
    let process = Pidfd::open(owner.pid).ok()?;
    // Looked at after the process was opened: if the named one still runs, it is the one that was opened, and no later one of its pid.
    owner.is_alive().then_some(process)
}

fn wait_for_holder(lock: &Path, begun: Instant) -> anyhow::Result<()> {
    if begun.elapsed() < UNNAMED_MAX {
        std::thread::sleep(STEP);
        return Ok(());
    }
    let what = format!("{} is locked, and by no tunnel that is known", lock.display());
    Err(UserError::new(what, format!("`fuser -v {}` shows the program", lock.display())).into())
}

/// Ends a tunnel and waits until everything is undone.
pub fn end(interface: &str) -> anyhow::Result<()> {
    let not_up =
        || UserError::new(format!("no tunnel {interface} is up"), "`parshall tunnel show` lists those that are");
    for directory in ["/run/parshall", DIRECTORY] {
        match own_directory::check(Path::new(directory), current().uid) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_up().into()),
            checked => checked.map_err(|error| refused(directory, &error))?,
        }
    }
    let (at, begun, mut stopped) = (path(interface, "lock"), Instant::now(), false);
    loop {
        let free = match FileLock::take_existing(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            // It is dropped before it is taken again.
            lock => lock.with_context(|| format!("asking for the tunnel {interface}"))?.is_some(),
        };
        if free {
            let left = path(interface, "undo").exists();
            return match left {
                // Also what one has left that was asked to end when the process that moves packets had just died.
                true => Running::take(interface).map(|running| running.clean_up()),
                false if stopped => Ok(()),
                false => Err(not_up().into()),
            };
        }
        match holder(&at) {
            // Another one is up by now.
            Some(_) if stopped => return Ok(()),
            Some(process) => {
                stop(interface, &process)?;
                stopped = true;
            }
            None => wait_for_holder(&at, begun)?,
        }
    }
}

fn stop(interface: &str, process: &Pidfd) -> anyhow::Result<()> {
    // One that has ended meanwhile has been waited for.
    process.send(SIGTERM).or_else(|error| if process.exited() { Ok(()) } else { Err(error) })?;
    let begun = Instant::now();
    while !process.exited() {
        if begun.elapsed() < DOWN_MAX {
            std::thread::sleep(STEP);
            continue;
        }
        let what = format!("the process of the tunnel {interface} has not ended after {} s", DOWN_MAX.as_secs());
        return Err(UserError::new(what, "a PreDown or PostDown command may still be running").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_time_too() {
        let scratch = tempfile::tempdir().unwrap();
        let lock = scratch.path().join("wg0.lock");
        assert!(holder(&lock).is_none());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let owner = Owner::of(child.id()).unwrap();
        fs::write(&lock, owner.name("wg0")).unwrap();
        assert!(holder(&lock).is_some());
        // A later process has got the pid of one that was killed.
        let killed = Owner { start_ticks: owner.start_ticks - 1, ..owner };
        for text in [killed.name("wg0"), owner.pid.to_string(), String::new()] {
            fs::write(&lock, text).unwrap();
            assert!(holder(&lock).is_none());
        }
        fs::write(&lock, owner.name("wg0")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(holder(&lock).is_none());
    }
}
