//! Waits at the end of the window, and for how long they have lasted: connections with a request that nobody has answered, and what
//! the threads do that would have to.
//!
//! Probes see what happens within the window. A wait that began before it and does not end has no event in it: it is read from the state of
//! sockets and threads, when the window begins and when it ends, on every rung alike. Which of it is a request, and who owes the
//! answer, is decided in `parshall-core`.
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::flow::FlowId;
use crate::stopper::Stopper;
use crate::thread::FdKind;

/// Ends of connections on which something may wait, and the threads of the processes that hold them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Ends of connections: of the subject, and of the processes that its waits lead to.
    pub ends: Vec<WaitingEnd>,
    /// Threads of the processes that hold these ends.
    pub threads: Vec<WaitingThread>,
    /// Ends beyond the limit, which are in no list.
    #[serde(default)]
    pub left_out: u64,
}

/// One end of a TCP connection on which something may wait. Ages are those at the window's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingEnd {
    /// The socket.
    pub id: FlowId,
    /// Its own address.
    pub local: SocketAddr,
    /// The other end's.
    pub remote: SocketAddr,
    /// Inode of its network namespace.
    pub netns: u64,
    /// Its own port is that of a listener: requests arrive here.
    pub serves: bool,
    /// It belongs to the subject; otherwise a wait of the subject led to it.
    pub subject: bool,
    /// A process has accepted it, or opened it.
    pub accepted: bool,
    /// TCP state number (1 = ESTABLISHED, 2 = SYN_SENT).
    pub state: u8,
    /// Processes that hold it; of one that waits to be accepted, those that hold the listener.
    pub pids: Vec<u32>,
    /// Bytes that arrived and were not read.
    pub unread_bytes: u64,
    /// Time since data last arrived; None when none ever did.
    pub received_ns: Option<u64>,
    /// Time since data was last sent; None when none ever was.
    pub sent_ns: Option<u64>,
    /// Time since an ACK, with or without data, last arrived.
    pub acked_ns: u64,
    /// For how long it is known that its process has neither read nor written anything: the window, if it was in the same state
    /// when that began; 0 otherwise.
    pub still_ns: u64,
}

/// A thread of a process that holds one of the ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingThread {
    /// Its process.
    pub pid: u32,
    /// Its id.
    pub tid: u32,
    /// Name of the process.
    pub process: String,
    /// Its own name.
    pub thread: String,
    /// The title that the process has given itself; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The state in which /proc shows it: R runs, S sleeps, D sleeps uninterruptibly, T is stopped, t is traced.
    pub state: char,
    /// It did not run once within the window; None for a thread that was not read when the window began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub still: Option<bool>,
    /// Its system call could be read.
    pub seen: bool,
    /// The system call in which it is, or [`crate::NO_SYSCALL`].
    pub syscall: i32,
    /// The name of that call; empty for none.
    pub syscall_name: String,
    /// The kind of the call's descriptor.
    pub fd: FdKind,
    /// The object behind the descriptor: a path, or the address of the other end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Ends in [`Waiting::ends`] on which it waits for data, in a call on one of them or on many descriptors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<FlowId>,
    /// On which descriptors it waits is not known: it may be any of its process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_any: bool,
    /// The thread that holds the mutex for which it sleeps; 0 when that is not known.
    #[serde(default)]
    pub lock_owner: u32,
    /// Processes at the other end of the UNIX socket or pipe for which it sleeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partners: Vec<u32>,
    /// The one that stopped it, where that can be read: a debugger, or the freezer of its control group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<Stopper>,
    /// The process of the session that holds the lock of the database for which this one waits; 0 when it waits for none.
    #[serde(default)]
    pub session_lock: u32,
    /// The user stack of one that sleeps: index into [`crate::Capture::stacks`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}
