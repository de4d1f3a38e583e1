//! Whether a table of sockets is read by SOCK_DIAG or by the walk. The walk takes longer to load, and less for each socket and
//! namespace; it also sees more.
use parshall_evidence::socket::selection::state::BOUND_INACTIVE;
use parshall_evidence::socket::{Group, Kind, Selection};

/// The cost of a single dump in microseconds, as bench/sockets/once measures it.
struct Cost {
    /// Loading the programs.
    start: u64,
    /// Reading the kernel's table of connections once more for each network namespace.
    namespace: u64,
    /// A thousand sockets.
    sockets: u64,
}

/// `start` was measured as 150 ms when the verifier processed 115,820 instructions. It now processes 61,484, and 80 ms is
/// that share of 150 ms.
const WALK: Cost = Cost { start: 80_000, namespace: 0, sockets: 500 };
const NETLINK: Cost = Cost { start: 1000, namespace: 15_000, sockets: 2000 };

impl Cost {
    fn of(&self, sockets: u64, namespaces: u64) -> u64 {
        let sockets = self.sockets.saturating_mul(sockets) / 1000;
        self.start.saturating_add(self.namespace.saturating_mul(namespaces)).saturating_add(sockets)
    }
}

/// Whether SOCK_DIAG takes less time than the walk for this number of sockets and network namespaces.
pub fn netlink_is_cheaper(sockets: u64, namespaces: u64) -> bool {
    NETLINK.of(sockets, namespaces) < WALK.of(sockets, namespaces)
}

/// Whether SOCK_DIAG finds every selected socket that the walk finds, with every field of its groups that a table shows. It has
/// neither TCP_NODELAY nor TCP_USER_TIMEOUT, no control groups of UNIX sockets, and no sockets that are bound and neither connected
/// nor listening.
pub fn netlink_sees_all(selection: &Selection) -> bool {
    let bound = selection.states != u32::MAX && selection.states & 1 << BOUND_INACTIVE != 0;
    let cgroups = selection.groups.has(Group::Cgroup) || !selection.cgroups.is_empty();
    !(bound || selection.groups.has(Group::Options) || cgroups && selection.kinds.has(Kind::Unix))
}

/// The counts in /proc/net/sockstat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostSockets {
    /// Sockets of all kinds in this namespace, without those in TIME_WAIT.
    pub used: u64,
    /// TCP sockets of all namespaces, without those in TIME_WAIT.
    pub tcp: u64,
    /// TCP sockets of this namespace in TIME_WAIT.
    pub time_wait: u64,
}

impl HostSockets {
    /// Parses /proc/net/sockstat. Counts that are missing are 0.
    pub fn read(text: &str) -> Self {
        let number = |line: &[&str], name: &str| {
            let mut words = line.iter();
            words.find(|word| **word == name)?;
            words.next()?.parse::<u64>().ok()
        };
        let mut found = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let of = |name| number(&words, name).unwrap_or(0);
            match words.first().copied() {
                Some("sockets:") => found.used = of("used"),
                Some("TCP:") => (found.tcp, found.time_wait) = (of("alloc"), of("tw")),
                _ => {}
            }
        }
        found
    }

    /// The maximum number of sockets that a dump may find.
    pub fn max(&self) -> u64 {
        self.used.max(self.tcp) + self.time_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parshall_evidence::socket::{Groups, Kinds};

    #[test]
    fn few_sockets_are_read_by_netlink_and_many_by_the_walk() {
        assert!(netlink_is_cheaper(0, 1) && netlink_is_cheaper(10_000, 2));
        assert!(!netlink_is_cheaper(100_000, 1) && !netlink_is_cheaper(0, 50));
        assert!(!netlink_is_cheaper(u64::MAX, u64::MAX), "no overflow");
    }

    #[test]
    fn what_netlink_does_not_see_is_left_to_the_walk() {
        let few = Selection { groups: Groups::of([Group::Rtt, Group::Attributes]), ..Selection::default() };
        assert!(netlink_sees_all(&few));
        assert!(!netlink_sees_all(&Selection { groups: few.groups.with(Group::Options), ..few.clone() }));
        assert!(!netlink_sees_all(&Selection { states: 1 << BOUND_INACTIVE, ..few.clone() }));
        let unix = Selection { kinds: Kinds::of([Kind::Tcp, Kind::Unix]), ..few.clone() };
        assert!(netlink_sees_all(&unix));
        assert!(!netlink_sees_all(&Selection { cgroups: vec![7], ..unix.clone() }));
        assert!(!netlink_sees_all(&Selection { groups: unix.groups.with(Group::Cgroup), ..unix }));
        assert!(netlink_sees_all(&Selection { groups: few.groups.with(Group::Cgroup), ..few }));
    }

    #[test]
    fn the_kernels_counts_are_read_as_it_writes_them() {
        let text = "sockets: used 209\nTCP: inuse 40 orphan 7 tw 90 alloc 505 mem 0\nUDP: inuse 2 mem 4\n";
        let found = HostSockets::read(text);
        assert_eq!(found, HostSockets { used: 209, tcp: 505, time_wait: 90 });
        assert_eq!(found.max(), 595);
        assert_eq!(HostSockets::read("TCP: broken"), HostSockets::default());
    }
}
