//! How many packets one send may carry (UDP_SEGMENT) on the way to a peer, learned from sends that failed.
//!
//! A route, a device or a driver may refuse GSO batches of any length, or long ones only, and a route can change at any time. So a
//! limit is never final: it is raised again after a while, and each fault doubles that while.
use super::{Ns, SECOND};

/// The most packets in one GSO batch: UDP_MAX_SEGMENTS of kernels before 6.9.
pub const GSO_DATAGRAMS_MAX: usize = 64;

/// How long the limit stays after the first fault.
const WAIT_MIN: Ns = 10 * SECOND;
/// How long it stays at most.
const WAIT_MAX: Ns = 600 * SECOND;

/// The limit on one path. It belongs to a [`Path`](super::Path).
#[derive(Debug)]
pub(super) struct GsoLimit {
    /// Packets of a GSO batch. With 1, datagrams are sent one by one.
    limit: usize,
    /// The limit before it was raised, which had no fault. A fault brings it back.
    proven: usize,
    /// The next limit.
    next: usize,
    /// When it is raised; `None` if there was no fault lately.
    raise_at: Option<Ns>,
    wait: Ns,
}

impl Default for GsoLimit {
    fn default() -> Self {
        Self { limit: GSO_DATAGRAMS_MAX, proven: 1, next: GSO_DATAGRAMS_MAX, raise_at: None, wait: WAIT_MIN }
    }
}

impl GsoLimit {
    /// Raises the limit if that is due, and returns it.
    pub(super) fn get(&mut self, now: Ns) -> usize {
        if self.raise_at.is_some_and(|at| at <= now) {
            if self.limit == GSO_DATAGRAMS_MAX {
                // The longest GSO batches have passed for as long as it took to try them again.
                *self = Self::default();
            } else {
                self.proven = self.limit;
                self.limit = self.next;
                self.next = (2 * self.limit).min(GSO_DATAGRAMS_MAX);
                self.raise_at = Some(now.saturating_add(self.wait));
            }
        }
        self.limit
    }

    /// The kernel has refused a GSO batch of this many packets: shorter ones are sent, or single datagrams at first.
    pub(super) fn fault(&mut self, now: Ns, packets: usize) {
        // GSO batches that were made before the last fault say nothing new.
        if packets < 2 || packets > self.limit {
            return;
        }
        self.limit = if self.proven < packets { self.proven } else { 1 };
        self.proven = self.limit;
        self.next = (packets / 2).max(2 * self.limit).min(GSO_DATAGRAMS_MAX);
        self.raise_at = Some(now.saturating_add(self.wait));
        self.wait = (2 * self.wait).min(WAIT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A device that refuses GSO batches of more than `most` packets, for `seconds`. Returns the limit at each second.
    fn limits(gso: &mut GsoLimit, from_s: u64, seconds: u64, most: usize) -> Vec<usize> {
        let second = |s| {
            let limit = gso.get(s * SECOND);
            if limit > most {
                gso.fault(s * SECOND, limit);
            }
            limit
        };
        (from_s..from_s + seconds).map(second).collect()
    }

    #[test]
    fn a_fault_leads_to_single_datagrams_and_then_to_shorter_gso_batches() {
        let mut gso = GsoLimit::default();
        let found = limits(&mut gso, 0, 31, 16);
        assert_eq!((found[0], found[1], found[9]), (64, 1, 1));
        assert_eq!((found[10], found[11], found[29], found[30]), (32, 1, 1, 16));
        // 40 s later a longer one is tried, and what was proven stays.
        let found = limits(&mut gso, 31, 3600, 16);
        assert!(found.iter().all(|limit| [16, 32].contains(limit)), "{found:?}");
        let tries = found.iter().filter(|limit| **limit == 32).count();
        assert!((4..12).contains(&tries), "{tries} tries in an hour");
    }

    #[test]
    fn gso_batches_that_were_under_way_count_once() {
        let mut gso = GsoLimit::default();
        (0..16).for_each(|_| gso.fault(0, 44));
        assert_eq!(gso.get(0), 1);
        assert_eq!(gso.get(WAIT_MIN), 22);
        gso.fault(WAIT_MIN, 1);
        assert_eq!(gso.get(WAIT_MIN), 22, "a single datagram is no GSO batch");
    }

    #[test]
    fn a_device_that_recovers_gets_the_longest_gso_batches_and_a_short_wait_again() {
        let mut gso = GsoLimit::default();
        limits(&mut gso, 0, 100, 1);
        assert_eq!(limits(&mut gso, 100, 2000, 64).last(), Some(&64));
        assert_eq!((gso.raise_at, gso.wait), (None, WAIT_MIN));
    }

    proptest! {
        #[test]
        fn whatever_a_device_takes_is_found_and_kept(most in 1usize..=64) {
            let mut gso = GsoLimit::default();
            limits(&mut gso, 0, 4000, most);
            let later = limits(&mut gso, 4000, 4000, most);
            let refused = later.iter().filter(|limit| **limit > most).count();
            prop_assert!(refused <= 8, "{} faults in more than an hour", refused);
            let usual = later.iter().filter(|limit| **limit <= most && 2 * **limit > most.min(32)).count();
            prop_assert!(most == 1 || usual > 3900, "{} of 4000 s with GSO batches of half of {} or more", usual, most);
        }
    }
}
