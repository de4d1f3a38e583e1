//! Counts, sizes, durations and shares as people read them. No decision is made on a string from here.

/// `4,812`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A count that was computed (scaled), rounded.
pub fn count_f(n: f64) -> String {
    count(if n.is_finite() && n > 0.0 { n.round() as u64 } else { 0 })
}

/// `40 B`, `16 KiB`, `1.5 MiB`.
pub fn bytes(n: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = if n.is_finite() { n.max(0.0) } else { 0.0 };
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = if value >= 100.0 || (value - value.round()).abs() < 0.05 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    };
    format!("{text} {}", UNITS[unit])
}

/// `40.1 ms`, `3.2 s`, `1.15 s` or `38 µs`.
pub fn duration(ns: f64) -> String {
    if ns >= 2e9 {
        format!("{:.1} s", ns / 1e9)
    } else if ns >= 999.5e6 {
        format!("{:.2} s", ns / 1e9)
    } else if ns >= 1e8 {
        format!("{:.0} ms", ns / 1e6)
    } else if ns >= 1e6 {
        format!("{:.1} ms", ns / 1e6)
    } else {
        format!("{:.0} µs", (ns / 1e3).max(0.0))
    }
}

/// `98.6 %`, `11 %`; a share that is not 0 is not called 0.
pub fn percent(share: f64) -> String {
    // The sum of nothing is -0.0.
    let p = share * 100.0 + 0.0;
    if p > 0.0 && p < 0.05 {
        return "under 0.1 %".to_string();
    }
    if p >= 99.95 || (p - p.round()).abs() < 0.05 { format!("{p:.0} %") } else { format!("{p:.1} %") }
}

/// The text, or what stands in for one that is not known.
pub fn or(text: &str, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_string() } else { text.to_string() }
}

/// `1 flow`, `12 flows`.
pub fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// As [`plural`], of a count that was computed and is rounded.
pub fn plural_f(n: f64, one: &str, many: &str) -> String {
    let count = count_f(n);
    format!("{count} {}", if count == "1" { one } else { many })
}

/// Milliseconds in three figures and the unit that fits: `38 µs`, `40.1 ms`, `5.00 s`.
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

/// As [`percent`], for tables: always with one decimal, `11.0 %`.
pub fn percent_fixed(share: f64) -> String {
    if share > 0.0 && share < 0.000_5 { "< 0.1 %".to_owned() } else { format!("{:.1} %", share * 100.0) }
}

/// `1 request/s`, `≈12.5 requests/s`, of a rate as it is printed.
pub fn requests_per_s(rate: &str) -> String {
    format!("{rate} {}", if rate.trim_start_matches('≈') == "1" { "request/s" } else { "requests/s" })
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
    if (0.0..=1.0).contains(&value) { percent_fixed(value) } else { figures(value) }
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
pub fn figures(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    let magnitude = value.abs();
    if magnitude >= 99.95 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", count(magnitude.round() as u64));
    }
    if (value - value.round()).abs() < 0.005 {
        // The sum of no numbers is -0.
        return format!("{}", value.round() + 0.0);
    }
    let decimals = if magnitude >= 9.995 { 1 } else { 2 };
    format!("{value:.decimals$}")
}

/// `118,432`, and `24.9` below 100.
pub fn decimal(value: f64) -> String {
    if value.abs() < 100.0 {
        let text = format!("{value:.1}");
        return text.strip_suffix(".0").map(str::to_owned).unwrap_or(text);
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(value.abs().round() as u64))
}

/// Bytes per second as bits: `9.42 Gbit/s`.
pub fn bit_rate(bytes_per_s: f64) -> String {
    let bits = bytes_per_s * 8.0;
    let (scale, unit) = match bits {
        b if b >= 1e9 => (1e9, "Gbit/s"),
        b if b >= 1e6 => (1e6, "Mbit/s"),
        _ => (1e3, "kbit/s"),
    };
    format!("{:.2} {unit}", bits / scale)
}

/// Microseconds in the unit that suits them: `38 µs`, `40.1 ms`.
pub fn time_us(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.0} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_these() {
        assert_eq!(count(4812), "4,812");
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bytes(40.0), "40 B");
        assert_eq!(bytes(16384.0), "16 KiB");
        assert_eq!(bytes(1.5 * 1024.0 * 1024.0), "1.5 MiB");
        assert_eq!(duration(40_100_000.0), "40.1 ms");
        assert_eq!(duration(38_000.0), "38 µs");
        assert_eq!((duration(1_153_000_000.0), duration(999_000_000.0)), ("1.15 s".to_string(), "999 ms".to_string()));
        assert_eq!(
            (plural_f(0.6, "time", "times"), plural_f(1.5, "time", "times")),
            ("1 time".into(), "2 times".into())
        );
        assert_eq!([requests_per_s("≈1"), requests_per_s("1.5")], ["≈1 request/s", "1.5 requests/s"]);
        assert_eq!(percent(0.986), "98.6 %");
        assert_eq!(percent(0.11), "11 %");
        assert_eq!((percent(0.0), percent(1e-9)), ("0 %".to_string(), "under 0.1 %".to_string()));
        assert_eq!(percent([0.0; 0].iter().sum()), "0 %");
    }

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

    #[test]
    fn numbers() {
        assert_eq!(decimal(118_432.4), "118,432");
        assert_eq!(decimal(297.0), "297");
        assert_eq!(decimal(24.87), "24.9");
        assert_eq!(decimal(0.0), "0");
        assert_eq!(bit_rate(1.25e9), "10.00 Gbit/s");
        assert_eq!(time_us(40_100.0), "40.1 ms");
    }
}
