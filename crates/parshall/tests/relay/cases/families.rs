//! Address families other than IPv4.
use std::net::TcpListener;

use crate::bed::{Bed, Plan};
use crate::common::skip;
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange};

pub const TOPIC: Topic = Topic {
    title: "IPv6 and Unix sockets",
    by_engine: false,
    cases: &[
        Case { name: "IPv6 on both sides", run: ipv6 },
        Case { name: "Unix sockets on both sides", run: unix },
        Case { name: "from TCP to a Unix socket", run: tcp_to_unix },
        Case { name: "from a Unix socket to TCP", run: unix_to_tcp },
        Case { name: "the Unix socket of a killed relay is replaced", run: left_behind },
        Case { name: "an abstract Unix socket as the target", run: abstract_target },
    ],
};

/// Exchanges, a stream each way, and ends.
fn serves(client: Conn, server: Conn) {
    let mut tape = Tape::new(1);
    for len in [1, 100, 10_000] {
        exchange(&client, &server, &mut tape, len);
    }
    std::thread::scope(|s| {
        for (from, to) in [(&client, &server), (&server, &client)] {
            s.spawn(|| from.send_tape(&mut Tape::new(2), 4 << 20, 100_000));
            s.spawn(|| to.expect(&mut Tape::new(2), 4 << 20));
        }
    });
    client.end();
    server.expect_end();
    server.send(b"late");
    assert_eq!(client.take(4), b"late");
    drop(server);
    client.expect_gone();
}

fn between(bed: &Bed, listen: &str, target: &Target) {
    let plan = Plan { listen: listen.to_owned(), targets: vec![target.address.clone()], ..Plan::default() };
    let relay = bed.start(plan);
    let before = relay.sockets();
    for _ in 0..3 {
        let (client, server) = relay.pair(target);
        serves(client, server);
    }
    relay.settles_to(before);
}

fn ipv6(bed: &Bed) {
    let Ok(probe) = TcpListener::bind("[::1]:0") else {
        return skip("relay conformance over IPv6", "this host has no ::1");
    };
    drop(probe);
    let port = crate::bed::unused_address().rsplit_once(':').expect("a port").1.to_owned();
    let target = Target::at("[::1]:0", None, 16);
    between(bed, &format!("[::1]:{port}"), &target);
}

fn socket(bed: &Bed, name: &str) -> String {
    format!("unix:{}", bed.scratch.file(name).display())
}

fn unix(bed: &Bed) {
    let target = Target::at(&socket(bed, "target.sock"), None, 16);
    between(bed, &socket(bed, "relay.sock"), &target);
}

fn tcp_to_unix(bed: &Bed) {
    let target = Target::at(&socket(bed, "target.sock"), None, 16);
    between(bed, "", &target);
}

fn unix_to_tcp(bed: &Bed) {
    between(bed, &socket(bed, "relay.sock"), &Target::new());
}

fn left_behind(bed: &Bed) {
    let (target, listen) = (Target::new(), socket(bed, "relay.sock"));
    let plan = || Plan { listen: listen.clone(), targets: vec![target.address.clone()], ..Plan::default() };
    drop(bed.start(plan()));
    let path = bed.scratch.file("relay.sock");
    assert!(std::fs::exists(&path).unwrap(), "it was killed");
    let relay = bed.start(plan());
    let (client, server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(1), 100);
    // The socket of a running relay is not replaced.
    assert!(bed.try_start(plan()).is_err(), "two relays on one socket");
    exchange(&client, &server, &mut Tape::new(2), 100);
    relay.pair(&target);
}

fn abstract_target(bed: &Bed) {
    let name = format!("it-{}-{}", std::process::id(), bed.scratch.file("x").display()).replace('/', "-");
    let target = Target::at(&format!("unix:@{name}"), None, 16);
    between(bed, "", &target);
}
