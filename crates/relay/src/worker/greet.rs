//! The PROXY header of a client, and the one that a target gets.
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use parshall_core::relay::config::ProxyVersion;
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::Direction;
use parshall_core::relay::proxy::{self, Addresses, Command, Header, Progress, Tlvs, Transport};
use parshall_core::relay::slots::SlotId;
use parshall_sys::stream_io::recv;
use parshall_sys::stream_socket::local_ip;

use super::Worker;
use crate::conn::{Conn, Stage};
use crate::engine::{Held, Store, would_block};

/// Bytes read at once. What follows the header is the client's data and goes on to the target.
const READ_BYTES: usize = 4096;

/// A header in the making.
#[derive(Debug, Default)]
pub struct Greeting {
    bytes: Vec<u8>,
}

impl Worker {
    /// Takes the header that came with the connection, or waits for it. Until it is there the connection counts against the
    /// limit of the peer's address; one that had its header with it never does, whatever its proxy connects at once.
    pub(super) fn begin_greeting(&mut self, id: SlotId) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.stage = Stage::Greeting(Box::default());
        }
        self.greet(id);
        let Some(conn) = self.conns.get_mut(id).filter(|c| matches!(c.stage, Stage::Greeting(_))) else { return };
        if !self.listeners[usize::from(conn.listener)].service.gate.count(conn.peer) {
            return self.finish(id, CloseReason::Limited, None);
        }
        conn.counted = true;
        self.rearm(id);
    }

    /// Reads what has arrived of the header.
    pub(super) fn greet(&mut self, id: SlotId) {
        let mut piece = [0; READ_BYTES];
        loop {
            let Some(conn) = self.conns.get_mut(id) else { return };
            let Stage::Greeting(greeting) = &mut conn.stage else { return };
            match recv(conn.client.as_raw_fd(), &mut piece) {
                Ok(0) => return self.finish(id, CloseReason::BadHeader, None),
                Ok(n) => greeting.bytes.extend_from_slice(&piece[..n]),
                Err(e) if would_block(&e) => return,
                Err(_) => return self.finish(id, CloseReason::ClientGone, None),
            }
            match proxy::parse(&greeting.bytes) {
                Progress::NeedMore => {}
                Progress::Malformed { .. } => return self.finish(id, CloseReason::BadHeader, None),
                Progress::Done { header, consumed } => {
                    let rest = greeting.bytes.split_off(consumed);
                    return self.greeted(id, header, rest);
                }
            }
        }
    }

    fn greeted(&mut self, id: SlotId, header: Header, rest: Vec<u8>) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let service = &self.listeners[usize::from(conn.listener)].service;
        if std::mem::take(&mut conn.counted) {
            service.gate.discount(conn.peer);
        }
        if let (Command::Proxy, Some(client)) = (header.command, header.addresses.source()) {
            conn.peer = Some(client);
        }
        if !rest.is_empty() {
            conn.transfers[Direction::ClientToTarget].store = Store::Buffer(Box::new(Held { bytes: rest, sent: 0 }));
        }
        let peer = conn.peer;
        // A proxy at a Unix socket that does not say for whom it connects cannot have its client judged. What it connects for
        // itself (LOCAL) is no client's.
        let unknown = peer.is_none() && header.command == Command::Proxy;
        let admitted = match unknown && service.judges_by_address() {
            true => Err(CloseReason::Denied),
            false => service.admits(peer),
        };
        match admitted {
            Ok(()) => {
                conn.counted = true;
                self.begin_dial(id, Some(Box::new(header)));
            }
            Err(reason) => self.finish(id, reason, None),
        }
    }
}

/// The header that the target gets: the one that came with the client, or one of our own.
pub(super) fn header_for(version: ProxyVersion, conn: &Conn, came: Option<Box<Header>>) -> Vec<u8> {
    let header = match came {
        Some(header) => Header { version, ..*header },
        None => Header {
            version,
            command: Command::Proxy,
            addresses: addresses(conn),
            checksum: version == ProxyVersion::V2,
            tlvs: Tlvs::default(),
        },
    };
    let mut bytes = Vec::new();
    match version {
        ProxyVersion::V1 => proxy::encode_v1(&header.addresses, &mut bytes),
        // Too long it can only be by what came with it: then without.
        ProxyVersion::V2 => {
            if proxy::encode_v2(&header, &mut bytes).is_err() {
                bytes.clear();
                let plain = Header { tlvs: Tlvs::default(), ..header };
                // A header of addresses alone has its room.
                let _fits = proxy::encode_v2(&plain, &mut bytes);
            }
        }
    }
    bytes
}

fn addresses(conn: &Conn) -> Addresses {
    let local: Option<SocketAddr> = local_ip(conn.client.as_raw_fd()).ok().flatten();
    match (conn.peer, local) {
        (Some(client), Some(local)) => Addresses::between(Transport::Stream, client, local),
        _ => Addresses::Unknown,
    }
}
