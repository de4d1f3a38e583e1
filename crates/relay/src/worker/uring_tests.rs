//! The relay with engines that move bytes by themselves, from accept to drain.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use parshall_core::relay::config::{AccessRule, Config, Endpoint, EngineChoice, Global, Listener, Protocol, Target};
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::Direction;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::stream_socket::{local_ip, peer_ip};

use crate::open::Pool;
use crate::record::Closed;
use crate::serve::{ProcessLimits, Relay};
use crate::stats::{EngineKind, Fallback};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Says back what it hears, and ends when the other side does.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound")
}

fn start(engine: EngineChoice, adjust: impl Fn(&mut Listener)) -> (Relay, Receiver<Vec<Closed>>, SocketAddr) {
    let (listen, target) = (free_address(), echo_server());
    let targets = vec![Target { endpoint: Endpoint::Ip(target), weight: 1 }];
    let mut listener = Listener::new(Protocol::Tcp, Endpoint::Ip(listen), targets);
    listener.engine = engine;
    adjust(&mut listener);
    let config = Config { global: Global::default(), listeners: vec![listener] };
    let mut relay = Relay::new(1);
    let prepared = relay.prepare(&config, &mut Pool::default()).expect("open");
    let (_wake, ended) = relay.start(&config, ProcessLimits::new(&config, 1, 1024), || ()).expect("a relay");
    relay.commit(prepared, 0);
    (relay, ended, listen)
}

fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("an option");
    stream
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut heard = [0; 5];
    stream.write_all(b"hello").is_ok() && stream.read_exact(&mut heard).is_ok() && &heard == b"hello"
}

/// Sends and hears a lot, again and again, until the relay is seen to do what it does with streams.
fn stream_until(stream: &mut TcpStream, seen: impl Fn() -> bool) {
    let (bulk, mut heard) = (vec![7; 256 << 10], vec![0; 256 << 10]);
    for _ in 0..1000 {
        stream.write_all(&bulk).expect("taken");
        stream.read_exact(&mut heard).expect("all of it");
        if seen() {
            return;
        }
    }
    panic!("it is not seen in 250 MiB");
}

fn closed(ended: &Receiver<Vec<Closed>>, count: usize) -> Vec<Closed> {
    let mut all = Vec::new();
    let began = Instant::now();
    while all.len() < count && began.elapsed() < TIMEOUT {
        all.extend(ended.recv_timeout(Duration::from_millis(50)).unwrap_or_default());
    }
    all
}

fn drain(mut relay: Relay) {
    relay.drain(monotonic_ns() + 100_000_000, false);
    relay.join().expect("the workers end in good order");
}

#[test]
fn ended_connections_are_reported_with_bytes_and_engine() {
    // What does not stream is copied until it would be redirected.
    for (choice, kind) in [(EngineChoice::Uring, EngineKind::Uring), (EngineChoice::Sockmap, EngineKind::Copy)] {
        let (relay, ended, address) = start(choice, |_| {});
        for _ in 0..30 {
            let mut one = client(address);
            assert!((0..3).all(|_| echoes(&mut one)));
            one.shutdown(std::net::Shutdown::Write).expect("open");
            assert_eq!(one.read(&mut [0; 8]).expect("the end"), 0);
        }
        let ended_connections = closed(&ended, 30);
        assert_eq!(ended_connections.len(), 30);
        for one in ended_connections {
            assert_eq!(one.reason, CloseReason::Finished);
            for moved in one.transferred.iter() {
                assert_eq!(moved.bytes, 15, "{kind:?}");
                let refused = matches!(moved.fallback, Some(Fallback::NotPermitted | Fallback::Unsupported));
                assert!(refused || moved.engines & 1 << kind as u8 != 0, "{kind:?}: {moved:?}");
            }
        }
        drain(relay);
    }
}

#[test]
fn clients_that_reset_before_they_are_accepted_have_their_addresses() {
    let choices = [EngineChoice::Auto, EngineChoice::Splice, EngineChoice::Uring, EngineChoice::Sockmap];
    for (choice, any) in choices.into_iter().flat_map(|choice| [(choice, "127.0.0.1:0"), (choice, "[::1]:0")]) {
        let target = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = target.local_addr().expect("bound");
        let targets = vec![Target { endpoint: Endpoint::Ip(address), weight: 1 }];
        let place = TcpListener::bind(any).expect("a port").local_addr().expect("bound");
        let mut listener = Listener::new(Protocol::Tcp, Endpoint::Ip(place), targets);
        (listener.engine, listener.access) = (choice, denies_all());
        let config = Config { global: Global::default(), listeners: vec![listener] };
        let mut relay = Relay::new(1);
        let prepared = relay.prepare(&config, &mut Pool::default()).expect("open");
        for _ in 0..5 {
            let mut client = socket2::Socket::from(client(place));
            client.write_all(b"do it").expect("sent");
            client.set_linger(Some(Duration::ZERO)).expect("an option");
        }
        let (_wake, ended) = relay.start(&config, ProcessLimits::new(&config, 1, 1024), || ()).expect("a relay");
        relay.commit(prepared, 0);
        let ended_connections: Vec<_> =
            closed(&ended, 5).iter().map(|one| (one.reason, one.client.map(|c| c.ip()))).collect();
        assert_eq!(ended_connections, [(CloseReason::Denied, Some(place.ip())); 5], "{choice:?}");
        drain(relay);
        target.set_nonblocking(true).expect("an option");
        assert!(target.accept().is_err(), "{choice:?}: the target was connected to");
    }
}

#[test]
fn with_access_rules_an_unknown_client_of_a_unix_listener_is_denied() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("s").to_str().expect("UTF-8").to_owned();
    let (relay, ended, _) = start(EngineChoice::Auto, |l| {
        (l.listen, l.proxy_in, l.access) = (Endpoint::Unix(path.clone()), true, denies_all());
    });
    let said = |header: &[u8]| {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("an option");
        stream.write_all(&[header, b"hello"].concat()).expect("sent");
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).is_ok() && &heard == b"hello"
    };
    assert!(!said(b"PROXY UNKNOWN\r\n"), "a client without an address, and there are rules");
    assert!(!said(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"), "denied by a rule");
    // LOCAL: a connection of the proxy's own, such as its health check.
    assert!(said(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"));
    let reasons: Vec<_> = closed(&ended, 3).iter().map(|one| one.reason).collect();
    assert_eq!(reasons[..2], [CloseReason::Denied; 2]);
    drain(relay);
}

fn denies_all() -> Vec<AccessRule> {
    ["0.0.0.0/0", "::/0"].map(|net| AccessRule { allow: false, network: net.parse().expect("a network") }).into()
}

#[test]
fn the_connection_limit_holds_for_the_ring() {
    let (relay, _ended, address) = start(EngineChoice::Uring, |l| l.limits.connections = Some(2));
    let mut clients: Vec<TcpStream> = (0..6).map(|_| client(address)).collect();
    assert!(echoes(&mut clients[0]) && echoes(&mut clients[1]));
    // One accept was under way when the limit was reached. The others wait in the kernel's queue and take no descriptor here.
    let accepted = relay.listeners[0].stats[0].accepted.get();
    assert_eq!((accepted, sockets_to(address) <= 3), (2, true), "{} are accepted", sockets_to(address));
    for waiting in &mut clients[2..] {
        waiting.set_read_timeout(Some(Duration::from_millis(20))).expect("an option");
        waiting.write_all(b"hello").expect("sent");
        assert!(waiting.read(&mut [0; 5]).is_err(), "not admitted yet");
        waiting.set_read_timeout(Some(TIMEOUT)).expect("an option");
    }
    while clients.len() > 2 {
        clients.remove(0);
        let mut heard = [0; 5];
        clients[1].read_exact(&mut heard).expect("admitted when another one has left");
    }
    let stats = relay.listeners[0].stats[0].clone();
    assert_eq!(stats.accepted.get(), 6);
    drop(clients);
    drain(relay);
    assert_eq!(stats.active.get(), 0);
}

/// Connections to this address that the process has accepted: an accepted socket's local address is that of the listener.
fn sockets_to(address: SocketAddr) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("own descriptors");
    let numbers = descriptors.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    numbers.filter(|fd| local_ip(*fd).ok().flatten() == Some(address) && peer_ip(fd).is_some()).count()
}

#[test]
fn a_closed_connection_is_reset_or_closed_at_both_ends() {
    for choice in [EngineChoice::Uring, EngineChoice::Sockmap] {
        let (relay, ended, address) = start(choice, |l| l.timeouts.idle = Duration::from_millis(200));
        let mut quiet = client(address);
        assert!(echoes(&mut quiet));
        // The idle timeout cuts it while its receives are in flight.
        assert_eq!(quiet.read(&mut [0; 8]).expect("closed"), 0);
        let ended_connections = closed(&ended, 1);
        assert_eq!(
            ended_connections
                .iter()
                .map(|c| (c.reason, c.transferred[Direction::ClientToTarget].bytes))
                .collect::<Vec<_>>(),
            [(CloseReason::IdleTimeout, 5)]
        );
        drain(relay);
    }
}

#[test]
fn a_connection_with_a_bandwidth_is_copied() {
    let (relay, ended, address) = start(EngineChoice::Uring, |l| l.limits.bandwidth = Some(10_000_000));
    let mut one = client(address);
    assert!(echoes(&mut one));
    drop(one);
    let ended_connections = closed(&ended, 1);
    assert_eq!(
        ended_connections[0].transferred.iter().map(|t| (t.fallback, t.engines)).collect::<Vec<_>>(),
        [(Some(Fallback::Bandwidth), 1); 2]
    );
    drain(relay);
}

#[test]
fn a_stream_is_redirected_one_way_and_copied_the_other() {
    let (relay, ended, address) = start(EngineChoice::Sockmap, |_| {});
    let stats = relay.listeners[0].stats[0].clone();
    let fallbacks = |whys: &[Fallback]| whys.iter().map(|why| stats.fallbacks[*why as usize].get()).sum::<u64>();
    let mut one = client(address);
    stream_until(&mut one, || {
        fallbacks(&[Fallback::OtherDirection, Fallback::NotPermitted, Fallback::Unsupported]) > 0
    });
    drop(one);
    let moved = closed(&ended, 1)[0].transferred;
    assert_eq!(moved[Direction::ClientToTarget].bytes, moved[Direction::TargetToClient].bytes);
    let redirected = moved.iter().filter(|t| t.engines & 1 << EngineKind::Sockmap as u8 != 0).count();
    let refused = fallbacks(&[Fallback::NotPermitted, Fallback::Unsupported]) > 0;
    assert_eq!(redirected, usize::from(!refused), "{moved:?}");
    drain(relay);
}

#[test]
fn sockmap_copies_unix_sockets_and_reports_the_fallback() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("s").to_str().expect("UTF-8").to_owned();
    let target = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = target.accept().expect("the relay");
        let mut heard = vec![0; 64 << 10];
        while let Ok(n @ 1..) = stream.read(&mut heard)
            && stream.write_all(&heard[..n]).is_ok()
        {}
    });
    let (relay, ended, address) = start(EngineChoice::Sockmap, |l| {
        l.targets = vec![Target { endpoint: Endpoint::Unix(path.clone()), weight: 1 }];
    });
    let mut one = client(address);
    let stats = relay.listeners[0].stats[0].clone();
    // Where there is no sockmap at all, that is the reason.
    let whys = [Fallback::Unsupported, Fallback::NotPermitted];
    stream_until(&mut one, || whys.iter().any(|why| stats.fallbacks[*why as usize].get() > 0));
    drop(one);
    for moved in closed(&ended, 1)[0].transferred.iter() {
        assert_eq!(moved.engines, 1, "copied");
        assert!(moved.fallback.is_none_or(|why| whys.contains(&why)), "{moved:?}");
    }
    drain(relay);
}
