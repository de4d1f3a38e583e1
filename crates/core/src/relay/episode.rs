//! Events that are logged once an episode, however many there are.
use super::Ns;

/// An episode is over when nothing has happened for this long.
const QUIET_NS: Ns = 60_000_000_000;

/// Whether an event begins an episode, by the time of the one before it.
pub fn begins(before: Option<Ns>, now: Ns) -> bool {
    before.is_none_or(|before| now.saturating_sub(before) >= QUIET_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_and_one_after_a_quiet_minute_begin_an_episode() {
        assert!(begins(None, 0) && begins(Some(5), 5 + QUIET_NS));
        assert!(!begins(Some(5), 4 + QUIET_NS) && !begins(Some(5), 5));
    }
}
