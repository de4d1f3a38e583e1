//! The requests of a service: how many, how long each took from its arrival to its reply, and where that time went,
//! through every thread and process of the host that a request waited for.
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::listed::listed;
use crate::stopper::Stopper;
use crate::zero::is_zero;

/// The transport of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP: a request begins when data arrives at a connection on which no reply is owed.
    #[default]
    Tcp,
    /// UDP: each datagram received is a request, the next one sent to its sender is the reply.
    Udp,
}

/// One local address on which requests arrive, or one remote address to which the subject sends them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// The address of the service: its own end where it is served on this host, the remote end where the subject is its client.
    pub address: SocketAddr,
    /// How requests travel.
    pub transport: Transport,
    /// The subject sends these requests to somebody whom the observation did not see; `path` then begins at the client.
    pub outbound: bool,
    /// It was reached by following a wait: the user did not ask about it.
    pub followed: bool,
    /// The processes that answered, the one with most requests first. Empty for a service outside of this host.
    pub pids: Vec<u32>,
    /// Only of the requests that waited when the window ended and were read from the state of sockets and threads. No capture holds
    /// such a service: the judge makes it of [`crate::Waiting`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waited: bool,
    /// Requests that were answered in the observed time, those included that had begun before a slice.
    pub requests: u64,
    /// Requests that arrived and had no reply when the window ended.
    pub unanswered: u64,
    /// For how long the longest of those had waited by then.
    pub unanswered_longest_ns: u64,
    /// Requests whose connection closed before they had a reply: their client gave up.
    #[serde(default)]
    pub abandoned: u64,
    /// Connections on which a request was seen.
    pub connections: u64,
    /// Of them, those that were opened within the observed time.
    pub opened: u64,
    /// Of them, those whose requests were read by more than one thread.
    #[serde(default)]
    pub moved: u64,
    /// Of them, those on which several requests were under way while nothing showed which reply was whose: single times are not known.
    /// There are no percentiles where most requests are of such connections.
    #[serde(default)]
    pub overlapping: u64,
    /// Requests whose reply came in pieces and that ended with the last one: their clients waited for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_pieces: u64,
    /// Requests whose reply went on for 10 ms and more after its first part, and for longer than that took. They are counted until then, and
    /// whether their clients waited for the rest is not known: a stream looks alike.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub continued: u64,
    /// Sum of the times for which these went on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub continued_ns: u64,
    /// Time that the counts cover: the sum of the slices.
    pub observed_ns: u64,
    /// Median time from the arrival of a request to the beginning of its reply, requests included of which the end of a slice cut the
    /// rest; None where what was seen does not tell.
    #[serde(default)]
    pub p50_ns: Option<u64>,
    /// 99th percentile of it.
    #[serde(default)]
    pub p99_ns: Option<u64>,
    /// Sum of the times of all requests, those included that a slice cut, as far as they were seen. Divided by `observed_ns` it is
    /// the mean number of outstanding requests (Little's law).
    pub outstanding_ns: u64,
    /// Time in which at least one request was being worked on (read, and not answered).
    pub working_ns: u64,
    /// Sum over the requests of the time in which they were being worked on; divided by `working_ns` it is the mean number of
    /// requests that were worked on at a time.
    pub worked_ns: u64,
    /// Time between two successive replies while further requests were outstanding: 10th percentile. Even gaps
    /// (`reply_gap_p10_ns` close to `reply_gap_p90_ns`) tell requests that are served one after the other from those that are
    /// served side by side. 0 where there were fewer than 8 such gaps.
    #[serde(default)]
    pub reply_gap_p10_ns: u64,
    /// Their median.
    #[serde(default)]
    pub reply_gap_p50_ns: u64,
    /// Their 90th percentile.
    #[serde(default)]
    pub reply_gap_p90_ns: u64,
    /// Threads that read or answered requests.
    pub workers: u32,
    /// Limits on the requests that are under way at a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Requests whose time was followed through threads and processes: all, or evenly chosen ones.
    pub followed_requests: u64,
    /// Sum of their times; the parts of `path` add up to it.
    pub followed_ns: u64,
    /// The parts of that time, by the way to their end.
    pub path: Vec<PathPart>,
    /// Its slowest requests, which are followed apart from the others; None where there are too few requests to tell these from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
}

/// The slowest requests of a service: at most the slowest 5 %, or the slowest ten where these are more.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// A request belongs to the tail from this time on.
    pub from_ns: u64,
    /// Requests that took so long, or were seen for so long when a slice cut them.
    pub requests: u64,
    /// Connections on which they arrived.
    pub connections: u64,
    /// How often there were such requests: those that overlap in time count once.
    pub moments: u64,
    /// Sum of their times, as far as they were seen.
    pub ns: u64,
    /// Those whose time is followed: all, or evenly chosen ones.
    pub followed_requests: u64,
    /// Sum of their times; the parts of `path` add up to it.
    pub followed_ns: u64,
    /// The parts of that time, by the way to their end.
    pub path: Vec<PathPart>,
    /// Of the followed requests, those that waited unread mostly while the thread that was to read them worked on one other request.
    pub behind_one: u64,
    /// The time for which these waited unread.
    pub behind_one_ns: u64,
    /// The other ends of the connections on which those other requests had arrived, the one that most waited behind first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
}

/// A limit on the requests of a service that are under way at a time, while others wait: a pool of connections or workers, a semaphore, a
/// setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The server to which requests are passed on; None where the limit is on the requests that are read and not yet answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SocketAddr>,
    /// It is the number of connections to that server: each is kept for one client between its requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_connections: bool,
    /// The thread that asks does nothing else meanwhile, while further requests lie unread before it: it is blocked in each question.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocks: bool,
    /// The most requests that are under way.
    pub most: u32,
    /// Requests that wait beside those, on average over the time in which the limit was reached.
    pub waiting: f64,
    /// Time in which the limit was reached and others waited.
    pub reached_ns: u64,
    /// Time in which more requests than `most` were outstanding.
    pub beyond_ns: u64,
    /// How long one is under way, on average.
    pub each_ns: u64,
}

/// Time of requests that went the same way. The last hop is the leaf: what the time was spent on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathPart {
    /// From the service inwards.
    pub hops: Vec<Hop>,
    /// Their time.
    pub ns: u64,
    /// Requests with such a part.
    pub requests: u64,
    /// The longest such time of one request.
    pub longest_ns: u64,
    /// These requests came before the last one on a connection that was opened and closed for a few: what a protocol asks before
    /// the request that the client is after.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub setup: bool,
}

/// A thread on the way of a request, and what it did or waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    /// The process, 0 when it is not known.
    pub pid: u32,
    /// The thread, 0 when it is not known. Where several threads did the same, the one with most of the time.
    pub tid: u32,
    /// How many threads did the same.
    pub threads: u32,
    /// The name of the thread.
    pub thread: String,
    /// The name of the process.
    pub process: String,
    /// The title that the process has given itself (setproctitle).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Its action or wait.
    pub kind: HopKind,
    /// The system call in which it waited; empty when it was in none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub syscall: String,
    /// The object of the wait in words: a file's path, a peer's address, the name of who ran instead. Code decides by `object`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The object of the wait, where something is decided by it.
    #[serde(default, skip_serializing_if = "Object::is_none")]
    pub object: Object,
    /// Stack of the thread in this wait: index into [`crate::Capture::stacks`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}

/// The object of a wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Object {
    /// Not known, a file, or none.
    #[default]
    None,
    /// The other end of a connection.
    Peer(SocketAddr),
    /// The thread that had the CPU or the lock.
    Thread(Runner),
    /// The one that stopped the process.
    Stopper(Stopper),
}

impl Object {
    /// Whether nothing is known of it that code decides by.
    pub fn is_none(&self) -> bool {
        *self == Object::None
    }

    /// The other end of a connection, if it is one.
    pub fn peer(&self) -> Option<SocketAddr> {
        match self {
            Object::Peer(address) => Some(*address),
            _ => None,
        }
    }
}

/// A thread, or several with the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Runner {
    /// The process; 0 where it is not known, or where the threads belong to several.
    pub pid: u32,
    /// The name of the process; empty where it is not known.
    pub process: String,
}

listed! {
    /// The action or wait of a thread, or of a request without a thread.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum HopKind: id {
        /// The connection was established and waited for accept().
        AcceptQueue "accept-queue",
        /// The request lay in the socket until a thread read it. The next hop is what that thread did meanwhile.
        Unread "unread",
        /// The thread ran.
        OnCpu "on-cpu",
        /// The thread could run and waited for a CPU; `target` names who ran there.
        RunQueue "run-queue",
        /// The thread's control group had used up its CPU quota.
        Throttled "throttled",
        /// The process was stopped (SIGSTOP, a debugger, the freezer).
        Stopped "stopped",
        /// For a thread that, directly or through others, waits for this one.
        Deadlock "deadlock",
        /// For a lock (futex) that the next hop released.
        Lock "lock",
        /// For its turn: no more requests are passed on at a time ([`Limit`]), and the next hop is what one of those waited for.
        Turn "turn",
        /// For the next hop to finish what it was given to do (a worker, a completion, a child process).
        Worker "worker",
        /// For a file or block device.
        Disk "disk",
        /// For memory to be paged in or reclaimed.
        Memory "memory",
        /// For a timer: a sleep, a poll interval, a timeout.
        Timer "timer",
        /// For the reply to a request that it sent over a socket; the next hop serves it if it is on this host.
        Reply "reply",
        /// For a server to close the connection, after all of its reply had come.
        Close "close",
        /// For a name server.
        NameServer "name-server",
        /// For a pipe, a terminal or a UNIX socket to be read or filled by the next hop.
        Pipe "pipe",
        /// For the rest of the request from the client.
        Client "client",
        /// For the receiver to take what it sends.
        Send "send",
        /// In the socket of this thread, which wrote it: Nagle's algorithm waits for an ACK, and the receiver waits for the data.
        Held "held",
        /// For a connection to be established.
        Connect "connect",
        /// On the way between two sockets of this host.
        Network "network",
        /// For something that another request of the service brings: nobody owes this answer.
        OtherRequest "other-request",
        /// It has taken the request in and waits for events: nothing that blocks it was seen.
        Idle "idle",
        /// For something else in the kernel; `syscall` says in which call.
        Kernel "kernel",
        /// It was not seen.
        Unseen "unseen",
    }
}

impl HopKind {
    /// Nobody had begun with the request: it waited to be accepted or read.
    pub fn is_queue(self) -> bool {
        matches!(self, HopKind::AcceptQueue | HopKind::Unread)
    }
}
