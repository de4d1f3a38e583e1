//! SIGHUP: a reload closes no connection, also if the file is invalid.
use super::kit::{Client, Load, Relay, Service, exchange, get, listener, until, unused_address, value};

#[test]
fn twenty_reloads_under_load_lose_no_connection() {
    let (one, two) = (Service::start("one"), Service::start("two"));
    let (kept, removed, added, metrics) = (unused_address(), unused_address(), unused_address(), unused_address());
    let head = format!("metrics = \"{metrics}\"\n");
    let with = |target: &Service, other: &str| format!("{head}{}{other}", listener("kept", kept, &[target.address]));
    let relay = Relay::start(&with(&one, &listener("removed", removed, &[one.address])));
    let mut long = Client::connect(kept).unwrap();
    assert_eq!(long.ask("first").unwrap(), "one");
    assert_eq!(exchange(removed).unwrap(), "one");
    let load = Load::start(kept, 3);
    let (mut accepted, mut closed) = (0.0, 0.0);
    for round in 0..20 {
        load.run(20);
        let target = if round % 2 == 0 { &two } else { &one };
        let other = if round % 4 < 2 { listener("added", added, &[two.address]) } else { String::new() };
        relay.reload(&with(target, &other));
        assert_eq!(exchange(kept).unwrap(), if round % 2 == 0 { "two" } else { "one" }, "round {round}");
        assert_eq!(long.ask("again").unwrap(), "one", "a connection stays with its target");
        let text = get(metrics, "/metrics").unwrap().1;
        let now = value(&text, &["accepted_total", "\"kept\""]);
        let ended = value(&text, &["closed_total", "\"kept\"", "finished"]);
        assert!(now > accepted && ended >= closed, "counters go backwards in round {round}: {now}, {ended}");
        (accepted, closed) = (now, ended);
    }
    let (done, failures) = load.end();
    assert!(failures.is_empty(), "{} of {done} failed: {:?}", failures.len(), failures.first());
    long.finish().unwrap();
    assert!(exchange(removed).is_err(), "a removed listener is closed");
    let text = get(metrics, "/metrics").unwrap().1;
    assert_eq!(value(&text, &["reloads_total"]), 20.0);
    assert!(value(&text, &["accepted_total", "\"removed\""]) >= 1.0, "its counters stay");
    assert!(value(&text, &["accepted_total", "\"kept\""]) > done as f64);
}

#[test]
fn an_added_listener_serves_and_a_removed_one_finishes() {
    let service = Service::start("s");
    let (first, second) = (unused_address(), unused_address());
    let relay = Relay::start(&listener("a", first, &[service.address]));
    let mut old = Client::connect(first).unwrap();
    assert_eq!(old.ask("x").unwrap(), "s");
    relay.reload(&listener("b", second, &[service.address]));
    assert_eq!(exchange(second).unwrap(), "s");
    until("the removed listener closes", || exchange(first).is_err());
    assert_eq!(old.ask("y").unwrap(), "s", "its connections go on");
    old.finish().unwrap();
    relay.reload(&listener("a", first, &[service.address]));
    assert_eq!(exchange(first).unwrap(), "s", "the listener is added again");
}

#[test]
fn connections_of_a_removed_listener_are_closed_at_the_drain_timeout() {
    let service = Service::start("s");
    let (first, second) = (unused_address(), unused_address());
    let relay = Relay::start(&listener("a", first, &[service.address]));
    let mut old = Client::connect(first).unwrap();
    assert_eq!(old.ask("x").unwrap(), "s");
    relay.reload(&format!("drain = \"100ms\"\n{}", listener("b", second, &[service.address])));
    assert!(old.is_closed());
    assert_eq!(exchange(second).unwrap(), "s");
}

#[test]
fn connections_of_a_kept_listener_stay_open_after_the_drain_timeout() {
    let service = Service::start("s");
    let listen = unused_address();
    let config = format!("drain = \"50ms\"\n{}", listener("a", listen, &[service.address]));
    let relay = Relay::start(&config);
    let mut old = Client::connect(listen).unwrap();
    assert_eq!(old.ask("x").unwrap(), "s");
    // The drain timeout of each reload is over before the next.
    for _ in 0..4 {
        relay.reload(&config);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(old.ask("y").unwrap(), "s");
}

#[test]
fn a_listener_that_cannot_become_mptcp_is_reported_and_serves() {
    if !std::fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|enabled| enabled.trim() == "1") {
        return parshall_testkit::skip("a reload that asks for MPTCP", "needs net.mptcp.enabled = 1");
    }
    let service = Service::start("s");
    let listen = unused_address();
    let plain = listener("a", listen, &[service.address]);
    let relay = Relay::start(&plain);
    let mptcp = format!("{plain}sockets = {{ mptcp = true }}\n");
    relay.reload(&mptcp);
    assert_eq!(relay.count("a: `sockets.mptcp` stays as it was for clients"), 1, "{}", relay.stderr());
    assert_eq!(exchange(listen).unwrap(), "s");
    relay.reload(&mptcp);
    relay.reload(&plain);
    assert_eq!(relay.count("sockets.mptcp"), 1, "no change to report:\n{}", relay.stderr());
}

#[test]
fn an_invalid_file_is_refused_with_the_position_and_the_old_one_stays() {
    let service = Service::start("s");
    let listen = unused_address();
    let good = listener("a", listen, &[service.address]);
    let relay = Relay::start(&good);
    for broken in ["[[listener]]\nlisten = 5 5\n", "", "[[listener]]\ntarget = \"127.0.0.1:1\"\n"] {
        let before = relay.count("not reloaded");
        relay.write(broken);
        relay.signal("HUP");
        relay.wait_for("not reloaded", before + 1);
        assert_eq!(exchange(listen).unwrap(), "s");
    }
    assert!(
        relay.stderr().lines().any(|l| l.contains("relay.toml:1:") || l.contains("relay.toml:4:")),
        "{}",
        relay.stderr()
    );
    relay.reload(&good);
    assert_eq!(exchange(listen).unwrap(), "s");
}

#[test]
fn a_port_in_use_refuses_the_whole_reload() {
    let service = Service::start("s");
    let (listen, other) = (unused_address(), unused_address());
    let relay = Relay::start(&listener("a", listen, &[service.address]));
    let both = [listener("b", other, &[service.address]), listener("c", service.address, &[listen])].concat();
    relay.write(&both);
    relay.signal("HUP");
    relay.wait_for("not reloaded", 1);
    assert!(relay.stderr().contains(&format!("cannot listen on {}", service.address)), "{}", relay.stderr());
    assert_eq!(exchange(listen).unwrap(), "s");
    assert!(exchange(other).is_err(), "the configuration was refused as a whole");
}
