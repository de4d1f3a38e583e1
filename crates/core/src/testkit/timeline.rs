//! Timelines made by hand, for tests of critical paths.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use parshall_evidence::FdKind;

use parshall_evidence::timeline::{Names, OffCpu, Op, Socket, SocketCall, Timeline, Waker, Why};

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// A socket accepted at `port`.
pub fn served_socket(port: u16) -> Socket {
    Socket { local: address(port), remote: address(50_000), serves: true, ..client_socket(port) }
}

/// A socket connected to `port`.
pub fn client_socket(port: u16) -> Socket {
    Socket {
        local: address(50_000),
        remote: address(port),
        pid: 0,
        serves: false,
        udp: false,
        opened: false,
        opened_ns: None,
        closed_ns: None,
        other_end: None,
    }
}

/// A timeline under construction: one slice of 1 ms, process 100 is asked about. The process of a thread is its id divided
/// by 10 and multiplied by 10.
pub struct Script {
    /// The timeline so far.
    pub timeline: Timeline,
}

impl Script {
    /// Nothing happened yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Script {
        let mut timeline = Timeline { slices: vec![(0, 1_000_000)], asked_pids: [100].into(), ..Timeline::default() };
        timeline.syscalls.extend([
            (0, "read".to_string()),
            (232, "epoll_wait".to_string()),
            (202, "futex".to_string()),
        ]);
        timeline.syscalls.extend([
            (35, "nanosleep".to_string()),
            (74, "fsync".to_string()),
            (45, "recvfrom".to_string()),
        ]);
        Script { timeline }
    }

    fn thread(&mut self, tid: u32) {
        let pid = tid / 10 * 10;
        self.timeline.observed_pids.entry(pid).or_insert(0);
        let names = Names { pid, thread: format!("t{tid}"), process: format!("p{pid}") };
        self.timeline.names.entry(tid).or_insert(names);
    }

    /// Adds a socket of the process of `tid`.
    pub fn socket(mut self, id: u64, socket: Socket, tid: u32) -> Script {
        self.thread(tid);
        self.timeline.sockets.insert(id, Socket { pid: tid / 10 * 10, ..socket });
        self
    }

    /// Two sockets are the ends of one connection.
    pub fn pair(mut self, a: u64, b: u64) -> Script {
        for (own, other) in [(a, b), (b, a)] {
            if let Some(socket) = self.timeline.sockets.get_mut(&own) {
                socket.other_end = Some(other);
            }
        }
        self
    }

    /// A thread received what had arrived at `since_ns`.
    pub fn receives(self, tid: u32, socket: u64, since_ns: u64, at_ns: u64) -> Script {
        self.call(tid, socket, Op::Receive, since_ns, at_ns)
    }

    /// A thread sent.
    pub fn sends(self, tid: u32, socket: u64, at_ns: u64) -> Script {
        self.call(tid, socket, Op::Send, at_ns, at_ns)
    }

    /// A thread accepted what was established at `since_ns`.
    pub fn accepts(self, tid: u32, socket: u64, since_ns: u64, at_ns: u64) -> Script {
        self.call(tid, socket, Op::Accept, since_ns, at_ns)
    }

    fn call(mut self, tid: u32, socket: u64, op: Op, since_ns: u64, at_ns: u64) -> Script {
        self.thread(tid);
        let call = SocketCall { socket, tid, op, since_ns, at_ns, bytes: 100, peer: 0, frame: None };
        let calls = self.timeline.calls.entry(socket).or_default();
        calls.push(call);
        calls.sort_by_key(|c| c.at_ns);
        self
    }

    /// All calls on a socket, in any order.
    pub fn calls(mut self, socket: u64, calls: impl IntoIterator<Item = (u32, Op, u64, u64)>) -> Script {
        let call = |(tid, op, since_ns, at_ns)| SocketCall {
            socket,
            tid,
            op,
            since_ns,
            at_ns,
            bytes: 100,
            peer: 0,
            frame: None,
        };
        let mut calls: Vec<SocketCall> = calls.into_iter().map(call).collect();
        calls.iter().for_each(|call| self.thread(call.tid));
        calls.sort_by_key(|call| call.at_ns);
        self.timeline.calls.insert(socket, calls);
        self
    }

    /// A thread slept in a call until it was woken, and ran at once.
    pub fn sleeps(self, tid: u32, begin_ns: u64, end_ns: u64, syscall: i32, waker: Waker) -> Script {
        self.off(OffCpu { syscall, waker, ..off(tid, begin_ns, end_ns, end_ns) })
    }

    /// A thread was off the CPU.
    pub fn off(mut self, off: OffCpu) -> Script {
        self.thread(off.tid);
        let offs = self.timeline.off_cpu.entry(off.tid).or_default();
        offs.push(off);
        offs.sort_by_key(|o| o.begin_ns);
        self
    }
}

/// A sleep.
pub fn off(tid: u32, begin_ns: u64, wake_ns: u64, end_ns: u64) -> OffCpu {
    OffCpu {
        tid,
        begin_ns,
        wake_ns,
        end_ns,
        why: Why::Slept,
        syscall: 202,
        fd: FdKind::None,
        fd_number: -1,
        target: 0,
        waker: Waker::Unknown,
        ran_instead_tid: 0,
        stack: None,
    }
}
