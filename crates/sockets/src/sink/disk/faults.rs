//! Faults of a disk: one step fails, or is the last one of a process. Also tests that a loss of power would be survived: a file
//! must be synced before it is renamed.
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Disk, Step};

/// The failure at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Steps fail with this errno; the second value is their number.
    Fails(i32, u64),
    /// The process is killed: half of a write is done, and no step after it.
    Killed,
}

/// Counts the steps of a disk, and makes one of them fail.
#[derive(Debug)]
pub struct Faults {
    at: u64,
    fault: Fault,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    steps: Vec<Step>,
    /// The step at which the process was killed has passed.
    over: bool,
    /// Files with writes that are not synced.
    unsynced: BTreeSet<PathBuf>,
    /// Errors in the order of steps, because of which a loss of power would lose data.
    wrong: Vec<String>,
}

impl Faults {
    /// A disk on which the step with this number, counted from 0, fails.
    pub fn at(step: u64, fault: Fault) -> (Disk, Arc<Self>) {
        let faults = Arc::new(Self { at: step, fault, seen: Mutex::default() });
        (Disk { faults: Some(Arc::clone(&faults)) }, faults)
    }

    /// A disk without faults.
    pub fn none() -> (Disk, Arc<Self>) {
        Self::at(u64::MAX, Fault::Killed)
    }

    /// The steps so far.
    pub fn steps(&self) -> Vec<Step> {
        self.lock().steps.clone()
    }

    /// Errors in the order of steps.
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
            Step::Write(_) | Step::Truncate => drop(seen.unsynced.insert(path.to_owned())),
            Step::Sync | Step::Remove => drop(seen.unsynced.remove(path)),
            Step::Rename if seen.unsynced.contains(path) => {
                seen.wrong.push(format!("{} was renamed before its bytes were synced", path.display()));
            }
            Step::Create | Step::Rename | Step::SyncDirectory => {}
        }
        Ok(())
    }
}

/// A temporary directory, in memory if possible: thousands of syncs would take minutes on a disk.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory can be made")
}
