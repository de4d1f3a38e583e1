//! PROXY headers that clients send, and invalid ones.
use std::time::{Duration, Instant};

use crate::bed::{Bed, Relay};
use crate::matrix::{Case, Topic};
use crate::net::{Conn, Tape, Target, exchange, pause};
use crate::proxy_bytes::{raw_v2, tlv, v1, v2};

pub const TOPIC: Topic = Topic {
    title: "PROXY protocol, from clients",
    by_engine: false,
    cases: &[
        Case { name: "version 1, cut at every byte", run: v1_cut },
        Case { name: "version 2 with TLVs and a checksum, cut at every byte", run: v2_cut },
        Case { name: "data after a header in the same segment, and a stream after it", run: data_behind },
        Case { name: "a half-close right after the header is passed on", run: end_behind },
        Case { name: "UNKNOWN and LOCAL are served", run: unknown_and_local },
        Case { name: "an invalid header closes the connection without a connection to the target", run: garbage },
        Case { name: "a header that is too long closes the connection", run: too_long },
        Case { name: "a wrong checksum closes the connection", run: wrong_checksum },
        Case { name: "a missing header closes the connection at its timeout", run: no_header },
        Case { name: "an end in the middle of a header closes the connection", run: cut_off },
        Case { name: "access lists and limits apply to the address in the header", run: access_by_header },
        Case { name: "a header from an address outside proxy-from closes the connection", run: untrusted },
        Case {
            name: "before its header has arrived, a connection counts against the limit of its peer",
            run: peers_limit,
        },
        Case { name: "before its header has arrived, a connection counts against the rate limit", run: peers_rate },
    ],
};

const FROM: &str = "192.0.2.1:1111";
const TO: &str = "198.51.100.2:2222";
/// Every address of this host may send headers.
const TRUSTING: &str = "proxy-in = true\nproxy-from = [\"127.0.0.0/8\"]\n";
const BRIEF: Duration = Duration::from_millis(150);

fn relay(bed: &Bed, target: &Target) -> Relay {
    bed.relay(target, TRUSTING)
}

fn cut(bed: &Bed, header: &[u8]) {
    let target = Target::new();
    let relay = relay(bed, &target);
    let before = relay.sockets();
    for at in 0..=header.len() {
        let client = Conn::to(&relay.address);
        client.send(&header[..at]);
        pause(3);
        client.send(&[&header[at..], b"hello"].concat());
        let server = target.accept();
        assert_eq!(server.take(5), b"hello", "cut after {at} bytes");
        server.send(b"world");
        assert_eq!(client.take(5), b"world");
    }
    // Then as single bytes.
    let client = Conn::to(&relay.address);
    for byte in header {
        client.send(&[*byte]);
    }
    let server = target.accept();
    exchange(&client, &server, &mut Tape::new(1), 1000);
    drop((client, server));
    relay.settles_to(before);
}

fn v1_cut(bed: &Bed) {
    cut(bed, &v1(FROM, TO));
}

fn v2_cut(bed: &Bed) {
    cut(bed, &v2(FROM, TO, &[tlv(1, b"h2"), tlv(0xe1, b"custom")], true));
}

fn data_behind(bed: &Bed) {
    let target = Target::new();
    let relay = relay(bed, &target);
    for header in [v1(FROM, TO), v2(FROM, TO, &[], false)] {
        let client = Conn::to(&relay.address);
        let mut tape = Tape::new(2);
        client.send(&[header, tape.next(20_000)].concat());
        std::thread::scope(|s| {
            s.spawn(|| {
                client.send_tape(&mut tape, 2 << 20, 100_000);
                client.end();
            });
            let server = target.accept();
            server.expect(&mut Tape::new(2), 20_000 + (2 << 20));
            server.expect_end();
            server.send(b"late");
        });
        assert_eq!(client.take(4), b"late");
        client.expect_gone();
    }
}

fn end_behind(bed: &Bed) {
    let target = Target::new();
    let relay = relay(bed, &target);
    for data in [&b""[..], b"some"] {
        let client = Conn::to(&relay.address);
        client.send(&[&v1(FROM, TO), data].concat());
        client.end();
        let server = target.accept();
        assert_eq!(server.take(data.len()), data);
        server.expect_end();
        server.send(b"late");
        server.end();
        assert_eq!(client.take(4), b"late");
        client.expect_end();
    }
}

fn unknown_and_local(bed: &Bed) {
    let target = Target::new();
    let relay = relay(bed, &target);
    let headers = [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ff:ff::1 what ever 1 2\r\n".to_vec(),
        raw_v2(0x20, 0, &[], false),
        raw_v2(0x20, 0x11, &[0; 12], false),
        raw_v2(0x21, 0, &[], false),
    ];
    for header in headers {
        let client = Conn::to(&relay.address);
        client.send(&header);
        let server = target.accept();
        exchange(&client, &server, &mut Tape::new(3), 1000);
    }
}

/// The connection is closed without a connection to the target.
fn refuses(bed: &Bed, headers: &[Vec<u8>]) {
    let target = Target::new();
    let relay = relay(bed, &target);
    let before = relay.sockets();
    for header in headers {
        let client = Conn::to(&relay.address);
        let _ = client.try_send(header);
        let (bytes, _) = client.rest();
        assert!(bytes.is_empty(), "an answer to {header:?}");
    }
    assert!(target.gets_none(BRIEF), "the target was connected to");
    relay.settles_to(before);
    let client = Conn::to(&relay.address);
    client.send(&v1(FROM, TO));
    exchange(&client, &target.accept(), &mut Tape::new(4), 1000);
}

fn garbage(bed: &Bed) {
    let mut version = v2(FROM, TO, &[], false);
    version[12] = 0x31;
    let mut command = v2(FROM, TO, &[], false);
    command[12] = 0x2f;
    let short = raw_v2(0x21, 0x11, &[1, 2, 3, 4], false);
    let mut tlv_cut = v2(FROM, TO, &[tlv(1, b"h2")], false);
    let at = tlv_cut.len() - 3;
    tlv_cut[at] = 200;
    refuses(
        bed,
        &[
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            b"\x16\x03\x01\x02\x00\x01".to_vec(),
            b"proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n".to_vec(),
            b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
            b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n\n".to_vec(),
            b"\r\n\r\n\0\r\nQUIX\n".to_vec(),
            version,
            command,
            short,
            tlv_cut,
        ],
    );
}

fn too_long(bed: &Bed) {
    let line = [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 200], b"\r\n".to_vec()].concat();
    let endless = [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 100_000]].concat();
    let large = v2(FROM, TO, &[tlv(0xe1, &[1; 60_000])], false);
    refuses(bed, &[line, endless, large]);
}

fn wrong_checksum(bed: &Bed) {
    let good = v2(FROM, TO, &[tlv(1, b"h2")], true);
    let altered: Vec<Vec<u8>> = [16, 20, 25, good.len() - 1]
        .into_iter()
        .map(|at| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        })
        .collect();
    refuses(bed, &altered);
}

fn no_header(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, &format!("{TRUSTING}timeouts = {{ header = \"500ms\" }}"));
    let before = relay.sockets();
    let silent = Conn::to(&relay.address);
    silent.expect_silence(Duration::from_millis(200));
    silent.expect_gone();
    // The timeout is that of the whole header: single bytes do not extend it.
    let slow = Conn::to(&relay.address);
    let header = v1(FROM, TO);
    for byte in &header[..20] {
        if slow.try_send(&[*byte]).is_err() {
            break;
        }
        pause(60);
    }
    slow.expect_gone();
    assert!(target.gets_none(BRIEF), "the target was connected to");
    relay.settles_to(before);
}

fn cut_off(bed: &Bed) {
    let target = Target::new();
    let relay = relay(bed, &target);
    let before = relay.sockets();
    for header in [v1(FROM, TO), v2(FROM, TO, &[], true)] {
        for at in [0, 1, 10, header.len() - 1] {
            let client = Conn::to(&relay.address);
            client.send(&header[..at]);
            client.end();
            client.expect_gone();
            let client = Conn::to(&relay.address);
            client.send(&header[..at]);
            client.reset();
        }
    }
    assert!(target.gets_none(BRIEF), "the target was connected to");
    relay.settles_to(before);
}

fn access_by_header(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, &format!("{TRUSTING}deny = [\"192.0.2.0/24\"]\nlimits = {{ per-source = 1 }}"));
    let client = Conn::to(&relay.address);
    client.send(&[v1(FROM, TO), b"let me in".to_vec()].concat());
    client.expect_gone();
    assert!(target.gets_none(BRIEF), "the target was connected to");
    let connect_as = |from: &str| {
        let client = Conn::to(&relay.address);
        client.send(&v2(from, TO, &[], false));
        client
    };
    let first = connect_as("203.0.113.1:1");
    let server = target.accept();
    connect_as("203.0.113.1:2").expect_gone();
    let other = connect_as("203.0.113.2:1");
    let other_server = target.accept();
    exchange(&other, &other_server, &mut Tape::new(5), 100);
    exchange(&first, &server, &mut Tape::new(6), 100);
    let before = relay.sockets();
    drop((first, server));
    relay.settles_to(before - 2);
    let again = connect_as("203.0.113.1:3");
    exchange(&again, &target.accept(), &mut Tape::new(7), 100);
}

fn untrusted(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, "proxy-in = true\nproxy-from = [\"127.0.0.8\", \"127.0.8.0/24\"]");
    let before = relay.sockets();
    for source in ["127.0.0.9", "127.0.9.1"] {
        let client = Conn::from_to(source, &relay.address);
        let _ = client.try_send(&v1(FROM, TO));
        client.expect_gone();
        assert!(target.gets_none(BRIEF), "the target was connected to for {source}");
    }
    relay.settles_to(before);
    for source in ["127.0.0.8", "127.0.8.77"] {
        let client = Conn::from_to(source, &relay.address);
        client.send(&v1(FROM, TO));
        exchange(&client, &target.accept(), &mut Tape::new(8), 1000);
    }
}

fn peers_limit(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, &format!("{TRUSTING}limits = {{ per-source = 2 }}"));
    let silent = [Conn::to(&relay.address), Conn::to(&relay.address)];
    // Connections are counted once the first bytes of an incomplete header are read.
    silent.iter().for_each(|client| client.send(b"P"));
    pause(100);
    Conn::to(&relay.address).expect_gone();
    let other = Conn::from_to("127.0.0.9", &relay.address);
    other.send(&v1("192.0.2.9:1", TO));
    exchange(&other, &target.accept(), &mut Tape::new(9), 1000);
    // With its header a connection counts for its client, so its peer may open another one.
    let mut served = Vec::new();
    for (n, client) in silent.into_iter().enumerate() {
        client.send(&v1(&format!("203.0.113.{n}:1"), TO)[1..]);
        let server = target.accept();
        exchange(&client, &server, &mut Tape::new(10), 1000);
        served.push((client, server));
    }
    for n in 0..4 {
        let client = Conn::to(&relay.address);
        client.send(&v1(&format!("198.51.100.{n}:1"), TO));
        let server = target.accept();
        exchange(&client, &server, &mut Tape::new(11), 1000);
        served.push((client, server));
    }
}

fn peers_rate(bed: &Bed) {
    let target = Target::new();
    let relay = bed.relay(&target, &format!("{TRUSTING}limits = {{ rate = 5 }}"));
    let begun = Instant::now();
    let clients: Vec<Conn> = (0..30).map(|_| Conn::to(&relay.address)).collect();
    pause(100);
    let sent = clients.iter().filter(|client| client.try_send(&v1(FROM, TO)).is_ok()).count();
    let mut admitted = 0;
    while target.try_accept(BRIEF).is_some() {
        admitted += 1;
    }
    // A burst of five, and five more for each second that this took; the header takes no second token.
    let most = 5 + (5.0 * begun.elapsed().as_secs_f64()).ceil() as usize;
    assert!((5..=most).contains(&admitted), "{admitted} admitted of {sent}, at most {most} expected");
}
