//! The guardian: a small process that reverts the changes of a trial, even if the trial is killed.
//!
//! It is this program again, started with [`GUARDIAN`]. The trial sends it each old value before it changes the place, over a pipe
//! that only the trial can write to. When the pipe closes, however the trial has ended, the guardian restores all old values and
//! exits. It also holds the locks that exclude other trials, so that they last until everything is reverted.
//!
//! It is in a process group of its own and ignores SIGINT, SIGTERM and SIGHUP: Ctrl-C ends the trial, which closes the pipe. A
//! change remains only if both processes are killed at once.
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use parshall_evidence::Reverted;
use parshall_sys::file_lock::FileLock;
use serde::{Deserialize, Serialize};

use super::place::{Moved, Remembered, Undo, inheritors};

/// First argument of the guardian.
pub const GUARDIAN: &str = "__guardian";
/// The most failed reverts that are reported.
const FAILED_MAX: usize = 16;
/// How many times to search for threads and connections that inherited a changed value.
const PASSES: usize = 3;

/// A message from the trial, one per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    /// Lock these files.
    Lock(Vec<PathBuf>),
    /// These places are about to be changed.
    Remember(Vec<Undo>),
}

/// A message from the guardian, one per line. Its last line is a [`Reverted`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Done,
    /// Another process holds this lock.
    Locked(PathBuf),
    Failed(String),
}

/// The trial's handle of the guardian. When it is dropped, it waits until the guardian has reverted everything.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
    /// None once it is closed.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Guardian {
    /// Starts the guardian process.
    pub fn start() -> anyhow::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("parshall")
            .arg(GUARDIAN)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the guardian")?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("the guardian has no pipe")?);
        Ok(Self { child, to, from })
    }

    /// Locks files; returns the one that another trial has locked.
    pub fn lock(&mut self, files: Vec<PathBuf>) -> anyhow::Result<Option<PathBuf>> {
        match self.request(&Request::Lock(files))? {
            Answer::Done => Ok(None),
            Answer::Locked(file) => Ok(Some(file)),
            Answer::Failed(why) => anyhow::bail!("the guardian failed: {why}"),
        }
    }

    /// Sends old values; once it returns, the places may be changed.
    pub fn remember(&mut self, undo: Vec<Undo>) -> anyhow::Result<()> {
        match self.request(&Request::Remember(undo))? {
            Answer::Done => Ok(()),
            answer => anyhow::bail!("the guardian does not keep the old values: {answer:?}"),
        }
    }

    fn request(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let gone = "the guardian has ended; nothing more is changed";
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.to.as_mut().context(gone)?.write_all(&line).context(gone)?;
        let mut answer = String::new();
        self.from.read_line(&mut answer).context(gone)?;
        serde_json::from_str(&answer).context(gone)
    }

    /// Has the guardian revert everything, and waits for the result.
    pub fn finish(mut self) -> anyhow::Result<Reverted> {
        drop(self.to.take());
        let mut last = String::new();
        self.from.read_line(&mut last).context("waiting for the guardian")?;
        serde_json::from_str(&last).context("the guardian has not reverted the change")
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.to.take());
        self.child.wait().ok();
    }
}

/// The main function of the guardian process.
pub fn guard() -> ExitCode {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ignored)).ok();
    }
    let mut guarded = Guarded::default();
    let mut lines = io::stdin().lock();
    let mut line = Vec::new();
    // A trial that dies before it has sent a whole line has not changed the places in it.
    while {
        line.clear();
        lines.read_until(b'\n', &mut line)
    }
    .is_ok_and(|n| n > 0)
        && line.ends_with(b"\n")
    {
        let answer = match serde_json::from_slice(&line) {
            Ok(request) => guarded.handle(request),
            Err(error) => Answer::Failed(error.to_string()),
        };
        send(&answer);
    }
    send(&guarded.revert());
    ExitCode::SUCCESS
}

/// Ignores errors: the trial may be gone, and everything must be reverted nevertheless.
fn send(answer: &impl Serialize) {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).ok();
}

#[derive(Default)]
struct Guarded {
    locks: Vec<FileLock>,
    /// By place, with its last old value: the application may have changed it between two changes of the trial.
    old: Remembered,
}

impl Guarded {
    fn handle(&mut self, request: Request) -> Answer {
        match request {
            Request::Lock(files) => self.lock(&files),
            Request::Remember(undo) => {
                self.old.extend(undo.into_iter().map(|undo| (undo.place.key(), undo)));
                Answer::Done
            }
        }
    }

    fn lock(&mut self, files: &[PathBuf]) -> Answer {
        for file in files {
            match FileLock::take_existing(file) {
                Ok(Some(lock)) => self.locks.push(lock),
                Ok(None) => return Answer::Locked(file.clone()),
                // A process that has ended needs no lock.
                Err(error) if is_gone(file, &error) => {}
                Err(error) => return Answer::Failed(format!("locking {}: {error}", file.display())),
            }
        }
        Answer::Done
    }

    fn revert(&mut self) -> Reverted {
        let mut reverted = Reverted::default();
        let mut moved = Moved::default();
        for undo in self.old.values().filter(|undo| undo.old != undo.new) {
            restore(undo, &mut moved, &mut reverted);
        }
        // Their creators have the old value again, so only those that were just being created are left.
        for _ in 0..PASSES {
            let inheritors = inheritors(&self.old);
            if inheritors.is_empty() {
                break;
            }
            for undo in inheritors {
                restore(&undo, &mut moved, &mut reverted);
                self.old.insert(undo.place.key(), undo);
            }
        }
        reverted
    }
}

fn restore(undo: &Undo, moved: &mut Moved, reverted: &mut Reverted) {
    match undo.place.write(&undo.old, moved) {
        Ok(()) => reverted.restored += u64::from(undo.place.counts()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => reverted.gone += 1,
        Err(error) if reverted.failed.len() < FAILED_MAX => {
            reverted.failed.push(format!("{} could not be set back to {}: {error}", undo.place.key(), undo.old));
        }
        Err(_) => {}
    }
}

fn is_gone(file: &Path, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) || !file.exists()
}
