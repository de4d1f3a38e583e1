//! One socket, as every backend reports it: the list of fields from which the record, its C twin, the published schema and
//! all formats follow.
use super::Group;

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// `u64`.
    U64,
    /// `u32`.
    U32,
    /// `u16`.
    U16,
    /// `u8`.
    U8,
    /// 16 bytes: an IPv6 address in network order (an IPv4 address in the first four), or a zero-terminated name.
    Bytes16,
}

/// The description of a field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name, the same in every format. A unit stands at the end.
    pub name: &'static str,
    /// Its number in the published protobuf schema; never reused.
    pub number: u32,
    /// Its type in the record.
    pub width: Width,
    /// The group that `--fields` selects it by.
    pub group: Group,
    /// Its offset in the record, in bytes.
    pub offset: usize,
    /// Its meaning and its source, as the published schema prints them.
    pub doc: &'static str,
}

/// Receives the fields of a record one by one, in the order of the record. Fields that are zero are skipped, because every
/// format treats a missing field as zero.
pub trait Visitor {
    /// Receives an integer. `number` and `name` are those of its [`Field`].
    fn uint(&mut self, number: u32, name: &'static str, value: u64);
    /// Receives a field of [`Width::Bytes16`].
    fn bytes(&mut self, number: u32, name: &'static str, value: &[u8; 16]);
}

macro_rules! width {
    (u64) => {
        Width::U64
    };
    (u32) => {
        Width::U32
    };
    (u16) => {
        Width::U16
    };
    (u8) => {
        Width::U8
    };
    (bytes16) => {
        Width::Bytes16
    };
}

macro_rules! rust_type {
    (bytes16) => {
        [u8; 16]
    };
    ($t:ident) => {
        $t
    };
}

macro_rules! visit_field {
    (bytes16, $visitor:ident, $number:literal, $name:expr, $value:expr) => {
        if $value != [0; 16] {
            $visitor.bytes($number, $name, &$value);
        }
    };
    ($t:ident, $visitor:ident, $number:literal, $name:expr, $value:expr) => {
        if $value != 0 {
            $visitor.uint($number, $name, u64::from($value));
        }
    };
}

macro_rules! set_uint {
    (bytes16, $field:expr, $value:ident) => {};
    ($t:ident, $field:expr, $value:ident) => {
        $field = $value as $t
    };
}

macro_rules! set_bytes {
    (bytes16, $field:expr, $value:ident) => {
        $field = *$value
    };
    ($t:ident, $field:expr, $value:ident) => {};
}

macro_rules! socket_fields {
    ($($width:ident { $($number:literal $name:ident $group:ident $doc:literal;)* })*) => {
        /// The state of one socket at one moment. Fields that do not apply, or whose group is not selected, are 0.
        ///
        /// All fields are plain integers without padding. The layout is that of `struct socket_record` in `crates/bpf`, which
        /// [`c_header`](super::c_header) generates.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct SocketRecord {
            $($(
                #[doc = $doc]
                pub $name: rust_type!($width),
            )*)*
        }

        /// Every field, in the order of the record.
        pub const FIELDS: &[Field] = &[
            $($(
                Field {
                    name: stringify!($name),
                    number: $number,
                    width: width!($width),
                    group: Group::$group,
                    offset: std::mem::offset_of!(SocketRecord, $name),
                    doc: $doc,
                },
            )*)*
        ];

        impl SocketRecord {
            /// Sets the integer field with this number. An unknown number changes nothing.
            pub fn set_uint(&mut self, number: u32, value: u64) {
                match number {
                    $($( $number => { set_uint!($width, self.$name, value); } )*)*
                    _ => {}
                }
            }

            /// Sets the field of sixteen bytes with this number. An unknown number changes nothing.
            pub fn set_bytes(&mut self, number: u32, value: &[u8; 16]) {
                match number {
                    $($( $number => { set_bytes!($width, self.$name, value); } )*)*
                    _ => {}
                }
            }

            /// Passes every field that is not zero to `visitor`.
            #[inline(always)]
            pub fn visit<V: Visitor>(&self, visitor: &mut V) {
                $($( visit_field!($width, visitor, $number, stringify!($name), self.$name); )*)*
            }
        }

    };
}

socket_fields! {
    u64 {
        1 address Identity "address of the kernel's struct sock, by which owners are found; 0 where the backend does not see it";
        2 cookie Identity "the kernel's cookie (SO_COOKIE); 0 until a program has asked for it";
        3 cgroup_id Cgroup "id of the control group v2 in which the socket was created";
        4 bytes_sent Traffic "data bytes sent, retransmissions included (tcp_info)";
        5 bytes_acked Traffic "data bytes acknowledged by the peer (tcp_info, RFC 4898)";
        6 bytes_received Traffic "data bytes received in order (tcp_info, RFC 4898)";
        7 bytes_retrans Loss "data bytes retransmitted (tcp_info)";
        8 pacing_bytes_per_s Rate "pacing rate in bytes per second; 0: no limit (tcp_info, where ~0 means that)";
        9 max_pacing_bytes_per_s Rate "limit of the pacing rate in bytes per second (SO_MAX_PACING_RATE); 0: no limit";
        10 delivery_bytes_per_s Rate "bytes per second of the last delivery sample (tcp_info)";
        11 busy_us Limits "time with unacknowledged or unsent data (tcp_info)";
        12 rwnd_limited_us Limits "part of busy_us in which the peer's receive window limited sending (tcp_info)";
        13 sndbuf_limited_us Limits "part of busy_us in which the send buffer limited sending (tcp_info)";
        14 bbr_bw_bytes_per_s Congestion "BBR: estimated bottleneck bandwidth in bytes per second";
        15 mptcp_bytes_sent Mptcp "MPTCP: bytes sent on the connection (mptcp_info)";
        16 mptcp_bytes_received Mptcp "MPTCP: bytes received on the connection (mptcp_info)";
        17 mptcp_bytes_acked Mptcp "MPTCP: bytes acknowledged on the connection (mptcp_info)";
        18 mptcp_bytes_retrans Mptcp "MPTCP: bytes retransmitted on the connection (mptcp_info)";
    }
    u32 {
        20 netns Identity "inode of the network namespace";
        21 interface Identity "index of the interface that the socket is bound to";
        22 inode Identity "inode of the socket, as /proc/PID/fd shows it; 0: no file holds it";
        23 uid Attributes "user id of the socket's owner";
        24 mark Attributes "SO_MARK";
        25 priority Attributes "SO_PRIORITY";
        26 class_id Attributes "net_cls class id";
        27 rqueue_bytes Queues "bytes received and not read by the application";
        28 wqueue_bytes Queues "bytes written and not acknowledged";
        29 accept_queue Queues "listener: connections in the accept queue";
        30 accept_limit Queues "listener: limit of the accept queue (backlog)";
        31 timer_ms Timer "time until the timer fires";
        32 birth_sent Identity "TCP: snd_una - bytes_acked modulo 2^32, constant from the first segment to the last; TIME_WAIT: the last sequence number; 0 where the backend does not see it";
        33 birth_received Identity "TCP: rcv_nxt - bytes_received modulo 2^32, constant once the connection is established; 0 where the backend does not see it";
        34 user_timeout_ms Options "TCP_USER_TIMEOUT; 0: none, or the backend does not see it";
        40 rto_us Rtt "retransmission timeout (tcp_info)";
        41 ato_us Rtt "delayed-ACK timeout (tcp_info)";
        42 rtt_us Rtt "smoothed round trip time (tcp_info)";
        43 rttvar_us Rtt "mean deviation of the round trip time (tcp_info)";
        44 min_rtt_us Rtt "minimum round trip time over the kernel's window (tcp_min_rtt_wlen); 0: none yet (tcp_info, where ~0 means that)";
        45 rcv_rtt_us Rtt "receiver's estimate of the round trip time (tcp_info)";
        46 snd_mss Cwnd "maximum segment size sent (tcp_info)";
        47 rcv_mss Cwnd "estimate of the peer's segment size (tcp_info)";
        48 advmss Cwnd "advertised maximum segment size (tcp_info)";
        49 pmtu Cwnd "path MTU (tcp_info)";
        50 snd_cwnd Cwnd "congestion window in segments; listener: 0 (tcp_info)";
        51 snd_ssthresh Cwnd "slow start threshold in segments; 0: none yet (tcp_info, where 0x7fffffff means that)";
        52 rcv_ssthresh Window "limit of the advertised receive window, in bytes (tcp_info)";
        53 rcv_space Window "bytes read per round trip, as measured for receive buffer tuning (tcp_info)";
        54 snd_wnd Window "receive window that the peer advertised, in bytes (tcp_info)";
        55 rcv_wnd Window "receive window advertised to the peer, in bytes (tcp_info)";
        56 unacked Loss "segments in flight, sent and not acknowledged; listener: 0, see accept_queue (tcp_info)";
        57 sacked Loss "segments acknowledged by SACK; listener: 0, see accept_limit (tcp_info)";
        58 lost Loss "segments considered lost (tcp_info)";
        59 retrans Loss "segments retransmitted and not acknowledged yet (tcp_info)";
        60 fackets Loss "always 0 in current kernels (tcp_info)";
        61 reordering Loss "degree of reordering in segments; listener: 0 (tcp_info)";
        62 total_retrans Loss "segments retransmitted since the connection began (tcp_info)";
        63 dsack_dups Loss "duplicate segments reported by D-SACK (tcp_info)";
        64 reord_seen Loss "reordering events (tcp_info)";
        65 rcv_ooopack Loss "segments received out of order (tcp_info)";
        66 rehash Loss "changes of the flow hash after a timeout (tcp_info)";
        67 total_rto_time_ms Loss "time in recovery from retransmission timeouts (tcp_info)";
        68 last_data_sent_ms Times "time since data was last sent (tcp_info)";
        69 last_ack_sent_ms Times "always 0 in current kernels (tcp_info)";
        70 last_data_recv_ms Times "time since data was last received (tcp_info)";
        71 last_ack_recv_ms Times "time since an ACK was last received (tcp_info)";
        72 segs_out Traffic "segments sent (tcp_info, RFC 4898)";
        73 segs_in Traffic "segments received (tcp_info, RFC 4898)";
        74 data_segs_out Traffic "segments with data sent (tcp_info)";
        75 data_segs_in Traffic "segments with data received (tcp_info)";
        76 notsent_bytes Queues "bytes written by the application and not sent yet (tcp_info)";
        77 delivered Traffic "segments delivered, retransmissions included (tcp_info)";
        78 delivered_ce Ecn "segments delivered with a CE mark (tcp_info)";
        79 received_ce Ecn "AccECN: segments received with a CE mark (tcp_info)";
        80 delivered_e1_bytes Ecn "AccECN: bytes delivered with ECT(1) (tcp_info)";
        81 delivered_e0_bytes Ecn "AccECN: bytes delivered with ECT(0) (tcp_info)";
        82 delivered_ce_bytes Ecn "AccECN: bytes delivered with CE (tcp_info)";
        83 received_e1_bytes Ecn "AccECN: bytes received with ECT(1) (tcp_info)";
        84 received_e0_bytes Ecn "AccECN: bytes received with ECT(0) (tcp_info)";
        85 received_ce_bytes Ecn "AccECN: bytes received with CE (tcp_info)";
        90 rmem_alloc_bytes Memory "memory of received packets (SK_MEMINFO)";
        91 rcvbuf_bytes Memory "receive buffer (SK_MEMINFO)";
        92 wmem_alloc_bytes Memory "memory of packets handed to the qdisc or device (SK_MEMINFO)";
        93 sndbuf_bytes Memory "send buffer (SK_MEMINFO)";
        94 fwd_alloc_bytes Memory "memory reserved for later packets (SK_MEMINFO)";
        95 wmem_queued_bytes Memory "memory of the send queue (SK_MEMINFO)";
        96 optmem_bytes Memory "memory of socket options and filters (SK_MEMINFO)";
        97 backlog_bytes Memory "memory of the backlog: packets received while the socket was locked (SK_MEMINFO)";
        98 drops Memory "packets dropped at the socket (SK_MEMINFO)";
        100 bbr_min_rtt_us Congestion "BBR: minimum round trip time; 0: none yet";
        101 bbr_pacing_gain Congestion "BBR: pacing gain, 256 is 1";
        102 bbr_cwnd_gain Congestion "BBR: window gain, 256 is 1";
        103 dctcp_alpha Congestion "DCTCP: estimated fraction of marked bytes, 1024 is 1";
        104 dctcp_ab_ecn Congestion "DCTCP: bytes acknowledged with marks";
        105 dctcp_ab_tot Congestion "DCTCP: bytes acknowledged";
        106 vegas_rttcnt Congestion "Vegas: round trip times measured in this window";
        107 vegas_rtt_us Congestion "Vegas: smoothed round trip time; 0: none yet";
        108 vegas_minrtt_us Congestion "Vegas: minimum round trip time; 0: none yet";
        110 mptcp_token Mptcp "MPTCP: token of the connection, also on its subflows";
        111 mptcp_flags Mptcp "MPTCP: flags of the connection (mptcp_info)";
        112 mptcp_retransmits Mptcp "MPTCP: retransmissions of the connection (mptcp_info)";
        113 peer_inode Unix "UNIX: inode of the peer";
        114 name_at Unix "UNIX: offset of the name in the batch's names; formats write the name instead";
    }
    u16 {
        120 local_port Identity "local port";
        121 remote_port Identity "remote port";
        122 protocol Identity "6 TCP, 17 UDP, 136 UDP-Lite, 262 MPTCP; 0 UNIX";
        123 sock_flags Options "inet_diag_sockopt bits in the kernel's order from bit 0: recverr, is_icsk, freebind, hdrincl, mc_loop, transparent, mc_all, nodefrag, bind_address_no_port, recverr_rfc4884, defer_connect";
        124 total_rto Loss "retransmission timeouts since the beginning (tcp_info)";
        125 total_rto_recoveries Loss "recoveries from retransmission timeouts (tcp_info)";
        126 accecn_fail_mode Ecn "AccECN: how the negotiation failed (tcp_info)";
        127 accecn_opt_seen Ecn "AccECN: state of the option (tcp_info)";
        128 dctcp_ce_state Congestion "DCTCP: whether the last segment was marked";
        129 name_len Unix "UNIX: length of the name";
        130 sock_type Identity "SOCK_STREAM 1, SOCK_DGRAM 2, SOCK_SEQPACKET 5";
        131 record_flags Identity "flags of the record: 1 the socket has closed";
    }
    u8 {
        140 family Identity "AF_INET 2, AF_INET6 10, AF_UNIX 1";
        141 state Identity "TCP state: 1 ESTABLISHED to 12 NEW_SYN_RECV (include/net/tcp_states.h)";
        142 ca_state Cwnd "congestion state: 0 Open, 1 Disorder, 2 CWR, 3 Recovery, 4 Loss (tcp_info)";
        143 retransmits Timer "retransmission timeouts since the last ACK of new data (tcp_info)";
        144 probes Timer "unanswered zero window or keepalive probes (tcp_info)";
        145 backoff Timer "doublings of the retransmission timeout (tcp_info)";
        146 tcp_options Options "1 timestamps, 2 SACK, 4 window scale, 8 ECN, 16 ECN seen, 32 data in the SYN, 64 usec timestamps (tcp_info)";
        147 snd_wscale Options "window scale of the peer (tcp_info)";
        148 rcv_wscale Options "own window scale (tcp_info)";
        149 app_limited Rate "1: delivery_bytes_per_s was limited by the application (tcp_info)";
        150 fastopen_client_fail Options "why TCP Fast Open failed at the client (tcp_info)";
        151 tos Attributes "IPv4 type of service";
        152 tclass Attributes "IPv6 traffic class";
        153 shutdown Attributes "1 receiving, 2 sending";
        154 timer Timer "0 none, 1 retransmit, 2 keepalive, 3 TIME_WAIT, 4 zero window probe (inet_diag)";
        155 ipv6_only Attributes "IPV6_V6ONLY";
        156 dctcp_enabled Congestion "DCTCP: in use";
        157 vegas_enabled Congestion "Vegas: in use";
        158 mptcp_subflows Mptcp "MPTCP: subflows besides the first (mptcp_info)";
        159 mptcp_subflows_total Mptcp "MPTCP: all subflows (mptcp_info)";
        160 ulp Options "upper layer: 0 none, 1 tls, 2 mptcp, 3 espintcp, 4 smc, 255 other";
        161 reuse Attributes "1 SO_REUSEADDR, 2 SO_REUSEPORT";
        162 nodelay Options "1 TCP_NODELAY, 2 TCP_CORK";
        163 reserved Identity "always 0";
    }
    bytes16 {
        170 local_address Identity "local address in network order; IPv4 in the first four bytes";
        171 remote_address Identity "remote address in network order; IPv4 in the first four bytes";
        172 congestion Congestion "name of the congestion control";
    }
}

/// BPF programs write the record and user space reads it in place, so it must not contain padding.
const _: () = {
    let (mut bytes, mut at) = (0, 0);
    while at < FIELDS.len() {
        bytes += match FIELDS[at].width {
            Width::U64 => 8,
            Width::U32 => 4,
            Width::U16 => 2,
            Width::U8 => 1,
            Width::Bytes16 => 16,
        };
        at += 1;
    }
    assert!(bytes == size_of::<SocketRecord>());
};
