//! The form of messages, seen in the buffers of every call that can be looked into. Needs root.
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg};

use crate::probed::{Talker, alone, end_with_parent, ready};
use parshall_bpf::diagnose::timeline::{CallWire, OP_RECEIVE, OP_SEND};
use parshall_bpf::diagnose::{Config, Event, Probes};
use parshall_evidence::timeline::{Frame, Protocol};

const REQUEST: &[u8; 27] = b"GET /a/path HTTP/1.1\r\n\r\n...";
/// Fetch, version 11, number 300.
const TO_KAFKA: [u8; 32] = {
    let mut bytes = [0; 32];
    (bytes[3], bytes[5], bytes[7], bytes[10], bytes[11]) = (28, 1, 11, 1, 44);
    bytes
};
/// A question of DNS without its name.
const QUESTION: [u8; 30] = {
    let mut bytes = [0; 30];
    (bytes[0], bytes[1], bytes[2], bytes[5]) = (0x12, 0x34, 1, 1);
    bytes
};

/// Sends and receives in every way in turn.
#[test]
#[ignore = "not a test: the body of the child process"]
fn speak() {
    if std::env::var_os("TALK").is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut served, _) = listener.accept().unwrap();
    let (asker, answerer) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    asker.connect(answerer.local_addr().unwrap()).unwrap();
    end_with_parent();
    println!("talking");
    let mut buffer = [0; 64];
    loop {
        std::thread::sleep(Duration::from_millis(5));
        client.write_all(REQUEST).unwrap();
        served.read_exact(&mut buffer[..27]).unwrap();
        let sent = client.write_vectored(&[IoSlice::new(&REQUEST[..14]), IoSlice::new(&REQUEST[14..])]).unwrap();
        let (mut first, mut second) = ([0; 12], [0; 15]);
        let read = served.read_vectored(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap();
        assert_eq!((sent, read), (27, 27));
        sendmsg(&client, &[IoSlice::new(&TO_KAFKA)], &mut SendAncillaryBuffer::default(), SendFlags::empty()).unwrap();
        // A reader that takes the length first.
        served.read_exact(&mut buffer[..4]).unwrap();
        served.read_exact(&mut buffer[..28]).unwrap();
        client.write_all(&TO_KAFKA).unwrap();
        let into = &mut [IoSliceMut::new(&mut buffer[..32])];
        recvmsg(&served, into, &mut RecvAncillaryBuffer::default(), RecvFlags::empty()).unwrap();
        asker.send(&QUESTION).unwrap();
        answerer.recv_from(&mut buffer).unwrap();
    }
}

/// Types of tracepoints that Linux has since 6.3.
const WITHOUT_LENGTHS: &[&str] = &["btf_trace_sock_send_length", "btf_trace_sock_recv_length"];

/// So many have more than ten calls of each kind.
const EVENTS_MIN: usize = 1_000;

/// The calls of the child in one slice.
fn calls(config: &Config) -> Vec<CallWire> {
    let mut probes = Probes::load(config).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    probes.threads().unwrap();
    probes.begin_slice().unwrap();
    let mut events = Vec::new();
    // However long a busy host lets the child take for what is asserted of it.
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
        while probes.drain(&mut events) {}
        if events.len() >= EVENTS_MIN {
            break;
        }
    }
    probes.end_slice();
    while probes.drain(&mut events) {}
    assert_eq!(probes.counters().lost, 0);
    let of = |event| match event {
        Event::Call(call) => Some(call),
        Event::UdpCall(datagram) => Some(datagram.call),
        _ => None,
    };
    events.into_iter().filter_map(of).collect()
}

#[test]
fn messages_are_known_by_their_first_bytes() {
    if !ready("frames of calls") {
        return;
    }
    let _alone = alone();
    let talker = Talker::start_as("frames::speak", "1");
    // The last has the ends of system calls only.
    for (as_older, without) in [(false, &[][..]), (true, &[]), (false, WITHOUT_LENGTHS)] {
        let without_functions = !without.is_empty();
        let config = Config { as_older, without_functions, without_types: without.to_vec(), ..talker.config(64) };
        let calls = calls(&config);
        let as_older = (as_older, without_functions);
        let frames = |op: u8, bytes: u32| -> Vec<Option<Frame>> {
            let of = calls.iter().filter(|call| call.op == op && call.bytes == bytes);
            let frames: Vec<_> = of.map(|call| call.frame(true)).collect();
            assert!(frames.len() >= 10, "{op} {bytes}: {frames:?}");
            frames
        };
        let http = Some(Frame { protocol: Protocol::Http1, kind: 1, flags: 0, length: 0, stream: 0 });
        let kafka = Some(Frame { protocol: Protocol::Kafka, kind: 1, flags: 0, length: 32, stream: 300 });
        let dns = Some(Frame { protocol: Protocol::Dns, kind: 0, flags: 0, length: 0, stream: 0x1234 });
        for op in [OP_SEND, OP_RECEIVE] {
            assert!(frames(op, 27).iter().all(|frame| *frame == http), "one buffer, and two, {as_older:?}");
            assert!(frames(op, 32).iter().all(|frame| *frame == kafka), "a message, {as_older:?}");
            assert!(frames(op, 30).iter().all(|frame| *frame == dns), "a datagram, {as_older:?}");
        }
        // The length before the first of them may have been read before the probes were attached.
        let behind_length = frames(OP_RECEIVE, 28);
        assert!(
            behind_length[1..].iter().all(|frame| *frame == kafka),
            "behind its length, {as_older:?}: {behind_length:?}"
        );
        assert!(frames(OP_RECEIVE, 4).iter().all(Option::is_none));
    }
}

#[test]
fn nothing_is_looked_at_where_that_is_not_wanted() {
    if !ready("calls without frames") {
        return;
    }
    let _alone = alone();
    let talker = Talker::start_as("frames::speak", "1");
    let calls = calls(&Config { without_frames: true, ..talker.config(64) });
    assert!(calls.len() >= 100 && calls.iter().all(|call| call.frame(true).is_none()), "{}", calls.len());
}

#[test]
fn a_connection_that_shows_nothing_is_not_looked_at_for_long() {
    if !ready("calls without frames") {
        return;
    }
    let _alone = alone();
    // Its data are all ones.
    let talker = Talker::start_as("timeline::wait", "1");
    let mut probes = Probes::load(&talker.config(64)).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    probes.begin_slice().unwrap();
    let mut seen = || -> Vec<(u64, u8)> {
        let flows = probes.flows().unwrap();
        let calls = flows.iter().map(|dump| &dump.flow);
        calls.map(|flow| (flow.calls.recvs + flow.calls.sends, flow.unknown_calls)).collect()
    };
    let mut looked_at = Vec::new();
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
        looked_at = seen();
        if looked_at.iter().any(|(calls, _)| *calls > 64) {
            break;
        }
    }
    probes.end_slice();
    assert!(looked_at.iter().any(|(calls, looked_at)| *calls > 64 && *looked_at == 32), "{looked_at:?}");
    assert!(looked_at.iter().all(|(_, looked_at)| *looked_at <= 32), "{looked_at:?}");
}
