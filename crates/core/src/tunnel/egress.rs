//! Decides which addresses of this host datagrams to peers stop leaving from when routes change.
use std::collections::HashMap;

use super::{Endpoint, PeerId};

/// The interfaces by which the routes lead from the addresses that peers write to.
///
/// A host with several uplinks may get datagrams by one and send its answers by another all the time: the peer, or a router with NAT before
/// it, takes answers only from the address that was written to. Where that is so since a change of the routes, the host has moved to
/// another network, and its old address may lead nowhere.
#[derive(Debug, Default)]
pub struct EgressInterfaces {
    known: HashMap<PeerId, Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    endpoint: Endpoint,
    leaves_by: Option<u32>,
    /// It was another one at first.
    moved: bool,
}

impl EgressInterfaces {
    /// Whether datagrams to a peer may go on leaving from the address of this endpoint. `leaves_by` is that of [`Endpoint::local_holds`].
    pub fn hold(&mut self, peer: PeerId, endpoint: Endpoint, leaves_by: Option<u32>) -> bool {
        let before = self.known.get(&peer).filter(|known| known.endpoint == endpoint);
        let moved = before.is_some_and(|known| known.moved || known.leaves_by != leaves_by);
        self.known.insert(peer, Known { endpoint, leaves_by, moved });
        endpoint.local_holds(leaves_by) || leaves_by.is_some() && !moved
    }

    /// Forgets peers that are configured no more.
    pub fn retain(&mut self, is_peer: impl Fn(PeerId) -> bool) {
        self.known.retain(|peer, _| is_peer(*peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(1);

    fn endpoint() -> Endpoint {
        Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: "10.0.0.1".parse().ok(), interface: 3 }
    }

    #[test]
    fn an_address_is_given_up_when_its_interface_becomes_another() {
        let mut interfaces = EgressInterfaces::default();
        assert!(interfaces.hold(PEER, endpoint(), Some(3)));
        assert!(interfaces.hold(PEER, endpoint(), Some(3)), "another route than this peer's");
        assert!(!interfaces.hold(PEER, endpoint(), Some(4)));
        assert!(!interfaces.hold(PEER, endpoint(), Some(4)), "it stays so");
        assert!(interfaces.hold(PEER, endpoint(), Some(3)), "the route is back");
        assert!(!interfaces.hold(PEER, endpoint(), None), "no route, or no such address");
    }

    #[test]
    fn answers_that_always_left_by_another_interface_go_on_doing_so() {
        let mut interfaces = EgressInterfaces::default();
        assert!(interfaces.hold(PEER, endpoint(), Some(4)));
        assert!(interfaces.hold(PEER, endpoint(), Some(4)));
        assert!(!interfaces.hold(PEER, endpoint(), Some(5)));
    }

    #[test]
    fn removed_peers_are_forgotten() {
        let mut interfaces = EgressInterfaces::default();
        assert!(interfaces.hold(PEER, endpoint(), Some(4)));
        interfaces.retain(|peer| peer != PEER);
        assert!(interfaces.known.is_empty());
    }
}
