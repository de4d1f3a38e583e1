//! The replay window: each counter of a session is accepted once. The bitmap of RFC 6479, with the size that the kernel has.
use super::REJECT_AFTER_MESSAGES;

const WORD_BITS: u64 = 64;
const WORDS: u64 = 8192 / WORD_BITS;

/// How far a counter may be behind the greatest one. A word less than the bitmap has: the newest word is partly unused.
pub(super) const WINDOW: u64 = 8192 - WORD_BITS;

/// Whether a counter is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It is greater than all before it.
    Newest,
    /// It is behind the greatest and had not been seen.
    Late,
    /// It has been seen, is too old to know, or is beyond the limit of messages.
    Refused,
}

/// Which counters of a session have been received.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// One more than the greatest counter.
    next: u64,
    seen: [u64; WORDS as usize],
}

impl Default for Window {
    fn default() -> Self {
        Self { next: 0, seen: [0; WORDS as usize] }
    }
}

impl Window {
    /// Marks a counter as seen. Only for counters of packets that were authenticated.
    pub(super) fn accept(&mut self, counter: u64) -> Freshness {
        if counter >= REJECT_AFTER_MESSAGES {
            return Freshness::Refused;
        }
        // Counted from 1, so that `next` of a new window is 0.
        let number = counter + 1;
        let word = number / WORD_BITS;
        let newest = number > self.next;
        if newest {
            let current = self.next / WORD_BITS;
            for cleared in 1..=(word - current).min(WORDS) {
                self.seen[((current + cleared) % WORDS) as usize] = 0;
            }
            self.next = number;
        } else if number + WINDOW < self.next {
            return Freshness::Refused;
        }
        let (seen, bit) = (&mut self.seen[(word % WORDS) as usize], 1 << (number % WORD_BITS));
        if *seen & bit != 0 {
            return Freshness::Refused;
        }
        *seen |= bit;
        if newest { Freshness::Newest } else { Freshness::Late }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_sequence_of_the_kernels_self_test() {
        use Freshness::{Late, Newest, Refused};
        let limit = REJECT_AFTER_MESSAGES;
        let mut window = Window::default();
        for (counter, expected) in [
            (0, Newest),
            (1, Newest),
            (1, Refused),
            (9, Newest),
            (8, Late),
            (7, Late),
            (7, Refused),
            (WINDOW, Newest),
            (WINDOW - 1, Late),
            (WINDOW - 1, Refused),
            (2, Late),
            (WINDOW + 16, Newest),
            (3, Refused),
            (WINDOW + 16, Refused),
            (WINDOW * 4, Newest),
            (WINDOW * 4 - (WINDOW - 1), Late),
            (10, Refused),
            (WINDOW * 4 - WINDOW, Late),
            (WINDOW * 4 - (WINDOW + 1), Refused),
            (WINDOW * 4 - (WINDOW - 2), Late),
            (WINDOW * 4 + 1 - WINDOW, Refused),
            (0, Refused),
            (limit, Refused),
            (limit - 1, Newest),
            (limit, Refused),
            (limit - 1, Refused),
            (limit - 2, Late),
            (limit + 1, Refused),
            (limit - 2, Refused),
            (limit - 3, Late),
            (0, Refused),
        ] {
            assert_eq!(window.accept(counter), expected, "{counter}");
        }
    }

    proptest! {
        #[test]
        fn it_accepts_what_a_set_of_all_counters_accepts(
            steps in prop::collection::vec((0u64..4, 0u64..20_000), 1..400), start in prop::sample::select(
                vec![0, 63, 64, 8191, 8192, 1 << 40, REJECT_AFTER_MESSAGES - 30_000]),
        ) {
            let mut window = Window::default();
            let (mut seen, mut greatest) = (BTreeSet::new(), None::<u64>);
            let mut at = start;
            for (kind, distance) in steps {
                let counter = match kind {
                    0 => { at = at.saturating_add(1); at }
                    1 => { at = at.saturating_add(distance % 100); at }
                    2 => at.saturating_sub(distance),
                    _ => { at = at.saturating_add(distance); at }
                };
                let old = greatest.is_some_and(|greatest| counter.saturating_add(WINDOW) < greatest);
                let fresh = counter < REJECT_AFTER_MESSAGES && !old && seen.insert(counter);
                let expected = match fresh {
                    false => Freshness::Refused,
                    true if greatest.is_none_or(|greatest| counter > greatest) => Freshness::Newest,
                    true => Freshness::Late,
                };
                prop_assert_eq!(window.accept(counter), expected, "{} after {:?}", counter, greatest);
                if fresh {
                    greatest = greatest.max(Some(counter));
                }
            }
        }
    }
}
