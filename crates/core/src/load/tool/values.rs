//! The numbers that a text of a tool is read as.
use std::collections::BTreeMap;

/// The numbers by name: `rate_per_s`, `bytes_per_s`, `p50_us`, `p75_us`, `p90_us`, `p95_us`, `p99_us`, `mean_us`, `min_us`, `max_us`,
/// `errors`, `client_us_per_kb`, `server_us_per_kb` (1 KB = 1000 B).
pub type Values = BTreeMap<&'static str, f64>;
