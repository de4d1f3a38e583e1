//! Times of requests that slices cut: synthetic services, watched in slices of every length.
use parshall_evidence::Service;
use parshall_evidence::timeline::Op;
use proptest::prelude::*;

use super::services;
use crate::stats::ratio;
use crate::testkit::timeline::{Script, served_socket};

const MS: u64 = 1_000_000;
const WINDOW_NS: u64 = 5_000 * MS;

/// Clients that ask one request at a time each, and wait a while between two.
#[derive(Debug, Clone)]
struct Load {
    clients: u64,
    think_ns: u64,
    /// Times that requests take, in turns.
    takes_ns: Vec<u64>,
    /// A request comes in two parts, the second half-way.
    in_parts: bool,
}

impl Load {
    /// The service as the probes see it within slices.
    fn seen(&self, slices: &[(u64, u64)]) -> Service {
        let mut script = Script::new();
        script.timeline.slices = slices.to_vec();
        for client in 0..self.clients {
            let id = client + 1;
            script = script.socket(id, served_socket(7000), 101);
            let begin = client * (self.takes_ns[0] + self.think_ns) / self.clients;
            script = script.calls(id, self.calls(client, begin).filter(|call| within(slices, call.3)));
        }
        services(&script.timeline).into_iter().next().expect("a service")
    }

    /// The calls on one connection.
    fn calls(&self, client: u64, begin: u64) -> impl Iterator<Item = (u32, Op, u64, u64)> {
        let (mut at, mut n) = (begin, client as usize);
        let rounds = std::iter::from_fn(move || {
            let takes = self.takes_ns[n % self.takes_ns.len()];
            let arrived = at;
            (at, n) = (arrived + takes + self.think_ns, n + self.clients as usize);
            (arrived < WINDOW_NS).then_some((arrived, takes))
        });
        rounds.flat_map(|(arrived, takes)| {
            let part = (self.in_parts).then_some((101, Op::Receive, arrived + takes / 2, arrived + takes / 2));
            let first = (101, Op::Receive, arrived, arrived);
            [Some(first), part, Some((101, Op::Send, arrived + takes, arrived + takes))].into_iter().flatten()
        })
    }

    /// A percentile of all times.
    fn percentile(&self, q: f64) -> f64 {
        let mut sorted = self.takes_ns.clone();
        sorted.sort_unstable();
        sorted[((sorted.len() as f64 * q).ceil() as usize).saturating_sub(1)] as f64
    }

    fn mean(&self) -> f64 {
        self.takes_ns.iter().sum::<u64>() as f64 / self.takes_ns.len() as f64
    }
}

fn within(slices: &[(u64, u64)], at: u64) -> bool {
    slices.iter().any(|&(begin, end)| begin <= at && at <= end)
}

fn slices(length_ns: u64, gap_ns: u64) -> Vec<(u64, u64)> {
    let begins = (0..).map(|n| n * (length_ns + gap_ns)).take_while(|begin| *begin < WINDOW_NS);
    begins.map(|begin| (begin, (begin + length_ns).min(WINDOW_NS))).collect()
}

/// Times of 0.1 to 500 ms: alike, spread evenly up to twice the mean, or mostly short with some long ones.
fn load() -> impl Strategy<Value = Load> {
    let takes = (2.0..5.7_f64, 0..3_u8).prop_map(|(power, shape)| {
        let typical = (10_f64.powf(power) * 1e3) as u64;
        // 97 is prime, and 61 a generator: evenly spread, in no order.
        let spread = (0..97_u64).map(|n| n * 61 % 97);
        match shape {
            0 => vec![typical; 97],
            1 => spread.map(|n| typical / 10 + typical * 2 * n / 97).collect(),
            _ => spread.map(|n| if n < 12 { typical } else { typical / 20 + 1 }).collect::<Vec<u64>>(),
        }
    });
    (takes, 1..40_u64, 0..3_u64, any::<bool>()).prop_map(|(takes_ns, clients, think, in_parts)| {
        let mean = takes_ns.iter().sum::<u64>() / takes_ns.len() as u64;
        // At most some 20,000 requests, unless one client alone has more.
        let busy = (WINDOW_NS / mean.max(1)).max(1);
        Load { clients: clients.min((20_000 / busy).max(1)), think_ns: mean * think, takes_ns, in_parts }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]
    #[test]
    fn percentiles_of_slices_are_near_or_absent(
        load in load(),
        length_ms in 20..600_u64,
        gap in 0..8_u64,
    ) {
        let slices = slices(length_ms * MS, length_ms * MS * gap / 2);
        let seen = load.seen(&slices);
        // Of fewer requests there is no 99th percentile to be near to, and where slices cut most of them chance moves the median too far.
        prop_assume!(seen.requests >= 400);
        let near = |estimate: Option<u64>, truth: f64, by: f64| {
            estimate.is_none_or(|ns| (ns as f64) <= truth * (1.0 + by) && (ns as f64) >= truth * (1.0 - by))
        };
        prop_assert!(near(seen.p50_ns, load.percentile(0.5), 0.2), "p50 {:?}, not {}", seen.p50_ns, load.percentile(0.5));
        prop_assert!(near(seen.p99_ns, load.percentile(0.99), 0.5), "p99 {:?}, not {}", seen.p99_ns, load.percentile(0.99));
        if load.percentile(1.0) * 3.0 <= (length_ms * MS) as f64 && slices.len() > 1 {
            let mean = ratio(seen.outstanding_ns as f64, seen.requests as f64);
            prop_assert!(mean <= 2.0 * load.mean() && 2.0 * mean >= load.mean(), "mean {mean}, not {}", load.mean());
        }
        // Where clients ask once in as long as a slice lasts, each slice may cut the request of each.
        let cycle_ns = load.percentile(1.0) + load.think_ns as f64;
        if cycle_ns * 3.0 <= (length_ms * MS) as f64 && slices.len() > 1 {
            prop_assert!(seen.p50_ns.is_some(), "requests of {} in slices of {length_ms} ms", load.percentile(1.0));
        }
    }
}

#[test]
fn requests_longer_than_the_slices_have_no_percentile() {
    // Twelve clients, 44 ms each in two parts: in slices of 50 ms the second part looked like a request of 142 us.
    let load = Load { clients: 12, think_ns: MS, takes_ns: vec![44 * MS], in_parts: true };
    let seen = load.seen(&slices(50 * MS, 950 * MS));
    assert!(seen.p50_ns.is_none_or(|ns| ns.abs_diff(44 * MS) < 9 * MS), "{:?}", seen.p50_ns);
    let long = load.seen(&slices(150 * MS, 850 * MS));
    assert!(long.p50_ns.is_some_and(|ns| ns.abs_diff(44 * MS) < 9 * MS), "{:?}", long.p50_ns);
    assert!(long.p99_ns.is_none_or(|ns| ns.abs_diff(44 * MS) < 22 * MS), "{:?}", long.p99_ns);
}

#[test]
fn the_second_part_of_a_long_request_is_no_shorter_one() {
    // In slices of 40 ms and less, most of what is seen whole is the second half of a request, 18 ms after the first one.
    let load = Load { clients: 18, think_ns: 36_365_609, takes_ns: vec![36_365_609], in_parts: true };
    // A short run of the properties tries fewer lengths.
    let step_ms = if ProptestConfig::default().cases < 64 { 7 } else { 3 };
    for length_ms in (20..120).step_by(step_ms) {
        for gap_ms in [0, 50, 90, 200] {
            let seen = load.seen(&slices(length_ms * MS, gap_ms * MS));
            let near = seen.p50_ns.is_none_or(|ns| ns.abs_diff(load.takes_ns[0]) < 7 * MS);
            assert!(near, "{:?} in slices of {length_ms} ms, {gap_ms} ms apart", seen.p50_ns);
        }
    }
}
