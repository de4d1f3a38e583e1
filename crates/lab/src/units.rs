//! Durations as users write them, and numbers as people read them.
use std::time::Duration;

use parshall_core::values::duration_within;
use parshall_host::error::UserError;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Reads `10s`, `500ms`, `2m` or a plain number of seconds; at most a day.
pub fn duration(text: &str) -> Result<Duration, UserError> {
    let plain = text.ends_with(|c: char| c.is_ascii_digit());
    let text = if plain { format!("{text}s") } else { text.to_owned() };
    Ok(duration_within(&text, Duration::ZERO, Duration::from_secs(86_400), "choose a time from 0 to 24h")?)
}

/// A duration in milliseconds as a flag value, such as `2.5`.
pub fn milliseconds(text: &str) -> Result<Duration, UserError> {
    let wrong = |_| UserError::new(format!("`{text}` is not a number of milliseconds"), "write a number, such as 2.5");
    duration(&format!("{text}ms")).map_err(wrong)
}

/// `118,432`, and `24.9` below 100.
pub fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        let text = format!("{value:.1}");
        return text.strip_suffix(".0").map(str::to_owned).unwrap_or(text);
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
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
    fn durations() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "-1s", "10 parsecs", "99999h", "1e3x", "nan"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(number(118_432.4), "118,432");
        assert_eq!(number(297.0), "297");
        assert_eq!(number(24.87), "24.9");
        assert_eq!(number(0.0), "0");
        assert_eq!(bit_rate(1.25e9), "10.00 Gbit/s");
        assert_eq!(time_us(40_100.0), "40.1 ms");
    }
}
