//! Signals: draining and reloads.
use std::time::Duration;

use crate::bed::{Bed, Plan, Relay};
use crate::common::skip;
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange, pause, soon};

pub const TOPIC: Topic = Topic {
    title: "Signals",
    by_engine: false,
    cases: &[
        Case { name: "SIGTERM: no new connections, open ones finish, then the relay exits with 0", run: drains },
        Case { name: "SIGTERM: clients in the accept queue are served", run: queue_is_served },
        Case { name: "SIGTERM without a connection: the relay exits at once", run: nothing_to_drain },
        Case { name: "SIGTERM: connections are closed at the drain timeout", run: drain_is_bounded },
        Case { name: "a second SIGTERM closes the connections at once", run: second_signal },
        Case { name: "SIGHUP: new connections use the new target, open ones keep theirs", run: new_target },
        Case { name: "SIGHUP: connections of a removed listener finish", run: listener_removed },
        Case { name: "repeated SIGHUP loses no connection", run: many_reloads },
        Case { name: "SIGHUP with an error in the file changes nothing", run: reload_with_errors },
    ],
};

const SIGHUP: u32 = 1;

fn drains(bed: &Bed) {
    let target = Target::new();
    let mut relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    let (other, other_server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(1), 1000);
    relay.signal("-TERM");
    soon("it does not listen any more", || relay.listeners() == 0);
    assert!(Conn::try_to(&relay.address).is_err(), "a new connection while it drains");
    std::thread::scope(|s| {
        s.spawn(|| {
            client.send_tape(&mut Tape::new(2), 4 << 20, 100_000);
            client.end();
        });
        server.expect(&mut Tape::new(2), 4 << 20);
        server.expect_end();
    });
    assert!(relay.ended().is_none(), "it ended with connections open");
    server.send(b"late");
    drop(server);
    assert_eq!(client.take(4), b"late");
    client.expect_gone();
    exchange(&other, &other_server, &mut Tape::new(3), 1000);
    drop((other, other_server));
    assert_eq!(relay.wait_for_end().code(), Some(0), "{}", relay.stderr());
}

fn queue_is_served(bed: &Bed) {
    let target = Target::new();
    target.echo();
    let mut relay = bed.relay(&target, "");
    // A stopped relay accepts no connections; the kernel queues them.
    relay.signal("-STOP");
    let clients: Vec<Conn> = (0..300).map(|_| Conn::to(&relay.address)).collect();
    relay.signal("-TERM");
    relay.signal("-CONT");
    for (seed, client) in clients.iter().enumerate() {
        client.send(&Tape::new(seed as u64).next(100));
        client.expect(&mut Tape::new(seed as u64), 100);
    }
    drop(clients);
    assert_eq!(relay.wait_for_end().code(), Some(0), "{}", relay.stderr());
}

fn nothing_to_drain(bed: &Bed) {
    let target = Target::new();
    for used in [false, true] {
        let mut relay = bed.relay(&target, "");
        if used {
            let (client, server) = relay.pair(&target);
            exchange(&client, &server, &mut Tape::new(1), 1000);
        }
        relay.signal("-TERM");
        assert_eq!(relay.wait_for_end().code(), Some(0), "{}", relay.stderr());
    }
}

fn drain_is_bounded(bed: &Bed) {
    let target = Target::new();
    let global = "drain = \"400ms\"".to_owned();
    let mut relay = bed.start(Plan { global, targets: vec![target.address.clone()], ..Plan::default() });
    let (client, server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(1), 1000);
    relay.signal("-TERM");
    client.expect_gone();
    server.expect_gone();
    assert_eq!(relay.wait_for_end().code(), Some(0), "{}", relay.stderr());
}

fn second_signal(bed: &Bed) {
    let target = Target::new();
    let mut relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(1), 1000);
    relay.signal("-TERM");
    client.expect_silence(Duration::from_millis(300));
    relay.signal("-TERM");
    client.expect_gone();
    server.expect_gone();
    relay.wait_for_end();
}

/// Whether the relay handles SIGHUP; if not, the case is reported as skipped.
fn reloads(relay: &Relay, bed: &Bed) -> bool {
    let does = relay.catches(SIGHUP);
    if !does {
        skip(&format!("reload of the relay with the engine {}", bed.engine), "it has no handler for SIGHUP");
    }
    does
}

fn rewrite(bed: &Bed, relay: &Relay, plan: Plan, address: &str) {
    std::fs::write(&relay.file, bed.text(&plan, address)).expect("a file in /tmp");
    relay.signal("-HUP");
}

fn to(target: &Target) -> Plan {
    Plan { targets: vec![target.address.clone()], ..Plan::default() }
}

fn new_target(bed: &Bed) {
    let (old, new) = (Target::new(), Target::new());
    let relay = bed.start(to(&old));
    if !reloads(&relay, bed) {
        return;
    }
    let (client, server) = relay.pair(&old);
    rewrite(bed, &relay, to(&new), &relay.address);
    let mut served = None;
    soon("new connections go to the new target", || {
        let client = Conn::to(&relay.address);
        served = new.try_accept(Duration::from_millis(100)).map(|server| (client, server));
        served.is_some()
    });
    let (new_client, new_server) = served.unwrap();
    exchange(&new_client, &new_server, &mut Tape::new(1), 1000);
    exchange(&client, &server, &mut Tape::new(2), 1000);
    server.end();
    client.expect_end();
}

fn listener_removed(bed: &Bed) {
    let target = Target::new();
    let mut relay = bed.start(to(&target));
    if !reloads(&relay, bed) {
        return;
    }
    let (client, server) = relay.pair(&target);
    let (elsewhere, before) = (crate::bed::unused_address(), relay.address.clone());
    rewrite(bed, &relay, to(&target), &elsewhere);
    relay.address = elsewhere;
    soon("it listens on the new address", || relay.listeners() > 0 && Conn::try_to(&before).is_err());
    exchange(&client, &server, &mut Tape::new(1), 30_000);
    client.end();
    server.expect_end();
    server.send(b"late");
    assert_eq!(client.take(4), b"late");
    // Connections of the checks above may be in the target's queue.
    let (new_client, mut new_server) = relay.pair(&target);
    new_client.send(b"new");
    while new_server.read(&mut [0; 3]).unwrap_or(0) == 0 {
        new_server = target.accept();
    }
}

fn many_reloads(bed: &Bed) {
    let target = Target::new();
    target.echo();
    let relay = bed.start(to(&target));
    if !reloads(&relay, bed) {
        return;
    }
    let (before, other) = (relay.sockets(), relay.descriptors().len() - relay.sockets());
    let kept = Conn::to(&relay.address);
    let mut tape = Tape::new(1);
    for round in 0..60 {
        if round % 3 == 0 {
            rewrite(bed, &relay, to(&target), &relay.address);
        }
        for client in [&Conn::to(&relay.address), &kept] {
            let mut back = tape.clone();
            client.send(&tape.next(500));
            client.expect(&mut back, 500);
        }
    }
    drop(kept);
    relay.settles_to(before);
    let now = relay.descriptors().len() - relay.sockets();
    // Two ends of each pipe that a thread keeps.
    assert!(now <= other + 2 * 2 * 16, "{other} other descriptors before, {now} after");
}

fn reload_with_errors(bed: &Bed) {
    let target = Target::new();
    let mut relay = bed.start(to(&target));
    if !reloads(&relay, bed) {
        return;
    }
    let (client, server) = relay.pair(&target);
    std::fs::write(&relay.file, "[[listener]]\nlisten = \"nonsense\"\n").expect("a file in /tmp");
    relay.signal("-HUP");
    pause(200);
    assert!(relay.ended().is_none(), "it ended: {}", relay.stderr());
    exchange(&client, &server, &mut Tape::new(1), 1000);
    let (client, server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(2), 1000);
}
