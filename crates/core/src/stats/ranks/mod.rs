//! Statistics that rest on ranks: the signed-rank test of paired values, the rank-sum test of two samples, and the
//! Hodges-Lehmann estimates and intervals that invert them.
//!
//! They hold for any symmetric (paired) or equally shaped (two samples) distribution, and one wild value moves them no further than
//! any other value on its side. Null distributions are exact, from counts of all orders; tests compare them with SciPy's.
use std::collections::BTreeMap;

/// An interval for an effect, with both ends in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    #[allow(missing_docs)]
    pub low: f64,
    #[allow(missing_docs)]
    pub high: f64,
}

impl Interval {
    /// Zero is outside.
    pub fn excludes_zero(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    /// All of it is closer to zero than `margin`.
    pub fn is_within(self, margin: f64) -> bool {
        self.low > -margin && self.high < margin
    }

    /// Half its width.
    pub fn half(self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Differences of paired values (Wilcoxon's signed-rank test).
#[derive(Debug, Clone, PartialEq)]
pub struct SignedRank {
    differences: Vec<f64>,
    /// The means of all pairs of differences, each with itself too (Walsh averages), ascending.
    means: Vec<f64>,
}

impl SignedRank {
    /// None without any difference, or with one that is not finite.
    pub fn new(differences: &[f64]) -> Option<Self> {
        if differences.is_empty() || differences.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let from = |i: usize| differences[i..].iter().map(move |other| f64::midpoint(differences[i], *other));
        let mut means: Vec<f64> = (0..differences.len()).flat_map(from).collect();
        means.sort_by(f64::total_cmp);
        Some(Self { differences: differences.to_vec(), means })
    }

    /// How many differences there are.
    pub fn count(&self) -> usize {
        self.differences.len()
    }

    /// The Hodges-Lehmann estimate of the centre: the median of the means.
    pub fn estimate(&self) -> f64 {
        median_of_sorted(&self.means)
    }

    /// The interval for the centre that is wrong in at most the share `alpha` of all samples; None when there are too few
    /// differences for any. Where differences are tied it is wider than it need be.
    pub fn interval(&self, alpha: f64) -> Option<Interval> {
        let n = self.differences.len();
        let sums: Vec<f64> = (1..=n).fold(vec![1.0], |ways, rank| with_rank(&ways, rank));
        ends(&self.means, &sums, alpha)
    }

    /// Two-sided probability of ranks at least as uneven as these where the centre is zero. Tied differences share their ranks; zeros
    /// count half on either side.
    pub fn p(&self) -> f64 {
        let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for value in &self.differences {
            by_size.entry(value.abs().to_bits()).or_default().push(*value);
        }
        // Twice the ranks, so that shared ones are whole numbers.
        let (mut below, mut positive, mut ways) = (0, 0, vec![1.0]);
        for alike in by_size.values() {
            let rank = 2 * below + alike.len() + 1;
            below += alike.len();
            for value in alike.iter().filter(|value| **value != 0.0) {
                ways = with_rank(&ways, rank);
                positive += if *value > 0.0 { rank } else { 0 };
            }
        }
        two_sided(&ways, positive)
    }
}

/// Two samples that belong to no pairs (the rank-sum test of Wilcoxon, Mann and Whitney).
#[derive(Debug, Clone, PartialEq)]
pub struct RankSum {
    counts: (usize, usize),
    /// Every value of the second sample minus every one of the first, ascending.
    shifts: Vec<f64>,
}

impl RankSum {
    /// None where a sample is empty or has a value that is not finite.
    pub fn new(first: &[f64], second: &[f64]) -> Option<Self> {
        if first.is_empty() || second.is_empty() || first.iter().chain(second).any(|value| !value.is_finite()) {
            return None;
        }
        let mut shifts: Vec<f64> = second.iter().flat_map(|b| first.iter().map(move |a| b - a)).collect();
        shifts.sort_by(f64::total_cmp);
        Some(Self { counts: (first.len(), second.len()), shifts })
    }

    /// The Hodges-Lehmann estimate of how far the second sample lies above the first.
    pub fn estimate(&self) -> f64 {
        median_of_sorted(&self.shifts)
    }

    /// As [`SignedRank::interval`], for the shift.
    pub fn interval(&self, alpha: f64) -> Option<Interval> {
        ends(&self.shifts, &rank_sum_ways(self.counts.0, self.counts.1), alpha)
    }

    /// Two-sided probability of ranks at least as uneven as these where both samples have one distribution. Exact without ties.
    pub fn p(&self) -> f64 {
        let above: f64 = self.shifts.iter().map(|shift| f64::from(*shift > 0.0) + 0.5 * f64::from(*shift == 0.0)).sum();
        two_sided(&rank_sum_ways(self.counts.0, self.counts.1), above.floor() as usize)
    }
}

fn median_of_sorted(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Shares of all sign patterns by the sum of their positive ranks, when one more rank is added. Halved at each step: counts would
/// overflow from 1,024 ranks on.
fn with_rank(ways: &[f64], rank: usize) -> Vec<f64> {
    let mut more = vec![0.0; ways.len() + rank];
    for (sum, share) in ways.iter().enumerate() {
        more[sum] += share / 2.0;
        more[sum + rank] += share / 2.0;
    }
    more
}

/// Shares of all orders of two samples by the number of pairs in which the second is above (Mann and Whitney's U): the
/// coefficients of the Gaussian binomial, divided by their sum.
fn rank_sum_ways(first: usize, second: usize) -> Vec<f64> {
    let largest = first * second;
    let mut ways = vec![0.0; largest + 1];
    ways[0] = 1.0;
    for i in 1..=first {
        // Times (1 - x^(second + i)), then divided by (1 - x^i), and by the share that keeps their sum at 1.
        for sum in (second + i..=largest).rev() {
            ways[sum] -= ways[sum - second - i];
        }
        for sum in i..=largest {
            ways[sum] += ways[sum - i];
        }
        let share = i as f64 / (second + i) as f64;
        ways.iter_mut().for_each(|way| *way *= share);
    }
    ways
}

/// The k-th smallest and the k-th largest of the sorted estimates, for the largest k whose tail is at most half of `alpha`.
fn ends(estimates: &[f64], ways: &[f64], alpha: f64) -> Option<Interval> {
    let (mut k, mut tail) = (0, ways[0]);
    while tail <= alpha / 2.0 && 2 * (k + 1) <= estimates.len() {
        k += 1;
        tail += ways[k];
    }
    (k > 0).then(|| Interval { low: estimates[k - 1], high: estimates[estimates.len() - k] })
}

/// The share of a symmetric distribution that lies at least as far out as `sum`, on both sides.
fn two_sided(ways: &[f64], sum: usize) -> f64 {
    let least = sum.min(ways.len() - 1 - sum);
    (2.0 * ways[..=least].iter().sum::<f64>()).min(1.0)
}

#[cfg(test)]
mod tests;
