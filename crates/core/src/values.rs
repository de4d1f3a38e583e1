//! Durations, sizes, rates and counts as people write them, in configuration files and in flags.
//!
//! Each parser takes the text of one value and returns it in range, or a [`ValueError`] that says what is wrong with the
//! value and what a right one looks like.
use std::time::Duration;

use crate::text::quote;

/// Why a value that a user wrote cannot be used. The caller adds where the value was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct ValueError {
    /// The error, in one line without a full stop.
    pub what: String,
    /// The hint: what to write instead.
    pub hint: String,
}

impl ValueError {
    #[allow(missing_docs)]
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

/// The longest duration that is accepted, a year: sums of a few of them never overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * 86_400);

const DURATION_HINT: &str = "write it as 500ms, 30s, 5m or 1h";

/// A number and `ms`, `s`, `m`, `h` or `d`; at most a year, rounded to microseconds. `0` needs no unit.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    duration_within(text, Duration::ZERO, MAX_DURATION, "the longest time is a year, 365d")
}

/// As [`duration`], within two bounds, both included and `max` at most a year. `range_hint` is the hint for a duration
/// outside of them.
pub fn duration_within(text: &str, min: Duration, max: Duration, range_hint: &str) -> Result<Duration, ValueError> {
    let invalid = || ValueError::new(format!("{} is not a length of time", quote(text)), DURATION_HINT);
    if text.is_empty() {
        return Err(ValueError::new("the time is empty", DURATION_HINT));
    }
    let (number, unit) = number_and_unit(text).ok_or_else(invalid)?;
    let unit_s = match unit {
        "ms" => 0.001,
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "" if number == 0.0 => 1.0,
        "" => {
            let hint = format!("write {text}s for seconds, or {text}ms");
            return Err(ValueError::new(format!("{} has no unit of time", quote(text)), hint));
        }
        _ => return Err(invalid()),
    };
    let out_of_range = |why| Err(ValueError::new(format!("{} is too {why}", quote(text)), range_hint));
    if number * unit_s > max.as_secs_f64() {
        return out_of_range("long");
    }
    // Rounded to whole microseconds, so that 0.3s is exactly 300,000 µs.
    let time = Duration::from_micros((number * unit_s * 1e6).round() as u64);
    if time < min { out_of_range("short") } else { Ok(time) }
}

/// As [`duration`], but not zero.
pub fn positive_duration(text: &str) -> Result<Duration, ValueError> {
    match duration(text)? {
        Duration::ZERO => Err(ValueError::new("the time must be more than zero", DURATION_HINT)),
        time => Ok(time),
    }
}

/// As [`duration`]; None for `off` and for zero.
pub fn duration_or_off(text: &str) -> Result<Option<Duration>, ValueError> {
    if text == "off" {
        return Ok(None);
    }
    match duration(text) {
        Ok(time) => Ok((time > Duration::ZERO).then_some(time)),
        Err(error) => Err(ValueError::new(error.what, format!("{}, or off", error.hint))),
    }
}

/// A number of bytes: `65536`, `64KiB` (also `64K`: 1024 each) or `64kB` (1000 each).
pub fn size(text: &str) -> Result<u64, ValueError> {
    let scaled = number_and_unit(text).and_then(|(number, unit)| Some(number * unit_bytes(unit)?));
    match scaled {
        Some(bytes) if bytes <= MAX_EXACT => Ok(bytes.round() as u64),
        _ => Err(ValueError::new(
            format!("{} is not a number of bytes", quote(text)),
            "write it as 64KiB, 1MiB or a plain number of bytes",
        )),
    }
}

/// As [`size`], within two bounds, both included.
pub fn size_within(text: &str, min: u64, max: u64) -> Result<u64, ValueError> {
    let bytes = size(text)?;
    if (min..=max).contains(&bytes) {
        return Ok(bytes);
    }
    let why = if bytes < min { "small" } else { "large" };
    Err(ValueError::new(
        format!("{} is too {why}", quote(text)),
        format!("choose from {} to {}", bytes_text(min), bytes_text(max)),
    ))
}

/// Bytes per second, from `10MiB/s`, `10MB/s` or `100Mbit/s`; never zero.
pub fn bandwidth(text: &str) -> Result<u64, ValueError> {
    let invalid = || {
        ValueError::new(
            format!("{} is not a bandwidth", quote(text)),
            "write bytes a second as 10MiB/s, or bits a second as 100Mbit/s",
        )
    };
    let (number, unit) = number_and_unit(text).ok_or_else(invalid)?;
    let unit = unit.strip_suffix("/s").ok_or_else(invalid)?;
    let scale = match unit.strip_suffix("bit") {
        Some("") => 0.125,
        Some("k" | "K") => 125.0,
        Some("M") => 125e3,
        Some("G") => 125e6,
        Some(_) => return Err(invalid()),
        None => unit_bytes(unit).filter(|_| !unit.is_empty()).ok_or_else(invalid)?,
    };
    let bytes_per_s = (number * scale).round();
    match bytes_per_s {
        b if b < 1.0 => Err(ValueError::new(format!("{} lets nothing pass", quote(text)), "leave it out for no limit")),
        b if b > MAX_EXACT => Err(invalid()),
        b => Ok(b as u64),
    }
}

/// A number per second: `100` or `100/s`; never zero.
pub fn rate(text: &str) -> Result<u32, ValueError> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    count(number).map_err(|_| {
        ValueError::new(format!("{} is not a rate", quote(text)), "write how many a second, from 1, as 100 or 100/s")
    })
}

/// A whole number from 1.
pub fn count(text: &str) -> Result<u32, ValueError> {
    match text.parse::<u32>() {
        Ok(number) if number > 0 && !text.starts_with('+') => Ok(number),
        _ => Err(ValueError::new(
            format!("{} is not a whole number from 1", quote(text)),
            format!("write a number such as 100; the largest is {}", u32::MAX),
        )),
    }
}

/// The most CPUs that a list can name: CONFIG_NR_CPUS of the largest kernels.
const CPUS_MAX: usize = 8192;

/// A list of CPUs as taskset(1) and the kernel write it, such as `0-3,8`: their numbers, ascending.
pub fn cpus(text: &str) -> Result<Vec<usize>, ValueError> {
    let invalid = || ValueError::new(format!("{} is not a list of CPUs", quote(text)), "write it as 0, 0-3 or 0-3,8");
    let mut found = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last < CPUS_MAX => found.extend(first..=last),
            _ => return Err(invalid()),
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The list that [`cpus`] reads, of ascending numbers.
pub fn cpus_text(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some((run.first()?, run.last()?)));
    let texts = runs.map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    texts.collect::<Vec<_>>().join(",")
}

/// A size in the largest unit that keeps it whole, such as `64KiB`, which [`size`] reads, or `1500 bytes`.
pub fn bytes_text(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// A duration in the largest unit that keeps it whole, such as `90 s`.
pub fn duration_text(time: Duration) -> String {
    let ms = time.as_millis();
    for (unit_ms, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")] {
        if ms > 0 && ms.is_multiple_of(unit_ms) {
            return format!("{} {unit}", ms / unit_ms);
        }
    }
    if ms >= 1 { format!("{ms} ms") } else { format!("{} µs", time.as_micros()) }
}

/// Above 2^53 an f64 skips whole numbers.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

fn unit_bytes(unit: &str) -> Option<f64> {
    Some(match unit {
        "" | "B" => 1.0,
        "KiB" | "K" | "k" => 1024.0,
        "MiB" | "M" => 1024.0 * 1024.0,
        "GiB" | "G" => 1024.0 * 1024.0 * 1024.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    })
}

/// Digits, with a decimal point or without, and the unit after them, with or without blanks between.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let starts_well = number.starts_with(|c: char| c.is_ascii_digit());
    starts_well.then(|| Some((number.parse().ok()?, unit.trim_start_matches(' '))))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        for (text, list, plain) in
            [("0", &[0][..], "0"), ("0-3,8", &[0, 1, 2, 3, 8], "0-3,8"), ("1,0,1", &[0, 1], "0-1")]
        {
            assert_eq!(cpus(text).as_deref(), Ok(list));
            assert_eq!(cpus_text(list), plain);
        }
        for text in ["", "-1", "3-1", "a", "0,", "8192", "0-99999999999"] {
            assert!(cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_says_what_it_may_be() {
        for (text, seconds) in
            [("500ms", 0.5), ("30s", 30.0), ("1.5m", 90.0), ("1h", 3600.0), ("2d", 172_800.0), ("0", 0.0)]
        {
            assert_eq!(duration(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for text in ["", "5", "-1s", "s", "1y", "366d", "1e9s", "..s", "99999999999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for (text, bytes) in
            [("65536", 65_536), ("64KiB", 65_536), ("64K", 65_536), ("1.5MiB", 1_572_864), ("64kB", 64_000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "KiB", "64kb", "-1", "9999999GiB", "0x10"] {
            assert!(size(text).is_err(), "{text}");
        }
        for (text, bytes) in
            [("100Mbit/s", 12_500_000), ("1kB/s", 1000), ("10MiB/s", 10 << 20), ("8bit/s", 1), ("5B/s", 5)]
        {
            assert_eq!(bandwidth(text), Ok(bytes), "{text}");
        }
        for text in ["100", "100Mbit", "1/s", "0bit/s", "1Tbit/s", "1mbit/s"] {
            assert!(bandwidth(text).is_err(), "{text}");
        }
        assert_eq!(rate("7/s"), Ok(7));
        assert!(rate("0").is_err());
    }
}
