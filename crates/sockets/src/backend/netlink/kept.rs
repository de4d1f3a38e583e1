//! Sockets that stay open from one dump to the next.
//!
//! Opening a socket in another namespace takes about 30 us, and the dump of an empty namespace 10 to 20 ms, so reuse saves
//! little. An open socket also keeps its namespace alive until the next dump. So by default only sockets of the own namespace
//! are reused.
use std::collections::{BTreeSet, HashMap};

use parshall_sys::sock_diag::DiagSocket;

/// Sockets by the inode of their namespace. A socket keeps its namespace alive, so that the inode is not reused.
#[derive(Debug)]
pub(super) struct Kept {
    own: u32,
    /// The maximum number of sockets of other namespaces.
    max: usize,
    /// The maximum number of sockets of the own namespace: one for each reader.
    max_own: usize,
    sockets: HashMap<u32, Vec<DiagSocket>>,
}

impl Kept {
    pub(super) fn new(own: u32, max: usize, max_own: usize) -> Self {
        Self { own, max, max_own, sockets: HashMap::new() }
    }

    pub(super) fn take(&mut self, netns: u32) -> Option<DiagSocket> {
        let socket = self.sockets.get_mut(&netns)?.pop();
        self.sockets.retain(|_, sockets| !sockets.is_empty());
        socket
    }

    /// Keeps a socket, or closes it if there are too many.
    pub(super) fn put(&mut self, netns: u32, socket: DiagSocket) {
        let (count, max) = if netns == self.own {
            (self.sockets.get(&netns).map_or(0, Vec::len), self.max_own)
        } else {
            (self.others(), self.max)
        };
        if count < max {
            self.sockets.entry(netns).or_default().push(socket);
        }
    }

    /// Closes the sockets of all namespaces but these and the own one.
    pub(super) fn retain(&mut self, there: &BTreeSet<u32>) {
        let own = self.own;
        self.sockets.retain(|netns, _| *netns == own || there.contains(netns));
    }

    /// The number of sockets of other namespaces.
    pub(super) fn others(&self) -> usize {
        self.sockets.iter().filter(|(netns, _)| **netns != self.own).map(|(_, sockets)| sockets.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_limited_and_ended_namespaces_are_closed() {
        let socket = || DiagSocket::open().expect("needs no privilege");
        let mut kept = Kept::new(1, 2, 1);
        for netns in [1, 1, 2, 2, 3] {
            kept.put(netns, socket());
        }
        assert_eq!(kept.others(), 2);
        assert!(kept.take(1).is_some() && kept.take(1).is_none() && kept.take(3).is_none());
        assert!(kept.take(2).is_some());
        kept.put(3, socket());
        kept.put(1, socket());
        kept.retain(&BTreeSet::from([3]));
        assert_eq!(kept.others(), 1);
        assert!(kept.take(2).is_none() && kept.take(3).is_some() && kept.take(1).is_some());
    }
}
