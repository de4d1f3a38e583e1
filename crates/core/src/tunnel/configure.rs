//! Changes of a device's configuration, and its state: what the configuration protocol sets and gets.
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::SECOND;
use super::cookie::Checker;
use super::device::Device;
use super::drops::DropCause;
use super::host_port::HostPort;
use super::keys::{PresharedKey, PrivateKey, PublicKey};
use super::link::{Link, Traffic};
use super::noise::{Identity, Remote};
use super::output::{Event, Output};
use super::peer::Peer;
use super::peer_id::PeerId;
use crate::sorting::IntoOrdered as _;

/// A change of a device. A part that is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceChange {
    /// An unset key ([`PrivateKey::is_unset`]) removes the key.
    pub private_key: Option<PrivateKey>,
    /// The device keeps it for [`Device::state`]; the caller listens there.
    pub listen_port: Option<u16>,
    /// As `listen_port`: the mark of packets that are sent; 0 for none.
    pub fwmark: Option<u32>,
    /// Removes all peers before `peers` are added.
    pub replace_peers: bool,
    /// Changes of peers, carried out in this order.
    pub peers: Vec<PeerChange>,
}

/// A change of a peer, which is added if it is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerChange {
    #[allow(missing_docs)]
    pub public_key: PublicKey,
    /// Removes the peer.
    pub remove: bool,
    /// Does nothing if the peer is unknown.
    pub update_only: bool,
    /// An unset key ([`PresharedKey::is_unset`]) removes the key.
    pub preshared_key: Option<PresharedKey>,
    /// Unless it is the address that the peer has, it takes the place of a name that was set before.
    pub endpoint: Option<SocketAddr>,
    /// The name from which the address comes. It is looked up while no address is known, and when handshakes go unanswered.
    pub endpoint_name: Option<HostPort>,
    /// In seconds; 0 turns keepalives off.
    pub persistent_keepalive_s: Option<u16>,
    /// Removes all prefixes of the peer before `allowed_ips` are added.
    pub replace_allowed_ips: bool,
    #[allow(missing_docs)]
    pub allowed_ips: Vec<PrefixChange>,
}

/// A change of the addresses of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixChange {
    /// The prefix becomes the peer's; another peer that had it loses it.
    Add(IpNet),
    /// The peer loses the prefix, if it is the peer's.
    Remove(IpNet),
}

impl DeviceChange {
    /// Splits off all but the first `peers` peers: the change that is to be carried out after this one, or `None` if there are no
    /// more. So a long change can be carried out in parts, between which packets pass.
    pub fn split(&mut self, peers: usize) -> Option<Self> {
        let rest = self.peers.split_off(peers.min(self.peers.len()));
        (!rest.is_empty()).then(|| Self { peers: rest, ..Self::default() })
    }
}

impl PeerChange {
    /// A change that adds the peer and changes nothing else.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            preshared_key: None,
            endpoint: None,
            endpoint_name: None,
            persistent_keepalive_s: None,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

/// The configuration and the state of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceState {
    #[allow(missing_docs)]
    pub private_key: Option<PrivateKey>,
    #[allow(missing_docs)]
    pub listen_port: u16,
    /// 0 for none.
    pub fwmark: u32,
    /// In the order in which they were added.
    pub peers: Vec<PeerState>,
}

/// The configuration and the state of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerState {
    #[allow(missing_docs)]
    pub id: PeerId,
    #[allow(missing_docs)]
    pub public_key: PublicKey,
    #[allow(missing_docs)]
    pub preshared_key: PresharedKey,
    /// The address to which its datagrams are sent now.
    pub endpoint: Option<SocketAddr>,
    /// 0 for none.
    pub persistent_keepalive_s: u16,
    /// In the order of their addresses.
    pub allowed_ips: Vec<IpNet>,
    /// When the last handshake ended, since 1970.
    pub last_handshake: Option<Duration>,
    /// Handshakes that ended with a session.
    pub handshakes: u64,
    #[allow(missing_docs)]
    pub traffic: Traffic,
    /// Counts of its dropped packets.
    pub drops: Vec<(DropCause, u64)>,
}

impl Device {
    /// Changes the configuration. A tick is due then: keepalives may begin.
    ///
    /// The time that it takes grows with the peers and prefixes of the change, and a copy of all routes is made if one of them
    /// changes ([`DeviceChange::split`]).
    pub fn configure(&mut self, change: &DeviceChange, out: &mut Output) {
        self.listen_port = change.listen_port.unwrap_or(self.listen_port);
        self.fwmark = change.fwmark.unwrap_or(self.fwmark);
        if let Some(key) = &change.private_key {
            self.set_private_key(key, out);
        }
        if change.replace_peers {
            let all: Vec<PeerId> = self.peers.keys().copied().collect();
            self.remove_peers(&all, out);
        }
        // A peer whose key is this host's would be itself.
        let own = self.common.identity.as_ref().map(|identity| identity.public);
        for peer in change.peers.iter().filter(|peer| Some(peer.public_key) != own) {
            self.change_peer(peer, out);
        }
        if std::mem::take(&mut self.routes_changed) {
            self.common.path.set_routes(self.routes.clone());
        }
        self.deadline = Some(0);
    }

    /// The port that the caller listens on; 0 for one that the kernel chooses.
    pub fn listen_port(&self) -> u16 {
        self.listen_port
    }

    /// The mark of packets that are sent; 0 for none.
    pub fn fwmark(&self) -> u32 {
        self.fwmark
    }

    /// The configuration and the state of all peers.
    pub fn state(&self) -> DeviceState {
        let peers = self.peers.iter().map(|(id, peer)| PeerState {
            id: *id,
            public_key: peer.remote.public,
            preshared_key: peer.remote.preshared.clone(),
            endpoint: peer.link.endpoint().map(|endpoint| endpoint.remote),
            persistent_keepalive_s: peer.persistent_keepalive_s,
            allowed_ips: peer.allowed_ips.iter().copied().collect(),
            last_handshake: peer.last_handshake,
            handshakes: peer.handshakes,
            traffic: peer.link.traffic(),
            drops: peer.link.drops().seen().collect(),
        });
        DeviceState {
            private_key: self.private_key.clone(),
            listen_port: self.listen_port,
            fwmark: self.fwmark,
            peers: peers.collect(),
        }
    }

    fn set_private_key(&mut self, key: &PrivateKey, out: &mut Output) {
        let key = Some(key).filter(|key| !key.is_unset());
        if key == self.private_key.as_ref() {
            return;
        }
        self.private_key = key.cloned();
        self.common.identity = key.map(Identity::new);
        let own = self.common.identity.as_ref().map(|identity| identity.public);
        self.checker = own.as_ref().map(Checker::new);
        if let Some(id) = own.and_then(|own| self.ids.get(&own)).copied() {
            self.remove_peers(&[id], out);
        }
        for peer in self.peers.values_mut() {
            peer.reset(&mut self.common);
            peer.remote.forget_identity();
        }
    }

    fn remove_peers(&mut self, ids: &[PeerId], out: &mut Output) {
        for id in ids {
            let Some(mut peer) = self.peers.remove(id) else { continue };
            peer.reset(&mut self.common);
            self.ids.remove(&peer.remote.public);
            out.events.push(Event::Discard(*id));
            for prefix in peer.allowed_ips {
                self.routes.remove(prefix);
                self.routes_changed = true;
            }
        }
    }

    fn change_peer(&mut self, change: &PeerChange, out: &mut Output) {
        let known = self.ids.get(&change.public_key).copied();
        let id = match known {
            Some(id) if change.remove => return self.remove_peers(&[id], out),
            Some(id) => id,
            None if change.remove || change.update_only => return,
            None => self.add_peer(change.public_key),
        };
        let peer = self.peers.get_mut(&id).expect("every id is a peer's");
        if let Some(key) = &change.preshared_key {
            peer.remote.preshared = key.clone();
        }
        peer.set_endpoint(change.endpoint, change.endpoint_name.as_ref());
        if change.endpoint.is_some() {
            out.events.push(Event::Flush(id));
        }
        if let Some(interval_s) = change.persistent_keepalive_s.filter(|s| *s != peer.persistent_keepalive_s) {
            peer.persistent_keepalive_s = interval_s;
            peer.link.set_persistent_keepalive(u64::from(interval_s) * SECOND);
        }
        self.change_allowed_ips(id, change);
    }

    fn add_peer(&mut self, public_key: PublicKey) -> PeerId {
        let id = self.next_id();
        let notices = std::sync::Arc::clone(&self.common.path.notices);
        let remote = Remote::new(public_key, PresharedKey::default());
        self.peers.insert(id, Peer::new(Link::new(id, public_key, notices), remote));
        self.ids.insert(public_key, id);
        id
    }

    /// Prefixes that stay are not touched: `wg syncconf` replaces the prefixes of all peers, mostly by the same ones.
    fn change_allowed_ips(&mut self, id: PeerId, change: &PeerChange) {
        if change.replace_allowed_ips {
            let added = |prefix: &PrefixChange| {
                if let PrefixChange::Add(prefix) = prefix { Some(prefix.trunc()) } else { None }
            };
            let kept: BTreeSet<IpNet> = change.allowed_ips.iter().filter_map(added).into_set();
            let lost: Vec<IpNet> = self.peers[&id].allowed_ips.difference(&kept).copied().collect();
            lost.into_iter().for_each(|prefix| self.remove_prefix(id, prefix));
        }
        for prefix in &change.allowed_ips {
            match prefix {
                PrefixChange::Add(prefix) => self.add_prefix(id, prefix.trunc()),
                PrefixChange::Remove(prefix) => self.remove_prefix(id, prefix.trunc()),
            }
        }
    }

    fn add_prefix(&mut self, id: PeerId, prefix: IpNet) {
        let peer = self.peers.get_mut(&id).expect("the caller has found it");
        if !peer.allowed_ips.insert(prefix) {
            return;
        }
        let before = self.routes.insert(prefix, peer.link.clone());
        if let Some(loser) = before.and_then(|link| self.peers.get_mut(&link.id())) {
            loser.allowed_ips.remove(&prefix);
        }
        self.routes_changed = true;
    }

    /// Removes a prefix if it is the peer's.
    fn remove_prefix(&mut self, id: PeerId, prefix: IpNet) {
        if self.peers.get_mut(&id).is_some_and(|peer| peer.allowed_ips.remove(&prefix)) {
            self.routes.remove(prefix);
            self.routes_changed = true;
        }
    }
}
