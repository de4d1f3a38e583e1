//! Why a cause is ruled out, as a sentence made of its figures.
use parshall_evidence::{Figure, RuledOut};

use super::spent;
use crate::units;

/// `0 of 4,812 segments retransmitted`; `2.1 % of the requests' time on a CPU, too short to make a request slow`.
pub fn why(entry: &RuledOut) -> String {
    let mut figures = vec![figure(&entry.first)];
    figures.extend(entry.also.iter().map(figure));
    let because = entry.because.iter().map(|why| format!(", {why}"));
    figures.join("; ") + &because.collect::<String>()
}

/// A figure with its unit and what it is of.
fn figure(item: &Figure) -> String {
    let about = if item.scaled { "≈" } else { "" };
    let whole = item.of.map(|all| format!(" of {about}{}", units::figures(all)));
    let one = item.figure == 1.0 && item.of.is_none();
    let amount = match item.unit.as_str() {
        "times" if item.figure < 10.0 => format!("{:.1} times", item.figure),
        "times" => units::quantity(item.figure, "times"),
        unit if is_counted(unit) => {
            format!("{}{} {}", units::figures(item.figure), whole.unwrap_or_default(), noun(unit, one))
        }
        unit => measured(item.figure, unit),
    };
    let limit = item.limit.map(|limit| match item.unit.as_str() {
        unit if is_counted(unit) => units::figures(limit),
        unit => measured(limit, unit),
    });
    let limit = limit.map(|limit| format!(", under {limit}")).unwrap_or_default();
    format!("{about}{amount} {}", spent::within(&item.what)).trim_end().to_string() + &limit
}

/// The unit names what was counted.
fn is_counted(unit: &str) -> bool {
    !matches!(unit, "1" | "" | "ms" | "B" | "times")
}

fn measured(value: f64, unit: &str) -> String {
    match unit {
        "1" | "" => units::percent(value),
        "ms" => units::duration(value * 1e6),
        _ => units::bytes(value),
    }
}

/// All counted units are regular plurals.
fn noun(unit: &str, one: bool) -> &str {
    if one { unit.strip_suffix('s').unwrap_or(unit) } else { unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(first: Figure) -> String {
        why(&RuledOut { first, ..RuledOut::default() })
    }

    fn counted(figure: f64, unit: &str, what: &str) -> Figure {
        Figure { figure, unit: unit.into(), what: what.into(), ..Figure::default() }
    }

    #[test]
    fn figures_are_said_as_people_say_them() {
        for (figure, words) in [
            (
                Figure { of: Some(4812.0), ..counted(0.0, "segments", "retransmitted") },
                "0 of 4,812 segments retransmitted",
            ),
            (Figure { of: Some(1.0), ..counted(1.0, "segments", "lost") }, "1 of 1 segments lost"),
            (counted(1.0, "packets", "delayed by qdiscs"), "1 packet delayed by qdiscs"),
            (counted(1.25, "exchanges", "per connection"), "1.25 exchanges per connection"),
            (counted(1.25, "times", "the least round trip at most"), "1.2 times the least round trip at most"),
            (counted(0.0, "1", "of the flows' time in flight"), "0 % of the flows' time in flight"),
            (
                Figure { limit: Some(0.3), ..counted(0.12, "1", "of all lost time") },
                "12 % of all lost time, under 30 %",
            ),
            (
                Figure { limit: Some(2.0), ..counted(0.4, "ms", "until the peer answers") },
                "400 µs until the peer answers, under 2.0 ms",
            ),
            (counted(65_536.0, "B", "copied per call"), "64 KiB copied per call"),
            (
                Figure { of: Some(10_000.0), scaled: true, ..counted(0.0, "sends", "held by Nagle") },
                "≈0 of ≈10,000 sends held by Nagle",
            ),
        ] {
            assert_eq!(of(figure), words);
        }
    }

    #[test]
    fn further_figures_and_the_reason_follow() {
        let entry = RuledOut {
            first: counted(0.02, "1", "of the flows' time with received data unread"),
            also: vec![counted(0.01, "1", "of it with the reader of a stream asleep")],
            because: Some("counted at the connection that it waited for".into()),
            ..RuledOut::default()
        };
        assert_eq!(
            why(&entry),
            "2 % of the flows' time with received data unread; 1 % of it with the reader of a stream asleep, counted at the \
             connection that it waited for"
        );
    }
}
