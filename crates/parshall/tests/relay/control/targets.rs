//! Balancing across all threads, and reports of targets that cannot be reached.
use std::net::UdpSocket;
use std::process::Command;

use super::kit::{Client, Relay, Service, exchange, listener, until, unused_address};
use crate::common::{PARSHALL, finish};

/// The column ERRORS of `relay top`.
fn errors(relay: &Relay, name: &str) -> String {
    let done = finish(Command::new(PARSHALL).args(["relay", "top", "--control"]).arg(relay.control()));
    let row = done.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{done:?}"));
    row.split_whitespace().last().unwrap().to_owned()
}

#[test]
fn round_robin_alternates_across_threads() {
    let (one, two) = (Service::start("one"), Service::start("two"));
    let listen = unused_address();
    let config = listener("a", listen, &[one.address, two.address]);
    let relay = Relay::start(&config);
    let mut names: Vec<String> = (0..12).map(|_| exchange(listen).unwrap()).collect();
    relay.reload(&format!("{config}timeouts = {{ idle = \"50s\" }}\n"));
    names.extend((0..12).map(|_| exchange(listen).unwrap()));
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}

#[test]
fn least_connections_counts_those_of_all_threads() {
    let (one, two) = (Service::start("one"), Service::start("two"));
    let listen = unused_address();
    let config = |targets: &[_]| listener("a", listen, targets) + "balance = \"least-connections\"\n";
    let relay = Relay::start(&config(&[one.address]));
    let ask = |client: &mut Client| client.ask("hello").unwrap();
    let mut open: Vec<Client> = (0..6).map(|_| Client::connect(listen).unwrap()).collect();
    assert!(open.iter_mut().all(|client| ask(client) == "one"));
    // The open connections of a target are still counted after a reload.
    relay.reload(&config(&[one.address, two.address]));
    for n in 0..6 {
        let mut client = Client::connect(listen).unwrap();
        assert_eq!(ask(&mut client), "two", "{n}");
        open.push(client);
    }
}

#[test]
fn a_dead_target_is_reported_once_with_the_reason_and_once_when_it_is_back() {
    let (dead, listen) = (unused_address(), unused_address());
    let relay = Relay::start(&listener("web", listen, &[dead]));
    let down = format!("relay: web: the target {dead} is down: Connection refused");
    for n in 1..=6 {
        assert!(exchange(listen).is_err());
        relay.wait_for(&down, 1);
        assert_eq!(relay.count("is down"), 1, "connection {n}:\n{}", relay.stderr());
    }
    assert_eq!(errors(&relay, "web"), "6", "one for each connection");
    let top = finish(Command::new(PARSHALL).args(["relay", "top", "--control"]).arg(relay.control()));
    assert!(top.stdout.contains(&format!("DOWN: {dead} (Connection refused")), "{top:?}");
    let service = Service::at("back", dead);
    assert_eq!(exchange(listen).unwrap(), "back");
    relay.wait_for(&format!("the target {dead} is up again after"), 1);
    assert!(relay.stderr().contains("in which 6 attempts failed"), "{}", relay.stderr());
    assert_eq!((exchange(listen).unwrap().as_str(), relay.count("is up")), ("back", 1));
    drop(service);
    assert!(exchange(listen).is_err());
    relay.wait_for(&down, 2);
}

#[test]
fn a_dead_udp_target_is_reported_too() {
    let (dead, listen) = (unused_address(), unused_address());
    let relay = Relay::start(&(listener("dns", listen, &[dead]) + "protocol = \"udp\"\n"));
    let client = UdpSocket::bind((listen.ip(), 0)).unwrap();
    client.connect(listen).unwrap();
    until("it is reported", || {
        client.send(b"?").unwrap();
        relay.count(&format!("relay: dns: the target {dead} is down: ")) == 1
    });
    let target = UdpSocket::bind(dead).unwrap();
    target.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    until("it is back", || {
        client.send(b"?").unwrap();
        let mut received = [0; 8];
        if let Ok((n, session)) = target.recv_from(&mut received) {
            target.send_to(&received[..n], session).unwrap();
        }
        relay.count(&format!("the target {dead} is up again")) == 1
    });
    assert_eq!(relay.count("is down"), 1, "{}", relay.stderr());
}
