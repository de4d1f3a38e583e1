//! Handshake messages in any order, altered, repeated and at any time, and bytes that are none: two devices survive them.
#![no_main]
use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use parshall_core::tunnel::{
    Device, DeviceChange, Endpoint, Limits, Output, PeerChange, PrefixChange, PresharedKey, PrivateKey, Refusal, Time,
};

struct Host {
    device: Device,
    out: Output,
    /// All messages that it has sent.
    sent: Vec<Vec<u8>>,
}

/// The other host, with every address.
fn changed(peer: u8) -> PeerChange {
    PeerChange {
        endpoint: Some(SocketAddr::from(([192, 0, 2, peer], 1))),
        allowed_ips: vec![PrefixChange::Add("0.0.0.0/0".parse().expect("a prefix"))],
        ..PeerChange::new(PrivateKey::new([peer; 32]).public())
    }
}

fn host(own: u8, peer: u8, initiations_per_s: u32) -> Host {
    let mut state = u64::from(own);
    let random = move |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    };
    let limits = Limits { initiations_per_s, initiation_burst: 2, cookie_replies_per_s: 1000 };
    let mut host = Host { device: Device::new(limits, Box::new(random)), out: Output::default(), sent: Vec::new() };
    let peer = changed(peer);
    let private_key = Some(PrivateKey::new([own; 32]));
    let change = DeviceChange { private_key, peers: vec![peer], ..DeviceChange::default() };
    host.device.configure(&change, &mut host.out);
    host
}

fuzz_target!(|bytes: &[u8]| {
    let Some((load, steps)) = bytes.split_first() else { return };
    let mut hosts = [host(1, 2, u32::from(load & 1)), host(2, 1, u32::from(load >> 1))];
    let mut now = 0;
    for step in steps.chunks_exact(4) {
        let (who, what) = (usize::from(step[0] & 1), step[0] >> 1);
        let time = Time { now, unix: Duration::from_nanos(now) };
        let message = hosts[1 - who].sent.iter().rev().nth(usize::from(step[1])).cloned();
        let Host { device, out, sent } = &mut hosts[who];
        match what % 8 {
            0 => {
                let path = device.data_path();
                let routes = path.routes();
                let Some(link) = routes.get([10, 0, 0, 1].into()) else { continue };
                if let Err(Refusal::NoSession { attend: true }) = link.sealer(now, 1).map(drop) {
                    device.attend(time, out);
                }
            }
            1 => now += u64::from(step[1]) << (step[2] % 32),
            2 => device.tick(time, out),
            3 => {
                let preshared_key = Some(PresharedKey::new([step[1] & 1; 32]));
                let peer = 2 - who as u8;
                let change = PeerChange { remove: step[2] > 250, preshared_key, ..changed(peer) };
                device.configure(&DeviceChange { peers: vec![change], ..DeviceChange::default() }, out);
            }
            4 => {
                let from = Endpoint::from(SocketAddr::from(([192, 0, 2, 9], 9)));
                let _ = device.receive(time, steps, &from, out);
            }
            _ => {
                let Some(mut message) = message else { continue };
                if what % 8 == 7 {
                    let at = usize::from(step[2]) % message.len();
                    message[at] ^= step[3];
                }
                let from = Endpoint::from(SocketAddr::from(([192, 0, 2, 2 - who as u8], u16::from(step[3] & 1) + 1)));
                let altered = what % 8 == 7 && step[3] != 0;
                let received = device.receive(time, &message, &from, out);
                // The second MAC is not checked while there is no load.
                let ignored = usize::from(step[2]) % message.len() >= message.len() - 16;
                assert!(!altered || ignored || received.is_err(), "an altered message was taken");
            }
        }
        sent.extend(out.messages.drain(..).map(|message| message.bytes().to_vec()));
        out.clear();
    }
});
