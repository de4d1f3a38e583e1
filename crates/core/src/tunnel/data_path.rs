//! The state that all threads that move packets share: routes, sessions and counts of drops. It opens datagrams.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::allowed_ips::AllowedIps;
use super::crypto;
use super::drops::{DropCause, Drops};
use super::index::Sessions;
use super::link::{Endpoint, Link, Notices};
use super::load::Rate;
use super::message::{DATA_OVERHEAD, HEADER_LEN, Kind, field, u32_at, u64_at};
use super::path::{MESSAGE_BURST, MESSAGES_PER_S};
use super::peer_id::PeerId;
use super::replay::Freshness;
use super::session::Session;
use super::{Ns, REJECT_AFTER_MESSAGES};

/// The peers by the addresses that are theirs. A copy that a thread holds stays as it is while the configuration changes.
pub type Routes = AllowedIps<Arc<Link>>;

/// A datagram that was received, and what has become of it.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// All of its bytes. A packet is decrypted in place.
    pub bytes: &'a mut [u8],
    /// Its sender.
    pub from: &'a Endpoint,
    #[allow(missing_docs)]
    pub outcome: Outcome,
}

impl<'a> Datagram<'a> {
    #[allow(missing_docs)]
    pub fn new(bytes: &'a mut [u8], from: &'a Endpoint) -> Self {
        Self { bytes, from, outcome: Outcome::Unopened }
    }

    /// The packet inside of an opened datagram.
    pub fn packet(&mut self) -> Option<&mut [u8]> {
        match self.outcome {
            Outcome::Packet { len, .. } => Some(&mut self.bytes[HEADER_LEN..HEADER_LEN + len]),
            _ => None,
        }
    }
}

/// The result of opening a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// [`DataPath::open`] has not seen it.
    Unopened,
    /// A packet of `peer` from an address that is the peer's. It lies at [`HEADER_LEN`] of the datagram, without padding.
    Packet {
        #[allow(missing_docs)]
        peer: PeerId,
        #[allow(missing_docs)]
        len: usize,
    },
    /// An authenticated message without a packet.
    Keepalive,
    /// A message for [`Device::receive`](super::Device::receive).
    Handshake,
    #[allow(missing_docs)]
    Dropped(DropCause),
}

/// The state that packets need. It is shared by all threads, and made by [`Device::new`](super::Device::new).
pub struct DataPath {
    routes: ArcSwap<Routes>,
    pub(super) sessions: Sessions,
    pub(super) notices: Arc<Notices>,
    drops: Drops,
    /// To senders of packets that are no peer's.
    messages: Mutex<Rate>,
}

impl DataPath {
    pub(super) fn new() -> Self {
        Self {
            routes: ArcSwap::default(),
            sessions: Sessions::new(),
            notices: Arc::default(),
            drops: Drops::default(),
            messages: Mutex::new(Rate::new(MESSAGES_PER_S, MESSAGE_BURST)),
        }
    }

    /// The routes of this moment, for a batch. Holding them for long keeps removed peers in memory.
    pub fn routes(&self) -> Guard<Arc<Routes>> {
        self.routes.load()
    }

    pub(super) fn set_routes(&self, routes: Routes) {
        self.routes.store(Arc::new(routes));
    }

    /// Counts of drops, with those of removed peers.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Counts what was dropped, for its peer too where that is known.
    pub fn count_drops(&self, peer: Option<&Link>, cause: DropCause, count: usize) {
        self.drops.add(cause, count);
        if let Some(link) = peer {
            link.drops.add(cause, count);
        }
    }

    /// Whether a peer wrote from or to another address since the last call.
    pub fn take_roamed(&self) -> bool {
        self.notices.take_roamed()
    }

    /// Whether the sender of a packet that is no peer's may be sent a message now.
    pub fn may_send_message(&self, now: Ns) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).take(now)
    }

    /// Opens a batch of datagrams in place, and returns whether [`Device::attend`](super::Device::attend) is to be called.
    ///
    /// Neighbours of one session and one source, which a batch with GRO mostly consists of, share the look-ups and the lock of
    /// the replay window.
    pub fn open(&self, now: Ns, batch: &mut [Datagram<'_>]) -> bool {
        let routes = self.routes();
        let mut attend = false;
        let mut rest = batch;
        while !rest.is_empty() {
            let (kind, index) = (Kind::of(rest[0].bytes), u32_at(rest[0].bytes, 4));
            if kind != Some(Kind::Data) {
                rest[0].outcome = kind.map_or(Outcome::Dropped(DropCause::NotWireguard), |_| Outcome::Handshake);
                self.count_dropped(None, &rest[..1]);
                rest = &mut rest[1..];
                continue;
            }
            let same = |datagram: &&Datagram<'_>| {
                datagram.from == rest[0].from && Kind::of(datagram.bytes) == kind && u32_at(datagram.bytes, 4) == index
            };
            let count = rest.iter().take_while(same).count();
            let (run, others) = rest.split_at_mut(count);
            attend |= self.open_run(now, &routes, index.unwrap_or_default(), run);
            rest = others;
        }
        attend
    }

    /// Counts those datagrams that were dropped.
    fn count_dropped(&self, peer: Option<&Link>, datagrams: &[Datagram<'_>]) {
        for datagram in datagrams {
            if let Outcome::Dropped(cause) = datagram.outcome {
                self.count_drops(peer, cause, 1);
            }
        }
    }

    /// Opens data messages of one session from one address.
    fn open_run(&self, now: Ns, routes: &Routes, index: u32, run: &mut [Datagram<'_>]) -> bool {
        let shard = self.sessions.load(index);
        let known = shard.get(&index);
        let entry = match known.filter(|entry| !entry.session.is_expired(now)) {
            Some(entry) => entry,
            None => {
                let cause = known.map_or(DropCause::UnknownSession, |_| DropCause::ExpiredSession);
                run.iter_mut().for_each(|datagram| datagram.outcome = Outcome::Dropped(cause));
                self.count_dropped(known.map(|entry| &*entry.link), run);
                return false;
            }
        };
        decrypt(&entry.session, run);
        let newest = accept(&entry.session, run);
        let (mut packets, mut bytes, mut has_data) = (0, 0, false);
        for datagram in run.iter_mut().filter(|datagram| !matches!(datagram.outcome, Outcome::Dropped(_))) {
            packets += 1;
            bytes += datagram.bytes.len() as u64;
            datagram.outcome = inspect(datagram.bytes, entry.link.id(), routes);
            has_data |= datagram.outcome != Outcome::Keepalive;
        }
        self.count_dropped(Some(&entry.link), run);
        if packets == 0 {
            return false;
        }
        // A late packet may have been held back by somebody on the way: only a new one says where the peer is.
        if newest {
            entry.link.roam(run[0].from);
        }
        entry.link.received(now, packets, bytes, has_data);
        entry.link.received_in(now, &entry.session, &self.sessions)
    }
}

fn counter(datagram: &[u8]) -> u64 {
    u64_at(datagram, 8).expect("a data message has a header")
}

/// Decrypts all and drops what is forged.
fn decrypt(session: &Session, run: &mut [Datagram<'_>]) {
    let key = session.opener();
    for datagram in run {
        let counter = counter(datagram.bytes);
        datagram.outcome = if counter >= REJECT_AFTER_MESSAGES {
            Outcome::Dropped(DropCause::ExpiredSession)
        } else if crypto::open(&key, counter, &[], &mut datagram.bytes[HEADER_LEN..]).is_err() {
            Outcome::Dropped(DropCause::Forged)
        } else {
            Outcome::Keepalive
        };
    }
}

/// Drops replayed messages, and returns whether one was newer than all before it.
fn accept(session: &Session, run: &mut [Datagram<'_>]) -> bool {
    let mut newest = false;
    let mut window = session.window();
    for datagram in run.iter_mut().filter(|datagram| datagram.outcome == Outcome::Keepalive) {
        match window.accept(counter(datagram.bytes)) {
            Freshness::Newest => newest = true,
            Freshness::Late => {}
            Freshness::Refused => datagram.outcome = Outcome::Dropped(DropCause::Replayed),
        }
    }
    newest
}

/// Inspects the contents of an authenticated message.
fn inspect(message: &[u8], peer: PeerId, routes: &Routes) -> Outcome {
    let padded = &message[HEADER_LEN..message.len() - (DATA_OVERHEAD - HEADER_LEN)];
    if padded.is_empty() {
        return Outcome::Keepalive;
    }
    let Some((source, len)) = source(padded).zip(packet_len(padded)) else {
        return Outcome::Dropped(DropCause::NotIp);
    };
    match routes.get(source) {
        Some(link) if link.id() == peer => Outcome::Packet { peer, len },
        _ => Outcome::Dropped(DropCause::WrongSource),
    }
}

/// The length in the header of an IP packet, if that many bytes are there.
pub(super) fn packet_len(packet: &[u8]) -> Option<usize> {
    let number = |at: usize| packet.get(at..at + 2).map(|bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]));
    let len = match packet.first()? >> 4 {
        4 => number(2).filter(|len| *len >= 20)?,
        6 => number(4)? + 40,
        _ => return None,
    };
    (len <= packet.len()).then_some(len)
}

/// The source address of an IP packet.
pub fn source(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 12, 8)
}

/// The destination address of an IP packet, by which its peer is found.
pub fn destination(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 16, 24)
}

/// The source port and the destination of a UDP datagram that is no fragment.
pub fn udp_ports(packet: &[u8]) -> Option<(u16, SocketAddr)> {
    const UDP: u8 = 17;
    let at = match packet.first()? >> 4 {
        4 if packet.len() >= 20 && packet[9] == UDP && packet[6] & 0x1f == 0 && packet[7] == 0 => {
            usize::from(packet[0] & 15) * 4
        }
        6 if packet.len() >= 40 && packet[6] == UDP => 40,
        _ => return None,
    };
    let port = |at: usize| packet.get(at..at + 2).map(|bytes| u16::from_be_bytes(*field(bytes, 0)));
    Some((port(at)?, SocketAddr::new(destination(packet)?, port(at + 2)?)))
}

fn address(packet: &[u8], v4_at: usize, v6_at: usize) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => Some(Ipv4Addr::from(*field::<4>(packet, v4_at)).into()),
        6 if packet.len() >= 40 => Some(Ipv6Addr::from(*field::<16>(packet, v6_at)).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ports_are_those_of_udp_only() {
        let mut v4 = [0; 28];
        v4[0] = 0x45;
        v4[9] = 17;
        v4[16..20].copy_from_slice(&[192, 0, 2, 1]);
        v4[20..24].copy_from_slice(&[0, 7, 0, 9]);
        assert_eq!(udp_ports(&v4), Some((7, "192.0.2.1:9".parse().expect("an address"))));
        let changed = |at: usize, to: u8| {
            let mut other = v4;
            other[at] = to;
            udp_ports(&other)
        };
        assert_eq!(changed(9, 6), None, "TCP");
        assert_eq!(changed(7, 1), None, "a later fragment");
        assert_eq!(udp_ports(&v4[..23]), None);
        let mut v6 = [0; 48];
        v6[0] = 0x60;
        v6[6] = 17;
        v6[39] = 1;
        v6[40..44].copy_from_slice(&[1, 0, 2, 0]);
        assert_eq!(udp_ports(&v6), Some((256, "[::1]:512".parse().expect("an address"))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = udp_ports(&bytes);
        }
    }
}
