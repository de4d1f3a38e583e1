//! Sockets that stay open from one dump to the next.
//!
//! Opening one in another namespace takes some 30 us, a dump of an empty namespace 10 to 20 ms, so little is won; and an
//! open socket keeps its namespace alive: one that ends is gone only after the next dump. So by default only the socket of
//! the own namespace stays, which nothing else depends on.
use std::collections::{BTreeSet, HashMap};

use parshall_sys::sock_diag::DiagSocket;

/// Sockets by the inode of their namespace. As long as a socket is here its namespace lives, so its inode is no other's.
#[derive(Debug)]
pub(super) struct Kept {
    own: u32,
    /// Sockets of other namespaces at most.
    most: usize,
    /// Sockets of the own namespace at most: one for each reader.
    most_own: usize,
    sockets: HashMap<u32, Vec<DiagSocket>>,
}

impl Kept {
    pub(super) fn new(own: u32, most: usize, most_own: usize) -> Self {
        Self { own, most, most_own, sockets: HashMap::new() }
    }

    pub(super) fn take(&mut self, netns: u32) -> Option<DiagSocket> {
        let socket = self.sockets.get_mut(&netns)?.pop();
        self.sockets.retain(|_, sockets| !sockets.is_empty());
        socket
    }

    /// Keeps a socket if there is room; otherwise it is closed.
    pub(super) fn put(&mut self, netns: u32, socket: DiagSocket) {
        let (count, most) = if netns == self.own {
            (self.sockets.get(&netns).map_or(0, Vec::len), self.most_own)
        } else {
            (self.others(), self.most)
        };
        if count < most {
            self.sockets.entry(netns).or_default().push(socket);
        }
    }

    /// Lets go of all but these and the own.
    pub(super) fn only(&mut self, there: &BTreeSet<u32>) {
        let own = self.own;
        self.sockets.retain(|netns, _| *netns == own || there.contains(netns));
    }

    /// Sockets of other namespaces.
    pub(super) fn others(&self) -> usize {
        self.sockets.iter().filter(|(netns, _)| **netns != self.own).map(|(_, sockets)| sockets.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_and_no_more_and_none_of_a_namespace_that_is_gone() {
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
        kept.only(&BTreeSet::from([3]));
        assert_eq!(kept.others(), 1);
        assert!(kept.take(2).is_none() && kept.take(3).is_some() && kept.take(1).is_some());
    }
}
