//! Flows and threads that ended within the window: a bounded number of them.
//!
//! A service with a connection per request closes thousands a second, and an account is 2 kB. What is dropped are the
//! shortest lives: they hold the least of the time that a verdict is about. How many were dropped is reported.

/// Kept at least, when there are as many.
const KEPT_MAX: usize = 4096;

/// Accounts of what ended, with the length of each life.
#[derive(Debug)]
pub struct Ended<T> {
    kept: Vec<(u64, T)>,
    /// How many were dropped.
    pub dropped: u64,
}

impl<T> Default for Ended<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), dropped: 0 }
    }
}

impl<T> Ended<T> {
    /// Adds one that lived for `life_ns`.
    pub fn push(&mut self, life_ns: u64, item: T) {
        self.kept.push((life_ns, item));
        // Trimming costs a pass over all, so it waits until there are twice as many.
        if self.kept.len() >= 2 * KEPT_MAX {
            self.trim();
        }
    }

    /// The longest-lived, at most [`KEPT_MAX`].
    pub fn take(&mut self) -> impl Iterator<Item = T> {
        self.trim();
        std::mem::take(&mut self.kept).into_iter().map(|(_, item)| item)
    }

    fn trim(&mut self) {
        if self.kept.len() > KEPT_MAX {
            self.kept.select_nth_unstable_by_key(KEPT_MAX, |&(life_ns, _)| std::cmp::Reverse(life_ns));
            self.dropped += (self.kept.len() - KEPT_MAX) as u64;
            self.kept.truncate(KEPT_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lives_are_kept_and_the_rest_is_counted() {
        let mut ended = Ended::default();
        for n in 0..50_000_u64 {
            // A scramble, so that long and short ones alternate.
            ended.push(n * 7919 % 50_000, n * 7919 % 50_000);
            assert!(ended.kept.len() < 2 * KEPT_MAX);
        }
        let mut kept: Vec<u64> = ended.take().collect();
        kept.sort_unstable();
        assert_eq!(kept, (50_000 - KEPT_MAX as u64..50_000).collect::<Vec<_>>());
        assert_eq!(ended.dropped, 50_000 - KEPT_MAX as u64);
    }

    #[test]
    fn few_are_all_kept() {
        let mut ended = Ended::default();
        (0..10).for_each(|n| ended.push(0, n));
        assert_eq!((ended.take().count(), ended.dropped), (10, 0));
    }
}
