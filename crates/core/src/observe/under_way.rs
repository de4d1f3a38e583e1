//! How long requests take, while they are observed: the mean number of those that are under way, divided by the rate of replies
//! (Little's law). Slices must be several times as long.
use std::collections::HashMap;

use parshall_evidence::FlowId;

/// Sockets that are followed at most; the mean of these stands for all.
const SOCKETS_MAX: usize = 65_536;

/// The requests of a window so far. Times are nanoseconds on one clock.
#[derive(Debug, Default)]
pub struct UnderWay {
    /// Since when a reply is owed, by socket.
    open: HashMap<FlowId, u64>,
    /// Time of requests that ended, or that the end of a slice cut.
    spent_ns: u64,
    /// Replies.
    replies: u64,
}

impl UnderWay {
    /// A request, or a further part of one, arrived at a socket or left it at `since`.
    pub fn asked(&mut self, socket: FlowId, since: u64) {
        if self.open.len() < SOCKETS_MAX {
            self.open.entry(socket).or_insert(since);
        }
    }

    /// A reply, or a further part of one, began at `at`.
    pub fn replied(&mut self, socket: FlowId, at: u64) {
        if let Some(since) = self.open.remove(&socket) {
            self.spent_ns += at.saturating_sub(since);
            self.replies += 1;
        }
    }

    /// A slice ended: what happens to open requests until the next one is not seen.
    pub fn slice_ended(&mut self, at: u64) {
        self.spent_ns += self.waiting_ns(at);
        self.open.clear();
    }

    /// The mean time of a request by `now`; None before one was seen.
    pub fn mean_ns(&self, now: u64) -> Option<u64> {
        let spent_ns = self.spent_ns + self.waiting_ns(now);
        (spent_ns > 0).then(|| spent_ns / self.replies.max(1))
    }

    fn waiting_ns(&self, now: u64) -> u64 {
        self.open.values().map(|since| now.saturating_sub(*since)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slice_cuts_counts_as_long_as_it_was_seen() {
        let mut requests = UnderWay::default();
        assert_eq!(requests.mean_ns(10), None);
        requests.asked(1, 100);
        requests.asked(1, 120);
        assert_eq!(requests.mean_ns(150), Some(50));
        requests.replied(1, 150);
        requests.replied(1, 160);
        // Twelve at a time that take longer than the slice: one reply is seen.
        (2..13).for_each(|socket| requests.asked(socket, 150));
        requests.slice_ended(200);
        assert_eq!(requests.mean_ns(1_000), Some(50 + 11 * 50));
    }
}
