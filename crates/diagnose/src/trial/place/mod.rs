//! A place whose value a trial changes: a connection's option, a thread's attribute, a control group's quota, a sysctl.
//!
//! A place is plain data, so that the guardian can find it again when the process that made the change is gone. Values are text
//! in the form in which they are read, so that a value that was read can be written back. No descriptor is held between two calls:
//! a socket that its owner closes must close.
mod group;
mod socket;
mod sysctl;
mod thread;

use std::io;

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

/// What a place was before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    pub place: Place,
    pub old: String,
}

impl Place {
    /// Tells places apart; the same place found by another process or descriptor has the same key.
    pub fn key(&self) -> String {
        match self {
            Place::Connection(socket) => format!("socket {}", socket.inode),
            Place::Thread(thread) => format!("thread {} {}", thread.tid, thread.start_ticks),
            Place::Group(group) => group.directory.display().to_string(),
            Place::Sysctl(sysctl) => format!("{} {}", sysctl.netns, sysctl.name),
        }
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

    /// Whether a value that was read is the one that was asked for.
    pub fn is(&self, read: &str, asked: &str) -> bool {
        match self {
            Place::Connection(_) if asked == UNLOCKED => read.ends_with(asked),
            _ => read == asked,
        }
    }
}

fn gone(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{what} is gone"))
}

fn malformed(value: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("`{value}` is not a value of this place"))
}

/// The kernel's word for a process or thread that has ended has no kind of its own.
fn ended(error: io::Error, what: &str) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::EBADF | libc::ENODEV) => gone(what),
        _ => error,
    }
}
