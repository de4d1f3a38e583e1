//! The local UDP ports of sessions, and which of them can serve another target at the same time.
//!
//! The kernel gives a UDP socket a port that no other socket has, whatever it is connected to: a host has some 28,000 for all
//! targets together (udp(7), ip_local_port_range). The kernel distinguishes datagrams by both addresses and both ports, so sockets that
//! are connected to different targets can share a port. This knows which are taken for which target.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound::{Excluded, Included, Unbounded};

/// Ports that one call of [`LocalPorts::share`] looks at.
const LOOKS_MAX: usize = 1024;

/// A local address, or None for the kernel's choice, and its port.
pub type Local = (Option<IpAddr>, u16);

/// The ports of all sessions.
#[derive(Debug, Default)]
pub struct LocalPorts {
    /// The sessions on each port.
    sessions: BTreeMap<Local, u32>,
    /// Sessions by port and target. No two of them may have both in common, whatever their local addresses are.
    taken: HashSet<(u16, SocketAddr)>,
    /// The number of ports in `taken` for each target.
    by_target: HashMap<SocketAddr, usize>,
    /// The port that was shared last.
    last: Option<Local>,
}

impl LocalPorts {
    /// A session to `target` uses this port. False if one does already.
    pub fn take(&mut self, local: Local, target: SocketAddr) -> bool {
        let new = self.taken.insert((local.1, target));
        if new {
            *self.sessions.entry(local).or_default() += 1;
            *self.by_target.entry(target).or_default() += 1;
        }
        new
    }

    /// A session has ended that [`Self::take`] or [`Self::share`] has given a port.
    pub fn release(&mut self, local: Local, target: SocketAddr) {
        if !self.taken.remove(&(local.1, target)) {
            return;
        }
        if let Some(sessions) = self.sessions.get_mut(&local) {
            *sessions -= 1;
            if *sessions == 0 {
                self.sessions.remove(&local);
            }
        }
        if let Some(ports) = self.by_target.get_mut(&target) {
            *ports -= 1;
            if *ports == 0 {
                self.by_target.remove(&target);
            }
        }
    }

    /// Takes a port of this local address that sessions to other targets use and none to this one; None if there is none
    /// among those that are looked at.
    pub fn share(&mut self, ip: Option<IpAddr>, target: SocketAddr) -> Option<u16> {
        if self.by_target.get(&target).is_some_and(|ports| *ports >= self.sessions.len()) {
            return None;
        }
        let begin = self.last.filter(|last| last.0 == ip).map_or(Unbounded, Excluded);
        let own = |(&local, _): (&Local, &u32)| (local.0 == ip).then_some(local);
        let first = match begin {
            Unbounded => Included((ip, 0)),
            after => after,
        };
        let behind = self.sessions.range((first, Included((ip, u16::MAX)))).filter_map(own);
        let before = self.sessions.range((Included((ip, 0)), Included((ip, u16::MAX)))).filter_map(own);
        let free = |local: &Local| !self.taken.contains(&(local.1, target));
        let found = behind.chain(before).take(LOOKS_MAX).find(free)?;
        self.last = Some(found);
        self.take(found, target).then_some(found.1)
    }

    /// Whether no session is left.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.taken.is_empty() && self.by_target.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(n: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, n], 53))
    }

    #[test]
    fn each_port_serves_each_target_once() {
        let mut ports = LocalPorts::default();
        for port in 1..=100 {
            assert!(ports.take((None, port), target(1)));
        }
        assert!(!ports.take((None, 7), target(1)), "both would get its datagrams");
        assert_eq!(ports.share(None, target(1)), None, "its ports are all taken");
        for n in 2..=4 {
            let shared: HashSet<u16> = (0..100).filter_map(|_| ports.share(None, target(n))).collect();
            assert_eq!((shared.len(), ports.share(None, target(n))), (100, None));
        }
        ports.release((None, 9), target(3));
        ports.release((None, 9), target(3));
        assert_eq!(ports.share(None, target(3)), Some(9));
        for n in 1..=4 {
            (1..=100).for_each(|port| ports.release((None, port), target(n)));
        }
        assert!(ports.is_empty());
    }

    #[test]
    fn ports_of_another_local_address_are_not_shared() {
        let mut ports = LocalPorts::default();
        let own = Some(IpAddr::from([127, 0, 0, 5]));
        ports.take((own, 1), target(1));
        assert_eq!((ports.share(None, target(2)), ports.share(own, target(2))), (None, Some(1)));
        assert_eq!(ports.share(own, target(2)), None);
        // Sockets without a local address may get this one when they connect.
        ports.take((None, 1), target(3));
        assert_eq!(ports.share(own, target(3)), None);
    }
}
