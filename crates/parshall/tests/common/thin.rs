//! Captures made small enough for the repository.
use std::collections::HashSet;

use parshall_core::critical_path::{clipped, reduced};
use parshall_core::judge::services;
use parshall_evidence::{Capture, Timeline};

/// The most stalls, stacks, and frames of a stack in a thinned capture.
const STALLS_MAX: usize = 150;
/// The most flows and threads: a service that opens a connection and a thread for each request has thousands.
const FLOWS_MAX: usize = 45;
const THREADS_MAX: usize = 30;
const STACKS_MAX: usize = 40;
const FRAMES_MAX: usize = 10;
/// The most events of the timeline: 10 bytes each in the file.
const EVENTS_MAX: usize = 4_000;

/// The begin of a timeline, with few events.
fn beginning(timeline: &Timeline) -> Timeline {
    let offs = timeline.off_cpu.values().flatten().map(|off| off.begin_ns);
    let mut times: Vec<u64> = offs.chain(timeline.calls.values().flatten().map(|call| call.at_ns)).collect();
    times.sort_unstable();
    let mut kept = times.len();
    loop {
        let until = times.get(kept).copied().unwrap_or(u64::MAX);
        let short = reduced(clipped(timeline.clone(), until));
        if short.events() <= EVENTS_MAX {
            return short;
        }
        kept = kept * 3 / 4;
    }
}

/// Makes a capture smaller without changing its verdict: keeps all cells and counts, every n-th stall, and the stacks of
/// what requests wait for and the most frequent ones.
pub fn thinned(mut capture: Capture) -> Capture {
    fn every_nth<T>(items: &mut Vec<T>, most: usize) {
        let step = items.len().div_ceil(most).max(1);
        let mut n = 0;
        items.retain(|_| {
            n += 1;
            n % step == 0
        });
    }
    every_nth(&mut capture.flows, FLOWS_MAX);
    every_nth(&mut capture.threads, THREADS_MAX);
    let flows: HashSet<u64> = capture.flows.iter().map(|flow| flow.id).collect();
    let tids: HashSet<u32> = capture.threads.iter().map(|thread| thread.tid).collect();
    capture.flow_stalls.retain(|stall| flows.contains(&stall.flow));
    capture.thread_stalls.retain(|stall| tids.contains(&stall.tid));
    capture.samples.retain(|sample| tids.contains(&sample.tid));
    capture.counters.iter_mut().for_each(|counters| counters.sockets.retain(|s| flows.contains(&s.flow)));
    every_nth(&mut capture.flow_stalls, STALLS_MAX);
    every_nth(&mut capture.thread_stalls, STALLS_MAX);
    capture.samples.sort_by_key(|sample| std::cmp::Reverse(sample.count));
    let kept = |stack: Option<u32>| stack.filter(|&stack| (stack as usize) < STACKS_MAX);
    // Samples refer to stacks by index. The most frequent stacks come first, and references to the others are removed.
    capture.timeline = capture.timeline.as_ref().map(beginning);
    let hops = services(&capture)
        .into_iter()
        .flat_map(|service| service.path.into_iter().chain(service.tail.map(|tail| tail.path).unwrap_or_default()))
        .flat_map(|part| part.hops);
    let mut order: Vec<usize> = hops.filter_map(|hop| hop.stack).map(|stack| stack as usize).collect();
    let of_hops: HashSet<usize> = order.iter().copied().collect();
    order.extend(capture.samples.iter().filter_map(|sample| sample.stack).map(|stack| stack as usize));
    order.extend(0..capture.stacks.len());
    let mut seen = HashSet::new();
    order.retain(|&index| seen.insert(index));
    let mut new_index = vec![0; capture.stacks.len()];
    order.iter().enumerate().for_each(|(new, &old)| new_index[old] = new as u32);
    let moved = |stack: Option<u32>| kept(stack.map(|old| new_index[old as usize]));
    capture.samples.iter_mut().for_each(|sample| sample.stack = moved(sample.stack));
    let offs = capture.timeline.iter_mut().flat_map(|timeline| timeline.off_cpu.values_mut()).flatten();
    offs.for_each(|off| off.stack = moved(off.stack));
    for stall in &mut capture.thread_stalls {
        (stall.stack, stall.waker_stack) = (moved(stall.stack), moved(stall.waker_stack));
    }
    capture.stacks = order.iter().take(STACKS_MAX).map(|&old| capture.stacks[old].clone()).collect();
    for (stack, old) in capture.stacks.iter_mut().zip(&order) {
        // The function that waits for a lock may be far outwards in the stack.
        stack.frames.truncate(if of_hops.contains(old) { usize::MAX } else { FRAMES_MAX });
        for frame in &mut stack.frames {
            // Paths of the recording host are not needed.
            frame.module = frame.module.rsplit('/').next().unwrap_or_default().to_owned();
        }
    }
    let release = capture.host.kernel.split(|c: char| !c.is_ascii_digit() && c != '.').next();
    capture.host.kernel = release.unwrap_or_default().to_owned();
    capture
}
