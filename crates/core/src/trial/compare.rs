//! Whether a change helped: figures of windows without it and with it, pair by pair.
//!
//! A pair's two windows lie side by side, so a load that comes and goes changes both. The comparison is of the logarithm of their
//! ratio: twice as fast and half as fast then are equally far from no difference, and a few good pairs cannot outweigh a bad one.
use parshall_evidence::{ComparedFigure, TrialOutcome, TrialStatus, TrialWindow};

use super::figure::Figure;
use crate::stats::{MeanInterval, mean_interval};
use crate::units;

/// Fewer pairs have no interval worth its name: with two, it is 64 standard errors wide to either side.
pub const PAIRS_MIN: usize = 3;
/// A smaller difference is not worth a change, and its interval may exclude zero by a bias of the measurement alone.
const CHANGE_MIN: f64 = 0.02;

/// Compares a figure over the complete pairs; None with fewer than [`PAIRS_MIN`] of them, or where a window has none of it.
pub fn compare(figure: Figure, windows: &[TrialWindow]) -> Option<ComparedFigure> {
    let windows = with_unseen_requests(windows);
    let pairs = pairs(&windows);
    let value = |window: &TrialWindow| Some(figure.value(window)).filter(|value| *value > 0.0).map(f64::ln);
    let without: Vec<f64> = pairs.iter().map(|(without, _)| value(without)).collect::<Option<_>>()?;
    let with: Vec<f64> = pairs.iter().map(|(_, with)| value(with)).collect::<Option<_>>()?;
    if pairs.len() < PAIRS_MIN {
        return None;
    }
    let ratios: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    let MeanInterval { mean, half, detectable } = mean_interval(&ratios)?;
    let geometric = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    Some(ComparedFigure {
        figure: figure.id().to_owned(),
        unit: figure.unit().to_owned(),
        lower_is_better: figure.lower_is_better(),
        without: geometric(&without),
        with: geometric(&with),
        change: mean.exp_m1(),
        interval: ((mean - half).exp_m1(), (mean + half).exp_m1()),
        detectable: detectable.exp_m1(),
    })
}

/// The windows; one whose slices saw no request although bytes moved has as many as these bytes are worth in the others. That it had
/// none would say that a request takes for ever.
fn with_unseen_requests(windows: &[TrialWindow]) -> Vec<TrialWindow> {
    let seen = || windows.iter().filter(|window| window.requests > 0.0);
    let requests: f64 = seen().map(|window| window.requests).sum();
    let bytes: f64 = seen().map(|window| window.bytes as f64).sum();
    let complete = |window: &TrialWindow| match window.requests {
        0.0 if bytes > 0.0 => TrialWindow { requests: requests * window.bytes as f64 / bytes, ..window.clone() },
        _ => window.clone(),
    };
    windows.iter().map(complete).collect()
}

/// Windows of the same pair: without the change, with it.
fn pairs(windows: &[TrialWindow]) -> Vec<(&TrialWindow, &TrialWindow)> {
    let without = windows.iter().filter(|window| window.pair > 0 && !window.changed);
    let with_of = |pair: u32| windows.iter().find(|window| window.pair == pair && window.changed);
    without.filter_map(|window| Some((window, with_of(window.pair)?))).collect()
}

/// The answer, by the deciding figure. None for a figure says that there were too few pairs.
pub fn outcome(deciding: Option<&ComparedFigure>) -> TrialOutcome {
    let Some(figure) = deciding else {
        return TrialOutcome {
            status: TrialStatus::InsufficientEvidence,
            summary: format!("Fewer than {PAIRS_MIN} pairs of windows were measured: nothing can be said."),
        };
    };
    let (low, high) = figure.interval;
    let label = Figure::of_id(&figure.figure).map_or("figure", Figure::label);
    let clear = (low > 0.0 || high < 0.0) && figure.change.abs() >= CHANGE_MIN;
    let interval = format!("99 % interval {} to {}", signed(low), signed(high));
    let (status, summary) = if !clear {
        let summary = format!(
            "The {label} with the change differs by {} ({interval}), which may be chance; a difference of {} or more would \
             have shown.",
            signed(figure.change),
            units::percent(figure.detectable.max(CHANGE_MIN))
        );
        (TrialStatus::NoDifference, summary)
    } else {
        let better = (figure.change < 0.0) == figure.lower_is_better;
        let (from, to) = (value_text(figure, figure.without), value_text(figure, figure.with));
        let summary = format!("The {label} goes from {from} to {to}: {} ({interval}).", signed(figure.change));
        (if better { TrialStatus::Helped } else { TrialStatus::Worse }, summary)
    };
    TrialOutcome { status, summary }
}

/// A value of the figure with its unit, for people.
pub fn value_text(figure: &ComparedFigure, value: f64) -> String {
    match figure.unit.as_str() {
        "ms" => units::duration(value * 1e6),
        "us" => units::duration(value * 1e3),
        "ns" => format!("{} ns", units::decimal(value)),
        "1/s" => format!("{}/s", units::count_f(value)),
        _ => format!("{}/s", units::bytes(value)),
    }
}

/// `-98.7 %`, `+3.1 %`; from ten times or a tenth on `x 12` or `1/12`.
pub fn signed(change: f64) -> String {
    match change {
        change if change >= 9.0 => format!("x {}", units::count_f(change + 1.0)),
        change if change > -1.0 && change <= -0.9 => format!("1/{}", units::count_f(1.0 / (change + 1.0))),
        change => format!("{:+.1} %", change * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of (without, with) as milliseconds of one request each.
    fn windows(pairs: &[(f64, f64)]) -> Vec<TrialWindow> {
        let window = |pair: usize, changed, busy_ms| TrialWindow {
            pair: pair as u32,
            changed,
            length_s: 1.0,
            requests: 100.0,
            busy_ms: busy_ms * 100.0,
            bytes: 1000,
            ..TrialWindow::default()
        };
        let first = window(0, false, 77.0);
        let both = pairs.iter().zip(1..).flat_map(|(&(a, b), pair)| [window(pair, false, a), window(pair, true, b)]);
        [first].into_iter().chain(both).collect()
    }

    fn judged(pairs: &[(f64, f64)]) -> (TrialStatus, ComparedFigure) {
        let figure = compare(Figure::TimePerRequest, &windows(pairs)).expect("enough pairs");
        (outcome(Some(&figure)).status, figure)
    }

    #[test]
    fn a_clear_gain_helps_and_the_other_way_round_is_worse() {
        let gain = [(40.0, 1.0), (41.0, 1.1), (39.0, 0.9), (40.0, 1.0)];
        let (status, figure) = judged(&gain);
        assert_eq!(status, TrialStatus::Helped);
        assert!((figure.change + 0.975).abs() < 0.005 && figure.interval.1 < -0.96, "{figure:?}");
        assert!((figure.without - 40.0).abs() < 0.1 && (figure.with - 1.0).abs() < 0.01, "{figure:?}");
        let (status, figure) = judged(&gain.map(|(a, b)| (b, a)));
        assert_eq!(status, TrialStatus::Worse);
        assert!(outcome(Some(&figure)).summary.contains("x 4"), "{figure:?}");
    }

    #[test]
    fn a_load_that_doubles_on_the_way_is_no_difference() {
        let (status, figure) = judged(&[(10.0, 10.2), (20.0, 19.7), (40.0, 40.5), (80.0, 79.0)]);
        assert_eq!(status, TrialStatus::NoDifference, "{figure:?}");
        assert!(figure.detectable < 0.15, "{figure:?}");
    }

    #[test]
    fn one_lucky_pair_is_no_gain() {
        let (status, figure) = judged(&[(10.0, 10.0), (10.0, 10.1), (10.0, 1.0), (10.0, 9.9)]);
        assert_eq!(status, TrialStatus::NoDifference, "{figure:?}");
        assert!(outcome(Some(&figure)).summary.contains("would have shown"));
    }

    #[test]
    fn a_window_whose_slices_saw_no_request_does_not_decide() {
        let mut windows = windows(&[(40.0, 1.0), (41.0, 1.1), (39.0, 0.9)]);
        (windows[1].requests, windows[1].bytes) = (0.0, 500);
        let figure = compare(Figure::TimePerRequest, &windows).expect("enough pairs");
        assert_eq!(outcome(Some(&figure)).status, TrialStatus::Helped, "{figure:?}");
        // One in which nothing moved stood still.
        windows[1].bytes = 0;
        let figure = compare(Figure::TimePerRequest, &windows).expect("enough pairs");
        assert!(figure.without > 100.0, "{figure:?}");
    }

    #[test]
    fn a_sure_difference_that_is_tiny_is_none() {
        let (status, figure) = judged(&[(10.0, 9.9), (20.0, 19.8), (10.0, 9.9), (10.0, 9.9)]);
        assert!(figure.interval.1 < 0.0);
        assert_eq!(status, TrialStatus::NoDifference);
    }

    #[test]
    fn two_pairs_or_half_pairs_are_too_few() {
        assert_eq!(compare(Figure::TimePerRequest, &windows(&[(1.0, 2.0), (1.0, 2.0)])), None);
        let mut windows = windows(&[(1.0, 2.0), (1.0, 2.0), (1.0, 2.0)]);
        windows.pop();
        assert_eq!(compare(Figure::TimePerRequest, &windows), None);
        assert_eq!(outcome(None).status, TrialStatus::InsufficientEvidence);
    }

    #[test]
    fn large_changes_are_factors() {
        let texts = [0.031, -0.5, 9.0, 311.6, -0.9, -0.9985].map(signed);
        assert_eq!(texts, ["+3.1 %", "-50.0 %", "x 10", "x 313", "1/10", "1/667"]);
    }

    #[test]
    fn more_is_better_of_throughput() {
        let mut windows = windows(&[(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]);
        for (window, extra) in windows.iter_mut().filter(|w| w.changed).zip([2000, 2100, 1900]) {
            window.bytes = extra;
        }
        let figure = compare(Figure::Throughput, &windows).expect("three pairs");
        assert_eq!(outcome(Some(&figure)).status, TrialStatus::Helped);
    }
}
