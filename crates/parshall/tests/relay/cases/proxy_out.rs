//! PROXY headers that the relay sends to targets.
use crate::bed::{Bed, Plan, Relay};
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange};
use crate::proxy_bytes::{ReadHeader, SIGNATURE, raw_v2, read_v2, tlv, v1, v2};

pub const TOPIC: Topic = Topic {
    title: "PROXY protocol, to targets",
    by_engine: false,
    cases: &[
        Case { name: "version 1 has the client's address", run: v1_out },
        Case { name: "version 2 has the client's address and a checksum", run: v2_out },
        Case { name: "the header is sent first even when the client sends nothing", run: silent_client },
        Case {
            name: "the header comes before data that the client sent early, and its end after it",
            run: eager_client,
        },
        Case { name: "through two relays the target gets the client's address", run: chain },
        Case { name: "TLVs are passed on, the checksum is computed again", run: tlvs },
        Case { name: "IPv6 addresses pass between versions", run: ipv6 },
        Case { name: "LOCAL is passed on as LOCAL, UNKNOWN as UNKNOWN", run: local },
        Case { name: "a client of a Unix socket is UNKNOWN", run: unix },
    ],
};

const FROM: &str = "192.0.2.1:1111";
const TO: &str = "198.51.100.2:2222";

fn line(server: &Conn) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(server.take(1));
        assert!(line.len() <= 107, "{line:?}");
    }
    String::from_utf8(line).unwrap()
}

fn header(server: &Conn) -> ReadHeader {
    let head = server.take(16);
    assert_eq!(head[..12], SIGNATURE);
    let rest = server.take(usize::from(u16::from_be_bytes([head[14], head[15]])));
    read_v2(&head, &rest)
}

fn v1_out(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "proxy-out = \"v1\"");
    let (client, server) = relay.pair(&target);
    let (from, to) = (client.local(), relay.address.split_once(':').unwrap());
    assert_eq!(line(&server), format!("PROXY TCP4 {} {} {} {}\r\n", from.ip(), to.0, from.port(), to.1));
    exchange(&client, &server, &mut Tape::new(1), 30_000);
}

fn v2_out(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "proxy-out = \"v2\"");
    let (client, server) = relay.pair(&target);
    let got = header(&server);
    assert_eq!((got.command, got.family, got.checksum), (0x21, 0x11, true));
    assert_eq!((got.source, got.destination), (Some(client.local()), Some(relay.address.parse().unwrap())));
    exchange(&client, &server, &mut Tape::new(1), 30_000);
}

fn silent_client(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "proxy-out = \"v1\"");
    let (client, server) = relay.pair(&target);
    assert!(line(&server).starts_with("PROXY TCP4 "));
    server.send(b"220 ready");
    assert_eq!(client.take(9), b"220 ready");
    drop(client);
    server.expect_end();
}

fn eager_client(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "proxy-out = \"v2\"");
    let client = Conn::to(&relay.address);
    client.send(&Tape::new(2).next(50_000));
    client.end();
    let server = target.accept();
    header(&server);
    server.expect(&mut Tape::new(2), 50_000);
    server.expect_end();
    server.send(b"late");
    drop(server);
    assert_eq!(client.take(4), b"late");
    client.expect_gone();
}

/// A relay that sends headers to another one that expects them.
fn chained(bed: &Bed, target: &Target) -> (Relay, Relay) {
    let second = bed.relay(target, "proxy-in = true\nproxy-from = \"127.0.0.0/8\"\nproxy-out = \"v1\"");
    let targets = vec![second.address.clone()];
    let first = bed.start(Plan { targets, keys: "proxy-out = \"v2\"".to_owned(), ..Plan::default() });
    (first, second)
}

fn chain(bed: &Bed) {
    let target = Target::new();
    let (first, second) = chained(bed, &target);
    let before = [first.sockets(), second.sockets()];
    let client = Conn::to(&first.address);
    let server = target.accept();
    let (from, to) = (client.local(), first.address.split_once(':').unwrap());
    assert_eq!(line(&server), format!("PROXY TCP4 {} {} {} {}\r\n", from.ip(), to.0, from.port(), to.1));
    std::thread::scope(|s| {
        for (seed, from, to) in [(1, &client, &server), (2, &server, &client)] {
            s.spawn(move || {
                from.send_tape(&mut Tape::new(seed), 4 << 20, 100_000);
                from.end();
            });
            s.spawn(move || {
                to.expect(&mut Tape::new(seed), 4 << 20);
                to.expect_end();
            });
        }
    });
    let other = Conn::to(&first.address);
    let server = target.accept();
    line(&server);
    server.reset();
    other.expect_reset();
    first.settles_to(before[0]);
    second.settles_to(before[1]);
}

fn tlvs(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "proxy-in = true\nproxy-from = \"127.0.0.0/8\"\nproxy-out = \"v2\"");
    let sent = [(1, b"h2".to_vec()), (2, b"example.org".to_vec()), (0xe1, vec![0; 300]), (4, vec![0; 5])];
    let tlvs: Vec<_> = sent.iter().map(|(kind, value)| tlv(*kind, value)).collect();
    for checksum in [true, false] {
        let client = Conn::to(&relay.address);
        client.send(&[v2(FROM, TO, &tlvs, checksum), b"hello".to_vec()].concat());
        let server = target.accept();
        let got = header(&server);
        assert_eq!((got.source, got.destination), (FROM.parse().ok(), TO.parse().ok()));
        assert_eq!(got.tlvs, sent);
        assert_eq!(got.checksum, checksum);
        assert_eq!(server.take(5), b"hello");
    }
    let client = Conn::to(&relay.address);
    client.send(&v1(FROM, TO));
    let got = header(&target.accept());
    assert_eq!((got.source, got.destination), (FROM.parse().ok(), TO.parse().ok()));
}

fn ipv6(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "proxy-in = true\nproxy-from = \"127.0.0.0/8\"\nproxy-out = \"v2\"");
    let client = Conn::to(&relay.address);
    client.send(b"PROXY TCP6 2001:db8::1 2001:db8::2 1111 2222\r\n");
    let got = header(&target.accept());
    assert_eq!(got.source, "[2001:db8::1]:1111".parse().ok());
    assert_eq!(got.destination, "[2001:db8::2]:2222".parse().ok());
    let relay = bed.relay(&target, "proxy-in = true\nproxy-from = \"127.0.0.0/8\"\nproxy-out = \"v1\"");
    let client = Conn::to(&relay.address);
    let ip = |last: u8| [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[last]].concat();
    client.send(&raw_v2(0x21, 0x21, &[&ip(1)[..], &ip(2), &[4, 87], &[8, 174]].concat(), false));
    assert_eq!(line(&target.accept()), "PROXY TCP6 2001:db8::1 2001:db8::2 1111 2222\r\n");
}

fn local(bed: &Bed) {
    let target = Target::new();
    let to_v2 = bed.relay(&target, "proxy-in = true\nproxy-from = \"127.0.0.0/8\"\nproxy-out = \"v2\"");
    let client = Conn::to(&to_v2.address);
    client.send(&raw_v2(0x20, 0, &[], false));
    assert_eq!(header(&target.accept()).command, 0x20);
    let client = Conn::to(&to_v2.address);
    client.send(b"PROXY UNKNOWN\r\n");
    let got = header(&target.accept());
    assert_eq!((got.command, got.family), (0x21, 0));
    let to_v1 = bed.relay(&target, "proxy-in = true\nproxy-from = \"127.0.0.0/8\"\nproxy-out = \"v1\"");
    for sent in [raw_v2(0x20, 0, &[], false), b"PROXY UNKNOWN 1 2 3\r\n".to_vec()] {
        let client = Conn::to(&to_v1.address);
        client.send(&sent);
        assert_eq!(line(&target.accept()), "PROXY UNKNOWN\r\n");
    }
}

fn unix(bed: &Bed) {
    let target = Target::new();
    let listen = format!("unix:{}", bed.scratch.file("relay.sock").display());
    let plan = Plan {
        listen,
        targets: vec![target.address.clone()],
        keys: "proxy-out = \"v1\"".to_owned(),
        ..Plan::default()
    };
    let relay = bed.start(plan);
    let (client, server) = relay.pair(&target);
    assert_eq!(line(&server), "PROXY UNKNOWN\r\n");
    exchange(&client, &server, &mut Tape::new(3), 1000);
}
