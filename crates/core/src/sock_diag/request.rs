//! Requests: which dumps a selection needs, and their bytes; and the request for one TCP socket.
use std::net::{IpAddr, SocketAddr};

use parshall_evidence::socket::selection::address;
use parshall_evidence::socket::{Group, Groups, PROTOCOL_MPTCP, SocketRecord};

use super::common::Table;
use super::filter;
use parshall_evidence::socket::selection::state::BOUND_INACTIVE;
use parshall_evidence::socket::{Kind, Selection};

const AF_UNSPEC: u8 = 0;
const AF_UNIX: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// TCPDIAG_GETSOCK, the request of before Linux 3.3: TCP only, but both families in one walk of the tables. `ss` uses it too.
const TCPDIAG_GETSOCK: u16 = 18;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;

const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_REQ_PROTOCOL: u16 = 3;

/// A protocol number that is not in use. A kernel without INET_DIAG_REQ_PROTOCOL (before 5.9) refuses it; given the lower bits
/// of MPTCP's number it would dump TCP sockets instead.
const NO_PROTOCOL: u8 = 254;

/// One request for a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpRequest {
    #[allow(missing_docs)]
    pub table: Table,
    family: u8,
}

impl DumpRequest {
    /// Whether a socket of the table is among those asked for.
    pub fn includes(&self, record: &SocketRecord) -> bool {
        self.family == AF_UNSPEC || self.family == record.family
    }
}

/// The dumps that a selection needs, the longest first.
pub fn tables(selection: &Selection) -> Vec<DumpRequest> {
    let mut dumps = Vec::new();
    let mut both = |table| dumps.extend([AF_INET, AF_INET6].map(|family| DumpRequest { table, family }));
    if selection.kinds.has(Kind::Udp) {
        both(Table::Udp);
        both(Table::UdpLite);
    }
    if selection.kinds.has(Kind::Mptcp) {
        both(Table::Mptcp);
    }
    if selection.kinds.has(Kind::Tcp) {
        dumps.insert(0, DumpRequest { table: Table::Tcp, family: AF_UNSPEC });
    }
    // UNIX sockets have neither addresses nor ports.
    let portless = selection.ports.is_empty() || selection.ports.iter().any(|(_, port)| *port == 0);
    if selection.kinds.has(Kind::Unix) && selection.prefixes.is_empty() && portless {
        dumps.push(DumpRequest { table: Table::Unix, family: AF_UNIX });
    }
    dumps
}

/// The identity of one TCP socket for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketId {
    /// Address family of the socket (AF_INET6 also for v4-mapped addresses).
    pub family: u8,
    /// The local address, as the kernel holds it.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// Bound interface, 0 for none.
    pub interface: u32,
    /// Its cookie.
    pub cookie: u64,
}

impl SocketId {
    /// The identity of the socket that a record describes.
    pub fn of(record: &SocketRecord) -> Self {
        Self {
            family: record.family,
            local: SocketAddr::new(address(record, false), record.local_port),
            remote: SocketAddr::new(address(record, true), record.remote_port),
            interface: record.interface,
            cookie: record.cookie,
        }
    }
}

fn begin(out: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32) -> usize {
    let begin = out.len();
    out.extend_from_slice(&0_u32.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&0_u32.to_ne_bytes());
    begin
}

fn end(out: &mut [u8], begin: usize) {
    let len = (out.len() - begin) as u32;
    out[begin..begin + 4].copy_from_slice(&len.to_ne_bytes());
}

/// Appends a request for one TCP socket, with the fields of these groups. The kernel looks it up without a walk of its tables.
pub fn push_get(out: &mut Vec<u8>, sequence: u32, id: &SocketId, groups: Groups) {
    let begin = begin(out, SOCK_DIAG_BY_FAMILY, 0, sequence);
    out.extend_from_slice(&[id.family, IPPROTO_TCP, inet_extensions(groups), 0]);
    out.extend_from_slice(&u32::MAX.to_ne_bytes());
    out.extend_from_slice(&id.local.port().to_be_bytes());
    out.extend_from_slice(&id.remote.port().to_be_bytes());
    for address in [id.local.ip(), id.remote.ip()] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        out.extend_from_slice(&bytes);
    }
    out.extend_from_slice(&id.interface.to_ne_bytes());
    out.extend_from_slice(&(id.cookie as u32).to_ne_bytes());
    out.extend_from_slice(&((id.cookie >> 32) as u32).to_ne_bytes());
    end(out, begin);
}

/// Appends the request. `filtered` adds a program with which the kernel leaves out sockets that the selection does not want
/// before it describes them, which is what a dump spends its time on (the walk itself is the same); kernels that do not
/// know a part of it answer EINVAL.
pub fn push_dump(out: &mut Vec<u8>, sequence: u32, dump: DumpRequest, selection: &Selection, filtered: bool) {
    let kind = if dump.family == AF_UNSPEC { TCPDIAG_GETSOCK } else { SOCK_DIAG_BY_FAMILY };
    let begin = begin(out, kind, NLM_F_DUMP, sequence);
    let states = states(selection);
    if dump.table == Table::Unix {
        // struct unix_diag_req: family, protocol, pad, states, inode, what to show, cookie.
        out.extend_from_slice(&[AF_UNIX, 0, 0, 0]);
        out.extend_from_slice(&states.to_ne_bytes());
        out.extend_from_slice(&0_u32.to_ne_bytes());
        out.extend_from_slice(&unix_shows(selection.groups).to_ne_bytes());
        out.extend_from_slice(&[0; 8]);
    } else {
        push_inet(out, dump, states, inet_extensions(selection.groups));
        if let Some(program) = filtered.then(|| filter::program(selection)).flatten() {
            push_attribute(out, INET_DIAG_REQ_BYTECODE, &program);
        }
    }
    end(out, begin);
}

fn push_inet(out: &mut Vec<u8>, dump: DumpRequest, states: u32, extensions: u8) {
    if dump.family == AF_UNSPEC {
        // struct inet_diag_req: family, lengths of prefixes, extensions, id, states, dbs.
        out.extend_from_slice(&[AF_UNSPEC, 0, 0, extensions]);
        out.extend_from_slice(&[0; 48]);
        out.extend_from_slice(&states.to_ne_bytes());
        out.extend_from_slice(&0_u32.to_ne_bytes());
        return;
    }
    let protocol = match dump.table {
        Table::Udp => 17,
        Table::UdpLite => 136,
        Table::Mptcp | Table::Tcp | Table::Unix => NO_PROTOCOL,
    };
    // struct inet_diag_req_v2: family, protocol, extensions, pad, states, id.
    out.extend_from_slice(&[dump.family, protocol, extensions, 0]);
    out.extend_from_slice(&states.to_ne_bytes());
    out.extend_from_slice(&[0; 48]);
    if dump.table == Table::Mptcp {
        push_attribute(out, INET_DIAG_REQ_PROTOCOL, &u32::from(PROTOCOL_MPTCP).to_ne_bytes());
    }
}

fn push_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Sockets that are bound and neither listen nor connect (BOUND_INACTIVE) are in a separate table. Walking it makes a dump of
/// a small namespace take 3 to 5 ms instead of 18 us, so only a selection that names the state includes it.
fn states(selection: &Selection) -> u32 {
    if selection.states == u32::MAX { !(1 << BOUND_INACTIVE) } else { selection.states }
}

/// Extensions (`INET_DIAG_...`, as bits from 0) that hold fields of these groups.
fn inet_extensions(groups: Groups) -> u8 {
    let bit = |attribute: u32| 1u8 << (attribute - 1);
    let (info, vegas, cong, tos, tclass, skmeminfo) = (bit(2), bit(3), bit(4), bit(5), bit(6), bit(7));
    let of = |group| match group {
        Group::Queues
        | Group::Rtt
        | Group::Cwnd
        | Group::Loss
        | Group::Traffic
        | Group::Times
        | Group::Limits
        | Group::Window
        | Group::Rate
        | Group::Ecn
        | Group::Timer
        | Group::Options
        | Group::Mptcp => info,
        Group::Memory => skmeminfo,
        // Each congestion control reports in its own attribute when this one is requested.
        Group::Congestion => cong | vegas,
        // With the class comes the net_cls class.
        Group::Attributes => tos | tclass,
        Group::Identity | Group::Cgroup | Group::Unix | Group::Owner => 0,
    };
    Group::ALL.into_iter().filter(|group| groups.has(*group)).fold(0, |bits, group| bits | of(group))
}

/// `UDIAG_SHOW_...` for these groups.
fn unix_shows(groups: Groups) -> u32 {
    let (name, peer, rqlen, meminfo, uid) = (1, 4, 0x10, 0x20, 0x40);
    [(Group::Unix, name | peer), (Group::Queues, rqlen), (Group::Memory, meminfo), (Group::Attributes, uid)]
        .into_iter()
        .filter(|(group, _)| groups.has(*group))
        .fold(0, |bits, (_, show)| bits | show)
}
