//! Two tunnels in network namespaces, with a veth pair between them, carry what programs send.
#![allow(clippy::unwrap_used)] // A test fails by a panic.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use parshall_core::tunnel::{Device, DeviceChange, Limits, Output, PeerChange, PrefixChange, PrivateKey};
use parshall_sys::netns::NetNs;
use parshall_sys::tun::{self, Frames};
use parshall_sys::{eventfd, link};
use parshall_tunnel::plain::Plain;
use parshall_tunnel::system_random::SystemBytes;

const MTU: usize = 1420;
const PORT: u16 = 51820;
const STREAM_BYTES: usize = 8 << 20;

/// Host `n` has 192.0.2.`n` outside and 10.9.0.`n` inside.
fn outside(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, n)
}

fn inside(n: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 9, 0, n), port).into()
}

fn tunnel(n: u8) -> io::Result<Plain> {
    let peer = 3 - n;
    let mut device = Device::new(Limits::default(), Box::new(SystemBytes));
    let peer = PeerChange {
        endpoint: Some((outside(peer), PORT).into()),
        allowed_ips: vec![PrefixChange::Add(IpNet::from(inside(peer, 0).ip()))],
        ..PeerChange::new(PrivateKey::new([peer; 32]).public())
    };
    let private_key = Some(PrivateKey::new([n; 32]));
    let change = DeviceChange { private_key, listen_port: Some(PORT), peers: vec![peer], ..DeviceChange::default() };
    device.configure(&change, &mut Output::default());
    let file = tun::create("wg0", Frames::SuperFrames)?;
    link::add_address("wg0", Ipv4Addr::new(10, 9, 0, n), 24)?;
    let status = Command::new("ip").args(["link", "set", "wg0", "mtu", &MTU.to_string(), "up"]).status()?;
    assert!(status.success());
    Plain::new(device, file, MTU, None)
}

/// Sends a stream of known bytes from one address to another, and returns what arrived.
fn stream(from: &NetNs, to: &NetNs, address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let listener = to.run(|| TcpListener::bind(address)).unwrap();
    let mut sender = from.run(|| TcpStream::connect_timeout(&address, Duration::from_secs(10))).unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || sender.write_all(bytes));
        let (mut receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).unwrap();
        sending.join().unwrap().unwrap();
        received
    })
}

/// Sends datagrams of several lengths and takes their echoes.
fn datagrams(from: &NetNs, to: &NetNs) {
    let there = to.run(|| UdpSocket::bind(inside(2, 7000))).unwrap();
    let here = from.run(|| UdpSocket::bind(inside(1, 7000))).unwrap();
    for socket in [&there, &here] {
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    let mut buffer = [0; 9000];
    for len in [0, 1, 64, 1200, MTU - 28, 4000] {
        let sent: Vec<u8> = (0..len).map(|n| n as u8).collect();
        here.send_to(&sent, inside(2, 7000)).unwrap();
        let (received, back) = there.recv_from(&mut buffer).unwrap();
        there.send_to(&buffer[..received], back).unwrap();
        let received = here.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..received], sent[..]);
    }
}

#[test]
fn streams_and_datagrams_pass_unaltered() {
    if let Err(error) = NetNs::create("tunnel-probe").and_then(|ns| ns.run(|| tun::create("wg0", Frames::Packets))) {
        return parshall_testkit::skip("two tunnels between network namespaces", &error.to_string());
    }
    let hosts = [NetNs::create("tunnel-a").unwrap(), NetNs::create("tunnel-b").unwrap()];
    hosts[0].run(|| link::create_veth("eth0", "eth0", hosts[1].as_fd())).unwrap();
    for (n, host) in (1u8..).zip(&hosts) {
        host.run(|| link::add_address("eth0", outside(n), 24).and_then(|()| link::set_up("eth0"))).unwrap();
    }
    let mut tunnels = [hosts[0].run(|| tunnel(1)).unwrap(), hosts[1].run(|| tunnel(2)).unwrap()];
    let stop = eventfd::new().unwrap();
    std::thread::scope(|scope| {
        let running = tunnels.each_mut().map(|tunnel| scope.spawn(|| tunnel.run(stop.as_fd())));
        let checked = std::panic::catch_unwind(|| {
            let bytes: Vec<u8> = (0..STREAM_BYTES).map(|n| (n * 31 % 253) as u8).collect();
            assert!(stream(&hosts[0], &hosts[1], inside(2, 5001), &bytes) == bytes, "the stream was altered");
            assert!(stream(&hosts[1], &hosts[0], inside(1, 5002), &bytes) == bytes, "the stream was altered");
            datagrams(&hosts[0], &hosts[1]);
        });
        eventfd::signal(&stop);
        for thread in running {
            thread.join().unwrap().unwrap();
        }
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(tunnels.map(|tunnel| tunnel.port().unwrap()), [PORT; 2]);
}
