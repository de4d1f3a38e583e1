//! Timeouts end waiting, and progress restarts them.
use std::time::Duration;

use crate::bed::{Bed, Relay};
use crate::matrix::{Case, Topic};
use crate::net::{Conn, End, Tape, Target, exchange, pause};

pub const TOPIC: Topic = Topic {
    title: "Timeouts",
    by_engine: true,
    cases: &[
        Case { name: "an idle connection is closed on both sides", run: idle },
        Case { name: "traffic in one direction keeps a connection from being idle", run: not_idle },
        Case { name: "a half-closed connection without progress is closed on both sides", run: linger },
        Case { name: "progress keeps a half-closed connection open", run: linger_with_progress },
        Case {
            name: "a client that does not read is reset at the linger timeout after the target's reset",
            run: linger_of_a_reset,
        },
        Case { name: "a stalled stream is closed at the idle timeout", run: stalled_is_idle },
    ],
};

fn pair(bed: &Bed, timeouts: &str) -> (Target, Relay, Conn, Conn) {
    let target = Target::new();
    let relay = bed.relay(&target, &format!("timeouts = {{ {timeouts} }}"));
    let (client, server) = relay.pair(&target);
    (target, relay, client, server)
}

fn idle(bed: &Bed) {
    let (target, relay, client, server) = pair(bed, "idle = \"500ms\"");
    let before = relay.sockets() - 2;
    exchange(&client, &server, &mut Tape::new(1), 1000);
    client.expect_gone();
    server.expect_gone();
    relay.settles_to(before);
    let (client, server) = relay.pair(&target);
    server.expect_gone();
    client.expect_gone();
    relay.settles_to(before);
}

fn not_idle(bed: &Bed) {
    let (_target, _relay, client, server) = pair(bed, "idle = \"900ms\"");
    for _ in 0..12 {
        pause(150);
        server.send(b"x");
        assert_eq!(client.take(1), b"x");
    }
    exchange(&client, &server, &mut Tape::new(2), 1000);
}

fn linger(bed: &Bed) {
    for by_client in [true, false] {
        let (_target, relay, client, server) = pair(bed, "linger = \"400ms\"");
        let before = relay.sockets() - 2;
        exchange(&client, &server, &mut Tape::new(1), 1000);
        let (ends, silent) = if by_client { (client, server) } else { (server, client) };
        ends.end();
        ends.expect_gone();
        let (bytes, _) = silent.rest();
        assert!(bytes.is_empty());
        relay.settles_to(before);
    }
}

fn linger_with_progress(bed: &Bed) {
    let (_target, _relay, client, server) = pair(bed, "linger = \"900ms\"");
    client.end();
    server.expect_end();
    for _ in 0..12 {
        pause(150);
        server.send(b"x");
        assert_eq!(client.take(1), b"x");
    }
    server.end();
    let (bytes, end) = client.rest();
    assert!(bytes.is_empty() && end == End::Data);
}

fn linger_of_a_reset(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "timeouts = { linger = \"400ms\" }\nsockets = { send-buffer = 65536 }");
    let before = relay.sockets();
    let client = Conn::narrow_to(&relay.address, 8 * 1024);
    let server = target.accept();
    server.send_tape(&mut Tape::new(3), 50_000, 50_000);
    server.flushed();
    server.reset();
    // The linger timeout drops what the client has not read; what it has received is right.
    relay.settles_to(before);
    let (bytes, end) = client.rest();
    assert!(Tape::new(3).is(&bytes) && bytes.len() < 50_000 && end == End::Reset, "{} bytes, {end:?}", bytes.len());
}

fn stalled_is_idle(bed: &Bed) {
    let target = Target::new();
    let small = "sockets = { receive-buffer = 16384, send-buffer = 16384 }";
    let relay = bed.relay(&target, &format!("timeouts = {{ idle = \"600ms\" }}\n{small}"));
    let before = relay.sockets();
    let client = Conn::narrow_to(&relay.address, 16 * 1024);
    let server = target.accept();
    server.fill(&mut Tape::new(4), 1 << 20);
    relay.settles_to(before);
    server.0.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    while server.try_send(&[0; 4096]).is_ok() {}
    drop(client);
}
