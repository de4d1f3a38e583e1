//! The device: keys, peers, handshakes and timers. One thread owns it.
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use super::cookie::Checker;
use super::crypto::Forged;
use super::data_path::{DataPath, Routes};
use super::drops::DropCause;
use super::keys::{PrivateKey, PublicKey};
use super::link::{Endpoint, Link};
use super::load::{Load, Rate, Sources};
use super::message::{INITIATION_LEN, Kind};
use super::noise;
use super::output::{Event, Lookup, Output};
use super::peer::{Common, Peer, receiver_of, sized};
use super::peer_id::PeerId;
use super::{Ns, Random, SECOND, Time};

/// Limits of the work of a device, so that a flood of handshakes leaves the CPU to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Initiations a second that are worked on without a cookie; with 0, all need one. Forged responses have the same limit, but
    /// are counted on their own: a flood of initiations does not delay the handshakes that this host begins.
    pub initiations_per_s: u32,
    /// How many of them may come at once.
    pub initiation_burst: u32,
    /// Cookies a second that are sent. It keeps the cost of a flood from forged addresses within bounds.
    pub cookie_replies_per_s: u32,
}

impl Default for Limits {
    /// An initiation or a response costs about 0.2 ms of CPU and a cookie reply some microseconds: 5 % of a core each at these
    /// rates.
    fn default() -> Self {
        Self { initiations_per_s: 256, initiation_burst: 512, cookie_replies_per_s: 10_000 }
    }
}

/// Peers with persistent keepalives wait this long until it is looked again whether the interface is up.
const DOWN_STEP: Ns = SECOND;

/// An interface of WireGuard: this host's key, its peers and their handshakes.
///
/// The caller passes handshake messages to [`Device::receive`], calls [`Device::attend`] when the [`DataPath`] asks for it, and
/// [`Device::tick`] at the [`Device::deadline`], which any of these calls may change.
pub struct Device {
    pub(super) common: Common,
    pub(super) private_key: Option<PrivateKey>,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    pub(super) ids: HashMap<PublicKey, PeerId>,
    pub(super) routes: Routes,
    /// Since the packets' copy of them was made.
    pub(super) routes_changed: bool,
    pub(super) listen_port: u16,
    pub(super) fwmark: u32,
    pub(super) checker: Option<Checker>,
    last_id: u64,
    is_up: bool,
    /// Of initiations.
    load: Load,
    /// Of forged responses.
    forged_responses: Load,
    sources: Sources,
    cookie_replies: Rate,
    /// Used again by [`Device::attend`].
    noticed: Vec<PeerId>,
    /// When the next tick is due.
    pub(super) deadline: Option<Ns>,
}

impl Device {
    /// A device without key and peers; [`Device::configure`] gives it both.
    pub fn new(limits: Limits, random: Box<dyn Random>) -> Self {
        let Limits { initiations_per_s, initiation_burst, cookie_replies_per_s } = limits;
        Self {
            common: Common::new(random),
            private_key: None,
            peers: BTreeMap::new(),
            ids: HashMap::new(),
            routes: Routes::default(),
            routes_changed: false,
            listen_port: 0,
            fwmark: 0,
            checker: None,
            last_id: 0,
            is_up: true,
            load: Load::new(Rate::new(initiations_per_s, initiation_burst)),
            forged_responses: Load::new(Rate::new(initiations_per_s, initiation_burst)),
            sources: Sources::new(),
            cookie_replies: Rate::new(cookie_replies_per_s, cookie_replies_per_s / 10),
            noticed: Vec::new(),
            deadline: None,
        }
    }

    /// The data path that threads share.
    pub fn data_path(&self) -> Arc<DataPath> {
        Arc::clone(&self.common.path)
    }

    /// The shared state of a peer.
    pub fn link(&self, peer: PeerId) -> Option<&Arc<Link>> {
        self.peers.get(&peer).map(|peer| &peer.link)
    }

    pub(super) fn next_id(&mut self) -> PeerId {
        self.last_id += 1;
        PeerId(self.last_id)
    }

    /// Works on a datagram that [`DataPath::open`] found to be a handshake message. The cause for which it is dropped is
    /// counted and returned.
    pub fn receive(&mut self, time: Time, message: &[u8], from: &Endpoint, out: &mut Output) -> Result<(), DropCause> {
        let done = match Kind::of(message) {
            _ if !self.is_up => Err(DropCause::InterfaceDown),
            Some(Kind::Initiation) => self.receive_initiation(time, sized(message), from, out),
            Some(Kind::Response) => self.receive_response(time, message, from, out),
            Some(Kind::CookieReply) => self.receive_cookie(time.now, message),
            Some(Kind::Data) | None => Err(DropCause::NotWireguard),
        };
        match done {
            Ok(id) => self.hasten(time.now, id),
            Err(cause) => self.common.path.count_drops(None, cause, 1),
        }
        done.map(drop)
    }

    fn receive_initiation(
        &mut self,
        time: Time,
        message: &[u8; INITIATION_LEN],
        from: &Endpoint,
        out: &mut Output,
    ) -> Result<PeerId, DropCause> {
        self.check_mac1(message)?;
        self.load.count(time.now);
        if self.load.is_high(time.now) {
            self.ask_for_cookie(time.now, message, from, out)?;
        }
        let identity = self.common.identity.as_ref().ok_or(DropCause::UnknownPeer)?;
        let claimed = noise::read_initiation(identity, message).map_err(|Forged| DropCause::Forged)?;
        let id = *self.ids.get(&claimed.public).ok_or(DropCause::UnknownPeer)?;
        let peer = self.peers.get_mut(&id).expect("every id is a peer's");
        let verified = claimed.verify(identity, &peer.remote).map_err(|Forged| DropCause::Forged)?;
        let done = peer.respond(time, verified, from, &mut self.common, out);
        done.inspect_err(|cause| peer.link.drops.add(*cause, 1)).map(|()| id)
    }

    fn receive_response(
        &mut self,
        time: Time,
        message: &[u8],
        from: &Endpoint,
        out: &mut Output,
    ) -> Result<PeerId, DropCause> {
        let id = *self.common.pending.get(&receiver_of(message, 8)).ok_or(DropCause::UnknownSession)?;
        self.check_mac1(message)?;
        if self.forged_responses.is_high(time.now) {
            self.ask_for_cookie(time.now, message, from, out)?;
        }
        let peer = self.peers.get_mut(&id).expect("a pending handshake has a peer");
        let done = peer.finish(time, sized(message), from, &mut self.common, out);
        if done.is_err() {
            // One that is the peer's ends its handshake, so this host's own initiations limit those.
            self.forged_responses.count(time.now);
        }
        done.inspect_err(|cause| peer.link.drops.add(*cause, 1)).map(|()| id)
    }

    /// Drops a message whose sender does not know this host's public key.
    fn check_mac1(&self, message: &[u8]) -> Result<(), DropCause> {
        let checker = self.checker.as_ref().ok_or(DropCause::UnknownPeer)?;
        if checker.mac1_holds(message) { Ok(()) } else { Err(DropCause::Forged) }
    }

    /// Drops an initiation or a response that has no cookie, and sends one; and one whose source has sent too many.
    fn ask_for_cookie(&mut self, now: Ns, message: &[u8], from: &Endpoint, out: &mut Output) -> Result<(), DropCause> {
        let checker = self.checker.as_mut().ok_or(DropCause::UnknownPeer)?;
        if !checker.mac2_holds(now, message, from.remote) {
            if self.cookie_replies.take(now) {
                let sender = receiver_of(message, 4);
                out.send(*from, &checker.reply(now, message, sender, from.remote, &mut *self.common.random));
            }
            return Err(DropCause::NoCookie);
        }
        if self.sources.take(now, from.remote) { Ok(()) } else { Err(DropCause::RateLimited) }
    }

    /// The address that a cookie comes from is not used: cookie replies are not authenticated by their sender's key.
    fn receive_cookie(&mut self, now: Ns, message: &[u8]) -> Result<PeerId, DropCause> {
        let index = receiver_of(message, 4);
        let responded = || Some(self.common.path.sessions.load(index).get(&index)?.session.peer);
        let id = self.common.pending.get(&index).copied().or_else(responded).ok_or(DropCause::UnknownSession)?;
        let peer = self.peers.get_mut(&id).ok_or(DropCause::UnknownSession)?;
        peer.take_cookie(now, message).map(|()| id)
    }

    /// Says whether the interface is up, as it is at first. One that goes down forgets its sessions and handshakes, as `wg_stop()`
    /// does (drivers/net/wireguard/device.c); until it is up again, handshakes are not answered and nothing is sent.
    pub fn set_up(&mut self, up: bool, out: &mut Output) {
        if std::mem::replace(&mut self.is_up, up) == up {
            return;
        }
        if up {
            self.deadline = Some(0);
            return;
        }
        for (id, peer) in &mut self.peers {
            peer.reset(&mut self.common);
            out.events.push(Event::Discard(*id));
        }
    }

    /// Does what packets have asked for: handshakes that are due, sessions that they have confirmed.
    pub fn attend(&mut self, time: Time, out: &mut Output) {
        let mut noticed = std::mem::take(&mut self.noticed);
        self.common.path.notices.take(&mut noticed);
        for id in &noticed {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            if self.is_up {
                peer.attend(time, &mut self.common, out);
                self.hasten(time.now, *id);
            } else {
                peer.reset(&mut self.common);
            }
        }
        self.noticed = noticed;
    }

    /// Does what is due by time.
    pub fn tick(&mut self, time: Time, out: &mut Output) {
        self.attend(time, out);
        if !self.is_up {
            let keeps_alive = self.peers.values().any(|peer| peer.persistent_keepalive_s != 0);
            self.deadline = keeps_alive.then(|| time.now.saturating_add(DOWN_STEP));
            return;
        }
        let common = &mut self.common;
        self.deadline = None;
        for peer in self.peers.values_mut() {
            peer.tick(time, common, out);
            self.deadline = self.deadline.into_iter().chain(peer.deadline(time.now)).min();
        }
        // Keepalives without a session and data without an answer ask for handshakes, which have deadlines of their own.
        self.attend(time, out);
    }

    /// Takes the addresses that were found for a name, none if it was not found. A peer that answers meanwhile keeps its address.
    pub fn resolved(&mut self, now: Ns, lookup: &Lookup, addresses: &[SocketAddr], out: &mut Output) {
        let Some(peer) = self.peers.get_mut(&lookup.peer) else { return };
        peer.resolved(now, &lookup.name, addresses, out);
        self.hasten(now, lookup.peer);
    }

    /// When the next [`Device::tick`] is due; `None` if only packets, messages and changes of the configuration can make
    /// something due. The caller looks whether the interface is up before it calls it, which peers with persistent keepalives wait
    /// for while it is down.
    pub fn deadline(&self) -> Option<Ns> {
        self.deadline
    }

    /// Something has happened to a peer: its next tick may be due earlier.
    fn hasten(&mut self, now: Ns, id: PeerId) {
        let due = self.peers.get(&id).and_then(|peer| peer.deadline(now));
        self.deadline = self.deadline.into_iter().chain(due).min();
    }
}
