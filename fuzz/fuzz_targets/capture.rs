//! A saved case comes from anywhere: whatever can be read as one is judged without a panic, and the report is JSON.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_evidence::Capture;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(capture) = serde_json::from_slice::<Capture>(bytes) {
        let report = parshall_core::judge::judge(&capture);
        serde_json::to_vec(&report).expect("a report is JSON");
    }
});
