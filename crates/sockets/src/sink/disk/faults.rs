//! Faults of a disk: one step fails, or is the last that a process does. And what a loss of power leaves: a file may have its
//! name only after its bytes were synced, and the name is there for good only after its directory was.
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Disk, Step};

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// So many steps in a row fail with this error (ENOSPC, EIO).
    Fails(i32, u64),
    /// The process is killed: half of a write is done, and nothing after it.
    Killed,
}

/// Counts the steps of a disk, and lets one of them go wrong.
#[derive(Debug)]
pub struct Faults {
    at: u64,
    fault: Fault,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    steps: Vec<Step>,
    /// The process has been killed, and the step at which it was is over.
    over: bool,
    /// Written to since they were synced.
    unsynced: BTreeSet<PathBuf>,
    /// Steps in an order that a loss of power would not survive.
    wrong: Vec<String>,
}

impl Faults {
    /// A disk whose step with this number, counted from 0, goes wrong.
    pub fn at(step: u64, fault: Fault) -> (Disk, Arc<Self>) {
        let faults = Arc::new(Self { at: step, fault, seen: Mutex::default() });
        (Disk { faults: Some(Arc::clone(&faults)) }, faults)
    }

    /// A disk that works and counts.
    pub fn none() -> (Disk, Arc<Self>) {
        Self::at(u64::MAX, Fault::Killed)
    }

    /// The steps so far.
    pub fn steps(&self) -> Vec<Step> {
        self.lock().steps.clone()
    }

    /// What a loss of power would not have survived.
    pub fn wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }

    /// Whether the process was killed before this step.
    pub fn is_over(&self) -> bool {
        self.lock().over
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn before(&self, step: Step, path: &Path) -> io::Result<()> {
        let mut seen = self.lock();
        let number = seen.steps.len() as u64;
        seen.steps.push(step);
        match self.fault {
            Fault::Fails(error, count) if (self.at..self.at.saturating_add(count)).contains(&number) => {
                return Err(io::Error::from_raw_os_error(error));
            }
            Fault::Killed if number >= self.at => {
                seen.over = number > self.at;
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            _ => {}
        }
        match step {
            Step::Write(_) | Step::Cut => drop(seen.unsynced.insert(path.to_owned())),
            Step::Sync | Step::Remove => drop(seen.unsynced.remove(path)),
            Step::Rename if seen.unsynced.contains(path) => {
                seen.wrong.push(format!("{} was renamed before its bytes were synced", path.display()));
            }
            Step::Create | Step::Rename | Step::SyncDirectory => {}
        }
        Ok(())
    }
}

/// A directory that goes with its owner, in memory where that is to be had: thousands of syncs would take a disk minutes.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory can be made")
}
