//! A soak test of the tunnel: six seconds in `make test`, fifteen in `make test-all`, ten minutes with `bench/tunnel/soak`.
//!
//! ```text
//!   left ────────────── hub ── path ── right
//!   10.9.0.2        10.9.0.1           10.9.0.3
//! ```
//!
//! The hub is the peer of both. `path` is a program between the hub and right that loses, repeats, delays and alters datagrams. All
//! three send each other datagrams with contents that say whose they are, and streams; left and right also to each other, through the
//! hub. Meanwhile left roams, and right gets other keys. No packet may arrive twice, altered, or at the wrong host, and at the end
//! everything passes again and no process has grown.
//!
//! TUNNEL_SOAK_S is the time in seconds, TUNNEL_SOAK_SEED the seed, with which a run can be repeated.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bed::{self, Host, KEYS, connect};
use crate::common::{self, PARSHALL, Scratch, has, root};

const INSIDE: [&str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"];
const HUB: usize = 0;
const LEFT: usize = 1;
const RIGHT: usize = 2;
/// From whom to whom.
const WAYS: [(usize, usize); 6] = [(HUB, LEFT), (LEFT, HUB), (HUB, RIGHT), (RIGHT, HUB), (LEFT, RIGHT), (RIGHT, LEFT)];
const PORT: u16 = 7000;
/// A way passes this many datagrams at the end.
const LAST: u64 = 20;
/// By how much the memory of a process may grow after the first seconds.
const GROWTH_MAX_KB: u64 = 8 << 10;
/// What a process has once it has used its buffers, which a way that begins to pass packets late does late.
const USED_KB: u64 = 16 << 10;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Numbers that look random (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// Datagram `n` of a way: its way, its number, and bytes that follow from both.
fn contents(way: usize, n: u64) -> Vec<u8> {
    let mut numbers = Numbers((way as u64) << 48 ^ n);
    let len = numbers.next() % 1300;
    let mut bytes = [way.to_be_bytes(), n.to_be_bytes()].concat();
    bytes.extend((0..len).map(|_| numbers.next() as u8));
    bytes
}

/// Errors and arrivals of all directions.
#[derive(Default)]
struct Account {
    arrived: [AtomicU64; WAYS.len()],
    streamed: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Account {
    fn fault(&self, text: String) {
        let mut faults = self.faults.lock().unwrap();
        if faults.len() < 20 {
            faults.push(text);
        }
    }
}

/// Sends the datagrams of all ways that begin here, a thousand a second each.
fn send(socket: &UdpSocket, host: usize, stop: &AtomicBool) {
    let ways: Vec<usize> = (0..WAYS.len()).filter(|way| WAYS[*way].0 == host).collect();
    for n in 0.. {
        for way in &ways {
            // Fails while the peer has no address, or the buffer is full.
            socket.send_to(&contents(*way, n), (INSIDE[WAYS[*way].1], PORT)).ok();
        }
        if stop.load(Relaxed) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks what arrives at a host.
fn receive(socket: &UdpSocket, host: usize, account: &Account, stop: &AtomicBool) {
    let mut seen: HashMap<usize, HashSet<u64>> = HashMap::new();
    let mut buffer = vec![0; 2048];
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while !stop.load(Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        let number =
            |at: usize| buffer[..len].get(at..at + 8).map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
        let (way, n) = (number(0).unwrap_or(u64::MAX) as usize, number(8).unwrap_or(0));
        let expected = WAYS.get(way).filter(|(source, to)| *to == host && from.ip().to_string() == INSIDE[*source]);
        if expected.is_none() || buffer[..len] != contents(way, n) {
            account.fault(format!("{len} bytes from {from} at host {host} are altered or astray"));
        } else if !seen.entry(way).or_default().insert(n) {
            account.fault(format!("datagram {n} of way {way} arrived twice"));
        } else {
            account.arrived[way].fetch_add(1, Relaxed);
        }
    }
}

/// Streams from one host to another, one after the other. A stream may be slow, but its bytes are right.
fn streams(hosts: &[Host], from: usize, to: usize, account: &Account, stop: &AtomicBool) {
    const CHUNK: usize = 64 << 10;
    let [mut client, mut server] = connect(&hosts[from].netns, &hosts[to].netns, INSIDE[to].parse().unwrap());
    let byte = |at: usize| (at * 31 % 251) as u8;
    server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let sending = client.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for turn in 0.. {
                let chunk: Vec<u8> = (turn * CHUNK..(turn + 1) * CHUNK).map(byte).collect();
                if stop.load(Relaxed) || client.write_all(&chunk).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let (mut at, mut buffer) = (0, vec![0; CHUNK]);
        loop {
            match server.read(&mut buffer) {
                Ok(0) => return,
                Ok(len) if buffer[..len].iter().enumerate().any(|(n, got)| *got != byte(at + n)) => {
                    return account.fault(format!("the stream from {from} to {to} is altered after {at} bytes"));
                }
                Ok(len) => {
                    at += len;
                    account.streamed.fetch_add(len as u64, Relaxed);
                }
                // TCP may wait for minutes before it sends again what was lost several times. What passes at the end are datagrams.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if stop.load(Relaxed) {
                        sending.shutdown(Shutdown::Both).ok();
                        return;
                    }
                }
                Err(error) => return account.fault(format!("the stream from {from} to {to}: {error}")),
            }
        }
    });
}

/// Passes datagrams between the hub and right, and loses, repeats, delays and alters some.
fn path(sockets: &[UdpSocket; 2], ends: [SocketAddr; 2], seed: u64, stop: &AtomicBool) {
    let mut numbers = Numbers(seed);
    let mut late: Vec<(usize, Vec<u8>, u32)> = Vec::new();
    let mut buffer = vec![0; 2048];
    for socket in sockets {
        socket.set_nonblocking(true).unwrap();
    }
    while !stop.load(Relaxed) {
        let mut idle = true;
        for side in 0..2 {
            while let Ok(len) = sockets[side].recv(&mut buffer) {
                idle = false;
                let datagram = &mut buffer[..len];
                if numbers.one_in(100) {
                    continue;
                }
                if numbers.one_in(50) {
                    late.push((side, datagram.to_vec(), (numbers.next() % 30) as u32));
                }
                if numbers.one_in(50) {
                    late.push((side, datagram.to_vec(), (numbers.next() % 30) as u32));
                    continue;
                }
                if numbers.one_in(100) {
                    let at = numbers.next() as usize % len;
                    datagram[at] ^= 1 << (numbers.next() % 8);
                }
                sockets[1 - side].send_to(datagram, ends[1 - side]).ok();
            }
        }
        late.retain_mut(|(side, datagram, turns)| {
            *turns = turns.saturating_sub(1);
            if *turns == 0 {
                sockets[1 - *side].send_to(datagram, ends[1 - *side]).ok();
            }
            *turns != 0
        });
        if idle {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

/// The tunnels, which end when this is dropped.
struct Bed {
    hosts: Vec<Host>,
    names: Vec<String>,
    scratch: Scratch,
}

impl Bed {
    fn new() -> Self {
        let hosts = ["hub", "left", "right"].map(|tag| Host::new(&format!("soak-{tag}"))).into();
        let names = (0..3).map(|n| format!("soak{n}-{}", std::process::id())).collect();
        let bed = Self { hosts, names, scratch: Scratch::new() };
        bed.hosts[HUB].connect(
            &bed.hosts[LEFT],
            ["eth1", "eth0"],
            &[["192.0.2.1/24", "192.0.2.2/24"], ["fd02::1/64", "fd02::2/64"]],
        );
        bed.hosts[HUB].connect(&bed.hosts[RIGHT], ["eth2", "eth0"], &[["198.51.100.1/24", "198.51.100.2/24"]]);
        for (n, (key, _)) in KEYS.iter().enumerate() {
            fs::write(bed.scratch.file(&n.to_string()), key).unwrap();
        }
        for (host, inside) in INSIDE.iter().enumerate() {
            let (at, name) = (&bed.hosts[host], &bed.names[host]);
            at.done(PARSHALL, &["tunnel", "run", name, "--daemon"]);
            at.add_address(&format!("{inside}/24"), name);
            at.ip(&format!("link set up mtu 1400 dev {name}"));
            bed.set(host, &format!("private-key {} listen-port 51820", bed.scratch.file(&host.to_string()).display()));
        }
        bed.hosts[HUB].netns.run(|| parshall_sys::netns::set_sysctl("net.ipv4.ip_forward", "1")).unwrap();
        // Packets between left and right come from and go to the same device: nobody is told of a shorter way.
        for setting in ["all", "default", bed.names[HUB].as_str()] {
            let setting = format!("net.ipv4.conf.{setting}.send_redirects");
            bed.hosts[HUB].netns.run(|| parshall_sys::netns::set_sysctl(&setting, "0")).unwrap();
        }
        bed.set(HUB, &format!("peer {} allowed-ips 10.9.0.2/32", KEYS[LEFT].1));
        bed.set(HUB, &format!("peer {} allowed-ips 10.9.0.3/32", KEYS[RIGHT].1));
        bed.set(LEFT, &format!("peer {} allowed-ips 10.9.0.0/24 endpoint 192.0.2.1:51820", KEYS[HUB].1));
        // The program on the path listens at the hub, for right.
        bed.set(RIGHT, &format!("peer {} allowed-ips 10.9.0.0/24 endpoint 198.51.100.1:9", KEYS[HUB].1));
        bed
    }

    fn set(&self, host: usize, words: &str) {
        self.hosts[host].wg(&format!("set {} {words}", self.names[host]));
    }

    /// Left sends from another address and port, of either family.
    fn roam(&self, turn: u64) {
        let endpoint = if turn.is_multiple_of(2) { "192.0.2.1:51820" } else { "[fd02::1]:51820" };
        self.set(LEFT, &format!("listen-port {} peer {} endpoint {endpoint}", 52_000 + turn % 1000, KEYS[HUB].1));
    }

    /// Right gets another key pair, and is another peer to the hub, which has to know it when right begins a handshake.
    fn change_keys(&self, turn: u64) {
        let (old, new) = if turn.is_multiple_of(2) { (RIGHT, 3) } else { (3, RIGHT) };
        self.set(HUB, &format!("peer {} remove peer {} allowed-ips 10.9.0.3/32", KEYS[old].1, KEYS[new].1));
        self.set(RIGHT, &format!("private-key {}", self.scratch.file(&new.to_string()).display()));
    }

    /// The output of `tunnel show` on a host.
    fn report(&self, host: usize) -> serde_json::Value {
        let text = self.hosts[host].done(PARSHALL, &["tunnel", "show", &self.names[host], "--format", "json"]);
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["tunnels"][0].take()
    }

    /// The memory in KiB and the open descriptors of the process that moves a host's packets.
    fn size(&self, host: usize) -> (u64, usize) {
        let pid = fs::read_to_string(format!("/run/parshall/tunnel/{}.pid", self.names[host])).unwrap();
        let pid = common::children(pid.trim().parse().unwrap())[0];
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        // Pages of the program itself come in as long as there is code that ran for the first time.
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let own_kb = own.split_whitespace().next().unwrap().parse().unwrap();
        (own_kb, fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for (host, name) in self.hosts.iter().zip(&self.names) {
            host.run(PARSHALL, &["tunnel", "down", name]);
            fs::remove_file(format!("/run/parshall/tunnel/{name}.log")).ok();
        }
    }
}

/// Disturbs the tunnels for this time. Returns the sizes of the processes after its first seconds.
fn disturb(bed: &Bed, time: Duration) -> Vec<(u64, usize)> {
    let begun = Instant::now();
    let mut sizes = Vec::new();
    for turn in 0.. {
        std::thread::sleep(Duration::from_millis(1500));
        bed.roam(turn);
        if turn % 3 == 1 {
            bed.change_keys(turn / 3);
        }
        if turn == 3 {
            sizes = (0..3).map(|host| bed.size(host)).collect();
        }
        if begun.elapsed() >= time {
            return sizes;
        }
    }
    unreachable!("the loop has no end")
}

#[test]
fn no_packet_arrives_twice_altered_or_astray() {
    soak(Duration::from_secs(6));
}

#[test]
#[ignore = "make test-all"]
fn no_packet_arrives_twice_altered_or_astray_for_long() {
    soak(Duration::from_secs(number("TUNNEL_SOAK_S", 15)));
}

fn soak(time: Duration) {
    // The names of interfaces are those of this process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let what = "a soak test of parshall tunnel";
    if !root(what) || !has(&["ip", "wg"], what) {
        return;
    }
    let seed = number("TUNNEL_SOAK_SEED", 1);
    let bed = Bed::new();
    let near: UdpSocket = bed.hosts[HUB].netns.run(|| UdpSocket::bind("198.51.100.1:9")).unwrap();
    let far: UdpSocket = bed.hosts[HUB].netns.run(|| UdpSocket::bind("127.0.0.1:9")).unwrap();
    let ends: [SocketAddr; 2] = ["198.51.100.2:51820".parse().unwrap(), "127.0.0.1:51820".parse().unwrap()];
    let sockets: Vec<UdpSocket> =
        (0..3).map(|host| bed.hosts[host].netns.run(|| UdpSocket::bind((INSIDE[host], PORT))).unwrap()).collect();
    let (account, stop_sending, stop) = (Account::default(), AtomicBool::new(false), AtomicBool::new(false));
    let checked = std::thread::scope(|scope| {
        let path_sockets = [near, far];
        let (bed, account, stop_sending, stop) = (&bed, &account, &stop_sending, &stop);
        scope.spawn(move || path(&path_sockets, ends, seed, stop));
        for (host, socket) in sockets.iter().enumerate() {
            scope.spawn(move || send(socket, host, stop_sending));
            scope.spawn(move || receive(socket, host, account, stop));
        }
        for (from, to) in [(LEFT, HUB), (HUB, LEFT)] {
            scope.spawn(move || streams(&bed.hosts, from, to, account, stop_sending));
        }
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let before = disturb(bed, time);
            let arrived: Vec<u64> = account.arrived.iter().map(|n| n.load(Relaxed)).collect();
            bed::wait_until("a way passes nothing", || {
                account.arrived.iter().zip(&arrived).all(|(now, before)| now.load(Relaxed) >= before + LAST)
            });
            before
        }));
        stop_sending.store(true, Relaxed);
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Relaxed);
        checked
    });
    let before = checked.unwrap();
    let faults = account.faults.into_inner().unwrap();
    assert!(faults.is_empty(), "TUNNEL_SOAK_SEED={seed}: {faults:#?}");

    // The path did what it should, and the peers noticed.
    let report = bed.report(HUB);
    let drops = &report["drops"];
    assert!(drops["replayed"].as_u64() > Some(0) && drops["forged"].as_u64() > Some(0), "{report}");
    for (host, (own_kb, descriptors)) in before.into_iter().enumerate() {
        let now = bed.size(host);
        assert!(now.0 <= own_kb.max(USED_KB) + GROWTH_MAX_KB, "host {host} has grown from {own_kb} to {} KiB", now.0);
        // Each command to a tunnel takes a descriptor for a moment, so both counts may be one too high.
        bed::wait_until(&format!("host {host} has more than {descriptors} descriptors"), || {
            bed.size(host).1 <= descriptors
        });
    }
    let handshakes = (0..3).map(|host| {
        bed.report(host)["peers"].as_array().unwrap().iter().map(|p| p["handshakes"].as_u64().unwrap()).sum::<u64>()
    });
    println!(
        "datagrams by way {:?}, {} MB of streams, handshakes {:?}, drops of the hub {drops}",
        account.arrived.each_ref().map(|n| n.load(Relaxed)),
        account.streamed.load(Relaxed) / 1_000_000,
        handshakes.collect::<Vec<_>>(),
    );
}
