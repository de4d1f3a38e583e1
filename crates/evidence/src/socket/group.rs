//! Groups of fields, which `--fields` selects. Backends read only the selected groups.
use serde::{Deserialize, Serialize};

/// A group of fields that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum Group {
    /// Addresses, ports, state, namespace, cookie, inode: always read.
    Identity,
    /// Queues of data and of connections.
    Queues,
    /// Round trip times and timeouts.
    Rtt,
    /// Congestion window and segment sizes.
    Cwnd,
    /// Retransmissions, losses, reordering.
    Loss,
    /// Bytes and segments.
    Traffic,
    /// Times since something was sent or received.
    Times,
    /// Times in which something limited sending.
    Limits,
    /// Receive windows.
    Window,
    /// Pacing and delivery rates.
    Rate,
    /// ECN marks.
    Ecn,
    /// Memory of the socket.
    Memory,
    /// Congestion control and its own state.
    Congestion,
    /// User id, mark, priority, class, type of service.
    Attributes,
    /// Control group.
    Cgroup,
    /// The pending timer.
    Timer,
    /// TCP and socket options.
    Options,
    /// MPTCP.
    Mptcp,
    /// UNIX sockets.
    Unix,
    /// Process, command and descriptor: joined in user space.
    Owner,
}

impl Group {
    /// Every group. The index of a group is its bit in [`Groups::bits`].
    pub const ALL: [Self; 20] = [
        Self::Identity,
        Self::Queues,
        Self::Rtt,
        Self::Cwnd,
        Self::Loss,
        Self::Traffic,
        Self::Times,
        Self::Limits,
        Self::Window,
        Self::Rate,
        Self::Ecn,
        Self::Memory,
        Self::Congestion,
        Self::Attributes,
        Self::Cgroup,
        Self::Timer,
        Self::Options,
        Self::Mptcp,
        Self::Unix,
        Self::Owner,
    ];

    /// The name on the command line and in the documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Queues => "queues",
            Self::Rtt => "rtt",
            Self::Cwnd => "cwnd",
            Self::Loss => "loss",
            Self::Traffic => "traffic",
            Self::Times => "times",
            Self::Limits => "limits",
            Self::Window => "window",
            Self::Rate => "rate",
            Self::Ecn => "ecn",
            Self::Memory => "memory",
            Self::Congestion => "congestion",
            Self::Attributes => "attributes",
            Self::Cgroup => "cgroup",
            Self::Timer => "timer",
            Self::Options => "options",
            Self::Mptcp => "mptcp",
            Self::Unix => "unix",
            Self::Owner => "owner",
        }
    }

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
