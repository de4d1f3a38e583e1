//! `parshall sockets` on real sockets: every backend says the same of them, and what closes between two dumps is told.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{PARSHALL, parshall};
use serde_json::Value;

/// Ports of a socket: the local one and the other end's.
type Ports = (u64, u64);

/// What only some backends see, and what goes on while nothing happens (docs/sockets.md).
const APART: [&str; 13] = [
    "address",
    "at_unix_ns",
    "backend",
    "birth_received",
    "birth_sent",
    "cookie",
    "last_ack_recv_ms",
    "last_data_recv_ms",
    "last_data_sent_ms",
    "nodelay",
    "reuse",
    "socket",
    "timer_ms",
];

fn rows(arguments: &[&str]) -> (BTreeMap<Ports, Value>, Value) {
    let done = parshall(arguments);
    done.orderly();
    let mut rows = BTreeMap::new();
    let mut end = Value::Null;
    for line in done.stdout.lines() {
        let row: Value = serde_json::from_str(line).expect("each line is JSON");
        if row.get("completeness").is_some() {
            end = row["completeness"].clone();
            continue;
        }
        let port = |side: &str| row[side].as_u64().unwrap_or(0);
        let ports = (port("local_port"), port("remote_port"));
        assert!(rows.insert(ports, row).is_none(), "{ports:?} is told twice");
    }
    (rows, end)
}

/// A listener with one connection that waits for accept(), and one that has moved some bytes.
struct Settled {
    listener: TcpListener,
    _waits: TcpStream,
    _client: TcpStream,
    _server: TcpStream,
}

impl Settled {
    fn new(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let to = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(to).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 5000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        server.write_all(&[7; 300]).unwrap();
        client.read_exact(&mut [0; 300]).unwrap();
        let waits = TcpStream::connect(to).unwrap();
        // Past the delayed ACK and the timers of the exchange.
        std::thread::sleep(Duration::from_millis(500));
        Self { listener, _waits: waits, _client: client, _server: server }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }
}

fn agree(address: &str) {
    let settled = Settled::new(address);
    let port = settled.port().to_string();
    let read = |backend| {
        rows(&["sockets", "once", "--backend", backend, "--port", &port, "--fields", "all", "--format", "json"])
    };
    let (walk, end) = read("walk");
    assert_eq!(walk.len(), 5, "a listener and two connections with two ends each: {walk:?}");
    assert_eq!((end["emitted"].as_u64(), end["torn"].as_u64()), (Some(5), None), "{end}");
    let listener = &walk[&(u64::from(settled.port()), 0)];
    assert_eq!(
        (listener["state"].as_str(), listener["accept_queue"].as_u64()),
        (Some("listen"), Some(1)),
        "{listener}"
    );
    let us = u64::from(std::process::id());
    for (ports, row) in &walk {
        let owned = row["owners"].as_array().is_some_and(|owners| owners.iter().any(|o| o["pid"].as_u64() == Some(us)));
        // Nobody holds what waits for accept().
        let waits = row.get("inode").is_none();
        assert!(owned != waits, "{ports:?}: {row}");
    }
    for other in ["iter", "netlink"] {
        let (rows, _) = read(other);
        assert_eq!(rows.keys().collect::<Vec<_>>(), walk.keys().collect::<Vec<_>>(), "{other}");
        for (ports, row) in &rows {
            let (a, b) = (walk[ports].as_object().unwrap(), row.as_object().unwrap());
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).filter(|n| !APART.contains(&n.as_str())).collect();
            for name in names {
                assert_eq!(a.get(name), b.get(name), "walk and {other} differ in {name} of {ports:?}");
            }
        }
    }
}

#[test]
fn the_backends_agree_field_by_field() {
    if !common::btf("sockets: walk and iter against netlink") {
        return;
    }
    agree("127.0.0.1:0");
    agree("[::1]:0");
}

#[test]
fn netlink_needs_no_privilege_of_bpf() {
    if !common::root("sockets: netlink") {
        return;
    }
    let settled = Settled::new("127.0.0.1:0");
    let port = settled.port().to_string();
    let (rows, _) = rows(&["sockets", "once", "--backend", "netlink", "--local-port", &port, "--format", "json"]);
    assert_eq!(rows.len(), 3, "{rows:?}");
    let (by_ring, _) =
        self::rows(&["sockets", "once", "--backend", "netlink", "--uring", "--local-port", &port, "--format", "json"]);
    assert_eq!(by_ring.keys().collect::<Vec<_>>(), rows.keys().collect::<Vec<_>>());
}

#[test]
fn what_closes_between_two_dumps_is_told_once_with_its_final_counters() {
    if !common::btf("sockets: closes") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let port = to.port().to_string();
    let mut child = Command::new(PARSHALL)
        .args(["sockets", "stream", "--every", "3s", "--count", "2", "--local-port", &port, "--format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let first: Vec<String> = lines.by_ref().take(2).collect();
    assert!(first[1].contains("completeness"), "{first:?}");
    for n in 1..=20usize {
        let mut client = TcpStream::connect(to).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&vec![7; n * 100]).unwrap();
        drop(client);
        server.read_to_end(&mut Vec::new()).unwrap();
    }
    let mut received: Vec<u64> = Vec::new();
    for line in lines {
        let row: Value = serde_json::from_str(&line).unwrap();
        if row["seen"].as_str() == Some("closed") {
            received.push(row["bytes_received"].as_u64().unwrap_or(0));
        }
    }
    assert!(child.wait().unwrap().success());
    received.sort_unstable();
    // The end of a stream counts as a byte.
    let wanted: Vec<u64> = (1..=20).map(|n| n * 100 + 1).collect();
    assert_eq!(received, wanted);
}

#[test]
fn mistakes_say_what_to_do() {
    for (arguments, what) in [
        (&["sockets", "once", "--netns", "no-such-one"][..], "there is no network namespace `no-such-one`"),
        (&["sockets", "once", "--fields", "nothing"], "there is no group of fields `nothing`"),
        (&["sockets", "stream", "--to", "/proc/nowhere"], "/proc/nowhere"),
    ] {
        let done = parshall(arguments);
        assert!(done.mistake().0.contains(what), "{:?}", done.mistake());
    }
}
