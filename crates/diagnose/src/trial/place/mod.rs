//! A place whose value a trial changes: a connection's option, a thread's attribute, a control group's quota, a sysctl.
//!
//! A place is plain data, so that the guardian can find it again after the trial's process has ended. Values are text in the form
//! in which they are read, so that they can be written back. No descriptor stays open between two calls, because a socket that its
//! owner closes must close.
mod error;
mod group;
mod socket;
mod sysctl;
mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use parshall_core::sorting::IntoOrdered as _;
use parshall_host::proc_fs;
use serde::{Deserialize, Serialize};

pub use group::{Group, NO_LIMIT};
pub use socket::{Moved, Socket, SocketSetting, UNLOCKED, locked_buffer};
pub use sysctl::Sysctl;
pub use thread::{Thread, ThreadSetting};

/// A place. Errors of the kind `NotFound` say that it is gone: the socket was closed, the thread has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    Connection(Socket),
    Thread(Thread),
    Group(Group),
    Sysctl(Sysctl),
}

/// A place's old value, and its new one. They are the same for a place that had the value already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    pub place: Place,
    pub old: String,
    pub new: String,
}

/// Places by their key.
pub type Remembered = BTreeMap<String, Undo>;

/// Threads and connections that are not known yet and inherited the new value from one that was changed, with the value that they
/// would have inherited without the change.
pub fn inheritors(known: &Remembered) -> Vec<Undo> {
    let changed = || known.values().filter(|undo| undo.old != undo.new);
    let pids: BTreeSet<u32> = changed().filter_map(|undo| undo.place.pid()).into_set();
    let pids: Vec<u32> = pids.into_iter().collect();
    let all = || pids.iter().copied().chain(proc_fs::descendants(&pids));
    let mut found: BTreeMap<String, Undo> = BTreeMap::new();
    let mut add = |place: Place, from: &Undo| {
        let undo = Undo { place, ..from.clone() };
        found.entry(undo.place.key()).or_insert(undo);
    };
    for undo in changed() {
        match &undo.place {
            Place::Connection(listener) if listener.listening => {
                let is_known = |inode: u64| known.contains_key(&socket::key(inode));
                let accepted = all().flat_map(|pid| socket::accepted(listener, &undo.new, pid, &is_known));
                accepted.for_each(|socket| add(Place::Connection(socket), undo));
            }
            // One thread represents each process.
            Place::Thread(thread) if thread.tid == thread.pid => {
                let is_known = |thread: &Thread| known.contains_key(&thread.key());
                let of_process = thread::started(thread, &undo.new, all(), &is_known);
                of_process.into_iter().for_each(|thread| add(Place::Thread(thread), undo));
            }
            _ => {}
        }
    }
    found.into_values().collect()
}

impl Place {
    /// Identifies a place, whichever process or descriptor it was found by.
    pub fn key(&self) -> String {
        match self {
            Place::Connection(socket) => socket::key(socket.inode),
            Place::Thread(thread) => thread.key(),
            Place::Group(group) => group.directory.display().to_string(),
            Place::Sysctl(sysctl) => format!("{} {}", sysctl.netns, sysctl.name),
        }
    }

    /// Whether results count it. Listening sockets are not counted: they are changed only for the connections that they accept.
    pub fn counts(&self) -> bool {
        !matches!(self, Place::Connection(socket) if socket.listening)
    }

    /// Its process, where it belongs to one.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Place::Connection(socket) => Some(socket.pid),
            Place::Thread(thread) => Some(thread.pid),
            Place::Group(_) | Place::Sysctl(_) => None,
        }
    }

    /// Its value.
    pub fn read(&self, moved: &mut Moved) -> io::Result<String> {
        match self {
            Place::Connection(socket) => socket.read(moved),
            Place::Thread(thread) => thread.read(),
            Place::Group(group) => group.read(),
            Place::Sysctl(sysctl) => sysctl.read(),
        }
    }

    /// Sets its value.
    pub fn write(&self, value: &str, moved: &mut Moved) -> io::Result<()> {
        match self {
            Place::Connection(socket) => socket.write(value, moved),
            Place::Thread(thread) => thread.write(value),
            Place::Group(group) => group.write(value),
            Place::Sysctl(sysctl) => sysctl.write(value),
        }
    }

    /// Whether a value that was read is the requested one.
    pub fn is(&self, read: &str, asked: &str) -> bool {
        match self {
            Place::Connection(_) if asked == UNLOCKED => read.ends_with(asked),
            _ => read == asked,
        }
    }
}
