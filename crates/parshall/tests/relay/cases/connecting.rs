//! Targets that cannot be reached, or not any more.
use std::time::Duration;

use crate::bed::{Bed, Plan};
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange, pause};

pub const TOPIC: Topic = Topic {
    title: "Targets that cannot be reached",
    by_engine: false,
    cases: &[
        Case { name: "refused: the client's connection is closed", run: refused },
        Case { name: "no answer: the client's connection is closed at the connect timeout", run: no_answer },
        Case { name: "the first of two targets refuses, the second serves", run: second_serves },
        Case { name: "the first of two targets does not answer, the second serves", run: second_after_timeout },
        Case { name: "all targets refuse: the client's connection is closed", run: all_refuse },
        Case { name: "a target that goes down ends its connections, and another serves", run: goes_down },
        Case { name: "a target that is up again serves", run: comes_back },
        Case { name: "a client that resets while the target is connected to is closed at once", run: client_gone },
    ],
};

/// A connect timeout so long that it does not end a connection in these tests.
const LATE: &str = "timeouts = { connect = \"60s\" }";

fn refused(bed: &Bed) {
    let (_held, address) = Target::refusing();
    let relay = bed.start(Plan { targets: vec![address], keys: LATE.to_owned(), ..Plan::default() });
    let before = relay.sockets();
    for early in [false, true] {
        let client = Conn::to(&relay.address);
        if early {
            // The connection may be reset already.
            let _ = client.try_send(b"hello");
        }
        client.expect_gone();
    }
    relay.settles_to(before);
}

fn no_answer(bed: &Bed) {
    let (target, _fillers) = Target::unresponsive();
    let relay = bed.relay(&target, "timeouts = { connect = \"600ms\" }");
    let before = relay.sockets();
    let client = Conn::to(&relay.address);
    client.expect_silence(Duration::from_millis(300));
    client.expect_gone();
    relay.settles_to(before);
}

fn two(bed: &Bed, first: &str, second: &Target, keys: &str) -> crate::bed::Relay {
    let targets = vec![first.to_owned(), second.address.clone()];
    bed.start(Plan { targets, keys: keys.to_owned(), ..Plan::default() })
}

fn second_serves(bed: &Bed) {
    let ((_held, down), up) = (Target::refusing(), Target::new());
    let relay = two(bed, &down, &up, LATE);
    for round in 0..6 {
        let (client, server) = relay.pair(&up);
        exchange(&client, &server, &mut Tape::new(round), 1000);
    }
}

fn second_after_timeout(bed: &Bed) {
    let ((silent, _fillers), up) = (Target::unresponsive(), Target::new());
    let relay = two(bed, &silent.address, &up, "timeouts = { connect = \"300ms\" }");
    for round in 0..3 {
        let client = Conn::to(&relay.address);
        client.send(b"early");
        let server = up.accept();
        assert_eq!(server.take(5), b"early");
        exchange(&client, &server, &mut Tape::new(round), 1000);
    }
}

fn all_refuse(bed: &Bed) {
    let ((_a, first), (_b, second)) = (Target::refusing(), Target::refusing());
    let relay = bed.start(Plan { targets: vec![first, second], keys: LATE.to_owned(), ..Plan::default() });
    let before = relay.sockets();
    Conn::to(&relay.address).expect_gone();
    relay.settles_to(before);
}

fn goes_down(bed: &Bed) {
    let (first, second) = (Target::new(), Target::new());
    let relay = two(bed, &first.address, &second, LATE);
    let (mut of_first, mut of_second) = (Vec::new(), Vec::new());
    while of_first.is_empty() || of_second.is_empty() {
        let client = Conn::to(&relay.address);
        let server = loop {
            let brief = Duration::from_millis(20);
            if let Some(server) = first.try_accept(brief) {
                break (&mut of_first, server);
            }
            if let Some(server) = second.try_accept(brief) {
                break (&mut of_second, server);
            }
        };
        server.0.push((client, server.1));
        assert!(of_first.len() + of_second.len() < 100, "only one of two targets is used");
    }
    drop(first);
    for (client, server) in of_first {
        server.reset();
        client.expect_reset();
    }
    for (client, server) in &of_second {
        exchange(client, server, &mut Tape::new(1), 1000);
    }
    for round in 0..6 {
        let (client, server) = relay.pair(&second);
        exchange(&client, &server, &mut Tape::new(round), 1000);
    }
}

fn comes_back(bed: &Bed) {
    let target = Target::new();
    let address = target.address.clone();
    let relay = bed.relay(&target, LATE);
    let (client, server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(1), 1000);
    server.reset();
    client.expect_reset();
    drop(target);
    Conn::to(&relay.address).expect_gone();
    let target = Target::at(&address, None, 16);
    let (client, server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(2), 1000);
}

fn client_gone(bed: &Bed) {
    let (target, _fillers) = Target::unresponsive();
    let relay = bed.relay(&target, LATE);
    let before = relay.sockets();
    for early in [false, true] {
        let client = Conn::to(&relay.address);
        if early {
            client.send(b"hello");
        }
        pause(50);
        client.reset();
    }
    relay.settles_to(before);
}
