//! A reader that does not read delays no other connection and takes a bounded amount of memory.
use std::thread::scope;

use crate::bed::Bed;
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange, pause};

pub const TOPIC: Topic = Topic {
    title: "Readers that stop reading",
    by_engine: true,
    cases: &[
        Case {
            name: "a client that does not read takes bounded memory and delays no other connection",
            run: client_never_reads,
        },
        Case {
            name: "a target that does not read takes bounded memory and delays no other connection",
            run: target_never_reads,
        },
        Case { name: "a slow reader gets everything", run: slow_reader },
        Case { name: "one direction is stalled, the other one moves data", run: one_direction_stands },
        Case { name: "both directions are stalled, and each continues when it is read", run: both_directions_stalled },
        Case { name: "forty stalled streams, and each continues when it is read", run: forty_stalled },
        Case { name: "stalled streams that are closed or reset leave no descriptor", run: abandoned },
    ],
};

/// The most memory of the relay that one stalled connection takes.
const BOUND_KIB: u64 = 8 * 1024;

fn stalls(bed: &Bed, client_reads: bool) {
    let target = if client_reads { Target::narrow(16 * 1024) } else { Target::new() };
    let relay = bed.relay(&target, "");
    let (other_client, other_server) = relay.pair(&target);
    exchange(&other_client, &other_server, &mut Tape::new(1), 20_000);
    let before = relay.resident_kib();
    let client = Conn::narrow_to(&relay.address, 16 * 1024);
    let server = target.accept();
    let (sender, reader) = if client_reads { (&client, &server) } else { (&server, &client) };
    let mut tape = Tape::new(2);
    let sent = sender.fill(&mut tape, 128 << 20);
    assert!(sent < 128 << 20, "it takes all that is sent although the peer does not read");
    let grown = relay.resident_kib().saturating_sub(before);
    assert!(grown < BOUND_KIB, "{grown} KiB more after {sent} bytes that the peer does not read");
    let mut exchanges = Tape::new(3);
    for _ in 0..50 {
        exchange(&other_client, &other_server, &mut exchanges, 5000);
    }
    let (new_client, new_server) = relay.pair(&target);
    exchange(&new_client, &new_server, &mut Tape::new(4), 5000);
    reader.expect(&mut Tape::new(2), sent);
}

fn client_never_reads(bed: &Bed) {
    stalls(bed, false);
}

fn target_never_reads(bed: &Bed) {
    stalls(bed, true);
}

fn slow_reader(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let client = Conn::narrow_to(&relay.address, 16 * 1024);
    let server = target.accept();
    let total = 2 << 20;
    scope(|s| {
        s.spawn(|| {
            server.send_tape(&mut Tape::new(5), total, 300_000);
            server.end();
        });
        let mut tape = Tape::new(5);
        for _ in 0..total / 32_768 {
            client.expect_by(&mut tape, 32_768, 3000);
            pause(2);
        }
        client.expect_end();
    });
}

fn one_direction_stands(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let client = Conn::narrow_to(&relay.address, 16 * 1024);
    let server = target.accept();
    let mut down = Tape::new(6);
    let sent = server.fill(&mut down, 128 << 20);
    scope(|s| {
        s.spawn(|| client.send_tape(&mut Tape::new(7), 4 << 20, 100_000));
        server.expect(&mut Tape::new(7), 4 << 20);
    });
    client.expect(&mut Tape::new(6), sent);
}

fn both_directions_stalled(bed: &Bed) {
    let target = Target::narrow(16 * 1024);
    let relay = bed.relay(&target, "");
    let client = Conn::narrow_to(&relay.address, 16 * 1024);
    let server = target.accept();
    let down = server.fill(&mut Tape::new(8), 128 << 20);
    let up = client.fill(&mut Tape::new(9), 128 << 20);
    assert!(down.max(up) < 128 << 20, "it takes all that is sent although the peer does not read");
    server.expect(&mut Tape::new(9), up);
    client.expect(&mut Tape::new(8), down);
}

/// Small buffers on all sockets, so that a stream stalls after few bytes.
const NARROW: &str = "sockets = { receive-buffer = 16384, send-buffer = 16384 }";

fn stalled(bed: &Bed) -> (Target, crate::bed::Relay, Vec<(Conn, Conn, usize)>, usize) {
    let target = Target::narrow(16 * 1024);
    let relay = bed.relay(&target, NARROW);
    let sockets = relay.sockets();
    let pairs: Vec<(Conn, Conn)> =
        (0..40).map(|_| (Conn::narrow_to(&relay.address, 16 * 1024), target.accept())).collect();
    let filled = scope(|s| {
        let threads: Vec<_> = pairs
            .into_iter()
            .enumerate()
            .map(|(i, (client, server))| {
                s.spawn(move || {
                    let from = if i % 2 == 0 { &client } else { &server };
                    let sent = from.fill(&mut Tape::new(i as u64), 16 << 20);
                    assert!(sent < 16 << 20, "it takes all");
                    (client, server, sent)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    (target, relay, filled, sockets)
}

fn forty_stalled(bed: &Bed) {
    let (target, relay, filled, _) = stalled(bed);
    let client = Conn::to(&relay.address);
    let server = target.accept();
    scope(|s| {
        s.spawn(|| client.send_tape(&mut Tape::new(77), 1 << 20, 100_000));
        server.expect(&mut Tape::new(77), 1 << 20);
    });
    scope(|s| {
        for (i, (client, server, sent)) in filled.into_iter().enumerate() {
            s.spawn(move || {
                let (from, to) = if i % 2 == 0 { (client, server) } else { (server, client) };
                to.expect(&mut Tape::new(i as u64), sent);
                drop(from);
                to.expect_end();
            });
        }
    });
}

fn abandoned(bed: &Bed) {
    let (_target, relay, filled, sockets) = stalled(bed);
    for (i, (client, server, _)) in filled.into_iter().enumerate() {
        match i % 4 {
            0 => client.reset(),
            1 => server.reset(),
            2 => drop(client),
            _ => drop(server),
        }
    }
    relay.settles_to(sockets);
    // A thread keeps a bounded number of pipes for further streams.
    assert!(relay.pipes() <= 2 * 2 * 16, "{} ends of pipes are left", relay.pipes());
}
