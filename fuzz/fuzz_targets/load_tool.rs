//! The output of another generator of load is of any origin: it is read without a panic, and every value is a number.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::load::Hello;
use parshall_core::load::tool::{Tool, read};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    for tool in [Tool::Netperf, Tool::Wrk, Tool::RedisBenchmark] {
        assert!(read(tool, &text).values().all(|value| value.is_finite() && *value >= 0.0));
    }
    // The first bytes of a connection to the load's server.
    if let Some(first) = bytes.first_chunk() {
        assert!(Hello::decode(first).is_none_or(|hello| hello.encode() == *first));
    }
});
