//! Flows and threads that ended within the window: keeps the accounts of a bounded number of them.
//!
//! A service with a connection per request closes thousands a second, and an account takes 2 kB. The shortest lives are not kept:
//! they hold the least of the time that a verdict is about.

/// The least number that is kept, if there are as many.
const KEPT_MAX: usize = 4096;

/// Accounts of ended flows or threads, with the length of each life.
#[derive(Debug)]
pub struct Ended<T> {
    kept: Vec<(u64, T)>,
}

impl<T> Default for Ended<T> {
    fn default() -> Self {
        Self { kept: Vec::new() }
    }
}

impl<T> Ended<T> {
    /// Adds one that lived for `life_ns`; returns those that are not kept.
    pub fn push(&mut self, life_ns: u64, item: T) -> Vec<T> {
        self.kept.push((life_ns, item));
        // Trimming is a pass over all, so it is done only when there are twice as many.
        if self.kept.len() >= 2 * KEPT_MAX { self.trim() } else { Vec::new() }
    }

    /// The longest-lived, at most [`KEPT_MAX`], and the rest.
    pub fn take(&mut self) -> (Vec<T>, Vec<T>) {
        let rest = self.trim();
        (std::mem::take(&mut self.kept).into_iter().map(|(_, item)| item).collect(), rest)
    }

    fn trim(&mut self) -> Vec<T> {
        if self.kept.len() <= KEPT_MAX {
            return Vec::new();
        }
        self.kept.select_nth_unstable_by_key(KEPT_MAX, |&(life_ns, _)| std::cmp::Reverse(life_ns));
        self.kept.split_off(KEPT_MAX).into_iter().map(|(_, item)| item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lives_are_kept_and_the_rest_is_returned() {
        let (mut ended, mut rest) = (Ended::default(), Vec::new());
        for n in 0..50_000_u64 {
            // A scramble, so that long and short ones alternate.
            rest.extend(ended.push(n * 7919 % 50_000, n * 7919 % 50_000));
            assert!(ended.kept.len() < 2 * KEPT_MAX);
        }
        let (mut kept, last) = ended.take();
        rest.extend(last);
        rest.sort_unstable();
        kept.sort_unstable();
        assert_eq!(kept, (50_000 - KEPT_MAX as u64..50_000).collect::<Vec<_>>());
        assert_eq!(rest, (0..50_000 - KEPT_MAX as u64).collect::<Vec<_>>());
    }

    #[test]
    fn few_are_all_kept() {
        let mut ended = Ended::default();
        (0..10).for_each(|n| assert!(ended.push(0, n).is_empty()));
        let (kept, rest) = ended.take();
        assert_eq!((kept.len(), rest.len()), (10, 0));
    }
}
