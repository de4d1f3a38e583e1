//! Dumps of namespaces of the tests, and answers that a real kernel does not give on demand.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};

use parshall_core::sock_diag::{Reading, Table, decode};
use parshall_evidence::socket::selection::state::{ESTABLISHED, FIN_WAIT2, LISTEN, TIME_WAIT};
use parshall_evidence::socket::{Group, Groups};
use parshall_evidence::socket::{Kind, Kinds, Side};
use parshall_sys::child::is_root;
use parshall_sys::netns::NetNs;
use parshall_sys::sock_diag::DiagSocket;
use parshall_sys::tcp_info::{cookie, tcp_info};

use super::*;
use parshall_testkit::{root, skip};

const TIME_WAIT_SUBSTATES: [u8; 2] = [FIN_WAIT2, TIME_WAIT];

/// Reader threads, as by default.
const READERS: usize = 2;

fn netlink() -> Netlink {
    Netlink::open(READERS).expect("SOCK_DIAG")
}

fn inode(file: &File) -> u32 {
    file.metadata().expect("a namespace").ino() as u32
}

fn inode_of(netns: &NetNs) -> u32 {
    inode(&File::from(netns.as_fd().try_clone_to_owned().expect("a descriptor")))
}

/// All of a dump, and the names of UNIX sockets by their inode.
fn dump(backend: &mut Netlink, selection: &Selection) -> (Vec<SocketRecord>, BTreeMap<u32, Vec<u8>>, Completeness) {
    let (mut records, mut names) = (Vec::new(), BTreeMap::new());
    let account = backend
        .dump(selection, &mut |batch| {
            for record in batch.records {
                if !batch.name(record).is_empty() {
                    names.insert(record.inode, batch.name(record).to_vec());
                }
                records.push(*record);
            }
        })
        .expect("a dump");
    assert_eq!(account.emitted, records.len() as u64);
    assert_eq!(account.expected, account.emitted + account.filtered + account.torn + account.dropped);
    (records, names, account)
}

fn of(netns: u32) -> Selection {
    Selection { namespaces: vec![netns], kinds: Kinds::of(Kind::ALL), ..Default::default() }
}

/// Idle sockets of every kind in the namespace of the calling thread.
struct Scene {
    streams: Vec<(TcpStream, TcpStream)>,
    listener: TcpListener,
    _waiting: TcpStream,
    udp: UdpSocket,
    unix: UnixListener,
    _connected: UnixStream,
    datagrams: (UnixDatagram, UnixDatagram),
    time_wait: u16,
}

impl Scene {
    fn set() -> io::Result<Self> {
        let mut streams = Vec::new();
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(bind)?;
            let mut near = TcpStream::connect(listener.local_addr()?)?;
            let (mut far, _) = listener.accept()?;
            near.write_all(&[7; 5000])?;
            far.read_exact(&mut [0; 4000])?;
            far.write_all(b"back")?;
            streams.push((near, far));
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        let time_wait = near.local_addr()?.port();
        drop(near);
        drop(far);
        let waiting = TcpStream::connect(listener.local_addr()?)?;
        let udp = UdpSocket::bind("[::1]:0")?;
        UdpSocket::bind("[::1]:0")?.send_to(&[1; 300], udp.local_addr()?)?;
        let unix = UnixListener::bind_addr(&UnixAddress::from_abstract_name(b"scene\0of netlink")?)?;
        let connected = UnixStream::connect_addr(&unix.local_addr()?)?;
        let datagrams = UnixDatagram::pair()?;
        datagrams.0.send(&[0; 10])?;
        Ok(Self { streams, listener, _waiting: waiting, udp, unix, _connected: connected, datagrams, time_wait })
    }
}

#[test]
fn records_of_idle_sockets_are_those_of_getsockopt() {
    if !root("sockets of a namespace by netlink") {
        return;
    }
    let netns = NetNs::create("scene").expect("a namespace");
    let scene = netns.run(Scene::set).expect("loopback");
    let (records, names, account) = dump(&mut netlink(), &of(inode_of(&netns)));
    assert_eq!((account.namespaces, account.namespaces_lost, account.interrupted), (1, 0, 0));
    let cookies: BTreeSet<u64> = records.iter().map(|record| record.cookie).collect();
    assert_eq!(cookies.len(), records.len(), "each once");
    assert!(records.iter().all(|record| record.netns == inode_of(&netns)));
    for stream in scene.streams.iter().flat_map(|(near, far)| [near, far]) {
        as_the_socket_says(stream, &records);
    }
    let listener = find(&records, cookie(scene.listener.as_raw_fd()).expect("a socket"));
    assert_eq!((listener.state, listener.accept_queue, listener.unacked, listener.sacked), (LISTEN, 1, 0, 0));
    assert!(listener.accept_limit >= 128 && listener.rqueue_bytes == 0);
    let late = records.iter().find(|r| r.local_port == scene.time_wait).expect("its remainder");
    assert!(TIME_WAIT_SUBSTATES.contains(&late.state) && late.timer == 3 && late.timer_ms > 0 && late.inode == 0);
    let udp = find(&records, cookie(scene.udp.as_raw_fd()).expect("a socket"));
    assert_eq!((udp.protocol, udp.family, udp.local_address), (17, 10, Ipv6Addr::LOCALHOST.octets()));
    assert!(udp.rqueue_bytes >= 300 && udp.rmem_alloc_bytes == udp.rqueue_bytes);
    let unix = find(&records, cookie(scene.unix.as_raw_fd()).expect("a socket"));
    assert_eq!((unix.state, unix.accept_queue, unix.sock_type), (LISTEN, 1, 1));
    assert_eq!(names[&unix.inode], b"\0scene\0of netlink");
    let (from, to) = (scene.datagrams.0.as_raw_fd(), scene.datagrams.1.as_raw_fd());
    let (from, to) = (find(&records, cookie(from).expect("ours")), find(&records, cookie(to).expect("ours")));
    assert_eq!((from.peer_inode, to.peer_inode), (to.inode, from.inode));
    assert_eq!((to.rqueue_bytes, from.rqueue_bytes), (10, 0));
}

fn find(records: &[SocketRecord], cookie: u64) -> &SocketRecord {
    records.iter().find(|record| record.cookie == cookie).unwrap_or_else(|| panic!("no socket {cookie}"))
}

/// The record of an established connection with this `tcp_info`, which is put into a message of SOCK_DIAG.
fn of_tcp_info(info: &[u8]) -> SocketRecord {
    let mut message = vec![0; 72];
    message[1] = ESTABLISHED;
    message.extend_from_slice(&((4 + info.len()) as u16).to_ne_bytes());
    message.extend_from_slice(&2_u16.to_ne_bytes());
    message.extend_from_slice(info);
    let reading = Reading { groups: Groups::ALL, layout: Layout::default() };
    let mut record = SocketRecord::default();
    decode(Table::Tcp, &message, &reading, &mut record, &mut Vec::new()).expect("whole");
    record
}

/// Compares with getsockopt(TCP_INFO).
fn as_the_socket_says(stream: &TcpStream, records: &[SocketRecord]) {
    let fd = stream.as_raw_fd();
    let (record, info) = (find(records, cookie(fd).expect("ours")), of_tcp_info(&tcp_info(fd).expect("ours")));
    assert_eq!((record.state, record.local_port), (ESTABLISHED, stream.local_addr().expect("bound").port()));
    assert_eq!(record.remote_port, stream.peer_addr().expect("connected").port());
    let pairs = [
        (record.ca_state.into(), u64::from(info.ca_state)),
        (record.rto_us.into(), info.rto_us.into()),
        (record.rtt_us.into(), info.rtt_us.into()),
        (record.rttvar_us.into(), info.rttvar_us.into()),
        (record.min_rtt_us.into(), info.min_rtt_us.into()),
        (record.snd_mss.into(), info.snd_mss.into()),
        (record.rcv_mss.into(), info.rcv_mss.into()),
        (record.snd_cwnd.into(), info.snd_cwnd.into()),
        (record.snd_ssthresh.into(), info.snd_ssthresh.into()),
        (record.unacked.into(), info.unacked.into()),
        (record.total_retrans.into(), info.total_retrans.into()),
        (record.pacing_bytes_per_s, info.pacing_bytes_per_s),
        (record.delivery_bytes_per_s, info.delivery_bytes_per_s),
        (record.bytes_acked, info.bytes_acked),
        (record.bytes_received, info.bytes_received),
        (record.bytes_sent, info.bytes_sent),
        (record.segs_out.into(), info.segs_out.into()),
        (record.data_segs_in.into(), info.data_segs_in.into()),
        (record.delivered.into(), info.delivered.into()),
        (record.snd_wnd.into(), info.snd_wnd.into()),
        (record.rcv_wnd.into(), info.rcv_wnd.into()),
        (record.busy_us, info.busy_us),
    ];
    for (at, (ours, theirs)) in pairs.into_iter().enumerate() {
        assert_eq!(ours, theirs, "pair {at}");
    }
    assert!(info.bytes_received > 0 && info.snd_cwnd > 0);
}

#[test]
fn ss_says_the_same() {
    if !root("comparison with ss") {
        return;
    }
    let netns = NetNs::create("ss").expect("a namespace");
    let scene = netns.run(Scene::set).expect("loopback");
    let Ok(said) = std::process::Command::new("ss").args(["-tineH", "-N", netns.name()]).output() else {
        skip("comparison with ss", "needs ss");
        return;
    };
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let (records, _, _) = dump(&mut netlink(), &Selection { kinds: Kinds::of([Kind::Tcp]), ..of(inode_of(&netns)) });
    let mut compared = 0;
    for stream in scene.streams.iter().flat_map(|(near, far)| [near, far]) {
        let record = find(&records, cookie(stream.as_raw_fd()).expect("ours"));
        // A socket's second line follows the one with its cookie.
        let (_, rest) = said.split_once(&format!(" sk:{:x} ", record.cookie)).expect("ss sees it too");
        let details = rest.lines().nth(1).unwrap_or_default();
        for word in [
            format!(" cwnd:{} ", record.snd_cwnd),
            format!(" mss:{} ", record.snd_mss),
            format!(" bytes_received:{} ", record.bytes_received),
            format!(" segs_out:{} ", record.segs_out),
            format!(" wscale:{},{} ", record.snd_wscale, record.rcv_wscale),
        ] {
            assert!(details.contains(&word), "no{word}in {details}");
            compared += 1;
        }
    }
    assert_eq!(compared, 20, "five words of four sockets: {said}");
}

#[test]
fn many_sockets_are_selected_without_duplicates() {
    if !root("two thousand sockets by netlink") {
        return;
    }
    let netns = NetNs::create("many").expect("a namespace");
    let made = netns.run(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 7000))?;
        let mut streams = Vec::new();
        for _ in 0..1000 {
            streams.push(TcpStream::connect(listener.local_addr()?)?);
            streams.push(listener.accept()?.0);
        }
        Ok((listener, streams))
    });
    let (_listener, streams) = made.expect("loopback");
    let tcp = Selection { kinds: Kinds::of([Kind::Tcp]), ..of(inode_of(&netns)) };
    let port = streams[0].local_addr().expect("bound").port();
    let there = Arc::new(Mutex::new(vec![namespace(&netns)]));
    let mut backend = with_list(READERS, &there);
    for _ in 0..3 {
        let (records, _, account) = dump(&mut backend, &tcp);
        assert_eq!((records.len(), account.expected), (2001, 2001));
        assert_eq!(records.iter().map(|record| record.cookie).collect::<BTreeSet<_>>().len(), 2001);
    }
    // The kernel applies the port, so other sockets are not even found.
    let (records, _, account) = dump(&mut backend, &Selection { ports: vec![(Side::Either, port)], ..tcp.clone() });
    assert_eq!((records.len(), account.filtered), (2, 0));
    let (records, _, _) = dump(&mut backend, &Selection { states: 1 << LISTEN, ..tcp.clone() });
    assert_eq!(records.len(), 1);
    let cgroup = records[0].cgroup_id;
    let few = Selection { groups: Groups::of([Group::Queues]), cgroups: vec![cgroup], ..tcp.clone() };
    let (records, _, _) = dump(&mut backend, &few);
    assert_eq!(records.len(), 2001);
    assert!(records.iter().all(|r| r.cgroup_id == 0 && r.snd_cwnd == 0 && r.uid == 0 && r.congestion == [0; 16]));
    let none = Selection { cgroups: vec![u64::MAX], ..tcp.clone() };
    assert_eq!(dump(&mut backend, &none).0.len(), 0);
    assert!(backend.counts().is_empty(), "{:?}", backend.counts());
}

/// A backend with a given list of namespaces.
fn with_list(readers: usize, namespaces: &Arc<Mutex<Vec<Namespace>>>) -> Netlink {
    let namespaces = Arc::clone(namespaces);
    let find =
        move |_: &[ForeignSocket]| Found { namespaces: namespaces.lock().expect("not poisoned").clone(), lost: 0 };
    Netlink::with_namespaces(readers, Box::new(find)).expect("SOCK_DIAG")
}

fn namespace(netns: &NetNs) -> Namespace {
    let path = std::path::Path::new("/run/netns").join(netns.name());
    Namespace { inode: inode_of(netns), places: vec![crate::namespaces::Place::Mount(path)] }
}

/// The namespace that the tests run in.
fn home() -> Namespace {
    let inode = inode(&File::open("/proc/self/ns/net").expect("ours"));
    Namespace { inode, places: vec![crate::namespaces::Place::Process(std::process::id())] }
}

#[test]
fn an_ended_namespace_is_counted_and_the_others_are_read() {
    if !root("namespaces that vanish") {
        return;
    }
    let (stays, goes) = (NetNs::create("stays").expect("made"), NetNs::create("goes").expect("made"));
    let _socket = stays.run(|| UdpSocket::bind("127.0.0.1:0")).expect("loopback");
    let there = Arc::new(Mutex::new(vec![namespace(&goes), namespace(&stays)]));
    drop(goes);
    let mut backend = with_list(READERS, &there);
    let all = Selection { kinds: Kinds::of(Kind::ALL), ..Default::default() };
    let (records, _, account) = dump(&mut backend, &all);
    assert_eq!((records.len(), account.namespaces, account.namespaces_lost), (1, 2, 1));
    assert!(backend.counts()["vanished"] >= 1);
}

#[test]
fn only_sockets_of_the_own_namespace_are_kept() {
    if !root("kept sockets") {
        return;
    }
    let other = NetNs::create("kept").expect("made");
    let there = Arc::new(Mutex::new(vec![home(), namespace(&other)]));
    let mut backend = with_list(1, &there);
    for _ in 0..3 {
        dump(&mut backend, &Selection::default());
        assert_eq!(backend.shared.kept.lock().expect("whole").len(), 1);
    }
}

#[test]
fn a_namespace_that_only_a_socket_keeps_alive_is_read() {
    use crate::owners::Owners;
    if !root("namespaces that only sockets keep alive") {
        return;
    }
    let netns = NetNs::create("foreign").expect("made");
    let gone = inode_of(&netns);
    let listener = netns.run(|| TcpListener::bind("127.0.0.1:4712")).expect("loopback");
    drop(netns);
    let mut owners = match crate::owners::Kernel::load() {
        Ok(owners) => owners,
        Err(error) => return skip("namespaces that only sockets keep alive", &error.to_string()),
    };
    let (_, foreign_sockets) = owners.scan_with_foreign_sockets().expect("a pass over descriptors");
    let found = foreign_sockets.iter().find(|foreign| foreign.netns == gone);
    let here = found.expect("its socket is outside the namespace of its process");
    assert_eq!((here.pid, here.fd), (std::process::id(), listener.as_raw_fd() as u32));
    let mut backend = netlink();
    *backend.foreign_sockets().expect("it reads one namespace after the other") = foreign_sockets.clone();
    let (records, _, _) = dump(&mut backend, &Selection { namespaces: vec![gone], ..Selection::default() });
    assert_eq!(records.iter().map(|record| record.local_port).collect::<Vec<_>>(), [4712]);
}

#[test]
fn without_privilege_the_own_namespace_is_read() {
    let own = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let number = cookie(own.as_raw_fd()).expect("ours");
    let elsewhere = is_root().then(|| NetNs::create("refused").expect("made"));
    let there = Arc::new(Mutex::new(std::iter::once(home()).chain(elsewhere.as_ref().map(namespace)).collect()));
    // Threads inherit capabilities.
    let (records, account, counts, missing) = thread::spawn(move || {
        parshall_sys::privileges::drop_capabilities().expect("anybody may");
        let mut backend = with_list(READERS, &there);
        let (records, _, account) = dump(&mut backend, &Selection::default());
        (records, account, backend.counts(), missing_with(0))
    })
    .join()
    .expect("no panic");
    let record = find(&records, number);
    assert_eq!((record.state, record.mark), (LISTEN, 0));
    if elsewhere.is_some() {
        assert_eq!((account.namespaces, account.namespaces_lost), (2, 1));
        assert!(counts["refused"] >= 1);
    }
    assert_eq!(missing.len(), 3);
    assert!(missing_with(u64::MAX).is_empty());
    assert_eq!(effective_capabilities("Name:\tx\nCapEff:\t0000000000203000\n"), 1 << 12 | 1 << 13 | 1 << 21);
}

#[test]
fn threads_end_with_the_backend_and_do_not_grow_with_namespaces() {
    if !root("threads and namespaces") {
        return;
    }
    let netns: Vec<NetNs> = (0..12).map(|_| NetNs::create("threads").expect("made")).collect();
    let there = Arc::new(Mutex::new(netns.iter().map(namespace).collect::<Vec<_>>()));
    let mut backend = with_list(3, &there);
    let (_, _, account) = dump(&mut backend, &Selection { kinds: Kinds::of(Kind::ALL), ..Default::default() });
    assert_eq!((account.namespaces, account.namespaces_lost), (12, 0));
    assert_eq!((backend.threads.len(), backend.orders.len()), (3, 3));
    let held = Arc::downgrade(&backend.shared);
    drop(backend);
    assert!(held.upgrade().is_none(), "the readers have ended");
}

/// A scripted answer of the kernel.
#[derive(Clone)]
enum Step {
    /// A part with sockets of these cookies, and whether it has NLM_F_DUMP_INTR.
    Sockets(&'static [u64], bool),
    /// NLMSG_DONE with this errno.
    Done(i32),
    /// An incomplete message.
    Broken,
    /// An error of the socket.
    Error(i32),
}

struct Scripted {
    answers: VecDeque<Vec<Step>>,
    now: VecDeque<Step>,
    sequence: u32,
    socket: Option<DiagSocket>,
    /// Lengths of the requests.
    asked: Vec<usize>,
}

fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

impl Reader for Scripted {
    fn attach(&mut self, socket: DiagSocket) {
        self.socket = Some(socket);
    }

    fn detach(&mut self) -> Option<DiagSocket> {
        self.socket.take()
    }

    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        self.sequence = u32::from_ne_bytes(request[8..12].try_into().expect("4 bytes"));
        self.asked.push(request.len());
        self.now = self.answers.pop_front().expect("no more readings than the test foresees").into();
        Ok(())
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        match self.now.pop_front().expect("nothing is read beyond the end") {
            Step::Sockets(cookies, interrupted) => {
                let socket = |cookie: &u64| {
                    let mut payload = [0; 72];
                    (payload[0], payload[1], payload[44]) = (2, 1, *cookie as u8);
                    message(20, if interrupted { 0x12 } else { 2 }, self.sequence, &payload)
                };
                take(&cookies.iter().flat_map(socket).collect::<Vec<_>>());
            }
            Step::Done(errno) => take(&message(3, 2, self.sequence, &(-errno).to_ne_bytes())),
            Step::Broken => take(&[200, 0, 0, 0, 1]),
            Step::Error(errno) => return Err(io::Error::from_raw_os_error(errno)),
        }
        Ok(())
    }
}

/// Runs a worker with these answers. Returns cookies, completeness, whether the namespace is lost, error counts and requests.
fn act(
    answers: Vec<Vec<Step>>,
    selection: Selection,
) -> (Vec<u64>, Completeness, bool, BTreeMap<&'static str, u64>, Vec<usize>) {
    let mut backend = with_list(1, &Arc::new(Mutex::new(vec![home()])));
    backend.shared.falls_back.store(false, Relaxed);
    let mut task = backend.plan(&selection);
    task.jobs.truncate(1);
    let worked = work(&backend, &task, answers);
    assert!(worked.reader.answers.is_empty(), "all of it was read");
    let lost = task.lost[0].load(Relaxed);
    let cookies = worked.records.iter().map(|record| record.cookie).collect();
    (cookies, worked.account, lost, backend.counts(), worked.reader.asked)
}

/// The output of a worker.
struct Worked {
    records: Vec<SocketRecord>,
    account: Completeness,
    /// A job was of a table that cannot be read.
    unsupported: bool,
    reader: Scripted,
}

/// Runs a worker with these answers.
fn work(backend: &Netlink, task: &Task, answers: Vec<Vec<Step>>) -> Worked {
    let answers = answers.into();
    let mut reader = Scripted { answers, now: VecDeque::new(), sequence: 0, socket: None, asked: Vec::new() };
    let (replies, arriving) = sync_channel(100);
    Worker::new(&mut reader, &mut Once::default(), &backend.shared, task, &replies).work();
    drop(replies);
    let mut worked = Worked { records: Vec::new(), account: Completeness::default(), unsupported: false, reader };
    for reply in arriving {
        match reply {
            Reply::Records(portion) => worked.records.extend(portion.records.iter().copied()),
            Reply::Ended { account, unsupported } => {
                worked.account += account;
                worked.unsupported |= unsupported;
            }
        }
    }
    worked
}

#[test]
fn an_interrupted_dump_is_repeated_without_duplicates() {
    use Step::{Broken, Done, Error, Sockets};
    let all = Selection::default();
    let whole = |cookies| vec![Sockets(cookies, false), Done(0)];
    for (spoilt, count) in [
        (vec![Sockets(&[1, 2], false), Sockets(&[3], true), Done(0)], "interrupted"),
        (vec![Sockets(&[1, 2, 3], false), Error(libc::ENOBUFS)], "no-buffers"),
        (vec![Sockets(&[1, 2, 3], false), Broken], "broken"),
    ] {
        let (cookies, account, lost, counts, _) = act(vec![spoilt.clone(), whole(&[3, 4, 1, 2])], all.clone());
        assert_eq!((cookies, account.expected, account.interrupted, lost), (vec![1, 2, 3, 4], 4, 1, false), "{count}");
        assert_eq!(counts, BTreeMap::from([(count, 1)]));
        // The number of attempts is limited.
        let (cookies, account, lost, counts, asked) = act(vec![spoilt; 4], all.clone());
        assert_eq!((cookies, account.interrupted, lost, asked.len()), (vec![1, 2, 3], 3, true, 4));
        assert_eq!(counts, BTreeMap::from([(count, 4), ("unsettled", 1)]));
    }
}

#[test]
fn the_request_is_repeated_without_an_unknown_filter() {
    use Step::Done;
    let port = Selection { ports: vec![(Side::Local, 9)], ..Default::default() };
    let answers = vec![vec![Done(libc::EINVAL)], vec![Step::Sockets(&[5], false), Done(0)]];
    let (cookies, account, lost, counts, asked) = act(answers, port);
    assert_eq!((cookies.len(), account.filtered, account.interrupted, lost), (0, 1, 0, false));
    assert!(asked[0] > asked[1] && counts.is_empty());
    // Without a filter EINVAL is an error.
    let (_, _, lost, counts, _) = act(vec![vec![Done(libc::EINVAL)], vec![Done(libc::EINVAL)]], Selection::default());
    assert_eq!((lost, counts), (true, BTreeMap::from([("other", 1)])));
}

#[test]
fn a_table_that_the_kernel_does_not_dump_is_read_from_proc() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut backend = with_list(1, &Arc::new(Mutex::new(vec![home()])));
    let selection =
        Selection { kinds: Kinds::of([Kind::Tcp]), ports: vec![(Side::Local, port)], ..Selection::default() };
    let task = backend.plan(&selection);
    // Refused again where modprobe finds the module: the kernel of this test has it built in, or loads it.
    let answers = vec![vec![Step::Done(libc::ENOENT)], vec![Step::Done(libc::ENOENT)]];
    let Worked { records, account, unsupported, .. } = work(&backend, &task, answers);
    assert!(!unsupported);
    // Other programs of this host may listen at the same port of other addresses.
    let own: Vec<_> = records.iter().filter(|record| record.local_address.starts_with(&[127, 0, 0, 1])).collect();
    assert_eq!(own.iter().map(|r| (r.local_port, r.state, r.protocol)).collect::<Vec<_>>(), [(port, 10, 6)]);
    assert_eq!(own[0].netns, home().inode);
    assert_eq!(account.expected, account.emitted + account.filtered);
    assert_eq!(backend.counts(), BTreeMap::from([("proc-net", 1)]));
}

#[test]
fn timeouts_and_refusals_end_the_job_and_are_counted() {
    let all = Selection::default();
    let (_, _, lost, counts, _) = act(vec![vec![Step::Error(libc::ETIMEDOUT)]], all.clone());
    assert_eq!((lost, counts), (true, BTreeMap::from([("timeout", 1)])));
    let (_, _, lost, counts, _) = act(vec![vec![Step::Done(libc::ENOENT)]], all);
    assert_eq!((lost, counts), (false, BTreeMap::from([("unsupported", 1)])));
}
