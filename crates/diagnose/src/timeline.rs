//! Single events of threads and sockets: kept as they arrive, bounded in number, and turned into the timeline in which critical
//! paths are found.
//!
//! When the bound is reached, the timeline ends: it is whole up to there and holds nothing of what came later.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use parshall_bpf::diagnose::lifecycle::FlowDump;
use parshall_bpf::diagnose::thread::fd_kind;
use parshall_bpf::diagnose::timeline::{CallWire, OP_ACCEPT, OP_RECEIVE, OffCpuWire, WakerContext};
use parshall_bpf::diagnose::udp::UdpCallWire;
use parshall_core::observe::follow::ends;
use parshall_core::observe::under_way::UnderWay;
use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_evidence::socket::selection::state::CLOSE;
use parshall_evidence::timeline::{
    EVENTS_MAX, Frame, NAMES_PORT, Names, OffCpu, Op, Protocol, Socket, SocketCall, Timeline, Waker, Why,
};
use parshall_evidence::{FlowId, FlowRecord, OffCpu as StallKind, Role, ThreadRecord, ThreadStall};

use super::syscall_name::syscall_name;

/// Sockets kept at most that closed within the window.
const CLOSED_MAX: usize = 200_000;

/// Events that have arrived; times are CLOCK_MONOTONIC nanoseconds.
#[derive(Debug)]
pub struct Events {
    off_cpu: HashMap<u32, Vec<OffCpu>>,
    calls: HashMap<FlowId, Vec<SocketCall>>,
    datagram_sockets: HashMap<FlowId, DatagramSocket>,
    /// TCP sockets that closed: their accounts may have been added to others by the end.
    closed: HashMap<FlowId, End>,
    processes: HashMap<u32, u32>,
    /// Numbers of the addresses that datagrams came from or went to.
    peers: HashMap<SocketAddr, u64>,
    /// Connections that were accepted, as far as that is known meanwhile.
    served: HashSet<FlowId>,
    /// The requests so far, for the length of slices.
    requests: UnderWay,
    /// Events that have arrived, those that were not kept too.
    pub arrived: u64,
    kept: usize,
    limit: usize,
    /// When the limit was reached.
    full_at: Option<u64>,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    local: SocketAddr,
    remote: SocketAddr,
    netns: u64,
    pid: u32,
    /// It was seen to be accepted.
    passive: bool,
    /// When it was first seen; 0 if it was open before that.
    begin: u64,
    /// When it closed, if it did.
    closed: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct DatagramSocket {
    end: End,
    /// Its port was asked for.
    bound: bool,
    received_first: bool,
}

/// The parts of the timeline besides events. Times in `window` and `slices` are CLOCK_MONOTONIC, those in records relative to
/// the window's begin.
pub struct Parts<'a> {
    /// When the window began and ended.
    pub window: (u64, u64),
    /// Begin and end of each slice.
    pub slices: &'a [(u64, u64)],
    /// TCP sockets. Those that stand for many connections are left out: the events know each of these.
    pub flows: &'a [FlowRecord],
    /// Threads that were observed.
    pub threads: &'a [ThreadRecord],
    /// Local ports with a listener, by network namespace.
    pub listeners: &'a HashSet<(u64, u16)>,
    /// Long times off the CPU, with their stacks.
    pub stalls: &'a [ThreadStall],
    /// Processes that were observed; sockets of others are left out.
    pub observed: &'a HashSet<u32>,
    /// Processes that the user asked about.
    pub asked_pids: HashSet<u32>,
    /// Ports that the user asked about.
    pub asked_ports: Vec<u16>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            off_cpu: HashMap::new(),
            calls: HashMap::new(),
            datagram_sockets: HashMap::new(),
            closed: HashMap::new(),
            processes: HashMap::new(),
            peers: HashMap::new(),
            served: HashSet::new(),
            requests: UnderWay::default(),
            arrived: 0,
            kept: 0,
            limit: EVENTS_MAX,
            full_at: None,
        }
    }
}

impl Events {
    /// Connections that were accepted before the window.
    pub fn know_served(&mut self, sockets: impl IntoIterator<Item = FlowId>) {
        self.served.extend(sockets);
    }

    /// The time that a request takes on average, as far as was seen by `now`.
    pub fn mean_request_ns(&self, now: u64) -> Option<u64> {
        self.requests.mean_ns(now)
    }

    /// A slice ended.
    pub fn slice_ended(&mut self, at: u64) {
        self.requests.slice_ended(at);
    }

    /// Receives by splice() were not seen until now: what was sent on a connection of which no receive was seen may be about them, so it is
    /// left out, or a service would look like a stream. Of a stream its first part is missing then. A client's first request stays.
    pub fn forget_unread(&mut self) {
        let (datagrams, served) = (&self.datagram_sockets, &self.served);
        self.calls.retain(|id, calls| {
            let count = |op| calls.iter().filter(|call| call.op == op).count();
            let sent_min = if served.contains(id) { 1 } else { 2 };
            datagrams.contains_key(id) || count(Op::Receive) > 0 || count(Op::Send) < sent_min
        });
    }

    /// A thread was off the CPU.
    pub fn take_off_cpu(&mut self, wire: &OffCpuWire) {
        self.arrived += 1;
        let mut end = wire.head.at;
        if let Some(full_at) = self.full_at {
            // The last interval of a thread, up to the timeline's end, is known only now.
            if wire.begin >= full_at {
                return;
            }
            end = end.min(full_at);
        } else {
            self.count(end);
        }
        self.processes.insert(wire.head.tid, wire.tgid);
        self.off_cpu.entry(wire.head.tid).or_default().push(OffCpu {
            tid: wire.head.tid,
            begin_ns: wire.begin,
            wake_ns: wire.wake.clamp(wire.begin, end.max(wire.begin)),
            end_ns: end,
            why: why(wire.why),
            syscall: wire.nr,
            fd: fd_kind(wire.fd),
            fd_number: wire.fd_number,
            target: wire.target,
            waker: waker(wire),
            ran_instead_tid: wire.prev_tid,
            stack: None,
        });
    }

    /// A call moved data on a TCP socket, or accepted one.
    pub fn take_call(&mut self, wire: &CallWire) {
        let asks = (wire.op == OP_RECEIVE) == self.served.contains(&wire.cookie);
        if wire.op == OP_ACCEPT {
            self.served.insert(wire.cookie);
        } else if asks {
            self.requests.asked(wire.cookie, wire.since);
        } else {
            self.requests.replied(wire.cookie, wire.since);
        }
        self.push_call(wire, 0, wire.frame(asks));
    }

    /// A datagram was received or sent.
    pub fn take_datagram(&mut self, wire: &UdpCallWire) {
        let (local, remote) = wire.addresses();
        let call = &wire.call;
        let next = self.peers.len() as u64 + 1;
        let peer = if remote.port() == 0 { 0 } else { *self.peers.entry(remote).or_insert(next) };
        if self.push_call(call, peer, call.frame(true)) {
            self.datagram_sockets.entry(call.cookie).or_insert_with(|| DatagramSocket {
                end: End {
                    local,
                    remote,
                    netns: wire.netns.into(),
                    pid: call.tgid,
                    passive: false,
                    begin: call.since,
                    closed: None,
                },
                bound: wire.bound != 0,
                received_first: call.op == OP_RECEIVE,
            });
        }
    }

    /// A TCP socket closed.
    pub fn take_closed(&mut self, dump: &FlowDump) {
        self.served.remove(&dump.flow.cookie);
        if self.closed.len() < CLOSED_MAX && self.calls.contains_key(&dump.flow.cookie) {
            let (local, remote) = dump.addresses();
            let end = End {
                local,
                remote,
                netns: dump.key.netns.into(),
                pid: dump.flow.tgid,
                passive: dump.key.passive != 0,
                begin: if dump.flow.late == 0 { dump.flow.begin } else { 0 },
                closed: Some(dump.snap.at),
            };
            self.closed.insert(dump.flow.cookie, end);
        }
    }

    fn push_call(&mut self, wire: &CallWire, peer: u64, frame: Option<Frame>) -> bool {
        self.arrived += 1;
        if self.full_at.is_some() || wire.cookie == 0 {
            return false;
        }
        self.count(wire.head.at);
        self.processes.insert(wire.head.tid, wire.tgid);
        self.calls.entry(wire.cookie).or_default().push(SocketCall {
            socket: wire.cookie,
            tid: wire.head.tid,
            op: match wire.op {
                OP_RECEIVE => Op::Receive,
                OP_ACCEPT => Op::Accept,
                _ => Op::Send,
            },
            since_ns: wire.since,
            at_ns: wire.head.at,
            bytes: wire.bytes,
            peer,
            frame,
        });
        true
    }

    fn count(&mut self, at: u64) {
        self.kept += 1;
        if self.kept >= self.limit {
            self.full_at = Some(at);
        }
    }

    /// The gaps of the timeline, in a sentence.
    pub fn blind(&self, slices: &[(u64, u64)]) -> Option<String> {
        let full_at = self.full_at?;
        let ms = |spans: &[(u64, u64)]| spans.iter().map(|(begin, end)| end - begin).sum::<u64>() / 1_000_000;
        let (seen, all) = (ms(&clipped(slices, full_at)), ms(slices));
        (seen < all).then(|| {
            format!(
                "single requests were followed in the first {seen} of {all} ms only: more happens than fits in memory, so \
                 a shorter window (--for) loses nothing"
            )
        })
    }

    /// The timeline; names of what was not observed are added by whoever knows them.
    pub fn finish(mut self, parts: Parts<'_>) -> Timeline {
        let (begin, end) = parts.window;
        let relative = |at: u64| at.clamp(begin, end) - begin;
        let slices = clipped(parts.slices, self.full_at.unwrap_or(u64::MAX));
        let syscalls: BTreeSet<i32> = self.off_cpu.values().flatten().map(|off| off.syscall).into_set();
        let sockets = self.sockets(&parts);
        let established = self.established(&parts);
        self.calls.retain(|id, _| sockets.contains_key(id));
        for (id, calls) in &mut self.calls {
            for call in calls.iter_mut() {
                call.at_ns = relative(call.at_ns);
                call.since_ns = relative(call.since_ns).min(call.at_ns);
                if call.op == Op::Accept {
                    call.since_ns = established.get(id).copied().unwrap_or(call.at_ns).min(call.at_ns);
                }
            }
            calls.stable_sort_by_key(|call| call.at_ns);
        }
        let stacks = stacks(parts.stalls);
        for offs in self.off_cpu.values_mut() {
            order(offs);
            for off in offs.iter_mut() {
                (off.begin_ns, off.wake_ns) = (relative(off.begin_ns), relative(off.wake_ns));
                off.end_ns = relative(off.end_ns);
                off.stack = stacks.get(&(off.tid, off.begin_ns)).copied();
            }
        }
        Timeline {
            slices: slices.iter().map(|&(from, to)| (relative(from), relative(to))).collect(),
            names: names(&self.processes, parts.threads),
            observed_pids: observed_pids(parts.observed, parts.threads),
            off_cpu: self.off_cpu.into_iter().into_map(),
            calls: self.calls.into_iter().into_map(),
            sockets,
            syscalls: syscalls
                .into_iter()
                .filter(|nr| *nr >= 0)
                .map(|nr| (nr, syscall_name(nr).into_owned()))
                .into_map(),
            asked_pids: parts.asked_pids.into_iter().into_set(),
            asked_ports: parts.asked_ports,
            ..Timeline::default()
        }
    }

    /// When connections were established that were accepted within the window, relative to its begin.
    fn established(&self, parts: &Parts<'_>) -> HashMap<FlowId, u64> {
        let closed = self.closed.iter().map(|(id, end)| (*id, end.begin.saturating_sub(parts.window.0)));
        let open = parts.flows.iter().filter(|flow| flow.merged.is_none());
        closed.chain(open.map(|flow| (flow.id, flow.begin_ns))).collect()
    }

    fn sockets(&self, parts: &Parts<'_>) -> BTreeMap<FlowId, Socket> {
        let mut sockets = BTreeMap::new();
        let mut ends: Ends = HashMap::new();
        let mut add = |id, end: &End, (from, to): (u64, Option<u64>), socket: Socket| {
            if parts.observed.contains(&end.pid) || end.pid == 0 {
                let known = Known { id, netns: end.netns, from, to: to.unwrap_or(u64::MAX) };
                // One that closed may have an account of its own, too: it is still one end.
                let there = ends.entry((end.local, end.remote)).or_default();
                if !there.iter().any(|other| (other.netns, other.id) == (known.netns, id)) {
                    there.push(known);
                }
                sockets.insert(id, (known, socket));
            }
        };
        let (begin, end) = parts.window;
        // The probes see for a while after the window what closes then: these are open at its end.
        let closed_ns = |of: &End| of.closed.filter(|at| *at < end).map(|at| at.saturating_sub(begin));
        for (id, end) in &self.closed {
            let serves = end.passive || parts.listeners.contains(&(end.netns, end.local.port()));
            let closed_ns = closed_ns(end);
            let opened_ns = (end.begin > begin).then(|| end.begin - begin);
            let socket = Socket { closed_ns, ..socket_of(end, serves, opened_ns, false) };
            add(*id, end, (end.begin.saturating_sub(begin), closed_ns), socket);
        }
        let length = end - begin;
        for flow in parts.flows.iter().filter(|flow| flow.merged.is_none()) {
            let end = end_of_flow(flow);
            let opened_ns = Some(flow.begin_ns).filter(|at| *at > 0 && flow.first.state == 0);
            // Of a connection on which nothing was sent or received, only its account says when it closed.
            let ended_ns = Some(flow.end_ns).filter(|at| *at < length);
            let closed_ns = self.closed.get(&flow.id).map_or(ended_ns.filter(|_| flow.last.state == CLOSE), closed_ns);
            let until = closed_ns.or(ended_ns);
            let socket = Socket { closed_ns, ..socket_of(&end, flow.role == Role::Server, opened_ns, false) };
            add(flow.id, &end, (flow.begin_ns, until), socket);
        }
        for (id, socket) in &self.datagram_sockets {
            let connected = socket.end.remote.port() != 0;
            let asks_names = !connected && self.calls.get(id).is_some_and(|calls| asks_names(calls));
            // Of a port that the kernel chose, the first call seen may be a reply.
            let asked = parts.asked_ports.contains(&socket.end.local.port());
            let serves = !connected && !asks_names && (socket.bound || socket.received_first || asked);
            let mut made = socket_of(&socket.end, serves, None, true);
            if asks_names {
                // Which name server it is, is not seen.
                made.remote.set_port(NAMES_PORT);
            }
            add(*id, &socket.end, (0, None), made);
        }
        let with_other_end = |(id, (own, mut socket)): (FlowId, (Known, Socket))| {
            socket.other_end = other_end(&ends, &own, &socket).filter(|other| *other != id);
            (id, socket)
        };
        sockets.into_iter().map(with_other_end).into_map()
    }
}

/// Whether a socket without a peer asks name servers: what it sends is questions of DNS, and what it receives answers.
fn asks_names(calls: &[SocketCall]) -> bool {
    let is_own = |call: &SocketCall| {
        call.frame.is_some_and(|frame| frame.protocol == Protocol::Dns && (frame.kind == 1) == (call.op == Op::Receive))
    };
    !calls.is_empty() && calls.iter().all(is_own)
}

pub(crate) fn why(wire: u8) -> Why {
    match wire {
        1 => Why::SleptForIo,
        2 => Why::SleptUninterruptibly,
        3 => Why::Preempted,
        4 => Why::Throttled,
        5 => Why::Stopped,
        _ => Why::Slept,
    }
}

fn waker(wire: &OffCpuWire) -> Waker {
    match wire.waker_context() {
        WakerContext::Unknown => Waker::Unknown,
        WakerContext::Thread => Waker::Thread(wire.waker_tid),
        WakerContext::KernelThread => Waker::KernelThread(wire.waker_tid),
        WakerContext::SoftIrq => Waker::SoftIrq,
        WakerContext::HardIrq => Waker::HardIrq,
    }
}

fn end_of_flow(flow: &FlowRecord) -> End {
    End {
        local: flow.local,
        remote: flow.remote,
        netns: flow.netns,
        pid: flow.pid,
        passive: flow.role == Role::Server,
        begin: flow.begin_ns,
        closed: None,
    }
}

fn socket_of(end: &End, serves: bool, opened_ns: Option<u64>, udp: bool) -> Socket {
    let (local, remote, pid) = (end.local, end.remote, end.pid);
    let opened = opened_ns.is_some();
    Socket { local, remote, pid, serves, udp, opened, opened_ns, closed_ns: None, other_end: None }
}

/// Ends of connections by their own address and the other one.
type Ends = HashMap<(SocketAddr, SocketAddr), Vec<Known>>;

/// An end with these addresses.
#[derive(Debug, Clone, Copy)]
struct Known {
    id: FlowId,
    netns: u64,
    /// Within the window, it was open from here to there.
    from: u64,
    to: u64,
}

/// The socket with the addresses exchanged that was open at the same time: a client that opens many connections has a port again
/// after a while. A UDP server is bound to its port and not connected, perhaps on every address.
fn other_end(sockets: &Ends, own: &Known, socket: &Socket) -> Option<FlowId> {
    let found = |key: &(SocketAddr, SocketAddr)| {
        let meet = |other: &&Known| other.from < own.to && own.from < other.to;
        let there: Vec<Known> = sockets.get(key)?.iter().filter(meet).copied().collect();
        ends::other_end(&there, |other| other.netns, own.netns, socket.remote).map(|other| other.id)
    };
    if !socket.udp {
        return found(&(socket.remote, socket.local));
    }
    if socket.remote.port() == 0 {
        return None;
    }
    let unspecified = |like: SocketAddr, port| {
        let ip: std::net::IpAddr = if like.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        };
        SocketAddr::new(ip, port)
    };
    let nobody = unspecified(socket.remote, 0);
    found(&(socket.remote, nobody)).or_else(|| found(&(unspecified(socket.remote, socket.remote.port()), nobody)))
}

/// The slices up to `until`.
fn clipped(slices: &[(u64, u64)], until: u64) -> Vec<(u64, u64)> {
    let before = slices.iter().filter(|(begin, _)| *begin < until);
    before.map(|&(begin, end)| (begin, end.min(until))).collect()
}

/// Puts times off the CPU in order; of two that overlap (records of different CPUs may) the earlier one ends sooner.
fn order(offs: &mut Vec<OffCpu>) {
    offs.stable_sort_by_key(|off| (off.begin_ns, off.end_ns));
    for i in 1..offs.len() {
        let next = offs[i].begin_ns;
        let off = &mut offs[i - 1];
        off.end_ns = off.end_ns.min(next);
        off.wake_ns = off.wake_ns.min(off.end_ns);
    }
    offs.retain(|off| off.end_ns > off.begin_ns);
}

/// Stacks of long sleeps, by thread and begin.
fn stacks(stalls: &[ThreadStall]) -> HashMap<(u32, u64), u32> {
    let slept = stalls.iter().filter(|stall| stall.why == StallKind::Blocked);
    slept.filter_map(|stall| Some(((stall.tid, stall.begin_ns), stall.stack?))).collect()
}

fn names(processes: &HashMap<u32, u32>, threads: &[ThreadRecord]) -> BTreeMap<u32, Names> {
    let by_tid: HashMap<u32, &ThreadRecord> = threads.iter().map(|thread| (thread.tid, thread)).collect();
    let comm = |tid: u32| by_tid.get(&tid).map(|thread| thread.comm.clone()).unwrap_or_default();
    let known = threads.iter().map(|thread| (thread.tid, thread.pid));
    let all = processes.iter().map(|(tid, pid)| (*tid, *pid)).chain(known);
    all.map(|(tid, pid)| (tid, Names { pid, thread: comm(tid), process: comm(pid) })).into_map()
}

/// Since when each process was observed: those that were made within the window since their first thread was.
fn observed_pids(observed: &HashSet<u32>, threads: &[ThreadRecord]) -> BTreeMap<u32, u64> {
    let mut since: HashMap<u32, u64> = HashMap::new();
    for thread in threads {
        let first = since.entry(thread.pid).or_insert(thread.begin_ns);
        *first = (*first).min(thread.begin_ns);
    }
    observed.iter().map(|pid| (*pid, since.get(pid).copied().unwrap_or(0))).into_map()
}

#[cfg(test)]
mod programs;
#[cfg(test)]
mod tests;
