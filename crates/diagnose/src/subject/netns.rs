//! Network namespaces: which there are, and a SOCK_DIAG socket inside one.
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use parshall_core::units::plural;
use parshall_sys::netns::run_in;
use parshall_sys::nsfs;

use super::process::Process;
use parshall_host::netns::{self, Netns};
use parshall_host::proc_fs;
use parshall_host::tcp_diag::TcpDiag;
use parshall_host::unix_diag::UnixDiag;

/// A network namespace that is kept alive by an open descriptor.
#[derive(Debug, Clone)]
pub struct Namespace {
    /// Its inode number.
    pub ino: u64,
    /// None for the namespace that we live in.
    file: Option<Arc<File>>,
}

impl Namespace {
    /// The namespace that we live in; None where /proc does not say.
    pub fn own() -> Option<Self> {
        Some(Self { ino: proc_fs::netns_ino(proc_fs::own_pid())?, file: None })
    }

    /// Runs `work` inside it. Needs CAP_SYS_ADMIN unless it is our own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.file {
            None => Ok(work()),
            Some(file) => run_in(file.as_fd(), work),
        }
    }

    /// The namespace with this inode, if a process lives in it or it has a name.
    pub fn of_inode(ino: u64) -> Option<Self> {
        named(&Netns::Inode(ino)).ok().flatten()
    }

    /// The namespace with this inode, in which a process lives; None when that has left it, or we may not see it.
    pub fn of_process(pid: u32, ino: u64) -> Option<Self> {
        open(&BTreeMap::from([(ino, vec![of_process(pid)])])).pop()
    }

    /// Opens a SOCK_DIAG socket in it. Needs CAP_SYS_ADMIN unless it is our own.
    pub fn open_diag(&self) -> io::Result<TcpDiag> {
        self.run(TcpDiag::open)?
    }

    /// As [`Namespace::open_diag`], for UNIX sockets.
    pub fn open_unix_diag(&self) -> io::Result<UnixDiag> {
        self.run(UnixDiag::open)?
    }
}

/// Namespaces by inode, opened through the first path that works.
fn open(paths: &BTreeMap<u64, Vec<PathBuf>>) -> Vec<Namespace> {
    let own = Namespace::own();
    let mut found = Vec::new();
    for (&ino, paths) in paths {
        match &own {
            Some(own) if own.ino == ino => found.push(own.clone()),
            _ => {
                // A name in /run/netns may be a link of root's that leads to anything: only a namespace is opened.
                let mut opened = paths.iter().filter_map(|path| nsfs::open_named(path).ok());
                let file = opened.find(|file| inode(file) == Some(ino));
                found.extend(file.map(|file| Namespace { ino, file: Some(Arc::new(file)) }));
            }
        }
    }
    found
}

fn inode(file: &File) -> Option<u64> {
    file.metadata().ok().map(|metadata| metadata.ino())
}

fn of_process(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/net"))
}

fn named_paths() -> Vec<PathBuf> {
    netns::names().into_iter().map(|name| Path::new(parshall_sys::netns::DIR).join(name)).collect()
}

/// Every namespace that a process lives in or that has a name. Notes those we may not see.
pub fn all(notes: &mut Vec<String>) -> Vec<Namespace> {
    let mut paths: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    let mut hidden = 0;
    for pid in proc_fs::pids() {
        match proc_fs::netns_ino(pid) {
            // One path is enough as a rule; a second one covers a process that ends meanwhile.
            Some(ino) => {
                let known = paths.entry(ino).or_default();
                if known.len() < 2 {
                    known.push(of_process(pid));
                }
            }
            None => hidden += usize::from(proc_fs::stat(pid).is_some_and(|s| !s.kernel_thread && s.state != 'Z')),
        }
    }
    for path in named_paths() {
        if let Ok(metadata) = fs::metadata(&path) {
            paths.entry(metadata.ino()).or_default().push(path);
        }
    }
    // Even root may find a process or two shut: of a security module, or of a namespace above ours.
    if hidden > 0 && !parshall_sys::child::is_root() {
        let processes = plural(hidden as u64, "process", "processes");
        let namespaces = if hidden == 1 { "namespace" } else { "namespaces" };
        notes.push(format!("the network {namespaces} of {processes} could not be seen: that takes root"));
    }
    open(&paths)
}

/// The namespaces with these inodes, reached through the processes that live in them.
pub fn of_inodes(inodes: &BTreeSet<u64>, processes: &[Process]) -> Vec<Namespace> {
    let mut paths: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for process in processes.iter().filter(|process| inodes.contains(&process.netns_ino)) {
        paths.entry(process.netns_ino).or_default().push(of_process(process.pid));
    }
    let mut found = open(&paths);
    if found.is_empty() {
        // Their namespace is hidden from us; our own is the likely one, and sockets are matched by inode anyway.
        found.extend(Namespace::own());
    }
    found
}

/// The namespace that a user named; None for all.
///
/// # Errors
/// There is none, or it may not be opened.
pub fn named(netns: &Netns) -> Result<Option<Namespace>> {
    let (ino, paths) = match netns {
        Netns::All => return Ok(None),
        Netns::File(path) => (netns.inode()?.unwrap_or_default(), vec![path.clone()]),
        Netns::Inode(ino) => {
            let pids = proc_fs::pids().into_iter().filter(|&pid| proc_fs::netns_ino(pid) == Some(*ino));
            let named = named_paths().into_iter().filter(|path| fs::metadata(path).is_ok_and(|m| m.ino() == *ino));
            (*ino, pids.map(of_process).chain(named).collect())
        }
    };
    open(&BTreeMap::from([(ino, paths)])).pop().map(Some).ok_or_else(|| netns.unknown().into())
}

/// Processes that live in a namespace, ourselves excepted.
pub fn members(ino: u64) -> Vec<u32> {
    let own = std::process::id();
    let mut pids = proc_fs::pids();
    pids.retain(|&pid| {
        pid != own
            && proc_fs::netns_ino(pid) == Some(ino)
            && proc_fs::stat(pid).is_some_and(|stat| !stat.kernel_thread && stat.state != 'Z')
    });
    pids
}
