//! `parshall tunnel` with other implementations of WireGuard as its peer: wireguard-go, boringtun and the kernel's own.
//! The suite `kernels` runs the tests with the latter in guests whose kernels have it.
//!
//! ```text
//!  host 0, parshall                     host 1, the other
//!  10.9.0.1, fd09::1  tunnel ┐        ┌ tunnel  10.9.0.2, fd09::2
//!       192.0.2.1, fd02::1  eth0 ── eth0  192.0.2.2, fd02::2
//! ```

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bed::{self, Host, KEYS, PSK, socket, wait_until};
use crate::common::{self, PARSHALL, Scratch, has, root};

const INNER: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];
/// A session is replaced after 120 s (REKEY_AFTER_TIME in the WireGuard paper, section 6.1).
const REKEY: Duration = Duration::from_secs(120);

/// Another implementation.
#[derive(Clone, Copy)]
enum Other {
    /// A program with a TUN device.
    Program(Program),
    /// The kernel's module.
    Linux,
}

/// The name of its directory in target/peers, its program, and its flags before the interface.
#[derive(Clone, Copy)]
struct Program {
    directory: &'static str,
    program: &'static str,
    flags: &'static [&'static str],
    /// Short, for the names of interfaces.
    tag: &'static str,
}

const WIREGUARD_GO: Other =
    Other::Program(Program { directory: "wireguard-go-", program: "wireguard", flags: &["-f"], tag: "go" });
const BORINGTUN: Other = Other::Program(Program {
    directory: "boringtun-cli-",
    program: "bin/boringtun-cli",
    // Its connected sockets keep an address that is gone.
    flags: &["--foreground", "--disable-drop-privileges", "--disable-connected-udp"],
    tag: "bt",
});

impl Program {
    /// The path at which scripts/peers/fetch has put it.
    fn find(&self) -> Option<PathBuf> {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
        let entries = fs::read_dir(peers).ok()?.flatten();
        let is_it = |name: &str| name.starts_with(self.directory) && !name.ends_with(".log");
        let found = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_it));
        found.map(|entry| entry.path().join(self.program)).find(|path| path.exists())
    }
}

impl Other {
    fn name(self) -> &'static str {
        match self {
            Other::Program(program) => program.program,
            Other::Linux => "the kernel's WireGuard",
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Other::Program(program) => program.tag,
            Other::Linux => "lx",
        }
    }

    /// Makes its interface on a host, and returns its process. An error says why that cannot be done here.
    fn start(self, host: &Host, interface: &str) -> Result<Option<Child>, String> {
        let Other::Program(own) = self else {
            let made = host.run("ip", &["link", "add", interface, "type", "wireguard"]);
            return if made.status.success() { Ok(None) } else { Err("the kernel has none".into()) };
        };
        let program = own.find().ok_or("scripts/peers/fetch did not get it")?;
        let mut command = Command::new(program);
        command.args(own.flags).arg(interface).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = host.netns.run(|| command.spawn()).unwrap();
        wait_until("no socket", || socket(interface).exists());
        Ok(Some(child))
    }
}

/// A tunnel between parshall and another implementation. Both end with it.
struct Pair {
    hosts: [Host; 2],
    interfaces: [String; 2],
    other: Option<Child>,
    _scratch: Scratch,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.hosts[0].run(PARSHALL, &["tunnel", "down", &self.interfaces[0]]);
        if let Some(other) = &mut self.other {
            other.kill().ok();
            other.wait().ok();
        }
        fs::remove_file(socket(&self.interfaces[1])).ok();
        fs::remove_file(format!("/run/parshall/tunnel/{}.log", self.interfaces[0])).ok();
    }
}

impl Pair {
    /// With this engine of parshall. None where the other implementation is missing.
    fn start(other: Other, test: &str, engine: &str) -> Option<Self> {
        let what = format!("parshall tunnel with {} as its peer", other.name());
        if !root(&what) || !has(&["ip", "wg"], &what) {
            return None;
        }
        let tag = format!("{}{test}", other.tag());
        let hosts = [0, 1].map(|n| Host::new(&format!("{tag}{n}")));
        hosts[0].connect(
            &hosts[1],
            ["eth0", "eth0"],
            &[["192.0.2.1/24", "192.0.2.2/24"], ["fd02::1/64", "fd02::2/64"]],
        );
        // The sockets of all namespaces are in one directory: another name for each run and test.
        let interfaces = [0, 1].map(|n| format!("{tag}{n}-{}", std::process::id()));
        let scratch = Scratch::new();
        let process = other.start(&hosts[1], &interfaces[1]);
        let process = process.map_err(|why| common::skip(&what, &why)).ok()?;
        let pair = Self { hosts, interfaces, other: process, _scratch: scratch };
        let files = [0, 1].map(|n| pair.config(n));
        let up = ["tunnel", "up", &files[0], "--interface", &pair.interfaces[0], "--daemon", "--engine", engine];
        pair.hosts[0].done(PARSHALL, &up);
        pair.hosts[1].done("wg", &["setconf", &pair.interfaces[1], &files[1]]);
        for inner in INNER {
            pair.hosts[1].add_address(inner[1], &pair.interfaces[1]);
        }
        pair.hosts[1].ip(&format!("link set up mtu 1420 dev {}", pair.interfaces[1]));
        for inner in INNER {
            pair.hosts[1].ip(&format!("route add {} dev {}", inner[0], pair.interfaces[1]));
        }
        Some(pair)
    }

    /// A file of wg-quick for parshall, of wg for the other one.
    fn config(&self, n: usize) -> String {
        let file = self._scratch.file(&format!("{n}.conf"));
        let address =
            if n == 0 { format!("Address = {}/32, {}/128\n", INNER[0][0], INNER[1][0]) } else { String::new() };
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n{address}[Peer]\nPublicKey = {}\nPresharedKey = {PSK}\n\
             Endpoint = 192.0.2.{}:51820\nAllowedIPs = {}/32, {}/128\n",
            KEYS[n].0,
            KEYS[1 - n].1,
            2 - n,
            INNER[0][1 - n],
            INNER[1][1 - n],
        );
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// `wg show INTERFACE WHAT`.
    fn wg(&self, host: usize, what: &str) -> String {
        self.hosts[host].wg(&format!("show {} {what}", self.interfaces[host]))
    }

    /// Sends some megabytes from one host to the other.
    fn stream(&self, from: usize, family: usize) {
        let to = 1 - from;
        let address = INNER[family][to].parse().unwrap();
        bed::stream(&self.hosts[from].netns, &self.hosts[to].netns, address, 4_000_000);
    }

    fn streams(&self) {
        for (from, family) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            self.stream(from, family);
        }
    }
}

/// Streams over both families inside and outside; either end moves to another address.
fn carries_streams_and_roams(other: Other, engine: &str) {
    let Some(pair) = Pair::start(other, "s", engine) else { return };
    pair.streams();
    for n in 0..2 {
        let dump = pair.wg(n, "dump");
        let peer: Vec<&str> = dump.lines().nth(1).unwrap().split('\t').collect();
        assert_eq!(peer[..2], [KEYS[1 - n].1, PSK], "{dump}");
        assert!(peer[5].parse::<u64>().unwrap() > 16_000_000 / 2, "{dump}");
    }

    // The outer family changes, there and back.
    for (to, seen) in [("[fd02::2]:51820", "[fd02::1]:51820"), ("192.0.2.2:51820", "192.0.2.1:51820")] {
        let changed = (0..5).any(|_| {
            // A datagram of the other end that is still on its way takes this end back to the old address.
            pair.hosts[0].done("wg", &["set", &pair.interfaces[0], "peer", KEYS[1].1, "endpoint", to]);
            pair.streams();
            pair.wg(1, "endpoints").contains(seen)
        });
        assert!(changed, "{}", pair.wg(1, "endpoints"));
    }

    // Either end gets another address and sends from it; the peer follows.
    for n in 0..2 {
        // In this order: without its first address a device loses all others of the same network.
        pair.hosts[n].ip(&format!("address delete 192.0.2.{}/24 dev eth0", n + 1));
        pair.hosts[n].ip(&format!("address add 192.0.2.1{n}/24 dev eth0"));
        pair.stream(n, 0);
        let endpoints = pair.wg(1 - n, "endpoints");
        assert!(endpoints.contains(&format!("192.0.2.1{n}:51820")), "host {n}: {endpoints}");
    }
    pair.streams();
}

/// A connection in use goes on while its session is replaced.
fn replaces_sessions_under_load(other: Other, engine: &str) {
    const PAUSE: Duration = Duration::from_millis(10);
    let Some(pair) = Pair::start(other, "k", engine) else { return };
    let [mut client, mut server] =
        bed::connect(&pair.hosts[0].netns, &pair.hosts[1].netns, INNER[0][1].parse().unwrap());
    let echo = std::thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = server.read(&mut buf) {
            server.write_all(&buf[..n]).unwrap();
        }
    });
    let begun = Instant::now();
    let mut turn = 0_u64;
    while begun.elapsed() < REKEY + Duration::from_secs(10) {
        let sent: Vec<u8> = (0..512).flat_map(|n: u64| (turn * 512 + n).to_le_bytes()).collect();
        client.write_all(&sent).unwrap();
        let mut received = vec![0; sent.len()];
        client.read_exact(&mut received).unwrap();
        assert!(received == sent, "turn {turn} was altered");
        turn += 1;
        std::thread::sleep(PAUSE);
    }
    drop(client);
    echo.join().unwrap();
    let document = pair.hosts[0].done(PARSHALL, &["tunnel", "show", &pair.interfaces[0], "--format", "json"]);
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let handshakes = document["tunnels"][0]["peers"][0]["handshakes"].as_u64().unwrap();
    assert!(handshakes >= 2, "{handshakes} handshakes, {turn} turns");
}

#[test]
#[ignore = "make test-all"]
fn wireguard_go_carries_streams_and_roams() {
    carries_streams_and_roams(WIREGUARD_GO, "auto");
}

#[test]
#[ignore = "make test-all"]
fn boringtun_carries_streams_and_roams() {
    carries_streams_and_roams(BORINGTUN, "auto");
}

#[test]
#[ignore = "make test-all"]
fn sessions_with_wireguard_go_are_replaced_under_load() {
    replaces_sessions_under_load(WIREGUARD_GO, "auto");
}

#[test]
#[ignore = "make test-all"]
fn sessions_with_boringtun_are_replaced_under_load() {
    replaces_sessions_under_load(BORINGTUN, "auto");
}

#[test]
#[ignore = "make test-all"]
fn linux_and_syscall_carry_streams_and_roam() {
    carries_streams_and_roams(Other::Linux, "syscall");
}

#[test]
#[ignore = "make test-all"]
fn linux_and_uring_carry_streams_and_roam() {
    carries_streams_and_roams(Other::Linux, "uring");
}

#[test]
#[ignore = "make test-all"]
fn sessions_of_linux_and_syscall_are_replaced_under_load() {
    replaces_sessions_under_load(Other::Linux, "syscall");
}

#[test]
#[ignore = "make test-all"]
fn sessions_of_linux_and_uring_are_replaced_under_load() {
    replaces_sessions_under_load(Other::Linux, "uring");
}
