//! `struct inet_diag_msg` and its attributes (uapi/linux/inet_diag.h, net/ipv4/inet_diag.c).
use parshall_evidence::socket::{Group, Groups, PROTOCOL_MPTCP, SocketRecord};

use super::bytes::Bytes;
use super::common::{Reading, Table, memory};
use super::tcp_info::{self, NO_RTT, some};
use parshall_evidence::socket::selection::state::{LISTEN, NEW_SYN_RECV};

/// Length of `struct inet_diag_msg`.
const MESSAGE: usize = 72;

const INFO: u16 = 2;
const VEGASINFO: u16 = 3;
const CONG: u16 = 4;
const TOS: u16 = 5;
const TCLASS: u16 = 6;
const SKMEMINFO: u16 = 7;
const SHUTDOWN: u16 = 8;
const DCTCPINFO: u16 = 9;
const PROTOCOL: u16 = 10;
const SKV6ONLY: u16 = 11;
const MARK: u16 = 15;
const BBRINFO: u16 = 16;
const CLASS_ID: u16 = 17;
const ULP_INFO: u16 = 19;
const CGROUP_ID: u16 = 21;
const SOCKOPT: u16 = 22;

const ULP_NAME: u16 = 1;
const ULP_MPTCP: u16 = 3;
const MPTCP_TOKEN_LOCAL: u16 = 2;

/// TCP Vegas begins with it (net/ipv4/tcp_vegas.c).
const NO_VEGAS_RTT: u32 = 0x7fff_ffff;

const SOCK_STREAM: u16 = 1;
const SOCK_DGRAM: u16 = 2;
const SYN_RECV: u8 = 3;

/// Reads one message; `None` when it is too short to be one.
pub(super) fn decode(table: Table, payload: &[u8], reading: &Reading, record: &mut SocketRecord) -> Option<usize> {
    let attributes = payload.get(MESSAGE..)?;
    let groups = reading.groups;
    let message = Bytes(payload);
    head(table, message, groups, record);
    let (mut full, mut tcp_info_bytes) = (false, 0);
    for (kind, value) in Bytes(attributes).attributes() {
        full |= kind == SHUTDOWN;
        if kind == INFO {
            tcp_info_bytes = value.0.len();
        }
        attribute(table, kind, value, reading, record);
    }
    // The kernel writes SYN_RECV for embryonic connections too. Only full sockets have this attribute.
    if record.state == SYN_RECV && !full && matches!(table, Table::Tcp) {
        record.state = NEW_SYN_RECV;
    }
    Some(tcp_info_bytes)
}

fn head(table: Table, message: Bytes<'_>, groups: Groups, record: &mut SocketRecord) {
    record.family = message.u8(0);
    record.state = message.u8(1);
    record.local_port = message.port(4);
    record.remote_port = message.port(6);
    record.local_address = message.address(8);
    record.remote_address = message.address(24);
    record.interface = message.u32(40);
    record.cookie = message.halves(44);
    record.inode = message.u32(68);
    (record.protocol, record.sock_type) = match table {
        Table::Tcp => (6, SOCK_STREAM),
        Table::Udp => (17, SOCK_DGRAM),
        Table::UdpLite => (136, SOCK_DGRAM),
        Table::Mptcp | Table::Unix => (PROTOCOL_MPTCP, SOCK_STREAM),
    };
    if groups.has(Group::Timer) {
        record.timer = message.u8(2);
        record.retransmits = message.u8(3);
        record.timer_ms = message.u32(52);
    }
    if groups.has(Group::Attributes) {
        record.uid = message.u32(64);
    }
    if groups.has(Group::Queues) {
        let (received, written) = (message.u32(56), message.u32(60));
        if record.state == LISTEN {
            (record.accept_queue, record.accept_limit) = (received, written);
        } else {
            (record.rqueue_bytes, record.wqueue_bytes) = (received, written);
        }
    }
}

fn attribute(table: Table, kind: u16, value: Bytes<'_>, reading: &Reading, record: &mut SocketRecord) {
    let groups = reading.groups;
    match kind {
        INFO if table == Table::Mptcp => tcp_info::mptcp(value, groups, record),
        INFO => tcp_info::tcp(value, groups, reading.layout, record),
        SKMEMINFO if groups.has(Group::Memory) => memory(value, record),
        CONG | VEGASINFO | DCTCPINFO | BBRINFO if groups.has(Group::Congestion) => congestion(kind, value, record),
        TOS | TCLASS | SHUTDOWN | SKV6ONLY | MARK | CLASS_ID if groups.has(Group::Attributes) => {
            attributes(kind, value, record);
        }
        CGROUP_ID if groups.has(Group::Cgroup) => record.cgroup_id = value.u64(0),
        SOCKOPT if groups.has(Group::Options) => record.sock_flags = sock_flags(value),
        ULP_INFO => upper_layer(value, groups, record),
        PROTOCOL if table != Table::Mptcp && value.u8(0) != 0 => record.protocol = u16::from(value.u8(0)),
        _ => {}
    }
}

fn congestion(kind: u16, value: Bytes<'_>, record: &mut SocketRecord) {
    match kind {
        CONG => {
            // At most 15 characters and a zero.
            let name = value.0.iter().take_while(|&&byte| byte != 0).take(15);
            record.congestion = [0; 16];
            record.congestion.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        }
        VEGASINFO => {
            record.vegas_enabled = u8::from(value.u32(0) != 0);
            record.vegas_rttcnt = value.u32(4);
            record.vegas_rtt_us = some(value.u32(8), NO_VEGAS_RTT);
            record.vegas_minrtt_us = some(value.u32(12), NO_VEGAS_RTT);
        }
        DCTCPINFO => {
            record.dctcp_enabled = u8::from(value.u16(0) != 0);
            record.dctcp_ce_state = value.u16(2);
            record.dctcp_alpha = value.u32(4);
            record.dctcp_ab_ecn = value.u32(8);
            record.dctcp_ab_tot = value.u32(12);
        }
        _ => {
            record.bbr_bw_bytes_per_s = value.halves(0);
            record.bbr_min_rtt_us = some(value.u32(8), NO_RTT);
            record.bbr_pacing_gain = value.u32(12);
            record.bbr_cwnd_gain = value.u32(16);
        }
    }
}

fn attributes(kind: u16, value: Bytes<'_>, record: &mut SocketRecord) {
    match kind {
        TOS => record.tos = value.u8(0),
        TCLASS => record.tclass = value.u8(0),
        SHUTDOWN => record.shutdown = value.u8(0),
        SKV6ONLY => record.ipv6_only = value.u8(0),
        MARK => record.mark = value.u32(0),
        _ => {
            // Where no class is set the kernel writes the priority, which classful queueing disciplines take for a class. A
            // class without a major number was not set by a control group.
            record.class_id = value.u32(0);
            record.priority = if record.class_id >> 16 == 0 { record.class_id } else { 0 };
        }
    }
}

/// Eleven bit fields over two bytes.
fn sock_flags(value: Bytes<'_>) -> u16 {
    let (low, high) = (value.u8(0), value.u8(1));
    let (low, high) =
        if cfg!(target_endian = "little") { (low, high) } else { (low.reverse_bits(), high.reverse_bits()) };
    u16::from_le_bytes([low, high & 7])
}

fn upper_layer(value: Bytes<'_>, groups: Groups, record: &mut SocketRecord) {
    for (kind, value) in value.attributes() {
        match kind {
            ULP_NAME if groups.has(Group::Options) => {
                let name = value.0.split(|&byte| byte == 0).next().unwrap_or_default();
                record.ulp = match name {
                    b"" => 0,
                    b"tls" => 1,
                    b"mptcp" => 2,
                    b"espintcp" => 3,
                    b"smc" => 4,
                    _ => 255,
                };
            }
            ULP_MPTCP if groups.has(Group::Mptcp) => {
                let token = value.attributes().find(|(kind, _)| *kind == MPTCP_TOKEN_LOCAL);
                record.mptcp_token = token.map_or(0, |(_, value)| value.u32(0));
            }
            _ => {}
        }
    }
}
