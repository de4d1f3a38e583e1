//! A record of the probes' ring.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_bpf::diagnose::Event;

fuzz_target!(|bytes: &[u8]| {
    match parshall_bpf::diagnose::record::decode(bytes) {
        Some(Event::FlowStall(stall)) => drop(stall.decode()),
        Some(Event::FlowEnd(dump)) => drop((dump.cells(), dump.calls(), dump.addresses(), dump.snap.decode(250))),
        Some(Event::Sample(sample)) => drop((sample.kernel_stack().len(), sample.user_stack().len())),
        Some(Event::ThreadStall(stall)) => drop((stall.stack().len(), stall.waker_stack().len())),
        Some(Event::UserStack(stack)) => drop(stack.stack().len()),
        Some(Event::Interpreted(stack)) => drop(stack.frames().len()),
        Some(Event::ThreadEnd(dump)) => drop(parshall_bpf::comm(&dump.comm)),
        // The others have no fields to decode.
        Some(_) | None => {}
    }
});
