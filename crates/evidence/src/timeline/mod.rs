//! The events of threads and sockets in the observed time: requests and their critical paths are found in it.
//!
//! Times are nanoseconds since the window began. Only slices are covered; nothing is known of the time between them.
mod columns;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::flow::FlowId;
use crate::listed::listed;
use crate::stopper::Stopper;
use crate::thread::FdKind;

/// Times off the CPU and calls that a timeline holds at most, together: 36 MB, for a time off the CPU takes 72 bytes.
pub const EVENTS_MAX: usize = 500_000;

/// The port of name servers.
pub const NAMES_PORT: u16 = 53;

/// One time of a thread off the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpu {
    /// The thread.
    pub tid: u32,
    /// When it left the CPU.
    pub begin_ns: u64,
    /// When it could run again; `begin_ns` if it never slept. From here to `end_ns` it waited for a CPU.
    pub wake_ns: u64,
    /// When it ran again.
    pub end_ns: u64,
    /// Why it left the CPU.
    pub why: Why,
    /// The system call it was in (the host's own numbers); negative when in none.
    pub syscall: i32,
    /// The kind of the call's descriptor.
    pub fd: FdKind,
    /// The descriptor's number, -1 for none.
    pub fd_number: i32,
    /// The socket cookie of a socket, the inode number of anything else behind the descriptor, the address of a futex; 0 when unknown.
    pub target: u64,
    /// Its waker.
    pub waker: Waker,
    /// The thread that ran on the CPU just before this one came back to it; 0 for the idle thread.
    pub ran_instead_tid: u32,
    /// Index of its stack in the capture's stacks, where one was taken.
    pub stack: Option<u32>,
}

impl OffCpu {
    /// It slept, and nobody had woken it when the slice ended.
    pub fn is_open(&self) -> bool {
        self.waker == Waker::Unknown && self.wake_ns >= self.end_ns
    }
}

/// Why a thread left the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It slept, interruptibly or not.
    Slept,
    /// It slept uninterruptibly and was accounted as waiting for I/O (`in_iowait`).
    SleptForIo,
    /// It slept uninterruptibly for another reason.
    SleptUninterruptibly,
    /// It was preempted, or yielded.
    Preempted,
    /// Its control group was out of quota.
    Throttled,
    /// It was stopped or traced.
    Stopped,
}

/// The waker of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waker {
    /// Not seen.
    Unknown,
    /// A thread, from process context.
    Thread(u32),
    /// A thread of the kernel.
    KernelThread(u32),
    /// A softirq: received packets, kernel timers, block completions.
    SoftIrq,
    /// A hardware interrupt: high-resolution timers, block completions.
    HardIrq,
}

/// An operation of a thread on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// It received data, of which the first byte had arrived at `since_ns`.
    Receive,
    /// It sent data; the call began at `since_ns`.
    Send,
    /// It accepted the connection, which had been established since `since_ns`.
    Accept,
}

listed! {
    /// A protocol whose messages are known by their first bytes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Protocol {
        /// TLS. `kind` is the type of the record, `flags` the type of a handshake message that is not encrypted.
        Tls,
        /// HTTP/1: `kind` is 1 for a request, 2 for a response, 3 for an informational one, 4 for a change of the protocol (101).
        Http1,
        /// HTTP/2: `kind` is the type of the frame, 255 for the preface of a client.
        Http2,
        /// PostgreSQL: `kind` is the type of the message, 0 for one that begins a session, with `flags` 1 where that only asks for encryption
        /// or to cancel.
        Postgres,
        /// MySQL: `kind` is the number of a command that has no reply, 0 for all else, `stream` the number of the packet.
        Mysql,
        /// RESP, the protocol of Redis: `kind` is the first byte.
        Redis,
        /// Kafka: `kind` is the function of a request, `stream` the number that it has in common with its reply.
        Kafka,
        /// DNS: `kind` is 1 for an answer, `stream` the number that it has in common with its question.
        Dns,
        /// WebSocket: `kind` is the opcode, `flags` 1 where the data are masked, as those of clients are.
        WebSocket,
        /// MQTT: `kind` is the type of the message, `flags` the lower half of its first byte, which has the quality of service of a PUBLISH.
        Mqtt,
    }
}

/// The form of the message that begins with a call. Other data may look the same: a connection has a protocol only if the messages of
/// both directions fit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The protocol.
    pub protocol: Protocol,
    /// The kind of message: see [`Protocol`].
    pub kind: u8,
    /// See [`Protocol`].
    pub flags: u8,
    /// Bytes of the message with its head, 0 where the head does not say. The call may have moved fewer, or the next messages too.
    pub length: u32,
    /// The number of the exchange it belongs to: see [`Protocol`].
    pub stream: u32,
}

/// One call of a thread that moved data on a socket, or accepted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketCall {
    /// The socket.
    pub socket: FlowId,
    /// The thread.
    pub tid: u32,
    /// The operation.
    pub op: Op,
    /// See [`Op`].
    pub since_ns: u64,
    /// When the call was done.
    pub at_ns: u64,
    /// Bytes moved.
    pub bytes: u32,
    /// Of a UDP socket: a number that stands for the peer's address and port, 0 when these are unknown. 0 for TCP.
    pub peer: u64,
    /// The message that begins with the call, where the form of its first bytes is known.
    pub frame: Option<Frame>,
}

/// A socket, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// Its own address.
    pub local: SocketAddr,
    /// The other end; port 0 for an unconnected UDP socket.
    pub remote: SocketAddr,
    /// A process that holds it, 0 when unknown.
    pub pid: u32,
    /// It was accepted from a listener, or is a bound UDP socket that others send to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves: bool,
    /// It is a UDP socket.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub udp: bool,
    /// It was opened within the window.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub opened: bool,
    /// When that was, where it is known: a client's end when it began to connect, and the other one when the handshake was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_ns: Option<u64>,
    /// When it closed, if it did within the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_ns: Option<u64>,
    /// The socket at the other end, if it is on this host and was observed too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_end: Option<FlowId>,
}

impl Socket {
    /// The service that a served socket belongs to: its process and port.
    pub fn service(&self) -> (u32, u16) {
        (self.pid, self.local.port())
    }
}

/// A thread's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Its process.
    pub pid: u32,
    /// The thread's name.
    pub thread: String,
    /// The process' name.
    pub process: String,
}

/// A process that holds a socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub process: String,
}

/// Everything that was observed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// Begin and end of each slice, in order and disjoint.
    #[serde(deserialize_with = "columns::slices")]
    pub slices: Vec<(u64, u64)>,
    /// Times off the CPU, by thread, in order of time and disjoint.
    #[serde(with = "columns::off_cpu")]
    pub off_cpu: BTreeMap<u32, Vec<OffCpu>>,
    /// Calls by socket, in order of `at_ns`.
    #[serde(with = "columns::calls")]
    pub calls: BTreeMap<FlowId, Vec<SocketCall>>,
    /// Sockets.
    pub sockets: BTreeMap<FlowId, Socket>,
    /// Names of the threads that occur, of those outside of the subject too where they are known.
    pub names: BTreeMap<u32, Names>,
    /// Titles that processes have given themselves (setproctitle), such as `postgres: shop web [local] idle in transaction`.
    pub titles: BTreeMap<u32, String>,
    /// Holders of the other ends of sockets, UNIX sockets included, where that is a process of this host that was not observed.
    pub unobserved_ends: BTreeMap<FlowId, Holder>,
    /// Of sessions of a database that wait for a lock, the one that holds it: it waits for its client.
    pub lock_holders: BTreeMap<u32, u32>,
    /// Of threads that still slept for a mutex when the window ended, who held it.
    pub mutex_owners: BTreeMap<u32, u32>,
    /// Of processes that were stopped, who did it, where that was seen.
    pub stopped_by: BTreeMap<u32, Stopper>,
    /// Processes whose threads were observed, with the time from which they were.
    pub observed_pids: BTreeMap<u32, u64>,
    /// The path of the object behind a descriptor, by process and descriptor number.
    #[serde(with = "columns::files")]
    pub files: BTreeMap<(u32, i32), String>,
    /// Names of system calls by number, of those that occur.
    pub syscalls: BTreeMap<i32, String>,
    /// Processes the user asked about; what others do is followed only from there.
    pub asked_pids: BTreeSet<u32>,
    /// Ports the user asked about; empty: all of `asked_pids`.
    pub asked_ports: Vec<u16>,
    /// Times off the CPU that were left out of a saved case, because no followed request has to do with them.
    pub left_out: u64,
    /// Where times were left out: those of the slowest requests were kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_tails: bool,
    /// Where times were left out: the sleeps between the pieces of replies were kept, as far as they tell a stream.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_pieces: bool,
    /// Where times were left out: by process, the thread that ended most of the time its threads slept in futex.
    pub usual_wakers: BTreeMap<u32, u32>,
}

impl Timeline {
    /// The last sleep of a thread that had ended at `at_ns`.
    pub fn last_sleep(&self, tid: u32, at_ns: u64) -> Option<&OffCpu> {
        let offs = self.off_cpu.get(&tid)?;
        offs[..offs.partition_point(|off| off.end_ns <= at_ns)].iter().rfind(|off| off.wake_ns > off.begin_ns)
    }

    /// Times off the CPU and calls.
    pub fn events(&self) -> usize {
        self.off_cpu.values().map(Vec::len).sum::<usize>() + self.calls.values().map(Vec::len).sum::<usize>()
    }
}
