//! A worker that no thread runs, and whole relays from accept to drain.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::Instant;

use parshall_core::relay::config::{AccessRule, Config, EngineChoice, Global, Listener, Protocol, Target};
use parshall_core::relay::connection::CloseReason;
use parshall_sys::stream_socket::{local_ip, peer_ip};

use super::*;
use crate::connection_limit::ConnectionLimit;
use crate::open::Pool;
use crate::record::Closed;
use crate::serve::{ProcessLimits, Relay};
use crate::service::Service;
use crate::service::target::TargetState;
use crate::stats::EngineKind;

const TIMEOUT: Duration = Duration::from_secs(20);

fn worker() -> Worker {
    let (_orders, inbox) = channel();
    let (closed, _ended) = sync_channel(1);
    let wake = Arc::new(parshall_sys::eventfd::new().expect("a descriptor"));
    Worker::new(Parts { connection_limit: ConnectionLimit::new(None), pipes_max: 1, inbox, wake, closed }, 8192)
        .expect("a worker")
}

#[test]
fn a_new_configuration_may_have_larger_buffers() {
    let mut worker = worker();
    let place = Endpoint::Ip("127.0.0.1:1".parse().expect("an address"));
    let targets = vec![Target { endpoint: place.clone(), weight: 1 }];
    for (buffer, largest) in [(1 << 20, 1 << 20), (4096, 1 << 20)] {
        let mut listener = Listener::new(Protocol::Tcp, place.clone(), targets.clone());
        listener.buffer = buffer;
        let service = Arc::new(Service::new(listener, Vec::new(), None, 0));
        worker.apply(vec![Assigned { service, stats: Arc::default(), socket: None }], 0);
        assert_eq!(worker.buffer_max, largest);
    }
}

#[test]
fn a_connection_keeps_its_listener_across_reloads_that_free_slots() {
    let mut worker = worker();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.set_nonblocking(true).expect("an option");
    let place = Endpoint::Ip(socket.local_addr().expect("bound"));
    let targets = vec![Target { endpoint: place.clone(), weight: 1 }];
    let known = vec![Arc::new(TargetState::new(Vec::new()))];
    let service = Arc::new(Service::new(Listener::new(Protocol::Tcp, place, targets), known, None, 0));
    let assigned = |socket| Assigned { service: service.clone(), stats: Arc::default(), socket };
    // Removed listeners, through each of which a connection came that lasts.
    for _ in 0..1 << 16 {
        let mut removed = Listening::new(assigned(None), None);
        removed.active = 1;
        worker.listeners.push(removed);
    }
    let index = worker.listeners.len();
    worker.listeners.push(Listening::new(assigned(None), Some(Arc::new(socket.into()))));
    let place = worker.listeners[index].service.config.listen.to_string();
    let _client = std::net::TcpStream::connect(place).expect("a connection");
    worker.accept(index);
    // Its only target has no address, so the connection ends at once: at the listener that it came through.
    assert_eq!(worker.listeners[index].stats.accepted.get(), 1);
    assert_eq!((worker.listeners[index].active, worker.listeners[0].active), (0, 1));
}

/// A server that returns the bytes of each connection, and closes it when its client does.
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
    let choices = [
        (EngineChoice::Auto, EngineKind::Copy),
        (EngineChoice::Copy, EngineKind::Copy),
        (EngineChoice::Splice, EngineKind::Splice),
    ];
    for (choice, kind) in choices {
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
                assert_eq!((moved.bytes, moved.engines, moved.fallback), (15, 1 << kind as u8, None), "{choice:?}");
            }
        }
        drain(relay);
    }
}

#[test]
fn clients_that_reset_before_they_are_accepted_have_their_addresses() {
    let choices = [EngineChoice::Auto, EngineChoice::Copy, EngineChoice::Splice];
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
fn clients_above_the_connection_limit_wait_in_the_accept_queue() {
    let (relay, _ended, address) = start(EngineChoice::Auto, |l| l.limits.connections = Some(2));
    let mut clients: Vec<TcpStream> = (0..6).map(|_| client(address)).collect();
    assert!(echoes(&mut clients[0]) && echoes(&mut clients[1]));
    // The others take no descriptor here.
    let accepted = relay.listeners[0].stats[0].accepted.get();
    assert_eq!((accepted, sockets_to(address)), (2, 2));
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
