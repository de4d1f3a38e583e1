//! Requests of the tunnel's configuration protocol: a change that is read can be made, and the state after it is written and read
//! as a change that leads to the same state.
#![no_main]
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use parshall_core::tunnel::{
    Device, DeviceChange, Limits, Output, Request, Time, parse_request, request_len, write_state,
};

fn device() -> Device {
    Device::new(Limits::default(), Box::new(|bytes: &mut [u8]| bytes.fill(7)))
}

fn changed(change: &DeviceChange) -> Device {
    let mut device = device();
    device.configure(change, &mut Output::default());
    device
}

fuzz_target!(|bytes: &[u8]| {
    if request_len(bytes, 0).is_some_and(|len| len > bytes.len()) {
        panic!("a request that is longer than what was received");
    }
    let Ok(Request::Set(change)) = std::str::from_utf8(bytes).map_or(Ok(Request::Get), |text| parse_request(text, &|_| Some(7))) else { return };
    let device = changed(&change);
    let text = write_state(&device.state());
    let settings: String = text
        .split_inclusive('\n')
        .filter(|line| !["last_handshake", "tx_bytes", "rx_bytes", "errno"].iter().any(|key| line.starts_with(key)))
        .collect();
    let Ok(Request::Set(again)) = parse_request(&format!("set=1\n{settings}"), &|_| None) else { panic!("{settings}") };
    let mut same = changed(&again);
    assert_eq!(write_state(&same.state()), text);
    same.tick(Time { now: 0, unix: Duration::ZERO }, &mut Output::default());
});
