//! The checks of WireGuard's own test of namespaces in the kernel (tools/testing/selftests/wireguard/netns.sh), made with
//! `parshall tunnel`. Checks of other suites are not repeated: default routes, `wg-quick`, MTUs of paths, replaced sessions. Nor is
//! what it marks as unsolved: loops through two tunnels.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::bed::{Host, KEYS, PSK, echoes, reaches, socket, stream, wait_until};
use crate::common::{PARSHALL, Scratch, has, root};
use parshall_core::tunnel::PrivateKey;

/// The addresses inside, of both families.
const INSIDE: [[&str; 2]; 2] = [["192.168.241.1", "192.168.241.2"], ["fd00::1", "fd00::2"]];

fn ready(what: &str) -> bool {
    root(what) && has(&["ip", "wg"], what)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Files with the private keys of [`KEYS`] and the preshared key, as `wg` wants them.
struct KeyFiles(Scratch);

impl KeyFiles {
    fn new() -> Self {
        let files = Self(Scratch::new());
        for (n, (private, _)) in KEYS.iter().enumerate() {
            fs::write(files.0.file(&n.to_string()), private).unwrap();
        }
        fs::write(files.0.file("psk"), PSK).unwrap();
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.file(name).to_str().unwrap().to_owned()
    }

    /// `private-key FILE` of one of [`KEYS`].
    fn private(&self, n: usize) -> String {
        format!("private-key {}", self.path(&n.to_string()))
    }

    /// `peer KEY preshared-key FILE` of one of [`KEYS`].
    fn peer(&self, n: usize) -> String {
        format!("peer {} preshared-key {}", KEYS[n].1, self.path("psk"))
    }
}

/// An interface of `parshall tunnel run`, which ends when this is dropped.
struct Interface<'a> {
    name: String,
    /// The host that has its sockets.
    outer: &'a Host,
    /// The host that has the device.
    inner: &'a Host,
}

impl<'a> Interface<'a> {
    fn start(tag: &str, outer: &'a Host, inner: &'a Host) -> Self {
        let name = format!("{tag}-{}", std::process::id());
        outer.done(PARSHALL, &["tunnel", "run", &name, "--daemon"]);
        if outer.netns.name() != inner.netns.name() {
            outer.ip(&format!("link set {name} netns {}", inner.netns.name()));
        }
        Self { name, outer, inner }
    }

    /// Gives the device addresses and sets it up.
    fn up(&self, addresses: &[&str], mtu: usize) {
        for address in addresses {
            self.inner.add_address(address, &self.name);
        }
        self.inner.ip(&format!("link set up mtu {mtu} dev {}", self.name));
    }

    /// `wg set`.
    fn set(&self, words: &str) {
        self.outer.wg(&format!("set {} {words}", self.name));
    }

    /// `wg show`.
    fn show(&self, what: &str) -> String {
        self.outer.wg(&format!("show {} {what}", self.name))
    }

    /// The address to which it sends the datagrams of a peer.
    fn endpoint(&self, peer: usize) -> String {
        let shown = self.show("endpoints");
        let line = shown.lines().find_map(|line| line.strip_prefix(KEYS[peer].1)).unwrap_or_default();
        line.trim().to_owned()
    }

    fn sent_bytes(&self) -> u64 {
        let shown = self.show("transfer");
        shown.lines().map(|line| line.split('\t').nth(2).unwrap().parse::<u64>().unwrap()).sum()
    }

    fn end(&self) {
        self.outer.run(PARSHALL, &["tunnel", "down", &self.name]);
        fs::remove_file(format!("/run/parshall/tunnel/{}.log", self.name)).ok();
    }
}

impl Drop for Interface<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Two interfaces whose sockets are in one namespace and whose devices are each in one of their own.
struct Loopback<'a> {
    keys: KeyFiles,
    ends: [Interface<'a>; 2],
}

impl<'a> Loopback<'a> {
    /// `outer` and the two namespaces of the devices.
    fn start(tag: &str, hosts: &'a [Host; 3]) -> Self {
        let [outer, first, second] = hosts;
        let keys = KeyFiles::new();
        let ends = [first, second].map(|inner| {
            let n = if std::ptr::eq(inner, first) { 0 } else { 1 };
            let end = Interface::start(&format!("{tag}{n}"), outer, inner);
            end.up(&[&format!("{}/24", INSIDE[0][n]), &format!("{}/112", INSIDE[1][n])], 1420);
            end
        });
        let pair = Self { keys, ends };
        pair.configure("127.0.0.1");
        pair
    }

    /// Keys, peers and endpoints of both ends, on the ports 1 and 2.
    fn configure(&self, outside: &str) {
        for (n, end) in self.ends.iter().enumerate() {
            let allowed =
                INSIDE.map(|pair| pair[1 - n]).map(|ip| format!("{ip}/{}", if ip.contains(':') { 128 } else { 32 }));
            end.set(&format!(
                "{} listen-port {} {} allowed-ips {} endpoint {outside}:{}",
                self.keys.private(n),
                n + 1,
                self.keys.peer(1 - n),
                allowed.join(","),
                2 - n,
            ));
        }
    }

    /// Streams both ways, at once too, and datagrams of several lengths.
    fn check(&self, longest: usize) {
        let [a, b] = self.ends.each_ref().map(|end| &end.inner.netns);
        for [here, there] in INSIDE {
            stream(a, b, address(there), 2_000_000);
            stream(b, a, address(here), 2_000_000);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| stream(a, b, address(there), 500_000));
                }
            });
            for len in [0, 1, 1000, longest, 3 * longest] {
                assert!(echoes(a, b, address(there), len), "{len} bytes to {there}");
                assert!(echoes(b, a, address(here), len), "{len} bytes to {here}");
            }
        }
    }
}

fn hosts<const N: usize>(tag: &str) -> [Host; N] {
    std::array::from_fn(|n| Host::new(&format!("{tag}{n}")))
}

#[test]
fn devices_work_in_other_namespaces_than_their_sockets() {
    if !ready("tunnels whose devices were moved") {
        return;
    }
    let hosts = hosts("nsl");
    let pair = Loopback::start("nsl", &hosts);
    for outside in ["127.0.0.1", "[::1]"] {
        pair.configure(outside);
        pair.check(1200);
    }
    // The loopback takes datagrams of up to 65,535 bytes.
    for end in &pair.ends {
        end.inner.ip(&format!("link set mtu 34736 dev {}", end.name));
    }
    for outside in ["127.0.0.1", "[::1]"] {
        pair.configure(outside);
        pair.check(20_000);
    }

    // Packets are padded, but not beyond what a route allows.
    let [a, b] = &pair.ends;
    a.inner.ip(&format!("route add {}/32 dev {} mtu 1299", INSIDE[0][1], a.name));
    assert!(echoes(&a.inner.netns, &b.inner.netns, address(INSIDE[0][1]), 1299 - 28));
}

#[test]
fn endpoints_roam_by_port_address_and_family() {
    if !ready("roaming between addresses of the loopback") {
        return;
    }
    let hosts = hosts("nsr");
    let pair = Loopback::start("nsr", &hosts);
    let [a, b] = &pair.ends;
    let reaches = || reaches(&a.inner.netns, &b.inner.netns, address(INSIDE[0][1]));
    reaches();
    let outer = &hosts[0];
    outer.ip("address delete 127.0.0.1/8 dev lo");
    outer.add_address("127.212.121.99/8", "lo");
    a.set(&format!("listen-port 9999 peer {} endpoint 127.0.0.1:2", KEYS[1].1));
    reaches();
    assert_eq!(b.endpoint(0), "127.212.121.99:9999");
    a.set(&format!("listen-port 9998 peer {} endpoint [::1]:2", KEYS[1].1));
    reaches();
    assert_eq!(b.endpoint(0), "[::1]:9998");
}

#[test]
fn packets_belong_to_the_peer_of_their_source() {
    if !ready("the most specific peer of an address") {
        return;
    }
    let hosts = hosts("nsc");
    let pair = Loopback::start("nsc", &hosts);
    let [a, b] = &pair.ends;
    a.set(&format!("peer {} allowed-ips 192.168.241.0/24", KEYS[1].1));
    let arrives = || echoes(&b.inner.netns, &a.inner.netns, address(INSIDE[0][0]), 10);
    assert!(arrives());
    // Another peer has the address of b: what b sends is not b's, and where b has moved to is not learned from it.
    a.set(&format!("peer {} allowed-ips 192.168.241.2/32", KEYS[2].1));
    b.set("listen-port 9997");
    assert!(!arrives());
    let report = a.outer.done(PARSHALL, &["tunnel", "show", &a.name, "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let drops = &report["tunnels"][0]["peers"][0]["drops"];
    assert!(drops["wrong-source"].as_u64().is_some_and(|n| n > 0), "{report}");
    a.set(&format!("peer {} remove", KEYS[2].1));
    assert!(arrives());
    assert_eq!(a.endpoint(1), "127.0.0.1:9997", "the packets were b's all the same");
}

#[test]
fn a_new_private_key_begins_a_new_handshake_at_once() {
    if !ready("changes of private keys") {
        return;
    }
    let hosts = hosts("nsk");
    let pair = Loopback::start("nsk", &hosts);
    let [a, b] = &pair.ends;
    let to_b = || echoes(&a.inner.netns, &b.inner.netns, address(INSIDE[0][1]), 10);
    assert!(to_b());
    a.set(&pair.keys.private(2));
    let third = format!("{} allowed-ips {}/32 peer {} remove", pair.keys.peer(2), INSIDE[0][0], KEYS[0].1);
    b.set(&third);
    assert!(to_b(), "within less than a second");
    b.set(&format!("peer {} remove", KEYS[2].1));
    assert!(!to_b());
}

#[test]
fn a_tunnel_goes_through_a_tunnel() {
    if !ready("a tunnel through a tunnel") {
        return;
    }
    let hosts = hosts("nsw");
    let pair = Loopback::start("nsw", &hosts);
    let [a, b] = &pair.ends;
    let around = ["fd00::5:1", "fd00::5:2"];
    let _inner = [(a, 0), (b, 1)].map(|(end, n)| {
        end.inner.ip(&format!("address flush dev {}", end.name));
        end.inner.add_address(&format!("{}/112", around[n]), &end.name);
        end.set(&format!("peer {} allowed-ips {}/128", KEYS[1 - n].1, around[1 - n]));
        let inner = Interface::start(&format!("nswi{n}"), end.inner, end.inner);
        inner.up(&[&format!("{}/24", INSIDE[0][n]), &format!("{}/112", INSIDE[1][n])], 1340);
        inner.set(&format!(
            "{} listen-port 5 {} allowed-ips {}/32,{}/128 endpoint [{}]:5",
            pair.keys.private(2 + n),
            pair.keys.peer(3 - n),
            INSIDE[0][1 - n],
            INSIDE[1][1 - n],
            around[1 - n],
        ));
        inner
    });
    for [here, there] in INSIDE {
        stream(&a.inner.netns, &b.inner.netns, address(there), 2_000_000);
        stream(&b.inner.netns, &a.inner.netns, address(here), 2_000_000);
    }
}

/// Forwards datagrams between `inside` and `to` from a port of its own for as long as there are any, and then takes another port.
fn translate(router: &Host, inside: &str, outside: &str, to: &str, stop: &AtomicBool) {
    const IDLE: Duration = Duration::from_secs(2);
    let near = router.netns.run(|| UdpSocket::bind(inside)).unwrap();
    let new_port = || {
        let far = router.netns.run(|| UdpSocket::bind((outside, 0))).unwrap();
        far.connect(to).map(|()| far.set_nonblocking(true).map(|()| far)).unwrap().unwrap()
    };
    near.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let (mut far, mut client, mut used) = (None, None, Instant::now());
    let mut buffer = [0; 2048];
    while !stop.load(Relaxed) {
        if let Ok((len, from)) = near.recv_from(&mut buffer) {
            (client, used) = (Some(from), Instant::now());
            far.get_or_insert_with(new_port).send(&buffer[..len]).ok();
        }
        if used.elapsed() > IDLE {
            far = None;
        }
        while let Some((len, to)) = far.as_ref().and_then(|far: &UdpSocket| far.recv(&mut buffer).ok()).zip(client) {
            used = Instant::now();
            near.send_to(&buffer[..len], to).unwrap();
        }
    }
}

#[test]
fn keepalives_keep_the_port_that_a_router_has_chosen() {
    if !ready("a tunnel behind a router that translates addresses") {
        return;
    }
    let [client, router, server] = &hosts("nsn");
    client.connect(router, ["eth0", "near"], &[["192.168.1.100/24", "192.168.1.1/24"]]);
    router.connect(server, ["far", "eth0"], &[["10.0.0.1/24", "10.0.0.100/24"]]);
    let keys = KeyFiles::new();
    let [a, b] = [("nsn0", client), ("nsn1", server)].map(|(tag, host)| Interface::start(tag, host, host));
    a.up(&["192.168.241.1/24"], 1420);
    b.up(&["192.168.241.2/24"], 1420);
    let peer = |n: usize| format!("{} allowed-ips {}/32", keys.peer(n), INSIDE[0][n]);
    b.set(&format!("{} listen-port 2 {}", keys.private(1), peer(0)));
    a.set(&format!("{} {} endpoint 192.168.1.1:2 persistent-keepalive 1", keys.private(0), peer(1)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| translate(router, "192.168.1.1:2", "10.0.0.1", "10.0.0.100:2", &stop));
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            reaches(&client.netns, &server.netns, address(INSIDE[0][1]));
            let to_client = || echoes(&server.netns, &client.netns, address(INSIDE[0][0]), 10);
            let chosen = b.endpoint(0);
            assert!(chosen.starts_with("10.0.0.1:"), "{chosen}");
            std::thread::sleep(Duration::from_secs(3));
            assert!(to_client());
            assert_eq!(b.endpoint(0), chosen);
            // Without them the port is given up, and the client's next packet shows the new one.
            a.set(&format!("peer {} persistent-keepalive 0", KEYS[1].1));
            std::thread::sleep(Duration::from_secs(3));
            assert!(!to_client());
            reaches(&client.netns, &server.netns, address(INSIDE[0][1]));
            assert_ne!(b.endpoint(0), chosen);
            assert!(to_client());
        }));
        stop.store(true, Relaxed);
        checked.unwrap();
    });
}

#[test]
fn a_peer_behind_a_peer_of_the_same_interface_is_reached() {
    if !ready("a peer behind a peer") {
        return;
    }
    let [left, right] = &hosts("nso");
    left.connect(right, ["eth0", "eth0"], &[["10.0.0.1/24", "10.0.0.2/24"]]);
    let keys = KeyFiles::new();
    let a = Interface::start("nso0", left, left);
    let b = Interface::start("nso1", right, right);
    let behind = Interface::start("nso2", right, right);
    a.up(&["192.168.241.1/24", "192.168.242.1/24"], 1420);
    b.up(&["192.168.241.2/24"], 1420);
    behind.up(&["192.168.242.2/24"], 1340);
    a.set(&format!(
        "{} listen-port 1 {} allowed-ips 192.168.241.2/32 endpoint 10.0.0.2:2 {} allowed-ips 192.168.242.2/32 endpoint 192.168.241.2:5",
        keys.private(0),
        keys.peer(1),
        keys.peer(2),
    ));
    b.set(&format!("{} listen-port 2 {} allowed-ips 192.168.241.1/32", keys.private(1), keys.peer(0)));
    behind.set(&format!("{} listen-port 5 {} allowed-ips 192.168.242.1/32", keys.private(2), keys.peer(0)));
    reaches(&left.netns, &right.netns, address("192.168.242.2"));
    // Now it is behind itself. Datagrams to it are not sealed again and again.
    a.set(&format!("peer {} endpoint 192.168.242.2:5", KEYS[2].1));
    let before = a.sent_bytes();
    assert!(!echoes(&left.netns, &right.netns, address("192.168.242.2"), 10));
    let sent = a.sent_bytes() - before;
    assert!(sent < 20_000, "{sent} bytes for some datagrams of 10 bytes");
    let shown = left.done(PARSHALL, &["tunnel", "show", &a.name]);
    assert!(shown.contains("routing-loop"), "{shown}");
    reaches(&left.netns, &right.netns, address("192.168.241.2"));
}

#[test]
fn senders_learn_that_a_host_is_unreachable() {
    if !ready("messages about unreachable hosts") {
        return;
    }
    let [host] = &hosts("nsu");
    let keys = KeyFiles::new();
    let interface = Interface::start("nsu0", host, host);
    interface.up(&["192.168.241.1/24", "fd00::1/112"], 1420);
    // 2 is a peer whose address is unknown, and 3 is nobody's.
    interface.set(&format!("{} {} allowed-ips 192.168.241.2/32,fd00::2/128", keys.private(0), keys.peer(1)));
    for to in ["192.168.241.2", "192.168.241.3", "fd00::2", "fd00::3"] {
        let to = (address(to), 80).into();
        let refused = || {
            let begun = Instant::now();
            // Without the message this would time out.
            let error = host.netns.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{to}: {error}");
            begun.elapsed()
        };
        // A message that comes while connect() still holds the socket counts from the next SYN on, a second later.
        assert!((0..4).any(|_| refused() < Duration::from_millis(900)), "{to}: not told at once");
    }
    let shown = host.done(PARSHALL, &["tunnel", "show", &interface.name]);
    assert!(shown.contains("no-endpoint") && shown.contains("no-peer"), "{shown}");
}

#[test]
fn an_interface_that_is_down_is_silent() {
    if !ready("interfaces that are down") {
        return;
    }
    let [left, right] = &hosts("nsz");
    left.connect(right, ["eth0", "eth0"], &[["10.0.0.1/24", "10.0.0.2/24"]]);
    let keys = KeyFiles::new();
    let [a, b] = [("nsz0", left), ("nsz1", right)].map(|(tag, host)| Interface::start(tag, host, host));
    b.up(&["192.168.241.2/24"], 1420);
    b.set(&format!("{} listen-port 2 {} allowed-ips 192.168.241.1/32", keys.private(1), keys.peer(0)));
    let peer = format!("{} allowed-ips 192.168.241.2/32 endpoint 10.0.0.2:2 persistent-keepalive 1", keys.peer(1));
    a.set(&format!("{} listen-port 1 {peer}", keys.private(0)));
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(a.sent_bytes(), 0, "it was never up");
    a.up(&["192.168.241.1/24"], 1420);
    // Without a packet of anybody: the first keepalive begins the handshake.
    wait_until("a handshake", || a.show("latest-handshakes").trim_end().rsplit('\t').next() != Some("0"));
    reaches(&left.netns, &right.netns, address("192.168.241.2"));

    left.ip(&format!("link set down dev {}", a.name));
    // A keepalive that is due finds out.
    std::thread::sleep(Duration::from_millis(2_500));
    let before = a.sent_bytes();
    right.netns.run(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"asks", ("192.168.241.1", 9))).unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(a.sent_bytes(), before);

    left.ip(&format!("link set up dev {}", a.name));
    reaches(&left.netns, &right.netns, address("192.168.241.2"));
}

#[test]
fn answers_leave_from_the_address_that_was_written_to() {
    if !ready("the choice of the source address") {
        return;
    }
    let [left, right] = &hosts("nsa");
    let cable = [["10.0.0.1/24", "10.0.0.3/24"], ["fd00:aa::1/96", "fd00:aa::3/96"]];
    left.connect(right, ["eth0", "eth0"], &cable);
    for more in ["10.0.0.2/24", "fd00:aa::2/96"] {
        left.add_address(more, "eth0");
    }
    let keys = KeyFiles::new();
    let [a, b] = [("nsa0", left), ("nsa1", right)].map(|(tag, host)| Interface::start(tag, host, host));
    a.up(&["192.168.241.1/24"], 1420);
    b.up(&["192.168.241.2/24"], 1420);
    a.set(&format!("{} listen-port 1 {} allowed-ips 192.168.241.2/32", keys.private(0), keys.peer(1)));
    b.set(&format!("{} listen-port 2 {} allowed-ips 192.168.241.1/32", keys.private(1), keys.peer(0)));
    let written_to = |endpoint: &str| {
        b.set(&format!("peer {} endpoint {endpoint}", KEYS[0].1));
        reaches(&right.netns, &left.netns, address(INSIDE[0][0]));
        assert_eq!(b.endpoint(0), endpoint);
    };
    for endpoint in ["10.0.0.1:1", "10.0.0.2:1", "[fd00:aa::1]:1", "[fd00:aa::2]:1"] {
        written_to(endpoint);
    }
    // An address of another device than the one that leads to the peer.
    left.ip("link add dummy0 type veth peer name dummy1");
    left.add_address("10.50.0.1/24", "dummy0");
    left.ip("link set up dev dummy0");
    right.ip("route add 10.50.0.0/24 via 10.0.0.1");
    written_to("10.50.0.1:1");

    // The address goes, and the next packet leaves from another one.
    left.ip("link delete dummy0");
    reaches(&left.netns, &right.netns, address(INSIDE[0][1]));
    assert_eq!(b.endpoint(0), "10.0.0.1:1");
    // As an address that is changed does.
    left.ip("address flush dev eth0");
    left.add_address("10.0.0.10/24", "eth0");
    reaches(&left.netns, &right.netns, address(INSIDE[0][1]));
    assert_eq!(b.endpoint(0), "10.0.0.10:1");
}

#[test]
fn large_configurations_are_read_back_whole() {
    if !ready("configurations of more than a hundred thousand addresses") {
        return;
    }
    let [host] = &hosts("nsb");
    let keys = KeyFiles::new();
    let interface = Interface::start("nsb0", host, host);
    let [private, peer] = [KEYS[0].0, KEYS[1].1];
    let mut text = format!("[Interface]\nPrivateKey = {private}\n[Peer]\nPublicKey = {peer}\n");
    for (a, b) in (1..=255).flat_map(|a| (0..=255).map(move |b| (a, b))) {
        text.push_str(&format!("AllowedIPs = {a}.{b}.0.0/16, {a:x}:{b:x}::/128\n"));
    }
    let set = |text: &str| {
        fs::write(keys.path("large"), text).unwrap();
        host.wg(&format!("setconf {} {}", interface.name, keys.path("large")));
    };
    set(&text);
    assert_eq!(interface.show("allowed-ips").split_whitespace().count(), 1 + 2 * 255 * 256);

    // Many peers with few addresses each, and few peers with many.
    for (peers, addresses) in [(1000_u32, 3_u32), (40, 200)] {
        let mut text = format!("[Interface]\nPrivateKey = {private}\n");
        for n in 0..peers {
            text.push_str(&format!("[Peer]\nPublicKey = {}\n", key_of(n + 1)));
            for at in 0..addresses {
                let ip = std::net::Ipv4Addr::from_bits((10 << 24) + n * addresses + at);
                text.push_str(&format!("AllowedIPs = {ip}/32\n"));
            }
        }
        set(&text);
        let shown = interface.show("allowed-ips");
        assert_eq!(shown.lines().count(), peers as usize);
        assert!(shown.lines().all(|line| line.split_whitespace().count() == 1 + addresses as usize));
    }
}

fn key_of(n: u32) -> String {
    let mut bytes = [9; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    PrivateKey::new(bytes).public().to_string()
}

#[test]
fn addresses_have_one_owner_and_odd_keys_are_taken() {
    if !ready("owners of addresses, and keys") {
        return;
    }
    let [host] = &hosts("nsi");
    let keys = KeyFiles::new();
    let interface = Interface::start("nsi0", host, host);
    let [first, second] = [KEYS[1].1, KEYS[2].1];
    interface.set(&format!("{} peer {first}", keys.private(0)));
    assert_eq!(interface.show("allowed-ips"), format!("{first}\t(none)\n"));
    interface.set(&format!("peer {first} allowed-ips 0.0.0.0/0,10.0.0.0/8,::/0"));
    interface.set(&format!("peer {second} allowed-ips 10.0.0.0/8"));
    let shown = interface.show("allowed-ips");
    assert!(
        shown.contains(&format!("{first}\t::/0 0.0.0.0/0")) || shown.contains(&format!("{first}\t0.0.0.0/0 ::/0")),
        "{shown}"
    );
    assert!(shown.contains(&format!("{second}\t10.0.0.0/8")), "{shown}");
    // The bits behind the prefix do not count.
    interface.set(&format!("peer {first} allowed-ips 192.168.4.29/24,abcd::1/64"));
    let shown = interface.show("allowed-ips");
    assert!(shown.contains("192.168.4.0/24") && shown.contains("abcd::/64"), "{shown}");

    // A host is not its own peer, whichever of both is set first.
    interface.set(&format!("peer {}", KEYS[0].1));
    assert!(!interface.show("peers").contains(KEYS[0].1));
    interface.set(&keys.private(1));
    assert!(!interface.show("peers").contains(first));

    // Points of low order are keys that no handshake can be done with. They may be configured and do no harm.
    let low_order = [
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "4Ot6fDtBuK4WVuP68Z/EatoJjeucMrH9hmIFFl9JuAA=",
        "X5yVvKNQjCSx0LFVnIPvWwREXMRYHI6G2CJO3dCfEVc=",
        "7P///////////////////////////////////////38=",
        "7f///////////////////////////////////////38=",
        "7v///////////////////////////////////////38=",
    ];
    for key in low_order {
        interface.set(&format!("peer {key} persistent-keepalive 1 endpoint 127.0.0.1:1111"));
    }
    let peers = interface.show("peers");
    assert!(low_order.iter().all(|key| peers.contains(key)), "{peers}");
    interface.up(&["192.168.241.1/24"], 1420);
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(interface.show("peers"), peers, "it still runs");
}

#[test]
fn a_tunnel_ends_with_the_namespace_of_its_device() {
    if !ready("namespaces that end") {
        return;
    }
    let [outer, inner] = hosts("nse");
    let name = format!("nse0-{}", std::process::id());
    outer.done(PARSHALL, &["tunnel", "run", &name, "--daemon"]);
    outer.ip(&format!("link set {name} netns {}", inner.netns.name()));
    let pid = fs::read_to_string(format!("/run/parshall/tunnel/{name}.pid")).unwrap();
    drop(inner);
    wait_until("the process runs", || !std::path::Path::new("/proc").join(pid.trim()).exists());
    wait_until("the socket is there", || !socket(&name).exists());
    let again = Command::new(PARSHALL).args(["tunnel", "show", &name]).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    fs::remove_file(format!("/run/parshall/tunnel/{name}.log")).ok();
}
