//! Access lists and limits.
use std::time::{Duration, Instant};

use crate::bed::Bed;
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange, pause};

pub const TOPIC: Topic = Topic {
    title: "Access and limits",
    by_engine: false,
    cases: &[
        Case { name: "a denied client is closed without a connection to the target", run: denied },
        Case { name: "an allow list admits only its networks", run: allowed },
        Case { name: "at the limit of connections, clients wait until one ends", run: connections },
        Case { name: "at the limit of connections, every thread accepts again", run: connections_over_threads },
        Case { name: "clients that wait at the limit are served after a reload too", run: connections_and_reload },
        Case {
            name: "over the limit of a source, its connection is closed and those of other sources are not",
            run: per_source,
        },
        Case { name: "a source that was at its limit may connect again", run: per_source_again },
        Case { name: "new connections over the rate limit are closed", run: rate },
        Case { name: "a connection stays within its bandwidth and loses nothing", run: bandwidth },
        Case {
            name: "a connection stays within its bandwidth when its reader is slow",
            run: bandwidth_of_a_slow_reader,
        },
        Case { name: "the end of data arrives on a connection that has used up its bandwidth", run: bandwidth_end },
    ],
};

const BRIEF: Duration = Duration::from_millis(150);

fn denied(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "deny = [\"127.0.0.9/32\", \"127.0.8.0/24\"]");
    let before = relay.sockets();
    for source in ["127.0.0.9", "127.0.8.77"] {
        let client = Conn::from_to(source, &relay.address);
        let _ = client.try_send(b"let me in");
        client.expect_gone();
        assert!(target.gets_none(BRIEF), "the target was connected to for {source}");
    }
    relay.settles_to(before);
    let client = Conn::from_to("127.0.0.8", &relay.address);
    exchange(&client, &target.accept(), &mut Tape::new(1), 1000);
}

fn allowed(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "allow = [\"127.0.0.9/32\"]");
    Conn::from_to("127.0.0.8", &relay.address).expect_gone();
    assert!(target.gets_none(BRIEF), "the target was connected to");
    let client = Conn::from_to("127.0.0.9", &relay.address);
    exchange(&client, &target.accept(), &mut Tape::new(1), 1000);
}

fn connections(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { connections = 2 }");
    let first = relay.pair(&target);
    let second = relay.pair(&target);
    let third = Conn::to(&relay.address);
    third.send(b"me too");
    assert!(target.gets_none(Duration::from_millis(300)), "a third connection in spite of the limit");
    exchange(&first.0, &first.1, &mut Tape::new(1), 1000);
    drop(first);
    let server = target.accept();
    assert_eq!(server.take(6), b"me too");
    exchange(&second.0, &second.1, &mut Tape::new(1), 1000);
}

/// A thread that stopped accepting at the limit must continue when a connection of another thread ends.
fn connections_over_threads(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { connections = 1 }");
    let mut current = relay.pair(&target);
    for round in 0..24 {
        let next = Conn::to(&relay.address);
        // Long enough for its thread to reach the limit.
        pause(10);
        drop(current);
        let server = target.accept();
        exchange(&next, &server, &mut Tape::new(round), 100);
        current = (next, server);
    }
}

fn connections_and_reload(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { connections = 1 }");
    if !relay.catches(1) {
        return crate::common::skip("reload of the relay at its limit", "it has no handler for SIGHUP");
    }
    for round in 0..6 {
        let current = relay.pair(&target);
        let next = Conn::to(&relay.address);
        pause(20);
        relay.signal("-HUP");
        pause(50);
        assert!(target.gets_none(Duration::from_millis(20)), "a second connection in spite of the limit");
        drop(current);
        exchange(&next, &target.accept(), &mut Tape::new(round), 100);
    }
}

fn per_source(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { per-source = 2 }");
    let pair = |source: &str| (Conn::from_to(source, &relay.address), target.accept());
    let kept = [pair("127.0.0.8"), pair("127.0.0.8")];
    let third = Conn::from_to("127.0.0.8", &relay.address);
    third.expect_gone();
    assert!(target.gets_none(BRIEF), "a third connection in spite of the limit");
    let other = pair("127.0.0.9");
    for (client, server) in kept.iter().chain([&other]) {
        exchange(client, server, &mut Tape::new(1), 1000);
    }
}

fn per_source_again(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { per-source = 1 }");
    for round in 0..10 {
        let (client, server) = relay.pair(&target);
        Conn::to(&relay.address).expect_gone();
        exchange(&client, &server, &mut Tape::new(round), 100);
        drop(client);
        server.expect_end();
        let before = relay.sockets();
        drop(server);
        // The connection is uncounted when the relay closes it.
        relay.settles_to(before - 2);
    }
}

fn rate(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { rate = 5 }");
    let begun = Instant::now();
    let clients: Vec<Conn> = (0..30).map(|_| Conn::to(&relay.address)).collect();
    let mut admitted = 0;
    while target.try_accept(BRIEF).is_some() {
        admitted += 1;
    }
    // A burst of five, and five more for each second that this took.
    let most = 5 + (5.0 * begun.elapsed().as_secs_f64()).ceil() as usize;
    assert!((5..=most).contains(&admitted), "{admitted} admitted, at most {most} expected");
    let closed = clients.into_iter().filter(|c| c.read(&mut [0]).is_ok_and(|n| n == 0)).count();
    assert!(closed > 0, "none was closed");
    pause(500);
    relay.pair(&target);
}

fn bandwidth(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { bandwidth = \"256KiB/s\" }");
    let (client, server) = relay.pair(&target);
    let total = 384 * 1024;
    let begun = Instant::now();
    std::thread::scope(|s| {
        for (seed, from, to) in [(1, &client, &server), (2, &server, &client)] {
            s.spawn(move || from.send_tape(&mut Tape::new(seed), total, 50_000));
            s.spawn(move || to.expect(&mut Tape::new(seed), total));
        }
    });
    // 384 KiB without a burst of 64 KiB take 1.25 s. It may be slower, but not faster.
    assert!(begun.elapsed() > Duration::from_millis(1000), "{:?}", begun.elapsed());
}

/// Bytes that wait for the reader were counted when they arrived; those after them are counted too.
fn bandwidth_of_a_slow_reader(bed: &Bed) {
    let target = Target::new();
    let small = "sockets = { receive-buffer = 16384, send-buffer = 16384 }";
    let relay = bed.relay(&target, &format!("limits = {{ bandwidth = \"256KiB/s\" }}\n{small}"));
    let client = Conn::narrow_to(&relay.address, 16 * 1024);
    let server = target.accept();
    let total = 512 * 1024;
    let begun = Instant::now();
    std::thread::scope(|s| {
        s.spawn(|| server.send_tape(&mut Tape::new(4), total, 50_000));
        let mut tape = Tape::new(4);
        while tape.moved < total as u64 {
            client.expect_by(&mut tape, 16_384, 16_384);
            pause(10);
        }
    });
    // 448 KiB at 256 KiB a second: 1.75 s.
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
}

fn bandwidth_end(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "limits = { bandwidth = \"256KiB/s\" }");
    let before = relay.sockets();
    let (client, server) = relay.pair(&target);
    client.send_tape(&mut Tape::new(3), 200_000, 200_000);
    client.end();
    server.expect(&mut Tape::new(3), 200_000);
    server.expect_end();
    server.end();
    client.expect_end();
    relay.settles_to(before);
}
