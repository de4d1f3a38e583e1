//! A soak test of the relay: ten seconds here, ten minutes with `bench/relay/soak`.
//!
//! RELAY_SOAK_S is the time in seconds, RELAY_SOAK_SEED the seed, with which a run can be repeated; RELAY_ENGINE selects an
//! engine.
#![allow(clippy::unwrap_used)] // A test fails by a panic.

mod common;
mod relay;

use std::time::Duration;

use relay::{churn, matrix};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn no_byte_and_no_descriptor_is_lost() {
    let engines = matrix::available();
    assert!(!engines.is_empty(), "the relay accepts no engine");
    let (time, seed) = (Duration::from_secs(number("RELAY_SOAK_S", 10)), number("RELAY_SOAK_SEED", 1));
    let results: Vec<Result<String, String>> = std::thread::scope(|s| {
        let runs: Vec<_> = engines.iter().map(|engine| s.spawn(move || churn::churn(engine, seed, time))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for result in &results {
        println!("{}", result.as_ref().unwrap_or_else(|failure| failure));
    }
    assert!(results.iter().all(Result::is_ok), "RELAY_SOAK_SEED={seed}");
}
