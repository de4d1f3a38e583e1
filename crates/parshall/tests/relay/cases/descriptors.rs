//! Descriptors: none is leaked, and the relay survives when there are no more.
use std::thread::scope;
use std::time::Duration;

use crate::bed::{Bed, Plan};
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange, pause, soon};

pub const TOPIC: Topic = Topic {
    title: "Descriptors",
    by_engine: true,
    cases: &[
        Case { name: "2,000 short connections leave no descriptor and nothing in CLOSE_WAIT", run: short_connections },
        Case { name: "a thousand connections at once", run: thousand },
        Case { name: "500 connections to a target that refuses leave no descriptor and log little", run: refused },
        Case { name: "half-closed, stalled and idle connections cost no CPU", run: waiting },
        Case {
            name: "64 descriptors and 120 clients: the relay survives, does not spin, logs little and recovers",
            run: limit,
        },
        Case { name: "64 descriptors: streams continue at the limit", run: streams_at_the_limit },
        Case { name: "an idle connection holds two descriptors", run: idle },
    ],
};

fn short_connections(bed: &Bed) {
    let target = Target::new();
    target.echo();
    let relay = bed.relay(&target, "");
    let (before, other) = (relay.sockets(), relay.descriptors().len() - relay.sockets());
    scope(|s| {
        for thread in 0..4u64 {
            let address = relay.address.clone();
            s.spawn(move || {
                for round in 0..500 {
                    let client = Conn::to(&address);
                    match round % 10 {
                        0 => client.reset(),
                        1 => drop(client),
                        n => {
                            let mut tape = Tape::new(thread * 1000 + round);
                            client.send(&tape.clone().next(100));
                            client.expect(&mut tape, 100);
                            if n == 2 {
                                client.reset();
                            } else if n < 6 {
                                client.end();
                                client.expect_end();
                            }
                        }
                    }
                }
            });
        }
    });
    relay.settles_to(before);
    let now = relay.descriptors().len() - relay.sockets();
    // Each thread keeps at most 16 pipes of two ends.
    assert!(now <= other + 2 * 2 * 16, "{other} other descriptors before, {now} after");
}

fn thousand(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let before = relay.sockets();
    let pairs: Vec<_> = (0..1000).map(|_| relay.pair(&target)).collect();
    assert_eq!(relay.sockets(), before + 2000);
    for (seed, (client, server)) in pairs.iter().enumerate() {
        exchange(client, server, &mut Tape::new(seed as u64), 500);
    }
    drop(pairs);
    relay.settles_to(before);
}

fn refused(bed: &Bed) {
    let (_held, address) = Target::refusing();
    let relay = bed.start(Plan { targets: vec![address], ..Plan::default() });
    let before = relay.sockets();
    for _ in 0..500 {
        Conn::to(&relay.address).expect_gone();
    }
    relay.settles_to(before);
    let lines = relay.stderr().lines().count();
    assert!(lines < 20, "{lines} lines: {}", relay.stderr().lines().next_back().unwrap_or_default());
}

/// An event that epoll reports and that is not handled would be reported again at once.
fn waiting(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    let pairs: Vec<_> = (0..8).map(|_| relay.pair(&target)).collect();
    pairs[0].0.end();
    pairs[1].1.end();
    let filled = [pairs[2].0.fill(&mut Tape::new(1), 256 << 20), pairs[3].1.fill(&mut Tape::new(1), 256 << 20)];
    pairs[2].0.end();
    pairs[0].1.expect_end();
    pairs[1].0.expect_end();
    let spent = relay.cpu_ticks();
    pause(800);
    let spent = relay.cpu_ticks() - spent;
    assert!(spent < 20, "{spent} hundredths of a second of CPU in 0.8 s");
    pairs[2].1.expect(&mut Tape::new(1), filled[0]);
    pairs[2].1.expect_end();
    pairs[3].0.expect(&mut Tape::new(1), filled[1]);
}

fn echoes(client: &Conn, seed: u64) {
    client.send(&Tape::new(seed).next(1000));
    client.expect(&mut Tape::new(seed), 1000);
}

fn crowded(bed: &Bed, target: &Target) -> crate::bed::Relay {
    target.echo();
    bed.start(Plan { targets: vec![target.address.clone()], descriptors: Some(64), ..Plan::default() })
}

fn limit(bed: &Bed) {
    let target = Target::new();
    let mut relay = crowded(bed, &target);
    let first = Conn::to(&relay.address);
    echoes(&first, 1);
    let before = relay.sockets() - 2;
    let clients: Vec<Conn> = (0..120).map(|_| Conn::to(&relay.address)).collect();
    pause(500);
    let spent = relay.cpu_ticks();
    pause(1000);
    let spent = relay.cpu_ticks() - spent;
    assert!(spent < 40, "{spent} % of a CPU to do nothing");
    let lines = relay.stderr().lines().count();
    assert!(lines < 20, "{lines} lines: {}", relay.stderr().lines().next().unwrap_or_default());
    assert!(relay.ended().is_none(), "it died: {}", relay.stderr());
    // The connection from before still works.
    for seed in 0..20 {
        echoes(&first, seed);
    }
    drop(clients);
    soon("new clients are served", || {
        let client = Conn::to(&relay.address);
        client.0.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket");
        client.try_send(b"?").is_ok() && client.read(&mut [0]).is_ok_and(|n| n == 1)
    });
    for seed in 0..20 {
        echoes(&Conn::to(&relay.address), seed);
    }
    drop(first);
    relay.settles_to(before);
}

fn streams_at_the_limit(bed: &Bed) {
    let target = Target::new();
    let relay = crowded(bed, &target);
    let first = Conn::to(&relay.address);
    echoes(&first, 1);
    let _clients: Vec<Conn> = (0..120).map(|_| Conn::to(&relay.address)).collect();
    pause(200);
    scope(|s| {
        s.spawn(|| {
            first.send_tape(&mut Tape::new(2), 8 << 20, 100_000);
            first.end();
        });
        first.expect(&mut Tape::new(2), 8 << 20);
    });
    first.expect_end();
}

fn idle(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "");
    // A thread opens the descriptors of its engine with its first connection; twenty reach both threads.
    let sockets = relay.sockets();
    for _ in 0..20 {
        let (client, server) = relay.pair(&target);
        exchange(&client, &server, &mut Tape::new(2), 3000);
    }
    relay.settles_to(sockets);
    let before = relay.descriptors().len();
    let pairs: Vec<_> = (0..50).map(|_| relay.pair(&target)).collect();
    let idle = relay.descriptors().len();
    assert_eq!(idle, before + 100);
    for (client, server) in &pairs {
        exchange(client, server, &mut Tape::new(1), 3000);
    }
    let after = relay.descriptors().len();
    // Pipes are shared: a few, not one for each connection.
    assert!(after <= idle + 2 * 2 * 16, "{idle} descriptors before the exchanges, {after} after");
}
