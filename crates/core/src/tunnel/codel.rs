//! Decides when senders are notified that a queue stays too long: CoDel (RFC 8289). It is asked about each message that is taken from the queue.
use super::{Ns, SECOND};

/// The time that a sender takes to react, as the RFC has it.
const INTERVAL: Ns = SECOND / 10;

/// The state of one queue.
#[derive(Debug, Clone)]
pub struct Codel {
    /// The time that a message may wait for longer than an interval, in nanoseconds.
    target: Ns,
    /// When the wait will have been too long for a whole interval.
    first_above: Option<Ns>,
    /// When the next sender is notified, while the queue stays too long.
    next: Option<Ns>,
    /// How many have been notified since then. The more there were, the sooner the next one is.
    count: u32,
    /// When that ended.
    ended: Option<Ns>,
}

impl Codel {
    /// A queue in which messages may wait for `target` nanoseconds for longer than an interval of 100 ms.
    pub fn new(target: Ns) -> Self {
        Self { target, first_above: None, next: None, count: 0, ended: None }
    }

    /// Takes how long a message has waited. Returns whether its sender is notified: by a mark (ECN), or the loss of a packet.
    pub fn notifies(&mut self, now: Ns, waited: Ns) -> bool {
        if waited < self.target {
            self.first_above = None;
            if self.next.take().is_some() {
                self.ended = Some(now);
            }
            return false;
        }
        let first_above = *self.first_above.get_or_insert(now + INTERVAL);
        match self.next {
            None if now < first_above => false,
            Some(next) if now < next => false,
            None => {
                // Where it was too long shortly before, the rate that helped then is a better start than one.
                let again = self.ended.is_some_and(|ended| now.saturating_sub(ended) < 16 * INTERVAL);
                self.count = if again { self.count.saturating_sub(2).max(1) } else { 1 };
                self.next = Some(now + self.gap());
                true
            }
            Some(next) => {
                self.count = self.count.saturating_add(1);
                self.next = Some(next + self.gap());
                true
            }
        }
    }

    fn gap(&self) -> Ns {
        (INTERVAL as f64 / f64::from(self.count).sqrt()) as Ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = SECOND / 1000;

    /// The times in milliseconds at which senders are notified.
    fn notified(codel: &mut Codel, ms: std::ops::Range<Ns>, waited: Ns) -> Vec<Ns> {
        ms.filter(|ms| codel.notifies(ms * MS, waited)).collect()
    }

    #[test]
    fn a_queue_that_stays_long_notifies_more_and_more_senders() {
        let mut codel = Codel::new(5 * MS);
        assert!(notified(&mut codel, 0..1000, 4 * MS).is_empty(), "it is short");
        assert_eq!(notified(&mut codel, 1000..1500, 20 * MS), [1100, 1200, 1271, 1329, 1379, 1424, 1464]);
        assert!(notified(&mut codel, 1500..1502, 4 * MS).is_empty());
        let again = notified(&mut codel, 1502..1800, 20 * MS);
        assert_eq!(again[0], 1602, "a new interval");
        assert!(again.len() >= 4, "at the rate that was reached: {again:?}");
    }

    #[test]
    fn a_burst_notifies_no_sender() {
        let mut codel = Codel::new(5 * MS);
        for begin in [0, 200, 400] {
            assert!(notified(&mut codel, begin..begin + 99, 50 * MS).is_empty());
            assert!(!codel.notifies((begin + 99) * MS, MS), "it was empty once");
        }
        assert!(!codel.notifies(SECOND, Ns::MAX), "a clock that was set is one long wait");
    }
}
