//! Reads the PROXY header of a client, and makes the one for the target.
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use parshall_core::relay::config::ProxyVersion;
use parshall_core::relay::connection::{CloseReason, Event};
use parshall_core::relay::direction::Direction;
use parshall_core::relay::proxy::{self, Addresses, Command, Header, Progress, Tlvs, Transport};
use parshall_core::relay::slots::SlotId;
use parshall_sys::stream_io::recv;
use parshall_sys::stream_socket::local_ip;

use super::conn::Conn;
use super::setup::Setup;
use super::state::Worker;
use crate::engine::{Held, Store, would_block};

/// Bytes of one read. Bytes after the header are the client's data and go to the target.
const READ_BYTES: usize = 4096;

impl Worker {
    /// Reads from the client until its header is complete or nothing more has arrived.
    pub(super) fn read_header(&mut self, id: SlotId) -> Option<Event> {
        let conn = self.conns.get_mut(id)?;
        let Setup::Header(reader) = conn.setup.get_or_insert_with(|| Setup::Header(Box::default())) else {
            return None;
        };
        let mut piece = [0; READ_BYTES];
        loop {
            match recv(conn.client.as_raw_fd(), &mut piece) {
                Ok(0) => return Some(Event::Failed(CloseReason::BadHeader)),
                Ok(n) => reader.bytes.extend_from_slice(&piece[..n]),
                Err(e) if would_block(&e) => return Some(Event::HeaderIncomplete),
                Err(_) => return Some(Event::Failed(CloseReason::ClientGone)),
            }
            match proxy::parse(&reader.bytes) {
                Progress::NeedMore => {}
                Progress::Malformed { .. } => return Some(Event::Failed(CloseReason::BadHeader)),
                Progress::Done { header, consumed } => {
                    reader.bytes.drain(..consumed);
                    reader.header = Some(header);
                    return Some(Event::HeaderComplete);
                }
            }
        }
    }

    /// Whether the client that the header names may connect. If so it is counted against the limit of its address.
    pub(super) fn admit_client(&mut self, id: SlotId) -> Option<Event> {
        let conn = self.conns.get_mut(id)?;
        let service = &self.listeners[usize::from(conn.listener)].service;
        let Some(Setup::Header(reader)) = &mut conn.setup else { return None };
        let header = reader.header.as_ref()?;
        let (command, client) = (header.command, header.addresses.source());
        let rest = std::mem::take(&mut reader.bytes);
        if !rest.is_empty() {
            conn.transfers[Direction::ClientToTarget].store = Store::Buffer(Box::new(Held { bytes: rest, sent: 0 }));
        }
        if let (Command::Proxy, Some(client)) = (command, client) {
            conn.client_addr = Some(client);
        }
        // Rules by address cannot be applied to an unknown client of a proxy at a Unix socket. A connection of the proxy
        // itself (LOCAL) has no client.
        let unknown = conn.client_addr.is_none() && command == Command::Proxy;
        Some(Event::Admitted(match unknown && service.needs_client_address() {
            true => Err(CloseReason::Denied),
            false => service.admits(conn.client_addr),
        }))
    }
}

impl Conn {
    /// Takes out the header that came with the client.
    pub(super) fn take_header(&mut self) -> Option<Header> {
        match &mut self.setup {
            Some(Setup::Header(reader)) => reader.header.take(),
            _ => None,
        }
    }
}

/// The header for the target: that of the client if it sent one.
pub(super) fn header_for(version: ProxyVersion, conn: &Conn, of_client: Option<Header>) -> Vec<u8> {
    let header = match of_client {
        Some(header) => Header { version, ..header },
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
        // Only the client's TLVs can make it too long: then it is sent without them.
        ProxyVersion::V2 => {
            if proxy::encode_v2(&header, &mut bytes).is_err() {
                bytes.clear();
                let plain = Header { tlvs: Tlvs::default(), ..header };
                // A header of addresses alone always fits.
                let _fits = proxy::encode_v2(&plain, &mut bytes);
            }
        }
    }
    bytes
}

fn addresses(conn: &Conn) -> Addresses {
    let local: Option<SocketAddr> = local_ip(conn.client.as_raw_fd()).ok().flatten();
    match (conn.client_addr, local) {
        (Some(client), Some(local)) => Addresses::between(Transport::Stream, client, local),
        _ => Addresses::Unknown,
    }
}
