//! The choice of the connection that sends the next request, and the time since when that was due.
use std::collections::VecDeque;

use super::Arrivals;

/// A request to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Index of the connection.
    pub connection: u32,
    /// When it should have been sent, in ns since the load began: its latency counts from there.
    pub due_ns: u64,
}

/// The connections of a thread, each with space for some requests at a time. The least recently used one is next.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// None in a closed loop: then a request is due as soon as a connection has space.
    arrivals: Option<Arrivals>,
    /// Connections with space, once for each request that fits.
    spaces: VecDeque<u32>,
    /// Requests that may be outstanding at once.
    most: usize,
    outstanding: usize,
}

impl Dispatch {
    /// `connections` with space for `depth` requests each, of which at most `most` are outstanding over all connections.
    pub fn new(connections: u32, depth: u32, most: usize, arrivals: Option<Arrivals>) -> Self {
        // All connections get their first request before any gets its second.
        let spaces = (0..depth).flat_map(|_| 0..connections).collect();
        Self { arrivals, spaces, most: most.max(1), outstanding: 0 }
    }

    /// The next request that is due by `now_ns`, if a connection has space for it.
    pub fn next(&mut self, now_ns: u64) -> Option<Due> {
        if self.outstanding >= self.most {
            return None;
        }
        let connection = *self.spaces.front()?;
        let due_ns = match &mut self.arrivals {
            Some(arrivals) => arrivals.take(now_ns)?,
            None => now_ns,
        };
        self.spaces.pop_front();
        self.outstanding += 1;
        Some(Due { connection, due_ns })
    }

    /// A reply has arrived: the connection has space again.
    pub fn answered(&mut self, connection: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.spaces.push_back(connection);
    }

    /// The connection has ended with `outstanding` unanswered requests. It gets no further one.
    pub fn lost(&mut self, connection: u32, outstanding: usize) {
        self.outstanding = self.outstanding.saturating_sub(outstanding);
        self.spaces.retain(|space| *space != connection);
    }

    /// How long nothing is due unless a reply arrives, in ns; None if only a reply lets the next request be sent.
    pub fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        if self.outstanding >= self.most || self.spaces.is_empty() {
            return None;
        }
        Some(self.arrivals.as_ref().map_or(0, |arrivals| arrivals.next_ns().saturating_sub(now_ns)))
    }

    /// Requests that were due before `end_ns` and that no connection had space for, with the time since when.
    pub fn unsent(mut self, end_ns: u64) -> impl Iterator<Item = u64> {
        std::iter::from_fn(move || self.arrivals.as_mut()?.take(end_ns.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::load::Pattern;

    #[test]
    fn a_closed_loop_fills_all_space_and_goes_on_with_each_reply() {
        let mut dispatch = Dispatch::new(2, 2, usize::MAX, None);
        let sent: Vec<u32> = std::iter::from_fn(|| dispatch.next(5)).map(|due| due.connection).collect();
        assert_eq!(sent, [0, 1, 0, 1]);
        assert_eq!(dispatch.wait_ns(5), None);
        dispatch.answered(1);
        assert_eq!(dispatch.next(9), Some(Due { connection: 1, due_ns: 9 }));
    }

    #[test]
    fn few_requests_visit_many_connections_in_turn() {
        let mut dispatch = Dispatch::new(5, 1, 2, None);
        let mut visited = Vec::new();
        for now in 0..5 {
            while let Some(due) = dispatch.next(now) {
                visited.push(due.connection);
            }
            dispatch.answered(visited[now as usize]);
        }
        assert_eq!(visited, [0, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn a_lost_connection_gets_no_request() {
        let mut dispatch = Dispatch::new(2, 2, 3, None);
        while dispatch.next(0).is_some() {}
        // 0 has two outstanding, 1 has one.
        dispatch.lost(0, 2);
        assert_eq!(dispatch.next(1), Some(Due { connection: 1, due_ns: 1 }));
        assert_eq!(dispatch.next(1), None);
    }

    /// The latencies that a server with these service times shows to one connection, from the intended times: Lindley's recursion.
    fn expected(gap_ns: u64, service_ns: &[u64]) -> Vec<u64> {
        let mut free = 0;
        let mut latency = Vec::new();
        for (i, service) in service_ns.iter().enumerate() {
            let due = i as u64 * gap_ns;
            free = free.max(due) + service;
            latency.push(free - due);
        }
        latency
    }

    /// The same by way of the dispatch, as the generator does it: one reply after the other.
    fn measured(per_s: Option<f64>, service_ns: &[u64]) -> Vec<u64> {
        let arrivals = per_s.map(|per_s| Arrivals::new(Pattern::Constant, per_s, 0, 1));
        let mut dispatch = Dispatch::new(1, 1, usize::MAX, arrivals);
        let (mut now, mut latency) = (0, Vec::new());
        for service in service_ns {
            now += dispatch.wait_ns(now).expect("the connection is free");
            let due = dispatch.next(now).expect("it is due");
            now += service;
            latency.push(now - due.due_ns);
            dispatch.answered(due.connection);
        }
        latency
    }

    proptest! {
        #[test]
        fn an_open_loop_measures_what_a_user_would_wait(service in proptest::collection::vec(1u64..5_000_000, 1..200)) {
            prop_assert_eq!(measured(Some(1000.0), &service), expected(1_000_000, &service));
        }

        #[test]
        fn requests_are_neither_lost_nor_made_up(
            connections in 1u32..20,
            depth in 1u32..5,
            most in 1usize..50,
            replies in proptest::collection::vec(any::<bool>(), 0..400),
        ) {
            let mut dispatch = Dispatch::new(connections, depth, most, None);
            let mut outstanding = VecDeque::new();
            for (now, reply) in replies.into_iter().enumerate() {
                if reply && let Some(connection) = outstanding.pop_front() {
                    dispatch.answered(connection);
                } else if let Some(due) = dispatch.next(now as u64) {
                    outstanding.push_back(due.connection);
                }
                prop_assert!(outstanding.len() <= most.min((connections * depth) as usize));
                for connection in 0..connections {
                    prop_assert!(outstanding.iter().filter(|c| **c == connection).count() <= depth as usize);
                }
            }
        }
    }

    #[test]
    fn a_stall_shows_in_an_open_loop_and_hides_in_a_closed_one() {
        // 1000 requests per second, each served in 0.1 ms, and one stall of a second.
        let mut service = vec![100_000; 10_000];
        service[5_000] = 1_000_000_000;
        let slow = |latency: Vec<u64>| latency.iter().filter(|ns| **ns > 10_000_000).count();
        assert_eq!(slow(measured(None, &service)), 1);
        // The queue of a thousand requests shrinks by nine tenths of a request each millisecond.
        let open = slow(measured(Some(1000.0), &service));
        assert!((1050..1150).contains(&open), "{open}");
    }

    #[test]
    fn what_was_due_and_never_sent_is_known() {
        let mut dispatch = Dispatch::new(1, 1, usize::MAX, Some(Arrivals::new(Pattern::Constant, 10.0, 0, 1)));
        assert!(dispatch.next(0).is_some());
        assert_eq!(dispatch.next(1_000_000_000), None);
        let unsent: Vec<u64> = dispatch.unsent(400_000_000).collect();
        assert_eq!(unsent, [100_000_000, 200_000_000, 300_000_000]);
    }
}
