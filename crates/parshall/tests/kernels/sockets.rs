//! The rows of `sockets once` against those of ss, by backend.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::Value;

use crate::checks::{Values, error};
use crate::guest::{Reported, Reports};

/// Opens sockets of each kind in a guest, creates the file that is named by `HOLD`, and keeps them.
#[test]
#[ignore = "not a test: a program for the guests"]
fn hold() {
    let Some(file) = std::env::var_os("HOLD") else { return };
    let tcp = TcpListener::bind("127.0.0.1:7000").unwrap();
    let tcp6 = TcpListener::bind("[::1]:7001").unwrap();
    let pairs = [&tcp, &tcp6].map(|to| (TcpStream::connect(to.local_addr().unwrap()).unwrap(), to.accept().unwrap()));
    // This one stays in the accept queue.
    let waits = TcpStream::connect("127.0.0.1:7000").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:9000").unwrap();
    let connected = UdpSocket::bind("[::1]:9001").unwrap();
    connected.connect("[::1]:9002").unwrap();
    let unix = UnixListener::bind(std::path::Path::new(&file).with_extension("socket")).unwrap();
    let pair = UnixStream::pair().unwrap();
    std::fs::write(file, "").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3600));
    drop((pairs, waits, udp, unix, pair));
}

/// The namespaces that `guest/light.sh` makes.
const NAMESPACES: [&str; 2] = ["a", "b"];
/// The sockets that [`hold`] has: 2 TCP listeners, both ends of 3 connections, 2 UDP sockets, a UNIX listener and both ends of a pair.
const HELD: usize = 13;

/// Of a socket: the inode of its namespace, its kind, its state, and its local and remote address, or for UNIX sockets its inode.
type Row = (u64, String, String, String, String);

/// The namespace of `guest/arm64.sh`, and the sockets of its load: a listener, and both ends of 4 connections.
const OF_LOAD: ([&str; 1], usize) = (["c"], 9);

/// Compares the rows of each backend.
pub fn backends(reports: &Reports, values: &mut Values) {
    compare(reports, &NAMESPACES, 2 * HELD, values);
}

/// The same on arm64.
pub fn of_load(reports: &Reports, values: &mut Values) {
    compare(reports, &OF_LOAD.0, OF_LOAD.1, values);
}

fn compare(reports: &Reports, namespaces: &[&str], held: usize, values: &mut Values) {
    let mut expected = BTreeSet::new();
    for name in namespaces {
        let inode = reports[&format!("netns-{name}")].stdout.trim().parse().unwrap();
        expected.extend(reports[&format!("ss-{name}")].stdout.lines().map(|line| of_ss(line, inode)));
    }
    let inodes: BTreeSet<u64> = expected.iter().map(|row| row.0).collect();
    assert!(expected.len() == held, "ss has other rows: {expected:#?}");
    for backend in ["walk", "netlink"] {
        let reported = &reports[&format!("sockets-{backend}")];
        let value = rows(reported, &inodes).map_or_else(|why| why, |rows| difference(&rows, &expected));
        values.insert(format!("sockets {backend}"), value);
    }
}

/// `as ss`, or how many rows of each kind and state are missing or too many. Ports and inodes differ from run to run.
fn difference(rows: &BTreeSet<Row>, expected: &BTreeSet<Row>) -> String {
    let counted = |of: &BTreeSet<Row>, without: &BTreeSet<Row>| {
        let mut counts = BTreeMap::<String, usize>::new();
        for (_, kind, state, ..) in of.difference(without) {
            *counts.entry(format!("{kind} {state}")).or_default() += 1;
        }
        let counts: Vec<String> = counts.into_iter().map(|(what, n)| format!("{n} {what}")).collect();
        counts.join(", ")
    };
    match (counted(expected, rows), counted(rows, expected)) {
        (missing, more) if missing.is_empty() && more.is_empty() => "as ss".into(),
        (missing, more) => format!("lacks: {missing}; not in ss: {more}"),
    }
}

/// A line such as `tcp ESTAB 0 0 127.0.0.1:7000 127.0.0.1:40000`, or `u_str LISTEN 0 4096 /tmp/a 1234 * 0`.
fn of_ss(line: &str, netns: u64) -> Row {
    let [kind, state, _, _, local, remote, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("a line of ss: {line}")
    };
    let state = match state {
        "UNCONN" => "closed",
        "ESTAB" => "established",
        "LISTEN" => "listen",
        other => other,
    };
    // Where ss reads /proc/net instead of SOCK_DIAG, it writes an unset address of IPv6 otherwise.
    let remote = if local.starts_with('[') { remote.replace("*:*", "[::]:*") } else { remote.to_owned() };
    // The address of a UNIX socket is its path, and its port its inode.
    let (kind, local, remote) =
        if kind == "u_str" { ("unix", remote, String::new()) } else { (kind, local.to_owned(), remote) };
    (netns, kind.into(), state.into(), local, remote)
}

/// The rows of parshall in these namespaces.
fn rows(reported: &Reported, inodes: &BTreeSet<u64>) -> Result<BTreeSet<Row>, String> {
    if reported.code != 0 {
        return Err(error(reported));
    }
    let mut rows = BTreeSet::new();
    for line in reported.stdout.lines() {
        let row: Value = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        let Some(netns) = row["netns"].as_u64().filter(|netns| inodes.contains(netns)) else { continue };
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let address = |side: &str| {
            let port = row[format!("{side}_port")].as_u64().map_or("*".to_owned(), |port| port.to_string());
            match text(&format!("{side}_address")) {
                unset if unset.is_empty() && row["family"] == "ipv6" => format!("[::]:{port}"),
                unset if unset.is_empty() => format!("0.0.0.0:{port}"),
                v6 if v6.contains(':') => format!("[{v6}]:{port}"),
                v4 => format!("{v4}:{port}"),
            }
        };
        let (local, remote) = match text("kind").as_str() {
            "unix" => (row["inode"].to_string(), String::new()),
            _ => (address("local"), address("remote")),
        };
        let row = (netns, text("kind"), text("state"), local, remote);
        if !rows.insert(row.clone()) {
            return Err(format!("{row:?} twice"));
        }
    }
    Ok(rows)
}
