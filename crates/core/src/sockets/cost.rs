//! The choice of the cheaper backend for a single dump. The walk takes longer to load than the iterators, and less for each
//! socket and namespace.
use parshall_evidence::socket::selection::state::BOUND_INACTIVE;
use parshall_evidence::socket::{Kind, Selection};

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
const ITER: Cost = Cost { start: 30_000, namespace: 15_000, sockets: 1700 };

impl Cost {
    fn of(&self, sockets: u64, namespaces: u64) -> u64 {
        let sockets = self.sockets.saturating_mul(sockets) / 1000;
        self.start.saturating_add(self.namespace.saturating_mul(namespaces)).saturating_add(sockets)
    }
}

/// Whether the iterators take less time than the walk for this number of sockets and network namespaces.
pub fn iterators_are_cheaper(sockets: u64, namespaces: u64) -> bool {
    ITER.of(sockets, namespaces) < WALK.of(sockets, namespaces)
}

/// Whether the iterators find every selected socket that the walk finds. They do not find UDP-Lite sockets (`udp_lite`: the
/// host may have some), nor sockets that are bound and neither connected nor listening.
pub fn iterators_see_all(selection: &Selection, udp_lite: bool) -> bool {
    let bound = selection.states != u32::MAX && selection.states & 1 << BOUND_INACTIVE != 0;
    !(bound || udp_lite && selection.kinds.has(Kind::Udp))
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
    /// UDP-Lite sockets of this namespace.
    pub udp_lite: u64,
}

impl HostSockets {
    /// Parses /proc/net/sockstat or sockstat6. Counts that are missing are 0.
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
                Some("UDPLITE:" | "UDPLITE6:") => found.udp_lite = of("inuse"),
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
    use parshall_evidence::socket::Kinds;

    #[test]
    fn few_sockets_are_read_by_the_iterators_and_many_by_the_walk() {
        assert!(iterators_are_cheaper(0, 1) && iterators_are_cheaper(10_000, 2));
        assert!(!iterators_are_cheaper(100_000, 1) && !iterators_are_cheaper(0, 50));
        assert!(!iterators_are_cheaper(u64::MAX, u64::MAX), "no overflow");
    }

    #[test]
    fn what_the_iterators_do_not_see_is_left_to_the_walk() {
        let udp = Selection { kinds: Kinds::of([Kind::Tcp, Kind::Udp]), ..Selection::default() };
        assert!(iterators_see_all(&Selection::default(), true) && iterators_see_all(&udp, false));
        assert!(!iterators_see_all(&udp, true));
        let bound = Selection { states: 1 << BOUND_INACTIVE, ..Selection::default() };
        assert!(!iterators_see_all(&bound, false));
    }

    #[test]
    fn the_kernels_counts_are_read_as_it_writes_them() {
        let text =
            "sockets: used 209\nTCP: inuse 40 orphan 7 tw 90 alloc 505 mem 0\nUDP: inuse 2 mem 4\nUDPLITE: inuse 3\n";
        let found = HostSockets::read(text);
        assert_eq!(found, HostSockets { used: 209, tcp: 505, time_wait: 90, udp_lite: 3 });
        assert_eq!(found.max(), 595);
        assert_eq!(HostSockets::read("UDPLITE6: inuse 4\n").udp_lite, 4);
        assert_eq!(HostSockets::read("TCP: broken"), HostSockets::default());
    }
}
