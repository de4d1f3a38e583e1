//! Durations as users write them, and the formats of results.
use std::time::Duration;

use parshall_core::values::duration_within;
use parshall_host::error::UserError;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// How the report of an experiment is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ReportFormat {
    #[default]
    Text,
    Markdown,
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

/// Reads a rate per second.
pub fn rate(text: &str) -> Result<f64, UserError> {
    match text.parse() {
        Ok(per_s) if (1e-3..=1e9).contains(&per_s) => Ok(per_s),
        _ => Err(UserError::new(format!("`{text}` is not a rate"), "write a number per second from 0.001 to 1e9")),
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
}
