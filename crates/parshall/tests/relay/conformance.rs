//! How the relay behaves in edge cases, with each engine, compared with the table in the documents.
//!
//! RELAY_CASE (a part of a case's name) and RELAY_ENGINE select cases; then nothing is compared with the documents.
//! RELAY_TIMES prints the time that each case took.

use crate::{cases, matrix};

#[test]
fn behaviours() {
    compare(false);
}

#[test]
#[ignore = "make test-all"]
fn behaviours_by_engine() {
    compare(true);
}

fn compare(every_engine: bool) {
    let engines = matrix::engines();
    assert!(!engines.is_empty(), "no engine of this name");
    let only = std::env::var("RELAY_CASE").unwrap_or_default();
    let results = matrix::run(&cases::TOPICS, &engines, every_engine, &only);
    assert!(!results.is_empty(), "no case of this name");
    if only.is_empty() && std::env::var_os("RELAY_ENGINE").is_none() {
        matrix::compare(&cases::TOPICS, &results);
    } else {
        let failed: Vec<_> = results.iter().filter(|(_, result)| result.is_err()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
