//! A TCP flow as one of its two sockets saw it: who, what moved, and where its time went.
//!
//! The kernel side cuts a flow's time into intervals. An interval lies between two events on the socket; its
//! [`FlowState`] is read from the socket's fields *before* the event that ends it is processed (nothing changed them in
//! between), and its [`Release`] is the kind of that event. The meaning of an interval is decided in `parshall-core`.
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::listed::listed;

/// The socket cookie: unique per socket for the life of the host, never reused.
pub type FlowId = u64;

/// Which end opened the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// This socket called connect().
    Client,
    /// This socket was accepted from a listener.
    Server,
    /// Opened before the observation, and no listener on its local port was found.
    #[default]
    Unknown,
}

listed! {
    /// The state of a socket in an interval, by its fields. The discriminants are the wire numbers of `bpf/src/diagnose/records.h`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[repr(u8)]
    pub enum FlowState {
        /// Nothing unsent, nothing in flight, nothing unread; the application's last successful call was a receive.
        IdleAfterRecv = 0,
        /// As above, but the last successful call was a send (or there was none yet).
        IdleAfterSend = 1,
        /// Everything written was sent, some of it is not acknowledged, nothing is unread.
        InFlight = 2,
        /// Less than one MSS is unsent, segments are in flight, and Nagle's algorithm is on (`tcp_nagle_check`).
        Nagle = 3,
        /// A partial segment is held by TCP_CORK or MSG_MORE: nothing in flight, window open.
        Corked = 4,
        /// Unsent data does not fit in the peer's receive window.
        PeerWindow = 5,
        /// Unsent data, and as many segments in flight as the congestion window allows.
        Cwnd = 6,
        /// The writer waits for send-buffer space, while window and cwnd would allow more.
        Sndbuf = 7,
        /// Unsent data waits for the pacing timer.
        Paced = 8,
        /// Unsent data waits because too much sits in the local qdisc or device (TSQ throttled).
        Qdisc = 9,
        /// Fast recovery (`TCP_CA_Recovery`, `TCP_CA_CWR` excluded) or lost segments not yet retransmitted.
        Recovery = 10,
        /// After a retransmission timeout (`TCP_CA_Loss`).
        Loss = 11,
        /// Received data is unread by the local application, and nothing is unsent.
        RxWaiting = 12,
        /// Connecting, closing, or fields that fit none of the above.
        Other = 13,
    }
}

impl FlowState {}

listed! {
    /// The event that ended an interval. The discriminants are the wire numbers of `bpf/src/diagnose/records.h`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[repr(u8)]
    pub enum Release {
        /// The application called send (or write, sendfile, ...).
        AppSend = 0,
        /// The application received data (calls that returned nothing do not end an interval).
        AppRecv = 1,
        /// A segment with payload arrived.
        RxData = 2,
        /// A segment without payload arrived.
        RxAck = 3,
        /// A segment arrived right after the delayed-ACK timer of the other end fired, seen on this host.
        RxAckDelayed = 4,
        /// A segment with payload arrived right after this socket's own delayed-ACK timer had fired.
        RxDataAfterOwnDelack = 5,
        /// A retransmission by timeout.
        RtoTimer = 6,
        /// A retransmission without a timeout.
        Retransmit = 7,
        /// The write timer fired and nothing was retransmitted (it flushes corked data, or probes a closed window).
        WriteTimer = 8,
        /// The slice or the window ended; the interval was cut.
        Cut = 9,
        /// The socket changed its state or closed.
        Close = 10,
        /// Only seen by sampling: the state was different at the next sample.
        Sampled = 11,
    }
}

impl Release {}

/// Time and number of the intervals with the same state and release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCell {
    /// The state during the intervals.
    pub state: FlowState,
    /// The event that ended them.
    pub release: Release,
    /// Their total length.
    pub ns: u64,
    /// Their number.
    pub count: u64,
}

/// The application's calls on a socket during the slices. Failed calls count only in `eagain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCalls {
    /// Sends that returned more than 0.
    pub sends: u64,
    /// Bytes they took.
    pub send_bytes: u64,
    /// Sends shorter than one MSS.
    pub small_sends: u64,
    /// Sends that followed another send with no receive between them.
    pub write_after_write: u64,
    /// Sends after which data stayed unsent while segments were in flight and Nagle's algorithm was on.
    pub held_sends: u64,
    /// Size of the smallest and largest send; 0 when there was none.
    pub send_min_bytes: u32,
    /// See `send_min_bytes`.
    pub send_max_bytes: u32,
    /// Sizes of the last two sends that formed a write-write pair (first, second), 0 when there was none.
    pub last_pair_bytes: (u32, u32),
    /// Receives that returned more than 0.
    pub recvs: u64,
    /// Bytes they returned.
    pub recv_bytes: u64,
    /// Receives after which data was still unread.
    pub recv_left_over: u64,
    /// Sends and receives that returned EAGAIN.
    pub eagain: u64,
    /// Changes of direction from receive to send: an estimate of the requests answered or sent.
    pub exchanges: u64,
}

/// The kernel's own figures for a socket at one moment (struct tcp_sock; also `struct tcp_info`, uapi/linux/tcp.h).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpSnapshot {
    /// When, in nanoseconds since the window began.
    pub at_ns: u64,
    /// TCP state number (1 = ESTABLISHED).
    pub state: u8,
    /// Congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    pub ca_state: u8,
    /// TCP_NAGLE_OFF 1, TCP_NAGLE_CORK 2, TCP_NAGLE_PUSH 4; 255 when it could not be read.
    pub nonagle: u8,
    /// SOCK_SNDBUF_LOCK 1, SOCK_RCVBUF_LOCK 2.
    pub userlocks: u8,
    /// Bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Segments sent, those without data and retransmitted ones included.
    pub segs_out: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Segments with data sent, retransmitted ones included.
    pub data_segs_out: u64,
    /// Segments retransmitted since the socket was opened.
    pub total_retrans: u64,
    /// Number of retransmission timeouts since the socket was opened, where the kernel counts them.
    pub total_rto: u64,
    /// tcp_info chrono: time with unacknowledged or unsent data.
    pub busy_us: u64,
    /// tcp_info chrono: of `busy_us`, time limited by the peer's window.
    pub rwnd_limited_us: u64,
    /// tcp_info chrono: of `busy_us`, time limited by the send buffer.
    pub sndbuf_limited_us: u64,
    /// Smoothed round-trip time; 0 when unknown.
    pub srtt_us: u32,
    /// Minimum round-trip time; 0 when unknown.
    pub min_rtt_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow-start threshold in segments; 0x7fffffff before the first reduction.
    pub ssthresh: u32,
    /// Send MSS in bytes.
    pub mss: u32,
    /// The peer's receive window in bytes, as last announced.
    pub snd_wnd: u32,
    /// The window we announce.
    pub rcv_wnd: u32,
    /// Segments in flight.
    pub packets_out: u32,
    /// Bytes written by the application and not yet sent.
    pub unsent_bytes: u32,
    /// Bytes received and not yet read by the application.
    pub unread_bytes: u32,
    /// Send buffer limit in bytes.
    pub sndbuf: u32,
    /// Receive buffer limit in bytes.
    pub rcvbuf: u32,
    /// The application did not fill the window when the delivery rate was last measured.
    pub app_limited: bool,
}

/// One socket over the observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// The socket.
    pub id: FlowId,
    /// Its own address and port.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Inode of its network namespace.
    pub netns: u64,
    /// Its owner, 0 when no process of the subject holds it.
    pub pid: u32,
    /// The thread that last sent or received on it, 0 when none was seen.
    pub last_tid: u32,
    /// Which end opened the connection.
    pub role: Role,
    /// When the flow began and ended within the window.
    pub begin_ns: u64,
    /// See `begin_ns`; the window's end while it is open.
    pub end_ns: u64,
    /// Wall time that the cells account for; with full-time probes `end_ns - begin_ns`, else its observed slices.
    pub observed_ns: u64,
    /// The account: the sum of `ns` is `observed_ns`.
    pub cells: Vec<FlowCell>,
    /// The application's calls in the observed time.
    pub calls: FlowCalls,
    /// The kernel's figures at the first and the last sight of the socket (whole window, never scaled).
    pub first: TcpSnapshot,
    /// See `first`.
    pub last: TcpSnapshot,
    /// None for one connection. Short connections are summed up by service and peer: everything above is then their sum, from
    /// the begin of the first to the end of the last; `id` is that of one of them, and the port that each had its own of is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<Merged>,
}

/// Connections that one [`FlowRecord`] stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// Their number.
    pub connections: u64,
    /// The sum of their lives within the window.
    pub wall_ns: u64,
}

impl FlowRecord {
    /// Wall time of the connection, or the sum of those that the record stands for.
    pub fn wall_ns(&self) -> u64 {
        self.merged.map_or(self.end_ns.saturating_sub(self.begin_ns), |merged| merged.wall_ns)
    }

    /// Bytes that the peer acknowledged in the window.
    pub fn acked_bytes(&self) -> u64 {
        self.last.bytes_acked.saturating_sub(self.first.bytes_acked)
    }

    /// Bytes received in order in the window.
    pub fn received_bytes(&self) -> u64 {
        self.last.bytes_received.saturating_sub(self.first.bytes_received)
    }

    /// Connections that the record stands for.
    pub fn connections(&self) -> u64 {
        self.merged.map_or(1, |merged| merged.connections)
    }
}

/// One interval of at least [`crate::STALL_MIN_NS`] during which a flow moved nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStall {
    /// The socket.
    pub flow: FlowId,
    /// When it began.
    pub begin_ns: u64,
    /// How long it was.
    pub ns: u64,
    /// The state.
    pub state: FlowState,
    /// The event that ended it.
    pub release: Release,
    /// The thread that ended it (for the application's releases; 0 for those of the network).
    pub tid: u32,
    /// Fields of the socket at the end of the stall: bytes unsent,
    pub unsent_bytes: u32,
    /// segments in flight,
    pub packets_out: u32,
    /// bytes unread,
    pub unread_bytes: u32,
    /// the peer's window,
    pub snd_wnd: u32,
    /// and the congestion window in segments.
    pub cwnd: u32,
}
