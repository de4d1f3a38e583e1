//! Measures the cost of a dump by the walk: makes connections over loopback in several processes and reports the CPU time per socket
//! and dump of each set of groups. Run it as root: `walk_bench [CONNECTIONS [DUMPS [SET [copies]]]]`; with `copies` as kernels before 6.2 do. With 0 connections it reads
//! those that are there. `walk_bench floor OBJECTS PASSES` tells what reading as much memory costs natively.
#![allow(clippy::unwrap_used)] // A panic is the report.
#![allow(unsafe_code)]

mod floor;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use parshall_bpf::sockets::{Means, Walk};
use parshall_evidence::socket::{Group, Groups, Selection, Side};

/// Connections of one process: two descriptors each, of the 20,000 that it may have.
const PER_PROCESS: usize = 9000;

fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next().unwrap_or_else(|| "54000".into());
    if first == "hold" {
        return hold(args.next().unwrap().parse().unwrap(), args.next().unwrap().parse().unwrap());
    }
    if first == "floor" {
        return floor::measure(args.next().unwrap().parse().unwrap(), args.next().unwrap().parse().unwrap());
    }
    let connections: usize = first.parse().unwrap();
    let dumps: usize = args.next().map_or(30, |n| n.parse().unwrap());
    let holders = Holders::start(connections);
    let only = args.next();
    let mut walk = match args.next().as_deref() {
        Some("copies") => Walk::open_by(Means::Copies, usize::MAX).unwrap(),
        _ => Walk::open().unwrap(),
    };
    if let Some(only) = only {
        let (name, groups) = sets().into_iter().find(|(name, _)| name.contains(&only)).unwrap();
        return measure(&mut walk, &name, groups, dumps);
    }
    for (name, groups) in sets() {
        measure(&mut walk, &name, groups, dumps);
    }
    let filtered = Selection { ports: vec![(Side::Either, 1)], ..Default::default() };
    report(&mut walk, "nothing wanted, by port", &filtered, dumps);
    let changed = Selection { changed: true, ..Default::default() };
    report(&mut walk, "all, changed since last", &changed, dumps);
    drop(holders);
}

/// The fields that `ss -tinm` shows.
fn shown_by_ss() -> Groups {
    use Group::{Congestion, Cwnd, Ecn, Limits, Loss, Memory, Options, Queues, Rate, Rtt, Times, Traffic, Window};
    Groups::of([Queues, Rtt, Cwnd, Loss, Traffic, Times, Limits, Window, Rate, Ecn, Memory, Congestion, Options])
}

fn sets() -> Vec<(String, Groups)> {
    let mut sets =
        vec![("identity".into(), Groups::IDENTITY), ("ss -tinm".into(), shown_by_ss()), ("all".into(), Groups::ALL)];
    let single = Group::ALL.into_iter().filter(|g| *g != Group::Identity);
    sets.extend(single.map(|group| (format!("+ {}", group.name()), Groups::of([group]))));
    sets
}

fn measure(walk: &mut Walk, name: &str, groups: Groups, dumps: usize) {
    report(walk, name, &Selection { groups, ..Default::default() }, dumps);
}

fn report(walk: &mut Walk, name: &str, selection: &Selection, dumps: usize) {
    let mut costs: Vec<u64> = Vec::new();
    let mut met = 0;
    for _ in 0..dumps {
        let begin = cpu_ns();
        let told = walk.dump(selection, &mut |_| ()).unwrap();
        costs.push((cpu_ns() - begin) / told.expected.max(1));
        met = told.expected;
        assert_eq!(told.expected, told.emitted + told.filtered + told.torn + told.dropped, "{told:?}");
    }
    costs.sort_unstable();
    println!("{name:24} {met:7} sockets, ns per socket: least {:4}, median {:4}", costs[0], costs[costs.len() / 2]);
}

/// CPU time of this thread, kernel and user.
fn cpu_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is valid for writes.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) }, 0);
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Processes that hold connections until it is dropped.
struct Holders(Vec<Child>);

impl Holders {
    fn start(connections: usize) -> Self {
        let mut holders = Self(Vec::new());
        let mut left = connections;
        while left > 0 {
            let now = left.min(PER_PROCESS);
            left -= now;
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["hold", &now.to_string(), &holders.0.len().to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            holders.0.push(child);
        }
        holders
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn reset_on_close(stream: &TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option's value is a linger of the length that is given.
    let ret = unsafe {
        let value = (&raw const linger).cast();
        let len = size_of::<libc::linger>() as libc::socklen_t;
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len)
    };
    assert_eq!(ret, 0);
}

/// The body of such a process. It ends with its parent, which holds the other end of stdin.
fn hold(connections: usize, place: u8) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes, then for reads.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::new(127, 0, 7, place + 1), 0))).unwrap();
    let mut pairs = Vec::with_capacity(connections);
    for _ in 0..connections {
        // A connection that is reset leaves no TIME_WAIT behind, which the next run would count.
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        server.write_all(b"pong").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        reset_on_close(&client);
        pairs.push((client, server));
    }
    println!("!");
    let _ = std::io::stdin().read(&mut [0]);
}
