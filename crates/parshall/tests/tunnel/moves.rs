//! Changes under a tunnel that is up: names and interfaces of endpoints, routes, ports, and marks of routers on the way.
//!
//! ```text
//!  host 0                               host 1
//!  10.9.0.1  tunnel ┐                 ┌ tunnel  10.9.0.2
//!            192.0.2.1 eth0 ────── eth0 192.0.2.2
//! ```
use std::fs;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parshall_core::tunnel::PrivateKey;
use parshall_sys::udp_batch::{DatagramBatch, options};

use crate::bed::{KEYS, reaches, wait_until};
use crate::common::{PARSHALL, Scratch, has, root};
use crate::operators::{End, ends};

/// Writes the file of host `n`, whose peer has this endpoint and these further settings.
fn config(scratch: &Scratch, end: &End, n: usize, peer: &str) -> String {
    let file = scratch.file(&format!("{}.conf", end.interface));
    let (private, public, own, other) = (KEYS[n].0, KEYS[1 - n].1, n + 1, 2 - n);
    let text = format!(
        "[Interface]\nPrivateKey = {private}\nAddress = 10.9.0.{own}/32, fd09::{own}/128\nListenPort = 51820\n[Peer]\n\
         PublicKey = {public}\nAllowedIPs = 10.9.0.{other}/32, fd09::{other}/128\n{peer}\n",
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn up(end: &End, file: &str, more: &[&str]) {
    let log = "PARSHALL_LOG=info,tunnel::route_watch=trace";
    let output = end.run("env", &[&[log, PARSHALL, "tunnel", "up", file, "--daemon"], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A tunnel in the foreground, which is ended with this.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn endpoint(end: &End) -> String {
    end.wg("endpoints").split_whitespace().last().unwrap_or_default().to_owned()
}

#[test]
fn an_endpoint_of_the_link_is_found_when_its_interface_appears() {
    let what = "an endpoint with the name of an interface";
    if !root(what) || !has(&["ip", "wg"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("late");
    let [a, b] = &ends;
    b.ip("address add fe80::2/64 dev eth0 nodad");
    up(b, &config(&scratch, b, 1, ""), &[]);
    up(a, &config(&scratch, a, 0, "Endpoint = [fe80::2%uplink]:51820\nPersistentKeepalive = 1"), &[]);
    assert_eq!(endpoint(a), "(none)");
    a.ip("link set dev eth0 down");
    a.ip("link set dev eth0 name uplink");
    a.ip("link set dev uplink up");
    a.ip("address add fe80::1/64 dev uplink nodad");
    reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
    let index = a.ip("-o link show dev uplink").split(':').next().unwrap().to_owned();
    assert!([format!("[fe80::2%{index}]:51820"), "[fe80::2%uplink]:51820".to_owned()].contains(&endpoint(a)));

    // `wg` writes the name too.
    a.host.wg(&format!("set {} peer {} endpoint [fe80::2%uplink]:51820", a.interface, KEYS[1].1));
    reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
    let refused = a.run("wg", &["set", &a.interface, "peer", KEYS[1].1, "endpoint", "[fe80::2%none]:51820"]);
    assert!(!refused.status.success());
}

#[test]
#[ignore = "make test-all"]
fn a_name_that_leads_elsewhere_is_asked_for_again() {
    let what = "an endpoint whose name gets another address";
    if !root(what) || !has(&["ip", "wg", "unshare", "mount"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("name");
    let [a, b] = &ends;
    up(b, &config(&scratch, b, 1, ""), &[]);
    let hosts = scratch.file("hosts");
    fs::write(&hosts, "192.0.2.99 vpn.test\n").unwrap();
    let file = config(&scratch, a, 0, "Endpoint = vpn.test:51820\nPersistentKeepalive = 1");
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(&hosts).args([PARSHALL, "tunnel", "up", &file]).stdin(Stdio::null());
    let _tunnel = Foreground(a.netns.run(|| command.spawn()).unwrap());
    wait_until("the first address", || crate::bed::socket(&a.interface).exists() && endpoint(a) == "192.0.2.99:51820");
    // Into the same inode, which is mounted.
    fs::write(&hosts, "192.0.2.2 vpn.test\n").unwrap();
    wait_until("the second address", || endpoint(a) == "192.0.2.2:51820");
    reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
}

#[test]
fn datagrams_leave_from_an_address_of_the_new_route() {
    let what = "a tunnel whose route moves to another uplink";
    if !root(what) || !has(&["ip", "wg"], what) {
        return;
    }
    for engine in [&[][..], &["--engine", "uring"], &["--threads", "2"]] {
        let scratch = Scratch::new();
        let ends = ends("move");
        let [a, b] = &ends;
        a.host.connect(&b.host, ["eth1", "eth1"], &[["198.51.100.1/24", "198.51.100.2/24"]]);
        b.ip("address add 203.0.113.2/32 dev lo");
        a.ip("route add 203.0.113.2 via 192.0.2.2");
        up(b, &config(&scratch, b, 1, ""), engine);
        up(a, &config(&scratch, a, 0, "Endpoint = 203.0.113.2:51820"), engine);
        reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
        assert_eq!(endpoint(b), "192.0.2.1:51820");
        let log = format!("/run/parshall/tunnel/{}.log", a.interface);
        let looked = || fs::read_to_string(&log).is_ok_and(|text| text.contains("local: Some(192.0.2.1)"));
        wait_until("a look at the way to the peer", looked);
        // The first uplink keeps its link and its address, and the peer goes on writing to it until it hears from another one.
        let sender = b.netns.run(|| UdpSocket::bind("10.9.0.2:0")).unwrap();
        let (_until_here, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            while ended.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                let _ = sender.send_to(&[0], "10.9.0.1:9");
            }
        });
        a.ip("route replace 203.0.113.2 via 198.51.100.2");
        wait_until("the other source address", || {
            reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
            endpoint(b) == "198.51.100.1:51820"
        });
        let shown = String::from_utf8(a.tunnel("show", &[&a.interface]).stdout).unwrap();
        assert!(shown.contains(" 1 so far"), "no handshake was needed: {shown}");
    }
}

#[test]
fn congestion_marks_pass_the_tunnel_in_both_directions() {
    let what = "congestion marks of routers (ECN)";
    if !root(what) || !has(&["ip", "wg", "nft"], what) {
        return;
    }
    for engine in [&[][..], &["--engine", "uring"]] {
        let scratch = Scratch::new();
        let ends = ends("ecn");
        let [a, b] = &ends;
        up(b, &config(&scratch, b, 1, ""), engine);
        up(a, &config(&scratch, a, 0, "Endpoint = 192.0.2.2:51820"), engine);
        reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
        let rules = scratch.file("rules");
        // Counts datagrams that are capable of ECN, and marks those.
        fs::write(
            &rules,
            "table netdev m {\n chain i {\n type filter hook ingress device \"eth0\" priority 0;\n\
             udp dport 51820 ip ecn ect0 counter ip ecn set ce\n }\n}\n",
        )
        .unwrap();
        b.done("nft", &["-f", rules.to_str().unwrap()]);
        for (family, inside) in [(false, "10.9.0.2:0"), (true, "[fd09::2]:0")] {
            assert_eq!(
                marks_received(a, b, family, inside.parse().unwrap(), 2),
                Some(3),
                "capable, and marked on the way"
            );
            assert_eq!(marks_received(a, b, family, inside.parse().unwrap(), 0), Some(0), "neither");
        }
    }
}

/// Sends datagrams with these bits of ECN through the tunnel until one arrives, and returns its bits.
fn marks_received(from: &End, to: &End, ipv6: bool, address: SocketAddr, ecn: u8) -> Option<u8> {
    let server = to.netns.run(|| UdpSocket::bind(address)).unwrap();
    options::report_ecn(server.as_fd(), ipv6).unwrap();
    let any: SocketAddr = if ipv6 { (Ipv6Addr::UNSPECIFIED, 0).into() } else { ([0; 4], 0).into() };
    let client = from.netns.run(|| UdpSocket::bind(any)).unwrap();
    let (mut out, mut received) = (DatagramBatch::new(1), DatagramBatch::new(1));
    let slot = out.take_slot().unwrap();
    out.begin(Some(&server.local_addr().unwrap()), None, 0);
    out.set_ecn(ecn);
    out.attach(slot, 100);
    out.end(100);
    wait_until("a datagram", || {
        out.transmit(client.as_fd(), 0).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        received.receive(server.as_fd(), true).is_ok()
    });
    received.received().first().map(|received| received.ecn)
}

#[test]
fn a_change_of_the_port_under_traffic_sends_nothing_on_closed_sockets() {
    let what = "a tunnel whose port changes under traffic";
    if !root(what) || !has(&["ip", "wg"], what) {
        return;
    }
    for engine in [&[][..], &["--engine", "uring"], &["--engine", "uring", "--uring-sqpoll"]] {
        let scratch = Scratch::new();
        let ends = ends("port");
        let [a, b] = &ends;
        up(b, &config(&scratch, b, 1, ""), engine);
        up(a, &config(&scratch, a, 0, "Endpoint = 192.0.2.2:51820"), engine);
        reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
        let client = a.netns.run(|| UdpSocket::bind("10.9.0.1:0")).unwrap();
        for n in 0..12 {
            for _ in 0..200 {
                // The interface's queue may be full.
                let _ = client.send_to(&[0; 1000], "10.9.0.2:9");
            }
            a.host.wg(&format!("set {} listen-port {}", a.interface, 52_000 + n));
        }
        reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
        let shown = String::from_utf8(a.tunnel("show", &[&a.interface, "--format", "json"]).stdout).unwrap();
        assert!(!shown.contains("send-failed"), "{engine:?}: {shown}");
    }
}

#[test]
fn a_tunnel_goes_back_to_a_port_that_its_datagrams_still_leave_from() {
    let what = "a tunnel whose port changes and changes back";
    if !root(what) || !has(&["ip", "wg", "tc"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("back");
    let [a, b] = &ends;
    let engine = ["--engine", "uring", "--uring-zero-copy"];
    up(b, &config(&scratch, b, 1, ""), &engine);
    up(a, &config(&scratch, a, 0, "Endpoint = 192.0.2.2:51820"), &engine);
    reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
    // For some seconds the datagrams wait in a queue, with the memory of the tunnel.
    a.done("tc", &["qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80kbit", "burst", "2000", "latency", "10s"]);
    let client = a.netns.run(|| UdpSocket::bind("10.9.0.1:0")).unwrap();
    for port in [52_000, 51_820, 52_000] {
        for _ in 0..10 {
            client.send_to(&[0; 1000], "10.9.0.2:9").unwrap();
        }
        a.host.wg(&format!("set {} listen-port {port}", a.interface));
        assert_eq!(a.wg("listen-port").trim(), port.to_string());
    }
    a.done("tc", &["qdisc", "del", "dev", "eth0", "root"]);
    reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
}

#[test]
fn peers_that_are_not_there_delay_no_other() {
    let what = "a tunnel to hosts of the link that do not answer";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    for engine in [&[][..], &["--engine", "uring"], &["--engine", "uring", "--uring-zero-copy"]] {
        let scratch = Scratch::new();
        let ends = ends("gone");
        let [a, b] = &ends;
        up(b, &config(&scratch, b, 1, ""), &[]);
        // Packets to them wait for their link address, more of it than is ever in flight.
        let mut more = "Endpoint = 192.0.2.2:51820\n".to_owned();
        for n in 0..40 {
            let key = PrivateKey::new([n + 101; 32]).public();
            more +=
                &format!("[Peer]\nPublicKey = {key}\nEndpoint = 192.0.2.{}:4000\nPersistentKeepalive = 1\n", 100 + n);
        }
        up(a, &config(&scratch, a, 0, &more), engine);
        let is_quick = |_| {
            let asked = Instant::now();
            reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
            asked.elapsed() < Duration::from_secs(1)
        };
        // A packet to them waits for three seconds, and so would each that is behind it. A busy host delays some answers, and not all.
        wait_until(&format!("{engine:?}: some answer is late"), || (0..10).all(is_quick));
    }
}

#[test]
fn udp_over_ipv6_passes_whatever_its_checksum_is() {
    let what = "UDP over IPv6 through a tunnel";
    if !root(what) || !has(&["ip", "wg"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("zero");
    let [a, b] = &ends;
    up(b, &config(&scratch, b, 1, ""), &[]);
    up(a, &config(&scratch, a, 0, "Endpoint = 192.0.2.2:51820"), &[]);
    reaches(&a.netns, &b.netns, "fd09::2".parse().unwrap());
    let server = b.netns.run(|| UdpSocket::bind("[fd09::2]:7000")).unwrap();
    server.set_read_timeout(Some(crate::bed::LIMIT)).unwrap();
    let client = a.netns.run(|| UdpSocket::bind("[fd09::1]:6000")).unwrap();
    // The words of the pseudo-header, the ports and the length; the payload makes the sum 0xffff.
    let words = [0xfd09u32, 1, 0xfd09, 2, 10, 17, 6000, 7000, 10];
    let sum = words.iter().sum::<u32>();
    let payload = 0xffff - (sum % 0xffff) as u16;
    client.send_to(&payload.to_be_bytes(), "[fd09::2]:7000").unwrap();
    let mut received = [0; 8];
    assert_eq!(server.recv(&mut received).unwrap(), 2);
    assert_eq!(received[..2], payload.to_be_bytes());
}
