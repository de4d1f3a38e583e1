//! The first bytes of a call, and how many it moved in all.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_bpf::diagnose::frame;

fuzz_target!(|call: (u32, &[u8])| {
    let (total, bytes) = call;
    for found in [frame::read(bytes, total), frame::read_datagram(bytes, total)] {
        for asks in [true, false] {
            // A message of no protocol decodes to none in either direction.
            assert!(found.protocol != 0 || found.decode(asks).is_none());
        }
    }
});
