//! A thread and what its record tells of it.
use std::collections::BTreeMap;

use parshall_evidence::timeline::{OffCpu, Waker};
use parshall_evidence::{Capture, FlowRecord, FlowState, ThreadRecord, ThreadStall};

use super::flow::{FlowFact, Shape};
use super::off::Off;
use crate::judge::ledger::thread::{KernelCalls, State as ThreadState, ThreadLedger};
use crate::sorting::{IntoOrdered as _, StableSort as _};
use crate::stats::Spans;
use crate::wait::Wait;

/// A request that costs a thread less CPU time than this is cheap: a thread saturated by such requests queues them, and
/// is healthy (an asyncio echo takes 50 to 300 us, redis and nginx less).
pub const CHEAP_NS: f64 = 1e6;
/// The same for a thread that is idle for more of its time than [`MOSTLY_BUSY`] leaves.
pub const CHEAP_WHEN_IDLE_NS: f64 = 4e6;
/// Share of its wall time on a CPU from which on a thread counts as busy.
pub const MOSTLY_BUSY: f64 = 0.4;

/// A thread and what is known of it.
#[derive(Debug)]
pub struct ThreadFact<'a> {
    /// The record.
    pub rec: &'a ThreadRecord,
    /// Its account.
    pub ledger: ThreadLedger,
    /// Its own long times off the CPU.
    pub off: Off,
    /// Requests or messages that it (or its process, if that says more) handled, scaled to the window.
    pub items: f64,
    /// CPU time for each of them; None when nothing was handled. Estimated where [`Facts::scaled`](super::Facts::scaled) says so.
    pub cost_ns: Option<f64>,
    /// Bytes that its flows moved, in both directions, scaled to the window.
    pub bytes: f64,
    /// Its CPU time is worth naming: at least [`CHEAP_NS`] a request, or 10 ns a byte of bulk data.
    pub expensive: bool,
    /// Timers ended most of the time that it slept in waits for events.
    pub woken_by_timers: bool,
}

/// The threads of a capture, in its order.
pub fn thread_facts<'a>(capture: &'a Capture, flows: &[FlowFact<'_>]) -> Vec<ThreadFact<'a>> {
    let unread = unread_by_thread(capture, flows);
    let mut stalls: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, stall) in capture.thread_stalls.iter().enumerate() {
        stalls.entry(stall.tid).or_default().push(index);
    }
    for own in stalls.values_mut() {
        own.stable_sort_by_key(|&i| (capture.thread_stalls[i].begin_ns, i));
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
            let off = Off::new(own, &refs);
            work.fact(rec, ledger, off, cpu_of_pid, is_woken_by_timers(capture, rec.tid))
        })
        .collect()
}

/// Of the time that a thread slept in waits for events, that which timers ended.
const BY_TIMERS: f64 = 0.8;

fn is_woken_by_timers(capture: &Capture, tid: u32) -> bool {
    let Some(timeline) = &capture.timeline else { return false };
    let name = |number: i32| timeline.syscalls.get(&number).map_or("", String::as_str);
    let offs = timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
    let slept = |off: &&OffCpu| Wait::of(name(off.syscall), off.fd, off.syscall) == Wait::Multiplex;
    let (mut all, mut by_timer) = (0u64, 0u64);
    for off in offs.iter().filter(slept) {
        let ns = off.wake_ns.saturating_sub(off.begin_ns);
        all = all.saturating_add(ns);
        by_timer = by_timer.saturating_add(if off.waker == Waker::HardIrq { ns } else { 0 });
    }
    all > 0 && by_timer as f64 >= BY_TIMERS * all as f64
}

/// Flows whose thread was never seen are keyed by process; thread ids stay below 2^22 (PID_MAX_LIMIT, linux/threads.h).
const PID_KEY: u32 = 1 << 31;

fn unread_by_thread(capture: &Capture, flows: &[FlowFact<'_>]) -> BTreeMap<u32, Spans> {
    let by_id: BTreeMap<u64, &FlowRecord> = flows.iter().map(|f| (f.rec.id, f.rec)).into_map();
    let mut raw: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for stall in capture.flow_stalls.iter().filter(|s| s.state == FlowState::RxWaiting) {
        let Some(flow) = by_id.get(&stall.flow) else { continue };
        let key = match (stall.tid, flow.last_tid) {
            (0, 0) => flow.pid | PID_KEY,
            (0, tid) | (tid, _) => tid,
        };
        raw.entry(key).or_default().push((stall.begin_ns, stall.begin_ns.saturating_add(stall.ns)));
    }
    raw.into_iter().map(|(key, spans)| (key, Spans::union(spans))).into_map()
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

    fn fact<'a>(
        &self,
        rec: &'a ThreadRecord,
        ledger: ThreadLedger,
        off: Off,
        pid_cpu: f64,
        woken_by_timers: bool,
    ) -> ThreadFact<'a> {
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
        ThreadFact {
            rec,
            ledger,
            off,
            items: own.0.max(process.0),
            cost_ns,
            bytes: moved.1,
            expensive,
            woken_by_timers,
        }
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
