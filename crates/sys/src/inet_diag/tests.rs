//! Tests against bytes and against real sockets on loopback (no privilege needed).
use std::io::Write;
use std::net::{TcpListener, TcpStream};

use super::wire::{ERROR, Messages};
use super::*;

const ALL_EXTS: u8 = ext::INFO | ext::CONG | ext::SKMEMINFO;

fn pair() -> (TcpListener, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (server, _) = listener.accept().expect("a connection waits");
    (listener, client, server)
}

#[test]
fn dumps_both_ends_of_a_connection_by_port() {
    let (listener, mut client, _server) = pair();
    let port = listener.local_addr().expect("bound").port();
    client.write_all(b"twelve bytes").expect("loopback");
    let mut diag = DiagSocket::open().expect("SOCK_DIAG needs no privilege");
    for family in [Family::Both, Family::V4] {
        let mut found = Vec::new();
        let query = Query { family, states: states::CONNECTED | states::LISTEN, exts: ALL_EXTS, port: Some(port) };
        diag.dump(&query, &mut found).expect("a dump");
        assert_eq!(found.len(), 3, "listener and two ends: {found:?}");
        let server = found.iter().find(|e| e.state == 1 && e.local().port() == port).expect("the server's end");
        assert_eq!(server.rqueue, 12);
        assert_ne!(server.inode, 0);
        assert_ne!(server.id.cookie, 0);
        let info = server.info.expect("asked for");
        assert_eq!((info.state, info.bytes_received), (1, 12));
        assert!(server.mem.expect("asked for").rcvbuf > 0);
        assert!(!server.cong.as_str().is_empty());
        let client = found.iter().find(|e| e.remote().port() == port && e.state == 1).expect("the client's end");
        assert!(client.info.expect("asked for").snd_wnd.is_none_or(|wnd| wnd > 0));
    }
}

#[test]
fn gets_single_sockets_and_tells_those_that_are_gone() {
    let (listener, client, server) = pair();
    let port = listener.local_addr().expect("bound").port();
    let mut diag = DiagSocket::open().expect("SOCK_DIAG needs no privilege");
    let query = Query { family: Family::Both, states: states::CONNECTED, exts: 0, port: Some(port) };
    let mut found = Vec::new();
    diag.dump(&query, &mut found).expect("a dump");
    let mut ids: Vec<SockId> = found.iter().map(|entry| entry.id).collect();
    assert_eq!(ids.len(), 2);
    ids.push(SockId { cookie: ids[0].cookie + 1_000_000, ..ids[0] });
    let mut got = Vec::new();
    diag.get(&ids, ALL_EXTS, &mut got).expect("lookups");
    assert_eq!(got.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(got[0].map(|entry| entry.id), Some(ids[0]));
    drop((client, server, listener));
}

#[test]
fn garbage_never_panics() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random() % 400).map(|_| random() as u8).collect();
        if round % 2 == 0 && bytes.len() >= 16 {
            // A length that fits, so that the payload is looked at.
            let len = 16 + random() as u32 % (bytes.len() as u32 - 15);
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        for message in Messages::new(&bytes) {
            let _ = message.errno();
            let _ = parse_entry(message.payload);
        }
        let _ = parse_entry(&bytes);
        let _ = TcpInfo::parse(&bytes);
    }
}

#[test]
fn reads_as_much_of_tcp_info_as_there_is() {
    let mut bytes = [0_u8; 280];
    bytes[0] = 1;
    bytes[144..148].copy_from_slice(&136_u32.to_ne_bytes());
    bytes[228..232].copy_from_slice(&65_536_u32.to_ne_bytes());
    bytes[240..242].copy_from_slice(&7_u16.to_ne_bytes());
    let whole = TcpInfo::parse(&bytes);
    assert_eq!((whole.state, whole.notsent_bytes, whole.snd_wnd, whole.total_rto), (1, 136, Some(65_536), Some(7)));
    let old = TcpInfo::parse(&bytes[..104]);
    assert_eq!((old.state, old.notsent_bytes, old.snd_wnd, old.total_rto), (1, 0, None, None));
}

#[test]
fn error_messages_carry_their_number() {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&20_u32.to_ne_bytes());
    bytes.extend_from_slice(&ERROR.to_ne_bytes());
    bytes.extend_from_slice(&[0; 10]);
    bytes.extend_from_slice(&(-libc::ENOENT).to_ne_bytes());
    let message = Messages::new(&bytes).next().expect("one message");
    assert_eq!((message.kind, message.errno()), (ERROR, Some(libc::ENOENT)));
}
