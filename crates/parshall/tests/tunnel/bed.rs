//! Support for the suites of `parshall tunnel`: hosts (network namespaces) with programs in them, cables, keys, and what passes from
//! one host to another. It has no tests.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use parshall_sys::link;
use parshall_sys::netns::NetNs;

use crate::common::PARSHALL;

/// Key pairs that `wg genkey` and `wg pubkey` printed.
pub const KEYS: [(&str, &str); 4] = [
    ("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "pOCSkrZRwni5dyxWn1+puxPZBrRqtoyd+dwrRAn4ogk="),
    ("AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=", "zo060cy2M+x7cMF4FKXHbs0CloUFDTRHRboFhw5YfVk="),
    ("AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=", "Xf7dO2vUf2+ijuFdlp1bsOpTd01Ii9r53xxuASSz7yI="),
    ("BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ=", "rAGyIJ6GNU+4UyN7XeD0+rE8f8v0M6YcAZNpYX/s8Qs="),
];
pub const PSK: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";

/// How long is waited for what has to happen.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How long is waited for what must not happen.
const SHORT: Duration = Duration::from_millis(700);

/// A network namespace in which programs run.
pub struct Host {
    pub netns: NetNs,
}

impl Host {
    pub fn new(tag: &str) -> Self {
        Self { netns: NetNs::create(tag).unwrap() }
    }

    /// Lays a cable to another host. `ends` are the names of the devices, `addresses` those of both ends with the prefix length, one
    /// pair for each family.
    pub fn connect(&self, to: &Self, ends: [&str; 2], addresses: &[[&str; 2]]) {
        self.netns.run(|| link::create_veth(ends[0], ends[1], to.netns.as_fd())).unwrap();
        for (n, host) in [self, to].into_iter().enumerate() {
            for pair in addresses {
                host.add_address(pair[n], ends[n]);
            }
            host.ip(&format!("link set up dev {}", ends[n]));
        }
    }

    pub fn add_address(&self, address: &str, device: &str) {
        // Addresses of IPv6 are to be usable at once.
        let nodad = if address.contains(':') { " nodad" } else { "" };
        self.ip(&format!("address add {address} dev {device}{nodad}"));
    }

    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/wg-quick/parshall-wireguard");
        command.env("WG_QUICK_USERSPACE_IMPLEMENTATION", script).env("PARSHALL", PARSHALL);
        command.args(arguments).stdin(Stdio::null());
        self.netns.run(|| command.output()).unwrap()
    }

    /// Runs a program that succeeds, and returns what it printed.
    pub fn done(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Runs `ip` with these words.
    pub fn ip(&self, words: &str) -> String {
        self.done("ip", &words.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs `wg` with these words.
    pub fn wg(&self, words: &str) -> String {
        self.done("wg", &words.split_whitespace().collect::<Vec<_>>())
    }
}

/// The socket for `wg` of an interface. Those of all namespaces are in one directory.
pub fn socket(interface: &str) -> PathBuf {
    Path::new("/run/wireguard").join(format!("{interface}.sock"))
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what} after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A TCP connection from one namespace to an address of another one: its client and its server.
pub fn connect(from: &NetNs, to: &NetNs, address: IpAddr) -> [TcpStream; 2] {
    let listener = to.run(|| TcpListener::bind((address, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let begun = Instant::now();
    let connect = || loop {
        match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
            Err(_) if begun.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
    };
    let client = from.run(connect).unwrap();
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(LIMIT)).unwrap();
        end.set_write_timeout(Some(LIMIT)).unwrap();
    }
    [client, server]
}

/// Sends bytes in which nothing may change over a TCP connection.
pub fn stream(from: &NetNs, to: &NetNs, address: IpAddr, bytes: usize) {
    let [mut client, mut server] = connect(from, to, address);
    let sent: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| client.write_all(&sent).and_then(|()| client.shutdown(Shutdown::Write)));
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        sending.join().unwrap().unwrap();
        assert!(received == sent, "the stream to {address} was altered");
    });
}

/// Whether a datagram of this length reaches an address of another namespace, and its echo comes back, both unaltered.
pub fn echoes(from: &NetNs, to: &NetNs, address: IpAddr, len: usize) -> bool {
    exchange(from, to, address, len, SHORT).is_ok()
}

/// As [`echoes`], sent again and again for as long as what has to happen may take.
pub fn reaches(from: &NetNs, to: &NetNs, address: IpAddr) {
    if let Err(error) = exchange(from, to, address, 100, LIMIT) {
        panic!("{address} is not reached: {error}\nfrom {}\nto {}", state(from), state(to));
    }
}

/// Addresses, routes, neighbours and peers of a namespace, for who reads why a test failed.
fn state(netns: &NetNs) -> String {
    let commands = ["ip -s address", "ip route", "ip -6 route", "ip neigh", "wg show"];
    let output = |command: &str| {
        let mut words = command.split(' ');
        let output = netns.run(|| Command::new(words.next().unwrap()).args(words).output());
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    };
    commands.map(|command| format!("{command}\n{}", output(command))).concat()
}

fn exchange(from: &NetNs, to: &NetNs, address: IpAddr, len: usize, limit: Duration) -> io::Result<()> {
    let server = to.run(|| UdpSocket::bind((address, 0)))?;
    let client = from.run(|| {
        let any: SocketAddr = if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().unwrap();
        let socket = UdpSocket::bind(any)?;
        socket.connect(server.local_addr()?).map(|()| socket)
    })?;
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    }
    let sent: Vec<u8> = (0..len).map(|n| n as u8).collect();
    let mut received = vec![0; len + 1];
    let begun = Instant::now();
    loop {
        let passed = client.send(&sent).and_then(|_| {
            let (len, back) = server.recv_from(&mut received)?;
            server.send_to(&received[..len], back)?;
            client.recv(&mut received)
        });
        match passed {
            Ok(len) if received[..len] == sent => return Ok(()),
            Ok(_) => return Err(io::Error::other("altered")),
            Err(error) if begun.elapsed() > limit => return Err(error),
            // An error may come at once.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
