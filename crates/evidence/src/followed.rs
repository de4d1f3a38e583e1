//! Processes that were observed although the user did not ask about them.
use serde::{Deserialize, Serialize};

/// A process outside of the subject that was observed because a process of the subject may have waited for it, directly or
/// through others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The title that it has given itself, such as `postgres: shop web [local] idle in transaction`; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The link by which it was found.
    pub reason: FollowReason,
    /// The observed process that led to it.
    pub from: u32,
    /// Processes between the subject and it, itself included: 1 for those that the subject talks to.
    pub depth: u32,
    /// When its observation began, nanoseconds since the window began.
    pub since_ns: u64,
}

/// A link from an observed process to one that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FollowReason {
    /// It serves a TCP connection that the other one opened.
    TcpServer,
    /// It holds the other end of a UNIX socket, and is not its client.
    UnixSocket,
    /// It holds the other end of a pipe.
    Pipe,
    /// Its threads woke threads of the other one.
    Waker,
    /// The other one made it while it was followed itself.
    Child,
}
