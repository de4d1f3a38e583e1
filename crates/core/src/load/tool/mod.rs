//! The text that other generators of load print, as numbers in the units of this project. iperf3 prints JSON, which the lab reads.
//!
//! A text may be of any origin: what is not understood is left out, and nothing panics.
mod netperf;
#[cfg(test)]
mod tests;
mod values;

use crate::sorting::IntoOrdered as _;

pub use values::Values;

/// A program whose text is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// netperf with its tables or with selected values (`-- -k` or `-- -o`).
    Netperf,
    /// `wrk --latency`.
    Wrk,
    /// `redis-benchmark --csv`; of several tests the last.
    RedisBenchmark,
}

/// Reads the values of a text.
pub fn read(tool: Tool, text: &str) -> Values {
    let mut values = match tool {
        Tool::Netperf => netperf::read(text),
        Tool::Wrk => wrk(text),
        Tool::RedisBenchmark => redis_benchmark(text).unwrap_or_default(),
    };
    values.retain(|_, value| value.is_finite() && *value >= 0.0);
    values
}

fn wrk(text: &str) -> Values {
    let mut values = Values::new();
    let mut errors = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Requests/sec:", rate] => values.extend(rate.parse().ok().map(|rate| ("rate_per_s", rate))),
            ["Transfer/sec:", size] => values.extend(binary_size(size).map(|rate| ("bytes_per_s", rate))),
            ["Latency", mean, _, max, _] => {
                values.extend(time_us(mean).map(|us| ("mean_us", us)));
                values.extend(time_us(max).map(|us| ("max_us", us)));
            }
            [quantile, time] if quantile.ends_with('%') => {
                let name = match quantile {
                    "50%" => "p50_us",
                    "75%" => "p75_us",
                    "90%" => "p90_us",
                    "99%" => "p99_us",
                    _ => continue,
                };
                values.extend(time_us(time).map(|us| (name, us)));
            }
            // Requests with an error are among those of the rate.
            ["Non-2xx", .., count] => errors = add(errors, count),
            ["Socket", "errors:", ..] => {
                for count in words[2..].iter().filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
                    errors = add(errors, count.trim_end_matches(','));
                }
            }
            _ => {}
        }
    }
    if values.contains_key("rate_per_s") {
        // wrk has no line for no errors.
        values.insert("errors", errors.unwrap_or(0.0));
    }
    values
}

fn add(sum: Option<f64>, count: &str) -> Option<f64> {
    Some(sum.unwrap_or(0.0) + count.parse::<f64>().ok()?)
}

/// `635.91us`, `1.20ms`, `2.00s`, `1.5m` in µs.
fn time_us(text: &str) -> Option<f64> {
    let (number, factor) = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3600e6)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * factor)
}

/// `496.31KB` in bytes; wrk counts in powers of 1024.
fn binary_size(text: &str) -> Option<f64> {
    let (number, factor) = [("KB", 1024.0), ("MB", 1024_f64.powi(2)), ("GB", 1024_f64.powi(3)), ("B", 1.0)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * factor)
}

fn redis_benchmark(text: &str) -> Option<Values> {
    let row = |line: &str| line.split(',').map(|cell| cell.trim().trim_matches('"').to_owned()).collect::<Vec<_>>();
    let mut lines = text.lines().map(row);
    let head = lines.find(|cells| cells.first().is_some_and(|cell| cell == "test"))?;
    let last = lines.rfind(|cells| cells.len() == head.len())?;
    let names = [
        ("rps", "rate_per_s", 1.0),
        ("avg_latency_ms", "mean_us", 1e3),
        ("min_latency_ms", "min_us", 1e3),
        ("p50_latency_ms", "p50_us", 1e3),
        ("p95_latency_ms", "p95_us", 1e3),
        ("p99_latency_ms", "p99_us", 1e3),
        ("max_latency_ms", "max_us", 1e3),
    ];
    let value = |(column, name, factor): (&str, &'static str, f64)| {
        let at = head.iter().position(|cell| cell == column)?;
        Some((name, last[at].parse::<f64>().ok()? * factor))
    };
    Some(names.into_iter().filter_map(value).into_map())
}
