//! The walk on a real kernel: it finds sockets of every kind and state once, applies selections, and neither loses nor repeats
//! sockets while connections come and go. Needs root. Tests of several namespaces are beside the backend that uses the walk.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{own_namespace, ready, reset_on_close, skip};
use crate::unused_port::listen_on_unused_port;
use parshall_bpf::kernel_release;
use parshall_bpf::sockets::{Means, Walk};
use parshall_evidence::socket::selection::state;
use parshall_evidence::socket::{Completeness, Group, Groups, Kind, Kinds, Prefix, Selection, Side, SocketRecord};
use parshall_sys::netns::{NetNs, set_sysctl};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The walk, or None where it cannot be tested.
fn open(what: &str) -> Option<Walk> {
    if !ready(what) {
        return None;
    }
    // So that the build for older kernels is tested on newer ones, too.
    let opened = if std::env::var_os("PARSHALL_TEST_WALK_COPIES").is_some() {
        Walk::open_by(Means::Copies, usize::MAX)
    } else {
        Walk::open()
    };
    match opened {
        Ok(walk) => Some(walk),
        Err(parshall_bpf::sockets::WalkError::NotPermitted { .. } | parshall_bpf::sockets::WalkError::Refused(_)) => {
            panic!("root may load it: {:?}", Walk::open())
        }
        Err(error) => {
            skip(what, &error.to_string());
            None
        }
    }
}

/// One dump: its rows with their names, and its completeness.
fn dump(walk: &mut Walk, wanted: &Selection) -> (Vec<(SocketRecord, Vec<u8>)>, Completeness) {
    let mut rows = Vec::new();
    let told = walk
        .dump(wanted, &mut |batch| rows.extend(batch.records.iter().map(|r| (*r, batch.name(r).to_vec()))))
        .unwrap();
    assert_eq!(told.emitted, rows.len() as u64);
    assert_eq!(told.expected, told.emitted + told.filtered + told.torn + told.dropped, "{told:?}");
    assert!(told.namespaces >= 1);
    (rows, told)
}

fn tcp(walk: &mut Walk, wanted: &Selection) -> Vec<SocketRecord> {
    dump(walk, wanted).0.into_iter().map(|(record, _)| record).collect()
}

/// The sockets of this namespace that have one of these ports at either end. In other namespaces, other tests have the same ports.
fn ports(ports: &[u16]) -> Selection {
    let ports = ports.iter().map(|p| (Side::Either, *p)).collect();
    Selection { ports, namespaces: vec![own_namespace()], ..Default::default() }
}

/// A connection over loopback: client, server.
fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn wait_until(what: &str, mut test: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !test() {
        assert!(Instant::now() < end, "{what} within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn option(fd: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    // SAFETY: the option's value is an int, and the length is its size.
    let ret = unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len)
    };
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
}

/// A stream socket of this protocol, bound to 127.0.0.1; None if the kernel has no such protocol.
fn bound(protocol: libc::c_int) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: socket takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero bytes are a valid sockaddr_in.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    // SAFETY: the address is valid for reads of the given length.
    let ret = unsafe {
        let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len)
    };
    assert_eq!(ret, 0);
    Some(fd)
}

#[test]
fn connections_of_both_families_are_found_with_their_numbers() {
    let Some(mut walk) = open("walk: connections") else { return };
    for at in [HERE, Ipv6Addr::LOCALHOST.into()] {
        let listener = listen_on_unused_port(at);
        let port = listener.local_addr().unwrap().port();
        let (mut client, mut server) = pair(&listener);
        client.write_all(&[7; 5000]).unwrap();
        wait_until("5000 bytes arrive", || server.peek(&mut [0; 8192]).unwrap() == 5000);
        server.read_exact(&mut [0; 1000]).unwrap();
        let rows = tcp(&mut walk, &ports(&[port]));
        assert_eq!(rows.len(), 3, "client, server, listener: {rows:?}");
        let client_port = client.local_addr().unwrap().port();
        let row = |local: u16, state: u8| *rows.iter().find(|r| r.local_port == local && r.state == state).unwrap();
        let (sender, receiver) = (row(client_port, 1), row(port, 1));
        let family = if at.is_ipv4() { 2 } else { 10 };
        for r in [sender, receiver] {
            assert_eq!((r.family, r.protocol, r.sock_type), (family, 6, 1));
            assert!(r.address != 0 && r.netns != 0 && r.inode != 0 && r.cgroup_id != 0, "{r:?}");
            assert!(r.snd_mss > 500 && r.rtt_us > 0 && r.rto_us >= 200_000 && r.pmtu > 1000, "{r:?}");
            assert_ne!(r.congestion, [0; 16]);
        }
        assert_eq!((sender.bytes_sent, sender.remote_port), (5000, port));
        assert_eq!((receiver.bytes_received, receiver.rqueue_bytes), (5000, 4000));
        assert_eq!(receiver.remote_port, client_port);
        let address = |ip: std::net::IpAddr| match ip {
            std::net::IpAddr::V4(ip) => [&ip.octets()[..], &[0; 12]].concat(),
            std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        assert_eq!(sender.local_address.to_vec(), address(at));
        assert_eq!(sender.remote_address.to_vec(), address(at));
    }
}

#[test]
fn a_listener_is_found_with_its_queue() {
    let Some(mut walk) = open("walk: listeners") else { return };
    let listener = listen_on_unused_port(HERE);
    let at = listener.local_addr().unwrap();
    // SAFETY: listen takes no pointers.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 7) }, 0);
    let _waiting: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(at).unwrap()).collect();
    let wanted = Selection { states: 1 << state::LISTEN, ..ports(&[at.port()]) };
    wait_until("three connections wait", || tcp(&mut walk, &wanted)[0].accept_queue == 3);
    let rows = tcp(&mut walk, &wanted);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].state, rows[0].accept_limit, rows[0].unacked), (state::LISTEN, 7, 0));
}

#[test]
fn time_wait_and_connection_requests_are_found() {
    let Some(mut walk) = open("walk: TIME_WAIT and NEW_SYN_RECV") else { return };
    let listener = listen_on_unused_port(HERE);
    let port = listener.local_addr().unwrap().port();
    let (client, mut server) = pair(&listener);
    let client_port = client.local_addr().unwrap().port();
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
    drop(server);
    let wanted = Selection { states: 1 << state::TIME_WAIT, ..ports(&[port]) };
    wait_until("TIME_WAIT begins", || !tcp(&mut walk, &wanted).is_empty());
    let rows = tcp(&mut walk, &wanted);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].local_port, rows[0].remote_port, rows[0].timer), (client_port, port, 3));
    assert!((1..=60_000).contains(&rows[0].timer_ms) && rows[0].inode == 0, "{:?}", rows[0]);

    // A listener with TCP_DEFER_ACCEPT keeps a connection request until data arrives.
    option(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 10);
    let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let wanted = Selection { states: 1 << 12, ..ports(&[port]) };
    let rows = tcp(&mut walk, &wanted);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((rows[0].state, rows[0].local_port, rows[0].timer), (12, port, 1));
}

#[test]
fn a_bound_socket_is_found_on_demand() {
    let Some(mut walk) = open("walk: bound sockets") else { return };
    let socket = bound(0).unwrap();
    let inode = std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).map(|m| inode_of(&m)).unwrap();
    let find = |rows: Vec<SocketRecord>| rows.into_iter().filter(|r| r.inode == inode).collect::<Vec<_>>();
    let found = find(tcp(&mut walk, &Selection { states: 1 << 13, ..Default::default() }));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].state, found[0].remote_port), (state::BOUND_INACTIVE, 0));
    assert_ne!(found[0].local_port, 0);
    assert!(find(tcp(&mut walk, &Selection::default())).is_empty(), "not among those that all states give");
}

fn inode_of(metadata: &std::fs::Metadata) -> u32 {
    use std::os::linux::fs::MetadataExt;
    metadata.st_ino() as u32
}

#[test]
fn udp_sockets_are_found_with_their_queues() {
    let Some(mut walk) = open("walk: UDP") else { return };
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let socket = UdpSocket::bind(at).unwrap();
        let address = socket.local_addr().unwrap();
        socket.send_to(&[1; 300], address).unwrap();
        let rows = tcp(&mut walk, &Selection { kinds: Kinds::of([Kind::Udp]), ..ports(&[address.port()]) });
        let rows: Vec<_> = rows.into_iter().filter(|r| r.local_port == address.port()).collect();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].protocol, rows[0].sock_type, rows[0].state), (17, 2, state::CLOSE));
        assert!(rows[0].rqueue_bytes >= 300 && rows[0].inode != 0, "{:?}", rows[0]);
        let to = UdpSocket::bind(at).unwrap();
        to.connect(address).unwrap();
        let rows =
            tcp(&mut walk, &Selection { kinds: Kinds::of([Kind::Udp]), states: 1 << 1, ..ports(&[address.port()]) });
        assert_eq!(rows.len(), 1, "the connected one");
        assert_eq!(rows[0].remote_port, address.port());
    }
}

#[test]
fn unix_sockets_are_found_with_names_and_peers() {
    let Some(mut walk) = open("walk: UNIX") else { return };
    let path = std::env::temp_dir().join(format!("parshall-walk-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let named = UnixListener::bind(&path).unwrap();
    let abstract_name = format!("parshall-walk-{}", std::process::id());
    let datagram =
        UnixDatagram::bind_addr(&std::os::unix::net::SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
    let (mut left, right) = UnixStream::pair().unwrap();
    left.write_all(&[1; 700]).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    datagram.send_to_addr(&[2; 90], &datagram.local_addr().unwrap()).unwrap();
    let (rows, _) = dump(&mut walk, &Selection { kinds: Kinds::of([Kind::Unix]), ..Default::default() });
    let _ = std::fs::remove_file(&path);
    let inode = |fd: i32| std::fs::metadata(format!("/proc/self/fd/{fd}")).map(|m| inode_of(&m)).unwrap();
    let find = |wanted: u32| {
        let found: Vec<_> = rows.iter().filter(|(r, _)| r.inode == wanted).collect();
        assert_eq!(found.len(), 1, "inode {wanted}");
        found[0]
    };
    let (listener, name) = find(inode(named.as_raw_fd()));
    assert_eq!(name, path.as_os_str().as_encoded_bytes());
    assert_eq!((listener.state, listener.sock_type, listener.accept_queue), (state::LISTEN, 1, 1));
    let (queued, name) = find(inode(datagram.as_raw_fd()));
    assert_eq!(name, &[b"\0", abstract_name.as_bytes()].concat());
    assert_eq!((queued.sock_type, queued.rqueue_bytes), (2, 90));
    let (receiver, name) = find(inode(right.as_raw_fd()));
    assert!(name.is_empty());
    assert_eq!((receiver.rqueue_bytes, receiver.peer_inode), (700, inode(left.as_raw_fd())));
    assert_eq!((receiver.family, receiver.state), (1, state::ESTABLISHED));
}

#[test]
fn an_mptcp_connection_is_found_once_beside_its_subflow() {
    let Some(mut walk) = open("walk: MPTCP") else { return };
    let Some(listening) = bound(262) else { return skip("walk: MPTCP", "this kernel has no MPTCP") };
    // SAFETY: listen takes no pointers.
    assert_eq!(unsafe { libc::listen(listening.as_raw_fd(), 5) }, 0);
    let listener = TcpListener::from(listening);
    let port = listener.local_addr().unwrap().port();
    let client = bound(262).unwrap();
    // SAFETY: all-zero bytes are a valid sockaddr_in.
    let mut to: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    to.sin_family = libc::AF_INET as libc::sa_family_t;
    to.sin_port = port.to_be();
    to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    // SAFETY: the address is valid for reads of the given length.
    let ret = unsafe {
        libc::connect(client.as_raw_fd(), (&raw const to).cast(), size_of::<libc::sockaddr_in>() as libc::socklen_t)
    };
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
    let mut client = TcpStream::from(client);
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(&[1; 1234]).unwrap();
    server.read_exact(&mut [0; 1234]).unwrap();
    let rows = tcp(&mut walk, &Selection { kinds: Kinds::of([Kind::Tcp, Kind::Mptcp]), ..ports(&[port]) });
    let of = |protocol: u16, state: u8| rows.iter().filter(move |r| r.protocol == protocol && r.state == state);
    assert_eq!((of(262, 1).count(), of(6, 1).count()), (2, 2), "{rows:?}");
    assert_eq!((of(262, 10).count(), of(6, 10).count()), (1, 1));
    let inode = std::fs::metadata(format!("/proc/self/fd/{}", server.as_raw_fd())).map(|m| inode_of(&m)).unwrap();
    let connection = of(262, 1).find(|r| r.inode == inode).expect("the server's");
    // Linux 6.5 counts the bytes of MPTCP connections.
    let received = if kernel_release::running().unwrap() < (6, 5) { 0 } else { 1234 };
    assert_eq!((connection.mptcp_bytes_received, connection.mptcp_subflows_total), (received, 1));
    let subflow = of(6, 1).find(|r| r.local_port == port).unwrap();
    assert_eq!((subflow.mptcp_token, subflow.ulp), (connection.mptcp_token, 2));
}

#[test]
fn each_rule_selects_in_the_kernel() {
    let Some(mut walk) = open("walk: selection") else { return };
    let listener = listen_on_unused_port(Ipv4Addr::new(127, 0, 9, 1).into());
    let port = listener.local_addr().unwrap().port();
    let (client, _server) = pair(&listener);
    let client_port = client.local_addr().unwrap().port();
    let all = ports(&[port]);
    let count = |walk: &mut Walk, wanted: Selection| tcp(walk, &wanted).len();
    let first = tcp(&mut walk, &all)[0];
    assert_eq!(count(&mut walk, all.clone()), 3);
    assert_eq!(count(&mut walk, Selection { kinds: Kinds::of([Kind::Udp]), ..all.clone() }), 0);
    assert_eq!(count(&mut walk, Selection { states: 1 << state::LISTEN, ..all.clone() }), 1);
    assert_eq!(count(&mut walk, Selection { states: !(1 << state::LISTEN), ..all.clone() }), 2);
    assert_eq!(count(&mut walk, Selection { namespaces: vec![1, first.netns], ..all.clone() }), 3);
    assert_eq!(count(&mut walk, Selection { namespaces: vec![1], ..all.clone() }), 0);
    assert_eq!(count(&mut walk, Selection { cgroups: vec![first.cgroup_id], ..all.clone() }), 3);
    assert_eq!(count(&mut walk, Selection { cgroups: vec![u64::MAX], ..all.clone() }), 0);
    // Other tests may have the same port at another address.
    let here = Prefix { side: Side::Either, network: "127.0.9.1".parse().unwrap(), length: 32 };
    let local = |port| Selection { ports: vec![(Side::Local, port)], prefixes: vec![here], ..Default::default() };
    assert_eq!(count(&mut walk, local(port)), 2);
    assert_eq!(count(&mut walk, Selection { ports: vec![(Side::Remote, port)], ..local(1) }), 1);
    assert_eq!(count(&mut walk, local(client_port)), 1);
    let within = |side, network: &str, length| Selection {
        prefixes: vec![Prefix { side, network: network.parse().unwrap(), length }],
        ..all.clone()
    };
    assert_eq!(count(&mut walk, within(Side::Either, "127.0.9.0", 24)), 3);
    assert_eq!(count(&mut walk, within(Side::Either, "127.0.8.0", 24)), 0);
    assert_eq!(count(&mut walk, within(Side::Remote, "127.0.9.1", 32)), 1, "the client's other end");
    assert_eq!(count(&mut walk, within(Side::Local, "127.0.0.0", 8)), 3);
    assert_eq!(count(&mut walk, within(Side::Local, "::", 0)), 0, "an IPv4 address is in no IPv6 network");
    let groups = Groups::of([Group::Rtt]);
    let rows = tcp(&mut walk, &Selection { groups, states: 1 << 1, ..all });
    assert!(rows.iter().all(|r| r.rtt_us > 0 && r.rcvbuf_bytes == 0 && r.congestion == [0; 16] && r.inode != 0));
}

#[test]
fn only_changed_sockets_are_reported() {
    let Some(mut walk) = open("walk: changed") else { return };
    let listener = listen_on_unused_port(HERE);
    let port = listener.local_addr().unwrap().port();
    let (mut busy, mut sink) = pair(&listener);
    let idle = pair(&listener);
    let wanted = Selection { changed: true, states: 1 << 1, ..ports(&[port]) };
    assert_eq!(tcp(&mut walk, &wanted).len(), 4, "all are new");
    wait_until("the connections settle", || tcp(&mut walk, &wanted).is_empty());
    busy.write_all(b"x").unwrap();
    sink.read_exact(&mut [0; 1]).unwrap();
    let rows = tcp(&mut walk, &wanted);
    let of = |stream: &TcpStream| stream.local_addr().unwrap().port();
    assert!(rows.iter().any(|r| r.local_port == of(&busy)) && rows.iter().any(|r| r.remote_port == of(&busy)));
    assert!(rows.iter().all(|r| r.local_port != of(&idle.0) && r.remote_port != of(&idle.0)), "{rows:?}");
    wait_until("they settle again", || tcp(&mut walk, &wanted).is_empty());
    let another = pair(&listener);
    assert_eq!(tcp(&mut walk, &wanted).iter().filter(|r| r.local_port == of(&another.0)).count(), 1, "it is new");
}

/// Opens and closes connections from three threads until it is dropped. Half of them are reset.
struct Churn {
    stop: std::sync::Arc<AtomicBool>,
    made: std::sync::Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Churn {
    fn start() -> Self {
        let (stop, made) = (std::sync::Arc::new(AtomicBool::new(false)), std::sync::Arc::new(AtomicU64::new(0)));
        let threads = (0..3u8)
            .map(|place| {
                let (stop, made) = (stop.clone(), made.clone());
                std::thread::spawn(move || {
                    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 11, place + 1], 0))).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let (client, server) = pair(&listener);
                        // Reset, so that no TIME_WAIT uses up the ports.
                        client.set_nodelay(true).unwrap();
                        reset_on_close(&client);
                        drop(client);
                        drop(server);
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        Self { stop, made, threads }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn no_socket_is_lost_or_repeated_while_connections_come_and_go() {
    let Some(mut walk) = open("walk: churn") else { return };
    let listener = TcpListener::bind("127.0.10.1:0").unwrap();
    let stable: Vec<_> = (0..400).map(|_| pair(&listener)).collect();
    stable.iter().for_each(|(client, _)| reset_on_close(client));
    let port = listener.local_addr().unwrap().port();
    let expected: Vec<(u16, u16)> = stable
        .iter()
        .map(|(client, _)| client.local_addr().unwrap().port())
        .flat_map(|client| [(client, port), (port, client)])
        .collect();
    let churn = Churn::start();
    let give_up = Instant::now() + Duration::from_secs(120);
    let mut dumps = 0;
    while dumps < 10 || churn.made.load(Ordering::Relaxed) < 1000 {
        assert!(Instant::now() < give_up, "{dumps} dumps, {} connections", churn.made.load(Ordering::Relaxed));
        let (rows, told) = dump(&mut walk, &Selection { groups: Groups::ALL, ..Default::default() });
        let mut seen: HashMap<(u16, u16), u32> = HashMap::new();
        let mine =
            rows.iter().filter(|(r, _)| r.local_address[..3] == [127, 0, 10] || r.remote_address[..3] == [127, 0, 10]);
        for (r, _) in mine {
            *seen.entry((r.local_port, r.remote_port)).or_default() += 1;
        }
        for key in &expected {
            assert_eq!(seen.get(key), Some(&1), "{key:?} in dump {dumps}: {told:?}");
        }
        assert_eq!((told.chains_cut, told.dropped), (0, 0), "{told:?}");
        dumps += 1;
    }
}

#[test]
fn connections_of_several_batches_come_once() {
    if !ready("walk: batches") {
        return;
    }
    for means in [Means::Casts, Means::Copies] {
        let Ok(mut walk) = Walk::open_by(means, 300) else {
            // Only the casts need a newer kernel.
            assert_eq!(means, Means::Casts);
            skip("walk: batches by casts", "this kernel has no bpf_rdonly_cast (Linux 6.2)");
            continue;
        };
        connections_come_once(&mut walk);
    }
}

fn connections_come_once(walk: &mut Walk) {
    let listener = listen_on_unused_port(HERE);
    let held: Vec<_> = (0..1000).map(|_| pair(&listener)).collect();
    held.iter().for_each(|(client, _)| reset_on_close(client));
    let port = listener.local_addr().unwrap().port();
    let rows = tcp(walk, &ports(&[port]));
    let connections = rows.iter().filter(|r| r.remote_port == port || r.local_port == port && r.remote_port != 0);
    let ends: HashSet<(u16, u16)> = connections.clone().map(|r| (r.local_port, r.remote_port)).collect();
    assert_eq!((connections.count(), ends.len()), (2000, 2000));
}

/// A namespace with its own table of connections, which has so few buckets that each has a long chain.
#[test]
fn a_namespace_with_a_table_of_its_own_is_read() {
    let Some(mut walk) = open("walk: own table") else { return };
    let parent = NetNs::create("tables").unwrap();
    if parent.run(|| set_sysctl("net.ipv4.tcp_child_ehash_entries", "32")).is_err() {
        return skip("walk: own table", "namespaces have none here (Linux 6.1)");
    }
    // The setting of a namespace applies to those that are created from it.
    let netns = parent.run(|| NetNs::create("table")).unwrap();
    let (listener, held) = netns
        .run(|| {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let held: Vec<_> = (0..500).map(|_| pair(&listener)).collect();
            Ok((listener, held))
        })
        .unwrap();
    held.iter().for_each(|(client, _)| reset_on_close(client));
    let port = listener.local_addr().unwrap().port();
    let there = netns.run(|| Ok(ports(&[port]))).unwrap();
    let rows = tcp(&mut walk, &Selection { kinds: Kinds::of([Kind::Tcp, Kind::Unix]), ..there });
    let mine = rows.iter().filter(|r| r.local_port == port || r.remote_port == port);
    let ends: HashSet<(u16, u16)> = mine.clone().map(|r| (r.local_port, r.remote_port)).collect();
    let spaces: HashSet<u32> = mine.clone().map(|r| r.netns).collect();
    assert_eq!((mine.count(), ends.len(), spaces.len()), (1001, 1001, 1));
    assert_eq!(rows.len(), 1001, "unix sockets have no port");
}

/// Both builds of the program give the same rows, in every field that does not change while nothing happens.
#[test]
fn casts_and_copies_read_the_same() {
    if !ready("walk: both builds") {
        return;
    }
    let Ok(mut casts) = Walk::open_by(Means::Casts, usize::MAX) else {
        return skip("walk: both builds", "this kernel has no bpf_rdonly_cast (Linux 6.2)");
    };
    let mut copies = Walk::open_by(Means::Copies, usize::MAX).unwrap();
    let netns = NetNs::create("same").unwrap();
    let held = netns
        .run(|| {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let six = TcpListener::bind("[::1]:0")?;
            let mut pairs: Vec<_> = (0..20).map(|_| pair(&listener)).chain((0..20).map(|_| pair(&six))).collect();
            for (client, _) in &mut pairs {
                client.write_all(&[1; 3000])?;
            }
            let udp = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("[::1]:0")?];
            let bound = bound(0);
            Ok((listener, six, pairs, udp, UnixStream::pair()?, bound))
        })
        .unwrap();
    let here = netns.run(|| Ok(own_namespace())).unwrap();
    let wanted = Selection { namespaces: vec![here], groups: Groups::ALL, states: !0 - 1, ..Default::default() };
    let read = |walk: &mut Walk| {
        let mut rows: Vec<_> =
            dump(walk, &wanted).0.into_iter().map(|(record, name)| (timeless(record), name)).collect();
        rows.sort_by_key(|(record, _)| record.address);
        rows
    };
    // Delayed acknowledgements and probes of the tail end.
    wait_until("two dumps are alike", || {
        let (left, right) = (read(&mut casts), read(&mut copies));
        assert_eq!(left.len(), right.len());
        // 80 ends of connections and two UDP sockets at least; UNIX sockets and listeners beside them.
        assert!(left.len() >= 82, "{}", left.len());
        left == right
    });
    drop(held);
}

/// The record without the fields that count time.
fn timeless(record: SocketRecord) -> SocketRecord {
    SocketRecord { timer_ms: 0, last_data_sent_ms: 0, last_data_recv_ms: 0, last_ack_recv_ms: 0, busy_us: 0, ..record }
}

#[test]
#[ignore = "not a test: the body of the child with few capabilities"]
fn with_few_capabilities() {
    let mut walk = Walk::open().unwrap();
    let rows = tcp(&mut walk, &Selection::default());
    assert!(!rows.is_empty());
    println!("walked");
}

#[test]
fn two_capabilities_suffice_and_a_missing_one_is_named() {
    if open("walk: capabilities").is_none() {
        return;
    }
    let _socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let run = |caps: &str| {
        std::process::Command::new("setpriv")
            .args([format!("--bounding-set={caps}"), format!("--inh-caps={caps}")])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "walk::with_few_capabilities", "--ignored", "--nocapture"])
            .output()
    };
    let Ok(both) = run("-all,+bpf,+perfmon") else { return skip("walk: capabilities", "setpriv is not installed") };
    let text = |out: &std::process::Output| format!("{out:?}");
    assert!(both.status.success() && text(&both).contains("walked"), "{}", text(&both));
    let one = run("-all,+bpf").unwrap();
    assert!(!one.status.success() && text(&one).contains("CAP_PERFMON"), "{}", text(&one));
    let none = run("-all").unwrap();
    assert!(!none.status.success() && text(&none).contains("CAP_BPF"), "{}", text(&none));
}
