//! `parshall tunnel` from files of wg-quick, in network namespaces.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bed::KEYS;
use crate::common::{PARSHALL, Scratch, has, root};
use parshall_sys::link;
use parshall_sys::netns::NetNs;

/// A `parshall tunnel up` that is killed when it is dropped, and the name of its interface.
struct Tunnel(Child, String);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
        for extension in ["lock", "pid", "undo"] {
            fs::remove_file(format!("/run/parshall/tunnel/{}.{extension}", self.1)).ok();
        }
    }
}

fn address(host: usize, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 9, 0, host as u8 + 1), port).into()
}

/// The sockets of all namespaces are in one directory, so that other runs of this test need other names.
fn interface(host: usize) -> String {
    format!("up{host}-{}", std::process::id())
}

/// Connects as soon as the other tunnel is up.
fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
            Err(_) if begun.elapsed() < Duration::from_secs(60) => std::thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
    }
}

#[test]
fn up_runs_hooks_carries_a_stream_and_ends_with_a_signal() {
    let what = "parshall tunnel up between network namespaces";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let hosts = [NetNs::create("up-a").unwrap(), NetNs::create("up-b").unwrap()];
    hosts[0].run(|| link::create_veth("eth0", "eth0", hosts[1].as_fd())).unwrap();
    let mut tunnels = Vec::new();
    for (n, host) in hosts.iter().enumerate() {
        let outside = Ipv4Addr::new(192, 0, 2, n as u8 + 1);
        host.run(|| link::add_address("eth0", outside, 24).and_then(|()| link::set_up("eth0"))).unwrap();
        let log = scratch.file(&format!("hooks-{n}"));
        let log = log.display();
        let (private, peer) = (KEYS[n].0, KEYS[1 - n].1);
        let (own, other) = (address(n, 0).ip(), address(1 - n, 0).ip());
        let file = scratch.file(&format!("{}.conf", interface(n)));
        let text = format!(
            "[Interface]\nPrivateKey = {private}\nAddress = {own}/32\nListenPort = 51820\nPostUp = echo up %i >> {log}\n\
             PreDown = ip link show %i > /dev/null && echo down >> {log}\nPostDown = echo gone >> {log}\n\
             [Peer]\nPublicKey = {peer}\nAllowedIPs = {other}/32\nEndpoint = 192.0.2.{}:51820\n",
            2 - n,
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new(PARSHALL);
        command.args(["tunnel", "up"]).arg(file).stdin(Stdio::null());
        tunnels.push(Tunnel(host.run(|| command.spawn()).unwrap(), interface(n)));
    }
    let listener = hosts[1].run(|| {
        let begun = Instant::now();
        loop {
            match TcpListener::bind(address(1, 5001)) {
                // The address is not there yet.
                Err(_) if begun.elapsed() < Duration::from_secs(60) => std::thread::sleep(Duration::from_millis(50)),
                done => return done,
            }
        }
    });
    let listener = listener.unwrap();
    let mut client = hosts[0].run(|| connect(address(1, 5001))).unwrap();
    let bytes: Vec<u8> = (0..1_000_000).map(|n| (n % 251) as u8).collect();
    let sent = bytes.clone();
    let sending = std::thread::spawn(move || client.write_all(&sent));
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    sending.join().unwrap().unwrap();
    assert!(received == bytes, "the stream was altered");
    for (n, tunnel) in tunnels.iter_mut().enumerate() {
        terminate(tunnel.0.id());
        assert!(tunnel.0.wait().unwrap().success());
        let hooks = fs::read_to_string(scratch.file(&format!("hooks-{n}"))).unwrap();
        assert_eq!(hooks, format!("up {}\ndown\ngone\n", interface(n)));
    }
}

/// Sends SIGTERM to a child of this test.
fn terminate(pid: u32) {
    assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
}

#[test]
fn a_file_that_is_wrong_is_named_with_its_line() {
    let scratch = Scratch::new();
    let file = scratch.file("wg0.conf");
    for (text, error) in [
        ("[Interface]\nAddress = 10.0.0.300\n", "line 2: `10.0.0.300` is not an address or a network"),
        ("[Peer]\nAllowedIPs = ::/0\n", "line 1: the peer has no PublicKey"),
    ] {
        fs::write(&file, text).unwrap();
        let output = Command::new(PARSHALL).args(["tunnel", "up"]).arg(&file).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.starts_with(&format!("error: {}, {error}\nhint: ", file.display())), "{stderr}");
    }
    fs::write(&file, "[Interface]\nSaveConfig = true\n").unwrap();
    let output = Command::new(PARSHALL).args(["tunnel", "up"]).arg(&file).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("SaveConfig = true is not supported\nhint: remove it"), "{stderr}");
}
