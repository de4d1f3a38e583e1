//! The stacks that a report could show, so that only their functions are named after a window. Naming is the most expensive step then: the
//! symbols of each program and library have to be read.
use std::collections::{BTreeMap, HashMap};

use parshall_evidence::{CpuSample, EventCounts, ThreadRecord, ThreadStall, WaitingThread};

/// Stacks of long times off the CPU that are named at most, those with most time first.
const STALLED_MAX: usize = 1024;
/// Stacks of CPU samples that are named at most, those with most samples first. Shares of samples are computed from names, so this
/// is more than a window of 10 s on 16 busy CPUs has.
const SAMPLED_MAX: usize = 16_384;
/// Stacks of wakers that are named at most, those that ended most time first.
const WAKERS_MAX: usize = 256;

/// Stacks of events that are named at most, the most frequent first.
const EVENTS_MAX: usize = 1024;

/// The references to the stacks of a window.
pub struct References<'a, S> {
    /// The threads of the subject.
    pub threads: &'a [ThreadRecord],
    /// Long times off the CPU, also those of processes that the subject waited for.
    pub stalls: S,
    /// CPU samples.
    pub samples: &'a [CpuSample],
    /// Events of the kernel that were asked for.
    pub events: &'a [EventCounts],
    /// Threads that slept when the window ended, and may hold up a request.
    pub asleep: &'a [WaitingThread],
}

/// The stacks to name, in ascending order. A waker's stack tells whether an interrupt was the waker; it is needed only where the waker
/// could otherwise be taken for a thread that worked for the sleeper, which must be of the same process.
pub fn shown<'a>(of: References<'a, impl Iterator<Item = &'a ThreadStall>>) -> Vec<u32> {
    let process: HashMap<u32, u32> = of.threads.iter().map(|thread| (thread.tid, thread.pid)).collect();
    let [mut stalled, mut wakers, mut sampled, mut counted] = [(); 4].map(|()| BTreeMap::<u32, u64>::new());
    let add = |sums: &mut BTreeMap<u32, u64>, stack: Option<u32>, weight: u64| {
        if let Some(stack) = stack {
            let sum = sums.entry(stack).or_default();
            *sum = sum.saturating_add(weight);
        }
    };
    for stall in of.stalls {
        add(&mut stalled, stall.stack, stall.ns);
        let waker = process.get(&stall.waker_tid).filter(|_| !stall.waker_in_irq && stall.waker_tid != stall.tid);
        if waker.is_some() && waker == process.get(&stall.tid) {
            add(&mut wakers, stall.waker_stack, stall.ns);
        }
    }
    for sample in of.samples {
        add(&mut sampled, sample.stack, sample.count);
    }
    for cell in of.events.iter().flat_map(|event| &event.cells) {
        add(&mut counted, cell.stack, cell.count);
    }
    // They are few, and each may be what a verdict names.
    let asleep = of.asleep.iter().filter_map(|thread| thread.stack);
    let mut stacks = most(stalled, STALLED_MAX);
    stacks.extend(most(wakers, WAKERS_MAX));
    stacks.extend(most(sampled, SAMPLED_MAX));
    stacks.extend(most(counted, EVENTS_MAX));
    stacks.extend(asleep);
    stacks.sort_unstable();
    stacks.dedup();
    stacks
}

/// The stacks with the largest sums.
fn most(sums: BTreeMap<u32, u64>, max: usize) -> Vec<u32> {
    let mut order: Vec<(u64, u32)> = sums.into_iter().map(|(stack, sum)| (sum, stack)).collect();
    order.sort_unstable_by_key(|&(sum, stack)| (std::cmp::Reverse(sum), stack));
    order.into_iter().take(max).map(|(_, stack)| stack).collect()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{EventCell, FdKind, OffCpu};

    use super::*;

    fn stall(tid: u32, stack: u32, ns: u64) -> ThreadStall {
        ThreadStall {
            tid,
            begin_ns: 0,
            ns,
            why: OffCpu::Blocked,
            syscall: -1,
            syscall_name: String::new(),
            fd: FdKind::None,
            waker_tid: 0,
            waker_comm: String::new(),
            waker_in_irq: false,
            stack: Some(stack),
            waker_stack: None,
        }
    }

    fn sample(stack: u32, count: u64) -> CpuSample {
        CpuSample { tid: 1, user: true, syscall: -1, syscall_name: String::new(), stack: Some(stack), count }
    }

    fn shown_of(threads: &[(u32, u32)], stalls: &[ThreadStall], samples: &[CpuSample]) -> Vec<u32> {
        let thread = |&(pid, tid): &(u32, u32)| ThreadRecord { pid, tid, ..ThreadRecord::default() };
        let threads: Vec<ThreadRecord> = threads.iter().map(thread).collect();
        shown(References { threads: &threads, stalls: stalls.iter(), samples, events: &[], asleep: &[] })
    }

    #[test]
    fn the_most_frequent_stacks_of_events_are_named() {
        let cell = |stack, count| EventCell { stack, count, ..EventCell::default() };
        let few = (0..EVENTS_MAX as u32).map(|n| cell(Some(n), 2));
        let cells = few.chain([cell(Some(5_000), 1), cell(Some(6_000), 3), cell(None, 9)]).collect();
        let events = [EventCounts { cells, ..EventCounts::default() }];
        let named = shown(References { threads: &[], stalls: [].iter(), samples: &[], events: &events, asleep: &[] });
        assert_eq!((named.len(), named.last()), (EVENTS_MAX, Some(&6_000)));
    }

    #[test]
    fn threads_that_sleep_at_the_end_are_named() {
        let asleep = [4, 9].map(|stack| WaitingThread { stack: Some(stack), ..WaitingThread::default() });
        let of = References { threads: &[], stalls: [].iter(), samples: &[], events: &[], asleep: &asleep };
        assert_eq!(shown(of), [4, 9]);
    }

    #[test]
    fn of_nothing_nothing_is_named() {
        let unknown = ThreadStall { stack: None, ..stall(1, 0, 5_000_000) };
        assert!(shown_of(&[(1, 1)], &[unknown], &[CpuSample { stack: None, ..sample(0, 9) }]).is_empty());
    }

    #[test]
    fn those_with_most_time_come_first() {
        let max = STALLED_MAX as u32;
        let mut stalls: Vec<ThreadStall> = (0..max + 5).map(|n| stall(1, n, 1_000_000)).collect();
        // Two short ones of the same stack are more than each of the others.
        stalls.extend([stall(2, max + 4, 1), stall(3, max + 3, 1_000_000)]);
        let named = shown_of(&[], &stalls, &[]);
        assert_eq!(named.len(), STALLED_MAX);
        assert!(named.ends_with(&[max - 3, max + 3, max + 4]), "{:?}", &named[STALLED_MAX - 4..]);
    }

    #[test]
    fn samples_do_not_take_the_place_of_stalls() {
        let samples: Vec<CpuSample> =
            (0..SAMPLED_MAX as u32 + 9).map(|n| sample(n, if n < 9 { 1 } else { 7 })).collect();
        let named = shown_of(&[], &[stall(1, 3, 1_000_000)], &samples);
        assert_eq!((named.len(), named[0], named[1]), (SAMPLED_MAX + 1, 3, 9));
    }

    #[test]
    fn of_wakers_only_threads_of_the_same_process_are_asked_for() {
        let woken = |tid, waker_tid, waker_stack| ThreadStall {
            waker_tid,
            waker_stack: Some(waker_stack),
            ..stall(tid, 0, 2_000_000)
        };
        let in_irq = ThreadStall { waker_in_irq: true, ..woken(11, 12, 5) };
        let stalls = [woken(11, 12, 1), woken(11, 21, 2), woken(11, 99, 3), woken(11, 0, 4), in_irq, woken(98, 99, 6)];
        assert_eq!(shown_of(&[(10, 11), (10, 12), (20, 21)], &stalls, &[]), [0, 1]);
    }
}
