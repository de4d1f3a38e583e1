//! Datagrams in a session: bytes of any kind, and sealed packets that are altered, cut or repeated. Only intact packets come out,
//! each once.
#![no_main]
use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use parshall_core::tunnel::{
    DATA_OVERHEAD, DataPath, Datagram, Device, DeviceChange, Endpoint, HEADER_LEN, Kind, Limits, Outcome, Output,
    PeerChange, PrefixChange, PrivateKey, Time,
};

const TIME: Time = Time { now: 0, unix: Duration::ZERO };

fn device(own: u8, peer: u8) -> Device {
    let mut state = own;
    let random = move |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(29).wrapping_add(71);
            *byte = state;
        }
    };
    let mut device = Device::new(Limits::default(), Box::new(random));
    let peer = PeerChange {
        endpoint: Some(SocketAddr::from(([192, 0, 2, peer], 1))),
        allowed_ips: vec![PrefixChange::Add("10.0.0.0/8".parse().expect("a prefix"))],
        ..PeerChange::new(PrivateKey::new([peer; 32]).public())
    };
    let private_key = Some(PrivateKey::new([own; 32]));
    let change = DeviceChange { private_key, peers: vec![peer], ..DeviceChange::default() };
    device.configure(&change, &mut Output::default());
    device
}

/// Seals what the fuzzer chose as a packet.
fn seal(path: &DataPath, packet: &[u8]) -> Vec<u8> {
    let mut slot = vec![0; HEADER_LEN];
    slot.extend(packet);
    slot.resize(packet.len() + DATA_OVERHEAD, 0);
    let routes = path.routes();
    let link = routes.get([10, 0, 0, 1].into()).expect("a peer has the address");
    let mut sealer = link.sealer(0, 1).expect("there is a session");
    let len = sealer.seal(&mut slot, packet.len());
    slot.truncate(len);
    sealer.finish(0);
    slot
}

fuzz_target!(|bytes: &[u8]| {
    let (mut a, mut b) = (device(1, 2), device(2, 1));
    let (path_a, path_b) = (a.data_path(), b.data_path());
    let from = Endpoint::from(SocketAddr::from(([192, 0, 2, 1], 1)));
    let (mut out_a, mut out_b) = (Output::default(), Output::default());
    let _ = path_a.routes().get([10, 0, 0, 1].into()).map(|link| link.sealer(0, 1).is_ok());
    a.attend(TIME, &mut out_a);
    b.receive(TIME, out_a.messages[0].bytes(), &from, &mut out_b).expect("an initiation");
    a.receive(TIME, out_b.messages[0].bytes(), &from, &mut out_a).expect("a response");

    let mut batch: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    let mut rest = bytes;
    while let [how, at, len, tail @ ..] = rest {
        let (packet, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        let mut datagram = seal(&path_a, packet);
        let index = datagram[4..8].to_vec();
        match how % 5 {
            0 => batch.push((datagram, Some(packet.to_vec()))),
            1 => {
                let at = usize::from(*at) % datagram.len();
                datagram[at] ^= 1 << (how >> 5);
                batch.push((datagram, None));
            }
            2 => {
                datagram.truncate(usize::from(*at) % datagram.len());
                batch.push((datagram, None));
            }
            3 => batch.push((packet.to_vec(), None)),
            _ => {
                let mut forged = [&4u32.to_le_bytes()[..], &index, packet].concat();
                forged.resize(forged.len().max(DATA_OVERHEAD), 0);
                batch.push((forged, None));
            }
        }
    }
    for round in 0..2 {
        let mut copies: Vec<Vec<u8>> = batch.iter().map(|(datagram, _)| datagram.clone()).collect();
        let mut datagrams: Vec<_> = copies.iter_mut().map(|bytes| Datagram::new(bytes, &from)).collect();
        path_b.open(0, &mut datagrams);
        for (datagram, (sealed, packet)) in datagrams.iter_mut().zip(&batch) {
            match (datagram.outcome, packet) {
                (Outcome::Packet { len, .. }, Some(packet)) if round == 0 => {
                    assert_eq!(datagram.packet().map(|bytes| &*bytes), Some(&packet[..len]));
                }
                (Outcome::Packet { .. } | Outcome::Unopened, _) => panic!("{:?}", datagram.outcome),
                (Outcome::Keepalive, packet) => assert!(round == 0 && packet.as_ref().is_some_and(Vec::is_empty)),
                (Outcome::Handshake, _) => {
                    let kind = Kind::of(sealed).expect("it has a kind");
                    assert!(kind != Kind::Data);
                    let _ = b.receive(TIME, sealed, &from, &mut out_b);
                }
                (Outcome::Dropped(_), _) => {}
            }
        }
    }
});
