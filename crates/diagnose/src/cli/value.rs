//! Values of flags: each parser says what is wrong and what a right value looks like.
use std::time::Duration;

use parshall_core::values::duration_within;
use parshall_host::error::UserError;

/// The shortest window: below it a scheduler tick and the attach time are no longer small.
pub const MIN_WINDOW: Duration = Duration::from_millis(200);
/// The longest window: the records of an observation are held in memory.
pub const MAX_WINDOW: Duration = Duration::from_secs(3600);

/// How long to observe: a number and `ms`, `s`, `m` or `h`.
pub fn window(text: &str) -> Result<Duration, UserError> {
    // A file may have `5 s`; on a command line a blank is more likely a lost word.
    if text.contains(' ') {
        return Err(UserError::new(format!("`{text}` is not a length of time"), "write it as 500ms, 30s, 5m or 1h"));
    }
    let range = "choose a time from 200ms to 1h, such as 5s";
    Ok(duration_within(text, MIN_WINDOW, MAX_WINDOW, range)?)
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
