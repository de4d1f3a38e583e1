//! The holders of sockets and of ends of pipes, from /proc/PID/fd of every process.
//!
//! A pass over a host of a few hundred processes takes 10 to 30 ms, over one of thousands more than anybody may wait for. So a
//! pass is made in steps, and is made again only when an end turns up whose holder is not known.
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use parshall_core::observe::follow::ends::End;
use parshall_host::proc_fs;

/// Ends whose holders are kept: about 60 bytes each. Beyond, only those that are searched for.
const ENDS_MAX: usize = 300_000;
/// Descriptors that are read of one process: 2 us each.
const DESCRIPTORS_MAX: usize = 8_192;

/// The holders found so far.
#[derive(Debug, Default)]
pub struct Descriptors {
    holders: HashMap<End, Vec<u32>>,
    /// A process that lives in each network namespace.
    namespaces: BTreeMap<u64, u32>,
    /// Processes whose descriptors may not be read.
    hidden: BTreeMap<u32, String>,
    known: HashSet<u32>,
    pass: Option<Pass>,
    pass_took: Duration,
    wanted: HashSet<End>,
    /// Ends that a whole pass did not find.
    missing: HashSet<End>,
}

/// The processes that a pass has still to read.
#[derive(Debug)]
struct Pass {
    pids: VecDeque<u32>,
    wanted: HashSet<End>,
    took: Duration,
}

impl Descriptors {
    /// Prepares the next window: what was not found before may be there now, and who lived in a namespace may have ended.
    pub fn renew(&mut self) {
        self.missing.clear();
        self.hidden.clear();
        self.namespaces.retain(|&ino, &mut pid| proc_fs::netns_ino(pid) == Some(ino));
    }

    /// The holders of this end, the observer excepted.
    pub fn holders(&self, end: End) -> &[u32] {
        self.holders.get(&end).map_or(&[], Vec::as_slice)
    }

    /// The network namespaces that processes live in, each with one of them.
    pub fn namespaces(&self) -> &BTreeMap<u64, u32> {
        &self.namespaces
    }

    /// Processes whose descriptors may not be read, with their names.
    pub fn hidden(&self) -> &BTreeMap<u32, String> {
        &self.hidden
    }

    /// Whether a whole pass did not find who holds this end.
    pub fn is_missing(&self, end: End) -> bool {
        self.missing.contains(&end)
    }

    /// Begins the pass over all processes, or one that searches for ends that turned up since; those that were not found before
    /// are not searched for again. Processes that are new come first. True when there is something to be done.
    pub fn search(&mut self, wanted: impl IntoIterator<Item = End>) -> bool {
        let wanted = wanted.into_iter().filter(|end| !self.missing.contains(end) && !self.holders.contains_key(end));
        self.wanted.extend(wanted);
        if self.pass.is_some() {
            return true;
        }
        if self.wanted.is_empty() && !self.known.is_empty() {
            return false;
        }
        let (old, new): (Vec<u32>, Vec<u32>) = proc_fs::pids().into_iter().partition(|pid| self.known.contains(pid));
        self.pass = Some(Pass {
            pids: new.into_iter().chain(old).collect(),
            wanted: std::mem::take(&mut self.wanted),
            took: Duration::ZERO,
        });
        true
    }

    /// Goes on with the pass for at most `time`; true when none is left to be done.
    pub fn step(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        let Some(mut pass) = self.pass.take() else { return true };
        let searches = !pass.wanted.is_empty();
        while let Some(pid) = pass.pids.pop_front() {
            self.read(pid, &pass.wanted);
            pass.wanted.retain(|end| !self.holders.contains_key(end));
            if searches && pass.wanted.is_empty() {
                break;
            }
            if begun.elapsed() >= time && !pass.pids.is_empty() {
                pass.took += begun.elapsed();
                self.pass = Some(pass);
                return false;
            }
        }
        self.pass_took = pass.took + begun.elapsed();
        self.missing.extend(pass.wanted);
        true
    }

    /// How long the last pass took in all its steps, in nanoseconds.
    pub fn pass_ns(&self) -> u64 {
        self.pass_took.as_nanos() as u64
    }

    /// Reads what a process holds now. Every end is kept if it is one of `wanted` or there is space.
    pub fn read(&mut self, pid: u32, wanted: &HashSet<End>) -> Vec<End> {
        if pid == proc_fs::own_pid() {
            return Vec::new();
        }
        let ends = match ends(pid) {
            Ok(ends) => ends,
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    let stat = proc_fs::stat(pid).filter(|stat| !stat.kernel_thread && stat.state != 'Z');
                    self.hidden.extend(stat.map(|stat| (pid, stat.comm)));
                }
                return Vec::new();
            }
        };
        self.known.insert(pid);
        if let Some(ino) = proc_fs::netns_ino(pid).filter(|_| !ends.is_empty()) {
            self.namespaces.entry(ino).or_insert(pid);
        }
        for &end in &ends {
            if self.holders.len() < ENDS_MAX || wanted.contains(&end) || self.holders.contains_key(&end) {
                let holders = self.holders.entry(end).or_default();
                if !holders.contains(&pid) {
                    holders.push(pid);
                }
            }
        }
        ends
    }

    /// A process has ended: its number may become another one's.
    pub fn forget(&mut self, pid: u32) {
        self.known.remove(&pid);
        self.holders.retain(|_, holders| {
            holders.retain(|holder| *holder != pid);
            !holders.is_empty()
        });
    }
}

/// The sockets and pipes of a process.
fn ends(pid: u32) -> io::Result<Vec<End>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?.map_while(Result::ok);
    entries.take(DESCRIPTORS_MAX).filter_map(|entry| end(&entry).transpose()).collect()
}

/// # Errors
/// It may not be read: whoever may list the descriptors need not be allowed to see what they are.
fn end(entry: &DirEntry) -> io::Result<Option<End>> {
    let link = match fs::read_link(entry.path()) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
        // Closed meanwhile.
        Err(_) => return Ok(None),
    };
    let link = link.to_str().unwrap_or_default();
    if let Some(inode) = proc_fs::inode_in(link, "socket") {
        return Ok(Some(End::Socket(inode)));
    }
    let Some(inode) = proc_fs::inode_in(link, "pipe") else { return Ok(None) };
    // The permissions of the link are those that the file was opened with.
    let mode = entry.metadata()?.permissions().mode();
    Ok(Some(if mode & 0o400 != 0 { End::PipeReader(inode) } else { End::PipeWriter(inode) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::child;

    #[test]
    fn a_child_is_found_by_its_socket_and_pipes() {
        let child = child::start("idle");
        let mut descriptors = Descriptors::default();
        assert!(descriptors.search([]));
        while !descriptors.step(Duration::from_micros(200)) {}
        let held = descriptors.read(child.pid(), &HashSet::new());
        let sockets: Vec<End> = held.iter().copied().filter(|end| matches!(end, End::Socket(_))).collect();
        assert_eq!(sockets.len(), 3, "{held:?}");
        assert!(sockets.iter().all(|end| descriptors.holders(*end) == [child.pid()]));
        assert!(held.iter().any(|end| matches!(end, End::PipeReader(_))), "its input is a pipe of ours: {held:?}");
        assert!(held.iter().any(|end| matches!(end, End::PipeWriter(_))), "its output is a pipe of ours: {held:?}");
        let ino = proc_fs::netns_ino(child.pid()).expect("our child");
        assert!(descriptors.namespaces().contains_key(&ino));
        descriptors.forget(child.pid());
        assert!(sockets.iter().all(|end| descriptors.holders(*end).is_empty()));
    }

    #[test]
    fn a_later_end_is_searched_for_once() {
        let mut descriptors = Descriptors::default();
        assert!(descriptors.search([]));
        while !descriptors.step(Duration::from_secs(1)) {}
        let child = child::start("idle");
        let wanted = ends(child.pid()).expect("our child").into_iter().find(|end| matches!(end, End::Socket(_)));
        let (wanted, nobodys) = (wanted.expect("it listens"), End::Socket(u64::MAX));
        assert!(descriptors.search([wanted, nobodys]));
        while !descriptors.step(Duration::from_millis(1)) {}
        assert_eq!(descriptors.holders(wanted), [child.pid()]);
        assert!(descriptors.is_missing(nobodys) && !descriptors.is_missing(wanted));
        assert!(!descriptors.search([wanted, nobodys]), "nothing is left to be searched for");
    }
}
