//! Two tunnels in network namespaces, with a router between them, and what programs send through them.
//!
//! ```text
//!  a: wg0 10.9.0.1        router        b: wg0 10.9.0.2
//!     eth0 192.0.2.1 ── .254  .254 ── 198.51.100.2 eth0
//! ```
#![allow(clippy::unwrap_used)] // A test fails by a panic.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use parshall_core::tunnel::{
    Device, DeviceChange, DropCause, Limits, Link, Output, PeerChange, PrefixChange, PrivateKey,
};
use parshall_sys::netns::{self, NetNs};
use parshall_sys::tun::{self, Frames};
use parshall_sys::{eventfd, link};
use parshall_tunnel::counts::{Count, Counts};
use parshall_tunnel::data_path::Settings;
use parshall_tunnel::engine::{Engine, Loop};
use parshall_tunnel::system_random::SystemBytes;
use parshall_tunnel::uring::Tunables;
use parshall_tunnel::worker::Worker;

pub const PORT: u16 = 51820;
pub const STREAM_BYTES: usize = 2 << 20;

/// The parameters of a test.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The MTU of the link between a and the router.
    pub near_mtu: usize,
    /// The MTU of the link between the router and b.
    pub far_mtu: usize,
    pub inner_mtu: usize,
    pub clamp_mss: bool,
    pub engine: Engine,
}

impl Default for Layout {
    fn default() -> Self {
        Self { near_mtu: 1500, far_mtu: 1500, inner_mtu: 1420, clamp_mss: false, engine: Engine::Syscall(1) }
    }
}

/// A host of the network, with its tunnel.
pub struct Host {
    pub ns: NetNs,
    pub counts: Arc<Counts>,
    /// The peer's.
    pub link: Arc<Link>,
    /// The sockets of the tunnel: for IPv4 the first.
    pub socket: UdpSocket,
}

impl Host {
    pub fn count(&self, count: Count) -> u64 {
        self.counts.get(count)
    }

    pub fn drops(&self, cause: DropCause) -> u64 {
        self.link.drops().get(cause)
    }
}

fn outside(n: u8) -> Ipv4Addr {
    if n == 1 { Ipv4Addr::new(192, 0, 2, 1) } else { Ipv4Addr::new(198, 51, 100, 2) }
}

/// The router's address on the link of host `n`.
fn gateway(n: u8) -> Ipv4Addr {
    let [a, b, c, _] = outside(n).octets();
    Ipv4Addr::new(a, b, c, 254)
}

pub fn inside(n: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 9, 0, n), port).into()
}

pub fn ip(arguments: &str) -> io::Result<()> {
    let status = Command::new("ip").args(arguments.split(' ')).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("ip {arguments}: {status}"))) }
}

fn worker(n: u8, layout: Layout) -> io::Result<(Worker, Arc<Link>)> {
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
    let link = Arc::clone(device.data_path().routes().get(inside(3 - n, 0).ip()).unwrap());
    let file = tun::create("wg0", Frames::SuperFrames)?;
    link::add_address("wg0", Ipv4Addr::new(10, 9, 0, n), 24)?;
    ip(&format!("link set wg0 mtu {} up", layout.inner_mtu))?;
    let settings = Settings { mtu: layout.inner_mtu, clamp_mss: layout.clamp_mss };
    Ok((Worker::new(device, file, settings, None)?, link))
}

fn host(n: u8, ns: NetNs, layout: Layout) -> io::Result<(Host, Worker)> {
    let mtu = if n == 1 { layout.near_mtu } else { layout.far_mtu };
    let made = ns.run(|| {
        link::add_address("eth0", outside(n), 24)?;
        ip(&format!("link set eth0 mtu {mtu} up"))?;
        ip(&format!("route add default via {}", gateway(n)))?;
        worker(n, layout)
    });
    let (worker, link) = made?;
    let socket = worker.data_path().sockets().of(false).try_clone()?;
    Ok((Host { ns, counts: Arc::clone(worker.data_path().counts()), link, socket }, worker))
}

/// Runs `check` while both tunnels run.
pub fn with_tunnels(layout: Layout, check: impl FnOnce(&[Host; 2])) {
    if let Err(error) = NetNs::create("tunnel-probe").and_then(|ns| ns.run(|| tun::create("wg0", Frames::Packets))) {
        return parshall_testkit::skip("two tunnels between network namespaces", &error.to_string());
    }
    let [a, router, b] = ["a", "r", "b"].map(|tag| NetNs::create(&format!("tunnel-{tag}")).unwrap());
    for (n, ns, mtu) in [(1, &a, layout.near_mtu), (2, &b, layout.far_mtu)] {
        let name = format!("eth{n}");
        let made = router.run(|| {
            link::create_veth(&name, "eth0", ns.as_fd())?;
            link::add_address(&name, gateway(n), 24)?;
            ip(&format!("link set {name} mtu {mtu} up"))?;
            netns::set_sysctl("net.ipv4.ip_forward", "1")
        });
        made.unwrap();
    }
    let [(a, first), (b, second)] = [(1, a), (2, b)].map(|(n, ns)| host(n, ns, layout).unwrap());
    let (hosts, stop) = ([a, b], eventfd::new().unwrap());
    std::thread::scope(|scope| {
        // In the host's namespace, as a process is: there the loop asks for the path's MTU.
        let running = [(&hosts[0], first), (&hosts[1], second)].map(|(host, worker)| {
            scope.spawn(|| host.ns.run(|| Loop::new(layout.engine, worker).unwrap().run(stop.as_fd())))
        });
        let checked = catch_unwind(AssertUnwindSafe(|| check(&hosts)));
        eventfd::signal(&stop);
        for thread in running {
            thread.join().unwrap().unwrap();
        }
        if let Err(panic) = checked {
            resume_unwind(panic);
        }
    });
}

fn engines() -> [Engine; 3] {
    [Engine::Syscall(1), Engine::Syscall(3), Engine::Uring(Tunables::default())]
}

/// As [`with_tunnels`], with one loop after the other.
pub fn with_all_engines(layout: Layout, check: impl Fn(&[Host; 2])) {
    for engine in engines() {
        eprintln!("with {engine:?}");
        with_tunnels(Layout { engine, ..layout }, &check);
    }
}

/// As [`with_all_engines`], with all loops at the same time.
pub fn at_once_with_all_engines(layout: Layout, check: impl Fn(&[Host; 2]) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for engine in engines() {
            scope.spawn(move || with_tunnels(Layout { engine, ..layout }, check));
        }
    });
}

/// A stream moves within this even where each packet waits for other programs that use the CPUs.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a stream of known bytes from one host to the other, in which nothing may change.
pub fn stream(hosts: &[Host; 2], from: usize, port: u16, bytes: usize) {
    let address = inside(2 - from as u8, port);
    let sent: Vec<u8> = (0..bytes).map(|n| (n * 31 % 253) as u8).collect();
    let listener = bind(&hosts[1 - from], || TcpListener::bind(address));
    let mut sender = hosts[from].ns.run(|| TcpStream::connect_timeout(&address, STREAM_TIMEOUT)).unwrap();
    sender.set_write_timeout(Some(STREAM_TIMEOUT)).unwrap();
    let received = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            sender.write_all(&sent).unwrap();
            drop(sender);
        });
        let (mut receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(STREAM_TIMEOUT)).unwrap();
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).unwrap();
        sending.join().unwrap();
        received
    });
    assert!(received == sent, "the stream was altered");
}

/// Binds a socket on a host. Where a test had one on that port before, a child that another test starts may hold it until it runs its
/// program.
fn bind<T: Send>(host: &Host, bind: impl Fn() -> io::Result<T> + Sync) -> T {
    let begun = Instant::now();
    loop {
        match host.ns.run(&bind) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// As [`udp_pair`], connected from the first host to the second, with a session of the tunnel between them.
pub fn connected_udp_pair(hosts: &[Host; 2], port: u16) -> [UdpSocket; 2] {
    let [here, there] = udp_pair(hosts, port);
    here.connect(inside(2, port)).unwrap();
    here.send(&[0]).unwrap();
    assert_eq!(received(&there, &mut [0; 8]), 1, "there is a session");
    [here, there]
}

/// The length of the next datagram. A wait with a timeout ends with EINTR when the process was stopped meanwhile.
pub fn received(socket: &UdpSocket, buffer: &mut [u8]) -> usize {
    loop {
        match socket.recv(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.unwrap(),
        }
    }
}

/// A socket on each host, on one port.
pub fn udp_pair(hosts: &[Host; 2], port: u16) -> [UdpSocket; 2] {
    [(0, 1), (1, 2)].map(|(host, n)| {
        let socket = bind(&hosts[host], || UdpSocket::bind(inside(n, port)));
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    })
}

/// Sends datagrams of several lengths from a to b and back. One that the path is found to be too small for is lost, and the next
/// one is cut.
pub fn echo(hosts: &[Host; 2], port: u16, lengths: &[usize]) {
    let [here, there] = udp_pair(hosts, port);
    here.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            there.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let mut buffer = vec![0; 65_536];
            while !stop.load(Relaxed) {
                if let Ok((len, back)) = there.recv_from(&mut buffer) {
                    there.send_to(&buffer[..len], back).unwrap();
                }
            }
        });
        // On a busy host each of many fragments may be lost.
        let passes = |len: usize| {
            let give_up = Instant::now() + Duration::from_secs(60);
            while Instant::now() < give_up {
                if echo_one(&here, inside(2, port), len) {
                    return true;
                }
            }
            false
        };
        let lost = lengths.iter().find(|len| !passes(**len));
        stop.store(true, Relaxed);
        assert_eq!(lost, None, "datagrams of this length do not pass unaltered: {:?}", hosts[0].counts);
    });
}

/// Whether a datagram and its echo pass unaltered.
fn echo_one(here: &UdpSocket, to: SocketAddr, len: usize) -> bool {
    let sent: Vec<u8> = (0..len).map(|n| n as u8).collect();
    let mut buffer = vec![0; 65_536];
    here.send_to(&sent, to).unwrap();
    // A late echo of a shorter one may come first.
    while let Ok(received) = here.recv(&mut buffer) {
        if received == len {
            return buffer[..received] == sent[..];
        }
    }
    false
}
