//! The guardian: a small process that reverts what the trial has changed, also when the trial is killed.
//!
//! It is this program again, started with [`GUARDIAN`]. The trial tells it each old value before the place is changed, over a pipe
//! that only the trial can write to. When the pipe closes, by whatever end the trial has come to, the guardian puts all old values
//! back and ends. It also holds the locks that keep other trials away, so they last until everything is reverted.
//!
//! It is in a process group of its own and ignores the signals that end programs: Ctrl-C ends the trial, and with it the pipe. Only
//! who kills both at once leaves a change behind.
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

use super::place::{Moved, Remembered, Undo, heirs};

/// First argument of the guardian.
pub const GUARDIAN: &str = "__guardian";
/// What cannot be put back is reported up to this number.
const FAILED_MAX: usize = 16;
/// Searches for threads and connections that have a changed value from another.
const PASSES: usize = 3;

/// What the trial says, a line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Said {
    /// Lock these files.
    Lock(Vec<PathBuf>),
    /// These places are about to be changed.
    Remember(Vec<Undo>),
}

/// What the guardian answers, a line each. Its last line is a [`Reverted`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Done,
    /// Another holds this lock.
    Locked(PathBuf),
    Failed(String),
}

/// The trial's side. Dropping it has everything reverted, and waits for that.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
    /// None once it was closed.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Guardian {
    /// Starts it.
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
        match self.ask(&Said::Lock(files))? {
            Answer::Done => Ok(None),
            Answer::Locked(file) => Ok(Some(file)),
            Answer::Failed(why) => anyhow::bail!("the guardian failed: {why}"),
        }
    }

    /// Has old values remembered; returns when they are, so that the places may be changed.
    pub fn remember(&mut self, undo: Vec<Undo>) -> anyhow::Result<()> {
        match self.ask(&Said::Remember(undo))? {
            Answer::Done => Ok(()),
            answer => anyhow::bail!("the guardian does not remember: {answer:?}"),
        }
    }

    fn ask(&mut self, said: &Said) -> anyhow::Result<Answer> {
        let gone = "the guardian has ended; nothing more is changed";
        let mut line = serde_json::to_vec(said)?;
        line.push(b'\n');
        self.to.as_mut().context(gone)?.write_all(&line).context(gone)?;
        let mut answer = String::new();
        self.from.read_line(&mut answer).context(gone)?;
        serde_json::from_str(&answer).context(gone)
    }

    /// Has everything reverted.
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

/// The guardian's own life.
pub fn guard() -> ExitCode {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ignored)).ok();
    }
    let mut guarded = Guarded::default();
    let mut lines = io::stdin().lock();
    let mut line = Vec::new();
    // A trial that dies within a line has not waited for its answer, and so has not changed what it names.
    while {
        line.clear();
        lines.read_until(b'\n', &mut line)
    }
    .is_ok_and(|n| n > 0)
        && line.ends_with(b"\n")
    {
        let answer = match serde_json::from_slice(&line) {
            Ok(said) => guarded.hear(said),
            Err(error) => Answer::Failed(error.to_string()),
        };
        say(&answer);
    }
    say(&guarded.revert());
    ExitCode::SUCCESS
}

/// The trial may be gone: what is reverted does not depend on who hears of it.
fn say(answer: &impl Serialize) {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).ok();
}

#[derive(Default)]
struct Guarded {
    locks: Vec<FileLock>,
    /// The last value of a place counts: its application may have changed it while it was its own.
    old: Remembered,
}

impl Guarded {
    fn hear(&mut self, said: Said) -> Answer {
        match said {
            Said::Lock(files) => self.lock(&files),
            Said::Remember(undo) => {
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
            put_back(undo, &mut moved, &mut reverted);
        }
        // Once their makers have the old value again no more come, but for those that were being made meanwhile.
        for _ in 0..PASSES {
            let heirs = heirs(&self.old);
            if heirs.is_empty() {
                break;
            }
            for undo in heirs {
                put_back(&undo, &mut moved, &mut reverted);
                self.old.insert(undo.place.key(), undo);
            }
        }
        reverted
    }
}

fn put_back(undo: &Undo, moved: &mut Moved, reverted: &mut Reverted) {
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
