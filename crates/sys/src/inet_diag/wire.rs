//! Bytes of NETLINK_SOCK_DIAG: requests out, answers in. Pure functions; nothing here panics on any input.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{CongName, Entry, Family, Query, SockId, SockMem, TcpInfo};

/// NLMSG_ERROR.
pub const ERROR: u16 = libc::NLMSG_ERROR as u16;
/// NLMSG_DONE.
pub const DONE: u16 = libc::NLMSG_DONE as u16;
/// TCPDIAG_GETSOCK, the request of before 3.3: the only one that dumps both families in one walk. `ss` uses it too.
const TCPDIAG_GETSOCK: u16 = 18;
/// SOCK_DIAG_BY_FAMILY.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const HEADER: usize = 16;
/// `struct inet_diag_msg`.
const MSG_BYTES: usize = 72;

const INET_DIAG_REQ_BYTECODE: u16 = 1;
const ATTR_INFO: u16 = 2;
const ATTR_CONG: u16 = 4;
const ATTR_SKMEMINFO: u16 = 7;

fn begin(out: &mut Vec<u8>, kind: u16, flags: libc::c_int, seq: u32) -> usize {
    let at = out.len();
    out.extend_from_slice(&0_u32.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    out.extend_from_slice(&seq.to_ne_bytes());
    out.extend_from_slice(&0_u32.to_ne_bytes());
    at
}

fn end(out: &mut [u8], at: usize) {
    let len = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&len.to_ne_bytes());
}

/// Appends a request to dump.
pub fn push_dump(out: &mut Vec<u8>, seq: u32, query: &Query) {
    let family = match query.family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
        Family::Both => libc::AF_UNSPEC as u8,
    };
    let at;
    if query.family == Family::Both {
        // struct inet_diag_req: family, src_len, dst_len, ext, id, states, dbs.
        at = begin(out, TCPDIAG_GETSOCK, libc::NLM_F_DUMP, seq);
        out.extend_from_slice(&[family, 0, 0, query.exts]);
        out.extend_from_slice(&[0; 48]);
        out.extend_from_slice(&query.states.to_ne_bytes());
        out.extend_from_slice(&0_u32.to_ne_bytes());
    } else {
        // struct inet_diag_req_v2: family, protocol, ext, pad, states, id.
        at = begin(out, SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, seq);
        out.extend_from_slice(&[family, libc::IPPROTO_TCP as u8, query.exts, 0]);
        out.extend_from_slice(&query.states.to_ne_bytes());
        out.extend_from_slice(&[0; 48]);
    }
    if let Some(port) = query.port {
        push_port_filter(out, port);
    }
    end(out, at);
}

/// "Own port or peer's port equals": a jump past the end by 0 accepts, by 4 rejects (`inet_diag_bc_run`). Ports are compared
/// with two orderings each, because the operator for equality is younger.
fn push_port_filter(out: &mut Vec<u8>, port: u16) {
    const JMP: u8 = 1;
    const S_GE: u8 = 2;
    const S_LE: u8 = 3;
    const D_GE: u8 = 4;
    const D_LE: u8 = 5;
    // (code, yes, no): offsets in bytes from this operation. Comparisons keep the port in the `no` field of a second one.
    let program: [(u8, u8, u16); 9] = [
        (S_GE, 8, 20), // 0: to 8, or to 20
        (0, 0, port),
        (S_LE, 8, 12), // 8: to 16, or to 20
        (0, 0, port),
        (JMP, 4, 20),  // 16: accept (36)
        (D_GE, 8, 20), // 20: to 28, or reject (40)
        (0, 0, port),
        (D_LE, 8, 12), // 28: accept (36), or reject (40)
        (0, 0, port),
    ];
    out.extend_from_slice(&((4 + program.len() * 4) as u16).to_ne_bytes());
    out.extend_from_slice(&INET_DIAG_REQ_BYTECODE.to_ne_bytes());
    for (code, yes, no) in program {
        out.extend_from_slice(&[code, yes]);
        out.extend_from_slice(&no.to_ne_bytes());
    }
}

/// Appends a request for one socket.
pub fn push_get(out: &mut Vec<u8>, seq: u32, id: &SockId, exts: u8) {
    let at = begin(out, SOCK_DIAG_BY_FAMILY, 0, seq);
    out.extend_from_slice(&[id.family, libc::IPPROTO_TCP as u8, exts, 0]);
    out.extend_from_slice(&u32::MAX.to_ne_bytes());
    out.extend_from_slice(&id.local.port().to_be_bytes());
    out.extend_from_slice(&id.remote.port().to_be_bytes());
    push_address(out, id.local.ip());
    push_address(out, id.remote.ip());
    out.extend_from_slice(&id.interface.to_ne_bytes());
    out.extend_from_slice(&(id.cookie as u32).to_ne_bytes());
    out.extend_from_slice(&((id.cookie >> 32) as u32).to_ne_bytes());
    end(out, at);
}

fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            out.extend_from_slice(&v4.octets());
            out.extend_from_slice(&[0; 12]);
        }
        IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()),
    }
}

/// One netlink message.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub seq: u32,
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// The error that NLMSG_ERROR and NLMSG_DONE carry (as a positive number), None when it is 0 or absent.
    pub fn errno(&self) -> Option<i32> {
        let code = i32::from_ne_bytes(self.payload.get(..4)?.try_into().ok()?);
        (code != 0).then(|| code.saturating_neg().max(1))
    }
}

/// The messages of one datagram. Ends at the first one whose length makes no sense.
#[derive(Debug)]
pub struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let bytes = self.0;
        let len = u32_at(bytes, 0)? as usize;
        if len < HEADER || len > bytes.len() {
            self.0 = &[];
            return None;
        }
        let message = Message {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            seq: u32_at(bytes, 8)?,
            payload: &bytes[HEADER..len],
        };
        self.0 = bytes.get(align4(len)..).unwrap_or(&[]);
        Some(message)
    }
}

fn align4(len: usize) -> usize {
    (len + 3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn address_at(bytes: &[u8], at: usize, family: u8) -> Option<IpAddr> {
    if i32::from(family) == libc::AF_INET6 {
        let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    } else {
        let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(octets)))
    }
}

/// Reads `struct inet_diag_msg` and the attributes behind it. None when it is too short to be one.
pub fn parse_entry(payload: &[u8]) -> Option<Entry> {
    let msg = payload.get(..MSG_BYTES)?;
    let family = msg[0];
    let local_port = u16::from_be_bytes([msg[4], msg[5]]);
    let remote_port = u16::from_be_bytes([msg[6], msg[7]]);
    let cookie = u64::from(u32_at(msg, 44)?) | u64::from(u32_at(msg, 48)?) << 32;
    let mut entry = Entry {
        id: SockId {
            family,
            local: SocketAddr::new(address_at(msg, 8, family)?, local_port),
            remote: SocketAddr::new(address_at(msg, 24, family)?, remote_port),
            interface: u32_at(msg, 40)?,
            cookie,
        },
        state: msg[1],
        timer: msg[2],
        retransmits: msg[3],
        rqueue: u32_at(msg, 56)?,
        wqueue: u32_at(msg, 60)?,
        uid: u32_at(msg, 64)?,
        inode: u32_at(msg, 68)?,
        info: None,
        mem: None,
        cong: CongName::default(),
    };
    parse_attributes(&payload[MSG_BYTES..], &mut entry);
    Some(entry)
}

fn parse_attributes(mut bytes: &[u8], entry: &mut Entry) {
    while let (Some(len), Some(kind)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let len = usize::from(len);
        let Some(value) = bytes.get(4..len) else { return };
        match kind {
            ATTR_INFO => entry.info = Some(TcpInfo::parse(value)),
            ATTR_SKMEMINFO => entry.mem = Some(parse_mem(value)),
            ATTR_CONG => {
                let take = value.len().min(15);
                entry.cong.0[..take].copy_from_slice(&value[..take]);
            }
            _ => {}
        }
        bytes = bytes.get(align4(len)..).unwrap_or(&[]);
    }
}

fn parse_mem(value: &[u8]) -> SockMem {
    let at = |index: usize| u32_at(value, index * 4).unwrap_or(0);
    SockMem {
        rmem_alloc: at(0),
        rcvbuf: at(1),
        wmem_alloc: at(2),
        sndbuf: at(3),
        wmem_queued: at(5),
        backlog: at(7),
        drops: at(8),
    }
}
