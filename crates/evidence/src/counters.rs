//! The kernel's counters and settings of the network namespaces and processes of a subject: differences over the window,
//! and settings at its end. None of it belongs to one flow or thread by itself.
use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::flow::FlowId;

/// Counters and settings of the subject's surroundings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Time between the two readings.
    pub elapsed_ns: u64,
    /// The network namespaces of the subject's sockets.
    pub namespaces: Vec<NamespaceCounters>,
    /// TCP listeners of the subject.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<ListenerCounters>,
    /// UDP sockets of the subject.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp: Vec<UdpCounters>,
    /// Descriptors of the subject's processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub descriptors: Vec<DescriptorUse>,
    /// Destinations to which most of the ephemeral ports are taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortUse>,
    /// Control groups of the subject's processes that read back from a disk what was reclaimed from memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryGroup>,
    /// Connected sockets at the window's end; empty where a namespace has too many to read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketFigures>,
}

/// Memory of a control group over the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryGroup {
    /// Its path in the hierarchy.
    pub path: String,
    /// The subject's processes in it.
    pub pids: Vec<u32>,
    /// Its limit; None if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Pages of files that were read back soon after they had been reclaimed (`workingset_refault_file` in memory.stat).
    pub refaulted_bytes: u64,
    /// Bytes that these processes read from block devices (`read_bytes` in /proc/PID/io).
    pub read_bytes: u64,
}

/// A network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceCounters {
    /// Its inode.
    pub netns: u64,
    /// By how much its counters rose, by their names in /proc/net/snmp and netstat (`TcpExt.ListenDrops`); those that stood still
    /// are left out.
    pub rose: BTreeMap<String, u64>,
    /// TCP sockets in TIME_WAIT.
    #[serde(default)]
    pub time_wait: u64,
    /// Its settings; None where they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<NetSettings>,
    /// The queues of its devices that hold back, drop or limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<DeviceQueue>,
}

/// Settings below /proc/sys/net.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSettings {
    /// `ipv4/tcp_rmem`: least, first and largest receive buffer in bytes.
    pub tcp_rmem: [u64; 3],
    /// `ipv4/tcp_wmem`: the same of the send buffer.
    pub tcp_wmem: [u64; 3],
    /// `core/rmem_max`: the most that SO_RCVBUF gives.
    pub rmem_max: u64,
    /// `core/wmem_max`: the most that SO_SNDBUF gives.
    pub wmem_max: u64,
    /// `ipv4/ip_local_port_range`, both ends included.
    pub local_ports: (u16, u16),
    /// `core/somaxconn`: the most that listen() gives.
    pub somaxconn: u64,
    /// `ipv4/tcp_window_scaling`.
    pub window_scaling: bool,
    /// `ipv4/tcp_slow_start_after_idle`.
    pub slow_start_after_idle: bool,
    /// `ipv4/tcp_mtu_probing`.
    pub mtu_probing: u8,
    /// `ipv4/tcp_tw_reuse`: 0 never, 1 for any address, 2 for loopback only.
    #[serde(default)]
    pub tw_reuse: u8,
}

/// A queueing discipline at the root of a device, or below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceQueue {
    /// Name of the device.
    pub device: String,
    /// Kind: `tbf`, `htb`, `fq_codel`.
    pub kind: String,
    /// Bytes that it sent in the window.
    pub sent_bytes: u64,
    /// Packets that it dropped in the window.
    pub drops: u64,
    /// Times that it held a packet back because of its rate, in the window.
    pub overlimits: u64,
    /// Bytes waiting at the window's end.
    pub backlog_bytes: u64,
}

/// A listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerCounters {
    /// Its address.
    pub local: SocketAddr,
    /// Inode of its network namespace.
    pub netns: u64,
    /// A process that holds it, 0 when none is known.
    pub pid: u32,
    /// Connection requests (SYN, or the ACK that ends the handshake) that it dropped in the window.
    pub drops: u64,
    /// Connections that waited for accept() at the window's begin and end.
    pub queued: (u64, u64),
    /// How many may wait: the smaller of listen()'s argument and somaxconn.
    pub limit: u64,
}

/// A UDP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpCounters {
    /// Its address.
    pub local: SocketAddr,
    /// Inode of its network namespace.
    pub netns: u64,
    /// A process that holds it, 0 when none is known.
    pub pid: u32,
    /// Datagrams dropped at the socket in the window.
    pub drops: u64,
    /// Memory of the datagrams that waited to be read at the window's end.
    pub queued_bytes: u64,
    /// Its receive buffer.
    pub rcvbuf_bytes: u64,
}

/// Open descriptors of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorUse {
    /// The process.
    pub pid: u32,
    /// The most that were open at one of the two readings.
    pub open: u64,
    /// RLIMIT_NOFILE.
    pub limit: u64,
}

/// Local ports taken by connections to one destination, open ones and those in TIME_WAIT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortUse {
    /// Inode of the network namespace.
    pub netns: u64,
    /// The destination.
    pub remote: SocketAddr,
    /// Ephemeral ports taken.
    pub taken: u64,
    /// Of these, in TIME_WAIT.
    pub time_wait: u64,
    /// Ports in the range.
    pub of: u64,
}

/// Figures of a connected socket that the probes do not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFigures {
    /// The flow.
    pub flow: FlowId,
    /// Path MTU in bytes.
    pub pmtu: u32,
    /// The receiver's estimate of the round trip; 0 when unknown.
    pub rcv_rtt_us: u32,
    /// Window scale of the peer and our own; None when the options were not agreed on.
    pub window_scales: Option<(u8, u8)>,
    /// Doublings of the retransmission timeout that runs now.
    pub backoff: u8,
    /// Segments received out of order in the window.
    pub out_of_order: u32,
    /// Segments that the peer acknowledged, since the socket was opened.
    pub delivered: u32,
    /// Bytes per second of the last delivery sample.
    pub delivery_bytes_per_s: u64,
    /// Memory that received data takes in the socket, and the data itself.
    pub unread_memory: (u32, u32),
    /// Name of the congestion control, such as `cubic`; empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub congestion: String,
}

impl NamespaceCounters {
    /// By how much a counter rose; 0 where it stood still.
    pub fn rose(&self, name: &str) -> u64 {
        self.rose.get(name).copied().unwrap_or(0)
    }
}

impl Counters {
    /// By how much a counter rose, over all namespaces.
    pub fn rose(&self, name: &str) -> u64 {
        self.namespaces.iter().map(|n| n.rose(name)).fold(0, u64::saturating_add)
    }

    /// The counters of a namespace.
    pub fn namespace(&self, netns: u64) -> Option<&NamespaceCounters> {
        self.namespaces.iter().find(|n| n.netns == netns)
    }
}
