//! The choice of the target that takes a connection, and the targets that are paused after failures.
//!
//! A target is healthy unless active checks say it is down, or it failed `fails` times in a row and its pause is not over.
//! After the pause it takes one connection as a trial when its turn comes. It takes no other one until the trial has ended, or
//! until another pause is over if the end of the trial is never reported. When no target is healthy, all are tried in the
//! usual order: what was down a moment ago may be up, and refusing the connection would certainly fail it.
//!
//! The threads of a relay share one balancer per listener, so turns and failures are counted over all connections.
use std::net::IpAddr;
use std::time::Duration;

use super::config::{Balance, Health, Target};
use super::{Ns, ns};

/// Chooses among the targets of one listener. A target is identified by its index.
#[derive(Debug, Clone)]
pub struct Balancer {
    balance: Balance,
    fails_max: u32,
    pause_ns: Ns,
    targets: Vec<State>,
    /// Among equally loaded targets, the one at this index or the next after it comes first.
    turn: usize,
    /// Scores of the targets for source-hash. A field, so that the memory is allocated once.
    scores: Vec<f64>,
}

#[derive(Debug, Clone)]
struct State {
    weight: u32,
    /// A hash of the target's address: unlike its index it stays the same when other targets are added or removed.
    identity: u64,
    /// Its current weight in smooth weighted round robin.
    credit: i64,
    /// Failures in a row.
    fails: u32,
    /// It gets no connections before this time. Zero if it has not failed too often.
    paused_until: Ns,
}

impl Balancer {
    /// A balancer whose targets are all healthy; the first target is the first in turn.
    pub fn new(balance: Balance, targets: &[Target], health: &Health) -> Self {
        let state = |target: &Target| State {
            weight: target.weight.max(1),
            identity: hash(target.endpoint.to_string().bytes()),
            credit: 0,
            fails: 0,
            paused_until: 0,
        };
        Self {
            balance,
            fails_max: health.fails,
            pause_ns: pause_ns(health.pause),
            targets: targets.iter().map(state).collect(),
            turn: 0,
            scores: Vec::new(),
        }
    }

    /// Replaces `out` with the targets to try for a new connection, the best one first.
    ///
    /// `open` holds the number of open connections of each target, and `down` whether active checks found it down; missing
    /// items count as zero and as up. A target whose pause is over is on trial when it comes first: the caller then reports
    /// [`Self::succeeded`] or [`Self::failed`].
    pub fn order(&mut self, now: Ns, client: IpAddr, open: &[u32], down: &[bool], out: &mut Vec<usize>) {
        out.clear();
        let targets = &self.targets;
        let up = |i: &usize| !down.get(*i).copied().unwrap_or(false);
        out.extend((0..targets.len()).filter(up).filter(|i| targets[*i].paused_until <= now));
        if out.is_empty() {
            out.extend(0..targets.len());
        }
        match self.balance {
            Balance::RoundRobin => self.by_turn(out),
            Balance::LeastConnections => self.by_load(open, out),
            Balance::SourceHash => self.by_source(client, out),
        }
        if let Some(first) = out.first().map(|i| &mut self.targets[*i])
            && first.paused_until != 0
            && first.paused_until <= now
        {
            first.paused_until = now.saturating_add(self.pause_ns);
        }
    }

    /// Reports that a target accepted a connection, which ends its pause.
    pub fn succeeded(&mut self, target: usize) {
        if let Some(state) = self.targets.get_mut(target) {
            (state.fails, state.paused_until) = (0, 0);
        }
    }

    /// Reports that a target could not be reached. Returns whether this begins a pause (again, after a failed trial).
    pub fn failed(&mut self, target: usize, now: Ns) -> bool {
        let Some(state) = self.targets.get_mut(target) else { return false };
        state.fails = state.fails.saturating_add(1);
        if self.fails_max == 0 || state.fails < self.fails_max {
            return false;
        }
        state.paused_until = now.saturating_add(self.pause_ns).max(1);
        true
    }

    /// Smooth weighted round robin, as nginx has it: each target's current weight grows by its weight; the target with the
    /// highest comes first, and its current weight is reduced by the sum of the weights. Weights 5, 1, 1 give a a b a c a a
    /// instead of a a a a a b c.
    fn by_turn(&mut self, out: &mut [usize]) {
        let mut total = 0;
        for i in out.iter() {
            let state = &mut self.targets[*i];
            state.credit += i64::from(state.weight);
            total += i64::from(state.weight);
        }
        out.sort_unstable_by_key(|i| (std::cmp::Reverse(self.targets[*i].credit), *i));
        if let Some(first) = out.first() {
            self.targets[*first].credit -= total;
        }
    }

    /// Orders by the load that each target would have with one more connection; equal ones take turns.
    fn by_load(&mut self, open: &[u32], out: &mut [usize]) {
        let (targets, turn, count) = (&self.targets, self.turn, self.targets.len());
        let after = |i: usize| u64::from(open.get(i).copied().unwrap_or(0)) + 1;
        // Compares after(a) / weight(a) with after(b) / weight(b) without dividing: products below 2^33 * 2^32 fit into u128.
        let load = |i: usize, other: usize| u128::from(after(i)) * u128::from(targets[other].weight);
        out.sort_unstable_by(|&a, &b| {
            let by_turn = |i: usize| (i + count - turn) % count;
            load(a, b).cmp(&load(b, a)).then(by_turn(a).cmp(&by_turn(b)))
        });
        self.turn = (turn + 1) % count.max(1);
    }

    /// Weighted rendezvous hashing: each target has a score for this client, and the highest wins. The scores of the others
    /// do not change when a target is removed, so only its own clients move, in proportion to the weights.
    fn by_source(&mut self, client: IpAddr, out: &mut [usize]) {
        let client = match client.to_canonical() {
            IpAddr::V4(ip) => hash(ip.octets()),
            IpAddr::V6(ip) => hash(ip.octets()),
        };
        self.scores.clear();
        self.scores.extend(self.targets.iter().map(|state| {
            // The upper 53 bits of the hash as a fraction strictly between 0 and 1.
            let fraction = ((mix(client ^ state.identity) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            -f64::from(state.weight) / fraction.ln()
        }));
        out.sort_unstable_by(|a, b| self.scores[*b].total_cmp(&self.scores[*a]).then(a.cmp(b)));
    }
}

/// The pause in ns, at least 1, so that a trial is a single connection.
fn pause_ns(pause: Duration) -> Ns {
    ns(pause).max(1)
}

/// FNV-1a, which is the same in every process and release, so that clients keep their target across restarts and hosts.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mix(bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// The finalizer of SplitMix64: every bit of the input changes half of the output's.
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use proptest::prelude::*;

    use super::super::config::Endpoint;
    use super::*;

    const SECOND: Ns = 1_000_000_000;
    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    /// Targets on ports 1, 2, ... with these weights.
    fn targets(weights: &[u32]) -> Vec<Target> {
        let target = |(i, weight): (usize, &u32)| Target {
            endpoint: Endpoint::Ip(SocketAddr::from(([127, 0, 0, 1], i as u16 + 1))),
            weight: *weight,
        };
        weights.iter().enumerate().map(target).collect()
    }

    fn balancer(balance: Balance, weights: &[u32]) -> Balancer {
        Balancer::new(balance, &targets(weights), &Health { fails: 2, pause: Duration::from_secs(10), check: None })
    }

    fn order(balancer: &mut Balancer, now: Ns, down: &[bool]) -> Vec<usize> {
        let mut out = vec![99];
        balancer.order(now, CLIENT, &[], down, &mut out);
        out
    }

    fn nth(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    fn is_paused(balancer: &Balancer, target: usize, now: Ns) -> bool {
        balancer.targets[target].paused_until > now
    }

    #[test]
    fn round_robin_spreads_turns_by_weight() {
        let mut balancer = balancer(Balance::RoundRobin, &[5, 1, 1]);
        let firsts: Vec<_> = (0..14).map(|_| order(&mut balancer, 0, &[])[0]).collect();
        assert_eq!(firsts, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn least_connections_divides_by_weight_and_equal_loads_take_turns() {
        let mut uneven = balancer(Balance::LeastConnections, &[1, 2, 1]);
        let mut by = |open: &[u32]| {
            let mut out = Vec::new();
            uneven.order(0, CLIENT, open, &[], &mut out);
            out
        };
        assert_eq!(by(&[0, 4, 1]), [0, 2, 1]);
        assert_eq!(by(&[0, 0, 0])[0], 1, "twice the weight");
        let mut even = balancer(Balance::LeastConnections, &[1, 1, 1]);
        let firsts: Vec<_> = (0..6).map(|_| order(&mut even, 0, &[])[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn source_hash_moves_only_the_clients_of_a_removed_target() {
        let mut all = balancer(Balance::SourceHash, &[1, 1, 2]);
        let mut fewer = Balancer::new(Balance::SourceHash, &targets(&[1, 1]), &Health::default());
        let (mut first_of, mut counts) = (Vec::new(), [0u32; 3]);
        for client in (0..8000).map(nth) {
            let (mut a, mut b, mut without) = (Vec::new(), Vec::new(), Vec::new());
            all.order(0, client, &[], &[], &mut a);
            all.order(0, client, &[9, 9, 9], &[false, false, true], &mut b);
            fewer.order(0, client, &[], &[], &mut without);
            assert_eq!(b, without, "clients of the others do not move, whether a target is down or removed");
            assert_eq!(a.iter().copied().filter(|i| *i != 2).collect::<Vec<_>>(), b);
            counts[a[0]] += 1;
            first_of.push(a[0]);
        }
        // Shares of 2000, 2000 and 4000; six standard deviations are 270.
        assert!(counts[0].abs_diff(2000) < 270 && counts[1].abs_diff(2000) < 270 && counts[2].abs_diff(4000) < 270);
        // The same for the IPv6 form of an address, and in the balancer of another process.
        let (mut mapped, mut out) = (balancer(Balance::SourceHash, &[1, 1, 2]), Vec::new());
        for n in 0..100 {
            mapped.order(0, Ipv4Addr::from_bits(n).to_ipv6_mapped().into(), &[], &[], &mut out);
            assert_eq!(out[0], first_of[n as usize]);
        }
    }

    #[test]
    fn failures_in_a_row_pause_a_target_until_a_trial_succeeds() {
        let mut balancer = balancer(Balance::RoundRobin, &[1, 1]);
        assert!(!balancer.failed(0, 0));
        balancer.succeeded(0);
        assert!(!balancer.failed(0, 0) && balancer.failed(0, 0) && is_paused(&balancer, 0, 0));
        for _ in 0..5 {
            assert_eq!(order(&mut balancer, 9 * SECOND, &[]), [1]);
        }
        // Its pause is over: it comes first once, and gets nothing while the trial runs.
        let later: Vec<_> = (0..6).map(|_| order(&mut balancer, 10 * SECOND, &[])[0]).collect();
        assert_eq!(later.iter().filter(|first| **first == 0).count(), 1, "{later:?}");
        assert!(balancer.failed(0, 11 * SECOND), "a failed trial pauses it again at once");
        assert_eq!(order(&mut balancer, 20 * SECOND, &[]), [1]);
        assert!((0..3).any(|_| order(&mut balancer, 21 * SECOND, &[])[0] == 0));
        balancer.succeeded(0);
        assert_eq!(order(&mut balancer, 21 * SECOND, &[]).len(), 2);
    }

    #[test]
    fn a_trial_whose_end_is_never_reported_is_repeated() {
        let mut balancer = balancer(Balance::SourceHash, &[1]);
        balancer.failed(0, 0);
        balancer.failed(0, 0);
        assert_eq!(order(&mut balancer, 10 * SECOND, &[]), [0]);
        assert!(is_paused(&balancer, 0, 19 * SECOND) && !is_paused(&balancer, 0, 20 * SECOND));
    }

    #[test]
    fn when_all_are_down_all_are_tried() {
        let mut balancer = balancer(Balance::RoundRobin, &[1, 1, 1]);
        assert_eq!(order(&mut balancer, 0, &[true, true, true]).len(), 3);
        for i in 0..3 {
            balancer.failed(i, 0);
            balancer.failed(i, 0);
        }
        let firsts: std::collections::HashSet<_> = (0..3).map(|_| order(&mut balancer, 0, &[])[0]).collect();
        assert_eq!(firsts.len(), 3, "in turn");
        assert_eq!(order(&mut balancer, 0, &[true]).len(), 3);
    }

    #[test]
    fn with_fails_0_no_target_is_paused() {
        let health = Health { fails: 0, ..Health::default() };
        let mut balancer = Balancer::new(Balance::RoundRobin, &targets(&[1, 1]), &health);
        assert!((0..100).all(|_| !balancer.failed(0, 0)));
        assert_eq!(order(&mut balancer, 0, &[]).len(), 2);
        let mut of_none = Balancer::new(Balance::LeastConnections, &[], &health);
        assert!(order(&mut of_none, 0, &[]).is_empty());
    }

    proptest! {
        #[test]
        fn an_order_has_each_healthy_target_once(
            kind in 0usize..3,
            weights in prop::collection::vec(any::<u32>(), 1..8),
            steps in prop::collection::vec((any::<u32>(), 0u64..20 * SECOND, 0usize..9, any::<bool>(), any::<[bool; 8]>()), 1..60),
        ) {
            let kind = [Balance::RoundRobin, Balance::LeastConnections, Balance::SourceHash][kind];
            let (mut balancer, mut now, mut out) = (balancer(kind, &weights), 0, Vec::new());
            for (client, pause, target, success, down) in steps {
                now += pause;
                let healthy: Vec<_> =
                    (0..weights.len()).filter(|i| !down[*i] && !is_paused(&balancer, *i, now)).collect();
                balancer.order(now, nth(client), &[client, client / 2, 7], &down, &mut out);
                let mut sorted = out.clone();
                sorted.sort_unstable();
                let expected = if healthy.is_empty() { (0..weights.len()).collect() } else { healthy };
                prop_assert_eq!(sorted, expected);
                if success { balancer.succeeded(target) } else { balancer.failed(target, now); }
            }
        }

        #[test]
        fn round_robin_keeps_the_weights(weights in prop::collection::vec(1u32..20, 1..6)) {
            let mut balancer = balancer(Balance::RoundRobin, &weights);
            let total: u32 = weights.iter().sum();
            let mut counts = vec![0; weights.len()];
            for _ in 0..3 * total {
                counts[order(&mut balancer, 0, &[])[0]] += 1;
            }
            let expected: Vec<u32> = weights.iter().map(|weight| 3 * weight).collect();
            prop_assert_eq!(counts, expected);
        }
    }
}
