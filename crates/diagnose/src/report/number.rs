//! Numbers for people: thousands separators, SI prefixes, three figures.

use parshall_core::units::count;

/// A length of time given in milliseconds, in the unit that fits: `38 µs`, `40.1 ms`, `5.00 s`.
pub fn time_ms(ms: f64) -> String {
    let (value, unit) = match ms.abs() {
        x if x >= 999.5 => (ms / 1000.0, "s"),
        x if x >= 0.9995 => (ms, "ms"),
        x if x >= 0.000_999_5 => (ms * 1000.0, "µs"),
        x if x > 0.0 => (ms * 1e6, "ns"),
        _ => (0.0, "ms"),
    };
    format!("{} {unit}", figures(value))
}

/// A share of 1 as per cent with one decimal: `98.6 %`.
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.000_5 { "< 0.1 %".to_owned() } else { format!("{:.1} %", share * 100.0) }
}

/// A value with its SI unit; `1` is a ratio.
pub fn quantity(value: f64, unit: &str) -> String {
    match unit {
        "1" | "" => percent_or_ratio(value),
        "%" => format!("{} %", figures(value)),
        "ms" => time_ms(value),
        "us" | "µs" => time_ms(value / 1e3),
        "ns" => time_ms(value / 1e6),
        "s" => time_ms(value * 1e3),
        "B" | "B/s" | "bit/s" => prefixed(value, unit),
        "1/s" => format!("{}/s", figures(value)),
        _ => format!("{} {unit}", figures(value)),
    }
}

fn percent_or_ratio(value: f64) -> String {
    if (0.0..=1.0).contains(&value) { percent(value) } else { figures(value) }
}

/// With a decimal SI prefix: `136 B`, `65.5 kB`, `1.25 MB/s`.
fn prefixed(value: f64, unit: &str) -> String {
    let mut scaled = value;
    for prefix in ["", "k", "M", "G", "T"] {
        if scaled.abs() < 999.5 || prefix == "T" {
            return format!("{} {prefix}{unit}", figures(scaled));
        }
        scaled /= 1000.0;
    }
    unreachable!("the last prefix always returns")
}

/// Three significant figures, whole numbers as such, thousands separated.
fn figures(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    let magnitude = value.abs();
    if magnitude >= 99.95 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", count(magnitude.round() as u64));
    }
    if (value - value.round()).abs() < 0.005 {
        return format!("{}", value.round());
    }
    let decimals = if magnitude >= 9.995 { 1 } else { 2 };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators() {}

    #[test]
    fn times() {
        for (ms, text) in [
            (0.0, "0 ms"),
            (0.0005, "500 ns"),
            (0.038, "38 µs"),
            (0.9999, "1 ms"),
            (40.12, "40.1 ms"),
            (4903.1, "4.90 s"),
            (3_600_000.0, "3,600 s"),
        ] {
            assert_eq!(time_ms(ms), text);
        }
    }

    #[test]
    fn quantities() {
        for (value, unit, text) in [
            (136.0, "B", "136 B"),
            (65_536.0, "B", "65.5 kB"),
            (1_250_000.0, "B/s", "1.25 MB/s"),
            (0.25, "1", "25.0 %"),
            (2.5, "1", "2.50"),
            (0.0001, "1", "< 0.1 %"),
            (21_800.0, "1/s", "21,800/s"),
            (1500.0, "us", "1.50 ms"),
            (f64::NAN, "B", "? TB"),
        ] {
            assert_eq!(quantity(value, unit), text);
        }
    }
}
