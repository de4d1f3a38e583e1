//! Values of flags: each parser says what is wrong and what a right value looks like.
use std::time::Duration;

use parshall_host::error::UserError;

/// The shortest window: below it a scheduler tick and the attach time are no longer small.
pub const MIN_WINDOW: Duration = Duration::from_millis(200);
/// The longest window: the records of an observation are held in memory.
pub const MAX_WINDOW: Duration = Duration::from_secs(3600);

/// A length of time: a number and `ms`, `s`, `m` or `h`.
pub fn window(text: &str) -> Result<Duration, UserError> {
    let wrong = || {
        UserError::new(
            format!("`{text}` is not a length of time"),
            "write a number and a unit, such as 500ms, 5s, 1.5m or 1h",
        )
    };
    if text.is_empty() {
        return Err(UserError::new("the time is empty", "write a number and a unit, such as 500ms, 5s, 1.5m or 1h"));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| {
        UserError::new(format!("`{text}` has no unit of time"), format!("write {text}s for seconds, or {text}ms"))
    })?;
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit_s = match unit {
        "ms" => 0.001,
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = number * unit_s;
    let out_of_range = |why| {
        UserError::new(format!("`{text}` is too {why} an observation"), "choose a time from 200ms to 1h, such as 5s")
    };
    if seconds > MAX_WINDOW.as_secs_f64() {
        return Err(out_of_range("long"));
    }
    // Rounded to whole milliseconds, so that 0.2s is not a hair below the limit.
    let duration = Duration::from_millis((seconds * 1000.0).round() as u64);
    if duration < MIN_WINDOW { Err(out_of_range("short")) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows() {
        for (text, ms) in [("500ms", 500), ("5s", 5000), ("1m", 60_000), ("1.5m", 90_000), ("1h", 3_600_000)] {
            assert_eq!(window(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(window("0.2s"), Ok(MIN_WINDOW));
        for text in ["", "5", "s", "-1s", "5 s", "5x", "100ms", "61m", "1e9s", "..s", "infs", "99999999999999999999h"] {
            assert!(window(text).is_err(), "{text}");
        }
        assert_eq!(window("").unwrap_err().what, "the time is empty");
        assert_eq!(window("5").unwrap_err().hint, "write 5s for seconds, or 5ms");
    }
}
