//! What does not end with the interface and has to be undone: rules and hooks. It is on record before it is done, so that the next
//! start can undo it after this process was killed.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{hook, ip};

/// One thing that undoes another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Arguments of `ip`.
    Ip(Vec<String>),
    /// A shell command.
    Hook(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    /// The inode of the network namespace in which it was done.
    netns: u64,
    /// The last one is undone first.
    steps: Vec<Step>,
}

/// The steps of a tunnel and the file in which they are kept.
#[derive(Debug)]
pub struct Undo {
    path: PathBuf,
    record: Record,
}

impl Undo {
    /// Begins with no steps.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        Ok(Self { path, record: Record { netns: netns()?, steps: Vec::new() } })
    }

    /// Adds what undoes a step that is done next.
    pub fn push(&mut self, step: Step) -> io::Result<()> {
        self.record.steps.push(step);
        fs::write(&self.path, serde_json::to_vec(&self.record)?)
    }

    /// Undoes all steps, also after one fails, and removes the file. Returns the first failure.
    pub fn run(self) -> anyhow::Result<()> {
        let mut result = Ok(());
        for step in self.record.steps.iter().rev() {
            let done = match step {
                Step::Ip(arguments) => ip::run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()),
                Step::Hook(command) => hook::run(command),
            };
            result = result.and(done.inspect_err(|error| tracing::warn!("a step could not be undone: {error:#}")));
        }
        fs::remove_file(&self.path).ok();
        result
    }
}

/// Undoes what a process that was killed has left. Its interface ended with it.
pub fn leftovers(path: &Path) {
    let Ok(text) = fs::read(path) else { return };
    let record: Record = match serde_json::from_slice(&text) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "what a killed process left is not known");
            Record::default()
        }
    };
    if netns().is_ok_and(|here| here == record.netns) {
        tracing::info!(steps = record.steps.len(), "undoing what a process that was killed has left");
        Undo { path: path.to_owned(), record }.run().ok();
    } else {
        // With a namespace its rules end. If it is still there, these rules lead to an interface that is not.
        tracing::debug!(path = %path.display(), "a process that was killed ran in another network namespace");
        fs::remove_file(path).ok();
    }
}

fn netns() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_undone_in_reverse_by_the_next_process_too() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let hook = |word: &str| Step::Hook(format!("echo {word} >> {}", log.display()));
        let mut undo = Undo::new(path.clone()).unwrap();
        for word in ["first", "second"] {
            undo.push(hook(word)).unwrap();
        }
        undo.push(Step::Hook("exit 3".to_owned())).unwrap();
        drop(undo);
        leftovers(&path);
        assert_eq!(fs::read_to_string(&log).unwrap(), "second\nfirst\n");
        assert!(!path.exists());
        leftovers(&path);
    }

    #[test]
    fn another_namespace_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let record = Record { netns: 1, steps: vec![Step::Hook(format!("touch {}", log.display()))] };
        fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        leftovers(&path);
        assert!(!path.exists() && !log.exists());
    }
}
