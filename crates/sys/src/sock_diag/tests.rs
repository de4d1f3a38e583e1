//! Reads from the kernel, and from a pair of sockets whose other end plays the kernel.
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;

use super::*;

/// A request for all TCP listeners without attributes (struct inet_diag_req_v2), with this sequence number.
fn listeners(sequence: u32) -> Vec<u8> {
    let mut request = Vec::new();
    for word in [72u32, 20 | 0x301 << 16, sequence, 0] {
        request.extend_from_slice(&word.to_ne_bytes());
    }
    request.extend_from_slice(&[libc::AF_INET as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend_from_slice(&(1u32 << 10).to_ne_bytes());
    request.extend_from_slice(&[0; 48]);
    request
}

/// Ports of the sockets in an answer, read to its end.
fn ports(reader: &mut Plain, sequence: u32) -> io::Result<Vec<u16>> {
    reader.ask(&listeners(sequence))?;
    let (mut ports, mut done) = (Vec::new(), false);
    while !done {
        reader.receive(&mut |part| {
            let mut at = 0;
            while at < part.len() {
                let word = |at: usize| u32::from_ne_bytes(part[at..at + 4].try_into().expect("4 bytes"));
                assert_eq!(word(at + 8), sequence);
                match word(at + 4) & 0xffff {
                    3 => done = true,
                    20 => ports.push(u16::from_be_bytes([part[at + 20], part[at + 21]])),
                    other => panic!("a message of type {other}"),
                }
                at += (word(at) as usize).next_multiple_of(4);
            }
        })?;
    }
    Ok(ports)
}

#[test]
fn dumps_are_read_again_and_again_from_one_socket() {
    // A dump of these takes several messages.
    let own: Vec<TcpListener> = (0..600).map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback")).collect();
    let mut reader = Plain::default();
    reader.attach(DiagSocket::open().expect("needs no privilege"));
    for sequence in 1..4 {
        let seen = ports(&mut reader, sequence).expect("a dump");
        let missing = own.iter().filter(|l| !seen.contains(&l.local_addr().expect("bound").port())).count();
        assert_eq!(missing, 0);
    }
    let socket = reader.detach().expect("attached");
    assert!(reader.ask(&listeners(9)).is_err(), "nothing is attached");
    // Nothing of the reader is in flight: another one can go on with the socket.
    let mut other = Plain::default();
    other.attach(socket);
    assert!(ports(&mut other, 10).expect("a dump").len() >= own.len());
}

#[test]
fn a_reader_goes_from_socket_to_socket() {
    let own = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = own.local_addr().expect("bound").port();
    let mut reader = Plain::default();
    for sequence in 0..20 {
        reader.attach(DiagSocket::open().expect("needs no privilege"));
        assert!(ports(&mut reader, sequence).expect("a dump").contains(&port));
        assert!(reader.detach().is_some());
    }
}

/// A reader whose kernel is this test.
fn played() -> (UnixDatagram, Plain) {
    let (kernel, ours) = UnixDatagram::pair().expect("a pair");
    let mut reader = Plain::default();
    reader.attach(DiagSocket::from_fd(ours.into()).expect("a socket"));
    (kernel, reader)
}

#[test]
fn more_messages_than_buffers_come_in_order() {
    let (kernel, mut reader) = played();
    reader.ask(b"request").expect("sent");
    let sending = std::thread::spawn(move || {
        for number in 0..200u32 {
            kernel.send(&number.to_ne_bytes().repeat(2000)).expect("room sooner or later");
        }
        kernel
    });
    let mut got = Vec::new();
    while got.len() < 200 {
        reader
            .receive(&mut |part| {
                assert_eq!(part.len(), 8000);
                got.push(u32::from_ne_bytes(part[..4].try_into().expect("4 bytes")));
            })
            .expect("messages");
    }
    assert_eq!(got, (0..200).collect::<Vec<_>>());
    let kernel = sending.join().expect("sent");
    let mut request = [0; 16];
    assert_eq!(kernel.recv(&mut request).expect("the request"), 7);
}

#[test]
fn silence_ends_with_a_time_out() {
    let (_kernel, mut reader) = played();
    reader.ask(b"request").expect("sent");
    let silence = reader.receive(&mut |_| panic!("nothing was sent"));
    assert_eq!(silence.expect_err("nothing comes").kind(), io::ErrorKind::TimedOut);
}

#[test]
fn replies_that_the_kernel_dropped_are_reported() {
    // A receive buffer that is too small for the answer to the second request, while the first still waits in it.
    let mut reader = Plain::default();
    let socket = DiagSocket::open().expect("needs no privilege");
    let small: libc::c_int = 1;
    // SAFETY: `small` is valid for the length that is passed, and only read.
    let set = unsafe {
        let (value, len) = ((&raw const small).cast(), size_of::<libc::c_int>() as libc::socklen_t);
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, value, len)
    };
    assert_eq!(set, 0);
    let _own: Vec<TcpListener> = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback")).collect();
    // The kernel replies to each invalid request at once with a message, and the messages are not read.
    for _ in 0..100 {
        let bad = [20u32, 77 | 5 << 16, 1, 0, 0].map(u32::to_ne_bytes).concat();
        // SAFETY: pointer and length are those of `bad`, which outlives the call.
        unsafe { libc::send(socket.as_fd().as_raw_fd(), bad.as_ptr().cast(), bad.len(), 0) };
    }
    reader.attach(socket);
    let mut overflowed = false;
    for _ in 0..200 {
        match reader.receive(&mut |_| {}) {
            Ok(()) => {}
            Err(error) => {
                overflowed = error.raw_os_error() == Some(libc::ENOBUFS);
                break;
            }
        }
    }
    assert!(overflowed);
}

#[test]
fn a_socket_of_another_namespace_is_read_from_here() {
    if !parshall_testkit::root("SOCK_DIAG of another namespace") {
        return;
    }
    let here = TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound").port();
    let opener = Opener::default();
    let mut reader = Plain::default();
    let netns = crate::netns::NetNs::create("diag").expect("a namespace");
    let there = netns.run(|| TcpListener::bind("127.0.0.1:0")).expect("loopback");
    let file = netns.as_fd().try_clone_to_owned().expect("a descriptor");
    reader.attach(opener.open(file).expect("root may"));
    let seen = ports(&mut reader, 1).expect("a dump");
    assert_eq!(seen, [there.local_addr().expect("bound").port()]);
    assert!(!seen.contains(&here));
    let socket = reader.detach().expect("attached");
    // It outlives the name, and goes on showing the same.
    drop(netns);
    reader.attach(socket);
    assert_eq!(ports(&mut reader, 2).expect("a dump").len(), 1);
    let file = std::fs::File::open("/dev/null").expect("/dev/null opens");
    assert!(opener.open(file.into()).is_err());
    // The thread is at home: what it opens for itself is of our namespace.
    let own = std::fs::File::open("/proc/self/ns/net").expect("ours");
    opener.open(own.into()).expect("ours can be entered");
}
