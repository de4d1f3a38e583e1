//! How long requests take, estimated from what slices show of them.
//!
//! The end of a slice cuts requests: they took at least as long as was seen. Without them only the short ones would count, so the
//! distribution is estimated with them (Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 1958). Where
//! requests are longer than slices even that knows too little, and Little's law tells: the mean number of outstanding requests
//! divided by their rate is their mean time, whatever was cut.

/// The estimated mean may differ by this factor from that of Little's law.
const LITTLE_FACTOR: f64 = 2.0;
/// A percentile is known only if at least this share of the requests would have been seen for so long.
const FOLLOWED_MIN: f64 = 0.1;
/// Rounding of the product of shares.
const EPSILON: f64 = 1e-9;

/// The time of a request as far as it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// From its arrival.
    pub ns: u64,
    /// To the end of the observation (false sorts first), or to its reply.
    pub whole: bool,
}

/// Percentiles; None where what was seen does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// Median.
    pub p50_ns: Option<u64>,
    /// 95th percentile.
    pub p95_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
}

/// The percentiles of requests of which this was seen. `little_ns` is their mean time by Little's law, where slices cut them.
pub fn estimate(mut seen: Vec<Seen>, little_ns: Option<f64>) -> Latency {
    // At the same time, those that ended come before those that were cut.
    seen.sort_unstable_by_key(|one| (one.ns, !one.whole));
    let mut latency = Latency::default();
    // The share of requests that take longer, and the share of those that would have been seen for longer.
    let (mut takes_longer, mut followed) = (1.0, 1.0);
    let (mut left, mut mean_ns, mut before) = (seen.len(), 0.0, 0);
    for one in seen {
        mean_ns += takes_longer * (one.ns - before) as f64;
        before = one.ns;
        let others = (left - 1) as f64 / left as f64;
        if one.whole {
            takes_longer *= others;
            let known = |share: f64| (takes_longer <= share + EPSILON && followed >= FOLLOWED_MIN).then_some(one.ns);
            latency.p50_ns = latency.p50_ns.or_else(|| known(0.5));
            latency.p95_ns = latency.p95_ns.or_else(|| known(0.05));
            latency.p99_ns = latency.p99_ns.or_else(|| known(0.01));
        } else {
            followed *= others;
        }
        left -= 1;
    }
    let contradicts = |little: f64| mean_ns * LITTLE_FACTOR < little || little * LITTLE_FACTOR < mean_ns;
    if little_ns.is_some_and(contradicts) { Latency::default() } else { latency }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(ns: u64) -> Seen {
        Seen { ns, whole: true }
    }

    fn cut(ns: u64) -> Seen {
        Seen { ns, whole: false }
    }

    #[test]
    fn without_cuts_they_are_the_ranks() {
        let seen: Vec<Seen> = (1..=100).rev().map(whole).collect();
        assert_eq!(estimate(seen, None), Latency { p50_ns: Some(50), p95_ns: Some(95), p99_ns: Some(99) });
        assert_eq!(estimate(vec![], Some(1.0)), Latency::default());
        assert_eq!(estimate(vec![whole(7)], None), Latency { p50_ns: Some(7), p95_ns: Some(7), p99_ns: Some(7) });
    }

    #[test]
    fn requests_that_were_cut_were_longer_than_what_was_seen() {
        // Slices of 50 show only the few whole requests of 44 that begin with them.
        let seen = [vec![whole(44); 6], (1..40).map(cut).collect()].concat();
        assert_eq!(estimate(seen, Some(45.0)).p50_ns, Some(44));
        // Ten short ones, and ten of which more is not known.
        let seen = [vec![whole(1); 10], vec![cut(50); 11]].concat();
        assert_eq!(estimate(seen, None), Latency::default());
        let seen = [vec![whole(1); 11], vec![cut(50); 10]].concat();
        assert_eq!(estimate(seen, None), Latency { p50_ns: Some(1), ..Latency::default() });
        // A single one that just fits into a slice says nothing of all the others.
        let seen = [(0..100).map(cut).collect(), vec![whole(99)]].concat();
        assert_eq!(estimate(seen, None), Latency::default());
    }

    #[test]
    fn what_contradicts_littles_law_is_no_percentile() {
        assert_eq!(estimate(vec![whole(1); 100], Some(45.0)), Latency::default());
        assert_eq!(estimate(vec![whole(100); 100], Some(45.0)), Latency::default());
        assert_eq!(estimate(vec![whole(30); 100], Some(45.0)).p50_ns, Some(30));
    }
}
