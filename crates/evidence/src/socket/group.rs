//! Groups of fields, which `--fields` selects. Backends read only the selected groups.
use serde::{Deserialize, Serialize};

use crate::listed::listed;

listed! {
    /// A group of fields that are read together.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[repr(u32)]
    pub enum Group: name {
        /// Addresses, ports, state, namespace, cookie, inode: always read.
        Identity "identity",
        /// Queues of data and of connections.
        Queues "queues",
        /// Round trip times and timeouts.
        Rtt "rtt",
        /// Congestion window and segment sizes.
        Cwnd "cwnd",
        /// Retransmissions, losses, reordering.
        Loss "loss",
        /// Bytes and segments.
        Traffic "traffic",
        /// Times since something was sent or received.
        Times "times",
        /// Times in which something limited sending.
        Limits "limits",
        /// Receive windows.
        Window "window",
        /// Pacing and delivery rates.
        Rate "rate",
        /// ECN marks.
        Ecn "ecn",
        /// Memory of the socket.
        Memory "memory",
        /// Congestion control and its own state.
        Congestion "congestion",
        /// User id, mark, priority, class, type of service.
        Attributes "attributes",
        /// Control group.
        Cgroup "cgroup",
        /// The pending timer.
        Timer "timer",
        /// TCP and socket options.
        Options "options",
        /// MPTCP.
        Mptcp "mptcp",
        /// UNIX sockets.
        Unix "unix",
        /// Process, command and descriptor: joined in user space.
        Owner "owner",
    }
}

impl Group {
    /// Finds a group by its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }
}

/// A set of groups; [`Group::Identity`] is always in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups(u32);

impl Groups {
    /// All groups.
    pub const ALL: Self = Self((1 << Group::ALL.len()) - 1);

    /// Identity only.
    pub const IDENTITY: Self = Self(1 << Group::Identity as u32);

    /// A set of these groups and identity.
    pub fn of(groups: impl IntoIterator<Item = Group>) -> Self {
        groups.into_iter().fold(Self::IDENTITY, Self::with)
    }

    /// The set with `group` added.
    #[must_use]
    pub const fn with(self, group: Group) -> Self {
        Self(self.0 | 1 << group as u32)
    }

    /// The set without `group`. Identity cannot be removed.
    #[must_use]
    pub const fn without(self, group: Group) -> Self {
        Self(self.0 & !(1 << group as u32) | Self::IDENTITY.0)
    }

    /// The groups that are in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set contains `group`.
    pub const fn has(self, group: Group) -> bool {
        self.0 & 1 << group as u32 != 0
    }

    /// One bit per group, as the BPF programs read it.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_names_agree() {
        for (place, group) in Group::ALL.into_iter().enumerate() {
            assert_eq!(group as usize, place);
            assert_eq!(Group::named(group.name()), Some(group));
            assert!(Groups::ALL.has(group));
        }
        assert!(Groups::of([]).without(Group::Identity).has(Group::Identity));
        assert!(!Groups::ALL.without(Group::Rtt).has(Group::Rtt));
    }
}
