//! What does not end with the interface and has to be undone: rules, blocked routes and hooks. It is on record before it is done, so that
//! the next start can undo it after this process was killed.
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use parshall_host::{foreign_file, own_directory, proc_fs};
use parshall_sys::privileges::current;
use parshall_sys::{netns, nsfs};
use serde::{Deserialize, Serialize};

use crate::{hook, ip, nft};

/// More than the steps of 100,000 prefixes.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// One thing that undoes another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Arguments of `ip`.
    Ip(Vec<String>),
    /// A shell command.
    Hook(String),
    /// A table of nftables that is removed.
    Nft(String),
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
        Ok(Self { path, record: Record { netns: own_netns()?, steps: Vec::new() } })
    }

    /// Adds what undoes a step that is done next.
    pub fn push(&mut self, step: Step) -> io::Result<()> {
        self.push_all([step])
    }

    /// Adds several of them. They are written at once.
    pub fn push_all(&mut self, steps: impl IntoIterator<Item = Step>) -> io::Result<()> {
        self.record.steps.extend(steps);
        self.write()
    }

    /// Takes back steps for what was not done after all.
    pub fn forget(&mut self, steps: &[Step]) -> io::Result<()> {
        self.record.steps.retain(|step| !steps.contains(step));
        self.write()
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.record.steps.len()
    }

    /// Undoes the steps from this one on, also after one fails. Returns the first failure.
    pub fn run_from(&mut self, first: usize) -> anyhow::Result<()> {
        let steps = self.record.steps.split_off(first.min(self.len()));
        let result = undo(&steps);
        self.write()?;
        result
    }

    /// Undoes all steps, also after one fails, and removes the file. Returns the first failure.
    pub fn run(self) -> anyhow::Result<()> {
        let result = undo(&self.record.steps);
        fs::remove_file(&self.path).ok();
        result
    }

    fn write(&self) -> io::Result<()> {
        own_directory::replace(&self.path, &serde_json::to_vec(&self.record)?)
    }
}

/// Undoes steps, the last one first. Many commands of `ip` in a row are run by one process.
fn undo(steps: &[Step]) -> anyhow::Result<()> {
    let mut result = Ok(());
    let mut add = |done: anyhow::Result<()>| {
        let done = done.inspect_err(|error| tracing::warn!("a step could not be undone: {error:#}"));
        result = std::mem::replace(&mut result, Ok(())).and(done);
    };
    let mut commands: Vec<Vec<String>> = Vec::new();
    for step in steps.iter().rev() {
        if let Step::Ip(command) = step {
            commands.push(command.clone());
            continue;
        }
        undo_commands(&std::mem::take(&mut commands), &mut add);
        match step {
            Step::Ip(_) => {}
            Step::Hook(command) => add(hook::run(command)),
            Step::Nft(table) => add(nft::delete_table(table)),
        }
    }
    undo_commands(&commands, &mut add);
    result
}

fn undo_commands(commands: &[Vec<String>], add: &mut impl FnMut(anyhow::Result<()>)) {
    match ip::each(commands) {
        Ok(all) => all.iter().for_each(|failed| add(Err(failed.error(&commands[failed.at])))),
        Err(error) => add(Err(error)),
    }
}

/// Undoes what a process that was killed has left. Its interface ended with it.
pub fn leftovers(path: &Path) {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return tracing::warn!(%error, path = %path.display(), "what a killed process left is not undone"),
    };
    let record: Record = match serde_json::from_slice(&text) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "what a killed process left is not known");
            Record::default()
        }
    };
    let undo = Undo { path: path.to_owned(), record };
    let steps = undo.record.steps.len();
    let done = if own_netns().is_ok_and(|here| here == undo.record.netns) {
        tracing::info!(steps, "undoing what a process that was killed has left");
        undo.run()
    } else if let Some(file) = open_netns(undo.record.netns) {
        tracing::info!(steps, "undoing what a process that was killed has left in another network namespace");
        netns::run_in(file.as_fd(), || undo.run()).unwrap_or_else(|error| Err(error.into()))
    } else {
        // Rules and routes end with their namespace, and hooks would find another one.
        tracing::debug!(path = %path.display(), "the network namespace of a process that was killed has ended");
        fs::remove_file(path).map_err(Into::into)
    };
    if let Err(error) = done {
        tracing::warn!("not all that a killed process left could be undone: {error:#}");
    }
}

/// Opens the network namespace with this inode, if it has a name or a process.
fn open_netns(inode: u64) -> Option<File> {
    let named = parshall_host::netns::names().into_iter().map(|name| Path::new(netns::DIR).join(name));
    let of_processes = proc_fs::pids().into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")));
    let found = named.chain(of_processes).find(|path| nsfs::inode_named(path).is_ok_and(|found| found == inode))?;
    File::open(found).ok()
}

/// Reads a record. Only root and the user of this process may have written it: its commands are run.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = foreign_file::open_regular(path, Some(current().uid))?;
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn own_netns() -> io::Result<u64> {
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
    fn another_namespace_is_cleaned_up_there() {
        if !parshall_testkit::root("network namespaces") {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let other = netns::NetNs::create("undo").unwrap();
        let mut undo = other.run(|| Undo::new(path.clone())).unwrap();
        undo.push(Step::Hook(format!("stat -Lc %i /proc/self/ns/net > {}", log.display()))).unwrap();
        let inode = undo.record.netns;
        assert!(inode != own_netns().unwrap());
        leftovers(&path);
        assert_eq!(fs::read_to_string(&log).unwrap(), format!("{inode}\n"));
        assert!(!path.exists());
    }

    #[test]
    fn what_was_done_in_a_namespace_that_has_ended_is_forgotten() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let record = Record { netns: 1, steps: vec![Step::Hook(format!("touch {}", log.display()))] };
        fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        leftovers(&path);
        assert!(!path.exists() && !log.exists());
    }

    #[test]
    fn steps_from_one_on_are_undone_and_others_forgotten() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let hook = |word: &str| Step::Hook(format!("echo {word} >> {}", log.display()));
        let mut undo = Undo::new(path.clone()).unwrap();
        undo.push_all(["a", "b", "c", "d"].map(hook)).unwrap();
        undo.forget(&[hook("b")]).unwrap();
        undo.run_from(1).unwrap();
        assert_eq!((fs::read_to_string(&log).unwrap().as_str(), undo.len()), ("d\nc\n", 1));
        let record: Record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(record.steps, [hook("a")]);
    }

    #[test]
    fn a_record_of_another_user_is_not_carried_out() {
        if !parshall_testkit::root("records of other users") {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let record =
            Record { netns: own_netns().unwrap(), steps: vec![Step::Hook(format!("touch {}", log.display()))] };
        let planted = scratch.path().join("planted");
        fs::write(&planted, serde_json::to_vec(&record).unwrap()).unwrap();
        std::os::unix::fs::symlink(&planted, &path).unwrap();
        leftovers(&path);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::chown(&planted, Some(65_534), None).unwrap();
        leftovers(&planted);
        assert!(!log.exists());
        std::os::unix::fs::chown(&planted, Some(0), None).unwrap();
        leftovers(&planted);
        assert!(log.exists(), "one of our own is");
    }
}
