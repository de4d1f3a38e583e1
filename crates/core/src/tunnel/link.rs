//! The state of one peer that its packets read and write: sessions, address, traffic and the times that timers depend on.
//!
//! Threads that move packets share it with the [`Device`](super::Device). It has two locks: that of the sessions, which is taken
//! when they change, and that of the path, which is taken for some nanoseconds for each frame that is sent.
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

use super::drops::Drops;
use super::keys::PublicKey;
use super::path::Path;
use super::peer_id::PeerId;
use super::session::{Keypairs, Session};
use super::{KEEPALIVE_TIMEOUT, Ns};

/// The source of a peer's datagrams, and the addresses with which answers are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The peer's address. An IPv4-mapped address is written as the IPv4 address.
    pub remote: SocketAddr,
    /// The address of this host that the peer wrote to; answers come from it.
    pub local: Option<IpAddr>,
    /// The number of the interface that the datagram came in by; 0 if it is unknown.
    pub interface: u32,
}

impl Endpoint {
    /// Whether datagrams may go on leaving from `local`. `leaves_by` is the interface by which the routes send them from there, or `None`
    /// if no route does. Where the peer's datagrams came in by another one, the host has moved to another network, and the first one may
    /// lead nowhere. The kernel has the same rule (`send4()`, drivers/net/wireguard/socket.c).
    pub fn local_holds(&self, leaves_by: Option<u32>) -> bool {
        self.local.is_none() || leaves_by.is_some_and(|by| self.interface == 0 || by == self.interface)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(remote: SocketAddr) -> Self {
        Self { remote, local: None, interface: 0 }
    }
}

/// Why packets for a peer cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no session. The caller keeps the newest [`QUEUED_PACKETS_MAX`](super::QUEUED_PACKETS_MAX) packets and calls
    /// [`Device::attend`](super::Device::attend) if `attend` is set, which is the first time.
    NoSession {
        #[allow(missing_docs)]
        attend: bool,
    },
    /// The address of the peer is unknown: the packets are dropped, and their sender is told that the host is unreachable.
    NoEndpoint,
}

/// Counts of traffic with a peer. Bytes are those of datagrams, handshakes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Traffic {
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Data messages, keepalives included.
    pub received_packets: u64,
    pub sent_packets: u64,
    /// Runs of data messages that were opened, or sealed, together.
    pub received_batches: u64,
    pub sent_batches: u64,
}

/// Peers for which packets have asked for something that only the device can do.
#[derive(Default)]
pub(super) struct Notices {
    peers: Mutex<Vec<PeerId>>,
    any: AtomicBool,
    roamed: AtomicBool,
}

impl Notices {
    /// Whether a peer wrote from or to another address since the last call.
    pub(super) fn take_roamed(&self) -> bool {
        // Reads first: a store would take the cache line from other threads.
        self.roamed.load(Relaxed) && self.roamed.swap(false, Relaxed)
    }

    fn push(&self, peer: PeerId) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
        self.any.store(true, Relaxed);
    }

    /// Takes all notices, into a vector that the caller uses again.
    pub(super) fn take(&self, into: &mut Vec<PeerId>) {
        into.clear();
        if self.any.swap(false, Relaxed) {
            std::mem::swap(into, &mut *self.peers.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// The time of an event, if there is one; 0 is none.
#[derive(Default)]
struct Moment(AtomicU64);

impl Moment {
    fn get(&self) -> Option<Ns> {
        Some(self.0.load(Relaxed)).filter(|at| *at != 0)
    }

    fn set(&self, now: Ns) {
        self.0.store(now.max(1), Relaxed);
    }

    fn set_if_none(&self, now: Ns) {
        if self.get().is_none() {
            let _ = self.0.compare_exchange(0, now.max(1), Relaxed, Relaxed);
        }
    }

    /// Reads first: a store would take the cache line from other threads.
    fn clear(&self) {
        if self.get().is_some() {
            self.0.store(0, Relaxed);
        }
    }
}

/// The state of one peer that packets touch.
pub struct Link {
    id: PeerId,
    public_key: PublicKey,
    /// The current session, where it may send.
    sending: ArcSwapOption<Session>,
    endpoint: ArcSwapOption<Endpoint>,
    /// Answers to this endpoint do not leave from its local address.
    given_up: ArcSwapOption<Endpoint>,
    path: Mutex<Path>,
    keypairs: Mutex<Keypairs>,
    notices: Arc<Notices>,
    /// A handshake was asked for and has not ended.
    handshake_asked: AtomicBool,
    /// The caller keeps packets for it.
    waiting: AtomicBool,
    /// The session that this host responded with has been confirmed.
    was_confirmed: AtomicBool,
    received_bytes: AtomicU64,
    received_packets: AtomicU64,
    sent_bytes: AtomicU64,
    sent_packets: AtomicU64,
    received_batches: AtomicU64,
    sent_batches: AtomicU64,
    /// Counts of the peer's dropped packets.
    pub(super) drops: Drops,
    /// The first data sent since something was received.
    unanswered_since: Moment,
    /// The first data received since something was sent.
    owed_since: Moment,
    /// More data was received after it.
    owed_more: AtomicBool,
    /// The last packet in either direction.
    active: Moment,
    /// In nanoseconds; 0 for none.
    persistent_keepalive: AtomicU64,
}

impl Link {
    pub(super) fn new(id: PeerId, public_key: PublicKey, notices: Arc<Notices>) -> Self {
        Self {
            id,
            public_key,
            sending: ArcSwapOption::empty(),
            endpoint: ArcSwapOption::empty(),
            given_up: ArcSwapOption::empty(),
            path: Mutex::default(),
            keypairs: Mutex::default(),
            notices,
            handshake_asked: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            was_confirmed: AtomicBool::new(false),
            received_bytes: AtomicU64::new(0),
            received_packets: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            sent_packets: AtomicU64::new(0),
            received_batches: AtomicU64::new(0),
            sent_batches: AtomicU64::new(0),
            drops: Drops::default(),
            unanswered_since: Moment::default(),
            owed_since: Moment::default(),
            owed_more: AtomicBool::new(false),
            active: Moment::default(),
            persistent_keepalive: AtomicU64::new(0),
        }
    }

    #[allow(missing_docs)]
    pub fn id(&self) -> PeerId {
        self.id
    }

    #[allow(missing_docs)]
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// The address to which the peer's datagrams are sent.
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.endpoint.load().as_deref().copied()
    }

    /// Whether the caller keeps packets for it, behind which others have to wait.
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Acquire)
    }

    #[allow(missing_docs)]
    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Release);
    }

    /// The path to the peer. The guard is held for a call, not for a batch.
    pub fn path(&self) -> MutexGuard<'_, Path> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[allow(missing_docs)]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            received_packets: self.received_packets.load(Relaxed),
            sent_packets: self.sent_packets.load(Relaxed),
            received_batches: self.received_batches.load(Relaxed),
            sent_batches: self.sent_batches.load(Relaxed),
        }
    }

    /// Counts of the peer's dropped packets.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    pub(super) fn has_endpoint(&self) -> bool {
        self.endpoint.load().is_some()
    }

    /// The session to send in.
    pub(super) fn sending_session(&self, now: Ns) -> Option<Arc<Session>> {
        self.sending.load().as_ref().filter(|session| !session.is_expired(now)).map(Arc::clone)
    }

    /// Leaves a notice that a handshake is due. Returns whether it is the first one since the last handshake.
    pub(super) fn ask_for_handshake(&self) -> bool {
        let first = !self.handshake_asked.load(Relaxed) && !self.handshake_asked.swap(true, Relaxed);
        if first {
            self.notices.push(self.id);
        }
        first
    }

    /// Whether a handshake has been asked for.
    pub(super) fn handshake_is_asked_for(&self) -> bool {
        self.handshake_asked.load(Relaxed)
    }

    /// The handshake has ended, or does not begin: packets may ask again.
    pub(super) fn end_handshake(&self) {
        self.handshake_asked.store(false, Relaxed);
    }

    /// A session of which this host is the responder is confirmed: the device is to be called.
    pub(super) fn notice_confirmed(&self) {
        self.was_confirmed.store(true, Relaxed);
        self.notices.push(self.id);
    }

    pub(super) fn send_in(&self, session: Option<Arc<Session>>) {
        self.sending.store(session);
    }

    /// Whether a session of which this host is the responder was confirmed since the last call.
    pub(super) fn take_confirmed(&self) -> bool {
        self.was_confirmed.swap(false, Relaxed)
    }

    /// Datagrams are sent from whichever address the route chooses, until the peer writes to one again.
    pub fn forget_local_address(&self) {
        let seen = self.endpoint.load();
        if let Some(Endpoint { remote, local: Some(_), .. }) = seen.as_deref() {
            // A datagram may have come from elsewhere meanwhile.
            self.endpoint.compare_and_swap(&seen, Some(Arc::new(Endpoint::from(*remote))));
        }
    }

    /// Answers to an endpoint leave from whichever address the route chooses, also while the peer, which does not know of that yet,
    /// writes to the old one.
    pub fn give_up_local_address(&self, of: Endpoint) {
        self.given_up.store(Some(Arc::new(of)));
        if self.endpoint() == Some(of) {
            self.forget_local_address();
        }
    }

    /// The endpoint whose local address was given up last.
    pub fn given_up(&self) -> Option<Endpoint> {
        self.given_up.load().as_deref().copied()
    }

    /// Answers leave from the address that was given up, as soon as the peer writes to it.
    pub fn take_back_local_address(&self) {
        self.given_up.store(None);
    }

    pub(super) fn set_endpoint(&self, endpoint: Option<Endpoint>) {
        self.endpoint.store(endpoint.map(Arc::new));
    }

    /// Sends to where an authenticated message came from.
    pub(super) fn roam(&self, from: &Endpoint) {
        if self.endpoint.load().as_deref() == Some(from) {
            return;
        }
        let given_up = self.given_up.load().as_deref() == Some(from);
        let to = if given_up { Endpoint::from(from.remote) } else { *from };
        if self.endpoint() != Some(to) {
            self.set_endpoint(Some(to));
            self.notices.roamed.store(true, Relaxed);
        }
    }

    /// Counts a batch of data messages that was sent. Those of handshakes are counted as no packets.
    pub(super) fn sent(&self, now: Ns, packets: u64, bytes: u64, has_data: bool) {
        self.sent_packets.fetch_add(packets, Relaxed);
        self.sent_batches.fetch_add(packets.min(1), Relaxed);
        self.sent_bytes.fetch_add(bytes, Relaxed);
        self.owed_since.clear();
        self.mark_active(now);
        if has_data {
            self.unanswered_since.set_if_none(now);
        }
    }

    /// Counts a batch of authenticated messages that was received.
    pub(super) fn received(&self, now: Ns, packets: u64, bytes: u64, has_data: bool) {
        self.received_packets.fetch_add(packets, Relaxed);
        self.received_batches.fetch_add(packets.min(1), Relaxed);
        self.received_bytes.fetch_add(bytes, Relaxed);
        self.unanswered_since.clear();
        self.mark_active(now);
        if has_data {
            match self.owed_since.get() {
                None => self.owed_since.set_if_none(now),
                Some(_) if self.owed_more.load(Relaxed) => {}
                Some(_) => self.owed_more.store(true, Relaxed),
            }
        }
    }

    fn mark_active(&self, now: Ns) {
        if self.persistent_keepalive.load(Relaxed) != 0 {
            self.active.set(now);
        }
    }

    pub(super) fn keypairs(&self) -> MutexGuard<'_, Keypairs> {
        self.keypairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When a session will be too old.
    pub(super) fn next_expiry(&self) -> Option<Ns> {
        self.keypairs().iter().map(|session| session.expires()).min()
    }

    /// When the data that was sent first stayed without an answer.
    pub(super) fn unanswered_since(&self) -> Option<Ns> {
        self.unanswered_since.get()
    }

    pub(super) fn clear_unanswered(&self) {
        self.unanswered_since.clear();
    }

    /// When a keepalive is due because data was received and nothing was sent.
    pub(super) fn keepalive_due(&self) -> Option<Ns> {
        self.owed_since.get().map(|since| since.saturating_add(KEEPALIVE_TIMEOUT))
    }

    /// A keepalive is sent now. If more data came meanwhile, another one is due after the same time.
    pub(super) fn take_keepalive(&self, now: Ns) {
        self.owed_since.clear();
        if self.owed_more.swap(false, Relaxed) {
            self.owed_since.set(now);
        }
    }

    /// When the next persistent keepalive is due, if they are on.
    pub(super) fn persistent_keepalive_due(&self) -> Option<Ns> {
        let interval = self.persistent_keepalive.load(Relaxed);
        (interval != 0).then(|| self.active.get().map_or(0, |active| active.saturating_add(interval)))
    }

    /// Sets the interval; 0 turns persistent keepalives off. The first one is due at once.
    pub(super) fn set_persistent_keepalive(&self, interval: Ns) {
        self.active.clear();
        self.persistent_keepalive.store(interval, Relaxed);
    }

    /// A persistent keepalive is sent now, or cannot be sent.
    pub(super) fn take_persistent_keepalive(&self, now: Ns) {
        self.active.set(now);
    }

    #[cfg(test)]
    pub(super) fn current(&self) -> Option<Arc<Session>> {
        self.keypairs().current.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_address_holds_while_the_route_leads_out_where_datagrams_came_in() {
        let endpoint = |local: Option<&str>, interface| Endpoint {
            remote: "192.0.2.1:1".parse().expect("an address"),
            local: local.map(|ip| ip.parse().expect("an address")),
            interface,
        };
        assert!(endpoint(Some("10.0.0.1"), 3).local_holds(Some(3)));
        assert!(!endpoint(Some("10.0.0.1"), 3).local_holds(Some(4)), "another network");
        assert!(!endpoint(Some("10.0.0.1"), 3).local_holds(None), "no route, or no address of this host any more");
        assert!(endpoint(Some("10.0.0.1"), 0).local_holds(Some(4)), "it is not known where they came in");
        assert!(endpoint(None, 3).local_holds(Some(4)), "the route chooses already");
    }

    #[test]
    fn a_peer_that_still_writes_to_an_address_that_was_given_up_does_not_bring_it_back() {
        let link = Link::new(PeerId(1), PublicKey([1; 32]), Arc::default());
        let remote: SocketAddr = "192.0.2.1:1".parse().expect("an address");
        let [old, new] = [("10.0.0.1", 3), ("10.1.0.1", 4)].map(|(local, interface)| Endpoint {
            remote,
            local: local.parse().ok(),
            interface,
        });
        link.roam(&old);
        assert!(link.notices.take_roamed() && !link.notices.take_roamed());
        link.give_up_local_address(old);
        for written_to in [old, old, new, old] {
            link.roam(&written_to);
            let expected = if written_to == new { new } else { Endpoint::from(remote) };
            assert_eq!(link.endpoint(), Some(expected));
        }
        link.take_back_local_address();
        link.roam(&old);
        assert_eq!(link.endpoint(), Some(old));
    }
}
