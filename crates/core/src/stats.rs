//! Small statistics over durations and counts. Nothing here knows what the numbers mean. Statistics of ranks are in [`ranks`].
use crate::sorting::StableSort as _;

pub mod ranks;

/// `a / b`, and 0 when that is not a number (an empty denominator).
pub fn ratio(a: f64, b: f64) -> f64 {
    let r = a / b;
    if b > 0.0 && r.is_finite() { r } else { 0.0 }
}

/// The `q` quantile (0..=1) of values in any order, by the nearest-rank method; None when there are none.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    if sorted.is_empty() {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The `q` quantile of values that each occur `weight` times; None when the weights sum to nothing.
pub fn weighted_quantile(values: &[(f64, f64)], q: f64) -> Option<f64> {
    let mut sorted: Vec<(f64, f64)> =
        values.iter().copied().filter(|(v, w)| v.is_finite() && w.is_finite() && *w > 0.0).collect();
    sorted.stable_sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let total: f64 = sorted.iter().map(|(_, w)| w).sum();
    let target = q.clamp(0.0, 1.0) * total;
    let mut sum = 0.0;
    for (value, weight) in &sorted {
        sum += weight;
        if sum >= target {
            return Some(*value);
        }
    }
    sorted.last().map(|(v, _)| *v)
}

/// The upper bound, in microseconds, of the bucket that holds the `q` quantile of a log2 histogram (bucket 0 is < 1 us,
/// bucket i is < 2^i us); None when it is empty.
pub fn log2_quantile_us(buckets: &[u64], q: f64) -> Option<f64> {
    let total: f64 = buckets.iter().map(|&c| c as f64).sum();
    if total <= 0.0 {
        return None;
    }
    let target = q.clamp(0.0, 1.0) * total;
    let mut sum = 0.0;
    for (i, &count) in buckets.iter().enumerate() {
        sum += count as f64;
        if count > 0 && sum >= target {
            return Some(2f64.powi(i.min(62) as i32));
        }
    }
    None
}

/// The mean of values, and how sure it is. Student's t, so values are taken as a sample of a normal distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanInterval {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 99 % interval.
    pub half: f64,
    /// The mean from which on an interval of this width excludes zero in 80 % of all samples.
    pub detectable: f64,
}

/// The mean of at least two values with its 99 % interval.
pub fn mean_interval(values: &[f64]) -> Option<MeanInterval> {
    let n = values.len() as f64;
    let freedom = values.len().checked_sub(2)?;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();
    // Beyond the tables the normal distribution's quantiles, with the first term of Fisher's expansion.
    let tail = (freedom + 1) as f64;
    let t995 = T_995.get(freedom).copied().unwrap_or(2.576 + 5.2 / tail);
    let t800 = T_800.get(freedom).copied().unwrap_or(0.842 + 0.37 / tail);
    Some(MeanInterval { mean, half: t995 * error, detectable: (t995 + t800) * error })
}

/// The 0.995 quantile of Student's t with 1, 2, ... degrees of freedom.
const T_995: [f64; 20] = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921,
    2.898, 2.878, 2.861, 2.845,
];
/// The same of the 0.8 quantile.
const T_800: [f64; 5] = [1.376, 1.061, 0.978, 0.941, 0.920];

/// Disjoint, sorted spans of time, and how much of another span they cover.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spans {
    spans: Vec<(u64, u64)>,
    /// The length of the spans before each, and of all.
    before: Vec<u64>,
}

impl Spans {
    /// The union of `(begin, end)` pairs in any order.
    pub fn union(mut raw: Vec<(u64, u64)>) -> Spans {
        raw.retain(|(b, e)| e > b);
        raw.sort_unstable();
        let mut spans: Vec<(u64, u64)> = Vec::with_capacity(raw.len());
        for (begin, end) in raw {
            match spans.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => spans.push((begin, end)),
            }
        }
        let mut before = vec![0];
        before.extend(spans.iter().scan(0, |sum, (begin, end)| {
            *sum += end - begin;
            Some(*sum)
        }));
        Spans { spans, before }
    }

    /// Length of the part of `[begin, end)` that the spans cover. Takes the logarithm of their number.
    pub fn covered(&self, begin: u64, end: u64) -> u64 {
        let from = self.spans.partition_point(|s| s.1 <= begin);
        let to = self.spans.partition_point(|s| s.0 < end);
        if from >= to {
            return 0;
        }
        let outside = begin.saturating_sub(self.spans[from].0) + self.spans[to - 1].1.saturating_sub(end);
        self.before[to] - self.before[from] - outside
    }

    /// How many they are, those that touched each other counted once.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// There is no span.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

/// Spans of time that may overlap, each with a weight, and how much of another span they cover: the sum over all of them of the
/// weight times the length of the overlap.
#[derive(Debug, Clone, Default)]
pub struct Weighted {
    begins: Steps,
    ends: Steps,
}

/// Times in ascending order with the sums of the weights, and of the weights times the times, up to each.
#[derive(Debug, Clone, Default)]
struct Steps {
    at: Vec<u64>,
    sums: Vec<(f64, f64)>,
}

impl Steps {
    fn new(mut steps: Vec<(u64, f64)>) -> Steps {
        steps.sort_unstable_by_key(|step| step.0);
        let sums = steps.iter().scan((0.0, 0.0), |sum, (at, weight)| {
            *sum = (sum.0 + weight, sum.1 + weight * *at as f64);
            Some(*sum)
        });
        Steps { sums: sums.collect(), at: steps.into_iter().map(|step| step.0).collect() }
    }

    /// The sum of the weight times the time that has passed since each step before `now`.
    fn since(&self, now: u64) -> f64 {
        let before = self.at.partition_point(|at| *at < now);
        let (weight, product) = before.checked_sub(1).map_or((0.0, 0.0), |last| self.sums[last]);
        weight * now as f64 - product
    }
}

impl Weighted {
    /// Spans `(begin, end)` in any order, with their weights.
    pub fn new(spans: Vec<((u64, u64), f64)>) -> Weighted {
        let begins = spans.iter().map(|((begin, _), weight)| (*begin, *weight)).collect();
        let ends = spans.iter().map(|((begin, end), weight)| (*end.max(begin), *weight)).collect();
        Weighted { begins: Steps::new(begins), ends: Steps::new(ends) }
    }

    /// The weighted length within `[begin, end)`. Takes the logarithm of their number.
    pub fn covered(&self, begin: u64, end: u64) -> f64 {
        let until = |now| self.begins.since(now) - self.ends.since(now);
        (until(end) - until(begin)).max(0.0)
    }
}

/// Finds the largest of neighbouring numbers.
#[derive(Debug, Clone, Default)]
pub struct Largest {
    /// A binary tree whose leaves are the numbers; each node has the index of the first of the largest below it.
    tree: Vec<usize>,
    numbers: Vec<u64>,
}

impl Largest {
    /// Of these numbers.
    pub fn of(numbers: Vec<u64>) -> Largest {
        let n = numbers.len();
        let mut largest = Largest { tree: vec![0; 2 * n], numbers };
        (0..n).for_each(|i| largest.tree[n + i] = i);
        for node in (1..n).rev() {
            largest.tree[node] = largest.larger(largest.tree[2 * node], largest.tree[2 * node + 1]);
        }
        largest
    }

    /// The index of the first of the largest numbers in a range; None when that is empty. Takes the logarithm of its length.
    pub fn within(&self, range: std::ops::Range<usize>) -> Option<usize> {
        let n = self.numbers.len();
        let (mut from, mut to) = (range.start + n, range.end.min(n) + n);
        let mut found: Option<usize> = None;
        let mut take = |node: usize| {
            let index = self.tree[node];
            found = Some(found.map_or(index, |best| self.larger(best, index)));
        };
        while from < to {
            if from % 2 == 1 {
                take(from);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                take(to);
            }
            (from, to) = (from / 2, to / 2);
        }
        found
    }

    /// Whether this number is 0.
    pub fn is_zero(&self, index: usize) -> bool {
        self.numbers.get(index).is_none_or(|number| *number == 0)
    }

    fn larger(&self, a: usize, b: usize) -> usize {
        let key = |i: usize| (self.numbers[i], std::cmp::Reverse(i));
        if key(b) > key(a) { b } else { a }
    }
}

/// Length of the overlap of two half-open spans.
pub fn overlap(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_nearest_rank() {
        let v: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&v, 0.5), Some(50.0));
        assert_eq!(quantile(&v, 0.99), Some(99.0));
        assert_eq!(quantile(&v, 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[f64::NAN], 0.5), None);
    }

    #[test]
    fn weights_move_the_median() {
        assert_eq!(weighted_quantile(&[(1.0, 1.0), (10.0, 9.0)], 0.5), Some(10.0));
        assert_eq!(weighted_quantile(&[(1.0, 0.0)], 0.5), None);
    }

    #[test]
    fn intervals_by_student() {
        // Sleep data of Student 1908, the two drugs' difference: mean 1.58, standard error 0.389.
        let gain = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
        let found = mean_interval(&gain).expect("ten values");
        assert!((found.mean - 1.58).abs() < 1e-9 && (found.half - 3.250 * 0.389).abs() < 0.005, "{found:?}");
        assert!(found.detectable > found.half && found.detectable < 2.0 * found.half);
        assert_eq!(mean_interval(&[1.0]), None);
        assert_eq!(mean_interval(&[3.0, 3.0]).map(|found| (found.mean, found.half)), Some((3.0, 0.0)));
        let beyond =
            |n: usize| mean_interval(&(0..n).map(|i| (i % 2) as f64).collect::<Vec<_>>()).expect("values").half;
        assert!(beyond(21) > beyond(22) && beyond(22) > beyond(23), "the tables go on smoothly");
    }

    #[test]
    fn log2_histogram() {
        assert_eq!(log2_quantile_us(&[0, 0, 98, 0, 2], 0.5), Some(4.0));
        assert_eq!(log2_quantile_us(&[0, 0, 98, 0, 2], 0.99), Some(16.0));
        assert_eq!(log2_quantile_us(&[], 0.99), None);
    }

    #[test]
    fn spans_merge_and_cover() {
        let s = Spans::union(vec![(10, 20), (15, 30), (40, 50), (60, 60)]);
        assert_eq!(s.covered(0, 100), 30);
        assert_eq!(s.covered(25, 45), 10);
        assert_eq!(s.covered(30, 40), 0);
    }

    proptest::proptest! {
        #[test]
        fn sums_in_advance_are_those_one_by_one(
            raw in proptest::collection::vec((0u64..100, 0u64..40), 0..20), begin in 0u64..120, length in 0u64..120,
        ) {
            let spans: Vec<(u64, u64)> = raw.iter().map(|(begin, ns)| (*begin, begin + ns)).collect();
            let end = begin + length;
            let union = Spans::union(spans.clone());
            let inside = |at: &u64| spans.iter().any(|s| (s.0..s.1).contains(at));
            proptest::prop_assert_eq!(union.covered(begin, end), (begin..end).filter(inside).count() as u64);
            let weighted = Weighted::new(spans.iter().map(|s| (*s, 0.5)).collect());
            let sum: f64 = spans.iter().map(|s| 0.5 * overlap(*s, (begin, end)) as f64).sum();
            proptest::prop_assert!((weighted.covered(begin, end) - sum).abs() < 1e-6);
            let numbers: Vec<u64> = raw.iter().map(|(_, ns)| *ns).collect();
            let (from, to) = (begin as usize % 20, end as usize % 25);
            let first = (from..to.min(numbers.len())).rev().max_by_key(|&i| numbers[i]);
            proptest::prop_assert_eq!(Largest::of(numbers.clone()).within(from..to), first);
        }
    }
}
