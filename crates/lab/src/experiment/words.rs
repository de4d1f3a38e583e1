//! Sentences and numbers of reports for people. No decision is made here.
use parshall_core::experiment::{BLOCKS_MAX, Role, Verdict};
use parshall_core::trial::signed;
use parshall_core::units;

use super::metric::{Better, Compare};
use super::report::{AbReport, Curve, EffectReport, MetricReport, Report, TurnReport};

/// The words of a verdict.
pub fn answer(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::RealButSmall => "real but small",
        Verdict::Equivalent => "equivalent",
        Verdict::Inconclusive => "inconclusive",
        Verdict::ControlDiffers => "control differs",
    }
}

/// The name of a trial: `A`, `B`, `A again`, or the value in a sweep.
pub fn variant(role: Option<Role>, value: &str) -> String {
    match role {
        Some(Role::A) => "A".to_owned(),
        Some(Role::B) => "B".to_owned(),
        Some(Role::Control) => "A again".to_owned(),
        Some(Role::Beside) => "A beside it".to_owned(),
        None => value.to_owned(),
    }
}

/// A value of a metric with its unit.
pub fn value(value: f64, unit: &str) -> String {
    match unit {
        // A ratio is not a share here.
        "1" if value != 0.0 && value.abs() < 0.1 => format!("{value:.5}").trim_end_matches('0').to_owned(),
        "1" => units::figures(value),
        _ => units::quantity(value, unit),
    }
}

/// A change: `+3.1 %`, or in the unit of the metric.
pub fn change(metric: &MetricReport, change: f64) -> String {
    match metric.compare {
        Compare::Ratio => signed(change),
        Compare::Difference if change < 0.0 => format!("-{}", value(-change, &metric.unit)),
        Compare::Difference => format!("+{}", value(change, &metric.unit)),
    }
}

/// How B differs from A, with a mark where that is no chance.
pub fn metric_change(metric: &MetricReport) -> String {
    let mark = if metric.differs && metric.better != Better::Neither { " *" } else { "" };
    metric.effect.map(|effect| format!("{}{mark}", change(metric, effect.change))).unwrap_or_default()
}

/// `-6.9 % to -3.2 %`.
pub fn interval(metric: &MetricReport, effect: &EffectReport) -> String {
    match (effect.low, effect.high) {
        (Some(low), Some(high)) => format!("{} to {}", change(metric, low), change(metric, high)),
        _ => "too few blocks".to_owned(),
    }
}

/// A difference without a direction: `3.1 %`.
fn size(metric: &MetricReport, size: f64) -> String {
    change(metric, size).trim_start_matches('+').to_owned()
}

/// The answer in a sentence or two, and what to do next.
pub fn summary(report: &Report) -> (String, String) {
    match (&report.ab, report.curves.first()) {
        (Some(ab), _) => ab_summary(ab),
        (None, Some(curve)) => curve_summary(curve),
        (None, None) => (
            "Nothing can be said: no block of trials is complete.".to_owned(),
            "go on with --resume; see the notes for what spoilt trials".to_owned(),
        ),
    }
}

fn ab_summary(ab: &AbReport) -> (String, String) {
    let Some((metric, effect)) = ab.metrics.first().and_then(|metric| Some((metric, metric.effect?))) else {
        return ("Nothing can be said: no block of trials is complete.".to_owned(), String::new());
    };
    let name = &metric.name;
    let interval_text = format!("interval {}", interval(metric, &effect));
    let by = change(metric, effect.change);
    let smallest = size(metric, ab.smallest);
    let medians = format!("from {} to {}", value(metric.a.median, &metric.unit), value(metric.b.median, &metric.unit));
    let detectable = effect.detectable.map(|detectable| size(metric, detectable));
    let sentence = match ab.verdict {
        Verdict::Better | Verdict::Worse => format!("With B {name} goes {medians}: {by} ({interval_text})."),
        Verdict::RealButSmall => {
            format!(
                "With B {name} changes by {by} ({interval_text}): a real difference, and smaller than the {smallest} that matters."
            )
        }
        Verdict::Equivalent => {
            format!("The difference in {name} is smaller than the {smallest} that matters ({interval_text}).")
        }
        Verdict::Inconclusive => match &detectable {
            Some(detectable) => format!(
                "After {} blocks {name} differs by {by} ({interval_text}), which may be chance. With this many blocks a difference \
                 of {detectable} or more is found in four of five experiments.",
                ab.blocks
            ),
            None => format!("{} blocks are too few to say anything about {name}.", ab.blocks),
        },
        Verdict::ControlDiffers => {
            let control = metric
                .control
                .map(|control| format!("{} (interval {})", change(metric, control.change), interval(metric, &control)));
            format!(
                "A differs from its own repeat: {name} by {}. A difference of B means nothing then.",
                control.unwrap_or_default()
            )
        }
    };
    (sentence, ab_hint(ab, &smallest))
}

fn ab_hint(ab: &AbReport, smallest: &str) -> String {
    match (ab.verdict, ab.more_blocks) {
        (Verdict::Inconclusive, Some(more)) => {
            let all = ab.blocks as u64 + u64::from(more);
            let blocks = match all > u64::from(BLOCKS_MAX) {
                true => format!("it would take about {} blocks to find {smallest}: make the trials longer instead", units::count(all)),
                false => format!("about {more} more blocks would find a difference of {smallest} (--blocks {all}), or longer trials"),
            };
            format!("{blocks}; or quiet the host, compare CPU time, or raise smallest_effect")
        }
        (Verdict::Inconclusive, None) => "see the notes for what spoilt trials, and let more blocks run".to_owned(),
        (Verdict::ControlDiffers, _) => {
            "run it again; if it happens again, trials leave something behind for the next one (a cache, a file, a port)".to_owned()
        }
        _ => String::new(),
    }
}

fn curve_summary(curve: &Curve) -> (String, String) {
    let best = curve.points.iter().find(|point| point.value == curve.best);
    let level = best.map(|point| value(point.median, &curve.unit)).unwrap_or_default();
    let verb = if curve.better == Better::Higher { "falls" } else { "rises" };
    let mut text = format!("{} is best at {} ({level}).", curve.metric, curve.best);
    match &curve.knee {
        Some(knee) => text += &format!(" More gains nothing from {} on{}.", knee.at, range(knee)),
        None if curve.rising_at_end => text += " It still gains at the last value.",
        None => text += " There is no knee.",
    }
    match &curve.collapse {
        Some(collapse) => text += &format!(" It {verb} off from {} on{}.", collapse.at, range(collapse)),
        None => text += " It does not collapse.",
    }
    let hint = if curve.rising_at_end { "add larger values to find the knee" } else { "" };
    (text, hint.to_owned())
}

/// The interval of a turn, unless it is one value.
pub fn range(turn: &TurnReport) -> String {
    if turn.from == turn.to { String::new() } else { format!(" (interval {} to {})", turn.from, turn.to) }
}

/// A word as a shell reads it back.
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%{}".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(["a=1", "a b", "it's", ""].map(shell_quoted), ["a=1", "'a b'", r"'it'\''s'", "''"]);
    }

    #[test]
    fn ratios_are_numbers_and_shares_too() {
        assert_eq!([1.0, -0.5, 0.00312, 0.0].map(|v| value(v, "1")), ["1", "-0.50", "0.00312", "0"]);
        assert_eq!((value(2.5, "1"), value(8e9, "B/s")), ("2.50".to_owned(), "8 GB/s".to_owned()));
    }
}
