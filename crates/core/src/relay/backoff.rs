//! Pauses of accepting when descriptors or memory run out, and the limits on connections and pipes.
//!
//! accept(2) that fails with EMFILE leaves the connection in the queue and the listener readable: a loop that just tries
//! again spins. So accepting pauses, longer each time, and one line is logged per episode instead of one per failure.
use super::Ns;

/// The first pause.
const PAUSE_MIN_NS: Ns = 10_000_000;
/// The longest.
const PAUSE_MAX_NS: Ns = 1_000_000_000;
/// An episode ends when a connection is accepted this long after the last failure: at the limit, successes and failures
/// alternate with every connection that closes, and all of that is one episode.
const QUIET_NS: Ns = 10_000_000_000;

/// The state of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backoff {
    pause: Ns,
    episode: Option<Episode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Episode {
    began: Ns,
    last_failure: Ns,
    failures: u64,
}

/// The consequence of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// When to accept again.
    pub until: Ns,
    /// Whether to log it: the first of its episode.
    pub log: bool,
}

/// An episode that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Failures in it.
    pub failures: u64,
    /// From the first failure to the last, in ns.
    pub lasted_ns: u64,
}

impl Backoff {
    /// Accepting failed for want of descriptors or memory (EMFILE, ENFILE, ENOBUFS, ENOMEM).
    pub fn failed(&mut self, now: Ns) -> Pause {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
        let log = self.episode.is_none();
        let episode = self.episode.get_or_insert(Episode { began: now, last_failure: now, failures: 0 });
        episode.failures = episode.failures.saturating_add(1);
        episode.last_failure = episode.last_failure.max(now);
        Pause { until: now.saturating_add(self.pause), log }
    }

    /// A connection was accepted. Returns the episode that this ends, for the log.
    pub fn accepted(&mut self, now: Ns) -> Option<Recovered> {
        self.pause = 0;
        let episode = self.episode?;
        if now.saturating_sub(episode.last_failure) < QUIET_NS {
            return None;
        }
        self.episode = None;
        Some(Recovered { failures: episode.failures, lasted_ns: episode.last_failure.saturating_sub(episode.began) })
    }
}

/// Descriptors kept for the process itself: standard streams, log, metrics, control socket, resolver.
const RESERVE: u64 = 64;
/// And for each thread: poller, wake-up, timer, and attempts of happy eyeballs beside the one that wins.
const RESERVE_PER_THREAD: u64 = 16;
/// A pipe is held only while its sink is full: more than streams ever wait at once on one host, and the kernel's budget of
/// pipe pages is reached before.
const PIPES_MAX: u64 = 256;
/// Descriptors of connections, in the advice on a limit that is too low.
const SOME_CONNECTIONS: u64 = 512;
/// The most connections or sessions, whatever the limit: as many as the keys of [`super::deadlines::Deadlines`] can hold.
const OPEN_MAX: u64 = super::slots::SLOTS_MAX as u64;

/// Whether the sockets of listeners, one for each thread, fit into RLIMIT_NOFILE beside what is kept back. The error is the limit
/// that they and some connections need.
pub fn listeners_fit(limit: u64, listeners: u64, threads: u32) -> Result<(), u64> {
    let sockets = listeners.saturating_mul(u64::from(threads));
    let reserve = RESERVE + RESERVE_PER_THREAD * u64::from(threads);
    let fits = sockets.saturating_add(reserve.min(limit / 4)) <= limit;
    if fits { Ok(()) } else { Err(sockets.saturating_add(reserve).saturating_add(SOME_CONNECTIONS)) }
}

/// How much fits into the process's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Open connections, two descriptors each.
    pub connections: u32,
    /// UDP sessions, one descriptor each.
    pub sessions: u32,
    /// Pipes, two descriptors each.
    pub pipes: u32,
}

/// The uses that the descriptors are divided for. Connections and sessions have budgets of their own: a flood of datagrams, whose
/// sources anybody can forge, must not take the descriptors of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// Whether there are TCP listeners.
    pub tcp: bool,
    /// Whether there are UDP listeners.
    pub udp: bool,
    /// `max-connections`.
    pub connections: Option<u32>,
    /// `max-sessions`.
    pub sessions: Option<u32>,
}

impl Capacity {
    /// From RLIMIT_NOFILE, less what the listeners hold.
    ///
    /// Kept back are 64 descriptors and 16 per thread, or a quarter if that is less. An eighth of the rest is for pipes, at
    /// most 256 of them, if there are TCP listeners. Connections and sessions get what is left, half each if there are both;
    /// `max-connections` and `max-sessions` divide it otherwise. 1024 descriptors, two threads and TCP alone: 96 kept back, 58
    /// pipes (116), 406 connections (812). A connection, a session and a pipe fit always, even if opening them then fails.
    pub fn from_nofile(limit: u64, threads: u32, demand: &Demand) -> Self {
        let reserve = (RESERVE + RESERVE_PER_THREAD * u64::from(threads)).min(limit / 4);
        let usable = limit - reserve;
        let pipes = if demand.tcp || !demand.udp { (usable / 8 / 2).clamp(1, PIPES_MAX) } else { 1 };
        let rest = usable.saturating_sub(2 * pipes);
        let for_connections = match (demand.tcp, demand.udp) {
            (true, true) => for_connections(rest, demand),
            (false, true) => 0,
            _ => rest,
        };
        let connections = (for_connections / 2).min(demand.connections.map_or(u64::MAX, u64::from));
        let sessions = (rest - for_connections).min(demand.sessions.map_or(u64::MAX, u64::from));
        Self {
            connections: connections.clamp(1, OPEN_MAX) as u32,
            sessions: sessions.clamp(1, OPEN_MAX) as u32,
            pipes: pipes as u32,
        }
    }
}

/// The descriptors that are for connections, where there are UDP listeners, too. The part that one protocol is not allowed to use is
/// the other's; where both are allowed more than there is, each gets its part.
fn for_connections(rest: u64, demand: &Demand) -> u64 {
    let half = rest / 2;
    let tcp = demand.connections.map_or(half, |n| 2 * u64::from(n));
    let udp = demand.sessions.map_or(half, u64::from);
    if tcp + udp > rest {
        (u128::from(rest) * u128::from(tcp) / u128::from(tcp + udp)) as u64
    } else if demand.connections.is_none() {
        rest - udp
    } else {
        tcp
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn pauses_double_to_a_second_and_one_line_is_logged() {
        let mut backoff = Backoff::default();
        let (mut now, mut pauses, mut logged) = (0, Vec::new(), 0);
        for _ in 0..9 {
            let pause = backoff.failed(now);
            pauses.push((pause.until - now) / MS);
            logged += usize::from(pause.log);
            now = pause.until;
        }
        assert_eq!((pauses, logged), (vec![10, 20, 40, 80, 160, 320, 640, 1000, 1000], 1));
    }

    #[test]
    fn at_the_limit_one_episode_lasts_until_it_is_quiet() {
        let mut backoff = Backoff::default();
        let mut logged = 0;
        for second in 0..60 {
            let pause = backoff.failed(second * 1000 * MS);
            logged += usize::from(pause.log);
            assert_eq!(pause.until - second * 1000 * MS, PAUSE_MIN_NS, "success has made it short again");
            assert_eq!(backoff.accepted(pause.until), None);
        }
        assert_eq!(logged, 1);
        assert_eq!(backoff.accepted(59_000 * MS + QUIET_NS), Some(Recovered { failures: 60, lasted_ns: 59_000 * MS }));
        assert_eq!(backoff.accepted(80_000 * MS), None, "reported once");
        assert!(backoff.failed(90_000 * MS).log, "a new episode");
    }

    #[test]
    fn a_listener_that_never_failed_reports_nothing() {
        assert_eq!(Backoff::default().accepted(u64::MAX), None);
        assert_eq!(Backoff::default().failed(u64::MAX).until, u64::MAX);
    }

    const TCP: Demand = Demand { tcp: true, udp: false, connections: None, sessions: None };
    const BOTH: Demand = Demand { udp: true, ..TCP };

    #[test]
    fn the_documented_example() {
        assert_eq!(Capacity::from_nofile(1024, 2, &TCP), Capacity { connections: 406, sessions: 1, pipes: 58 });
        assert_eq!(Capacity::from_nofile(64, 2, &TCP), Capacity { connections: 21, sessions: 1, pipes: 3 });
        assert_eq!(Capacity::from_nofile(1 << 20, 8, &TCP).pipes, 256);
    }

    #[test]
    fn each_listener_needs_a_socket_for_each_thread() {
        assert_eq!(listeners_fit(64, 1, 2), Ok(()), "with a small limit less is kept back");
        assert_eq!(listeners_fit(20_000, 9000, 2), Ok(()));
        assert_eq!(listeners_fit(20_000, 10_000, 2), Err(20_000 + 64 + 32 + 512));
        assert_eq!(listeners_fit(20_000 + 64 + 32 + 512, 10_000, 2), Ok(()));
    }

    #[test]
    fn connections_and_sessions_have_budgets_of_their_own() {
        let of = |demand: Demand| {
            let Capacity { connections, sessions, .. } = Capacity::from_nofile(1024, 2, &demand);
            (connections, sessions)
        };
        assert_eq!(of(BOTH), (203, 406));
        assert_eq!(of(Demand { tcp: false, ..BOTH }), (1, 926), "without TCP there are no pipes");
        assert_eq!(of(Demand { connections: Some(100), ..BOTH }), (100, 612));
        assert_eq!(of(Demand { sessions: Some(12), ..BOTH }), (400, 12));
        assert_eq!(of(Demand { connections: Some(10), sessions: Some(10), ..BOTH }), (10, 10));
        assert_eq!(of(Demand { connections: Some(5000), sessions: Some(10_000), ..BOTH }), (203, 406), "half each");
        assert_eq!(
            of(Demand { connections: Some(406), ..BOTH }),
            (270, 271),
            "one takes what it needs, the other half"
        );
    }

    proptest! {
        #[test]
        fn all_of_it_fits(
            limit in prop_oneof![0u64..5000, any::<u64>()],
            threads in any::<u32>(),
            (tcp, udp) in any::<(bool, bool)>(),
            connections in prop_oneof![Just(None), (1u32..5000).prop_map(Some), any::<u32>().prop_map(Some)],
            sessions in prop_oneof![Just(None), (1u32..5000).prop_map(Some), any::<u32>().prop_map(Some)],
        ) {
            let demand = Demand { tcp, udp, connections, sessions };
            let capacity = Capacity::from_nofile(limit, threads, &demand);
            prop_assert!(capacity.connections >= 1 && capacity.sessions >= 1 && capacity.pipes >= 1);
            let held = 2 * (u64::from(capacity.connections) + u64::from(capacity.pipes)) + u64::from(capacity.sessions);
            let reserve = (64 + 16 * u64::from(threads)).min(limit / 4);
            prop_assert!(held + reserve <= limit.max(5).saturating_add(3), "{} of {}", held, limit);
            prop_assert!(connections.is_none_or(|n| capacity.connections <= n.max(1)));
            prop_assert!(sessions.is_none_or(|n| capacity.sessions <= n.max(1)));
            let more = Capacity::from_nofile(limit.saturating_add(2), threads, &TCP);
            prop_assert!(more.connections >= Capacity::from_nofile(limit, threads, &TCP).connections);
        }
    }
}
