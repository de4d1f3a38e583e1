//! Batches over loopback sockets.
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use super::*;

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
    socket
}

fn pair() -> (UdpSocket, UdpSocket) {
    let (a, b) = (socket(), socket());
    a.connect(b.local_addr().expect("bound")).expect("loopback");
    b.connect(a.local_addr().expect("bound")).expect("loopback");
    (a, b)
}

/// Receives one datagram with the standard library.
fn take(socket: &UdpSocket) -> Vec<u8> {
    let mut buf = vec![0; 65_536];
    let n = socket.recv(&mut buf).expect("a datagram within five seconds");
    buf.truncate(n);
    buf
}

#[test]
fn a_batch_is_received_in_one_call_with_sizes_and_sender() {
    let (from, to) = pair();
    for size in [1, 0, 65_507, 300] {
        from.send(&vec![size as u8; size]).expect("loopback takes it");
    }
    let mut batch = DatagramBatch::new(8);
    assert_eq!(batch.receive(to.as_fd(), true).expect("data is there"), 4);
    let sizes: Vec<_> = batch.received().iter().map(|r| (r.bytes, r.datagrams())).collect();
    assert_eq!(sizes, [(1, 1), (0, 1), (65_507, 1), (300, 1)]);
    assert!(batch.received().iter().all(|r| r.peer == from.local_addr().expect("bound") && !r.truncated));
    assert!(batch.payload(2).iter().all(|&b| b == 65_507_usize as u8));
    let error = batch.receive(to.as_fd(), true).expect_err("nothing is left");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn what_the_caller_writes_into_a_slot_is_sent() {
    let (from, to) = pair();
    let mut batch = DatagramBatch::new(2);
    for text in [b"one", b"two"] {
        let slot = batch.take_slot().expect("a slot is free");
        batch.payload_mut(slot)[..3].copy_from_slice(text);
        batch.begin(None, None, 0);
        batch.attach(slot, 3);
        batch.end(3);
    }
    assert_eq!(batch.take_slot(), None);
    // A message is what its slot holds when it is sent.
    batch.payload_mut(1)[0] = b'T';
    assert_eq!(batch.transmit(from.as_fd(), 0).expect("loopback takes it"), 2);
    assert_eq!((take(&to), take(&to)), (b"one".to_vec(), b"Two".to_vec()));
    batch.clear();
    assert_eq!(batch.take_slot(), Some(0));
}

#[test]
fn full_slots_leave_the_rest_in_the_socket() {
    let (from, to) = pair();
    for n in 0..5_u8 {
        from.send(&[n]).expect("loopback takes it");
    }
    let mut batch = DatagramBatch::new(3);
    assert_eq!(batch.receive(to.as_fd(), false).expect("data is there"), 3);
    assert_eq!(batch.receive(to.as_fd(), false).expect("no slot is free"), 0);
    batch.clear();
    assert_eq!(batch.receive(to.as_fd(), false).expect("data is there"), 2);
    assert_eq!((batch.payload(0), batch.payload(1)), (&[3][..], &[4][..]));
}

#[test]
fn slots_sent_as_one_message_arrive_as_the_datagrams_they_were() {
    let ((from, into), (out, to)) = (pair(), pair());
    let sizes = [100, 100, 100, 7];
    for (n, size) in sizes.iter().enumerate() {
        from.send(&vec![n as u8; *size]).expect("loopback takes it");
    }
    let mut batch = DatagramBatch::new(8);
    assert_eq!(batch.receive(into.as_fd(), false).expect("data is there"), 4);
    batch.begin(None, None, 9);
    (0..4).for_each(|slot| batch.attach(slot, sizes[slot]));
    batch.end(100);
    assert_eq!((batch.messages()[0].datagrams(), batch.messages()[0].tag), (4, 9));
    assert_eq!(batch.transmit(out.as_fd(), 0).expect("loopback takes it"), 1);
    for (n, size) in sizes.iter().enumerate() {
        assert_eq!(take(&to), vec![n as u8; *size]);
    }
    // And part by part.
    for part in 0..4 {
        batch.transmit_part(out.as_fd(), 0, part).expect("loopback takes it");
    }
    for (n, size) in sizes.iter().enumerate() {
        assert_eq!(take(&to), vec![n as u8; *size]);
    }
}

#[test]
fn a_super_datagram_is_received_whole_and_sent_on_whole() {
    let ((from, into), (out, to), (next, last)) = (pair(), pair(), pair());
    options::gather_on_receive(to.as_fd()).expect("Linux 5.0");
    for n in 0..3_u8 {
        from.send(&[n; 50]).expect("loopback takes it");
    }
    let mut batch = DatagramBatch::new(4);
    batch.receive(into.as_fd(), false).expect("data is there");
    batch.begin(None, None, 0);
    (0..3).for_each(|slot| batch.attach(slot, 50));
    batch.end(50);
    batch.transmit(out.as_fd(), 0).expect("loopback takes it");
    batch.clear();
    assert_eq!(batch.receive(to.as_fd(), false).expect("data is there"), 1, "one slot for three datagrams");
    let received = batch.received()[0];
    assert_eq!((received.bytes, received.segment, received.datagrams()), (150, 50, 3));
    batch.begin(None, None, 0);
    batch.attach(0, 150);
    batch.end(50);
    batch.transmit(next.as_fd(), 0).expect("loopback takes it");
    for n in 0..3_u8 {
        assert_eq!(take(&last), [n; 50]);
    }
}

#[test]
fn the_bits_of_ecn_pass_in_gso_batches_and_in_parts() {
    for (ipv6, address) in [(false, "127.0.0.1:0"), (true, "[::1]:0")] {
        let [from, to] = [0, 1].map(|_| UdpSocket::bind(address).expect("loopback"));
        options::report_ecn(to.as_fd(), ipv6).expect("a UDP socket");
        options::report_local_address(to.as_fd(), ipv6).expect("a UDP socket");
        options::report_arrival(to.as_fd()).expect("a UDP socket");
        for ecn in [2, 1, 3, 0] {
            let mut batch = DatagramBatch::new(4);
            let slot = batch.take_slot().expect("a slot is free");
            batch.begin(Some(&to.local_addr().expect("bound")), None, 0);
            batch.set_ecn(ecn);
            batch.attach(slot, 300);
            batch.end(100);
            assert_eq!(batch.transmit(from.as_fd(), 0).expect("loopback takes it"), 1);
            batch.transmit_part(from.as_fd(), 0, 0).expect("loopback takes it");
            batch.clear();
            assert_eq!(batch.receive(to.as_fd(), true).expect("data is there"), 4);
            let unix = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock after 1970");
            let arrived =
                |received: &Received| received.arrived.is_some_and(|at| at > Duration::from_secs(1) && at <= unix);
            let right = |received: &Received| received.ecn == ecn && received.interface == 1 && arrived(received);
            assert!(batch.received().iter().all(right), "{batch:?}");
        }
    }
}

#[test]
fn a_reply_leaves_from_the_address_that_was_written_to() {
    let cases =
        [("0.0.0.0:0", false, "127.0.0.1:0", ["127.0.0.1", "127.0.0.2"]), ("[::]:0", true, "[::1]:0", ["::1"; 2])];
    for (wildcard, ipv6, client, addresses) in cases {
        let server = UdpSocket::bind(wildcard).expect("a wildcard");
        options::report_local_address(server.as_fd(), ipv6).expect("a UDP socket");
        let client = UdpSocket::bind(client).expect("loopback");
        client.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
        for address in addresses {
            let address: IpAddr = address.parse().expect("an address");
            let to = SocketAddr::new(address, server.local_addr().expect("bound").port());
            client.send_to(b"?", to).expect("loopback");
            let mut batch = DatagramBatch::new(2);
            batch.receive(server.as_fd(), true).expect("data is there");
            let received = batch.received()[0];
            assert_eq!(received.local, Some(address));
            batch.begin(Some(&received.peer), received.local, 0);
            batch.attach(0, 1);
            batch.end(1);
            assert_eq!(batch.transmit(server.as_fd(), 0).expect("loopback takes it"), 1);
            let (_, from) = client.recv_from(&mut [0; 8]).expect("a reply within five seconds");
            assert_eq!(from, to);
        }
    }
}

/// Two sockets on one address, with `steer_by_source`.
fn group(ip: std::net::IpAddr) -> ([UdpSocket; 2], SocketAddr) {
    use std::os::fd::FromRawFd;
    let reuse = |port: u16| {
        let domain = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: socket() takes no pointers; its result is checked, and nothing else owns it.
        let socket = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0);
        // SAFETY: as above.
        let socket = unsafe { UdpSocket::from_raw_fd(socket) };
        let (on, name) = (1_i32, Name::new(&SocketAddr::from((ip, port))));
        // SAFETY: the option and the name live across the calls, with the lengths given.
        let bound = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), 4)
                + libc::bind(socket.as_raw_fd(), (&raw const name).cast(), name.len())
        };
        assert_eq!(bound, 0);
        socket
    };
    let first = reuse(0);
    let to = first.local_addr().expect("bound");
    let group = [reuse(to.port()), first];
    options::steer_by_source(group[0].as_fd(), 2).expect("Linux 4.5");
    (group, to)
}

/// The number of datagrams that wait in each of two sockets.
fn counts(group: &[UdpSocket; 2]) -> [usize; 2] {
    let mut batch = DatagramBatch::new(32);
    group.each_ref().map(|socket| batch.receive(socket.as_fd(), true).unwrap_or(0))
}

#[test]
fn one_source_address_goes_to_one_socket_of_a_group() {
    let (group, to) = group(std::net::Ipv4Addr::LOCALHOST.into());
    let mut hit = [0, 0];
    for host in 1..=16_u8 {
        for _port in 0..8 {
            let client = UdpSocket::bind((std::net::Ipv4Addr::new(127, 0, 0, host), 0)).expect("loopback");
            client.send_to(b"x", to).expect("loopback");
        }
        let counts = counts(&group);
        assert!(counts == [8, 0] || counts == [0, 8], "{counts:?}");
        hit = [hit[0] + counts[0], hit[1] + counts[1]];
    }
    assert!(hit[0] > 0 && hit[1] > 0, "sixteen sources share two sockets: {hit:?}");
}

#[test]
fn one_slash_64_goes_to_one_socket_of_a_group() {
    let (group, to) = group(std::net::Ipv6Addr::LOCALHOST.into());
    let mut hit = [0, 0];
    for net in 1..=16_u16 {
        for host in 0..8_u16 {
            // Any address of the documentation prefix 2001:db8::/32, which needs CAP_NET_ADMIN.
            let client = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None).expect("a socket");
            if options::any_source(client.as_fd(), true).is_err() {
                return parshall_testkit::skip("datagrams from any IPv6 address", "needs CAP_NET_ADMIN");
            }
            let from = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, net, host, host * 7, 0, host);
            client.bind(&SocketAddr::from((from, 0)).into()).expect("transparent");
            client.send_to(b"x", &to.into()).expect("loopback");
        }
        let counts = counts(&group);
        assert!(counts == [8, 0] || counts == [0, 8], "{counts:?}");
        hit = [hit[0] + counts[0], hit[1] + counts[1]];
    }
    assert!(hit[0] > 0 && hit[1] > 0, "sixteen networks share two sockets: {hit:?}");
}
