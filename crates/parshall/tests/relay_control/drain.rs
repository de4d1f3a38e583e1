//! SIGTERM and SIGINT: open connections may finish within the drain timeout.
use std::time::{Duration, Instant};

use crate::kit::{Client, Load, Relay, Service, TIMEOUT, address, exchange, get, listener, until};

#[test]
fn open_connections_finish_and_no_new_one_begins() {
    for signal in ["TERM", "INT"] {
        let service = Service::start("s");
        let (place, metrics) = (address(), address());
        let config = format!("metrics = \"{metrics}\"\n{}", listener("a", place, &[service.address]));
        let mut relay = Relay::start(&config);
        let mut open = Client::connect(place).unwrap();
        assert_eq!(open.ask("x").unwrap(), "s");
        assert_eq!(get(metrics, "/healthz").unwrap().0, 200);
        relay.signal(signal);
        relay.wait_for("draining: 1 connection may finish", 1);
        until("the listener closes", || exchange(place).is_err());
        assert_eq!(get(metrics, "/healthz").unwrap().0, 503, "a load balancer in front sends nothing more");
        assert_eq!(open.ask("y").unwrap(), "s");
        assert!(!relay.has_ended());
        open.finish().unwrap();
        assert_eq!(relay.end(), Some(0));
        assert!(relay.said().ends_with("relay: drained"), "{}", relay.said());
    }
}

#[test]
fn connections_are_closed_at_the_drain_timeout() {
    let service = Service::start("s");
    let place = address();
    let mut relay = Relay::start(&format!("drain = \"300ms\"\n{}", listener("a", place, &[service.address])));
    let mut open = Client::connect(place).unwrap();
    assert_eq!(open.ask("x").unwrap(), "s");
    relay.signal("TERM");
    assert!(open.is_closed());
    assert_eq!(relay.end(), Some(0));
    assert!(relay.said().contains("1 connection was closed at the timeout"), "{}", relay.said());
}

#[test]
fn a_second_signal_closes_connections_at_once() {
    let service = Service::start("s");
    let place = address();
    let mut relay = Relay::start(&format!("drain = \"3600s\"\n{}", listener("a", place, &[service.address])));
    let mut open = Client::connect(place).unwrap();
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
    let place = address();
    let mut relay = Relay::start(&listener("a", place, &[service.address]));
    let load = Load::start(place, 3);
    load.run(50);
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0));
    std::thread::sleep(Duration::from_millis(50));
    let (_, failures) = load.end();
    // Connections that were not accepted when the port was closed are reset; accepted ones get their answers.
    let unanswered: Vec<_> = failures.iter().filter(|f| f.contains("to \"hello\"")).collect();
    assert!(unanswered.is_empty(), "{unanswered:?}");
    assert!(relay.said().ends_with("relay: drained"), "{}", relay.said());
}
