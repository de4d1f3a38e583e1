//! The scheduler's events of a timeline, as ftrace would have them: native lanes of threads are made of these.
//!
//! A timeline has no numbers of CPUs. A thread gets any that is free while it runs, so that lanes of threads are right, and those of
//! CPUs say only how many ran at a time.
use std::collections::HashMap;

use parshall_core::sorting::StableSort as _;
use parshall_evidence::timeline::{OffCpu, Waker, Why};
use parshall_evidence::{Capture, Timeline};
use parshall_host::output::clean;

use super::proto::Message;

/// Events of a packet.
const BUNDLE: usize = 1_000;
/// The priority of a thread with nice 0; others are not known.
const PRIORITY: u64 = 120;
/// States of a thread that leaves its CPU (include/linux/sched.h, `TASK_REPORT`).
const SLEEPS: u64 = 0x1;
const SLEEPS_UNINTERRUPTIBLY: u64 = 0x2;
const STOPPED: u64 = 0x4;
/// The state of a thread of which nothing is known from here on: it is parked.
const UNKNOWN: u64 = 0x40;
const PREEMPTED: u64 = 0x100;
/// Bits of `common_flags` (include/linux/trace_events.h).
const HARD_IRQ: u64 = 0x08;
const SOFT_IRQ: u64 = 0x10;

/// A time of a thread on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The thread.
    pub tid: u32,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended; the same for one that was not seen to run between two times off the CPU.
    pub end_ns: u64,
    /// The state in which it left.
    pub left: u64,
}

/// An event of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Waking { tid: u32, waker: u32, flags: u64, target: usize },
    Switch { from: u32, left: u64, to: u32 },
}

/// The packets, one after the other. A saved case that left times out shows none: what a thread did between two others is not known.
pub fn bundles(capture: &Capture) -> Vec<Message> {
    let Some(timeline) = capture.timeline.as_ref().filter(|timeline| timeline.left_out == 0) else { return Vec::new() };
    let cpus = placed(runs(capture, timeline));
    let mut places: HashMap<u32, Vec<(Run, usize)>> = HashMap::new();
    for (cpu, runs) in cpus.iter().enumerate() {
        runs.iter().for_each(|run| places.entry(run.tid).or_default().push((*run, cpu)));
    }
    places.values_mut().for_each(|runs| runs.stable_sort_by_key(|(run, _)| (run.begin_ns, run.end_ns)));
    let mut seen: Vec<Vec<(u64, Seen)>> = cpus.iter().map(|runs| switches(runs)).collect();
    for off in timeline.off_cpu.values().flatten() {
        let Some((waker, flags)) = woken(off) else { continue };
        let cpu = at(&places, waker, off.wake_ns).unwrap_or(0);
        let target = at(&places, off.tid, off.end_ns).unwrap_or(0);
        if let Some(events) = seen.get_mut(cpu) {
            events.push((off.wake_ns, Seen::Waking { tid: off.tid, waker, flags, target }));
        }
    }
    let mut out = Vec::new();
    for (cpu, mut events) in seen.into_iter().enumerate() {
        // Stable: switches at one time are in the order in which they happened, and who is woken then was asleep.
        events.stable_sort_by_key(|(ns, seen)| (*ns, matches!(seen, Seen::Switch { .. })));
        for chunk in events.chunks(BUNDLE) {
            let mut bundle = Message::default();
            bundle.uint(1, cpu as u64);
            for (ns, seen) in chunk {
                bundle.message(2, &event(timeline, *ns, seen));
            }
            out.push(bundle);
        }
    }
    out
}

/// The waker of a sleep: the thread, or 0 for an interrupt, and the flags that say which kind.
fn woken(off: &OffCpu) -> Option<(u32, u64)> {
    let slept = matches!(off.why, Why::Slept | Why::SleptForIo | Why::SleptUninterruptibly);
    if !slept || off.is_open() || off.wake_ns < off.begin_ns || off.wake_ns > off.end_ns {
        return None;
    }
    match off.waker {
        Waker::Unknown => None,
        Waker::Thread(tid) | Waker::KernelThread(tid) => Some((tid, 0)),
        Waker::SoftIrq => Some((0, SOFT_IRQ)),
        Waker::HardIrq => Some((0, HARD_IRQ)),
    }
}

/// The CPU that a thread was given at a time.
fn at(places: &HashMap<u32, Vec<(Run, usize)>>, tid: u32, ns: u64) -> Option<usize> {
    let runs = places.get(&tid)?;
    let (run, cpu) = runs[..runs.partition_point(|(run, _)| run.begin_ns <= ns)].last()?;
    (run.end_ns >= ns).then_some(*cpu)
}

/// Times on a CPU: what is between the times off it, in each slice.
pub fn runs(capture: &Capture, timeline: &Timeline) -> Vec<Run> {
    let ends: HashMap<u32, u64> = capture.threads.iter().map(|thread| (thread.tid, thread.end_ns)).collect();
    let seen = active(timeline);
    let mut runs = Vec::new();
    for (tid, offs) in &timeline.off_cpu {
        let since = timeline.names.get(tid).and_then(|names| timeline.observed_pids.get(&names.pid)).copied();
        for (begin_ns, end_ns) in &timeline.slices {
            let inside = offs.iter().filter(|off| off.end_ns > *begin_ns && off.begin_ns < *end_ns);
            let mut free = since.map(|since| since.max(*begin_ns));
            let mut last = None;
            for off in inside {
                let out_ns = off.begin_ns.max(last.unwrap_or(0));
                let in_ns = free.unwrap_or(out_ns).min(out_ns);
                runs.push(Run { tid: *tid, begin_ns: in_ns, end_ns: out_ns, left: left(off.why) });
                last = Some(off.end_ns.max(out_ns));
                free = last;
            }
            let Some(last) = last else { continue };
            // A thread that was not asked about may have ended since: it ran until it was last seen to do something.
            let did = seen.get(tid).map_or(&[][..], Vec::as_slice);
            let did = did[..did.partition_point(|ns| ns <= end_ns)].last();
            let until = ends.get(tid).or(did).map_or(last, |end| (*end).clamp(last, last.max(*end_ns)));
            if last < *end_ns || timeline.slices.len() > 1 {
                runs.push(Run { tid: *tid, begin_ns: last, end_ns: until, left: UNKNOWN });
            }
        }
    }
    runs.stable_sort_by_key(|run| (run.begin_ns, run.end_ns, run.tid));
    runs
}

/// When threads were seen to do something: they moved data, or woke another one. In the order of time.
fn active(timeline: &Timeline) -> HashMap<u32, Vec<u64>> {
    let mut seen: HashMap<u32, Vec<u64>> = HashMap::new();
    for call in timeline.calls.values().flatten() {
        seen.entry(call.tid).or_default().push(call.at_ns);
    }
    for off in timeline.off_cpu.values().flatten() {
        if let Some((waker, 0)) = woken(off) {
            seen.entry(waker).or_default().push(off.wake_ns);
        }
    }
    seen.values_mut().for_each(|times| times.sort_unstable());
    seen
}

fn left(why: Why) -> u64 {
    match why {
        Why::Slept => SLEEPS,
        Why::SleptForIo | Why::SleptUninterruptibly => SLEEPS_UNINTERRUPTIBLY,
        Why::Preempted | Why::Throttled => PREEMPTED,
        Why::Stopped => STOPPED,
    }
}

/// By CPU: that of the thread before, or any that is free.
fn placed(runs: Vec<Run>) -> Vec<Vec<Run>> {
    let mut cpus: Vec<Vec<Run>> = Vec::new();
    let mut before: HashMap<u32, usize> = HashMap::new();
    for run in runs {
        let is_free = |cpu: &usize| cpus[*cpu].last().is_none_or(|last| last.end_ns <= run.begin_ns);
        let own = before.get(&run.tid).copied().filter(is_free);
        let cpu = own.or_else(|| (0..cpus.len()).find(is_free)).unwrap_or_else(|| {
            cpus.push(Vec::new());
            cpus.len() - 1
        });
        cpus[cpu].push(run);
        before.insert(run.tid, cpu);
    }
    cpus
}

/// The switches of a CPU. Thread 0 is the idle one.
fn switches(runs: &[Run]) -> Vec<(u64, Seen)> {
    let mut out = Vec::with_capacity(runs.len() * 2);
    let mut idle = true;
    for (i, run) in runs.iter().enumerate() {
        if idle {
            out.push((run.begin_ns, Seen::Switch { from: 0, left: 0, to: run.tid }));
        }
        let next = runs.get(i + 1).filter(|next| next.begin_ns == run.end_ns && next.tid != run.tid);
        idle = next.is_none();
        out.push((run.end_ns, Seen::Switch { from: run.tid, left: run.left, to: next.map_or(0, |next| next.tid) }));
    }
    out
}

fn event(timeline: &Timeline, ns: u64, seen: &Seen) -> Message {
    let comm = |tid: u32| match tid {
        0 => "swapper".to_owned(),
        _ => clean(timeline.names.get(&tid).map_or("", |names| names.thread.as_str())),
    };
    let mut inner = Message::default();
    let mut event = Message::default();
    event.uint(1, ns);
    match seen {
        Seen::Waking { tid, waker, flags, target } => {
            inner.text(1, &comm(*tid)).uint(2, u64::from(*tid)).uint(3, PRIORITY).uint(4, 1).uint(5, *target as u64);
            event.uint(2, u64::from(*waker)).uint(5, *flags).message(20, &inner);
        }
        Seen::Switch { from, left, to } => {
            inner.text(1, &comm(*from)).uint(2, u64::from(*from)).uint(3, PRIORITY).uint(4, *left);
            inner.text(5, &comm(*to)).uint(6, u64::from(*to)).uint(7, PRIORITY);
            event.uint(2, u64::from(*from)).message(4, &inner);
        }
    }
    event
}
