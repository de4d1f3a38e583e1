//! The description of a tracepoint's record in tracefs.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(format) = parshall_bpf::diagnose::classic::format::Format::parse(text) {
        let _ = format.field("prev_pid");
        let _ = format.telling();
    }
});
