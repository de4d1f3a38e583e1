//! UDP sessions across reloads and upgrades.
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::kit::{Load, Relay, Service, get, listener, signal, until, unused_address, value};

const TIMEOUT: Duration = Duration::from_secs(10);

fn datagrams(name: &str, listen: SocketAddr, target: SocketAddr) -> String {
    listener(name, listen, &[target]) + "protocol = \"udp\"\n"
}

fn socket(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// A client of a listener.
fn client(of: SocketAddr) -> UdpSocket {
    let client = socket((of.ip(), 0).into());
    client.connect(of).unwrap();
    client
}

/// The address from which the target receives what the client sends.
fn session_of(client: &UdpSocket, target: &UdpSocket, word: &str) -> SocketAddr {
    client.send(word.as_bytes()).unwrap();
    let mut received = [0; 64];
    let (n, from) = target.recv_from(&mut received).unwrap();
    assert_eq!(&received[..n], word.as_bytes());
    from
}

/// Checks that an answer to this session reaches the client.
fn answers(client: &UdpSocket, target: &UdpSocket, session: SocketAddr, word: &str) {
    target.send_to(word.as_bytes(), session).unwrap();
    let mut received = [0; 64];
    let n = client.recv(&mut received).unwrap();
    assert_eq!(&received[..n], word.as_bytes());
}

#[test]
fn sessions_keep_their_ports_over_reloads() {
    let (kept, removed, added, metrics) = (unused_address(), unused_address(), unused_address(), unused_address());
    let (target, other) = (socket(unused_address()), socket(unused_address()));
    let (at, other_at) = (target.local_addr().unwrap(), other.local_addr().unwrap());
    let head = format!("drain = \"700ms\"\nmetrics = \"{metrics}\"\n");
    let relay = Relay::start(&format!("{head}{}{}", datagrams("kept", kept, at), datagrams("removed", removed, at)));
    // Enough clients that both threads have some.
    let clients: Vec<UdpSocket> = (0..8).map(|_| client(kept)).collect();
    let ports: Vec<SocketAddr> = clients.iter().map(|c| session_of(c, &target, "first")).collect();
    let going = client(removed);
    let its = session_of(&going, &target, "first");
    let idle = datagrams("kept", kept, at) + "timeouts = { idle = \"30s\" }\n";
    let both = listener("kept", kept, &[other_at, at]) + "protocol = \"udp\"\n";
    for (round, text) in [
        // Another listener, other settings, another target for new sessions, another name.
        datagrams("kept", kept, at) + &datagrams("removed", removed, at) + &datagrams("added", added, at),
        idle + &datagrams("removed", removed, at),
        both.clone() + &datagrams("removed", removed, at),
        both.replace("\"kept\"", "\"named\"") + &datagrams("removed", removed, at),
    ]
    .into_iter()
    .enumerate()
    {
        relay.reload(&format!("{head}{text}"));
        for (client, port) in clients.iter().zip(&ports) {
            assert_eq!(session_of(client, &target, "again"), *port, "round {round}");
            answers(client, &target, *port, "yes");
        }
    }
    assert_eq!(session_of(&going, &target, "again"), its);
    let text = get(metrics, "/metrics").unwrap().1;
    assert_eq!(value(&text, &["active{", "\"named\""]), 8.0, "sessions are counted for the listener with the new name");
    // Those of a target that is gone end, and the next datagram begins another one.
    let gone = datagrams("named", kept, other_at) + &datagrams("removed", removed, at);
    relay.reload(&format!("{head}{gone}"));
    for client in &clients {
        let session = session_of(client, &other, "moved");
        answers(client, &other, session, "here");
    }
    let text = get(metrics, "/metrics").unwrap().1;
    assert_eq!(value(&text, &["closed_total", "\"named\"", "target-gone"]), 8.0);
    // A removed listener forwards its sessions and begins no new ones.
    relay.reload(&format!("{head}{}", datagrams("named", kept, other_at)));
    assert_eq!(session_of(&going, &target, "last"), its);
    answers(&going, &target, its, "words");
    client(removed).send(b"too late").unwrap();
    until("the drain timeout is over", || UdpSocket::bind(removed).is_ok());
    target.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(target.recv(&mut [0; 8]).is_err(), "nothing else has come");
    relay.reload(&format!("{head}{}", datagrams("back", removed, at)));
    target.set_read_timeout(Some(TIMEOUT)).unwrap();
    session_of(&client(removed), &target, "the listener is added again");
}

#[test]
fn sessions_of_a_target_that_refuses_go_to_another_one() {
    let listen = unused_address();
    let places = [unused_address(), unused_address()];
    let mut targets = places.map(|place| Some(socket(place)));
    let text = listener("u", listen, &places) + "protocol = \"udp\"\n";
    let relay = Relay::start(&text);
    let clients: Vec<UdpSocket> = (0..6).map(|_| client(listen)).collect();
    let own = |client: &UdpSocket| client.local_addr().unwrap().port().to_be_bytes();
    // Each client's session, by which of the targets it has reached.
    for client in &clients {
        client.send(&own(client)).unwrap();
    }
    let mut heard = [0, 0];
    for (target, heard) in targets.iter().flatten().zip(&mut heard) {
        target.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        while let Ok((_, session)) = target.recv_from(&mut [0; 8]) {
            target.send_to(b"yes", session).unwrap();
            *heard += 1;
        }
    }
    assert!(heard[0] > 0 && heard[1] > 0 && heard[0] + heard[1] == 6, "{heard:?}");
    targets[0] = None;
    let left = targets[1].take().unwrap();
    left.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut moved = std::collections::HashSet::new();
    until("all clients reach the target that is left", || {
        for client in &clients {
            client.send(&own(client)).unwrap();
        }
        let mut piece = [0; 2];
        while left.recv(&mut piece).is_ok() {
            moved.insert(piece);
        }
        moved.len() == clients.len()
    });
    let down = format!("the target {} is down", places[0]);
    relay.wait_for(&down, 1);
    assert_eq!(relay.count(&down), 1, "{}", relay.stderr());
}

#[test]
fn a_limit_per_source_that_a_reload_adds_holds_across_threads() {
    let listen = unused_address();
    let target = socket(unused_address());
    let text = datagrams("u", listen, target.local_addr().unwrap());
    let relay = Relay::start(&text);
    session_of(&client(listen), &target, "no limit yet");
    relay.reload(&format!("{text}limits = {{ per-source = 2 }}\n"));
    let clients: Vec<UdpSocket> = (0..8).map(|_| client(listen)).collect();
    for client in &clients {
        client.send(b"?").unwrap();
    }
    target.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let passed = std::iter::from_fn(|| target.recv(&mut [0; 8]).ok()).count();
    // The session from before is on either thread, and may be uncounted on the one that gets all datagrams of the source now.
    assert!((1..=2).contains(&passed), "{passed} of 8 sessions of one source");
    drop(relay);
}

#[test]
fn an_upgrade_loses_no_datagram_and_answers_still_arrive() {
    let listen = unused_address();
    let target = socket(unused_address());
    let mut relay = Relay::start(&datagrams("u", listen, target.local_addr().unwrap()));
    let clients: Vec<UdpSocket> = (0..8).map(|_| client(listen)).collect();
    let ports: Vec<SocketAddr> = clients.iter().map(|c| session_of(c, &target, "first")).collect();
    relay.signal("USR2");
    relay.wait_for("has taken over", 1);
    let stderr = relay.stderr();
    let line = stderr.lines().find(|l| l.contains("has taken over")).unwrap();
    let new: u32 = line.split_once("relay: process ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    relay.wait_for("draining", 1);
    std::thread::sleep(Duration::from_millis(100));
    for (client, port) in clients.iter().zip(&ports) {
        answers(client, &target, *port, "from before");
        // Only the new process reads the listeners' sockets, so this is a new session from another port.
        let now = session_of(client, &target, "again");
        assert_ne!(now, *port);
        answers(client, &target, now, "yes");
        assert_eq!(session_of(client, &target, "and again"), now);
    }
    // The old process drains already, so one signal ends it; the successor needs two, the second after it has begun to drain.
    relay.signal("TERM");
    assert_eq!(relay.exit_code(), Some(0));
    signal(new, "TERM");
    relay.wait_for("draining", 2);
    signal(new, "TERM");
    until("the new process ends", || std::fs::read(format!("/proc/{new}/cmdline")).map_or(true, |l| l.is_empty()));
}

#[test]
fn datagrams_and_connections_reload_together() {
    let (tcp, udp) = (unused_address(), unused_address());
    let (service, target) = (Service::start("s"), socket(unused_address()));
    let both = |idle: u32| {
        let udp = datagrams("u", udp, target.local_addr().unwrap());
        format!("{}{udp}timeouts = {{ idle = \"{idle}s\" }}\n", listener("t", tcp, &[service.address]))
    };
    let relay = Relay::start(&both(60));
    let load = Load::start(tcp, 2);
    let client = client(udp);
    let port = session_of(&client, &target, "first");
    for round in 0..10 {
        relay.reload(&both(61 + round));
        assert_eq!(session_of(&client, &target, "again"), port);
        load.run(5);
    }
    let (done, failures) = load.end();
    assert!(failures.is_empty(), "{} of {done} failed: {:?}", failures.len(), failures.first());
}

/// A UDP port that is free on every address of both families.
fn free_port() -> u16 {
    (0..10)
        .find_map(|_| {
            let v6 = UdpSocket::bind("[::]:0").unwrap();
            let port = v6.local_addr().unwrap().port();
            drop(v6);
            UdpSocket::bind(("0.0.0.0", port)).ok().map(|_| port)
        })
        .unwrap()
}

#[test]
fn every_address_of_the_host_is_two_listeners_on_one_port() {
    let target = socket(unused_address());
    let port = free_port();
    let listen = format!("[[listener]]\nlisten = \":{port}\"\ntarget = \"{}\"\n", target.local_addr().unwrap());
    let _relay = Relay::start(&(listen + "protocol = \"udp\"\n"));
    for ip in ["127.0.0.1", "::1"] {
        let client = client(SocketAddr::new(ip.parse().unwrap(), port));
        let session = session_of(&client, &target, "hello");
        answers(&client, &target, session, "yes");
    }
}
