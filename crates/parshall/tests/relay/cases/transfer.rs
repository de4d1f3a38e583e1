//! Bytes arrive as they were sent.
use std::thread::scope;

use crate::bed::Bed;
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Random, Tape, Target, exchange, pause, soon};

pub const TOPIC: Topic = Topic {
    title: "Data transfer",
    by_engine: true,
    cases: &[
        Case { name: "both ways at once, in pieces of random sizes", run: both_ways },
        Case { name: "both ways at once through the smallest copy buffer", run: smallest_buffer },
        Case { name: "single bytes each way", run: single_bytes },
        Case { name: "64 MiB from the client", run: much_up },
        Case { name: "64 MiB from the target", run: much_down },
        Case { name: "small exchanges, streams and small exchanges again", run: changes_of_pace },
        Case { name: "order is kept with the smallest socket buffers", run: small_buffers },
        Case { name: "an urgent byte does not end or hold up the stream", run: urgent },
        Case { name: "urgent bytes within a stream of 8 MiB", run: urgent_in_a_stream },
        Case { name: "data that the client sends before the target accepts arrives", run: eager_client },
        Case { name: "data arrives when the target sends first", run: eager_target },
        Case { name: "the configured engine moves the bytes", run: engine_used },
    ],
};

/// Sends this many bytes each way at once, and then both ends.
fn full_duplex(client: &Conn, server: &Conn, total: usize) {
    scope(|s| {
        for (seed, from, to) in [(1, client, server), (2, server, client)] {
            s.spawn(move || from.send_pieces(&mut Tape::new(seed), total, &mut Random::new(seed)));
            s.spawn(move || to.expect(&mut Tape::new(seed), total));
        }
    });
    client.end();
    server.expect_end();
    server.end();
    client.expect_end();
}

fn both_ways(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    full_duplex(&client, &server, 6 << 20);
}

fn smallest_buffer(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "buffer = 1024");
    let (client, server) = relay.pair(&target);
    full_duplex(&client, &server, 1 << 20);
}

fn single_bytes(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    let mut tape = Tape::new(3);
    for _ in 0..200 {
        exchange(&client, &server, &mut tape, 1);
    }
    let (mut up, mut up_too) = (Tape::new(4), Tape::new(4));
    client.send_tape(&mut up, 5000, 1);
    server.expect(&mut up_too, 5000);
    let (mut down, mut down_too) = (Tape::new(5), Tape::new(5));
    server.send_tape(&mut down, 5000, 1);
    client.expect(&mut down_too, 5000);
}

fn one_way(from: &Conn, to: &Conn, total: usize) {
    scope(|s| {
        s.spawn(|| {
            from.send_tape(&mut Tape::new(6), total, 256 * 1024);
            from.end();
        });
        to.expect(&mut Tape::new(6), total);
        to.expect_end();
    });
}

fn much_up(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    one_way(&client, &server, 64 << 20);
}

fn much_down(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    one_way(&server, &client, 64 << 20);
}

fn changes_of_pace(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    let mut random = Random::new(7);
    let mut tape = Tape::new(8);
    for round in 0..4 {
        for _ in 0..60 {
            exchange(&client, &server, &mut tape, random.within(1, 20_000));
        }
        let (from, to) = if round % 2 == 0 { (&client, &server) } else { (&server, &client) };
        let total = 4 << 20;
        scope(|s| {
            s.spawn(|| from.send_tape(&mut Tape::new(9), total, 1 << 16));
            to.expect(&mut Tape::new(9), total);
        });
    }
}

fn small_buffers(bed: &Bed) {
    let target = Target::narrow(4096);
    let relay = bed.relay(&target, "sockets = { receive-buffer = 4096, send-buffer = 4096 }");
    let client = Conn::narrow_to(&relay.address, 4096);
    let server = target.accept();
    full_duplex(&client, &server, 200_000);
}

/// The urgent byte itself may arrive among the others or not at all, as it may without a relay.
fn urgent(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    for round in 0..4 {
        let (client, server) = relay.pair(&target);
        client.send(b"abc");
        // In one round the relay reads all of it at once, in the other only the urgent byte.
        pause(20 * (round % 2));
        client.0.send_out_of_band(b"!").expect("allowed");
        client.send(b"def");
        if round >= 2 {
            client.end();
        }
        let mut got = Vec::new();
        while !got.ends_with(b"def") {
            got.extend(server.take(1));
        }
        assert!(matches!(&got[..], b"abcdef" | b"abc!def"), "{}", String::from_utf8_lossy(&got));
        server.send(b"back");
        assert_eq!(client.take(4), b"back");
        if round < 2 {
            client.0.send_out_of_band(b"!").expect("allowed");
            client.send(b"on");
            while !got.ends_with(b"on") {
                got.extend(server.take(1));
            }
            client.end();
        }
        let (rest, _) = server.rest();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

fn urgent_in_a_stream(bed: &Bed) {
    const URGENT: u8 = 0xff;
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let (client, server) = relay.pair(&target);
    let (total, piece) = (8 << 20, 100_000);
    scope(|s| {
        s.spawn(|| {
            let mut left = total;
            while left > 0 {
                let n = left.min(piece);
                client.send(&vec![7; n]);
                client.0.send_out_of_band(&[URGENT]).expect("allowed");
                left -= n;
            }
            client.end();
        });
        let (got, _) = server.rest();
        let plain = got.iter().filter(|b| **b == 7).count();
        let urgent = got.iter().filter(|b| **b == URGENT).count();
        assert_eq!(plain, total, "of {} bytes", got.len());
        assert_eq!(plain + urgent, got.len());
    });
}

fn eager_client(bed: &Bed) {
    // The accept queue is full: the relay connects only when the queue has space, about a second later.
    let (target, mut fillers) = Target::unresponsive();
    let relay = bed.relay(&target, "");
    let client = Conn::to(&relay.address);
    client.send_tape(&mut Tape::new(10), 100_000, 10_000);
    client.end();
    pause(100);
    for filler in fillers.drain(..) {
        drop(target.accept());
        drop(filler);
    }
    let server = target.accept();
    server.expect(&mut Tape::new(10), 100_000);
    server.expect_end();
    server.send(b"late");
    server.end();
    assert_eq!(client.take(4), b"late");
    client.expect_end();
}

fn eager_target(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    for _ in 0..20 {
        let (client, server) = relay.pair(&target);
        server.send(b"220 ready");
        assert_eq!(client.take(9), b"220 ready");
        client.send(b"quit");
        assert_eq!(server.take(4), b"quit");
    }
}

/// Each engine has descriptors of its own kind.
fn engine_used(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let idle_pipes = relay.pipes();
    let (client, server) = relay.pair(&target);
    let mut up = Tape::new(11);
    // The target does not read: the stream stalls, and the relay's descriptors can be counted.
    let sent = client.fill(&mut up, 256 << 20);
    let pipes = relay.pipes() - idle_pipes;
    match bed.engine {
        "copy" => assert_eq!(pipes, 0, "pipes of the copy engine"),
        "splice" | "auto" => assert!(pipes > 0, "no pipe"),
        other => panic!("what does {other} need?"),
    }
    server.expect(&mut Tape::new(11), sent);
    drop(client);
    soon("the end", || server.read(&mut [0; 4096]).is_ok_and(|n| n == 0));
}
