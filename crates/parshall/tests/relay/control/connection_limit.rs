//! `max-connections` is one limit for the process, however the kernel distributes connections to threads.
use std::net::UdpSocket;
use std::time::Duration;

use super::kit::{Client, Relay, Service, listener, unused_address};

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
fn sessions_count_with_connections() {
    let service = Service::start("s");
    let echo = UdpSocket::bind(unused_address()).unwrap();
    let target = echo.local_addr().unwrap();
    let (tcp, udp) = (unused_address(), unused_address());
    let datagrams = listener("u", udp, &[target]) + "protocol = \"udp\"\n";
    let relay = Relay::start(&format!("max-connections = 2\n{}{datagrams}", listener("t", tcp, &[service.address])));
    let mut first = Client::connect(tcp).unwrap();
    assert_eq!(first.ask("x").unwrap(), "s");
    let clients = [(); 2].map(|()| UdpSocket::bind((udp.ip(), 0)).unwrap());
    echo.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut piece = [0; 8];
    clients[0].send_to(b"one", udp).unwrap();
    assert_eq!(echo.recv(&mut piece).unwrap(), 3);
    clients[1].send_to(b"no", udp).unwrap();
    assert!(echo.recv(&mut piece).is_err(), "the limit on sessions is reached");
    first.finish().unwrap();
    super::kit::until("a session is admitted once the connection has ended", || {
        clients[1].send_to(b"now", udp).unwrap();
        echo.recv(&mut piece).is_ok()
    });
    drop(relay);
}
