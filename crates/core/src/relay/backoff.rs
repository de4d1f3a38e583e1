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

/// What follows from a failure.
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
/// The most connections, whatever the limit: as many as the keys of [`super::deadlines::Deadlines`] can hold.
const CONNECTIONS_MAX: u64 = super::slots::SLOTS_MAX as u64;

/// How much fits into the process's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Open connections, two descriptors each.
    pub connections: u32,
    /// Pipes, two descriptors each.
    pub pipes: u32,
}

impl Capacity {
    /// From RLIMIT_NOFILE, less what the listeners hold.
    ///
    /// Kept back are 64 descriptors and 16 per thread, or a quarter if that is less. An eighth of the rest is for pipes, at
    /// most 256 of them; connections get what is left. 1024 descriptors and two threads: 96 kept back, 58 pipes (116),
    /// 406 connections (812). A connection and a pipe fit always, even if opening them then fails.
    pub fn from_nofile(limit: u64, threads: u32) -> Self {
        let reserve = (RESERVE + RESERVE_PER_THREAD * u64::from(threads)).min(limit / 4);
        let usable = limit - reserve;
        let pipes = (usable / 8 / 2).clamp(1, PIPES_MAX);
        let connections = (usable.saturating_sub(2 * pipes) / 2).clamp(1, CONNECTIONS_MAX);
        Self { connections: connections as u32, pipes: pipes as u32 }
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

    #[test]
    fn the_documented_example() {
        assert_eq!(Capacity::from_nofile(1024, 2), Capacity { connections: 406, pipes: 58 });
        assert_eq!(Capacity::from_nofile(64, 2), Capacity { connections: 21, pipes: 3 });
        assert_eq!(Capacity::from_nofile(1 << 20, 8).pipes, 256);
    }

    proptest! {
        #[test]
        fn all_of_it_fits(limit in prop_oneof![0u64..5000, any::<u64>()], threads in any::<u32>()) {
            let capacity = Capacity::from_nofile(limit, threads);
            prop_assert!(capacity.connections >= 1 && capacity.pipes >= 1);
            let held = 2 * (u64::from(capacity.connections) + u64::from(capacity.pipes));
            let reserve = (64 + 16 * u64::from(threads)).min(limit / 4);
            prop_assert!(held + reserve <= limit.max(5), "{} of {}", held, limit);
            prop_assert!(Capacity::from_nofile(limit.saturating_add(2), threads).connections >= capacity.connections);
        }
    }
}
