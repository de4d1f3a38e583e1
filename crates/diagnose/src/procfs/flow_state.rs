//! Classifies one sample of a socket: a record of SOCK_DIAG gives a [`FlowState`]. No I/O.
//!
//! The checks follow the order in which `tcp_write_xmit` stops sending: congestion window, peer's window, Nagle, then what is below.
use parshall_evidence::socket::SocketRecord;
use parshall_evidence::socket::selection::state::{CLOSE_WAIT, CLOSING, ESTABLISHED, FIN_WAIT1, LAST_ACK};
use parshall_evidence::{FlowState, Role, TcpSnapshot};
use parshall_host::tcp_diag::TcpSocket;

/// `TcpSnapshot::nonagle` when it could not be read.
pub const NONAGLE_UNKNOWN: u8 = 255;
const NAGLE_OFF: u8 = 1;
const NAGLE_CORK: u8 = 2;

/// Congestion states (net/tcp.h).
const CA_RECOVERY: u8 = 3;
const CA_LOSS: u8 = 4;

/// TCP_INFINITE_SSTHRESH, which a record has as 0.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// A reply's ACK is delayed by at least 40 ms (TCP_DELACK_MIN): older than this, an exchange is over.
const EXCHANGE_OVER_MS: u32 = 40;

/// Fields of a socket that `tcp_info` does not report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// As in [`TcpSnapshot::nonagle`].
    pub nonagle: u8,
    /// Its role: client or server.
    pub role: Role,
    /// The kernel's clock of time limited by the send buffer moved since the last sample.
    pub sndbuf_limited: bool,
}

/// Queues of a socket with the SYN and FIN that the kernel counts as a byte each taken off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queues {
    /// Received and unread.
    pub unread: u32,
    /// Written and not sent.
    pub unsent: u32,
    /// Sent and not acknowledged.
    pub in_flight: u32,
}

/// Reads the queues of a socket.
pub fn queues(socket: &TcpSocket) -> Queues {
    let (record, unsent) = (&socket.record, socket.record.notsent_bytes);
    // After the peer's FIN, rcv_nxt is one beyond the data.
    let fin = u32::from(matches!(record.state, CLOSE_WAIT | LAST_ACK | CLOSING));
    Queues {
        unread: record.rqueue_bytes.saturating_sub(fin),
        unsent,
        in_flight: record.wqueue_bytes.saturating_sub(unsent),
    }
}

/// The state at the moment of the sample.
pub fn classify(socket: &TcpSocket, context: &Context) -> FlowState {
    let info = &socket.record;
    if socket.tcp_info_bytes == 0 || !matches!(info.state, ESTABLISHED | FIN_WAIT1 | CLOSE_WAIT | LAST_ACK | CLOSING) {
        return FlowState::Other;
    }
    let queues = queues(socket);
    if queues.unread > 0 && queues.unsent == 0 {
        return FlowState::RxWaiting;
    }
    if info.unacked > 0 && info.ca_state == CA_LOSS {
        return FlowState::Loss;
    }
    if info.unacked > 0 && (info.ca_state == CA_RECOVERY || info.lost > info.retrans) {
        return FlowState::Recovery;
    }
    if queues.unsent > 0 {
        return unsent_state(socket, &queues, context);
    }
    // Everything is sent, yet the writer waits for memory.
    let full = info.wmem_queued_bytes / 2 >= info.sndbuf_bytes / 3 && info.sndbuf_bytes > 0;
    if info.unacked > 0 && context.sndbuf_limited && full {
        return FlowState::Sndbuf;
    }
    if info.unacked > 0 {
        return FlowState::InFlight;
    }
    if info.state == ESTABLISHED { idle_state(info, context.role) } else { FlowState::Other }
}

fn unsent_state(socket: &TcpSocket, queues: &Queues, context: &Context) -> FlowState {
    let info = &socket.record;
    // tcp_packets_in_flight.
    let in_flight = info.unacked.saturating_add(info.retrans).saturating_sub(info.sacked.saturating_add(info.lost));
    if info.unacked > 0 && in_flight >= info.snd_cwnd {
        return FlowState::Cwnd;
    }
    // tcp_snd_wnd_test: at least one segment must fit.
    let usable = socket.snd_wnd().map(|window| window.saturating_sub(queues.in_flight));
    if usable.is_some_and(|usable| usable < queues.unsent.min(info.snd_mss)) {
        return FlowState::PeerWindow;
    }
    if queues.unsent < info.snd_mss {
        let known = context.nonagle != NONAGLE_UNKNOWN;
        if info.unacked == 0 || known && context.nonagle & NAGLE_CORK != 0 {
            return FlowState::Corked;
        }
        if !known || context.nonagle & NAGLE_OFF == 0 {
            return FlowState::Nagle;
        }
    }
    if context.sndbuf_limited {
        return FlowState::Sndbuf;
    }
    // The rest is pacing or the limit on what may sit in the qdisc (TSQ), unless it is about to be sent.
    if tsq_limited(info) {
        return FlowState::Qdisc;
    }
    if info.congestion.starts_with(b"bbr") || info.max_pacing_bytes_per_s != 0 {
        return FlowState::Paced;
    }
    FlowState::Other
}

/// tcp_small_queue_check: two segments, or a millisecond at the pacing rate, may sit below the socket.
fn tsq_limited(info: &SocketRecord) -> bool {
    // Without pacing the rate is 0 here and all ones in the kernel.
    let rate = if info.pacing_bytes_per_s == 0 { u64::MAX } else { info.pacing_bytes_per_s };
    let limit = u64::from(info.snd_mss).saturating_mul(2).max(rate >> 10);
    u64::from(info.wmem_alloc_bytes) > limit
}

/// The clocks of "last sent" and "last received" tick in jiffies (up to 10 ms), so a fast exchange leaves them equal.
fn idle_state(info: &SocketRecord, role: Role) -> FlowState {
    let (sent, received) = (info.last_data_sent_ms, info.last_data_recv_ms);
    if sent != received {
        return if sent < received { FlowState::IdleAfterSend } else { FlowState::IdleAfterRecv };
    }
    if info.data_segs_in == 0 {
        return FlowState::IdleAfterSend;
    }
    // Nothing is in flight. A client's last exchange ended with a receive; so did a server's if its reply, which stays in
    // flight until the next request or a delayed ACK, has not been sent yet.
    if role == Role::Server && sent >= EXCHANGE_OVER_MS { FlowState::IdleAfterSend } else { FlowState::IdleAfterRecv }
}

/// The kernel's figures as a snapshot; `userlocks` 0 and `nonagle` 255 until they are read from the socket.
pub fn snapshot(socket: &TcpSocket, at_ns: u64) -> TcpSnapshot {
    let info = &socket.record;
    let queues = queues(socket);
    TcpSnapshot {
        at_ns,
        state: info.state,
        ca_state: info.ca_state,
        nonagle: NONAGLE_UNKNOWN,
        userlocks: 0,
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        segs_out: info.segs_out.into(),
        segs_in: info.segs_in.into(),
        data_segs_out: info.data_segs_out.into(),
        total_retrans: info.total_retrans.into(),
        total_rto: info.total_rto.into(),
        busy_us: info.busy_us,
        rwnd_limited_us: info.rwnd_limited_us,
        sndbuf_limited_us: info.sndbuf_limited_us,
        srtt_us: info.rtt_us,
        min_rtt_us: info.min_rtt_us,
        rto_us: info.rto_us,
        cwnd: info.snd_cwnd,
        ssthresh: if info.snd_ssthresh == 0 { INFINITE_SSTHRESH } else { info.snd_ssthresh },
        mss: info.snd_mss,
        snd_wnd: info.snd_wnd,
        rcv_wnd: info.rcv_wnd,
        packets_out: info.unacked,
        unsent_bytes: queues.unsent,
        unread_bytes: queues.unread,
        sndbuf: info.sndbuf_bytes,
        rcvbuf: info.rcvbuf_bytes,
        app_limited: info.app_limited != 0,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An established, idle connection.
    pub fn socket(change: impl FnOnce(&mut SocketRecord)) -> TcpSocket {
        let mut record = SocketRecord {
            family: 2,
            state: ESTABLISHED,
            local_port: 1,
            remote_port: 1,
            cookie: 7,
            inode: 1,
            snd_mss: 1448,
            snd_cwnd: 10,
            snd_wnd: 65_536,
            pacing_bytes_per_s: 1,
            last_data_sent_ms: 20,
            last_data_recv_ms: 10,
            data_segs_in: 1,
            ..SocketRecord::default()
        };
        record.local_address[..4].copy_from_slice(&[127, 0, 0, 1]);
        record.remote_address = record.local_address;
        change(&mut record);
        TcpSocket { record, tcp_info_bytes: 280, mptcp: false }
    }

    fn context() -> Context {
        Context { nonagle: NONAGLE_UNKNOWN, role: Role::Client, sndbuf_limited: false }
    }

    fn state(change: impl FnOnce(&mut SocketRecord)) -> FlowState {
        classify(&socket(change), &context())
    }

    fn sending(r: &mut SocketRecord, in_flight: u32, unacked: u32, unsent: u32) {
        r.wqueue_bytes = in_flight + unsent;
        r.unacked = unacked;
        r.notsent_bytes = unsent;
    }

    #[test]
    fn a_held_tail_is_nagle_unless_it_is_known_to_be_off() {
        let held = socket(|r| sending(r, 40, 1, 136));
        assert_eq!(classify(&held, &context()), FlowState::Nagle);
        assert_eq!(classify(&held, &Context { nonagle: 0, ..context() }), FlowState::Nagle);
        assert_eq!(classify(&held, &Context { nonagle: NAGLE_CORK, ..context() }), FlowState::Corked);
        assert_eq!(classify(&held, &Context { nonagle: NAGLE_OFF, ..context() }), FlowState::Other);
    }

    #[test]
    fn a_tail_with_nothing_in_flight_is_corked() {
        assert_eq!(state(|r| sending(r, 0, 0, 136)), FlowState::Corked);
    }

    #[test]
    fn windows() {
        assert_eq!(state(|r| sending(r, 14_480, 10, 100_000)), FlowState::Cwnd);
        assert_eq!(state(|r| sending(r, 64_600, 5, 100_000)), FlowState::PeerWindow);
        let closed = |r: &mut SocketRecord| {
            sending(r, 0, 0, 100);
            r.snd_wnd = 0;
        };
        assert_eq!(state(closed), FlowState::PeerWindow);
        let old_kernel = TcpSocket { tcp_info_bytes: 224, ..socket(|r| sending(r, 64_600, 5, 100)) };
        assert_eq!(classify(&old_kernel, &context()), FlowState::Nagle);
    }

    #[test]
    fn loss() {
        let lossy = |ca_state, lost| {
            state(move |r: &mut SocketRecord| {
                sending(r, 1448, 1, 100_000);
                r.ca_state = ca_state;
                r.lost = lost;
            })
        };
        assert_eq!(lossy(CA_LOSS, 0), FlowState::Loss);
        assert_eq!(lossy(CA_RECOVERY, 0), FlowState::Recovery);
        assert_eq!(lossy(1, 1), FlowState::Recovery);
    }

    #[test]
    fn unread_data_beats_what_is_in_flight_but_not_what_is_unsent() {
        assert_eq!(state(|r| r.rqueue_bytes = 1), FlowState::RxWaiting);
        let both = |r: &mut SocketRecord| {
            sending(r, 40, 1, 136);
            r.rqueue_bytes = 5;
        };
        assert_eq!(state(both), FlowState::Nagle);
        // The FIN is no data.
        let fin = |r: &mut SocketRecord| {
            r.state = CLOSE_WAIT;
            r.rqueue_bytes = 1;
        };
        assert_eq!(state(fin), FlowState::Other);
    }

    #[test]
    fn idle_by_the_last_direction() {
        assert_eq!(state(|_| ()), FlowState::IdleAfterRecv);
        assert_eq!(state(|r| r.last_data_sent_ms = 5), FlowState::IdleAfterSend);
        let tie = socket(|r| (r.last_data_sent_ms, r.last_data_recv_ms) = (400, 400));
        assert_eq!(classify(&tie, &context()), FlowState::IdleAfterRecv);
        assert_eq!(classify(&tie, &Context { role: Role::Server, ..context() }), FlowState::IdleAfterSend);
    }

    #[test]
    fn below_tcp() {
        let bulk = |r: &mut SocketRecord| {
            sending(r, 1448, 1, 50_000);
            r.sndbuf_bytes = 1 << 20;
        };
        let queued = socket(|r| {
            bulk(r);
            r.wmem_alloc_bytes = 300_000;
        });
        assert_eq!(classify(&queued, &context()), FlowState::Qdisc);
        let paced = socket(|r| {
            bulk(r);
            r.congestion[..3].copy_from_slice(b"bbr");
        });
        assert_eq!(classify(&paced, &context()), FlowState::Paced);
        assert_eq!(state(|r| sending(r, 1448, 1, 0)), FlowState::InFlight);
    }

    #[test]
    fn a_full_send_buffer_needs_the_kernels_word() {
        let full = socket(|r| {
            sending(r, 20_000, 5, 0);
            (r.wmem_queued_bytes, r.sndbuf_bytes) = (90_000, 100_000);
        });
        assert_eq!(classify(&full, &context()), FlowState::InFlight);
        assert_eq!(classify(&full, &Context { sndbuf_limited: true, ..context() }), FlowState::Sndbuf);
    }

    #[test]
    fn a_snapshot_keeps_unknowns_apart() {
        let snapshot = snapshot(&socket(|_| ()), 5);
        assert_eq!((snapshot.at_ns, snapshot.min_rtt_us, snapshot.nonagle), (5, 0, NONAGLE_UNKNOWN));
    }
}
