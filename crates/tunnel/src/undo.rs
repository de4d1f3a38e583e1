//! Undoes what does not end with the interface: rules, blocked routes and hooks. A step is on record before it is done, so that
//! the next start can undo it after this process was killed.
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
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

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Record {
    /// The inode of the network namespace in which it was done.
    netns: u64,
    /// The last one is undone first.
    steps: Vec<Step>,
    /// The addresses of names, which cannot be resolved while packets to name servers are dropped.
    #[serde(default)]
    addresses: BTreeMap<String, SocketAddr>,
}

/// The steps of a tunnel and the file in which they are kept.
#[derive(Debug)]
pub struct Undo {
    path: PathBuf,
    record: Record,
    /// Steps of a process that died, which stay in place so that packets are dropped until the new tunnel is up: those that this process
    /// does not have, and those that it would do the same.
    held: Vec<Step>,
    claimed: Vec<Step>,
}

impl Undo {
    /// Begins with no steps. The hooks that a process that died still owes are run, and what it has set up is held.
    pub fn take_over(path: PathBuf) -> io::Result<Self> {
        let netns = own_netns()?;
        let left = match read_record(&path) {
            Some(left) if left.netns == netns => left,
            Some(_) => {
                leftovers(&path);
                Record::default()
            }
            None => Record::default(),
        };
        let (hooks, held): (Vec<_>, Vec<_>) = left.steps.into_iter().partition(|step| matches!(step, Step::Hook(_)));
        let record = Record { netns, steps: Vec::new(), addresses: left.addresses };
        let undo = Self { path, record, held, claimed: Vec::new() };
        if undo.is_blocking() || !hooks.is_empty() {
            tracing::info!("taking over from a process that was killed");
            undo.write()?;
            self::undo(&hooks).ok();
        }
        Ok(undo)
    }

    /// Whether what is to be undone by this step is in place already. It is this tunnel's then.
    pub fn claim(&mut self, step: &Step) -> bool {
        let Some(at) = self.held.iter().position(|held| held == step) else { return false };
        self.claimed.push(self.held.remove(at));
        true
    }

    /// The steps that are held and were not claimed.
    pub fn held(&self) -> &[Step] {
        &self.held
    }

    /// Undoes what is held and was not claimed: the new tunnel is up.
    pub fn settle(&mut self) -> io::Result<()> {
        if !self.is_blocking() {
            return Ok(());
        }
        undo(&std::mem::take(&mut self.held)).ok();
        self.record.steps.splice(0..0, std::mem::take(&mut self.claimed));
        self.write()
    }

    /// The address that a name had when a tunnel was set up last.
    pub fn address(&self, name: &str) -> Option<SocketAddr> {
        self.record.addresses.get(name).copied()
    }

    /// Keeps the address of a name. It is written with the next step.
    pub fn remember(&mut self, name: String, address: SocketAddr) {
        self.record.addresses.insert(name, address);
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

    /// Undoes all steps, also after one fails, and removes the file. Returns the first failure. If the tunnel did not come so far as
    /// to [`Undo::settle`], what was taken over stays as it was.
    pub fn run(mut self) -> anyhow::Result<()> {
        let result = self.run_from(0);
        if self.is_blocking() {
            tracing::warn!("packets that were routed into the tunnel are still dropped");
        } else {
            fs::remove_file(&self.path).ok();
        }
        result
    }

    /// Whether something is left of what was taken over.
    fn is_blocking(&self) -> bool {
        !(self.held.is_empty() && self.claimed.is_empty())
    }

    fn write(&self) -> io::Result<()> {
        let steps = [&self.held[..], &self.claimed, &self.record.steps].concat();
        own_directory::replace(&self.path, &serde_json::to_vec(&Record { steps, ..self.record.clone() })?)
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
    let Some(record) = read_record(path) else { return };
    let undo = Undo { path: path.to_owned(), record, held: Vec::new(), claimed: Vec::new() };
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

/// The record of a process that was killed, if there is one.
fn read_record(path: &Path) -> Option<Record> {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "what a killed process left is not undone");
            return None;
        }
    };
    let record = serde_json::from_slice(&text);
    Some(record.unwrap_or_else(|error| {
        tracing::warn!(%error, path = %path.display(), "what a killed process left is not known");
        Record::default()
    }))
}

/// Reads the file of a record. Only root and the user of this process may have written it: its commands are run.
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
        let mut undo = Undo::take_over(path.clone()).unwrap();
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
        let mut undo = other.run(|| Undo::take_over(path.clone())).unwrap();
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
        let record =
            Record { netns: 1, steps: vec![Step::Hook(format!("touch {}", log.display()))], ..Record::default() };
        fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        leftovers(&path);
        assert!(!path.exists() && !log.exists());
    }

    #[test]
    fn steps_from_one_on_are_undone_and_others_forgotten() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let hook = |word: &str| Step::Hook(format!("echo {word} >> {}", log.display()));
        let mut undo = Undo::take_over(path.clone()).unwrap();
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
        let record = Record {
            netns: own_netns().unwrap(),
            steps: vec![Step::Hook(format!("touch {}", log.display()))],
            ..Record::default()
        };
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

    #[test]
    fn what_a_process_left_stays_until_the_next_tunnel_is_up() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, log) = (scratch.path().join("wg0.undo"), scratch.path().join("log"));
        let hook = |word: &str| Step::Hook(format!("echo {word} >> {}", log.display()));
        let show = |n: usize| Step::Ip(ip::words(&format!("-4 link show dev no-such-{n}")));
        let left = || {
            fs::remove_file(&log).ok();
            let mut undo = Undo::take_over(path.clone()).unwrap();
            undo.remember("vpn:1".to_owned(), "192.0.2.1:1".parse().unwrap());
            undo.push_all([hook("owed"), show(1), show(2)]).unwrap();
        };
        let steps = || read_record(&path).map(|record| record.steps);
        left();
        let mut undo = Undo::take_over(path.clone()).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "owed\n", "hooks are run once");
        assert_eq!((undo.address("vpn:1"), undo.address("other:1")), (Some("192.0.2.1:1".parse().unwrap()), None));
        assert!(undo.claim(&show(2)) && !undo.claim(&show(2)) && !undo.claim(&show(3)));
        undo.push(show(3)).unwrap();
        assert_eq!(steps(), Some(vec![show(1), show(2), show(3)]));
        // It did not get up: its own step is undone, which fails here, and the others stay.
        undo.run().unwrap_err();
        assert_eq!(steps(), Some(vec![show(1), show(2)]));
        // It did: what it did not claim is undone.
        let mut undo = Undo::take_over(path.clone()).unwrap();
        undo.claim(&show(2));
        undo.push(show(3)).unwrap();
        undo.settle().unwrap();
        assert_eq!((steps(), undo.len()), (Some(vec![show(2), show(3)]), 2));
        undo.run().unwrap_err();
        assert!(!path.exists());
    }
}
