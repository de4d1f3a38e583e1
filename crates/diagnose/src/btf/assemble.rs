//! From the probes' dumps and records to a capture's flows and threads.
use std::collections::{HashMap, HashSet};

use parshall_bpf::diagnose::lifecycle::FlowDump;
use parshall_bpf::diagnose::syscall::{SysKey, SysValue};
use parshall_bpf::diagnose::thread::{OffKey, OffValue, ThreadDump};
use parshall_core::sorting::StableSort as _;
use parshall_evidence::socket::selection::state::CLOSE;
use parshall_evidence::{CopyPattern, FlowCalls, FlowRecord, Role, RunQueue, TcpSnapshot, ThreadRecord};

use crate::cells::{call_cells, off_cells};

/// The parts that flows are assembled from; times are CLOCK_MONOTONIC nanoseconds.
pub struct FlowParts<'a> {
    /// When the window began and ended.
    pub window: (u64, u64),
    /// The figures of the sockets in the first dump, by cookie; `at_ns` on CLOCK_MONOTONIC.
    pub first: &'a HashMap<u64, TcpSnapshot>,
    /// The sockets in the last dump, and those that closed before it.
    pub last: &'a [FlowDump],
    /// The kernel's tick rate.
    pub hz: u64,
    /// Ports on which somebody listens, by network namespace.
    pub listeners: &'a HashSet<(u64, u16)>,
    /// Owners found by other means than a send or receive, by cookie.
    pub owners: &'a HashMap<u64, u32>,
}

/// One record per socket that was open at some time of the window.
pub fn flows(parts: &FlowParts<'_>) -> Vec<FlowRecord> {
    let mut last: HashMap<u64, &FlowDump> = HashMap::new();
    for dump in parts.last {
        // A socket that closed is seen once more while its descriptor is open; its account ended when it closed.
        last.entry(dump.flow.cookie).or_insert(dump);
    }
    let mut flows: Vec<FlowRecord> = last.values().map(|dump| flow(parts, dump)).collect();
    flows.stable_sort_by_key(|f| f.id);
    flows
}

/// The record of a socket from its last dump.
pub fn flow(parts: &FlowParts<'_>, last: &FlowDump) -> FlowRecord {
    let first = parts.first.get(&last.flow.cookie);
    let (begin, end) = parts.window;
    let relative = |at: u64| at.saturating_sub(begin).min(end - begin);
    let (local, remote) = last.addresses();
    let netns = u64::from(last.key.netns);
    let shifted = |mut s: TcpSnapshot| {
        s.at_ns = relative(s.at_ns);
        s
    };
    let last_snap = shifted(last.snap.decode(parts.hz));
    let cells = last.cells();
    let begun = match first {
        Some(first) => shifted(*first),
        None if last.flow.late != 0 => before_calls(&last_snap, &last.calls(), relative(last.flow.begin)),
        None => TcpSnapshot { at_ns: relative(last.flow.begin), mss: last_snap.mss, ..TcpSnapshot::default() },
    };
    FlowRecord {
        id: last.flow.cookie,
        local,
        remote,
        netns,
        pid: match last.flow.tgid {
            0 => parts.owners.get(&last.flow.cookie).copied().unwrap_or(0),
            tgid => tgid,
        },
        last_tid: last.flow.tid,
        role: if last.key.passive != 0 || parts.listeners.contains(&(netns, local.port())) {
            Role::Server
        } else if first.is_none() && last.flow.late == 0 {
            Role::Client
        } else {
            Role::Unknown
        },
        begin_ns: if first.is_some() { 0 } else { relative(last.flow.begin) },
        end_ns: if last_snap.state == CLOSE { last_snap.at_ns } else { end - begin },
        observed_ns: cells.iter().map(|cell| cell.ns).sum(),
        cells,
        calls: last.calls(),
        first: begun,
        last: last_snap,
        merged: None,
    }
}

/// The figures of a socket that was open and idle until its first call, which nobody read then: what the calls moved is taken off.
fn before_calls(last: &TcpSnapshot, calls: &FlowCalls, at_ns: u64) -> TcpSnapshot {
    TcpSnapshot {
        at_ns,
        bytes_acked: last.bytes_acked.saturating_sub(calls.send_bytes),
        bytes_received: last.bytes_received.saturating_sub(calls.recv_bytes),
        data_segs_out: last.data_segs_out.saturating_sub(calls.sends),
        ..*last
    }
}

/// The parts that threads are assembled from.
pub struct ThreadParts<'a> {
    /// When the window began and ended.
    pub window: (u64, u64),
    /// The threads in the first dump.
    pub first: &'a [ThreadDump],
    /// The threads in the last dump, and those that exited before it.
    pub last: &'a [ThreadDump],
    /// Time off the CPU by thread.
    pub off: &'a HashMap<u32, Vec<(OffKey, OffValue)>>,
    /// System calls by thread.
    pub calls: &'a HashMap<u32, Vec<(SysKey, SysValue)>>,
    /// CPU samples by thread: user, kernel.
    pub samples: &'a HashMap<u32, (u64, u64)>,
}

/// One record per thread that lived at some time of the window.
pub fn threads(parts: &ThreadParts<'_>) -> Vec<ThreadRecord> {
    let first: HashMap<u32, &ThreadDump> = parts.first.iter().map(|d| (d.tid, d)).collect();
    let mut last: HashMap<u32, &ThreadDump> = HashMap::new();
    for dump in parts.last {
        last.entry(dump.tid).or_insert(dump);
    }
    let mut threads: Vec<ThreadRecord> =
        last.values().map(|dump| thread(parts, first.get(&dump.tid).copied(), dump)).collect();
    threads.stable_sort_by_key(|t| t.tid);
    threads
}

fn thread(parts: &ThreadParts<'_>, first: Option<&ThreadDump>, last: &ThreadDump) -> ThreadRecord {
    let (begin, end) = parts.window;
    let relative = |at: u64| at.saturating_sub(begin).min(end - begin);
    let born = first.map_or(last.start_time, |_| begin);
    let since = |now: u64, then: fn(&ThreadDump) -> u64| now.saturating_sub(first.map_or(0, then));
    let wall = relative(last.at) - relative(born).min(relative(last.at));
    let cpu_ns = since(last.cpu_ns, |d| d.cpu_ns).min(wall);
    let (utime, stime) = (since(last.utime, |d| d.utime), since(last.stime, |d| d.stime));
    let off_cpu = off_cells(parts.off.get(&last.tid));
    let (user, kernel) = parts.samples.get(&last.tid).copied().unwrap_or_default();
    ThreadRecord {
        tid: last.tid,
        pid: last.tgid,
        comm: parshall_bpf::comm(&last.comm),
        begin_ns: relative(born).min(relative(last.at)),
        end_ns: relative(last.at),
        cpu_ns,
        utime_ns: (utime + stime > 0).then(|| (cpu_ns as f64 * utime as f64 / (utime + stime) as f64) as u64),
        observed_ns: last.on_ns + off_cpu.iter().map(|cell| cell.ns).sum::<u64>(),
        on_cpu_ns: last.on_ns,
        off_cpu,
        syscalls: call_cells(parts.calls.get(&last.tid)),
        copy: CopyPattern {
            pairs: last.copy_pairs,
            bytes: last.copy_bytes,
            recvs: last.copy_recvs,
            mode_bytes: last.copy_mode,
            mode_count: last.copy_mode_count,
            left_over: last.copy_left_over,
        },
        switches: (since(last.nvcsw, |d| d.nvcsw), since(last.nivcsw, |d| d.nivcsw)),
        samples_user: user,
        samples_kernel: kernel,
        runq: RunQueue {
            count: last.runq_count.into(),
            ns: last.runq_ns,
            log2_us: last.runq_log2.iter().map(|&n| n.into()).collect(),
        },
    }
}
