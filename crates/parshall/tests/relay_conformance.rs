//! What the relay does at its edges, each behaviour against each engine, and the table of it in the documents.
//!
//! RELAY_CASE (a part of a case's name) and RELAY_ENGINE choose some; then nothing is compared with the documents.
//! RELAY_TIMES prints how long each took.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

mod common;
mod relay;

use relay::{cases, matrix};

#[test]
fn behaviours_by_engine() {
    let engines = matrix::available();
    assert!(!engines.is_empty(), "the relay takes no engine at all");
    let only = std::env::var("RELAY_CASE").unwrap_or_default();
    let seen = matrix::run(&cases::TOPICS, &engines, &only);
    assert!(!seen.is_empty(), "no case of this name");
    if only.is_empty() && std::env::var_os("RELAY_ENGINE").is_none() {
        matrix::settle(&cases::TOPICS, &seen);
    } else {
        let failed: Vec<_> = seen.iter().filter(|(_, result)| result.is_err()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
