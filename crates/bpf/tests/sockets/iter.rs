//! The iterators on a real kernel: every socket of the namespace, compared with other sources. Needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::common::{ready, skip, unprivileged};
use parshall_bpf::sockets::iter::{Iterators, Portion, Table};
use parshall_evidence::socket::selection::state;
use parshall_evidence::socket::{Batch, Group, Groups, Kind, Kinds, Selection, SocketRecord};

const ALL: [Table; 3] = [Table::Tcp, Table::Udp, Table::Unix];

/// All sockets in a table of our namespace, with names.
fn dump(programs: &mut Iterators, table: Table) -> Vec<(SocketRecord, Vec<u8>)> {
    let mut found = Vec::new();
    let (opener, mut reader) = programs.reader();
    let mut iterator = opener.open(table).unwrap();
    reader
        .read(&mut iterator, &mut |portion: &mut Portion| {
            let batch = Batch { records: &portion.records, names: &portion.names };
            found.extend(batch.records.iter().map(|record| (*record, batch.name(record).to_vec())));
        })
        .unwrap();
    found
}

fn inode(socket: &impl AsRawFd) -> u32 {
    std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino() as u32
}

fn one(found: &[(SocketRecord, Vec<u8>)], inode: u32) -> SocketRecord {
    let matching: Vec<_> = found.iter().filter(|(record, _)| record.inode == inode).collect();
    assert_eq!(matching.len(), 1, "inode {inode}");
    matching[0].0
}

/// The cookie according to getsockopt.
fn cookie(socket: &impl AsRawFd) -> u64 {
    const SO_COOKIE: i32 = 57;
    let (mut cookie, mut size) = (0u64, 8);
    // SAFETY: the kernel writes at most `size` bytes into `cookie`.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_COOKIE, (&raw mut cookie).cast(), &raw mut size)
    };
    assert_eq!((done, size), (0, 8));
    cookie
}

#[test]
fn tcp_sockets_are_complete_and_correct() {
    if !ready("the iterator over TCP sockets") {
        return;
    }
    let netns = std::fs::metadata("/proc/self/ns/net").unwrap().ino() as u32;
    let mut programs = Iterators::load(&ALL).unwrap();
    programs.select(&Selection::default());
    // An IPv6 listener accepts IPv4 as well.
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // More than fit into one buffer of the kernel.
    let mut pairs: Vec<(TcpStream, TcpStream)> = (0..300)
        .map(|at| {
            let address = if at % 2 == 0 { "127.0.0.1" } else { "::1" };
            (TcpStream::connect((address, port)).unwrap(), listener.accept().unwrap().0)
        })
        .collect();
    for (client, server) in &mut pairs {
        client.write_all(&[1; 1000]).unwrap();
        server.read_exact(&mut [0; 400]).unwrap();
    }
    let _waiting = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (ended, mut other) = pairs.pop().unwrap();
    ended.shutdown(std::net::Shutdown::Both).unwrap();
    while other.read(&mut [0; 2000]).unwrap() > 0 {}
    let ended_port = ended.local_addr().unwrap().port();
    drop((ended, other));
    let ends = |record: &SocketRecord| (record.local_port, record.remote_port);
    let time_wait = |found: &[(SocketRecord, Vec<u8>)]| {
        found.iter().filter(|(record, _)| record.state == 6 && ends(record) == (ended_port, port)).count()
    };
    let mut found = dump(&mut programs, Table::Tcp);
    // A busy kernel processes the last segments in a separate thread (ksoftirqd).
    let give_up = Instant::now() + Duration::from_secs(10);
    while time_wait(&found) == 0 && Instant::now() < give_up {
        found = dump(&mut programs, Table::Tcp);
    }
    assert_eq!(time_wait(&found), 1, "the end that closed first is in TIME_WAIT");
    let listens = one(&found, inode(&listener));
    assert_eq!((listens.state, listens.local_port, listens.family, listens.accept_queue), (10, port, 10, 1));
    for (client, server) in &pairs {
        let (client_record, record) = (one(&found, inode(client)), one(&found, inode(server)));
        assert_eq!((record.state, record.local_port, record.remote_port), (1, port, client_record.local_port));
        assert_eq!(record.remote_port, client.local_addr().unwrap().port());
        assert_eq!((record.netns, record.protocol, record.sock_type), (netns, 6, 1));
        assert_eq!((record.bytes_received, record.rqueue_bytes), (1000, 600));
        assert_eq!((client_record.bytes_sent, client_record.cookie), (1000, cookie(client)));
        assert!(record.address != 0 && record.address != client_record.address);
        assert!(record.rtt_us > 0 && record.snd_cwnd > 0 && record.sndbuf_bytes > 0);
        assert_eq!(&record.congestion[..3], &std::fs::read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap()[..3]);
    }
    programs.select(&Selection {
        groups: Groups::of([Group::Traffic]),
        states: 1 << state::LISTEN,
        ..Selection::default()
    });
    let listeners = dump(&mut programs, Table::Tcp);
    assert!(listeners.iter().all(|(record, _)| record.state == state::LISTEN && record.sndbuf_bytes == 0));
    assert_eq!(one(&listeners, inode(&listener)).local_port, port);
    assert!(programs.left_out().0 >= 600, "{:?}", programs.left_out());
}

/// An MPTCP socket that listens on a free port; None if the kernel has no MPTCP.
fn mptcp_listener() -> Option<TcpListener> {
    // SAFETY: three integers; the kernel returns a new descriptor or -1.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_MPTCP) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it. Listening binds it to a free port.
    unsafe { (libc::listen(fd, 8) == 0).then_some(()).map(|()| TcpListener::from(OwnedFd::from_raw_fd(fd))) }
}

#[test]
fn an_mptcp_connection_is_found_by_its_first_subflow() {
    if !ready("MPTCP connections of the iterator over TCP sockets") {
        return;
    }
    let Some(listener) = mptcp_listener() else {
        skip("MPTCP connections of the iterator over TCP sockets", "this kernel has no MPTCP");
        return;
    };
    let mut programs = Iterators::load(&ALL).unwrap();
    programs.select(&Selection { kinds: Kinds::of([Kind::Mptcp]), ..Selection::default() });
    let found = dump(&mut programs, Table::Tcp);
    let record = one(&found, inode(&listener));
    let port = listener.local_addr().unwrap().port();
    assert_eq!((record.protocol, record.state, record.local_port, record.accept_limit), (262, 10, port, 8));
    assert!(found.iter().all(|(record, _)| record.protocol == 262));
    programs.select(&Selection { kinds: Kinds::of([Kind::Tcp, Kind::Mptcp]), ..Selection::default() });
    let found = dump(&mut programs, Table::Tcp);
    let both: Vec<u16> = found.iter().filter(|(r, _)| r.local_port == port).map(|(r, _)| r.protocol).collect();
    assert_eq!(both, [262, 6], "the connection and its subflow");
}

#[test]
fn udp_and_unix_sockets_are_complete_and_correct() {
    if !ready("the iterators over UDP and UNIX sockets") {
        return;
    }
    let mut programs = Iterators::load(&ALL).unwrap();
    programs.select(&Selection::default());
    let udp: Vec<UdpSocket> = (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    udp[0].connect(udp[1].local_addr().unwrap()).unwrap();
    udp[0].send(b"four").unwrap();
    let found = dump(&mut programs, Table::Udp);
    for socket in &udp {
        let record = one(&found, inode(socket));
        assert_eq!(
            (record.local_port, record.protocol, record.sock_type),
            (socket.local_addr().unwrap().port(), 17, 2)
        );
        assert_eq!(record.cookie, cookie(socket));
    }
    assert_eq!(one(&found, inode(&udp[0])).state, state::ESTABLISHED);
    assert!(one(&found, inode(&udp[1])).rqueue_bytes >= 4);
    let name = format!("parshall-test-{}", std::process::id());
    let hidden = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
    let path = std::env::temp_dir().join(&name);
    let shown = UnixListener::bind(&path).unwrap();
    let waiting = UnixStream::connect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (left, right) = UnixStream::pair().unwrap();
    let found = dump(&mut programs, Table::Unix);
    let named = |socket: u32| found.iter().find(|(record, _)| record.inode == socket).unwrap().1.clone();
    assert_eq!(named(inode(&hidden)), [&[0], name.as_bytes()].concat());
    assert_eq!(named(inode(&shown)), path.to_str().unwrap().as_bytes());
    assert_eq!(named(inode(&left)), b"");
    let record = one(&found, inode(&shown));
    assert_eq!((record.family, record.state, record.sock_type, record.accept_queue), (1, 10, 1, 1));
    assert_eq!(one(&found, inode(&left)).peer_inode, inode(&right));
    assert_eq!(one(&found, inode(&waiting)).state, state::ESTABLISHED);
}

#[test]
fn tables_that_were_not_loaded_are_unsupported_and_without_privileges_nothing_loads() {
    if !ready("iterators without permission") {
        return;
    }
    let programs = Iterators::load(&[Table::Udp]).unwrap();
    assert_eq!(programs.opener().open(Table::Tcp).unwrap_err().kind(), ErrorKind::Unsupported);
    let answer = unprivileged(|| Iterators::load(&ALL).map(|_| ()).map_err(|error| error.kind()));
    assert_eq!(answer, Err(ErrorKind::PermissionDenied));
}
