//! A soak test of the relay: four seconds in `make test`, ten in `make test-all`, ten minutes with `bench/relay/soak`.
//!
//! RELAY_SOAK_S is the time in seconds, RELAY_SOAK_SEED the seed, with which a run can be repeated; RELAY_ENGINE selects an
//! engine.

use std::time::Duration;

use crate::{churn, matrix};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn no_byte_and_no_descriptor_is_lost() {
    soak(Duration::from_secs(4));
}

#[test]
#[ignore = "make test-all"]
fn no_byte_and_no_descriptor_is_lost_for_long() {
    soak(Duration::from_secs(number("RELAY_SOAK_S", 10)));
}

fn soak(time: Duration) {
    let engines = matrix::engines();
    assert!(!engines.is_empty(), "no engine of this name");
    let seed = number("RELAY_SOAK_SEED", 1);
    let results: Vec<Result<String, String>> = std::thread::scope(|s| {
        let runs: Vec<_> = engines.iter().map(|engine| s.spawn(move || churn::churn(engine, seed, time))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for result in &results {
        println!("{}", result.as_ref().unwrap_or_else(|failure| failure));
    }
    assert!(results.iter().all(Result::is_ok), "RELAY_SOAK_SEED={seed}");
}
