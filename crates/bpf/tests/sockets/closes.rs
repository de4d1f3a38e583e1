//! Closes on a real kernel: each is reported once with its final counters, or counted as lost. Needs root.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{own_namespace, ready, reset_on_close, unprivileged};
use parshall_bpf::sockets::closes::{Closes, Counts};
use parshall_evidence::socket::selection::state::{ESTABLISHED, LISTEN, SYN_SENT};
use parshall_evidence::socket::{FLAG_CLOSED, Group, Groups, Prefix, Selection, Side, SocketRecord};
use parshall_sys::netns::NetNs;

/// A server's own address at either end. Other servers, those of the other tests here among them, may have the same port.
fn at(server: SocketAddr) -> Prefix {
    Prefix { side: Side::Either, network: server.ip(), length: 32 }
}

/// Closes of sockets in this namespace, with one of these servers at either end.
fn of_servers(servers: &[SocketAddr]) -> Selection {
    let ports = servers.iter().map(|server| (Side::Either, server.port())).collect();
    let prefixes = servers.iter().map(|server| at(*server)).collect();
    Selection { ports, prefixes, namespaces: vec![own_namespace()], ..Selection::default() }
}

/// The chosen closes until there are enough. The kernel itself chooses by ports and namespaces only.
fn collect(closes: &mut Closes, chosen: &Selection, enough: usize) -> Vec<SocketRecord> {
    let give_up = Instant::now() + Duration::from_secs(60);
    let mut records = Vec::new();
    while records.len() < enough {
        assert!(Instant::now() < give_up, "{} records: {:?}", records.len(), closes.counts());
        closes.wait(Duration::from_millis(10), &mut records);
        records.retain(|record| chosen.holds_closed(record));
    }
    records
}

type Ends = (SocketAddr, SocketAddr);

fn ends(record: &SocketRecord) -> Ends {
    let v4 = |address: &[u8; 16]| IpAddr::V4(Ipv4Addr::new(address[0], address[1], address[2], address[3]));
    (
        SocketAddr::new(v4(&record.local_address), record.local_port),
        SocketAddr::new(v4(&record.remote_address), record.remote_port),
    )
}

/// The expected counters of both ends of a connection: bytes from the client, bytes from the server.
struct Expected {
    client: Ends,
    up: u64,
    down: u64,
}

const LISTENERS: usize = 16;
const HEAD: usize = 4;

/// Answers each connection: its first bytes say how many bytes to read and how many to send.
fn serve(listener: &TcpListener, connections: usize) -> io::Result<()> {
    let mut buffer = [0; 2048];
    for _ in 0..connections {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut buffer[..HEAD])?;
        let up = u16::from_ne_bytes([buffer[0], buffer[1]]);
        let down = u16::from_ne_bytes([buffer[2], buffer[3]]);
        stream.read_exact(&mut buffer[..up.into()])?;
        stream.write_all(&buffer[..down.into()])?;
        // The client closes first, so that its socket goes to TIME_WAIT.
        if stream.read(&mut buffer)? != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

fn call(server: SocketAddr, number: usize) -> io::Result<Expected> {
    let (up, down) = ((number % 997) as u16 + 1, (number % 701) as u16 + 1);
    let mut stream = TcpStream::connect(server)?;
    let mut message = [up.to_ne_bytes(), down.to_ne_bytes()].concat();
    message.resize(HEAD + usize::from(up), 1);
    stream.write_all(&message)?;
    stream.read_exact(&mut [0; 1024][..down.into()])?;
    // The client resets every seventh connection, so that neither end waits.
    if number.is_multiple_of(7) {
        stream.shutdown(std::net::Shutdown::Write)?;
        let _end = stream.read(&mut [0; 1])?;
        reset_on_close(&stream);
    }
    Ok(Expected { client: (stream.local_addr()?, server), up: HEAD as u64 + u64::from(up), down: down.into() })
}

/// Asserts that each end of each connection but for `absent` was reported once, with its bytes.
fn assert_reported(records: &[SocketRecord], connections: impl Iterator<Item = Expected>, absent: usize) {
    // A pair of addresses may be used again, so this compares all connections with the same pair, in ascending order.
    let mut seen: HashMap<Ends, Vec<(u64, u64)>> = HashMap::new();
    for record in records {
        assert_eq!(record.record_flags, FLAG_CLOSED);
        if record.state != LISTEN {
            // Acknowledged bytes include the FIN, and received bytes the peer's FIN.
            let sent = record.bytes_sent - record.bytes_retrans;
            seen.entry(ends(record)).or_default().push((sent, record.bytes_received));
        }
    }
    let mut made: HashMap<Ends, Vec<(u64, u64)>> = HashMap::new();
    for Expected { client, up, down } in connections {
        made.entry(client).or_default().push((up, down));
        made.entry((client.1, client.0)).or_default().push((down, up));
    }
    let mut missing = 0;
    for (ends, mut expected) in made {
        let mut found = seen.remove(&ends).unwrap_or_default();
        if found.len() < expected.len() {
            missing += expected.len() - found.len();
            continue;
        }
        expected.sort_unstable();
        found.sort_unstable();
        let alike = |&((sent, received), (s, r)): &(&(u64, u64), &(u64, u64))| {
            sent == s && (received..=&(received + 1)).contains(&r)
        };
        let alike = expected.iter().zip(&found).filter(alike).count();
        assert_eq!(
            (alike, found.len()),
            (expected.len(), expected.len()),
            "{ends:?}: {expected:?}, reported {found:?}"
        );
    }
    assert!(seen.is_empty() && missing <= absent, "{missing} of {absent}: {seen:?}");
}

#[test]
fn each_end_of_12_000_short_connections_is_reported_once_with_its_bytes() {
    report_in_a_namespace(12_000);
}

#[test]
#[ignore = "make test-all"]
fn each_end_of_120_000_short_connections_is_reported_once_with_its_bytes() {
    report_in_a_namespace(120_000);
}

fn report_in_a_namespace(connections: usize) {
    if ready("closes of short connections") {
        // So many sockets reach the namespace's limit of TIME_WAIT, and the next test could not create any.
        in_a_namespace("closes", || report_short_connections(connections));
    }
}

fn in_a_namespace(name: &str, test: impl FnOnce() + Send) {
    let run = || {
        test();
        Ok(())
    };
    NetNs::create(name).unwrap().run(run).unwrap();
}

fn report_short_connections(connections: usize) {
    // Several addresses, because the client ports of a single pair of addresses would run out.
    let address = |at: usize| SocketAddr::from(([127, 0, 3, at as u8 + 1], 0));
    let listeners: Vec<TcpListener> = (0..LISTENERS).map(|at| TcpListener::bind(address(at)).unwrap()).collect();
    let servers: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let mut closes = Closes::attach(&of_servers(&servers), 16 << 20).unwrap();
    let mut records = Vec::new();
    let (sender, expected) = mpsc::channel();
    let each = connections / LISTENERS;
    let begun = Instant::now();
    let threads: Vec<_> = listeners
        .into_iter()
        .zip(servers)
        .enumerate()
        .map(|(at, (listener, server))| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let calls = std::thread::spawn(move || {
                    (0..each).map(|number| call(server, number * LISTENERS + at)).collect::<io::Result<Vec<_>>>()
                });
                serve(&listener, each).unwrap();
                sender.send(calls.join().unwrap().unwrap()).unwrap();
            })
        })
        .collect();
    drop(sender);
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert!(begun.elapsed() < Duration::from_secs(600), "{} of the closes", records.len());
        closes.wait(Duration::from_millis(20), &mut records);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Both ends of each, and the listeners. The last segments may still be on their way.
    let all = 2 * connections + LISTENERS;
    let give_up = Instant::now() + Duration::from_secs(10);
    while records.len() < all && Instant::now() < give_up {
        closes.wait(Duration::from_millis(20), &mut records);
    }
    closes.wait(Duration::from_millis(100), &mut records);
    let Counts { reported, lost, missed, .. } = closes.counts();
    assert_eq!((records.len(), lost), (reported as usize, 0));
    // A close may come in an interrupt of the program. Others that are missed are of states in which a socket is open.
    let absent = all - records.len();
    assert!(absent as u64 <= missed, "{absent} of {all} closes are neither reported nor missed: {:?}", closes.counts());
    assert_reported(&records, expected.into_iter().flatten(), absent);
}

#[test]
fn every_kind_of_close_is_reported_once_with_the_previous_state() {
    if !ready("ways in which sockets close") {
        return;
    }
    let listener = TcpListener::bind("127.0.13.40:0").unwrap();
    let server = listener.local_addr().unwrap();
    let chosen = of_servers(&[server]);
    let mut closes = Closes::attach(&chosen, 1 << 20).unwrap();
    let once = |records: &[SocketRecord], wanted: Ends| {
        let found: Vec<_> = records.iter().filter(|record| ends(record) == wanted).collect();
        assert_eq!(found.len(), 1, "{wanted:?}: {found:?}");
        *found[0]
    };
    // A reset: both ends are established until then.
    let client = TcpStream::connect(server).unwrap();
    let (mut accepted, peer) = listener.accept().unwrap();
    reset_on_close(&client);
    drop(client);
    assert!(accepted.read(&mut [0; 1]).is_err());
    // Never accepted: closing the listener closes them too.
    let waiting = TcpStream::connect(server).unwrap();
    let unaccepted = waiting.local_addr().unwrap();
    drop(listener);
    let records = collect(&mut closes, &chosen, 5);
    assert_eq!(once(&records, (peer, server)).state, ESTABLISHED);
    assert_eq!(once(&records, (server, peer)).state, ESTABLISHED);
    assert_eq!(once(&records, (server, unaccepted)).state, ESTABLISHED);
    assert_eq!(once(&records, (unaccepted, server)).state, ESTABLISHED);
    let listens: Vec<_> = records.iter().filter(|record| record.state == LISTEN).collect();
    assert_eq!(listens.len(), 1);
    assert_eq!((listens[0].local_port, listens[0].accept_limit), (server.port(), 4096.min(listens[0].accept_limit)));
    // Nothing listens any more, so there never was a connection.
    assert!(TcpStream::connect(server).is_err());
    let records = collect(&mut closes, &chosen, 1);
    assert_eq!((records.len(), records[0].state, records[0].bytes_acked), (1, SYN_SENT, 0));
    drop((accepted, waiting));
    let mut again = Vec::new();
    closes.wait(Duration::from_millis(50), &mut again);
    again.retain(|record| chosen.holds_closed(record));
    assert!(again.is_empty(), "sockets that were closed already close no second time: {again:?}");
}

#[test]
fn closes_outside_the_selection_stay_in_the_kernel() {
    if !ready("selection of closes") {
        return;
    }
    let listener = TcpListener::bind("127.0.13.41:0").unwrap();
    let server = listener.local_addr().unwrap();
    let pair = || {
        let client = TcpStream::connect(server).unwrap();
        reset_on_close(&client);
        drop(client);
        drop(listener.accept().unwrap());
    };
    let far = |wanted: Selection| {
        let mut closes = Closes::attach(&wanted, 1 << 20).unwrap();
        pair();
        let mut records = Vec::new();
        closes.wait(Duration::from_millis(50), &mut records);
        records.retain(|record| wanted.holds_closed(record));
        (records, closes.counts())
    };
    let remote = Selection {
        ports: vec![(Side::Remote, server.port())],
        prefixes: vec![at(server)],
        groups: Groups::of([Group::Traffic]),
        ..Selection::default()
    };
    let (records, counts) = far(remote.clone());
    assert_eq!(records.len(), 1, "the client only: {records:?}");
    assert_eq!((records[0].remote_port, records[0].snd_cwnd, records[0].sndbuf_bytes), (server.port(), 0, 0));
    assert!(records[0].segs_out > 0 && counts.filtered > 0);
    let elsewhere = Selection { namespaces: vec![1], ..of_servers(&[server]) };
    assert!(far(elsewhere).0.is_empty());
    assert_eq!(far(Selection { namespaces: vec![1, own_namespace()], ..remote.clone() }).0.len(), 1);
    assert!(far(Selection { states: 1 << LISTEN, ..remote }).0.is_empty());
}

#[test]
fn a_full_ring_counts_the_lost_closes_and_keeps_the_others_intact() {
    if ready("a full ring of closes") {
        // Servers of others may have the same port.
        in_a_namespace("full-ring", fill_the_ring);
    }
}

fn fill_the_ring() {
    let listener = TcpListener::bind("127.0.13.42:0").unwrap();
    let server = listener.local_addr().unwrap();
    let mut closes = Closes::attach(&of_servers(&[server]), 64 << 10).unwrap();
    let connections = 300_u64;
    for _ in 0..connections {
        let client = TcpStream::connect(server).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        reset_on_close(&client);
        drop((client, accepted));
    }
    let Counts { reported, lost, missed, .. } = closes.counts();
    // A close may come in an interrupt of the program.
    let absent = (2 * connections).checked_sub(reported + lost).expect("each end closes once");
    assert!(absent <= missed, "{absent} closes are neither reported, nor lost, nor missed: {:?}", closes.counts());
    assert!(lost > 100 && reported > 50, "{reported} fit, {lost} did not");
    let mut records = Vec::new();
    closes.drain(&mut records);
    assert_eq!(records.len() as u64, reported);
    assert!(records.iter().all(|record| record.local_port == server.port() || record.remote_port == server.port()));
}

#[test]
fn without_privileges_nothing_loads() {
    if !ready("closes without permission") {
        return;
    }
    let answer = unprivileged(|| Closes::attach(&Selection::default(), 1 << 20).map(|_| ()).map_err(|e| e.kind()));
    assert_eq!(answer, Err(io::ErrorKind::PermissionDenied));
}
