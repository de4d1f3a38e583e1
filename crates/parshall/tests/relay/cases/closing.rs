//! Ends of data and resets are passed on, and no data before them is lost.
use std::thread::scope;

use crate::bed::{Bed, Relay};
use crate::matrix::{Case, Topic};
use crate::net::{Conn, End, Tape, Target, pause};

pub const TOPIC: Topic = Topic {
    title: "Half-close and reset",
    by_engine: true,
    cases: &[
        Case { name: "the client half-closes, the reply comes 300 ms later", run: client_half_closes },
        Case { name: "the target half-closes, the client sends 300 ms later", run: target_half_closes },
        Case { name: "both half-close with data in flight", run: both_half_close },
        Case { name: "a connection without data is closed on both sides", run: no_byte },
        Case { name: "the end of data reaches a slow reader", run: end_behind_a_full_buffer },
        Case { name: "a reset by the client reaches the target", run: client_resets },
        Case { name: "a reset by the target reaches the client", run: target_resets },
        Case { name: "a reset by the client in the middle of a stream reaches the target", run: client_resets_stream },
        Case { name: "a reset by the target in the middle of a stream reaches the client", run: target_resets_stream },
        Case {
            name: "data that the target sent before its reset reaches the client, then the reset",
            run: last_words_down,
        },
        Case {
            name: "data that the client sent before its reset reaches the target, then the reset",
            run: last_words_up,
        },
        Case { name: "data that the target sent before its reset reaches a slow client", run: last_words_held },
        Case { name: "a client that resets while such data waits for it is closed at once", run: last_words_refused },
        Case { name: "a reset after a half-close reaches the side that half-closed", run: reset_after_half_close },
        Case { name: "a reset by the side that half-closed reaches the other one", run: half_closed_side_resets },
        Case { name: "the target closes with data unread: its reply arrives, then the end or a reset", run: unread },
        Case {
            name: "the client closes with data unread: the target gets the end or a reset",
            run: client_leaves_unread,
        },
        Case { name: "both sides reset at once", run: both_reset },
    ],
};

const MIB: usize = 1 << 20;

fn bed(bed: &Bed) -> (Target, Relay, Conn, Conn) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    (target, relay, client, server)
}

fn reply_late(first: &Conn, second: &Conn) {
    first.send_tape(&mut Tape::new(1), 1000, 1000);
    first.end();
    second.expect(&mut Tape::new(1), 1000);
    second.expect_end();
    pause(300);
    scope(|s| {
        s.spawn(|| {
            second.send_tape(&mut Tape::new(2), MIB, 50_000);
            second.end();
        });
        first.expect(&mut Tape::new(2), MIB);
    });
    first.expect_end();
}

fn client_half_closes(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    reply_late(&client, &server);
    relay.settles_to(before - 2);
}

fn target_half_closes(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    reply_late(&server, &client);
    relay.settles_to(before - 2);
}

fn both_half_close(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    scope(|s| {
        for (seed, from, to) in [(1, &client, &server), (2, &server, &client)] {
            s.spawn(move || {
                from.send_tape(&mut Tape::new(seed), MIB, 100_000);
                from.end();
            });
            s.spawn(move || {
                to.expect(&mut Tape::new(seed), MIB);
                to.expect_end();
            });
        }
    });
    relay.settles_to(before - 2);
}

fn no_byte(b: &Bed) {
    let (target, relay, client, server) = bed(b);
    let before = relay.sockets();
    drop(client);
    server.expect_end();
    drop(server);
    relay.settles_to(before - 2);
    let (client, server) = relay.pair(&target);
    drop(server);
    client.expect_end();
}

fn end_behind_a_full_buffer(b: &Bed) {
    let target = Target::narrow(16 * 1024);
    let relay = b.relay(&target, "");
    let (client, server) = relay.pair(&target);
    let mut tape = Tape::new(3);
    let sent = client.fill(&mut tape, 128 * MIB);
    drop(client);
    pause(100);
    server.expect(&mut Tape::new(3), sent);
    server.expect_end();
}

fn client_resets(b: &Bed) {
    let (target, relay, client, server) = bed(b);
    let before = relay.sockets();
    client.reset();
    server.expect_reset();
    // The reset may come before the relay knows that its connection to the target is established.
    for _ in 0..200 {
        let (client, server) = relay.pair(&target);
        client.reset();
        server.expect_reset();
    }
    relay.settles_to(before - 2);
}

fn target_resets(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    server.reset();
    client.expect_reset();
    relay.settles_to(before - 2);
}

/// One side resets while both stream; the other reads until it gets the end or an error.
fn reset_stream(first: Conn, second: &Conn) {
    scope(|s| {
        let sends = s.spawn(|| while second.try_send(&[1; 10_000]).is_ok() {});
        s.spawn(move || {
            for _ in 0..40 {
                first.send(&[2; 10_000]);
                first.take(1000);
            }
            first.reset();
        });
        // The write may get the error of the reset instead of the read.
        let mut buffer = vec![0; 65536];
        let end = loop {
            match second.read(&mut buffer) {
                Ok(0) => break Ok(()),
                Ok(_) => {}
                Err(e) => break Err(e.kind()),
            }
        };
        sends.join().unwrap();
        assert!(!matches!(end, Err(std::io::ErrorKind::WouldBlock)), "neither an end nor a reset arrived");
    });
}

fn client_resets_stream(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    reset_stream(client, &server);
    drop(server);
    relay.settles_to(before - 2);
}

fn target_resets_stream(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    reset_stream(server, &client);
    drop(client);
    relay.settles_to(before - 2);
}

/// All that was acknowledged arrives, and then the reset.
fn last_words(from: Conn, to: &Conn) {
    from.send_tape(&mut Tape::new(4), 200_000, 200_000);
    from.flushed();
    from.reset();
    to.expect(&mut Tape::new(4), 200_000);
    to.expect_reset();
}

fn last_words_down(b: &Bed) {
    let (_target, _relay, client, server) = bed(b);
    last_words(server, &client);
}

fn last_words_up(b: &Bed) {
    let (_target, _relay, client, server) = bed(b);
    last_words(client, &server);
}

fn last_words_held(b: &Bed) {
    let target = Target::new();
    let relay = b.relay(&target, "");
    let before = relay.sockets();
    let client = Conn::narrow_to(&relay.address, 8 * 1024);
    let server = target.accept();
    // More than the client's receive buffer, so that it waits in the relay or in its sockets.
    let sent = 1_000_000;
    server.send_tape(&mut Tape::new(5), sent, 100_000);
    server.flushed();
    server.reset();
    pause(200);
    client.expect(&mut Tape::new(5), sent);
    client.expect_reset();
    relay.settles_to(before);
}

fn last_words_refused(b: &Bed) {
    let target = Target::new();
    let relay = b.relay(&target, "timeouts = { linger = \"60s\" }");
    let before = relay.sockets();
    let client = Conn::narrow_to(&relay.address, 8 * 1024);
    let server = target.accept();
    server.send_tape(&mut Tape::new(6), 100_000, 100_000);
    server.flushed();
    server.reset();
    pause(100);
    client.reset();
    relay.settles_to(before);
}

fn reset_after_half_close(b: &Bed) {
    for by_client in [true, false] {
        let (_target, relay, client, server) = bed(b);
        let before = relay.sockets();
        let (ended, resets) = if by_client { (client, server) } else { (server, client) };
        ended.end();
        resets.expect_end();
        resets.send(b"some");
        assert_eq!(ended.take(4), b"some");
        resets.reset();
        ended.expect_reset();
        relay.settles_to(before - 2);
    }
}

fn half_closed_side_resets(b: &Bed) {
    for by_client in [true, false] {
        for after_ms in [0, 100] {
            let (_target, relay, client, server) = bed(b);
            let before = relay.sockets();
            client.send(b"request");
            assert_eq!(server.take(7), b"request");
            server.send(b"part");
            assert_eq!(client.take(4), b"part");
            let (resets, other) = if by_client { (client, server) } else { (server, client) };
            resets.end();
            other.expect_end();
            pause(after_ms);
            resets.reset();
            other.expect_reset_after_end();
            relay.settles_to(before - 2);
        }
    }
}

fn unread(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    client.send(&[1; 1000]);
    pause(50);
    server.send(b"no");
    server.flushed();
    drop(server);
    let (bytes, _end) = client.rest();
    assert_eq!(bytes, b"no");
    drop(client);
    relay.settles_to(before - 2);
}

fn client_leaves_unread(b: &Bed) {
    let (_target, relay, client, server) = bed(b);
    let before = relay.sockets();
    server.send(&[1; 100_000]);
    pause(50);
    drop(client);
    // The target gets an error from a read or a write.
    let (bytes, end) = server.rest();
    assert!(bytes.is_empty());
    if end == End::Data {
        while server.try_send(&[1; 100_000]).is_ok() {}
    }
    drop(server);
    relay.settles_to(before - 2);
}

fn both_reset(b: &Bed) {
    let target = Target::new();
    let relay = b.relay(&target, "");
    let before = relay.sockets();
    for round in 0..50 {
        let (client, server) = relay.pair(&target);
        if round % 2 == 0 {
            client.send(&[1; 5000]);
            server.send(&[1; 5000]);
        }
        client.reset();
        server.reset();
    }
    relay.settles_to(before);
    let (client, server) = relay.pair(&target);
    client.send(b"well");
    assert_eq!(server.take(4), b"well");
}
