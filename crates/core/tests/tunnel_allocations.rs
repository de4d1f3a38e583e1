//! Packets of a tunnel take no memory of their own: allocations are counted while they are sealed and opened.
#![allow(clippy::unwrap_used)] // A test fails by a panic.

use std::net::SocketAddr;
use std::time::Duration;

use parshall_core::tunnel::{
    DATA_OVERHEAD, DataPath, Datagram, Device, DeviceChange, Endpoint, HEADER_LEN, Limits, Ns, Outcome, Output,
    PeerChange, PrefixChange, PrivateKey, Time, destination, source,
};

const PACKETS: usize = 64;
const LEN: usize = 1420;
const SLOT: usize = LEN + DATA_OVERHEAD;

/// A device that routes every address to its only peer.
fn device(key: u8, peer: u8, endpoint: SocketAddr) -> Device {
    let mut state = key;
    let random = move |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(29).wrapping_add(71);
            *byte = state;
        }
    };
    let mut device = Device::new(Limits::default(), Box::new(random));
    let peer = PeerChange {
        endpoint: Some(endpoint),
        allowed_ips: vec![PrefixChange::Add("0.0.0.0/0".parse().unwrap())],
        ..PeerChange::new(PrivateKey::new([peer; 32]).public())
    };
    let private_key = Some(PrivateKey::new([key; 32]));
    device
        .configure(&DeviceChange { private_key, peers: vec![peer], ..DeviceChange::default() }, &mut Output::default());
    device
}

fn time(now: Ns) -> Time {
    Time { now, unix: Duration::from_nanos(now) }
}

/// A packet from and to any address, in each slot.
fn fill(batch: &mut [u8]) {
    for slot in batch.chunks_mut(SLOT) {
        let packet = &mut slot[HEADER_LEN..HEADER_LEN + LEN];
        packet.fill(0);
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(LEN as u16).to_be_bytes());
    }
}

/// Seals a GSO batch as a thread that reads packets does.
fn seal(path: &DataPath, now: Ns, batch: &mut [u8]) {
    let routes = path.routes();
    let link = routes.get(destination(&batch[HEADER_LEN..]).unwrap()).unwrap();
    let mut sealer = link.sealer(now, PACKETS as u32).unwrap();
    for slot in batch.chunks_mut(SLOT) {
        assert_eq!(sealer.seal(slot, LEN), SLOT);
    }
    assert!(!sealer.finish(now) && link.endpoint().is_some());
}

/// Opens a GSO batch as a thread that receives datagrams does.
fn open(path: &DataPath, now: Ns, from: &Endpoint, batch: &mut [u8]) {
    let mut slots = batch.chunks_mut(SLOT);
    let mut batch: [Datagram<'_>; PACKETS] = std::array::from_fn(|_| Datagram::new(slots.next().unwrap(), from));
    assert!(!path.open(now, &mut batch));
    for datagram in &mut batch {
        assert!(matches!(datagram.outcome, Outcome::Packet { len: LEN, .. }), "{:?}", datagram.outcome);
        assert!(source(datagram.packet().unwrap()).is_some());
    }
}

#[test]
fn packets_are_sealed_and_opened_without_an_allocation() {
    let (here, there): (SocketAddr, SocketAddr) = ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap());
    let (mut a, mut b) = (device(1, 2, there), device(2, 1, here));
    let (path_a, path_b) = (a.data_path(), b.data_path());
    let (from_a, from_b) = (Endpoint::from(here), Endpoint::from(there));
    let (mut out_a, mut out_b) = (Output::default(), Output::default());
    assert!(path_a.routes().get("10.0.0.1".parse().unwrap()).unwrap().sealer(0, 1).is_err());
    a.attend(time(0), &mut out_a);
    b.receive(time(0), out_a.messages.remove(0).bytes(), &from_a, &mut out_b).unwrap();
    a.receive(time(0), out_b.messages.remove(0).bytes(), &from_b, &mut out_a).unwrap();
    let mut keepalive = out_a.messages.remove(0).bytes().to_vec();
    assert!(path_b.open(0, &mut [Datagram::new(&mut keepalive, &from_a)]));
    b.attend(time(0), &mut out_b);
    out_b.clear();

    let mut batch = vec![0; PACKETS * SLOT];
    let mut round = |now: Ns| {
        fill(&mut batch);
        seal(&path_a, now, &mut batch);
        open(&path_b, now, &from_a, &mut batch);
        fill(&mut batch);
        seal(&path_b, now, &mut batch);
        open(&path_a, now, &from_b, &mut batch);
        for (device, out) in [(&mut a, &mut out_a), (&mut b, &mut out_b)] {
            device.attend(time(now), out);
            device.tick(time(now), out);
            assert!(out.messages.is_empty());
        }
    };
    // The setup that a thread does once.
    round(1);
    let counted = allocation_counter::measure(|| (2..50).for_each(&mut round));
    assert_eq!(counted.count_total, 0, "for {} packets", 48 * 2 * PACKETS);
}
