//! `struct tcp_info` (uapi/linux/tcp.h). It only ever grows at its end, so each field is read at its offset and is 0 when the
//! kernel is too old to have it; fields whose absence matters are options.

/// Figures of a TCP socket. Times in microseconds unless the name says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// TCP state number.
    pub state: u8,
    /// Congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    pub ca_state: u8,
    /// Timeouts in a row without an answer.
    pub retransmits: u8,
    /// Zero-window probes without an answer.
    pub probes: u8,
    /// Exponential back-off of the timer.
    pub backoff: u8,
    /// The application did not fill the window when the delivery rate was last measured.
    pub app_limited: bool,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// Delayed-ACK timeout.
    pub ato_us: u32,
    /// Send MSS in bytes.
    pub snd_mss: u32,
    /// Receive MSS in bytes, estimated.
    pub rcv_mss: u32,
    /// Segments in flight.
    pub unacked: u32,
    /// Of these, those that a SACK covers.
    pub sacked: u32,
    /// Of these, those that are taken for lost.
    pub lost: u32,
    /// Of these, those that were resent.
    pub retrans: u32,
    /// Milliseconds since data was last sent.
    pub last_data_sent_ms: u32,
    /// Milliseconds since data last arrived.
    pub last_data_recv_ms: u32,
    /// Milliseconds since an ACK last arrived.
    pub last_ack_recv_ms: u32,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Its variation.
    pub rttvar_us: u32,
    /// Slow-start threshold in segments.
    pub snd_ssthresh: u32,
    /// Congestion window in segments.
    pub snd_cwnd: u32,
    /// Segments resent since the socket was opened.
    pub total_retrans: u32,
    /// Pacing rate in bytes per second.
    pub pacing_rate: u64,
    /// Limit of the pacing rate; all ones when there is none.
    pub max_pacing_rate: u64,
    /// Bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Segments sent.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Bytes written and not yet sent.
    pub notsent_bytes: u32,
    /// Minimum round-trip time; all ones before the first measurement.
    pub min_rtt_us: u32,
    /// Segments with data received.
    pub data_segs_in: u32,
    /// Segments with data sent.
    pub data_segs_out: u32,
    /// Delivery rate in bytes per second.
    pub delivery_rate: u64,
    /// Time with data unsent or in flight.
    pub busy_us: u64,
    /// Of `busy_us`, time limited by the peer's window.
    pub rwnd_limited_us: u64,
    /// Of `busy_us`, time limited by the send buffer.
    pub sndbuf_limited_us: u64,
    /// Segments delivered.
    pub delivered: u32,
    /// Of these, those that carried a congestion mark.
    pub delivered_ce: u32,
    /// Bytes sent, resent ones included.
    pub bytes_sent: u64,
    /// Bytes resent.
    pub bytes_retrans: u64,
    /// Duplicate SACKs received.
    pub dsack_dups: u32,
    /// Reorderings seen.
    pub reord_seen: u32,
    /// Segments that arrived out of order.
    pub rcv_ooopack: u32,
    /// The peer's receive window in bytes (Linux 5.4).
    pub snd_wnd: Option<u32>,
    /// Our receive window in bytes (Linux 6.2).
    pub rcv_wnd: Option<u32>,
    /// Changes of the path hash.
    pub rehash: u32,
    /// Retransmission timeouts (Linux 6.7).
    pub total_rto: Option<u16>,
    /// Milliseconds spent in timeouts.
    pub total_rto_time_ms: u32,
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn some_u16(&self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_ne_bytes)
    }

    fn some_u32(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> u32 {
        self.some_u32(at).unwrap_or(0)
    }

    fn u64(&self, at: usize) -> u64 {
        self.bytes(at).map_or(0, u64::from_ne_bytes)
    }
}

impl TcpInfo {
    /// Reads as much as `bytes` holds.
    pub fn parse(bytes: &[u8]) -> Self {
        let f = Fields(bytes);
        Self {
            state: f.u8(0),
            ca_state: f.u8(1),
            retransmits: f.u8(2),
            probes: f.u8(3),
            backoff: f.u8(4),
            // Bit field: the first bit is the lowest one on little-endian machines and the highest on big-endian ones.
            app_limited: f.u8(7) & if cfg!(target_endian = "little") { 1 } else { 0x80 } != 0,
            rto_us: f.u32(8),
            ato_us: f.u32(12),
            snd_mss: f.u32(16),
            rcv_mss: f.u32(20),
            unacked: f.u32(24),
            sacked: f.u32(28),
            lost: f.u32(32),
            retrans: f.u32(36),
            last_data_sent_ms: f.u32(44),
            last_data_recv_ms: f.u32(52),
            last_ack_recv_ms: f.u32(56),
            rtt_us: f.u32(68),
            rttvar_us: f.u32(72),
            snd_ssthresh: f.u32(76),
            snd_cwnd: f.u32(80),
            total_retrans: f.u32(100),
            pacing_rate: f.u64(104),
            max_pacing_rate: f.u64(112),
            bytes_acked: f.u64(120),
            bytes_received: f.u64(128),
            segs_out: f.u32(136),
            segs_in: f.u32(140),
            notsent_bytes: f.u32(144),
            min_rtt_us: f.u32(148),
            data_segs_in: f.u32(152),
            data_segs_out: f.u32(156),
            delivery_rate: f.u64(160),
            busy_us: f.u64(168),
            rwnd_limited_us: f.u64(176),
            sndbuf_limited_us: f.u64(184),
            delivered: f.u32(192),
            delivered_ce: f.u32(196),
            bytes_sent: f.u64(200),
            bytes_retrans: f.u64(208),
            dsack_dups: f.u32(216),
            reord_seen: f.u32(220),
            rcv_ooopack: f.u32(224),
            snd_wnd: f.some_u32(228),
            rcv_wnd: f.some_u32(232),
            rehash: f.u32(236),
            total_rto: f.some_u16(240),
            total_rto_time_ms: f.u32(244),
        }
    }
}
