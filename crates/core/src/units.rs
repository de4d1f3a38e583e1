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

/// `40.1 ms`, `3.2 s` or `38 µs`.
pub fn duration(ns: f64) -> String {
    if ns >= 2e9 {
        format!("{:.1} s", ns / 1e9)
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

/// `1 flow`, `12 flows`.
pub fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
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
        assert_eq!(percent(0.986), "98.6 %");
        assert_eq!(percent(0.11), "11 %");
        assert_eq!((percent(0.0), percent(1e-9)), ("0 %".to_string(), "under 0.1 %".to_string()));
        assert_eq!(percent([0.0; 0].iter().sum()), "0 %");
    }
}
