//! Rings on socket pairs.
use std::io::Write;
use std::net::UdpSocket;
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

fn until_all(ring: &mut Ring) -> Vec<Completion> {
    let mut seen = Vec::new();
    ring.enter(Some(Duration::from_millis(50))).expect("the ring");
    ring.reap(&mut seen);
    seen
}

#[test]
fn messages_are_received_until_no_buffer_is_left_and_none_is_lost() {
    let (a, b) = UnixDatagram::pair().expect("a pair");
    let mut ring = ring();
    // One more than there are buffers.
    let sent: Vec<Vec<u8>> = (0..5).map(|number| vec![number; 100 + usize::from(number)]).collect();
    for message in &sent {
        a.send(message).expect("space");
    }
    let (mut got, mut held, mut ends) = (Vec::new(), Vec::new(), 0);
    ring.recv_messages(b.as_raw_fd(), 1, 17);
    while got.len() < sent.len() {
        for done in until_all(&mut ring) {
            got.extend(done.chunk.iter().map(|chunk| ring.bytes(chunk).to_vec()));
            held.extend(done.chunk);
            // It ends with the last buffer or with ENOBUFS.
            if !done.more {
                ends += 1;
                ring.recycle(held.drain(..));
                ring.publish();
                ring.recv_messages(b.as_raw_fd(), 1, 17);
            }
        }
    }
    assert_eq!((got, ends), (sent, 1));
}

#[test]
fn chunks_belong_to_their_ring() {
    let (a, b) = UnixDatagram::pair().expect("a pair");
    let mut large = Ring::open(Sizes { buffer_bytes: 65_536, ..SIZES }).expect("io_uring works here");
    let mut other = ring();
    large.recv_messages(b.as_raw_fd(), 1, 17);
    a.send(&[1; 60_000]).expect("space");
    let mut chunk = until(&mut large, 17).chunk;
    let refuses = |act: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    assert!(refuses(&mut || drop(other.bytes(chunk.as_ref().expect("a message")).to_vec())));
    assert!(refuses(&mut || other.recycle(chunk.take())));
    assert!(refuses(&mut || _ = other.recv_messages(b.as_raw_fd(), SIZES.groups, 0)), "there is no such group");
    assert_eq!(other.requests.len(), 0);
}

#[test]
fn a_request_in_flight_can_be_cancelled_after_its_descriptor_was_closed() {
    let (a, b) = UnixStream::pair().expect("a pair");
    let mut ring = ring();
    let receive = ring.recv_messages(b.as_raw_fd(), 0, 16);
    assert!(ring.unsubmitted());
    ring.enter(None).expect("the ring");
    assert!(!ring.unsubmitted());
    drop(b);
    // The request holds the socket open.
    (&a).write_all(b"x").expect("not closed yet");
    let got = until(&mut ring, 16);
    ring.recycle(got.chunk);
    ring.cancel(receive);
    assert_eq!(until(&mut ring, 16).result, -libc::ECANCELED);
    // Its slot is used again, its identifier is not.
    let (other, peer) = UnixStream::pair().expect("a pair");
    let second = ring.recv_messages(other.as_raw_fd(), 0, 17);
    assert_ne!(second, receive);
    ring.cancel(receive);
    ring.enter(None).expect("the ring");
    let mut rest = Vec::new();
    ring.reap(&mut rest);
    assert!(rest.is_empty(), "cancellations are not reported, and the second goes on: {rest:?}");
    assert_eq!(ring.requests.len(), 1);
    drop(peer);
    assert_eq!((until(&mut ring, 17).result, ring.requests.len()), (0, 0));
    assert_eq!((&a).write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn more_requests_than_queue_entries_are_all_submitted() {
    let pairs: Vec<_> = (0..40).map(|_| UnixStream::pair().expect("a pair")).collect();
    let mut ring = ring();
    for (i, (_, b)) in pairs.iter().enumerate() {
        ring.recv_messages(b.as_raw_fd(), 0, i as u64);
    }
    ring.enter(None).expect("the ring");
    assert_eq!(ring.requests.len(), 40);
    drop(ring);
}

#[test]
fn two_buffers_under_one_tag_both_come_back() {
    let pairs = [0, 1].map(|_| UnixStream::pair().expect("a pair"));
    let mut ring = ring();
    for ((c, _), text) in pairs.iter().zip(["one", "two"]) {
        ring.send_buffer(c.as_raw_fd(), text.into(), 64);
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
                if let Some(chunk) = &done.chunk {
                    let (about, payload) = ring.datagrams(chunk).expect("a header");
                    assert!(payload.iter().all(|byte| usize::from(*byte) == about.datagrams()));
                    assert_eq!(about.peer, from.local_addr().expect("bound"));
                    assert_eq!(about.local, Some(std::net::Ipv4Addr::LOCALHOST.into()));
                    received.push((payload.len(), about.segment));
                }
                ring.recycle(done.chunk);
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
