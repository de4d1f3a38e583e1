//! Rings on socket pairs.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

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
fn a_receive_without_buffers_ends_and_loses_nothing() {
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
            // The request ends with the last buffer or with ENOBUFS.
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
    ring.send_chunks(c.as_raw_fd(), chunks, 32);
    let sent = until(&mut ring, 32);
    assert_eq!(sent.result, 10_000);
    let chunks = sent.chunks;
    let mut got = vec![0; 10_000];
    d.read_exact(&mut got).expect("all");
    assert!(got.iter().all(|&b| b == 7));
    // With a full send buffer the request completes at once with EAGAIN, neither with ECANCELED nor after a wait.
    c.set_nonblocking(true).expect("an option");
    while (&c).write(&[0; 4096]).is_ok() {}
    ring.send_chunks(c.as_raw_fd(), chunks, 48);
    ring.enter(None).expect("the ring");
    let mut seen = Vec::new();
    ring.reap(&mut seen);
    let place = seen.iter().position(|c| c.tag == 48 && c.result == -libc::EAGAIN).expect("answered");
    let chunks = seen.swap_remove(place).chunks;
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
fn a_request_in_flight_can_be_cancelled_after_its_descriptor_was_closed() {
    let (a, b) = UnixStream::pair().expect("a pair");
    let mut ring = ring();
    let receive = ring.recv(b.as_raw_fd(), 0, 16);
    assert!(ring.unsubmitted());
    ring.enter(None).expect("the ring");
    assert!(!ring.unsubmitted());
    drop(b);
    // The request holds the socket open.
    (&a).write_all(b"x").expect("not closed yet");
    let got = until(&mut ring, 16);
    ring.recycle(got.chunks);
    ring.cancel(receive);
    assert_eq!(until(&mut ring, 16).result, -libc::ECANCELED);
    // Its slot is used again, its identifier is not.
    let (other, peer) = UnixStream::pair().expect("a pair");
    let second = ring.recv(other.as_raw_fd(), 0, 17);
    assert_ne!(second, receive);
    ring.cancel(receive);
    ring.enter(None).expect("the ring");
    let mut rest = Vec::new();
    ring.reap(&mut rest);
    assert!(rest.is_empty(), "cancellations are not reported, and the second goes on: {rest:?}");
    assert_eq!(ring.in_flight(), 1);
    drop(peer);
    assert_eq!((until(&mut ring, 17).result, ring.in_flight()), (0, 0));
    assert_eq!((&a).write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn each_request_accepts_one_client() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("an option");
    let address = listener.local_addr().expect("bound");
    let mut ring = ring();
    for _ in 0..3 {
        ring.accept(listener.as_raw_fd(), 96);
        ring.enter(None).expect("the ring");
        let client = TcpStream::connect(address).expect("a connection");
        let accepted = until(&mut ring, 96);
        assert!(!accepted.more && accepted.result >= 0, "{accepted:?}");
        let server: TcpStream = accepted.socket.expect("a socket").into();
        assert_eq!(server.peer_addr().expect("connected"), client.local_addr().expect("bound"));
    }
    let _client = TcpStream::connect(address).expect("a connection");
    ring.enter(None).expect("the ring");
    assert!(listener.accept().is_ok(), "without a request the client stays in the queue");
}

#[test]
fn more_requests_than_queue_entries_are_all_submitted() {
    let pairs: Vec<_> = (0..40).map(|_| UnixStream::pair().expect("a pair")).collect();
    let mut ring = ring();
    for (i, (_, b)) in pairs.iter().enumerate() {
        ring.recv(b.as_raw_fd(), 0, i as u64);
    }
    ring.enter(None).expect("the ring");
    assert_eq!(ring.in_flight(), 40);
    drop(ring);
}

/// One datagram in each chunk, with its number in all bytes.
fn numbered(ring: &mut Ring, count: u8) -> Vec<Chunk> {
    let (a, b) = UnixDatagram::pair().expect("a pair");
    let receive = ring.recv_messages(b.as_raw_fd(), 0, 16);
    let mut chunks = Vec::new();
    for number in 0..count {
        a.send(&[number; 100]).expect("room");
        chunks.extend(until(ring, 16).chunks);
    }
    ring.cancel(receive);
    until(ring, 16);
    chunks
}

#[test]
fn gathered_sends_that_fill_the_queue_keep_their_own_bytes() {
    let mut ring = Ring::open(Sizes { requests: 2, groups: 1, buffers: 64, ..SIZES }).expect("io_uring works here");
    let mut chunks = numbered(&mut ring, 32);
    let (c, d) = UnixDatagram::pair().expect("a pair");
    let mut got = [0; 300];
    for round in 0..4 {
        // Four at a time: a queue of datagrams is short. In reverse order, so that two are not one piece.
        let first = chunks.len() as u8 - 1;
        for tag in 0..4 {
            let two = chunks.split_off(chunks.len() - 2).into_iter().rev().collect();
            ring.send_chunks(c.as_raw_fd(), two, tag);
        }
        ring.enter(None).expect("the ring");
        for pair in 0..4 {
            let n = d.recv(&mut got).expect("a datagram");
            let upper = first - 2 * pair;
            let right = n == 200 && got[..100] == [upper; 100] && got[100..200] == [upper - 1; 100];
            assert!(right, "datagram {pair} of round {round}: {:?}", &got[..n]);
        }
    }
}

#[test]
fn chunks_belong_to_their_ring() {
    let (mut a, b) = UnixStream::pair().expect("a pair");
    let mut large = Ring::open(Sizes { buffer_bytes: 65_536, ..SIZES }).expect("io_uring works here");
    let mut other = ring();
    large.recv(b.as_raw_fd(), 1, 17);
    a.write_all(&[1; 60_000]).expect("room");
    let mut chunks = until(&mut large, 17).chunks;
    let refuses = |act: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    assert!(refuses(&mut || drop(other.bytes(&chunks[0]).to_vec())));
    assert!(refuses(&mut || drop(other.send_chunks_now(a.as_raw_fd(), &chunks))));
    assert!(refuses(&mut || other.recycle(std::mem::take(&mut chunks))));
    assert!(refuses(&mut || _ = other.recv(b.as_raw_fd(), SIZES.groups, 0)), "there is no such group");
    assert_eq!((other.in_flight(), other.chunks_lent()), (0, 0));
}

#[test]
fn a_buffer_that_is_being_sent_is_not_used_for_receiving() {
    let (mut a, b) = UnixStream::pair().expect("a pair");
    let (c, mut d) = UnixStream::pair().expect("a pair");
    let mut ring = Ring::open(Sizes { groups: 1, buffers: 1, ..SIZES }).expect("io_uring works here");
    ring.recv(b.as_raw_fd(), 0, 16);
    a.write_all(b"first").expect("room");
    let got = until(&mut ring, 16);
    // The only buffer belongs to the send until it has completed, so the second message stays in its socket.
    ring.send_chunks(c.as_raw_fd(), got.chunks, 32);
    a.write_all(b"other").expect("room");
    ring.publish();
    assert_eq!(ring.chunks_lent(), 1);
    let sent = until(&mut ring, 32);
    let mut received = [0; 5];
    d.read_exact(&mut received).expect("sent");
    assert_eq!((&received, sent.result, ring.chunks_lent()), (b"first", 5, 1));
    ring.recycle(sent.chunks);
    assert_eq!(ring.chunks_lent(), 0);
}

#[test]
fn two_buffers_under_one_tag_both_come_back() {
    let pairs = [0, 1].map(|_| UnixStream::pair().expect("a pair"));
    let mut ring = ring();
    for ((c, _), text) in pairs.iter().zip(["one", "two"]) {
        ring.send_buffer(c.as_raw_fd(), text.into(), 0, 64);
    }
    let mut back = Vec::new();
    while back.len() < 2 {
        back.extend(until_all(&mut ring).into_iter().map(|done| done.buffer.expect("it comes back")));
    }
    back.sort();
    assert_eq!(back, [b"one".to_vec(), b"two".to_vec()]);
}

const DATAGRAMS: Sizes = Sizes { buffer_bytes: 65_536 + DATAGRAM_HEADER_LEN as u32, ..SIZES };

/// A batch with one message of `count` datagrams of 100 bytes.
fn message(to: &UdpSocket, count: usize) -> Box<DatagramBatch> {
    let mut batch = Box::new(DatagramBatch::new(1));
    let slot = batch.take_slot().expect("an empty batch");
    batch.payload_mut(slot)[..100 * count].fill(count as u8);
    batch.begin(Some(&to.local_addr().expect("bound")), None, 0);
    batch.attach(slot, 100 * count);
    batch.end(100);
    batch
}

#[test]
fn gso_batches_are_sent_in_order_and_received_with_their_addresses() {
    let [from, to] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").expect("loopback"));
    crate::udp_batch::options::gather_on_receive(to.as_fd()).expect("Linux 5.0");
    crate::udp_batch::options::report_local_address(to.as_fd(), false).expect("a UDP socket");
    for (zero_copy, open) in
        [(false, Ring::open(DATAGRAMS)), (true, Ring::open(DATAGRAMS)), (false, Ring::open_polled(DATAGRAMS, 1))]
    {
        let mut ring = open.expect("io_uring works here");
        let receive = ring.recv_datagrams(to.as_raw_fd(), 0, 7);
        for count in 1..=3 {
            ring.send_message(from.as_raw_fd(), message(&to, count), count < 3, zero_copy, count as u64);
        }
        let (mut received, mut back) = (Vec::new(), 0);
        for _ in 0..100 {
            for mut done in until_all(&mut ring) {
                back += usize::from(
                    done.batch.take().is_some_and(|batch| batch.messages()[0].bytes == 100 * done.tag as usize),
                );
                assert!(done.tag == 7 || done.batch.is_none() || done.result >= 0);
                for chunk in &done.chunks {
                    let (about, payload) = ring.datagrams(chunk).expect("a header");
                    assert!(payload.iter().all(|byte| usize::from(*byte) == about.datagrams()));
                    assert_eq!(about.peer, from.local_addr().expect("bound"));
                    assert_eq!(about.local, Some(std::net::Ipv4Addr::LOCALHOST.into()));
                    received.push((payload.len(), about.segment));
                }
                ring.recycle(done.chunks);
            }
            ring.publish();
            if (received.len(), back) == (3, 3) {
                break;
            }
        }
        assert_eq!((received, back), (vec![(100, 100), (200, 100), (300, 100)], 3), "zero copy {zero_copy}");
        ring.cancel(receive);
        until(&mut ring, 7);
    }
}

#[test]
fn a_read_waits_and_its_buffer_comes_back() {
    let (mut a, b) = UnixStream::pair().expect("a pair");
    let mut ring = ring();
    ring.read(b.as_raw_fd(), ReadBuffer::new(100), 5);
    ring.enter(None).expect("the ring");
    a.write_all(b"later").expect("room");
    let done = until(&mut ring, 5);
    assert_eq!(done.read.expect("it comes back").bytes(done.result as usize), b"later");
}
