//! The prepared evidence that all causes are tested on: ledgers, both ends of a connection joined, and for each piece
//! of lost time the one to blame.
//!
//! This module decides whether time was lost and whose it is. [`crate::judge::cause`] decides which causes are *named*.
pub mod blame;
pub mod doing;
pub mod lost;
pub mod network;
pub mod pair;
pub mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use parshall_evidence::{
    Capture, FlowRecord, FlowStall, FlowState, NamespaceCounters, NetSettings, OffCpu, Service, SocketFigures,
    ThreadRecord, ThreadStall,
};

use crate::critical_path::clients::ClientWait;
use crate::judge::ledger::flow::{FlowLedger, State, moved};
use crate::judge::ledger::flow_rules::{min_rtt_ns, serves};
use crate::judge::ledger::thread::{KernelCalls, State as ThreadState, ThreadLedger};
use crate::judge::waiting::Quiet;
use crate::judge::words;
use crate::stats::{Spans, ratio};

pub use blame::{Blame, Part};
pub use lost::Lost;
pub use network::Network;
pub use requests::{Requests, Spent};

/// A request that costs a thread less CPU time than this is cheap: a thread saturated by such requests queues them, and
/// is healthy (an asyncio echo takes 50 to 300 us, redis and nginx less).
pub const CHEAP_NS: f64 = 1e6;
/// The same for a thread that is idle for more of its time than [`MOSTLY_BUSY`] leaves.
pub const CHEAP_WHEN_IDLE_NS: f64 = 4e6;
/// Share of its wall time on a CPU from which on a thread counts as busy.
pub const MOSTLY_BUSY: f64 = 0.4;

/// How a flow talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// It moved nothing.
    Idle,
    /// Messages alternate: one is sent after one was received.
    RequestReply,
    /// It sends, and hardly receives.
    StreamOut,
    /// It receives, and hardly sends.
    StreamIn,
}

/// A flow and what is known of it.
#[derive(Debug)]
pub struct FlowFact<'a> {
    /// The record.
    pub rec: &'a FlowRecord,
    /// Its account.
    pub ledger: FlowLedger,
    /// `local->remote`.
    pub name: String,
    /// How it talks.
    pub shape: Shape,
    /// A stream whose sender should be sending: at least 10 sends and 1 kB a second.
    pub supplies: bool,
    /// It sends what its process receives as a stream from somebody else: when there is nothing to send, nothing has come.
    pub passes_on: bool,
    /// It writes twice and then reads, and most writes are smaller than a segment.
    pub write_write_read: bool,
    /// Segments retransmitted in the window.
    pub retransmitted: u64,
    /// Segments with data sent in the window.
    pub data_segs: u64,
    /// At least 0.5 % of its segments were retransmitted.
    pub lossy: bool,
    /// The other end, when it is in the capture.
    pub pair: Option<usize>,
    /// Time in which it could have moved data.
    pub could_ns: f64,
}

/// A thread and what is known of it.
#[derive(Debug)]
pub struct ThreadFact<'a> {
    /// The record.
    pub rec: &'a ThreadRecord,
    /// Its account.
    pub ledger: ThreadLedger,
    /// Its own long times off the CPU.
    pub off: doing::Off,
    /// Requests or messages that it (or its process, if that says more) handled, scaled to the window.
    pub items: f64,
    /// CPU time for each of them; None when nothing was handled. Estimated where [`Facts::scaled`] says so.
    pub cost_ns: Option<f64>,
    /// Bytes that its flows moved, in both directions, scaled to the window.
    pub bytes: f64,
    /// Its CPU time is worth naming: at least [`CHEAP_NS`] a request, or 10 ns a byte of bulk data.
    pub expensive: bool,
}

/// The prepared evidence.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The capture that it was made from.
    pub capture: &'a Capture,
    /// The flows, in the order of the capture.
    pub flows: Vec<FlowFact<'a>>,
    /// The threads, in the order of the capture.
    pub threads: Vec<ThreadFact<'a>>,
    /// Lost time of flows, piece by piece, without what is on the account of requests.
    pub parts: Vec<Part>,
    /// The account of requests.
    pub requests: Requests<'a>,
    /// Requests that their service lets wait.
    pub(crate) quiet: Quiet,
    /// Waits of observed clients outside of their requests.
    pub(crate) clients: Vec<ClientWait>,
    /// The network, as sockets, counters and settings show it.
    pub network: Network,
    /// Lost time by blame before both ends of a connection were compared: with what is now counted at another flow.
    raw_ns: BTreeMap<Blame, f64>,
    /// Of the time in which threads seem asleep, the share in which their group was out of quota, on a rung that cannot
    /// tell the two apart; 0 otherwise.
    pub(crate) hidden_throttling: f64,
    /// Thread id to index into `threads`.
    by_tid: BTreeMap<u32, usize>,
    /// Process id to indices into `threads`.
    by_pid: BTreeMap<u32, Vec<usize>>,
    /// Figures of SOCK_DIAG, by flow.
    figures: BTreeMap<u64, &'a SocketFigures>,
    /// Counters of network namespaces, by inode.
    spaces: BTreeMap<u64, &'a NamespaceCounters>,
    /// Addresses of this host, as far as its flows tell.
    local_ips: BTreeSet<IpAddr>,
}

impl<'a> Facts<'a> {
    /// Share of the CPUs' time that the hypervisor gave to others, within the window.
    pub fn stolen_share(&self) -> f64 {
        let host = &self.capture.host;
        ratio(host.stolen_ns as f64, self.capture.window_ns as f64 * f64::from(host.cpus.max(1))).min(1.0)
    }

    /// Prepares a capture and the services that were found in it.
    pub fn new(capture: &'a Capture, services: &'a [Service]) -> Facts<'a> {
        let mut flows = flow_facts(capture);
        pair::join(&mut flows);
        note_passing_on(&mut flows);
        let threads = thread_facts(capture, &flows);
        let mut by_tid = BTreeMap::new();
        let mut by_pid: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, thread) in threads.iter().enumerate() {
            by_tid.entry(thread.rec.tid).or_insert(index);
            by_pid.entry(thread.rec.pid).or_default().push(index);
        }
        let hidden_throttling = hidden_throttling(capture);
        let counters = capture.counters.as_ref();
        let mut facts = Facts {
            capture,
            figures: first_by(counters.map_or(&[][..], |c| &c.sockets), |figures| figures.flow),
            spaces: first_by(counters.map_or(&[][..], |c| &c.namespaces), |space| space.netns),
            local_ips: capture.flows.iter().map(|flow| flow.local.ip().to_canonical()).collect(),
            flows,
            threads,
            parts: Vec::new(),
            requests: Requests::default(),
            quiet: Quiet::default(),
            clients: Vec::new(),
            network: Network::default(),
            raw_ns: BTreeMap::new(),
            hidden_throttling,
            by_tid,
            by_pid,
        };
        // The services, with how often each of them is asked, are set before the use of that time is decided.
        facts.requests.all = services;
        let raw = blame::parts(&facts);
        for part in &raw.parts {
            *facts.raw_ns.entry(part.blame).or_default() += part.ns;
        }
        let (parts, explained) = pair::resolve(&facts, raw);
        (facts.parts, facts.network) = network::refine(&facts, parts);
        facts.requests = Requests::new(capture, services, &facts.flows, &facts.parts);
        let waited = crate::judge::waiting::flows(capture, services);
        requests::supersede(&facts.requests, &facts.flows, &mut facts.parts, &waited);
        let mut supply = vec![0.0; facts.flows.len()];
        for part in facts.parts.iter().filter(|p| p.supply) {
            supply[part.flow] += part.ns;
        }
        for (i, flow) in facts.flows.iter_mut().enumerate() {
            flow.could_ns = could_have_moved(&flow.ledger, supply[i], explained[i]);
        }
        facts
    }

    /// All lost time of all flows, in nanoseconds.
    pub fn lost_ns(&self) -> f64 {
        self.parts.iter().map(|p| p.ns).sum()
    }

    /// Share of the flows' time that was lost with one of these blames, also where it is counted at another flow.
    pub fn raw_share(&self, blames: &[Blame]) -> f64 {
        let ns: f64 = blames.iter().filter_map(|blame| self.raw_ns.get(blame)).sum();
        ratio(ns, self.flows_wall_ns())
    }

    /// Share of the flows' time in one of these states, lost or not.
    pub fn share_in(&self, states: &[State]) -> f64 {
        let ns: f64 = self.flows.iter().flat_map(|f| states.iter().map(|&state| f.ledger.of(state))).sum();
        ratio(ns, self.flows_wall_ns())
    }

    fn flows_wall_ns(&self) -> f64 {
        self.flows.iter().map(|f| f.ledger.wall_ns).sum()
    }

    /// Why nothing can be said of what flows waited for; None when there is an account of them.
    pub fn no_account_of_flows(&self) -> Option<String> {
        if self.flows.is_empty() {
            return Some("no TCP flow was seen".to_string());
        }
        let unseen = self.flows.iter().all(|f| f.rec.observed_ns == 0 && f.rec.cells.is_empty());
        let moved = self.flows.iter().any(|f| f.shape != Shape::Idle);
        (unseen && moved).then(|| "no probe saw the flows while data moved".to_string())
    }

    /// Part of the flows' time was observed, and counts were scaled.
    pub fn scaled(&self) -> bool {
        self.flows.iter().any(|f| f.ledger.scaled)
    }

    /// Time in which all flows could have moved data.
    pub fn could_ns(&self) -> f64 {
        self.flows.iter().map(|f| f.could_ns).sum()
    }

    /// The lost time of the parts that `take` chooses.
    pub fn lost(&self, take: impl Fn(&Part) -> bool) -> Lost {
        Lost::of(self, take)
    }

    /// The lost time with one of these blames.
    pub fn blamed(&self, blames: &[Blame]) -> Lost {
        self.lost(|p| blames.contains(&p.blame))
    }

    /// SOCK_DIAG's figures of a flow at the window's end.
    pub fn figures(&self, flow: u64) -> Option<&'a SocketFigures> {
        self.figures.get(&flow).copied()
    }

    /// The counters of a network namespace.
    pub fn space(&self, netns: u64) -> Option<&'a NamespaceCounters> {
        self.spaces.get(&netns).copied()
    }

    /// Whether an address is one of this host, as far as its flows tell.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.local_ips.contains(&ip)
    }

    /// The settings of a network namespace, where they were read.
    pub fn settings(&self, netns: u64) -> Option<NetSettings> {
        self.space(netns)?.settings
    }

    /// The thread with this id.
    pub fn thread(&self, tid: u32) -> Option<&ThreadFact<'a>> {
        self.by_tid.get(&tid).map(|&i| &self.threads[i])
    }

    /// The threads of a process.
    pub fn threads_of(&self, pid: u32) -> impl Iterator<Item = &ThreadFact<'a>> {
        self.by_pid.get(&pid).into_iter().flatten().map(|&i| &self.threads[i])
    }

    /// The thread that serves a flow: the one named, the last seen, or the only one of the owner. 0 when nothing tells.
    pub fn server_of(&self, flow: &FlowRecord, tid: u32) -> u32 {
        if tid != 0 && self.by_tid.contains_key(&tid) {
            return tid;
        }
        if flow.last_tid != 0 && self.by_tid.contains_key(&flow.last_tid) {
            return flow.last_tid;
        }
        match self.by_pid.get(&flow.pid).map(Vec::as_slice) {
            Some([only]) => self.threads[*only].rec.tid,
            _ => 0,
        }
    }

    /// Advice where something could not be seen: `unprivileged` for users who may not see all, `root` for those who may, and for cases
    /// that do not say. Advice to run as root is none to root.
    pub fn advice<'t>(&self, unprivileged: &'t str, root: &'t str) -> &'t str {
        let is_root = self.capture.origin.as_ref().and_then(|origin| origin.root);
        if is_root == Some(true) { root } else { unprivileged }
    }

    /// Window in seconds.
    pub fn window_s(&self) -> f64 {
        self.capture.window_ns as f64 / 1e9
    }

    /// Segments retransmitted and segments with data sent, over all flows.
    pub fn retransmitted(&self) -> (u64, u64) {
        self.flows.iter().fold((0, 0), |(r, d), f| (r + f.retransmitted.min(1 << 48), d + f.data_segs.min(1 << 48)))
    }

    /// CPU time of the threads.
    pub fn cpu_ns(&self) -> f64 {
        self.threads.iter().map(|t| t.rec.cpu_ns as f64).sum()
    }

    /// Share of the threads' wall time on a CPU.
    pub fn busy(&self) -> f64 {
        ratio(self.threads.iter().map(|t| t.ledger.on_cpu()).sum(), self.threads.iter().map(|t| t.ledger.wall_ns).sum())
    }

    /// Share of the quota periods in which a control group of the subject was throttled, of the worst group.
    pub fn throttled_periods(&self) -> f64 {
        throttled_periods(self.capture)
    }

    /// Upper bound of the 99th percentile of all waits for a CPU, in microseconds; None when unknown.
    pub fn runq_p99_us(&self) -> Option<f64> {
        let mut sum: Vec<u64> = Vec::new();
        for thread in &self.threads {
            sum.resize(sum.len().max(thread.rec.runq.log2_us.len()), 0);
            for (total, n) in sum.iter_mut().zip(&thread.rec.runq.log2_us) {
                *total = total.saturating_add(*n);
            }
        }
        crate::stats::log2_quantile_us(&sum, 0.99)
    }
}

/// The records by a number; of those with the same one the first.
fn first_by<T>(records: &[T], number: impl Fn(&T) -> u64) -> BTreeMap<u64, &T> {
    let mut found = BTreeMap::new();
    for record in records {
        found.entry(number(record)).or_insert(record);
    }
    found
}

fn throttled_periods(capture: &Capture) -> f64 {
    let share = |c: &parshall_evidence::CgroupCpu| ratio(c.throttled_periods as f64, c.periods as f64).min(1.0);
    capture.cgroups.iter().map(share).fold(0.0, f64::max)
}

fn hidden_throttling(capture: &Capture) -> f64 {
    let seen = capture.threads.iter().any(|t| t.off_cpu.iter().any(|c| c.why == OffCpu::Throttled));
    let share = throttled_periods(capture);
    if seen || share < 0.3 { 0.0 } else { share }
}

fn flow_facts(capture: &Capture) -> Vec<FlowFact<'_>> {
    let mut stalls: BTreeMap<u64, Vec<(usize, &FlowStall)>> = BTreeMap::new();
    for (index, stall) in capture.flow_stalls.iter().enumerate() {
        stalls.entry(stall.flow).or_default().push((index, stall));
    }
    // A second record of the same flow would count them twice.
    capture.flows.iter().map(|rec| flow_fact(rec, &stalls.remove(&rec.id).unwrap_or_default())).collect()
}

/// Notes the streams of a process that has received at least half as much as each of them sends, over one connection. That one may carry
/// messages the other way, too: HTTP/2 says in between that more may come.
fn note_passing_on(flows: &mut [FlowFact<'_>]) {
    let mut received: BTreeMap<u32, u64> = BTreeMap::new();
    for flow in flows.iter().filter(|flow| flow.rec.pid != 0) {
        let most = received.entry(flow.rec.pid).or_default();
        *most = (*most).max(flow.rec.received_bytes());
    }
    for flow in flows.iter_mut().filter(|flow| flow.shape == Shape::StreamOut) {
        flow.passes_on =
            received.get(&flow.rec.pid).is_some_and(|bytes| *bytes > 0 && *bytes >= flow.rec.acked_bytes() / 2);
        flow.supplies &= !flow.passes_on;
    }
}

/// Data in a segment of an Ethernet path, about.
const SEGMENT_BYTES: f64 = 1400.0;

fn flow_fact<'a>(rec: &'a FlowRecord, stalls: &[(usize, &FlowStall)]) -> FlowFact<'a> {
    let ledger = FlowLedger::new(rec, stalls);
    let shape = shape(rec);
    let (first, last) = (&rec.first, &rec.last);
    let retransmitted = last.total_retrans.saturating_sub(first.total_retrans);
    // Without calls (a sampling rung) the kernel's counts over the whole wall time must do.
    let (sends, sent, seconds) = if rec.calls.sends > 0 {
        (rec.calls.sends, rec.calls.send_bytes, ratio(ledger.wall_ns, ledger.scale) / 1e9)
    } else {
        let segs = last.data_segs_out.saturating_sub(first.data_segs_out);
        (segs, rec.acked_bytes(), ledger.wall_ns / 1e9)
    };
    // Messages of less than a segment come when there is something to say: nobody waits for the next one.
    let bulk = ratio(sent as f64, sends as f64) >= SEGMENT_BYTES;
    let supplies = bulk && shape == Shape::StreamOut && sends as f64 >= 10.0 * seconds;
    FlowFact {
        name: words::flow_name(rec),
        shape,
        supplies,
        passes_on: false,
        write_write_read: rec.calls.write_after_write > 0
            && rec.calls.recvs > 0
            && rec.calls.small_sends.saturating_mul(2) > rec.calls.sends,
        retransmitted,
        data_segs: last.data_segs_out.saturating_sub(first.data_segs_out),
        lossy: retransmitted > 0
            && retransmitted as f64 >= 0.005 * last.data_segs_out.saturating_sub(first.data_segs_out) as f64,
        pair: None,
        could_ns: 0.0,
        rec,
        ledger,
    }
}

fn shape(rec: &FlowRecord) -> Shape {
    let calls = &rec.calls;
    if !moved(rec) {
        return Shape::Idle;
    }
    if calls.sends == 0 && calls.recvs == 0 {
        // No calls were seen (a sampling rung): the kernel's byte counts must do.
        return match (rec.acked_bytes(), rec.received_bytes()) {
            (s, r) if s / 100 > r => Shape::StreamOut,
            (s, r) if r / 100 > s => Shape::StreamIn,
            _ => Shape::RequestReply,
        };
    }
    let alternates = calls.exchanges >= 2 && calls.exchanges.saturating_mul(8) >= calls.sends.min(calls.recvs);
    if calls.recvs.saturating_mul(10) < calls.sends {
        if alternates && calls.exchanges.saturating_mul(64) >= calls.sends {
            Shape::RequestReply
        } else {
            Shape::StreamOut
        }
    } else if calls.sends.saturating_mul(10) < calls.recvs {
        if alternates && calls.exchanges.saturating_mul(64) >= calls.recvs {
            Shape::RequestReply
        } else {
            Shape::StreamIn
        }
    } else {
        Shape::RequestReply
    }
}

/// Wall time less the time in which there was nothing to move, or in which the other end of the connection, which is in
/// the capture too, has the same wait on its account.
fn could_have_moved(ledger: &FlowLedger, supply_ns: f64, explained_ns: f64) -> f64 {
    let idle = (ledger.of(State::NothingToSend) - supply_ns).max(0.0) + ledger.of(State::AckDelayed);
    (ledger.wall_ns - idle - explained_ns).max(0.0)
}

fn thread_facts<'a>(capture: &'a Capture, flows: &[FlowFact<'_>]) -> Vec<ThreadFact<'a>> {
    let unread = unread_by_thread(capture, flows);
    let mut stalls: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, stall) in capture.thread_stalls.iter().enumerate() {
        stalls.entry(stall.tid).or_default().push(index);
    }
    for own in stalls.values_mut() {
        own.sort_by_key(|&i| (capture.thread_stalls[i].begin_ns, i));
    }
    let (work, calls) = (Work::count(flows), KernelCalls::new(capture));
    let mut cpu_of_pid: BTreeMap<u32, f64> = BTreeMap::new();
    for thread in &capture.threads {
        *cpu_of_pid.entry(thread.pid).or_default() += thread.cpu_ns as f64;
    }
    capture
        .threads
        .iter()
        .map(|rec| {
            // A second record of the same thread would count them twice.
            let own = stalls.remove(&rec.tid).unwrap_or_default();
            let refs: Vec<&ThreadStall> = own.iter().map(|&i| &capture.thread_stalls[i]).collect();
            let waiting = unread.get(&rec.tid).or_else(|| unread.get(&(rec.pid | PID_KEY)));
            let none = Spans::default();
            let ledger = ThreadLedger::new(rec, &refs, waiting.unwrap_or(&none), &calls);
            let cpu_of_pid = cpu_of_pid.get(&rec.pid).copied().unwrap_or(0.0);
            work.fact(rec, ledger, doing::Off::new(own, &refs), cpu_of_pid)
        })
        .collect()
}

/// Flows whose thread was never seen are keyed by process; thread ids stay below 2^22 (PID_MAX_LIMIT, linux/threads.h).
const PID_KEY: u32 = 1 << 31;

fn unread_by_thread(capture: &Capture, flows: &[FlowFact<'_>]) -> BTreeMap<u32, Spans> {
    let by_id: BTreeMap<u64, &FlowRecord> = flows.iter().map(|f| (f.rec.id, f.rec)).collect();
    let mut raw: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for stall in capture.flow_stalls.iter().filter(|s| s.state == FlowState::RxWaiting) {
        let Some(flow) = by_id.get(&stall.flow) else { continue };
        let key = match (stall.tid, flow.last_tid) {
            (0, 0) => flow.pid | PID_KEY,
            (0, tid) | (tid, _) => tid,
        };
        raw.entry(key).or_default().push((stall.begin_ns, stall.begin_ns.saturating_add(stall.ns)));
    }
    raw.into_iter().map(|(key, spans)| (key, Spans::union(spans))).collect()
}

/// Requests or replies, bytes, and bytes in bulk that threads and processes handled.
#[derive(Default)]
struct Work {
    by_tid: BTreeMap<u32, (f64, f64, f64)>,
    by_pid: BTreeMap<u32, (f64, f64, f64)>,
}

impl Work {
    /// Items, bytes and the bytes that came in bulk, by thread and by process.
    fn count(flows: &[FlowFact<'_>]) -> Work {
        let mut work = Work::default();
        for flow in flows {
            let (items, bytes) = handled(flow);
            let bulk = if bytes >= 16384.0 * items.max(1.0) { bytes } else { 0.0 };
            for (map, key) in [(&mut work.by_tid, flow.rec.last_tid), (&mut work.by_pid, flow.rec.pid)] {
                let sum = map.entry(key).or_default();
                *sum = (sum.0 + items, sum.1 + bytes, sum.2 + bulk);
            }
        }
        work
    }

    fn fact<'a>(&self, rec: &'a ThreadRecord, ledger: ThreadLedger, off: doing::Off, pid_cpu: f64) -> ThreadFact<'a> {
        let own = self.by_tid.get(&rec.tid).copied().unwrap_or_default();
        let process = self.by_pid.get(&rec.pid).copied().unwrap_or_default();
        let cost = |cpu: f64, items: f64| (items >= 1.0).then(|| cpu / items);
        let (a, b) = (cost(ledger.on_cpu(), own.0), cost(pid_cpu, process.0));
        let cost_ns = match (a, b) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        let user_ns = ledger.of(ThreadState::OnCpuUser);
        let moved = if own.1 > 0.0 { own } else { process };
        let bulk = moved.2 > 0.0 && moved.2 >= 0.5 * moved.1 && user_ns >= 10.0 * moved.2;
        // A thread that is idle most of the time does not hold anyone up with a millisecond of work now and then.
        let floor = if ledger.on_cpu() >= MOSTLY_BUSY * ledger.wall_ns { CHEAP_NS } else { CHEAP_WHEN_IDLE_NS };
        let expensive = bulk || cost_ns.is_some_and(|c| c >= floor);
        ThreadFact { rec, ledger, off, items: own.0.max(process.0), cost_ns, bytes: moved.1, expensive }
    }
}

/// Requests or messages, and bytes, scaled to the window.
fn handled(flow: &FlowFact<'_>) -> (f64, f64) {
    let (calls, rec) = (&flow.rec.calls, flow.rec);
    if calls.sends == 0 && calls.recvs == 0 {
        let sent = rec.last.data_segs_out.saturating_sub(rec.first.data_segs_out);
        let seen = rec.last.segs_in.saturating_sub(rec.first.segs_in);
        let items = if flow.shape == Shape::RequestReply { sent.min(seen) } else { sent.max(seen) };
        return (items as f64, rec.acked_bytes() as f64 + rec.received_bytes() as f64);
    }
    let items = if flow.shape == Shape::RequestReply { calls.exchanges.max(1) } else { calls.sends.max(calls.recvs) };
    let bytes = calls.send_bytes as f64 + calls.recv_bytes as f64;
    (items as f64 * flow.ledger.scale, bytes * flow.ledger.scale)
}

/// This end was opened by connect(), or by an unknown hand.
pub fn is_client(flow: &FlowRecord) -> bool {
    !serves(flow)
}

/// The minimum round trip of a flow in nanoseconds.
pub fn rtt_ns(flow: &FlowFact<'_>) -> f64 {
    min_rtt_ns(flow.rec)
}
