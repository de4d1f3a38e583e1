//! Captures made by hand, for tests: flows and threads are built stall by stall, and what is left of the window is
//! filled with what a healthy one does.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use parshall_evidence::*;

#[cfg(test)]
pub mod arb;
mod network;
#[cfg(test)]
pub mod service;
pub mod timeline;

pub use network::*;

/// One millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;

/// The window of all captures made here.
pub const WINDOW_NS: u64 = 1_000 * MS;

/// A capture of one second with nothing in it.
pub fn empty_capture() -> Capture {
    Capture {
        schema: CAPTURE_SCHEMA.to_string(),
        subject: Subject {
            pids: vec![100],
            ports: vec![7000],
            netns: vec![1],
            comms: vec!["echo".to_string()],
            ..Subject::default()
        },
        origin: None,
        command: None,
        own_relays: Vec::new(),
        followed: Vec::new(),
        host: Host { kernel: "6.18.0".to_string(), cpus: 2, ..Host::default() },
        window_ns: WINDOW_NS,
        rung: Rung::Btf,
        blind: Vec::new(),
        unseen: Vec::new(),
        slices: Slices { count: 1, observed_ns: WINDOW_NS, events: 10_000, spans: vec![(0, WINDOW_NS)] },
        flows: Vec::new(),
        threads: Vec::new(),
        timeline: None,
        services: Vec::new(),
        flow_stalls: Vec::new(),
        thread_stalls: Vec::new(),
        samples: Vec::new(),
        stacks: Vec::new(),
        cgroups: Vec::new(),
        net: NetCounts::default(),
        counters: Some(rose(&[])),
        waiting: None,
        hardware: None,
        events: Vec::new(),
        uring: None,
        log: None,
        probe: ProbeCost { events: 10_000, ..ProbeCost::default() },
    }
}

/// A capture of these flows and threads.
pub fn capture(flows: Vec<FlowBuilder>, threads: Vec<ThreadBuilder>) -> Capture {
    let mut capture = empty_capture();
    for flow in flows {
        let flow = flow.fill();
        capture.flow_stalls.extend(flow.stalls);
        capture.flows.push(flow.record);
    }
    for thread in threads {
        let thread = thread.fill();
        capture.thread_stalls.extend(thread.stalls);
        capture.threads.push(thread.record);
    }
    capture
}

/// A flow under construction.
#[derive(Debug, Clone)]
pub struct FlowBuilder {
    /// The capture so far.
    pub record: FlowRecord,
    /// Its stalls.
    pub stalls: Vec<FlowStall>,
}

impl FlowBuilder {
    /// A flow over loopback that lives for the whole window. Clients own port 50000 + `id`, servers port 7000; a client
    /// `id` and a server `id + 1` with [`FlowBuilder::to`] are both ends of one connection.
    pub fn new(id: u64, role: Role) -> FlowBuilder {
        let addr = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let (own, other) = (addr(50_000 + (id % 10_000) as u16), addr(7000));
        let (local, remote) = if role == Role::Server { (other, own) } else { (own, other) };
        let snapshot = TcpSnapshot {
            state: 1,
            min_rtt_us: 30,
            srtt_us: 50,
            mss: 1448,
            cwnd: 10,
            ssthresh: 0x7fff_ffff,
            ..TcpSnapshot::default()
        };
        let record = FlowRecord {
            id,
            local,
            remote,
            netns: 1,
            pid: 100,
            last_tid: 101,
            role,
            begin_ns: 0,
            end_ns: WINDOW_NS,
            observed_ns: 0,
            cells: Vec::new(),
            calls: FlowCalls::default(),
            first: snapshot,
            last: snapshot,
            merged: None,
        };
        FlowBuilder { record, stalls: Vec::new() }
    }

    /// The owner.
    pub fn owner(mut self, pid: u32, tid: u32) -> FlowBuilder {
        (self.record.pid, self.record.last_tid) = (pid, tid);
        self
    }

    /// The other end of `client`.
    pub fn to(mut self, client: &FlowBuilder) -> FlowBuilder {
        (self.record.local, self.record.remote) = (client.record.remote, client.record.local);
        self
    }

    /// The other end is on another host.
    pub fn remote_host(mut self) -> FlowBuilder {
        self.record.local.set_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        self.record.remote.set_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
        self
    }

    /// Adds intervals that do not travel one by one.
    pub fn cell(mut self, state: FlowState, release: Release, ns: u64, count: u64) -> FlowBuilder {
        self.add(state, release, ns, count);
        self
    }

    /// Adds a stall, and its share of the cell.
    pub fn stall(mut self, begin_ns: u64, ns: u64, state: FlowState, release: Release) -> FlowBuilder {
        self.add(state, release, ns, 1);
        self.stalls.push(FlowStall {
            flow: self.record.id,
            begin_ns,
            ns,
            state,
            release,
            tid: 0,
            unsent_bytes: 136,
            packets_out: 1,
            unread_bytes: 65_536,
            snd_wnd: 1000,
            cwnd: 10,
        });
        self
    }

    /// A stall of `ns` at the begin of every period of `every_ns`, in the whole window.
    pub fn every(mut self, every_ns: u64, offset_ns: u64, ns: u64, state: FlowState, release: Release) -> FlowBuilder {
        let mut at = offset_ns;
        while at + ns <= WINDOW_NS {
            self = self.stall(at, ns, state, release);
            at += every_ns;
        }
        self
    }

    /// Calls of a client or server that sends `n` messages of `bytes` and receives as many.
    pub fn talks(mut self, n: u64, bytes: u64) -> FlowBuilder {
        self.record.calls = FlowCalls {
            sends: n,
            send_bytes: n * bytes,
            small_sends: n,
            recvs: n,
            recv_bytes: n * bytes,
            exchanges: n,
            ..FlowCalls::default()
        };
        self.moved(n, n * bytes)
    }

    /// As [`FlowBuilder::talks`], with each message written in two parts.
    pub fn talks_in_parts(self, n: u64) -> FlowBuilder {
        let mut flow = self.talks(n, 176);
        let calls = &mut flow.record.calls;
        (calls.sends, calls.small_sends, calls.write_after_write, calls.held_sends) = (2 * n, 2 * n, n, n);
        calls.last_pair_bytes = (40, 136);
        flow
    }

    /// Calls of a sender of `n` pieces of `bytes` that receives nothing.
    pub fn streams(mut self, n: u64, bytes: u64) -> FlowBuilder {
        self.record.calls = FlowCalls { sends: n, send_bytes: n * bytes, ..FlowCalls::default() };
        self.moved(n * bytes / 1448 + 1, n * bytes)
    }

    /// Calls of a receiver of `n` pieces of `bytes` that sends nothing.
    pub fn drains(mut self, n: u64, bytes: u64) -> FlowBuilder {
        self.record.calls = FlowCalls { recvs: n, recv_bytes: n * bytes, ..FlowCalls::default() };
        self.record.last.bytes_received += n * bytes;
        self.record.last.segs_in += n;
        self
    }

    /// Segments retransmitted.
    pub fn retransmitted(mut self, n: u64) -> FlowBuilder {
        self.record.last.total_retrans += n;
        self
    }

    fn moved(mut self, segs: u64, bytes: u64) -> FlowBuilder {
        let last = &mut self.record.last;
        last.data_segs_out += segs;
        last.segs_in += segs;
        last.bytes_acked += bytes;
        last.bytes_received += if self.record.calls.recvs > 0 { bytes } else { 0 };
        self
    }

    /// Fills the window with short intervals of waiting for nothing, and sums up.
    pub fn fill(mut self) -> FlowBuilder {
        let used: u64 = self.record.cells.iter().map(|c| c.ns).sum();
        let wall = self.record.end_ns - self.record.begin_ns;
        if used < wall {
            let rest = wall - used;
            let release = if self.record.role == Role::Server { Release::RxData } else { Release::AppSend };
            self.add(FlowState::IdleAfterRecv, release, rest, rest / 10_000 + 1);
        }
        self.record.observed_ns = wall.max(used);
        self
    }

    fn add(&mut self, state: FlowState, release: Release, ns: u64, count: u64) {
        match self.record.cells.iter_mut().find(|c| c.state == state && c.release == release) {
            Some(cell) => (cell.ns, cell.count) = (cell.ns + ns, cell.count + count),
            None => self.record.cells.push(FlowCell { state, release, ns, count }),
        }
    }
}

/// A thread under construction.
#[derive(Debug, Clone)]
pub struct ThreadBuilder {
    /// The capture so far.
    pub record: ThreadRecord,
    /// Its stalls.
    pub stalls: Vec<ThreadStall>,
}

impl ThreadBuilder {
    /// A thread of process 100 that is on the CPU, in user mode, unless told otherwise.
    pub fn new(tid: u32) -> ThreadBuilder {
        let record =
            ThreadRecord { tid, pid: 100, comm: "echo".to_string(), end_ns: WINDOW_NS, ..ThreadRecord::default() };
        ThreadBuilder { record, stalls: Vec::new() }
    }

    /// Its process.
    pub fn of(mut self, pid: u32) -> ThreadBuilder {
        self.record.pid = pid;
        self
    }

    /// CPU samples in user and kernel mode.
    pub fn samples(mut self, user: u64, kernel: u64) -> ThreadBuilder {
        (self.record.samples_user, self.record.samples_kernel) = (user, kernel);
        self
    }

    /// Asleep.
    pub fn blocked(self, begin_ns: u64, ns: u64, call: &str, fd: FdKind) -> ThreadBuilder {
        self.off(begin_ns, ns, OffCpu::Blocked, call, fd)
    }

    /// Asleep for `ns` in every period.
    pub fn sleeps(mut self, every_ns: u64, offset_ns: u64, ns: u64, call: &str, fd: FdKind) -> ThreadBuilder {
        let mut at = offset_ns;
        while at + ns <= WINDOW_NS {
            self = self.off(at, ns, OffCpu::Blocked, call, fd);
            at += every_ns;
        }
        self
    }

    /// Out of quota for `ns` in every period.
    pub fn throttled(self, every_ns: u64, offset_ns: u64, ns: u64) -> ThreadBuilder {
        self.stopped(every_ns, offset_ns, ns, OffCpu::Throttled)
    }

    /// Ready to run, and waiting for a CPU for `ns` in every period.
    pub fn runnable(self, every_ns: u64, offset_ns: u64, ns: u64) -> ThreadBuilder {
        self.stopped(every_ns, offset_ns, ns, OffCpu::Runnable)
    }

    fn stopped(mut self, every_ns: u64, offset_ns: u64, ns: u64, why: OffCpu) -> ThreadBuilder {
        let mut at = offset_ns;
        while at + ns <= WINDOW_NS {
            self = self.off(at, ns, why, "", FdKind::None);
            at += every_ns;
        }
        self
    }

    fn off(mut self, begin_ns: u64, ns: u64, why: OffCpu, call: &str, fd: FdKind) -> ThreadBuilder {
        let syscall = if call.is_empty() { NO_SYSCALL } else { 232 };
        let cells = &mut self.record.off_cpu;
        match cells.iter_mut().find(|c| c.why == why && c.syscall_name == call && c.fd == fd) {
            Some(cell) => (cell.ns, cell.count) = (cell.ns + ns, cell.count + 1),
            None => cells.push(OffCpuCell { why, syscall, syscall_name: call.to_string(), fd, ns, count: 1 }),
        }
        self.stalls.push(ThreadStall {
            tid: self.record.tid,
            begin_ns,
            ns,
            why,
            syscall,
            syscall_name: call.to_string(),
            fd,
            waker_tid: 0,
            waker_comm: String::new(),
            waker_in_irq: true,
            stack: None,
            waker_stack: None,
        });
        self
    }

    /// On the CPU for the rest of the window.
    pub fn fill(mut self) -> ThreadBuilder {
        let off: u64 = self.record.off_cpu.iter().map(|c| c.ns).sum();
        let wall = self.record.end_ns - self.record.begin_ns;
        self.record.observed_ns = wall;
        self.record.on_cpu_ns = wall.saturating_sub(off);
        self.record.cpu_ns = self.record.on_cpu_ns;
        self
    }
}

/// The cause that a capture is judged to show, or the status when there is none.
pub fn verdict_of(capture: &Capture) -> String {
    let verdict = crate::judge::judge(capture).verdict;
    match (verdict.cause, verdict.status) {
        (Some(cause), _) => cause,
        (None, Status::Healthy) => "healthy".to_string(),
        (None, Status::AtCapacity) => "at-capacity".to_string(),
        (None, Status::NoDominantCause) => "no-dominant-cause".to_string(),
        (None, _) => "insufficient-evidence".to_string(),
    }
}
