//! SIGTERM and SIGINT: open connections may finish within the drain timeout.
use std::time::{Duration, Instant};

use super::kit::{Client, Load, Relay, Service, TIMEOUT, exchange, get, listener, until, unused_address};

#[test]
fn open_connections_finish_and_no_new_one_begins() {
    for signal in ["TERM", "INT"] {
        let service = Service::start("s");
        let (listen, metrics) = (unused_address(), unused_address());
        let config = format!("metrics = \"{metrics}\"\n{}", listener("a", listen, &[service.address]));
        let mut relay = Relay::start(&config);
        let mut open = Client::connect(listen).unwrap();
        assert_eq!(open.ask("x").unwrap(), "s");
        assert_eq!(get(metrics, "/healthz").unwrap().0, 200);
        relay.signal(signal);
        relay.wait_for("draining: 1 connection may finish", 1);
        until("the listener closes", || exchange(listen).is_err());
        assert_eq!(get(metrics, "/healthz").unwrap().0, 503, "a load balancer in front sends nothing more");
        assert_eq!(open.ask("y").unwrap(), "s");
        assert!(!relay.has_ended());
        open.finish().unwrap();
        assert_eq!(relay.end(), Some(0));
        assert!(relay.stderr().ends_with("relay: drained"), "{}", relay.stderr());
    }
}

#[test]
fn connections_are_closed_at_the_drain_timeout() {
    let service = Service::start("s");
    let listen = unused_address();
    let mut relay = Relay::start(&format!("drain = \"300ms\"\n{}", listener("a", listen, &[service.address])));
    let mut open = Client::connect(listen).unwrap();
    assert_eq!(open.ask("x").unwrap(), "s");
    relay.signal("TERM");
    assert!(open.is_closed());
    assert_eq!(relay.end(), Some(0));
    assert!(relay.stderr().contains("1 connection was closed at the timeout"), "{}", relay.stderr());
}

#[test]
fn a_second_signal_closes_connections_at_once() {
    let service = Service::start("s");
    let listen = unused_address();
    let mut relay = Relay::start(&format!("drain = \"3600s\"\n{}", listener("a", listen, &[service.address])));
    let mut open = Client::connect(listen).unwrap();
    assert_eq!(open.ask("x").unwrap(), "s");
    relay.signal("TERM");
    relay.wait_for("draining", 1);
    let since = Instant::now();
    relay.signal("INT");
    assert!(open.is_closed());
    assert_eq!(relay.end(), Some(0));
    assert!(since.elapsed() < TIMEOUT, "it waited for the drain timeout");
}

#[test]
fn draining_under_load_serves_all_accepted_connections() {
    let service = Service::start("s");
    let listen = unused_address();
    let mut relay = Relay::start(&listener("a", listen, &[service.address]));
    let load = Load::start(listen, 3);
    load.run(50);
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0));
    std::thread::sleep(Duration::from_millis(50));
    let (_, failures) = load.end();
    // Connections that were not accepted when the port was closed are reset; accepted ones get their answers.
    let unanswered: Vec<_> = failures.iter().filter(|f| f.contains("to \"hello\"")).collect();
    assert!(unanswered.is_empty(), "{unanswered:?}");
    assert!(relay.stderr().ends_with("relay: drained"), "{}", relay.stderr());
}
