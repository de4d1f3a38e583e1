//! Values of flags: each parser says what is wrong and what a right value looks like.
use std::path::PathBuf;
use std::time::Duration;

use crate::error::UserError;

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

/// A process id.
pub fn pid(text: &str) -> Result<u32, UserError> {
    // The kernel's own limit is 2^22 (PID_MAX_LIMIT); anything positive in 31 bits can be asked for.
    match text.parse::<u32>() {
        Ok(pid) if pid > 0 && pid <= i32::MAX as u32 => Ok(pid),
        Ok(_) => Err(UserError::new(format!("`{text}` is not a process id"), "process ids are 1 and above")),
        Err(_) if text.starts_with(|c: char| c.is_ascii_alphabetic()) => Err(UserError::new(
            format!("`{text}` is not a process id"),
            format!("`pidof {text}` prints the ids of a program of that name"),
        )),
        Err(_) => Err(UserError::new(format!("`{text}` is not a process id"), "write one number, such as 4120")),
    }
}

/// A TCP port.
pub fn port(text: &str) -> Result<u16, UserError> {
    match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(UserError::new(
            format!("`{text}` is not a TCP port"),
            "ports are numbers from 1 to 65535; `ss -ltn` lists those that are listened on",
        )),
    }
}

/// A path of a control group.
pub fn cgroup(text: &str) -> Result<PathBuf, UserError> {
    if text.is_empty() || text.contains('\0') {
        return Err(UserError::new(
            "the path of the control group is empty",
            "`/proc/PID/cgroup` names the group of a process",
        ));
    }
    Ok(PathBuf::from(text))
}

/// The name of a network namespace: one path component below /run/netns.
pub fn netns(text: &str) -> Result<String, UserError> {
    if text.is_empty() || text.contains(['/', '\0']) || text == "." || text == ".." {
        return Err(UserError::new(
            format!("`{text}` is not the name of a network namespace"),
            "`ip netns list` prints the names",
        ));
    }
    Ok(text.to_owned())
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

    #[test]
    fn subjects() {
        assert_eq!(pid("1"), Ok(1));
        assert!(pid("0").is_err());
        assert!(pid("-1").is_err());
        assert!(pid("nginx").unwrap_err().hint.contains("pidof nginx"));
        assert_eq!(port("65535"), Ok(65535));
        assert!(port("0").is_err());
        assert!(port("65536").is_err());
        assert!(netns("../blue").is_err());
        assert_eq!(netns("blue"), Ok("blue".to_owned()));
        assert!(cgroup("").is_err());
    }
}
