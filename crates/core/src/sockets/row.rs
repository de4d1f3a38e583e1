//! One line of output: a record, and what user space knows besides.
use std::sync::Arc;

use parshall_evidence::socket::SocketRecord;

/// A dump, as every row of it and its end refer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// When it began, in nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// The how-manieth of this process, from 1.
    pub sequence: u64,
    /// Name of the host.
    pub host: String,
    /// The backend that reads: `walk`, `iter`, `netlink`.
    pub backend: &'static str,
}

/// Why a row is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Seen {
    /// The socket is open; nothing is said of earlier dumps.
    #[default]
    Open,
    /// It was not there in the last dump.
    New,
    /// It was there, and something other than the time of day has changed.
    Changed,
    /// It was there, and nothing has changed.
    Same,
    /// It has closed; the counters are final.
    Closed,
}

impl Seen {
    /// Its name in every format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::New => "new",
            Self::Changed => "changed",
            Self::Same => "same",
            Self::Closed => "closed",
        }
    }
}

/// A descriptor that holds the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Process id, as the initial namespace counts.
    pub pid: u32,
    /// The descriptor.
    pub fd: u32,
    /// The command, as the kernel shortens it; bytes that are no UTF-8 are replaced. Shared by the rows of a process.
    pub command: Arc<str>,
}

/// What a socket moved per second since the last dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// The time between the two dumps.
    pub interval_us: u64,
    /// Data bytes sent per second, retransmissions included.
    pub sent_bytes_per_s: u64,
    /// Data bytes received per second.
    pub received_bytes_per_s: u64,
    /// Segments sent per second.
    pub segs_out_per_s: u64,
    /// Segments received per second.
    pub segs_in_per_s: u64,
    /// Segments sent again since the last dump: a count, because it is small.
    pub retrans: u64,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// What the kernel says.
    pub record: &'a SocketRecord,
    /// Key of the socket: the same in every dump, another when the kernel reuses the structure. 0: unknown.
    pub socket: u64,
    /// Why the row is there.
    pub seen: Seen,
    /// Name of a UNIX socket; abstract names begin with a zero byte.
    pub name: &'a [u8],
    /// Name of the network namespace, if it has one.
    pub netns: &'a str,
    /// Path of the control group, if it was asked for and found.
    pub cgroup: &'a str,
    /// Container, if the control group tells it.
    pub container: &'a str,
    /// Pod, if the control group tells it.
    pub pod: &'a str,
    /// Descriptors that hold the socket, if they were asked for.
    pub owners: &'a [Owner],
    /// What it moved since the last dump, if it was there.
    pub rates: Option<Rates>,
}

impl<'a> Row<'a> {
    /// A row of which only the record is known.
    pub fn bare(record: &'a SocketRecord) -> Self {
        Self {
            record,
            socket: 0,
            seen: Seen::Open,
            name: &[],
            netns: "",
            cgroup: "",
            container: "",
            pod: "",
            owners: &[],
            rates: None,
        }
    }
}
