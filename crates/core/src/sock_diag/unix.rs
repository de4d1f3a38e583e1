//! `struct unix_diag_msg` and its attributes (uapi/linux/unix_diag.h, net/unix/diag.c).
use parshall_evidence::socket::{Group, SocketRecord};

use super::bytes::Bytes;
use super::common::{Reading, memory};
use parshall_evidence::socket::selection::state::LISTEN;

/// Length of `struct unix_diag_msg`.
const MESSAGE: usize = 16;

const NAME: u16 = 0;
const PEER: u16 = 2;
const ICONS: u16 = 3;
const RQLEN: u16 = 4;
const MEMINFO: u16 = 5;
const SHUTDOWN: u16 = 6;
const UID: u16 = 7;

/// Reads one message, and appends its name; `None` when it is too short to be one.
pub(super) fn decode(payload: &[u8], reading: &Reading, record: &mut SocketRecord, names: &mut Vec<u8>) -> Option<()> {
    let attributes = payload.get(MESSAGE..)?;
    let groups = reading.groups;
    let message = Bytes(payload);
    record.family = message.u8(0);
    record.sock_type = u16::from(message.u8(1));
    record.state = message.u8(2);
    record.inode = message.u32(4);
    record.cookie = message.halves(8);
    for (kind, value) in Bytes(attributes).attributes() {
        match kind {
            NAME if groups.has(Group::Unix) => name(value.0, record, names),
            PEER if groups.has(Group::Unix) => record.peer_inode = value.u32(0),
            // Inodes of connections that wait to be accepted; RQLEN, which comes later, has their number too.
            ICONS if groups.has(Group::Queues) => record.accept_queue = (value.0.len() / 4) as u32,
            RQLEN if groups.has(Group::Queues) => {
                if record.state == LISTEN {
                    (record.accept_queue, record.accept_limit) = (value.u32(0), value.u32(4));
                } else {
                    (record.rqueue_bytes, record.wqueue_bytes) = (value.u32(0), value.u32(4));
                }
            }
            MEMINFO if groups.has(Group::Memory) => memory(value, record),
            SHUTDOWN if groups.has(Group::Attributes) => record.shutdown = value.u8(0),
            UID if groups.has(Group::Attributes) => record.uid = value.u32(0),
            _ => {}
        }
    }
    Some(())
}

/// Paths end with a zero that is not part of them; abstract names begin with one that is, and hold whatever else.
fn name(mut value: &[u8], record: &mut SocketRecord, names: &mut Vec<u8>) {
    if value.first() != Some(&0) {
        value = value.split(|&byte| byte == 0).next().unwrap_or_default();
    }
    if let (Ok(at), Ok(len)) = (u32::try_from(names.len()), u16::try_from(value.len())) {
        (record.name_at, record.name_len) = (at, len);
        names.extend_from_slice(value);
    }
}
