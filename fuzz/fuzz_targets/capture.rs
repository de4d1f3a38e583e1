//! A saved case of either format comes from anywhere: whatever can be read as one is judged without a panic, and the report is JSON.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::critical_path::reduced;
use parshall_evidence::{Capture, compat};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(capture) = serde_json::from_slice::<Capture>(bytes) {
        if !compat::is_known(&capture.schema) {
            return;
        }
        let capture = compat::migrate(capture);
        if let Some(timeline) = capture.timeline.clone() {
            reduced(timeline);
        }
        let report = parshall_core::judge::judge(&capture);
        serde_json::to_vec(&report).expect("a report is JSON");
    }
});
