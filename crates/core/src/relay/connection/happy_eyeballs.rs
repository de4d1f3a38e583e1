//! Connecting to a target that has several addresses: happy eyeballs (RFC 8305).
//!
//! Addresses are first interleaved by family ([`interleave`], once per resolution). [`HappyEyeballs`] then starts one attempt
//! after the other: the next when one fails, or 250 ms after the last began, so that a dead path costs a quarter of a
//! second instead of a connect timeout. The first connection that is established is used, and the other attempts are closed.
//! It allocates nothing.
use crate::relay::Ns;

/// The time from one attempt to the next, in ns: the Connection Attempt Delay of RFC 8305, section 5.
pub const ATTEMPT_DELAY_NS: Ns = 250_000_000;
/// The most addresses of one target that are tried.
pub const MAX_ADDRESSES: usize = 64;

/// Reorders addresses so that the families alternate, beginning with that of the first (RFC 8305, section 4). The order
/// within a family, which is that of preference, stays.
pub fn interleave<T>(addresses: &mut Vec<T>, is_v6: impl Fn(&T) -> bool) {
    let Some(first) = addresses.first().map(&is_v6) else { return };
    let (one, other): (Vec<T>, Vec<T>) = addresses.drain(..).partition(|address| is_v6(address) == first);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    loop {
        let pair = (one.next(), other.next());
        if pair.0.is_none() && pair.1.is_none() {
            return;
        }
        addresses.extend(pair.0);
        addresses.extend(pair.1);
    }
}

/// The next step of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Begin to connect to this address, then ask again.
    Start(usize),
    /// Wait until this time or until an attempt fails.
    WaitUntil(Ns),
    /// Abandon the target, and close the attempts that still run.
    GiveUp(Outcome),
}

/// Why a target was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every address failed.
    Failed,
    /// The connect timeout passed.
    TimedOut,
}

/// The attempts to reach one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HappyEyeballs {
    addresses: u8,
    /// The number of addresses tried, which is the index of the next one.
    tried: u8,
    max_in_flight: u8,
    /// A bit for each address with a running attempt.
    in_flight: u64,
    /// When the next attempt may begin.
    next_at: Ns,
    deadline: Ns,
}

impl HappyEyeballs {
    /// Attempts at a target with this number of addresses, for at most `timeout` ns, with at most `max_in_flight` (at least
    /// one) at a time.
    pub fn new(addresses: usize, now: Ns, timeout: Ns, max_in_flight: u8) -> Self {
        Self {
            addresses: addresses.min(MAX_ADDRESSES) as u8,
            tried: 0,
            max_in_flight: max_in_flight.max(1),
            in_flight: 0,
            next_at: now,
            deadline: now.saturating_add(timeout),
        }
    }

    /// The next step. Called again after each [`Step::Start`], at the time of a [`Step::WaitUntil`], and when an attempt has
    /// failed.
    pub fn next(&mut self, now: Ns) -> Step {
        let more = self.tried < self.addresses;
        if self.in_flight == 0 && !more {
            return Step::GiveUp(Outcome::Failed);
        }
        if now >= self.deadline {
            return Step::GiveUp(Outcome::TimedOut);
        }
        let may_start = more && self.in_flight.count_ones() < u32::from(self.max_in_flight);
        if !may_start {
            return Step::WaitUntil(self.deadline);
        }
        if now < self.next_at {
            return Step::WaitUntil(self.next_at.min(self.deadline));
        }
        let index = self.tried;
        self.tried += 1;
        self.in_flight |= 1 << index;
        self.next_at = now.saturating_add(ATTEMPT_DELAY_NS);
        Step::Start(usize::from(index))
    }

    /// Records that the attempt at this address has failed: the next may begin at once.
    pub fn failed(&mut self, address: usize) {
        if address < MAX_ADDRESSES && self.in_flight & (1 << address) != 0 {
            self.in_flight &= !(1 << address);
            self.next_at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Ns = 1_000_000;

    fn interleaved(addresses: &str) -> String {
        let mut list: Vec<char> = addresses.chars().collect();
        interleave(&mut list, |c| c.is_ascii_uppercase());
        list.into_iter().collect()
    }

    #[test]
    fn families_alternate() {
        assert_eq!(interleaved("ABCab"), "AaBbC");
        assert_eq!(interleaved("aABbcd"), "aAbBcd");
        assert_eq!((interleaved(""), interleaved("abc")), (String::new(), "abc".to_string()));
    }

    #[test]
    fn an_address_that_does_not_answer_costs_a_quarter_of_a_second() {
        let mut attempts = HappyEyeballs::new(2, 0, 5000 * MS, 2);
        assert_eq!((attempts.next(0), attempts.next(0)), (Step::Start(0), Step::WaitUntil(250 * MS)));
        assert_eq!((attempts.next(250 * MS), attempts.next(250 * MS)), (Step::Start(1), Step::WaitUntil(5000 * MS)));
    }

    #[test]
    fn after_a_refusal_the_next_attempt_begins_at_once() {
        let mut attempts = HappyEyeballs::new(2, 0, 5000 * MS, 2);
        assert_eq!(attempts.next(0), Step::Start(0));
        attempts.failed(0);
        assert_eq!(attempts.next(1), Step::Start(1));
        attempts.failed(1);
        attempts.failed(1);
        assert_eq!(attempts.next(2), Step::GiveUp(Outcome::Failed));
        assert_eq!(HappyEyeballs::new(0, 0, MS, 2).next(0), Step::GiveUp(Outcome::Failed));
    }

    #[test]
    fn the_timeout_holds_with_addresses_and_attempts_left() {
        let mut attempts = HappyEyeballs::new(9, 0, 600 * MS, 2);
        assert_eq!((attempts.next(0), attempts.next(250 * MS)), (Step::Start(0), Step::Start(1)));
        assert_eq!(attempts.next(500 * MS), Step::WaitUntil(600 * MS), "two are under way");
        attempts.failed(0);
        assert_eq!(attempts.next(510 * MS), Step::Start(2));
        assert_eq!(attempts.next(600 * MS), Step::GiveUp(Outcome::TimedOut));
    }

    proptest! {
        /// A simulated network in which every address has a delay and a result.
        #[test]
        fn it_ends_within_the_timeout_and_keeps_its_limits(
            delays_ms in prop::collection::vec(0u64..3000, 0..12), max in 0u8..5, timeout_ms in 1u64..4000, works in any::<u16>(),
        ) {
            let mut attempts = HappyEyeballs::new(delays_ms.len(), 0, timeout_ms * MS, max);
            let (mut now, mut running, mut started) = (0, Vec::<(Ns, usize)>::new(), 0);
            let connected = loop {
                match attempts.next(now) {
                    Step::Start(i) => {
                        prop_assert_eq!(i, started, "each once, in their order");
                        started += 1;
                        running.push((now + delays_ms[i] * MS, i));
                        prop_assert!(running.len() <= usize::from(max.max(1)));
                    }
                    Step::WaitUntil(until) => {
                        prop_assert!(until > now && until <= timeout_ms * MS);
                        running.sort_unstable();
                        match running.first().copied() {
                            Some((end, i)) if end <= until => {
                                now = end;
                                running.remove(0);
                                if works & (1 << i) != 0 {
                                    break true;
                                }
                                attempts.failed(i);
                            }
                            _ => now = until,
                        }
                    }
                    Step::GiveUp(Outcome::Failed) => {
                        prop_assert!(started == delays_ms.len() && running.is_empty());
                        break false;
                    }
                    Step::GiveUp(Outcome::TimedOut) => {
                        prop_assert_eq!(now, timeout_ms * MS);
                        break false;
                    }
                }
            };
            prop_assert!(now <= timeout_ms * MS);
            // With time for all of them one after the other, an address that works is found.
            let works_at_all = (0..delays_ms.len()).any(|i| works & (1 << i) != 0);
            if delays_ms.iter().sum::<u64>() + 250 * delays_ms.len() as u64 + 1 < timeout_ms {
                prop_assert_eq!(connected, works_at_all);
            }
        }
    }
}
