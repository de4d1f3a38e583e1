//! Several metrics of one experiment: with each more, the probability grows that one differs by chance.
use super::judge::{Effect, effect};
use crate::sorting::StableSort as _;
use crate::stats::ranks::Interval;

/// The effects of several metrics such that the probability to find any difference where there is none is at most `alpha` (Holm's
/// procedure): the one with the smallest p stands at `alpha` divided by their number, the next at `alpha` by one less, until the
/// first that does not differ; it and all behind it stand at its level. The result is in the order of the differences; None for a
/// metric without any.
pub fn family(metrics: &[Vec<f64>], alpha: f64) -> Vec<Option<Effect>> {
    let mut found: Vec<Option<Effect>> = metrics.iter().map(|differences| effect(differences, alpha)).collect();
    let mut order: Vec<(usize, f64)> = found.iter().enumerate().filter_map(|(i, e)| Some((i, e.as_ref()?.p))).collect();
    order.stable_sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut left = order.len();
    for (i, _) in order {
        found[i] = effect(&metrics[i], alpha / left as f64);
        let differs = found[i].as_ref().and_then(|effect| effect.interval).is_some_and(Interval::excludes_zero);
        left -= usize::from(differs);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twelve differences of which `against` go the other way, the nearest ones.
    fn metric(against: usize) -> Vec<f64> {
        (1..=12).map(|i| if i <= against { -0.001 } else { 0.001 } * i as f64).collect()
    }

    fn differing(found: &[Option<Effect>]) -> Vec<bool> {
        found.iter().map(|e| e.as_ref().and_then(|e| e.interval).is_some_and(Interval::excludes_zero)).collect()
    }

    #[test]
    fn the_first_that_fails_takes_those_behind_it_along() {
        // p of 2, 3 and 4 against is 0.0024, 0.0068 and 0.0210.
        assert_eq!(differing(&family(&[metric(3), metric(2)], 0.0156)), [true, true]);
        assert_eq!(differing(&family(&[metric(3), metric(4), metric(2)], 0.0156)), [true, false, true]);
        assert_eq!(differing(&family(&[metric(3), metric(3), metric(4)], 0.0156)), [false, false, false]);
        assert_eq!(differing(&family(&[metric(3)], 0.0156)), [true]);
    }

    #[test]
    fn a_metric_without_values_has_no_effect_and_costs_nothing() {
        let found = family(&[Vec::new(), metric(3)], 0.0156);
        assert!(found[0].is_none());
        assert_eq!(differing(&found[1..]), [true]);
    }

    #[test]
    fn twenty_metrics_without_a_difference_are_hardly_ever_said_to_differ() {
        twenty_metrics_of(80);
    }

    #[test]
    #[ignore = "make test-all"]
    fn twenty_metrics_without_a_difference_are_hardly_ever_said_to_differ_in_many_experiments() {
        twenty_metrics_of(500);
    }

    /// 5 % of the experiments, and two standard deviations more, may find a difference.
    fn twenty_metrics_of(experiments: u32) {
        let most = 0.05 * f64::from(experiments) + 2.0 * (0.05 * 0.95 * f64::from(experiments)).sqrt();
        let mut random = fastrand::Rng::with_seed(1);
        let wrong = (0..experiments).filter(|_| {
            let metrics: Vec<Vec<f64>> = (0..20).map(|_| (0..24).map(|_| random.f64() - 0.5).collect()).collect();
            differing(&family(&metrics, 0.05)).contains(&true)
        });
        let wrong = wrong.count();
        assert!(wrong as f64 <= most, "{wrong} of {experiments}");
    }
}
