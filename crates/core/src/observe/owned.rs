//! Events of connections, by their owners, and which of them are the subject's. The probes count them for all that they observe,
//! and that is more than the subject: processes that it may wait for are observed with it.
use std::collections::HashSet;

use parshall_evidence::{AtListener, NetCounts};

use crate::sorting::StableSort as _;

/// Events in the window of the connections of one process; or, where that is not known, to those of one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owned {
    /// The process, 0 when it is not known.
    pub pid: u32,
    /// Without a process: the network namespace,
    pub netns: u64,
    /// and the port at this end.
    pub port: u16,
    /// It is known to be none of the subject's, even if the process has ended since.
    pub followed: bool,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Resets received.
    pub resets_received: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections closed.
    pub closed: u64,
    /// Connections accepted at the port, whoever has them now.
    pub accepted: u64,
    /// Resets sent on connections that the process had opened.
    pub resets_by_opener: u64,
    /// Resets received on connections that it had accepted.
    pub resets_from_opener: u64,
    /// SYNs to the port that a packet filter dropped.
    pub filtered_syns: u64,
}

/// The owners of listeners, by network namespace and port. Of a connection that nobody has read from yet, nothing else
/// tells whose it is.
#[derive(Debug, Default)]
pub struct Listeners {
    subjects: HashSet<(u64, u16)>,
    others: HashSet<(u64, u16)>,
}

impl Listeners {
    /// Takes note of those who hold a listener: only some may be known, and another process may only have inherited it.
    pub fn note(&mut self, at: (u64, u16), holders: impl IntoIterator<Item = u32>, is_subject: impl Fn(u32) -> bool) {
        let mut holders = holders.into_iter().peekable();
        if holders.peek().is_none() {
            return;
        }
        if holders.any(is_subject) {
            self.subjects.insert(at)
        } else {
            self.others.insert(at)
        };
    }

    /// Takes note that another process began to listen there, whether or not it still does.
    pub fn note_others(&mut self, at: (u64, u16)) {
        self.others.insert(at);
    }

    /// Whether it is known who listens there.
    pub fn knows(&self, at: (u64, u16)) -> bool {
        self.subjects.contains(&at) || self.others.contains(&at)
    }

    /// Whether others than the subject listen there. A listener without a known owner is taken as the subject's.
    pub fn are_others(&self, at: (u64, u16)) -> bool {
        self.others.contains(&at) && !self.subjects.contains(&at)
    }
}

/// The sums over those that belong to the subject; `delack_timers` is not among them.
pub fn of_subject(owned: impl IntoIterator<Item = Owned>, is_subject: impl Fn(&Owned) -> bool) -> NetCounts {
    let mut net = NetCounts::default();
    for one in owned.into_iter().filter(is_subject) {
        net.retransmits = net.retransmits.saturating_add(one.retransmits);
        net.resets_sent = net.resets_sent.saturating_add(one.resets_sent);
        net.resets_received = net.resets_received.saturating_add(one.resets_received);
        net.resets_by_opener = net.resets_by_opener.saturating_add(one.resets_by_opener);
        net.resets_from_opener = net.resets_from_opener.saturating_add(one.resets_from_opener);
        net.opened = net.opened.saturating_add(one.opened);
        net.closed = net.closed.saturating_add(one.closed);
        for (count, list) in [(one.accepted, &mut net.accepted), (one.filtered_syns, &mut net.filtered_syns)] {
            if count > 0 {
                list.push(AtListener { netns: one.netns, port: one.port, count });
            }
        }
    }
    for list in [&mut net.accepted, &mut net.filtered_syns] {
        list.stable_sort_by_key(|at| (at.netns, at.port));
    }
    net
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_the_subjects_if_one_of_its_processes_ever_held_it() {
        let mut listeners = Listeners::default();
        let is_subject = |pid| pid < 200;
        listeners.note((1, 80), [300, 100], is_subject);
        listeners.note((1, 90), [300, 400], is_subject);
        listeners.note((1, 95), [], is_subject);
        // A process that was started lately holds what its parent does.
        listeners.note((1, 80), [300], is_subject);
        let of = |port| (listeners.knows((1, port)), listeners.are_others((1, port)));
        assert_eq!([80, 90, 95].map(of), [(true, false), (true, true), (false, false)]);
        assert!(!listeners.knows((2, 80)));
        // Also one whose process has ended since; but where the subject listens, too, the connections may be its own.
        [80, 99].into_iter().for_each(|port| listeners.note_others((1, port)));
        assert_eq!([80, 99].map(|port| listeners.are_others((1, port))), [false, true]);
    }

    #[test]
    fn what_others_do_is_not_the_subjects() {
        let of = |pid, port, resets_sent| Owned { pid, netns: 1, port, resets_sent, closed: 2, ..Owned::default() };
        let mine = Owned { accepted: 4, ..of(0, 80, 1) };
        let all = [of(100, 0, 3), mine, of(200, 0, 50), Owned { accepted: 9, ..of(0, 90, 50) }];
        let net = of_subject(all, |owned| owned.pid == 100 || owned.port == 80);
        assert_eq!((net.resets_sent, net.closed), (4, 4));
        assert_eq!(net.accepted, [AtListener { netns: 1, port: 80, count: 4 }]);
    }
}
