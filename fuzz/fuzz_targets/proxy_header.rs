//! The beginning of a connection that should carry a PROXY header: complete at most once, and what was read writes back.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::relay::config::ProxyVersion;
use parshall_core::relay::proxy::{Progress, encode_v1, encode_v2, parse};

fuzz_target!(|bytes: &[u8]| {
    let Progress::Done { header, consumed } = parse(bytes) else { return };
    assert_eq!(parse(&bytes[..consumed - 1]), Progress::NeedMore);
    let mut written = Vec::new();
    match header.version {
        ProxyVersion::V1 => encode_v1(&header.addresses, &mut written),
        ProxyVersion::V2 => encode_v2(&header, &mut written).expect("what was short enough to read is to write"),
    }
    let consumed = written.len();
    assert_eq!(parse(&written), Progress::Done { header, consumed });
});
