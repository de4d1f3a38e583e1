//! Rings on socket pairs.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::*;

const SIZES: Sizes = Sizes { requests: 8, completions: 64, groups: 2, buffers: 4, buffer_bytes: 4096 };

fn ring() -> Ring {
    Ring::open(SIZES).expect("io_uring works here")
}

/// Waits for completions until one has this tag.
fn until(ring: &mut Ring, tag: u64) -> Completion {
    let mut seen = Vec::new();
    for _ in 0..100 {
        ring.enter(Some(Duration::from_millis(50))).expect("the ring");
        ring.reap(&mut seen);
        if let Some(place) = seen.iter().position(|c| c.tag == tag) {
            return seen.swap_remove(place);
        }
        seen.clear();
    }
    panic!("no completion with the tag {tag}");
}

#[test]
fn a_receive_goes_on_until_the_end() {
    let (mut a, b) = UnixStream::pair().expect("a pair");
    let mut ring = ring();
    ring.recv(b.as_raw_fd(), 1, 17);
    for text in ["one", "two"] {
        a.write_all(text.as_bytes()).expect("room");
        let got = until(&mut ring, 17);
        assert!(got.more);
        assert_eq!(got.chunks.iter().flat_map(|c| ring.bytes(c).to_vec()).collect::<Vec<_>>(), text.as_bytes());
        assert_eq!(ring.chunks_lent(), got.chunks.len());
        ring.recycle(got.chunks);
        ring.publish();
    }
    drop(a);
    let end = until(&mut ring, 17);
    assert_eq!((end.result, end.more, ring.in_flight()), (0, false, 0));
    ring.recycle(end.chunks);
    assert_eq!(ring.chunks_lent(), 0);
}

#[test]
fn without_buffers_it_stops_and_nothing_is_lost() {
    let (mut a, b) = UnixStream::pair().expect("a pair");
    let mut ring = ring();
    let sent: Vec<u8> = (0..40_000u32).map(|i| (i * 7 / 3) as u8).collect();
    a.write_all(&sent).expect("room");
    drop(a);
    let (mut got, mut stops) = (Vec::new(), 0);
    ring.recv(b.as_raw_fd(), 0, 16);
    let mut over = false;
    for _ in 0..100 {
        for c in until_all(&mut ring) {
            got.extend(c.chunks.iter().flat_map(|c| ring.bytes(c).to_vec()));
            ring.recycle(c.chunks);
            over |= c.result == 0;
            // With the last buffer, or told that there is none.
            if !c.more && !over {
                stops += 1;
                ring.recv(b.as_raw_fd(), 0, 16);
            }
        }
        ring.publish();
        if over {
            break;
        }
    }
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert!(stops >= 1, "16 KiB of buffers for 40 kB");
    assert_eq!((ring.chunks_lent(), ring.in_flight()), (0, 0));
}

fn until_all(ring: &mut Ring) -> Vec<Completion> {
    let mut seen = Vec::new();
    ring.enter(Some(Duration::from_millis(50))).expect("the ring");
    ring.reap(&mut seen);
    seen
}

#[test]
fn chunks_are_sent_in_order_and_a_full_socket_takes_what_fits() {
    let (mut a, b) = UnixStream::pair().expect("a pair");
    let (c, mut d) = UnixStream::pair().expect("a pair");
    let mut ring = ring();
    a.write_all(&[7; 10_000]).expect("room");
    ring.recv(b.as_raw_fd(), 0, 16);
    let mut chunks = Vec::new();
    for _ in 0..100 {
        chunks.extend(until_all(&mut ring).into_iter().flat_map(|c| c.chunks));
        if chunks.iter().map(Chunk::len).sum::<usize>() == 10_000 {
            break;
        }
    }
    assert!(chunks.len() >= 3);
    ring.send_chunks(c.as_raw_fd(), &chunks, 32);
    assert_eq!(until(&mut ring, 32).result, 10_000);
    let mut got = vec![0; 10_000];
    d.read_exact(&mut got).expect("all");
    assert!(got.iter().all(|&b| b == 7));
    // Full: the answer comes at once, and is not ECANCELED or a wait.
    c.set_nonblocking(true).expect("an option");
    while (&c).write(&[0; 4096]).is_ok() {}
    ring.send_chunks(c.as_raw_fd(), &chunks, 48);
    ring.enter(None).expect("the ring");
    let mut seen = Vec::new();
    ring.reap(&mut seen);
    assert!(seen.iter().any(|c| c.tag == 48 && c.result == -libc::EAGAIN), "{seen:?}");
    assert_eq!(ring.send_chunks_now(c.as_raw_fd(), &chunks).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    ring.recycle(chunks);
}

#[test]
fn a_buffer_waits_for_room_and_comes_back() {
    let (c, mut d) = UnixStream::pair().expect("a pair");
    c.set_nonblocking(true).expect("an option");
    while (&c).write(&[0; 4096]).is_ok() {}
    let mut ring = ring();
    ring.send_buffer(c.as_raw_fd(), b"xxlast".to_vec(), 2, 64);
    ring.enter(None).expect("the ring");
    assert_eq!(ring.in_flight(), 1);
    let mut got = vec![0; 1 << 20];
    let mut end = Vec::new();
    for _ in 0..1000 {
        let n = d.read(&mut got).expect("data");
        end = got[..n].to_vec();
        if got[..n].ends_with(b"last") {
            break;
        }
        ring.enter(Some(Duration::from_millis(1))).expect("the ring");
    }
    assert!(end.ends_with(b"last"));
    let done = until(&mut ring, 64);
    assert_eq!((done.result, done.buffer.as_deref()), (4, Some(&b"xxlast"[..])));
}

#[test]
fn what_is_in_flight_can_be_cancelled_and_the_descriptor_closed() {
    let (a, b) = UnixStream::pair().expect("a pair");
    let mut ring = ring();
    ring.recv(b.as_raw_fd(), 0, 16);
    assert!(ring.unsubmitted());
    ring.enter(None).expect("the ring");
    assert!(!ring.unsubmitted());
    drop(b);
    // The request holds the socket open.
    (&a).write_all(b"x").expect("not closed yet");
    let got = until(&mut ring, 16);
    ring.recycle(got.chunks);
    ring.cancel(16, 5);
    assert_eq!(until(&mut ring, 16).result, -libc::ECANCELED);
    ring.enter(None).expect("the ring");
    let mut rest = Vec::new();
    ring.reap(&mut rest);
    assert_eq!(ring.in_flight(), 0);
    assert_eq!((&a).write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn one_request_accepts_many_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let mut ring = ring();
    ring.accept(listener.as_raw_fd(), 96);
    for _ in 0..3 {
        let client = TcpStream::connect(address).expect("a connection");
        let accepted = until(&mut ring, 96);
        assert!(accepted.more && accepted.result >= 0);
        let server: TcpStream = accepted.socket.expect("a socket").into();
        assert_eq!(server.peer_addr().expect("connected"), client.local_addr().expect("bound"));
    }
}

#[test]
fn more_requests_than_places_are_all_taken_in() {
    let pairs: Vec<_> = (0..40).map(|_| UnixStream::pair().expect("a pair")).collect();
    let mut ring = ring();
    for (i, (_, b)) in pairs.iter().enumerate() {
        ring.recv(b.as_raw_fd(), 0, (i as u64 + 1) << GROUP_BITS);
    }
    ring.enter(None).expect("the ring");
    assert_eq!(ring.in_flight(), 40);
    drop(ring);
}
