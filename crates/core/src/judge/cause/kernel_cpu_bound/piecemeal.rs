//! A program that takes what its connections have in calls of a few bytes each: a shell's `read`, a parser without a buffer. Each call costs the
//! kernel as much as one that takes it all.
//!
//! Look-alike: small messages, each of which a call takes whole. After that nothing is left, or the next message, as often as there are some.
use std::collections::BTreeMap;

use parshall_evidence::FdKind;

use super::super::base::{Candidate, ThreadLoss};
use super::super::small_copy_buffer::is_receive;
use crate::judge::facts::{Facts, MOSTLY_BUSY, ThreadFact};
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// A call that takes no more bytes costs far more than they do.
const FEW_BYTES: f64 = 16.0;
/// The share of a thread's receives after which more lay there.
const LEFT_OVER: f64 = 0.9;
/// A thread with fewer receives may have had reasons of its own for them.
const RECEIVES_MIN: u64 = 1_000;
/// The share of a thread's CPU time that goes into these calls.
const CALLS_SHARE: f64 = 0.5;

/// What a thread received from its connections.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    calls: u64,
    bytes: u64,
    left_over: u64,
}

impl Received {
    fn is_piecemeal(&self) -> bool {
        let calls = self.calls as f64;
        self.calls >= RECEIVES_MIN
            && self.bytes as f64 <= FEW_BYTES * calls
            && self.left_over as f64 >= LEFT_OVER * calls
    }
}

/// The threads of one name that receive piecemeal, and are busy with that.
#[derive(Debug, Default)]
pub struct Piecemeal {
    pid: u32,
    process: String,
    tids: Vec<u32>,
    received: Received,
    /// Their CPU time in these calls.
    pub ns: f64,
    cpu_ns: f64,
    wall_ns: f64,
}

/// The program that spends most in such calls. It may start a process for each connection.
pub fn found(facts: &Facts<'_>) -> Option<Piecemeal> {
    let mut received: BTreeMap<u32, Received> = BTreeMap::new();
    for flow in &facts.capture.flows {
        let sum = received.entry(flow.last_tid).or_default();
        sum.calls = sum.calls.saturating_add(flow.calls.recvs);
        sum.bytes = sum.bytes.saturating_add(flow.calls.recv_bytes);
        sum.left_over = sum.left_over.saturating_add(flow.calls.recv_left_over);
    }
    let mut programs: BTreeMap<&str, Piecemeal> = BTreeMap::new();
    for thread in &facts.threads {
        let own = received.get(&thread.rec.tid).copied().unwrap_or_default();
        let (ns, on_cpu) = (receiving_ns(thread), thread.ledger.on_cpu());
        let busy = ns > 0.0 && on_cpu >= MOSTLY_BUSY * thread.ledger.wall_ns && ns >= CALLS_SHARE * on_cpu;
        if !busy || !own.is_piecemeal() {
            continue;
        }
        let sum = programs.entry(&thread.rec.comm).or_default();
        (sum.pid, sum.process) = (thread.rec.pid, thread.rec.comm.clone());
        sum.tids.push(thread.rec.tid);
        sum.received.calls = sum.received.calls.saturating_add(own.calls);
        sum.received.bytes = sum.received.bytes.saturating_add(own.bytes);
        sum.ns += ns;
        sum.cpu_ns += on_cpu;
        sum.wall_ns += thread.ledger.wall_ns;
    }
    programs.into_values().max_by(|a, b| a.ns.total_cmp(&b.ns))
}

/// The CPU time of a thread in calls that receive, scaled as its account is.
fn receiving_ns(thread: &ThreadFact<'_>) -> f64 {
    let calls = thread.rec.syscalls.iter().filter(|call| call.fd == FdKind::Tcp && is_receive(&call.name));
    let ns: f64 = calls.map(|call| call.on_cpu_ns as f64).sum();
    ns * ratio(thread.ledger.wall_ns, thread.rec.observed_ns as f64)
}

impl Piecemeal {
    /// The finding.
    pub fn candidate(self) -> Candidate {
        let Self { pid, process, tids, received, ns, cpu_ns, wall_ns } = self;
        let each = ratio(received.bytes as f64, received.calls as f64);
        let share = ratio(ns, cpu_ns);
        let summary = format!(
            "{process} {pid} receives {} a call while more lies in the socket: these calls take {} of its CPU time.",
            units::bytes(each),
            units::percent(share)
        );
        let evidence = vec![
            words::counted("calls that received something", received.calls),
            words::valued("bytes of each, mean", each, "B"),
            words::valued("threads on a CPU", ratio(cpu_ns, wall_ns), "1"),
        ];
        let fix = format!(
            "Let {process} read some kilobytes at a time and take what it needs from there (a buffered reader). A shell reads byte by byte: \
             leave that to another program (`awk`, `sed`, `mapfile` from a file)."
        );
        Candidate::at_threads(pid, ThreadLoss { ns, wall_ns, tids }, summary, evidence, fix)
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FdKind, FlowState, Release, Role, SyscallCell};

    use crate::judge::judge;
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, WINDOW_NS, capture};

    /// A thread that is busy all the time, in `calls` receives of `bytes` each, after `left_over` of which more was left.
    fn cause(calls: u64, bytes: u64, left_over: u64, in_calls_ms: u64) -> Option<String> {
        let flow = FlowBuilder::new(1, Role::Server).owner(100, 101);
        let mut flow = flow.every(10 * MS, 0, 9 * MS, FlowState::RxWaiting, Release::AppRecv).fill();
        flow.record.calls.recvs = calls;
        flow.record.calls.recv_bytes = calls * bytes;
        flow.record.calls.recv_left_over = left_over;
        let mut capture = capture(vec![], vec![ThreadBuilder::new(101).samples(30, 70)]);
        capture.flows = vec![flow.record];
        let (count, on_cpu_ns) = (calls, in_calls_ms * WINDOW_NS / 1000);
        let read = SyscallCell { name: "read".to_owned(), fd: FdKind::Tcp, count, on_cpu_ns, ..SyscallCell::default() };
        capture.threads[0].syscalls = vec![read];
        judge(&capture).verdict.cause
    }

    #[test]
    fn a_busy_thread_that_takes_few_bytes_while_more_lie_there() {
        assert_eq!(cause(400_000, 1, 399_000, 700).as_deref(), Some("kernel-cpu-bound"));
        // Messages that are taken whole, larger pieces, a few calls, and work beside them.
        for (calls, bytes, left_over, in_calls_ms) in
            [(400_000, 1, 4_000, 700), (400_000, 200, 399_000, 700), (900, 1, 890, 700), (400_000, 1, 399_000, 300)]
        {
            assert_ne!(cause(calls, bytes, left_over, in_calls_ms).as_deref(), Some("kernel-cpu-bound"));
        }
    }
}
