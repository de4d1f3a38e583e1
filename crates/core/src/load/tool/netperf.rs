//! The output of netperf: a table by default, selected values as `KEY=VALUE` lines (`-- -k`) or as two lines of CSV (`-- -o`).
use std::collections::BTreeMap;

use super::values::Values;
use crate::sorting::IntoOrdered as _;

/// The KB of netperf, in thousand bytes.
const KB: f64 = 1.024;
/// A value's name in CSV, its key, and ours.
const SELECTED: [(&str, &str, &str); 7] = [
    ("Transaction Rate Tran/s", "TRANSACTION_RATE", "rate_per_s"),
    ("Mean Latency Microseconds", "MEAN_LATENCY", "mean_us"),
    ("Minimum Latency Microseconds", "MIN_LATENCY", "min_us"),
    ("Maximum Latency Microseconds", "MAX_LATENCY", "max_us"),
    ("50th Percentile Latency Microseconds", "P50_LATENCY", "p50_us"),
    ("90th Percentile Latency Microseconds", "P90_LATENCY", "p90_us"),
    ("99th Percentile Latency Microseconds", "P99_LATENCY", "p99_us"),
];

/// Reads the values of a text.
pub fn read(text: &str) -> Values {
    let mut values = table(text).unwrap_or_default();
    values.extend(selected(&pairs(text)));
    values
}

/// The key of a value that has this name in CSV; the name itself where it has none here.
fn key(name: &str) -> &str {
    match name {
        "Throughput" => "THROUGHPUT",
        "Throughput Units" => "THROUGHPUT_UNITS",
        name => SELECTED.iter().find(|(csv, ..)| *csv == name).map_or(name, |(_, key, _)| key),
    }
}

/// Values by key.
fn pairs(text: &str) -> BTreeMap<&str, &str> {
    let mut pairs: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim())).into_map();
    for (head, row) in text.lines().zip(text.lines().skip(1)) {
        let cells = |line: &'_ str| line.split(',').count();
        if cells(head) == cells(row) && head.split(',').any(|name| key(name.trim()) != name.trim()) {
            let keys = head.split(',').map(|name| key(name.trim()));
            pairs.extend(keys.zip(row.split(',').map(str::trim)));
        }
    }
    pairs
}

fn selected(pairs: &BTreeMap<&str, &str>) -> Values {
    let number = |key: &str| pairs.get(key)?.parse::<f64>().ok();
    let mut values = Values::new();
    if let Some((throughput, unit)) = number("THROUGHPUT").zip(pairs.get("THROUGHPUT_UNITS")) {
        // netperf counts thousands in powers of ten for bits and of two for bytes (its manual, -f).
        let known = match *unit {
            "Bytes/s" => Some(("bytes_per_s", 1.0)),
            "KBytes/s" => Some(("bytes_per_s", 1024.0)),
            "MBytes/s" => Some(("bytes_per_s", 1024.0 * 1024.0)),
            "GBytes/s" => Some(("bytes_per_s", 1024.0 * 1024.0 * 1024.0)),
            "Trans/s" => Some(("rate_per_s", 1.0)),
            bits => bytes_of_bits(bits).map(|factor| ("bytes_per_s", factor)),
        };
        values.extend(known.map(|(name, factor)| (name, throughput * factor)));
    }
    for (_, key, name) in SELECTED {
        values.extend(number(key).map(|value| (name, value)));
    }
    for (key, name) in [("LOCAL_SD", "client_us_per_kb"), ("REMOTE_SD", "server_us_per_kb")] {
        // A service demand for each transaction has another unit, and -1 means that it was not measured.
        if pairs.get("SD_UNITS").is_none_or(|unit| *unit == "usec/KB") {
            values.extend(number(key).map(|value| (name, value / KB)));
        }
    }
    values
}

/// Bytes in one `10^6bits/s` or `10^6bits/sec`, and the other powers.
fn bytes_of_bits(unit: &str) -> Option<f64> {
    let power = unit.strip_prefix("10^")?.trim_end_matches("ec").strip_suffix("bits/s")?;
    Some(10_f64.powi(power.parse::<u8>().ok()?.into()) / 8.0)
}

/// The last line of the heads has the units, and the next one with nothing but numbers the values.
fn table(text: &str) -> Option<Values> {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let units = lines.find(|words| words.contains(&"secs.") || words.contains(&"secs"))?;
    let numbers = |words: Vec<&str>| words.iter().map(|word| word.parse::<f64>().ok()).collect::<Option<Vec<_>>>();
    let mut rows = lines.filter_map(numbers).filter(|row| !row.is_empty());
    let first = rows.next()?;
    if units.windows(2).any(|words| words == ["per", "sec"]) {
        return Some(Values::from([("rate_per_s", *first.get(5)?)]));
    }
    let factor = units.iter().find_map(|unit| bytes_of_bits(unit))?;
    if units.contains(&"#") {
        // Datagrams: what was sent, and in the second line what arrived.
        return Some(Values::from([("bytes_per_s", rows.next()?.get(3)? * factor)]));
    }
    let mut values = Values::from([("bytes_per_s", first.get(4)? * factor)]);
    if let (true, Some([client, server])) = (units.contains(&"us/KB"), first.get(7..9)) {
        values.extend([("client_us_per_kb", client / KB), ("server_us_per_kb", server / KB)]);
    }
    Some(values)
}
