//! A row of output: a record, and what user space adds to it.
use std::sync::Arc;

use parshall_evidence::socket::SocketRecord;

/// The dump that a row belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// When it began, in nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// Counts the dumps of this process from 1.
    pub sequence: u64,
    /// Host name of this machine.
    pub host: String,
    /// The backend that reads: `walk` or `netlink`.
    pub backend: &'static str,
}

/// The fate of a socket since the last dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Seen {
    /// The socket is open. Whether it was in the last dump is not known.
    #[default]
    Open,
    /// It was not in the last dump.
    New,
    /// It was in the last dump, and a field other than a timer or an age has changed.
    Changed,
    /// It was in the last dump, and has not changed.
    Same,
    /// It has closed. The counters are final.
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
    /// Process id in the initial PID namespace.
    pub pid: u32,
    /// Descriptor in that process.
    pub fd: u32,
    /// The command (`comm`), of which the kernel stores 15 bytes. Bytes that are not UTF-8 are replaced.
    pub command: Arc<str>,
}

/// The traffic of a socket since the last dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Time between the two dumps.
    pub interval_us: u64,
    /// Data bytes sent per second, retransmissions included.
    pub sent_bytes_per_s: u64,
    /// Data bytes received per second.
    pub received_bytes_per_s: u64,
    /// Segments sent per second, those without data included.
    pub segs_out_per_s: u64,
    /// Segments received per second, those without data included.
    pub segs_in_per_s: u64,
    /// Segments retransmitted since the last dump: a count, not a rate.
    pub retrans: u64,
}

/// A row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The fields that the kernel has.
    pub record: &'a SocketRecord,
    /// Key of the socket (see [`mod@super::key`]): the same in every dump, and another when the kernel reuses the structure. 0 if unknown.
    pub socket: u64,
    /// The fate of the socket since the last dump.
    pub seen: Seen,
    /// Name of a UNIX socket; abstract names begin with a zero byte.
    pub name: &'a [u8],
    /// Name of the network namespace; empty if it has none.
    pub netns: &'a str,
    /// Path of the control group; empty if it is not known or not requested.
    pub cgroup: &'a str,
    /// Container, where the path of the control group has it.
    pub container: &'a str,
    /// Pod, where the path of the control group has it.
    pub pod: &'a str,
    /// Descriptors that hold the socket, if they are requested.
    pub owners: &'a [Owner],
    /// Traffic since the last dump, if the socket was in it.
    pub rates: Option<Rates>,
}

impl<'a> Row<'a> {
    /// A row that has nothing but its record.
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
