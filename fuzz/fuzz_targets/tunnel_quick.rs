//! Files of wg-quick: what is read makes a change that a device takes.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::tunnel::{Device, Limits, Output, parse_quick};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(config) = parse_quick(text) else { return };
    let change =
        config.device_change(|endpoint| Some((endpoint.host.parse::<std::net::IpAddr>().ok()?, endpoint.port).into()));
    let mut device = Device::new(Limits::default(), Box::new(|bytes: &mut [u8]| bytes.fill(7)));
    device.configure(&change, &mut Output::default());
    assert!(device.state().peers.len() <= config.peers.len());
});
