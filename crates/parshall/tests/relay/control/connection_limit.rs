//! `max-connections` is one limit for the process, however the kernel distributes connections to threads, and `max-sessions`
//! another one.
use std::net::UdpSocket;
use std::time::Duration;

use super::kit::{Client, Relay, Service, get, listener, until, unused_address, value};

#[test]
fn a_thread_with_more_than_its_share_serves_all_of_them() {
    let service = Service::start("s");
    // The kernel distributes eight clients to two threads; they hardly get four each in every round.
    for _ in 0..12 {
        let listen = unused_address();
        let relay = Relay::start(&format!("max-connections = 8\n{}", listener("a", listen, &[service.address])));
        let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(listen).unwrap()).collect();
        for client in &mut clients {
            assert_eq!(client.ask("x").unwrap(), "s");
        }
        // Further clients wait, on either thread, until connections end.
        let mut more: Vec<Client> = (0..4).map(|_| Client::connect(listen).unwrap()).collect();
        clients.drain(..4).for_each(|c| c.finish().unwrap());
        for client in &mut more {
            assert_eq!(client.ask("y").unwrap(), "s");
        }
        drop(relay);
    }
}

#[test]
fn a_flood_of_datagrams_neither_stops_connections_nor_new_sessions() {
    let service = Service::start("s");
    let echo = UdpSocket::bind(unused_address()).unwrap();
    let target = echo.local_addr().unwrap();
    let (tcp, udp, metrics) = (unused_address(), unused_address(), unused_address());
    let datagrams = listener("u", udp, &[target]) + "protocol = \"udp\"\n";
    let head = format!("max-connections = 8\nmax-sessions = 20\nmetrics = \"{metrics}\"\n");
    let relay = Relay::start(&format!("{head}{}{datagrams}", listener("t", tcp, &[service.address])));
    // One datagram each, as from forged sources, which nobody answers.
    for _ in 0..200 {
        UdpSocket::bind((udp.ip(), 0)).unwrap().send_to(b"x", udp).unwrap();
    }
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(tcp).unwrap()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("x").unwrap(), "s");
    }
    echo.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let new = UdpSocket::bind((udp.ip(), 0)).unwrap();
    let mut piece = [0; 8];
    until("a new client is served", || {
        new.send_to(b"new", udp).unwrap();
        (0..300).map_while(|_| echo.recv(&mut piece).ok()).any(|bytes| bytes == 3)
    });
    let text = get(metrics, "/metrics").unwrap().1;
    assert!(value(&text, &["active{", "\"u\""]) <= 20.0, "{text}");
    assert!(value(&text, &["closed_total", "\"u\"", "evicted"]) > 0.0, "{text}");
    assert_eq!(relay.count("20 sessions are open, as many as max-sessions"), 1, "reported once: {}", relay.stderr());
}

#[test]
fn a_limit_that_makes_clients_wait_is_reported_once() {
    let service = Service::start("s");
    let listen = unused_address();
    let config = listener("a", listen, &[service.address]) + "limits = { connections = 1 }\n";
    let relay = Relay::start(&config);
    let mut first = Client::connect(listen).unwrap();
    assert_eq!(first.ask("x").unwrap(), "s");
    let mut waiting = Client::connect(listen).unwrap();
    relay.wait_for("a: 1 connections are open, as many as limits.connections allows", 1);
    first.finish().unwrap();
    assert_eq!(waiting.ask("y").unwrap(), "s");
    waiting.finish().unwrap();
    assert_eq!(relay.count("connections are open"), 1, "{}", relay.stderr());
}
