//! `struct tcp_info` and `struct mptcp_info` (uapi/linux/tcp.h, mptcp.h), group by group. They only ever grow at their end,
//! so each field is read at its offset and is 0 when the kernel is too old to have it.
use parshall_evidence::socket::{Group, Groups, SocketRecord};

use super::bytes::Bytes;
use parshall_evidence::socket::selection::state::LISTEN;

const NOTSENT_BYTES: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;

/// Differences between kernels that do not show in the length of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// The last four bytes of tcp_info are bit fields (Linux 7.0), where 6.18 and 6.19 have two numbers of two bytes.
    pub packed_accecn: bool,
}

impl Layout {
    /// The layout of a kernel of this release, as `uname -r` writes it.
    pub fn of_release(release: &str) -> Self {
        let major = release.split('.').next().and_then(|number| number.parse::<u32>().ok());
        Self { packed_accecn: major.is_some_and(|major| major >= 7) }
    }
}

/// Reads the groups that are wanted. A listener's `unacked` and `sacked` are its accept queue, which has its own fields.
pub(super) fn tcp(info: Bytes<'_>, groups: Groups, layout: Layout, record: &mut SocketRecord) {
    let wanted = |group| groups.has(group);
    if wanted(Group::Queues) {
        record.notsent_bytes = info.u32(NOTSENT_BYTES);
    }
    if wanted(Group::Rtt) {
        rtt(info, record);
    }
    if wanted(Group::Cwnd) {
        cwnd(info, record);
    }
    if wanted(Group::Loss) {
        loss(info, record);
    }
    if wanted(Group::Traffic) {
        traffic(info, record);
    }
    if wanted(Group::Times) {
        times(info, record);
    }
    if wanted(Group::Limits) {
        record.busy_us = info.u64(168);
        record.rwnd_limited_us = info.u64(176);
        record.sndbuf_limited_us = info.u64(184);
    }
    if wanted(Group::Window) {
        record.rcv_ssthresh = info.u32(64);
        record.rcv_space = info.u32(96);
        record.snd_wnd = info.u32(228);
        record.rcv_wnd = info.u32(232);
    }
    if wanted(Group::Rate) {
        record.pacing_bytes_per_s = some(info.u64(104), u64::MAX);
        record.max_pacing_bytes_per_s = some(info.u64(112), u64::MAX);
        record.delivery_bytes_per_s = info.u64(160);
        record.app_limited = bits(info.u8(7), 0, 1);
    }
    if wanted(Group::Ecn) {
        ecn(info, layout, record);
    }
    if wanted(Group::Timer) {
        record.retransmits = info.u8(2);
        record.probes = info.u8(3);
        record.backoff = info.u8(4);
    }
    if wanted(Group::Options) {
        record.tcp_options = info.u8(5);
        record.snd_wscale = bits(info.u8(6), 0, 4);
        record.rcv_wscale = bits(info.u8(6), 4, 4);
        record.fastopen_client_fail = bits(info.u8(7), 1, 2);
    }
}

/// The kernel's values for "none (yet)": of round trip times, and of thresholds (TCP_INFINITE_SSTHRESH). Rates have all ones.
pub(super) const NO_RTT: u32 = u32::MAX;
pub(super) const NO_SSTHRESH: u32 = 0x7fff_ffff;

/// The value, or 0 where it is the kernel's value for "none": that is what 0 means in every record.
pub(super) fn some<T: PartialEq + Default>(value: T, none: T) -> T {
    if value == none { T::default() } else { value }
}

/// A bit field of a byte: compilers begin at the lowest bit on little-endian machines, at the highest on others.
fn bits(byte: u8, first: u32, count: u32) -> u8 {
    let shift = if cfg!(target_endian = "little") { first } else { 8 - first - count };
    byte >> shift & ((1 << count) - 1)
}

fn rtt(info: Bytes<'_>, record: &mut SocketRecord) {
    record.rto_us = info.u32(8);
    record.ato_us = info.u32(12);
    record.rtt_us = info.u32(68);
    record.rttvar_us = info.u32(72);
    record.rcv_rtt_us = info.u32(92);
    record.min_rtt_us = some(info.u32(148), NO_RTT);
}

fn cwnd(info: Bytes<'_>, record: &mut SocketRecord) {
    if record.state == LISTEN {
        return;
    }
    record.ca_state = info.u8(1);
    record.snd_mss = info.u32(16);
    record.rcv_mss = info.u32(20);
    record.pmtu = info.u32(60);
    record.snd_ssthresh = some(info.u32(76), NO_SSTHRESH);
    record.snd_cwnd = info.u32(80);
    record.advmss = info.u32(84);
}

fn loss(info: Bytes<'_>, record: &mut SocketRecord) {
    if record.state == LISTEN {
        return;
    }
    record.unacked = info.u32(24);
    record.sacked = info.u32(28);
    record.lost = info.u32(32);
    record.retrans = info.u32(36);
    record.fackets = info.u32(40);
    record.reordering = info.u32(88);
    record.total_retrans = info.u32(100);
    record.bytes_retrans = info.u64(BYTES_RETRANS);
    record.dsack_dups = info.u32(216);
    record.reord_seen = info.u32(220);
    record.rcv_ooopack = info.u32(224);
    record.rehash = info.u32(236);
    record.total_rto = info.u16(240);
    record.total_rto_recoveries = info.u16(242);
    record.total_rto_time_ms = info.u32(244);
}

fn traffic(info: Bytes<'_>, record: &mut SocketRecord) {
    record.bytes_acked = info.u64(120);
    record.bytes_received = info.u64(128);
    record.segs_out = info.u32(136);
    record.segs_in = info.u32(140);
    record.data_segs_in = info.u32(152);
    record.data_segs_out = info.u32(156);
    record.delivered = info.u32(192);
    record.bytes_sent = info.u64(BYTES_SENT);
}

fn times(info: Bytes<'_>, record: &mut SocketRecord) {
    record.last_data_sent_ms = info.u32(44);
    record.last_ack_sent_ms = info.u32(48);
    record.last_data_recv_ms = info.u32(52);
    record.last_ack_recv_ms = info.u32(56);
}

fn ecn(info: Bytes<'_>, layout: Layout, record: &mut SocketRecord) {
    record.delivered_ce = info.u32(196);
    record.received_ce = info.u32(248);
    record.delivered_e1_bytes = info.u32(252);
    record.delivered_e0_bytes = info.u32(256);
    record.delivered_ce_bytes = info.u32(260);
    record.received_e1_bytes = info.u32(264);
    record.received_e0_bytes = info.u32(268);
    record.received_ce_bytes = info.u32(272);
    if layout.packed_accecn {
        // Of the first byte: two bits of the mode, two of the option's state, four of the failure.
        record.accecn_opt_seen = u16::from(bits(info.u8(276), 2, 2));
        record.accecn_fail_mode = u16::from(bits(info.u8(276), 4, 4));
    } else {
        record.accecn_fail_mode = info.u16(276);
        record.accecn_opt_seen = info.u16(278);
    }
}

/// Reads `struct mptcp_info`.
pub(super) fn mptcp(info: Bytes<'_>, groups: Groups, record: &mut SocketRecord) {
    if !groups.has(Group::Mptcp) {
        return;
    }
    record.mptcp_subflows = info.u8(0);
    record.mptcp_flags = info.u32(8);
    record.mptcp_token = info.u32(12);
    record.mptcp_retransmits = info.u32(44);
    record.mptcp_bytes_retrans = info.u64(48);
    record.mptcp_bytes_sent = info.u64(56);
    record.mptcp_bytes_received = info.u64(64);
    record.mptcp_bytes_acked = info.u64(72);
    record.mptcp_subflows_total = info.u8(80);
}
