//! /metrics and /healthz, also with hostile clients.
use std::io::{Read, Write};
use std::net::TcpStream;

use super::kit::{Client, Relay, Service, TIMEOUT, exchange, get, listener, until, unused_address, value};

#[test]
fn connections_and_bytes_are_counted() {
    let service = Service::start("s");
    let (listen, metrics) = (unused_address(), unused_address());
    let config = format!("metrics = \"{metrics}\"\n{}", listener("web", listen, &[service.address]));
    let relay = Relay::start(&config);
    for _ in 0..5 {
        exchange(listen).unwrap();
    }
    let mut open = Client::connect(listen).unwrap();
    open.ask("x").unwrap();
    // A client may have its answer before the relay has counted it.
    let mut text = String::new();
    until("five have ended, and all bytes are counted", || {
        text = get(metrics, "/metrics").unwrap().1;
        value(&text, &["closed_total", "web", "\"finished\""]) == 5.0
            && value(&text, &["bytes_total", "web", "down", "copy"]) >= 5.0 * 8.0 + 4.0
    });
    assert!(text.ends_with("# EOF\n"), "{text}");
    for (series, expected) in [
        (&["accepted_total", "web"][..], 6.0),
        (&["relay_active", "web"], 1.0),
        (&["bytes_total", "web", "up", "copy"], 5.0 * 6.0 + 2.0),
        (&["bytes_total", "web", "down", "copy"], 5.0 * 8.0 + 4.0),
        (&["dial_failures_total", "web"], 0.0),
        (&["target_up", "web"], 1.0),
        (&["draining"], 0.0),
    ] {
        assert_eq!(value(&text, series), expected, "{series:?}\n{text}");
    }
    assert!(value(&text, &["resident_bytes"]) > 1e6 && value(&text, &["relay_fds "]) > 5.0, "{text}");
    assert_eq!(get(metrics, "/healthz").unwrap(), (200, "ok\n".to_owned()));
    assert_eq!(get(metrics, "/other").unwrap().0, 404);
    assert!(!relay.stderr().contains("panicked"));
}

/// Sends bytes and reads until the end.
fn abuse(metrics: std::net::SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect_timeout(&metrics, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The server may close the connection during the write.
    stream.write_all(bytes).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn hostile_clients_are_closed_and_do_not_affect_others() {
    let service = Service::start("s");
    let (listen, metrics) = (unused_address(), unused_address());
    let config = format!("metrics = \"{metrics}\"\n{}", listener("web", listen, &[service.address]));
    let mut relay = Relay::start(&config);
    // More silent connections than are served at a time.
    let silent: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(metrics).unwrap()).collect();
    assert_eq!(exchange(listen).unwrap(), "s", "the relay still forwards");
    until("a request is answered again", || get(metrics, "/healthz").is_ok_and(|(status, _)| status == 200));
    for mut stream in silent {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut rest = Vec::new();
        assert!(
            !matches!(stream.read_to_end(&mut rest), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock),
            "left open"
        );
    }
    let endless = [b"GET /metrics HTTP/1.1\r\n".to_vec(), b"X: y\r\n".repeat(100_000)].concat();
    assert!(!abuse(metrics, &endless).contains("200 OK"));
    assert!(!abuse(metrics, &[0xff; 4096]).contains("200 OK"));
    assert!(!abuse(metrics, b"GET /metrics HTTP/1.1\r\nHost:").contains("200 OK"), "half a head");
    assert!(abuse(metrics, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").contains("405"));
    assert_eq!(get(metrics, "/healthz").unwrap().0, 200);
    assert_eq!(exchange(listen).unwrap(), "s");
    assert!(!relay.has_ended());
}

#[test]
fn a_reload_can_change_the_address_and_is_refused_if_it_is_in_use() {
    let service = Service::start("s");
    let (listen, first, second) = (unused_address(), unused_address(), unused_address());
    let with = |metrics| format!("metrics = \"{metrics}\"\n{}", listener("a", listen, &[service.address]));
    let relay = Relay::start(&with(first));
    relay.reload(&with(second));
    assert_eq!(get(second, "/healthz").unwrap().0, 200);
    until("the old one closes", || get(first, "/healthz").is_err());
    relay.write(&with(service.address));
    relay.signal("HUP");
    relay.wait_for("not reloaded", 1);
    assert_eq!(get(second, "/healthz").unwrap().0, 200);
}

#[test]
fn connections_from_outside_proxy_from_are_counted() {
    let (service, listen, metrics) = (Service::start("s"), unused_address(), unused_address());
    let keys = "proxy-in = true\nproxy-from = [\"192.0.2.0/24\"]\n";
    let relay = Relay::start(&format!("metrics = \"{metrics}\"\n{}{keys}", listener("p", listen, &[service.address])));
    for _ in 0..3 {
        assert!(Client::connect(listen).unwrap().is_closed());
    }
    let closed = || value(&get(metrics, "/metrics").unwrap().1, &["closed_total", "\"p\"", "untrusted-proxy"]);
    until("they are counted", || closed() == 3.0);
    drop(relay);
}
