//! The worker with real sockets on loopback.
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parshall_core::relay::Ns;
use parshall_core::relay::config::{Endpoint, Listener, Protocol, Target};
use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::Direction;
use parshall_sys::clock::monotonic_ns;
use parshall_sys::stream_socket::StreamAddr;

use super::plan::{UdpCounts, UdpListener};
use super::sockets::{self, From};
use super::stop::{Order, Stop};
use super::worker::UdpPlan;
use crate::connection_limit::ConnectionLimit;
use crate::service::target::TargetState;
use crate::stats::ListenerStats;
use parshall_testkit::skip;

/// Longer than any answer takes on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long nothing must arrive. On a slow machine this proves less, but does not fail.
const SILENCE: Duration = Duration::from_millis(150);

/// A worker in a thread of its own.
struct Relay {
    address: SocketAddr,
    target: Arc<TargetState>,
    stats: Arc<ListenerStats>,
    counts: Arc<UdpCounts>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

struct Setup {
    listen: &'static str,
    config: Listener,
    allowed: Arc<AtomicBool>,
    sessions_max: u32,
    /// Sockets of the listener.
    sockets: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let any = Endpoint::Ip(SocketAddr::from(([127, 0, 0, 1], 0)));
        let target = Target { endpoint: any.clone(), weight: 1 };
        Self {
            listen: "127.0.0.1:0",
            config: Listener::new(Protocol::Udp, any, vec![target]),
            allowed: Arc::new(AtomicBool::new(true)),
            sessions_max: 1000,
            sockets: 1,
        }
    }
}

fn first(_: IpAddr, _: &[Arc<TargetState>], _: Ns) -> Option<usize> {
    Some(0)
}

impl Relay {
    fn start(setup: Setup, target: SocketAddr) -> Self {
        let listen = setup.listen.parse().expect("an address");
        let mut own = vec![sockets::listen(listen, &setup.config.sockets).expect("loopback")];
        let address = own[0].local_addr().expect("bound");
        own.resize_with(setup.sockets, || sockets::listen(address, &setup.config.sockets).expect("loopback"));
        Self::with(setup, own, target)
    }

    /// A worker with these sockets of its listener.
    fn with(setup: Setup, sockets: Vec<UdpSocket>, target: SocketAddr) -> Self {
        let address = sockets[0].local_addr().expect("bound");
        let target = Arc::new(TargetState::new(vec![StreamAddr::Ip(target)]));
        let allowed = setup.allowed.clone();
        let listener = UdpListener::new(
            &setup.config,
            address.to_string(),
            sockets.into_iter().map(|socket| Arc::new(socket.into())).collect(),
            vec![target.clone()],
            Box::new(first),
            Box::new(move |_| allowed.load(Ordering::Relaxed)),
            ConnectionLimit::new(setup.config.limits.connections),
        );
        let (stats, counts) = (listener.stats.clone(), Arc::new(UdpCounts::default()));
        let stop = Arc::new(Stop::new().expect("a pipe"));
        let workers = Arc::from([stop.clone()]);
        let plan = UdpPlan {
            listeners: vec![listener],
            session_limit: ConnectionLimit::new(Some(setup.sessions_max)),
            workers,
            ports: Arc::default(),
            counts: counts.clone(),
        };
        let orders = stop.clone();
        let thread = Some(std::thread::spawn(move || super::run(plan, orders)));
        Self { address, target, stats, counts, stop, thread }
    }

    fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the worker does not panic").expect("the worker ends in good order");
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.give(Order::End).ok();
        if !std::thread::panicking() {
            self.finish();
        }
    }
}

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("loopback");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    socket
}

fn client(relay: &Relay) -> UdpSocket {
    let client = socket("127.0.0.1:0");
    client.connect(relay.address).expect("loopback");
    client
}

fn take_from(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buf = vec![0; 65_536];
    let (n, from) = socket.recv_from(&mut buf).expect("a datagram in time");
    buf.truncate(n);
    (buf, from)
}

fn silent(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(SILENCE)).expect("a socket");
    let silent = socket.recv(&mut [0; 16]).is_err();
    socket.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    silent
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < end, "in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn start() -> (Relay, UdpSocket) {
    let target = socket("127.0.0.1:0");
    (Relay::start(Setup::default(), target.local_addr().expect("bound")), target)
}

#[test]
fn a_session_keeps_its_source_port_and_answers_come_back() {
    let (relay, target) = start();
    let (one, two) = (client(&relay), client(&relay));
    let mut ports = Vec::new();
    for client in [&one, &two, &one, &two, &one] {
        client.send(b"ask").expect("loopback");
        let (data, from) = take_from(&target);
        assert_eq!(data, b"ask");
        target.send_to(b"answer", from).expect("loopback");
        assert_eq!(take_from(client), (b"answer".to_vec(), relay.address));
        ports.push(from.port());
    }
    assert_eq!((ports[0], ports[1]), (ports[2], ports[3]));
    assert_eq!(ports[0], ports[4]);
    assert_ne!(ports[0], ports[1]);
    eventually("counted", || relay.stats.datagrams[Direction::TargetToClient].get() == 5);
    assert_eq!(
        (relay.stats.accepted.get(), relay.stats.active.get(), relay.stats.datagrams[Direction::ClientToTarget].get()),
        (2, 2, 5)
    );
    assert_eq!(
        (relay.stats.bytes[Direction::ClientToTarget][0].get(), relay.stats.bytes[Direction::TargetToClient][0].get()),
        (15, 30)
    );
}

#[test]
fn the_longest_and_the_empty_datagram_are_forwarded_both_ways() {
    let (relay, target) = start();
    let client = client(&relay);
    let long: Vec<u8> = (0..65_507_u32).map(|n| (n % 251) as u8).collect();
    for data in [&long[..], &[], &long[..65_506], &[1]] {
        client.send(data).expect("loopback");
        let (got, from) = take_from(&target);
        assert!(got == data, "{} bytes up", data.len());
        target.send_to(data, from).expect("loopback");
        assert!(take_from(&client).0 == data, "{} bytes down", data.len());
    }
}

#[test]
fn sizes_and_order_survive_bursts_both_ways() {
    let (relay, target) = start();
    let client = client(&relay);
    client.send(b"first").expect("loopback");
    let (_, session) = take_from(&target);
    target.connect(session).expect("loopback");
    let sizes = [100, 100, 100, 40, 100, 0, 0, 7, 7, 7, 7, 1400, 1400, 1400, 9000, 9000, 1, 20_000, 20_000, 3];
    for (from, to) in [(&client, &target), (&target, &client)] {
        for round in 0..20 {
            let burst: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(n, size)| vec![(n + round) as u8; *size]).collect();
            for data in &burst {
                from.send(data).expect("loopback");
            }
            for data in &burst {
                assert!(take_from(to).0 == *data, "{} bytes in round {round}", data.len());
            }
        }
    }
    assert_eq!(relay.stats.datagrams_dropped.get(), 0);
}

#[test]
fn a_burst_takes_few_calls() {
    use parshall_sys::udp_batch::DatagramBatch;
    use std::os::fd::AsFd;
    let (relay, target) = start();
    let (client, echo) = (client(&relay), socket("127.0.0.1:0"));
    client.send(b"first").expect("loopback");
    let (_, session) = take_from(&target);
    target.connect(session).expect("loopback");
    // Sixty-four datagrams in one message, made of as many that were received.
    let source = socket("127.0.0.1:0");
    source.connect(echo.local_addr().expect("bound")).expect("loopback");
    let mut batch = DatagramBatch::new(64);
    for n in 0..64_u8 {
        source.send(&[n; 64]).expect("loopback");
    }
    assert_eq!(batch.receive(echo.as_fd(), false).expect("data is there"), 64);
    eventually("the first is counted", || relay.stats.datagrams[Direction::ClientToTarget].get() == 1);
    let (receives, sends) = (relay.counts.receives.get(), relay.counts.sends.get());
    batch.begin(None, None, 0);
    (0..64).for_each(|slot| batch.attach(slot, 64));
    batch.end(64);
    assert_eq!(batch.transmit(client.as_fd(), 0).expect("loopback"), 1);
    for n in 0..64_u8 {
        assert_eq!(take_from(&target).0, [n; 64]);
    }
    eventually("counted", || relay.stats.datagrams[Direction::ClientToTarget].get() == 65);
    let calls = (relay.counts.receives.get() - receives, relay.counts.sends.get() - sends);
    assert!(calls.0 <= 2 && calls.1 == 1, "{calls:?}");
}

#[test]
fn many_clients_are_kept_apart() {
    let (relay, target) = start();
    let clients: Vec<UdpSocket> = (0..200).map(|_| client(&relay)).collect();
    for round in 0..3_u32 {
        for (n, client) in clients.iter().enumerate() {
            client.send(&(n as u32 * 10 + round).to_be_bytes()).expect("loopback");
        }
        for _ in &clients {
            let (data, from) = take_from(&target);
            target.send_to(&data, from).expect("loopback");
        }
        for (n, client) in clients.iter().enumerate() {
            assert_eq!(take_from(client).0, (n as u32 * 10 + round).to_be_bytes());
        }
    }
    assert_eq!(relay.stats.accepted.get(), 200);
}

#[test]
fn answers_alone_keep_a_session_and_silence_ends_it() {
    const WHAT: &str = "a UDP session kept by answers alone";
    const PAUSED: &str = "the machine paused for longer than the session may idle";
    let target = socket("127.0.0.1:0");
    let mut setup = Setup::default();
    setup.config.timeouts.idle = Duration::from_millis(400);
    let relay = Relay::start(setup, target.local_addr().expect("bound"));
    let client = client(&relay);
    client.send(b"?").expect("loopback");
    let (_, session) = take_from(&target);
    // One way for three times the idle time, then the other way.
    let mut sent = Instant::now();
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(100));
        // A pause of the machine itself may end the session: then this run shows nothing.
        if sent.elapsed() > Duration::from_millis(300) {
            return skip(WHAT, PAUSED);
        }
        target.send_to(b"!", session).expect("loopback");
        sent = Instant::now();
        take_from(&client);
    }
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(100));
        if sent.elapsed() > Duration::from_millis(300) {
            return skip(WHAT, PAUSED);
        }
        client.send(b"?").expect("loopback");
        sent = Instant::now();
        assert_eq!(take_from(&target).1, session);
    }
    eventually("ended", || relay.stats.closed(CloseReason::IdleTimeout).get() == 1);
    assert_eq!((relay.stats.active.get(), relay.stats.accepted.get()), (0, 1));
    client.send(b"?").expect("loopback");
    take_from(&target);
    assert_eq!(relay.stats.accepted.get(), 2);
}

#[test]
fn at_a_limit_the_session_that_is_idle_longest_makes_room() {
    let target = socket("127.0.0.1:0");
    let at = target.local_addr().expect("bound");
    for of_process in [false, true] {
        let mut setup = Setup::default();
        match of_process {
            true => setup.sessions_max = 2,
            false => setup.config.limits.connections = Some(2),
        }
        let relay = Relay::start(setup, at);
        let clients = [client(&relay), client(&relay), client(&relay)];
        let ask = |n: usize| {
            clients[n].send(b"x").expect("loopback");
            take_from(&target).1
        };
        let (first, second) = (ask(0), ask(1));
        // The first one waits for its answer, and the second one has got it.
        target.send_to(b"y", second).expect("loopback");
        assert_eq!(take_from(&clients[1]).0, b"y");
        let third = ask(2);
        eventually("evicted", || relay.stats.closed(CloseReason::Evicted).get() == 1);
        assert_eq!((ask(0), ask(2)), (first, third), "others stay");
        target.send_to(b"y", first).expect("loopback");
        assert_eq!(take_from(&clients[0]).0, b"y");
        assert_ne!(ask(1), second, "a new session");
        assert_eq!((relay.stats.datagrams_dropped.get(), relay.stats.active.get()), (0, 2));
        assert_eq!(relay.stats.closed(CloseReason::Limited).get(), 0);
    }
}

#[test]
fn a_session_ends_with_the_last_answer_that_is_due() {
    let target = socket("127.0.0.1:0");
    let mut setup = Setup::default();
    setup.config.responses = Some(2);
    let relay = Relay::start(setup, target.local_addr().expect("bound"));
    let client = client(&relay);
    client.send(b"one").expect("loopback");
    let session = take_from(&target).1;
    client.send(b"two").expect("loopback");
    assert_eq!(take_from(&target).1, session);
    for n in 0..4 {
        assert_eq!(relay.stats.closed(CloseReason::Finished).get(), 0, "{n} of 4 answers");
        target.send_to(b"answer", session).expect("loopback");
        assert_eq!(take_from(&client).0, b"answer");
    }
    eventually("ended", || relay.stats.closed(CloseReason::Finished).get() == 1 && relay.stats.active.get() == 0);
    client.send(b"three").expect("loopback");
    assert_ne!(take_from(&target).1, session);
}

#[test]
fn sessions_with_different_targets_share_a_port_when_none_is_free() {
    let targets = [socket("127.0.0.1:0"), socket("127.0.0.1:0")];
    let at = |n: usize| targets[n].local_addr().expect("bound");
    let ports = sockets::SharedPorts::default();
    let options = Setup::default().config.sockets;
    let (first, port) = sockets::connect(at(0), From::Anywhere, &options, &ports).expect("a port is free");
    let port = port.expect("it is known").1;
    let second = sockets::connect_shared(None, port, at(1), &options).expect("of the same user");
    let second = UdpSocket::from(second);
    assert!(UdpSocket::bind(("127.0.0.1", port)).is_err(), "other programs do not get the port");
    for (n, session) in [(0, &first), (1, &second)] {
        session.send(&[n]).expect("loopback");
        let (data, from) = take_from(&targets[usize::from(n)]);
        assert_eq!((data, from.port()), (vec![n], port));
        targets[usize::from(n)].send_to(&[n], from).expect("loopback");
    }
    for (n, session) in [(0, first), (1, second)] {
        session.set_nonblocking(false).expect("an option");
        session.set_read_timeout(Some(TIMEOUT)).expect("an option");
        assert_eq!(take_from(&session).0, [n], "each session has the answers of its own target");
    }
}

#[test]
fn a_worker_reads_all_its_sockets_of_a_listener() {
    let target = socket("127.0.0.1:0");
    let relay = Relay::start(Setup { sockets: 3, ..Setup::default() }, target.local_addr().expect("bound"));
    for n in 0..40_u8 {
        let client = client(&relay);
        client.send(&[n]).expect("loopback");
        let (data, session) = take_from(&target);
        assert_eq!(data, [n]);
        target.send_to(&data, session).expect("loopback");
        assert_eq!(take_from(&client).0, [n]);
    }
}

#[test]
fn a_socket_of_systemd_answers_from_the_address_that_the_client_used() {
    let target = socket("127.0.0.1:0");
    let theirs = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let port = theirs.local_addr().expect("bound").port();
    sockets::adopt(&theirs, &theirs.local_addr().expect("bound")).expect("adopted");
    let relay = Relay::with(Setup::default(), vec![theirs], target.local_addr().expect("bound"));
    let client = socket("127.0.0.9:0");
    client.send_to(b"q", ("127.0.0.2", port)).expect("loopback");
    let session = take_from(&target).1;
    target.send_to(b"a", session).expect("loopback");
    assert_eq!(take_from(&client), (b"a".to_vec(), SocketAddr::from(([127, 0, 0, 2], port))));
    drop(relay);
}

#[test]
fn the_rate_of_a_source_holds_across_its_ports() {
    let target = socket("127.0.0.1:0");
    let mut setup = Setup::default();
    setup.config.limits.rate = Some(10);
    let relay = Relay::start(setup, target.local_addr().expect("bound"));
    let begun = Instant::now();
    for client in [client(&relay), client(&relay)] {
        for _ in 0..50 {
            client.send(b"x").expect("loopback");
        }
    }
    let count = || relay.stats.datagrams[Direction::ClientToTarget].get() + relay.stats.datagrams_dropped.get();
    eventually("all seen", || count() == 100);
    let most = 10 + begun.elapsed().as_millis() as u64 / 100 + 1;
    let passed = relay.stats.datagrams[Direction::ClientToTarget].get();
    assert!((10..=most).contains(&passed), "{passed} of 100, at most {most}");
}

#[test]
fn a_denied_client_reaches_no_target() {
    let target = socket("127.0.0.1:0");
    let setup = Setup::default();
    let allowed = setup.allowed.clone();
    allowed.store(false, Ordering::Relaxed);
    let relay = Relay::start(setup, target.local_addr().expect("bound"));
    let client = client(&relay);
    client.send(b"secret").expect("loopback");
    eventually("denied", || relay.stats.closed(CloseReason::Denied).get() == 1);
    eventually("dropped", || relay.stats.datagrams_dropped.get() == 1);
    assert!(silent(&target));
    assert_eq!(relay.stats.accepted.get(), 0);
    allowed.store(true, Ordering::Relaxed);
    client.send(b"hello").expect("loopback");
    assert_eq!(take_from(&target).0, b"hello");
}

#[test]
fn a_wildcard_listener_answers_from_the_address_that_the_client_used() {
    for (listen, hosts) in [("0.0.0.0:0", ["127.0.0.1", "127.0.0.2"]), ("[::]:0", ["::1", "::1"])] {
        let target = socket("127.0.0.1:0");
        let setup = Setup { listen, ..Setup::default() };
        let relay = Relay::start(setup, target.local_addr().expect("bound"));
        let client = socket(listen);
        let mut sessions = Vec::new();
        for host in [hosts[0], hosts[1], hosts[0]] {
            let to = SocketAddr::new(host.parse().expect("an address"), relay.address.port());
            client.send_to(b"?", to).expect("loopback");
            let (_, session) = take_from(&target);
            target.send_to(b"!", session).expect("loopback");
            target.send_to(b"!", session).expect("loopback");
            assert_eq!(take_from(&client).1, to);
            assert_eq!(take_from(&client).1, to);
            sessions.push(session);
        }
        assert_eq!(sessions[0] == sessions[1], hosts[0] == hosts[1]);
        assert_eq!(sessions[0], sessions[2]);
    }
}

#[test]
fn a_session_reaches_a_target_that_refused_at_first() {
    let (relay, target) = start();
    let client = client(&relay);
    let address = target.local_addr().expect("bound");
    client.send(b"one").expect("loopback");
    let session = take_from(&target).1;
    drop(target);
    for n in 1..=5 {
        client.send(b"lost").expect("loopback");
        eventually("refused", || relay.counts.refused.get() >= n);
    }
    let target = socket(&address.to_string());
    client.send(b"two").expect("loopback");
    let (data, from) = take_from(&target);
    assert_eq!((data, from), (b"two".to_vec(), session));
    target.send_to(b"back", from).expect("loopback");
    assert_eq!(take_from(&client).0, b"back");
    assert_eq!((relay.stats.accepted.get(), relay.stats.active.get()), (1, 1));
}

#[test]
fn sessions_go_to_the_new_address_of_a_target() {
    let (relay, old) = start();
    let new = socket("127.0.0.1:0");
    let (before, after) = (client(&relay), client(&relay));
    before.send(b"a").expect("loopback");
    take_from(&old);
    relay.target.set_addresses(vec![StreamAddr::Ip(new.local_addr().expect("bound"))]);
    after.send(b"b").expect("loopback");
    assert_eq!(take_from(&new).0, b"b");
    before.send(b"c").expect("loopback");
    assert_eq!(take_from(&new).0, b"c", "with its next datagram");
    assert_eq!((relay.stats.closed(CloseReason::TargetGone).get(), relay.stats.active.get()), (1, 2));
    let known = vec![old.local_addr().expect("bound"), new.local_addr().expect("bound")];
    relay.target.set_addresses(known.into_iter().map(StreamAddr::Ip).collect());
    before.send(b"d").expect("loopback");
    assert_eq!(take_from(&new).0, b"d", "an address more moves nobody");
    relay.target.set_down(true);
    after.send(b"e").expect("loopback");
    assert_eq!(take_from(&old).0, b"e", "a target that is down ends sessions; it is tried again, as there is no other");
    assert_eq!(relay.stats.closed(CloseReason::TargetGone).get(), 2);
}

#[test]
fn draining_serves_open_sessions_and_ends_at_the_deadline() {
    let (mut relay, target) = start();
    let (known, stranger) = (client(&relay), client(&relay));
    known.send(b"a").expect("loopback");
    take_from(&target);
    let deadline = monotonic_ns() + 700_000_000;
    relay.stop.give(Order::Drain(deadline)).expect("a pipe");
    eventually("the order is given", || relay.stop.order() == Order::Drain(deadline));
    std::thread::sleep(Duration::from_millis(50));
    stranger.send(b"b").expect("loopback");
    known.send(b"c").expect("loopback");
    assert_eq!(take_from(&target).0, b"c");
    relay.finish();
    assert!(monotonic_ns() >= deadline);
    assert_eq!(relay.stats.closed(CloseReason::Drained).get(), 1);
    assert_eq!((relay.stats.accepted.get(), relay.stats.active.get()), (1, 0));
    assert_eq!(relay.stats.datagrams_dropped.get(), 1);
}

#[test]
fn a_worker_that_hands_over_leaves_new_datagrams_to_others() {
    let (relay, target) = start();
    let client = client(&relay);
    client.send(b"a").expect("loopback");
    let (_, session) = take_from(&target);
    relay.stop.give(Order::HandOver(monotonic_ns() + 60_000_000_000)).expect("a pipe");
    // Answers still pass; once one has, the order is obeyed.
    for _ in 0..2 {
        target.send_to(b"b", session).expect("loopback");
        assert_eq!(take_from(&client).0, b"b");
    }
    client.send(b"c").expect("loopback");
    assert!(silent(&target), "the listener's datagrams are another's");
}

#[test]
fn an_idle_worker_that_drains_ends_at_once() {
    let (mut relay, _target) = start();
    relay.stop.give(Order::Drain(u64::MAX)).expect("a pipe");
    relay.finish();
}
