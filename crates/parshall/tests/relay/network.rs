//! Features that depend on the network, tested in namespaces: the client's address to targets (IP_TRANSPARENT), MPTCP, TCP Fast
//! Open and keepalive.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use crate::common::{self, PARSHALL, Running, begin, has, root, skip, until};
use parshall_sys::netns::{NetNs, set_sysctl};
use parshall_sys::stream_socket::{self, Options, StreamAddr};

const TIMEOUT: Duration = Duration::from_secs(10);

fn ip(arguments: &str) {
    let done = common::finish(Command::new("ip").args(arguments.split(' ')));
    assert_eq!(done.code, Some(0), "ip {arguments}: {}", done.stderr);
}

fn namespace(tag: &str, what: &str) -> Option<NetNs> {
    NetNs::create(tag).map_err(|e| skip(what, &e.to_string())).ok()
}

/// Starts a relay in a namespace and waits until both of its threads listen on this port: before, one socket binds it alone.
fn relay(namespace: &NetNs, port: u16, arguments: &[&str]) -> Running {
    let running = namespace.run(|| Ok(begin(Command::new(PARSHALL).arg("relay").args(arguments)))).unwrap();
    let table = if arguments.contains(&"--udp") { "udp" } else { "tcp" };
    let wanted = format!(":{port:04X} 00000000:0000 ");
    let stat = format!("/proc/{}/stat", running.pid());
    let mut ended = false;
    until("the relay listens", || {
        ended = std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
        let text = namespace.run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{table}"))).unwrap();
        ended || text.matches(&wanted).count() == 2
    });
    if ended {
        panic!("{:?}", running.finish());
    }
    running
}

fn tcp(namespace: &NetNs, to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().unwrap();
    let stream = namespace.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn transfers(from: &mut TcpStream, to: &mut TcpStream, word: &[u8]) {
    from.write_all(word).unwrap();
    let mut received = vec![0; word.len()];
    to.read_exact(&mut received).unwrap();
    assert!(received == word, "other bytes");
}

/// Three namespaces in a row. The middle one delivers all packets from the target's side locally, whatever their address.
fn three_namespaces(what: &str) -> Option<[NetNs; 3]> {
    let [client, middle, target] = ["client", "relay", "target"].map(|tag| namespace(tag, what));
    let (client, middle, target) = (client?, middle?, target?);
    let (c, m, t) = (client.name(), middle.name(), target.name());
    for (end, name, other, mine, theirs) in
        [(c, "c0", "c1", "10.9.1.2", "10.9.1.1"), (t, "t0", "t1", "10.9.2.2", "10.9.2.1")]
    {
        ip(&format!("link add {name} netns {end} type veth peer name {other} netns {m}"));
        ip(&format!("-n {end} address add {mine}/24 dev {name}"));
        ip(&format!("-n {m} address add {theirs}/24 dev {other}"));
        ip(&format!("-n {end} link set {name} up"));
        ip(&format!("-n {m} link set {other} up"));
        ip(&format!("-n {end} route add default via {theirs}"));
    }
    ip(&format!("-n {m} rule add iif t1 lookup 100"));
    ip(&format!("-n {m} route add local 0.0.0.0/0 dev lo table 100"));
    Some([client, middle, target])
}

#[test]
fn targets_see_the_address_of_the_client() {
    let what = "a transparent relay in namespaces";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let Some([client, middle, target]) = three_namespaces(what) else { return };
    let (listener, datagrams) =
        target.run(|| Ok((TcpListener::bind("10.9.2.2:7000")?, UdpSocket::bind("10.9.2.2:7000")?))).unwrap();
    listener.set_nonblocking(true).unwrap();
    datagrams.set_read_timeout(Some(TIMEOUT)).unwrap();
    for (port, engine) in (7100..).zip(["auto", "copy", "splice"]) {
        let front = format!("10.9.1.1:{port}");
        let flags = ["--threads", "2", "--transparent", "--engine", engine];
        let _relay = relay(&middle, port, &[&[front.as_str(), "10.9.2.2:7000"], &flags[..]].concat());
        let mut ours = tcp(&client, &front);
        let mut theirs = accept(&listener);
        assert_eq!(theirs.peer_addr().unwrap().ip(), IpAddr::from([10, 9, 1, 2]), "{engine}");
        transfers(&mut ours, &mut theirs, b"there");
        transfers(&mut theirs, &mut ours, b"and back");
    }
    // Without `transparent` the target sees the relay's address.
    let plain = relay(&middle, 7001, &["10.9.1.1:7001", "10.9.2.2:7000", "--threads", "2"]);
    let _ours = tcp(&client, "10.9.1.1:7001");
    assert_eq!(accept(&listener).peer_addr().unwrap().ip(), IpAddr::from([10, 9, 2, 1]));
    drop(plain);
    let _relay = relay(&middle, 7002, &["10.9.1.1:7002", "10.9.2.2:7000", "--threads", "2", "--udp", "--transparent"]);
    let ours = client.run(|| UdpSocket::bind("10.9.1.2:0")).unwrap();
    ours.set_read_timeout(Some(TIMEOUT)).unwrap();
    ours.send_to(b"there", "10.9.1.1:7002").unwrap();
    let mut received = [0; 16];
    let (n, peer) = datagrams.recv_from(&mut received).unwrap();
    assert_eq!((&received[..n], peer), (&b"there"[..], ours.local_addr().unwrap()), "address and port");
    datagrams.send_to(b"back", peer).unwrap();
    let (n, from) = ours.recv_from(&mut received).unwrap();
    assert_eq!((&received[..n], from), (&b"back"[..], "10.9.1.1:7002".parse().unwrap()));
}

/// A counter of `/proc/net/netstat` in a namespace; None where the kernel does not have it.
fn counter(namespace: &NetNs, group: &str, name: &str) -> Option<u64> {
    let text = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat")).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let column = lines.next()?.split(' ').position(|n| n == name)?;
    lines.next()?.split(' ').nth(column)?.parse().ok()
}

fn listen(namespace: &NetNs, address: &str, options: &Options) -> TcpListener {
    let address = StreamAddr::Ip(address.parse().unwrap());
    let listener: TcpListener = namespace.run(|| stream_socket::listen(&address, 16, false, options)).unwrap().into();
    listener
}

/// The next connection of a non-blocking listener.
fn accept(listener: &TcpListener) -> TcpStream {
    let mut accepted = None;
    until("a connection comes", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (stream, _) = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Connects with options and sends `word`, which may be part of the SYN.
fn connect(namespace: &NetNs, address: &str, options: &Options, word: &[u8]) -> TcpStream {
    let address = StreamAddr::Ip(address.parse().unwrap());
    let (socket, _): (OwnedFd, bool) = namespace.run(|| stream_socket::connect(&address, None, options)).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    // Blocks until the connection is established.
    stream.write_all(word).unwrap();
    stream
}

#[test]
fn mptcp_is_used_on_both_sides_or_neither() {
    let what = "MPTCP through the relay";
    if !root(what) {
        return;
    }
    let Some(namespace) = namespace("mptcp", what) else { return };
    if namespace.run(|| set_sysctl("net.mptcp.enabled", "1")).is_err()
        || counter(&namespace, "MPTcpExt", "MPCapableSYNRX").is_none()
    {
        return skip(what, "the kernel has no MPTCP");
    }
    let options = Options { mptcp: true, ..Options::default() };
    let listener = listen(&namespace, "127.0.0.1:7000", &options);
    let scratch = common::Scratch::new();
    let mut made = 0;
    for (mptcp, more) in [(true, 2), (false, 0)] {
        for (number, engine) in (0..).zip(["auto", "copy", "splice"]) {
            let file = scratch.file("relay.toml");
            let port = 7100 + number + if mptcp { 100 } else { 0 };
            let address = format!("127.0.0.1:{port}");
            let text = format!(
                "threads = 2\n[[listener]]\nlisten = \"{address}\"\ntarget = \"127.0.0.1:7000\"\nengine = \"{engine}\"\nsockets = {{ mptcp = {mptcp} }}\n"
            );
            std::fs::write(&file, text).unwrap();
            let running = relay(&namespace, port, &["-c", file.to_str().unwrap()]);
            let ours = connect(&namespace, &address, &options, b"hello");
            let mut theirs = accept(&listener);
            let mut received = [0; 5];
            theirs.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"hello");
            made += more;
            until("both sides use MPTCP, or neither", || {
                counter(&namespace, "MPTcpExt", "MPCapableACKRX").unwrap() >= made
            });
            let now = counter(&namespace, "MPTcpExt", "MPCapableACKRX").unwrap();
            assert_eq!(now, made, "{engine}, mptcp = {mptcp}");
            let bulk: Vec<u8> = (0..3 << 20).map(|i: u32| (i * 7 + (i >> 8)) as u8).collect();
            for up in [true, false] {
                let (mut from, mut to) = if up { (&ours, &theirs) } else { (&theirs, &ours) };
                std::thread::scope(|scope| {
                    scope.spawn(|| from.write_all(&bulk).unwrap());
                    let mut received = vec![0; bulk.len()];
                    to.read_exact(&mut received).unwrap();
                    assert!(received == bulk, "{engine}: other bytes");
                });
            }
            drop(running);
        }
    }
}

#[test]
fn fast_open_from_clients_and_to_targets() {
    let what = "TCP Fast Open through the relay";
    if !root(what) {
        return;
    }
    let Some(namespace) = namespace("tfo", what) else { return };
    if namespace.run(|| set_sysctl("net.ipv4.tcp_fastopen", "3")).is_err() {
        return skip(what, "the kernel has no TCP Fast Open");
    }
    let options = Options { fast_open: true, ..Options::default() };
    let listener = listen(&namespace, "127.0.0.1:7000", &options);
    let scratch = common::Scratch::new();
    let file = scratch.file("relay.toml");
    let text = "threads = 2\n[[listener]]\nlisten = \"127.0.0.1:7001\"\ntarget = \"127.0.0.1:7000\"\nsockets = { fast-open = true }\n";
    std::fs::write(&file, text).unwrap();
    let _relay = relay(&namespace, 7001, &["-c", file.to_str().unwrap()]);
    let made = |name: &str| counter(&namespace, "TcpExt", name).unwrap();
    // The first connection of each side requests a cookie, and the others send it.
    for round in 0..3 {
        let ours = connect(&namespace, "127.0.0.1:7001", &options, b"hello");
        let mut theirs = accept(&listener);
        let mut received = [0; 5];
        theirs.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"hello", "round {round}");
        drop(ours);
        assert_eq!(theirs.read(&mut received).unwrap(), 0);
    }
    let (active, passive) = (made("TCPFastOpenActive"), made("TCPFastOpenPassive"));
    assert!(active >= 3 && passive >= 3, "{active} and {passive} SYNs with data on both sides");
    // The relay connects to a target that sends first without waiting for data for the SYN.
    let mut ours = tcp(&namespace, "127.0.0.1:7001");
    let mut theirs = accept(&listener);
    transfers(&mut theirs, &mut ours, b"220 ready");
    transfers(&mut ours, &mut theirs, b"HELO");
}

/// The addresses, as `ss` prints them, of the TCP sockets of a namespace with a running keepalive timer.
fn with_keepalive_timer(namespace: &NetNs) -> Vec<String> {
    let shown = namespace.run(|| Ok(common::finish(Command::new("ss").args(["-Htno"])))).unwrap();
    let probes = shown.stdout.lines().filter(|line| line.contains("timer:(keepalive"));
    probes.map(|line| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn idle_peers_on_both_sides_are_probed_once_a_connection_has_lasted() {
    let what = "probes of idle peers";
    if !root(what) || !has(&["ss"], what) {
        return;
    }
    let Some(inside) = namespace("probes", what) else { return };
    ip(&format!("-n {} link set lo up", inside.name()));
    let scratch = common::Scratch::new();
    let file = scratch.file("relay.toml");
    let listener = |port: u16, keepalive: &str| {
        format!(
            "[[listener]]\nlisten = \"127.0.0.1:{port}\"\ntargets = [\"127.0.0.1:9009\"]\nsockets = {{ keepalive = \"{keepalive}\" }}\n"
        )
    };
    std::fs::write(&file, "threads = 2\n".to_owned() + &listener(9001, "2s") + &listener(9002, "off")).unwrap();
    let target = listen(&inside, "127.0.0.1:9009", &Options::default());
    let _relay = relay(&inside, 9001, &["-c", file.to_str().unwrap()]);
    let mut ends = Vec::new();
    for port in [9001, 9002] {
        let mut client = tcp(&inside, &format!("127.0.0.1:{port}"));
        client.write_all(b"x").unwrap();
        ends.push((client, accept(&target)));
    }
    until("both sides of one connection have keepalive", || {
        let seen = with_keepalive_timer(&inside);
        let (by_client, to_target): (Vec<_>, Vec<_>) =
            seen.iter().partition(|ends| ends.starts_with("127.0.0.1:9001 "));
        by_client.len() == 1 && to_target.len() == 1 && to_target[0].ends_with(" 127.0.0.1:9009")
    });
    until("a probe of each is sent", || counter(&inside, "TcpExt", "TCPKeepAlive") >= Some(2));
}

/// The kernel gives each session a port of its own. When there is none left, sessions with different targets share.
#[test]
fn local_ports_are_shared_over_targets() {
    let what = "a relay in a namespace with few local ports";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let Some(host) = namespace("ports", what) else { return };
    ip(&format!("-n {} link set lo up", host.name()));
    host.run(|| set_sysctl("net.ipv4.ip_local_port_range", "40000 40019")).unwrap();
    let targets = ["127.0.0.11:7000", "127.0.0.12:7000", "127.0.0.13:7000"];
    for at in targets {
        let target = host.run(|| UdpSocket::bind(at)).unwrap();
        // The thread ends with the process.
        std::thread::spawn(move || {
            let mut data = [0; 16];
            while let Ok((n, from)) = target.recv_from(&mut data) {
                target.send_to(&data[..n], from).ok();
            }
        });
    }
    for source in [&[][..], &["--source", "127.0.0.5"]] {
        let flags = ["--threads", "2", "--udp"];
        let _relay = relay(&host, 7001, &[&["127.0.0.1:7001"], &targets[..], &flags[..], source].concat());
        // All of them at a time: 20 ports for each of three targets, and some to spare.
        let clients: Vec<UdpSocket> = (0..54)
            .map(|n: u16| {
                let client = host.run(|| UdpSocket::bind(("127.0.0.2", 20_000 + n))).unwrap();
                client.set_read_timeout(Some(TIMEOUT)).unwrap();
                client.send_to(&n.to_be_bytes(), "127.0.0.1:7001").unwrap();
                client
            })
            .collect();
        for (n, client) in (0_u16..).zip(&clients) {
            let mut data = [0; 16];
            assert_eq!(client.recv(&mut data).unwrap(), 2, "{source:?}");
            assert_eq!(data[..2], n.to_be_bytes(), "each client gets its own answer");
        }
    }
}
