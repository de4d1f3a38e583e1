//! Single events of a program whose waits are known: who woke it, on what it waited, when its data arrived. Needs root.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::probed::{Talker, alone, end_with_parent, ready};
use parshall_bpf::diagnose::thread::fd_kind;
use parshall_bpf::diagnose::timeline::{CallWire, OP_ACCEPT, OP_RECEIVE, OP_SEND, OffCpuWire, WakerContext};
use parshall_bpf::diagnose::udp::UdpCallWire;
use parshall_bpf::diagnose::{Config, Event, Probes};
use parshall_evidence::FdKind;

const ROUND: Duration = Duration::from_millis(5);
/// Rounds that are observed, at least.
const ROUNDS: usize = 40;

/// Each thread waits for one kind of thing.
#[test]
#[ignore = "not a test: the body of the child process"]
fn wait() {
    if std::env::var_os("TALK").is_none() {
        return;
    }
    let (mut pipe_end, mut pipe_begin) = std::io::pipe().unwrap();
    thread::spawn(move || while pipe_end.read_exact(&mut [0]).is_ok() {});
    let (sender, receiver) = mpsc::channel::<()>();
    thread::spawn(move || while receiver.recv().is_ok() {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || echo(&listener));
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagram_address = datagrams.local_addr().unwrap();
    thread::spawn(move || echo_datagrams(&datagrams));
    let mut lasting = TcpStream::connect(address).unwrap();
    let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
    asker.connect(datagram_address).unwrap();
    let mut file = tempfile();
    end_with_parent();
    println!("talking");
    loop {
        thread::sleep(ROUND);
        pipe_begin.write_all(&[1]).unwrap();
        sender.send(()).unwrap();
        ask(&mut lasting);
        ask(&mut TcpStream::connect(address).unwrap());
        asker.send(&[1; 30]).unwrap();
        asker.recv(&mut [0; 30]).unwrap();
        file.write_all(&[1; 4096]).unwrap();
        file.sync_all().unwrap();
    }
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("parshall-wait-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

fn ask(stream: &mut TcpStream) {
    stream.write_all(&[1; 100]).unwrap();
    stream.read_exact(&mut [0; 50]).unwrap();
}

/// Reads each request in two parts: the second had arrived with the first.
fn echo(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        thread::spawn(move || {
            while stream.read_exact(&mut [0; 60]).is_ok() && stream.read_exact(&mut [0; 40]).is_ok() {
                stream.write_all(&[1; 50]).unwrap();
            }
        });
    }
}

fn echo_datagrams(socket: &UdpSocket) {
    let mut datagram = [0; 100];
    loop {
        let (length, from) = socket.recv_from(&mut datagram).unwrap();
        socket.send_to(&datagram[..length], from).unwrap();
    }
}

/// The records of the child in one slice.
struct Observed {
    slice: (u64, u64),
    tids: HashSet<u32>,
    off: Vec<OffCpuWire>,
    calls: Vec<CallWire>,
    datagrams: Vec<UdpCallWire>,
    /// Of connections, listeners are left out.
    flows: HashSet<u64>,
    established: HashMap<u64, u64>,
}

impl Observed {
    fn of(talker: &Talker, as_older: bool) -> Self {
        let mut probes = Probes::load(&Config { as_older, ..talker.config(64) }).unwrap();
        probes.attach_always().unwrap();
        probes.owners().unwrap();
        let mut tids: HashSet<u32> = probes.threads().unwrap().iter().map(|dump| dump.tid).collect();
        let begin = probes.begin_slice().unwrap();
        // A round takes as long as the disk does.
        let (mut events, give_up) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        let is_round = |event: &Event| matches!(event, Event::OffCpu(off) if fd_kind(off.fd) == FdKind::Pipe);
        while events.iter().filter(|event| is_round(event)).count() < ROUNDS && Instant::now() < give_up {
            thread::sleep(ROUND * 50);
            while probes.drain(&mut events) {}
        }
        let end = probes.end_slice();
        let flows = probes.flows().unwrap();
        tids.extend(probes.threads().unwrap().iter().map(|dump| dump.tid));
        while probes.drain(&mut events) {}
        assert_eq!((probes.counters().lost, probes.counters().untracked), (0, 0));
        let mut observed = Self {
            slice: (begin, end),
            tids,
            off: Vec::new(),
            calls: Vec::new(),
            datagrams: Vec::new(),
            flows: flows.iter().map(|dump| dump.flow.cookie).collect(),
            established: flows.iter().map(|dump| (dump.flow.cookie, dump.flow.begin)).collect(),
        };
        for event in events {
            match event {
                Event::OffCpu(off) => observed.off.push(off),
                Event::Call(call) => observed.calls.push(call),
                Event::UdpCall(call) => observed.datagrams.push(call),
                Event::FlowEnd(dump) => {
                    observed.flows.insert(dump.flow.cookie);
                    observed.established.insert(dump.flow.cookie, dump.flow.begin);
                }
                Event::ThreadEnd(dump) => drop(observed.tids.insert(dump.tid)),
                _ => {}
            }
        }
        observed
    }

    /// Sleeps that ended with a wake-up, in calls on this kind of descriptor.
    fn sleeps(&self, fd: FdKind) -> Vec<&OffCpuWire> {
        let woken = |off: &&OffCpuWire| off.waker_context() != WakerContext::Unknown && off.wake < self.slice.1;
        self.off.iter().filter(|off| fd_kind(off.fd) == fd).filter(woken).collect()
    }
}

/// At least nine of ten: preemption and threads that start or end within the slice make exceptions.
fn nearly_all<T: std::fmt::Debug>(of: &[T], what: &str, holds: impl Fn(&T) -> bool) {
    let holding = of.iter().filter(|item| holds(item)).count();
    assert!(of.len() >= 10 && holding * 10 >= of.len() * 9, "{what}: {holding} of {}: {of:#?}", of.len());
}

#[test]
fn sleeps_have_their_waker_and_their_target() {
    if !ready("single sleeps") {
        return;
    }
    let _alone = alone();
    for as_older in [false, true] {
        sleeps_of(as_older);
    }
}

fn sleeps_of(as_older: bool) {
    let talker = Talker::start_as("timeline::wait", "1");
    let seen = Observed::of(&talker, as_older);
    for off in &seen.off {
        assert!(off.begin <= off.wake && off.wake <= off.head.at, "{off:?}");
        assert!(seen.slice.0 <= off.begin && off.head.at <= seen.slice.1, "{off:?} in {:?}", seen.slice);
    }
    let by_thread = |off: &&OffCpuWire| {
        off.waker_context() == WakerContext::Thread
            && off.waker_tid != off.head.tid
            && seen.tids.contains(&off.waker_tid)
    };
    nearly_all(&seen.sleeps(FdKind::Pipe), "a write to the pipe wakes its reader", |off| {
        by_thread(off) && off.target > 0 && off.fd_number >= 0
    });
    let in_call = |nr: libc::c_long| -> Vec<&OffCpuWire> {
        seen.sleeps(FdKind::None).into_iter().filter(|off| i64::from(off.nr) == nr).collect()
    };
    nearly_all(&in_call(libc::SYS_futex), "a futex is woken by a thread", |off| by_thread(off) && off.fd_number == -1);
    nearly_all(&in_call(libc::SYS_clock_nanosleep), "a timer is a hardware interrupt", |off| {
        off.waker_context() == WakerContext::HardIrq
    });
    nearly_all(&seen.sleeps(FdKind::Tcp), "segments on the loopback are received in a softirq", |off| {
        let listens = i64::from(off.nr) == libc::SYS_accept4;
        off.waker_context() == WakerContext::SoftIrq && (listens || seen.flows.contains(&off.target))
    });
    let datagram_cookies: HashSet<u64> = seen.datagrams.iter().map(|call| call.call.cookie).collect();
    nearly_all(&seen.sleeps(FdKind::Udp), "and so are datagrams", |off| {
        off.waker_context() == WakerContext::SoftIrq && datagram_cookies.contains(&off.target)
    });
    // Where the file is in memory, fsync does not sleep.
    let for_file = seen.sleeps(FdKind::File);
    if for_file.len() >= 10 {
        nearly_all(&for_file, "a sleep for a file is uninterruptible", |off| [1, 2].contains(&off.why));
    }
    let still_off: HashSet<u32> =
        seen.off.iter().filter(|off| off.head.at == seen.slice.1).map(|off| off.head.tid).collect();
    assert!(still_off.len() >= 5, "threads that sleep when the slice ends are reported: {still_off:?}");
}

#[test]
fn data_is_received_after_it_was_sent_and_arrived() {
    if !ready("single calls") {
        return;
    }
    let _alone = alone();
    for as_older in [false, true] {
        data_of(as_older);
    }
}

fn data_of(as_older: bool) {
    let talker = Talker::start_as("timeline::wait", "1");
    let seen = Observed::of(&talker, as_older);
    for call in seen.calls.iter().chain(seen.datagrams.iter().map(|datagram| &datagram.call)) {
        assert!(call.since <= call.head.at && seen.tids.contains(&call.head.tid), "{call:?}");
        assert_eq!(call.tgid, talker.pid());
    }
    let of = |op: u8, bytes: u32| -> Vec<&CallWire> {
        seen.calls.iter().filter(|call| call.op == op && call.bytes == bytes).collect()
    };
    // On the loopback data arrives while it is sent.
    let sent_then = |received: &CallWire, sends: &[&CallWire]| {
        sends.iter().any(|send| send.since <= received.since && received.since <= send.head.at)
    };
    let requests = of(OP_SEND, 100);
    nearly_all(&of(OP_RECEIVE, 60), "the first part of a request", |call| sent_then(call, &requests));
    nearly_all(&of(OP_RECEIVE, 40), "its rest, which had arrived with it", |call| sent_then(call, &requests));
    nearly_all(&of(OP_RECEIVE, 50), "the reply", |call| sent_then(call, &of(OP_SEND, 50)));
    nearly_all(&of(OP_ACCEPT, 0), "an accepted connection had been established", |call| {
        seen.established.get(&call.cookie).is_some_and(|begin| *begin <= call.head.at)
    });
    let datagrams = |op: u8, connected: bool| -> Vec<&UdpCallWire> {
        seen.datagrams.iter().filter(|d| d.call.op == op && (d.dport != 0) == connected).collect()
    };
    let asked: Vec<&CallWire> = datagrams(OP_SEND, true).iter().map(|datagram| &datagram.call).collect();
    nearly_all(&datagrams(OP_RECEIVE, false), "a datagram", |datagram| {
        datagram.call.bytes == 30
            && datagram.addresses().0.ip().is_loopback()
            && asked.iter().any(|send| send.head.at.abs_diff(datagram.call.since) < 1_000_000)
    });
    nearly_all(&datagrams(OP_SEND, false), "its answer", |datagram| datagram.call.bytes == 30 && datagram.dport == 0);
}
