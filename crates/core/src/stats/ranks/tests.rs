//! Against SciPy's answers (`golden.py` asked for them), and properties.
use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden.json")).expect("golden.py writes JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn near(got: f64, want: &Value, what: &str) {
    let want = want.as_f64().expect("a number");
    assert!((got - want).abs() <= 1e-9 * (1.0 + want.abs()), "{what}: {got}, SciPy says {want}");
}

fn check_intervals(case: &Value, alphas: &[f64], got: impl Fn(f64) -> Option<Interval>) {
    for (alpha, want) in alphas.iter().zip(case["intervals"].as_array().expect("one for each alpha")) {
        let got = got(*alpha);
        assert_eq!(got.is_none(), want.is_null(), "{case} at {alpha}: {got:?}");
        if let Some(Interval { low, high }) = got {
            near(low, &want[0], "low");
            near(high, &want[1], "high");
        }
    }
}

#[test]
fn paired_differences_agree_with_scipy() {
    let golden = golden();
    let cases = golden["paired"].as_array().expect("cases");
    assert!(cases.len() >= 7);
    for case in cases {
        let ranks = SignedRank::new(&numbers(&case["differences"])).expect("differences");
        near(ranks.p(), &case["p"], "p");
        near(ranks.estimate(), &case["estimate"], "estimate");
        check_intervals(case, &numbers(&golden["alphas"]), |alpha| ranks.interval(alpha));
    }
}

#[test]
fn ties_and_zeros_agree_with_scipy() {
    let golden = golden();
    let cases = golden["tied"].as_array().expect("cases");
    assert!(cases.len() >= 4);
    for case in cases {
        let ranks = SignedRank::new(&numbers(&case["differences"])).expect("differences");
        near(ranks.p(), &case["p"], "p");
    }
}

#[test]
fn two_samples_agree_with_scipy() {
    let golden = golden();
    let cases = golden["two_samples"].as_array().expect("cases");
    assert!(cases.len() >= 4);
    for case in cases {
        let ranks = RankSum::new(&numbers(&case["first"]), &numbers(&case["second"])).expect("two samples");
        near(ranks.p(), &case["p"], "p");
        near(ranks.estimate(), &case["estimate"], "estimate");
        check_intervals(case, &numbers(&golden["alphas"]), |alpha| ranks.interval(alpha));
    }
}

#[test]
fn what_cannot_be_ranked_is_none() {
    assert_eq!(SignedRank::new(&[]), None);
    assert_eq!(SignedRank::new(&[1.0, f64::NAN]), None);
    assert_eq!(RankSum::new(&[1.0], &[]), None);
    assert_eq!(RankSum::new(&[f64::INFINITY], &[1.0]), None);
}

#[test]
fn no_difference_at_all_is_no_evidence() {
    let zeros = SignedRank::new(&[0.0; 8]).expect("differences");
    assert_eq!((zeros.p(), zeros.estimate()), (1.0, 0.0));
    assert_eq!(zeros.interval(0.05), Some(Interval { low: 0.0, high: 0.0 }));
}

#[test]
fn many_differences_are_no_burden() {
    let many: Vec<f64> = (0..128).map(|i| f64::from(i % 7) - 2.3).collect();
    let ranks = SignedRank::new(&many).expect("differences");
    assert!(ranks.p() < 0.05 && ranks.interval(1.0 / 64.0).is_some_and(|found| found.half() < 1.0), "{}", ranks.p());
    let samples = RankSum::new(&many, &many).expect("two samples");
    assert!(samples.p() > 0.99 && samples.interval(0.01).is_some_and(|found| !found.excludes_zero()));
}

proptest! {
    #[test]
    fn the_interval_excludes_zero_where_the_test_refuses_it(
        values in prop::collection::vec(-1e6..1e6f64, 1..20), alpha in 0.001..0.5f64,
    ) {
        let ranks = SignedRank::new(&values).expect("finite");
        let interval = ranks.interval(alpha);
        prop_assert_eq!(interval.is_some_and(Interval::excludes_zero), ranks.p() <= alpha);
        prop_assert!(interval.is_none_or(|found| found.low <= ranks.estimate() && ranks.estimate() <= found.high));
    }

    #[test]
    fn the_other_way_round_is_the_negative(values in prop::collection::vec(-9i32..9, 1..20)) {
        let of = |sign: f64| SignedRank::new(&values.iter().map(|v| f64::from(*v) * sign).collect::<Vec<_>>()).expect("finite");
        let (one, other) = (of(1.0), of(-1.0));
        prop_assert_eq!(one.p(), other.p());
        prop_assert_eq!(one.estimate(), -other.estimate());
        let turned = other.interval(0.05).map(|found| Interval { low: -found.high, high: -found.low });
        prop_assert_eq!(one.interval(0.05), turned);
    }
}
