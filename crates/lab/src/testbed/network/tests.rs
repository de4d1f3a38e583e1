//! Impairments as receivers see them, and the removal of everything.
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use parshall_core::testbed::is_lost;

use super::*;
use crate::interrupt::Interrupt;

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

/// Two namespaces and a link with these impairments.
fn network(impairments: &str) -> Option<Network> {
    if !parshall_testkit::root("testbeds of the lab") {
        return None;
    }
    let text = format!(
        "seed = 7\n[[namespace]]\nname = \"a\"\n[[namespace]]\nname = \"b\"\n[[link]]\n\
         a = {{ namespace = \"a\", device = \"eth0\", address = \"{A}/24\" }}\n\
         b = {{ namespace = \"b\", device = \"eth0\", address = \"{B}/24\" }}\n{impairments}\n"
    );
    let testbed: Testbed = text.parse().expect("it is correct");
    Some(Network::make(&testbed).expect("root may"))
}

/// Connected sockets in both namespaces.
fn sockets(network: &Network) -> [UdpSocket; 2] {
    let bind = |index: usize, address: &str| {
        let made = network.namespaces[index].run(|| UdpSocket::bind((address, 0))).expect("its address");
        made.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        made
    };
    let [a, b] = [bind(0, A), bind(1, B)];
    a.connect(b.local_addr().expect("bound")).expect("neighbours");
    b.connect(a.local_addr().expect("bound")).expect("neighbours");
    [a, b]
}

/// IP packets that the calling thread's namespace received.
fn packets_received() -> u64 {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("the counters");
    let mut ip = snmp.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let at = ip.next().expect("names").split(' ').position(|name| name == "InReceives").expect("its name");
    ip.next().expect("values").split(' ').nth(at).expect("its value").parse().expect("a number")
}

#[test]
fn one_per_cent_of_the_packets_are_lost_and_known_before() {
    const SENT: u64 = 60_000;
    let Some(network) = network("impair_a = { loss = \"1%\", drop = [2, \"5-7\"] }") else { return };
    let [a, _b] = sockets(&network);
    for number in 1..=SENT {
        a.send(b"x").expect("the link is up");
        if number % 64 == 0 {
            std::thread::yield_now();
        }
    }
    let impairment = &network.testbed.links[0].impairments[0];
    let expected = (1..=SENT).filter(|&number| is_lost(impairment, direction_seed(7, 0, 0), number)).count() as u64;
    let counts = network.counts(0, 0).expect("read").expect("impaired");
    assert_eq!((counts.packets, counts.lost), (SENT, expected));
    let arrived = network.namespaces[1].run(|| Ok(packets_received())).expect("read");
    assert_eq!(arrived, SENT - expected, "at the receiver");
    let share = (expected - 4) as f64 / SENT as f64;
    assert!((share - 0.01).abs() < 0.001, "{share}");
    assert!(network.counts(0, 1).expect("read").is_none());
    network.restart().expect("a map");
    assert_eq!(network.counts(0, 0).expect("read").expect("impaired").packets, 0);
}

#[test]
fn the_program_and_the_delay_line_lose_the_same_packets() {
    const SENT: u64 = 2000;
    let lost = |extra: &str| {
        let network = network(&format!("impair_a = {{ loss = \"5%\"{extra} }}"))?;
        let [a, b] = sockets(&network);
        b.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let impairment = &network.testbed.links[0].impairments[0];
        let passes = |number: &u64| !is_lost(impairment, direction_seed(7, 0, 0), *number);
        let mut buffer = [0; 8];
        // Few at a time, so that the receiver's buffer holds them however late it reads.
        for first in (1..=SENT).step_by(100) {
            for number in first..first + 100 {
                a.send(&number.to_ne_bytes()).expect("the link is up");
            }
            let expected: Vec<u64> = (first..first + 100).filter(passes).collect();
            let mut arrived: Vec<u64> = Vec::new();
            while arrived.len() < expected.len() {
                b.recv(&mut buffer).expect("it arrives");
                arrived.push(u64::from_ne_bytes(buffer));
            }
            arrived.sort_unstable();
            assert_eq!(arrived, expected, "{extra}");
        }
        b.set_nonblocking(true).expect("a socket");
        assert!(b.recv(&mut buffer).is_err(), "nothing else arrives");
        Some(())
    };
    if lost("").is_some() {
        lost(", delay = \"1ms\"");
    }
}

#[test]
fn a_delay_each_way_is_twice_that_in_a_round_trip() {
    let Some(network) = network("impair = { delay = \"10ms\" }") else { return };
    let [a, b] = sockets(&network);
    let mut round_trips: Vec<f64> = (0..30)
        .map(|_| {
            let begin = Instant::now();
            a.send(b"ping").expect("the link is up");
            b.recv(&mut [0; 8]).expect("it arrives");
            b.send(b"pong").expect("the link is up");
            a.recv(&mut [0; 8]).expect("it arrives");
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    round_trips.sort_by(f64::total_cmp);
    eprintln!("round trips of 20 ms: p50 {:.2} ms, p90 {:.2} ms", round_trips[15], round_trips[27]);
    // Never earlier; how much later depends on what else runs on this host.
    assert!(round_trips[0] >= 20.0, "{round_trips:?}");
    assert!(network.delay_line_cpu_s().expect("a delay line") > 0.0);
}

/// Repeats a check until it succeeds: on a busy host packets come late or find no room, and that is refused as well.
fn settled<T>(mut check: impl FnMut() -> Result<T, String>) -> T {
    let give_up = Instant::now() + Duration::from_secs(120);
    loop {
        match check() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < give_up && is_late_or_lost(&error), "{error}"),
        }
    }
}

fn is_late_or_lost(error: &str) -> bool {
    error.contains(": packets take ") || error.contains(" probes were lost, and ")
}

#[test]
fn an_emulator_that_does_something_else_is_refused() {
    let interrupt = Interrupt::register().expect("signals");
    let check = |network: &Network| crate::testbed::check(network, &interrupt);
    for impairments in ["impair = { loss = \"2%\" }", "impair_b = { delay = \"30ms\", loss = \"2%\" }"] {
        let Some(mut network) = network(impairments) else { return };
        let lines = settled(|| check(&network).map_err(|error| error.to_string()));
        assert!(lines.iter().all(|line| line.contains("probes lost, as computed")), "{lines:?}");
        // The file says something else than was made.
        network.testbed.seed += 1;
        settled(|| match check(&network) {
            Ok(_) => panic!("other packets are lost"),
            Err(error) if error.to_string().contains("probes were lost, and") => Ok(()),
            Err(error) => Err(error.to_string()),
        });
        network.testbed.seed -= 1;
        // A busy host does not delay most of them by as much.
        network.testbed.links[0].impairments[1].delay_ns += 300_000_000;
        settled(|| match check(&network) {
            Ok(lines) => panic!("packets come too early: {lines:?}"),
            Err(error) if error.to_string().starts_with("b → a: packets take ") => Ok(()),
            Err(error) => Err(error.to_string()),
        });
    }
}

#[test]
fn a_rate_is_what_fits_through() {
    let Some(network) = network("impair_a = { rate = \"20Mbit/s\" }") else { return };
    let [a, b] = sockets(&network);
    let begin = Instant::now();
    // 150 packets of 1500 bytes: the last leaves after 90 ms.
    for _ in 0..150 {
        a.send(&[0; 1472]).expect("the link is up");
    }
    // A busy host may lose some on the way to the emulator.
    b.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let arrivals = (0..150).map_while(|_| b.recv(&mut [0; 2048]).ok().map(|_| begin.elapsed()));
    let (n, last) = arrivals.fold((0, Duration::ZERO), |(n, _), at| (n + 1, at));
    assert!(n > 50 && last >= Duration::from_micros(600) * n - Duration::from_millis(1), "{n} packets in {last:?}");
}

#[test]
fn namespaces_have_their_own_sysctls() {
    let Some(network) = network("") else { return };
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_sack");
    let outside = read().expect("the host's");
    network.namespaces[0].run(|| netns::set_sysctl("net.ipv4.tcp_sack", "0")).expect("set");
    assert_eq!(network.namespaces[0].run(read).expect("the first").trim(), "0");
    assert_eq!(network.namespaces[1].run(read).expect("the second").trim(), "1");
    assert_eq!(read().expect("the host's"), outside);
}

#[test]
fn a_removed_network_leaves_no_names() {
    let Some(network) = network("impair = { delay = \"5ms\" }") else { return };
    let paths: Vec<_> = network.namespaces.iter().map(|each| Path::new(netns::DIR).join(each.name())).collect();
    assert!(paths.iter().all(|path| path.exists()));
    drop(network);
    assert!(!paths.iter().any(|path| path.exists()));
}
