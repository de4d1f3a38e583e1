//! Processes that serve one request at a time: their only thread is blocked with one after the other and never without work, so that whatever
//! else they have taken in waits behind these.
//!
//! Look-alikes: an event loop with long polls has time, which it spends asleep over its descriptors; so has a server that answers at once
//! while a subscription of it hears nothing. A thread that rests has no request that is ready.
use std::collections::BTreeSet;

use parshall_evidence::{Capture, OffCpu, OffCpuCell, Service, ThreadRecord};

use crate::stats::ratio;
use crate::wait::Wait;

/// A thread that waits for work for a larger share of its time than this has time.
const RESTS_MAX: f64 = 0.02;
/// From this share of its time on, what a thread does is to be blocked.
const BLOCKED_MIN: f64 = 0.5;
/// So many requests are worked on at a time by each process that serves them one by one, those between two of them left out.
const AT_A_TIME: (f64, f64) = (0.75, 1.2);
/// Fewer that were answered meanwhile do not tell how a process serves.
const ANSWERED_MIN: u64 = 8;

/// The processes of which this was seen.
pub fn one_at_a_time(capture: &Capture, found: &[Service]) -> BTreeSet<u32> {
    let serves = found.iter().filter(|service| serves_in_turn(service)).flat_map(|service| &service.pids).copied();
    serves.filter(|pid| only_thread(capture, *pid).is_some_and(never_rests)).collect()
}

fn serves_in_turn(service: &Service) -> bool {
    let processes = service.pids.len() as f64;
    let at_a_time = ratio(service.worked_ns as f64, service.observed_ns as f64 * processes);
    !service.waited
        && !service.outbound
        && service.requests >= ANSWERED_MIN
        && (AT_A_TIME.0..=AT_A_TIME.1).contains(&at_a_time)
}

fn only_thread(capture: &Capture, pid: u32) -> Option<&ThreadRecord> {
    let mut seen = capture.waiting.iter().flat_map(|waiting| &waiting.threads).filter(|thread| thread.pid == pid);
    let thread = seen.next().filter(|_| seen.next().is_none())?;
    capture.threads.iter().find(|record| record.tid == thread.tid)
}

/// It is blocked most of the time, and next to never waits for work.
fn never_rests(thread: &ThreadRecord) -> bool {
    // Who has an epoll waits for work there: a poll beside it watches one thing.
    let has_epoll = thread.syscalls.iter().any(|cell| cell.name.starts_with("epoll_"));
    let rests = |cell: &OffCpuCell| match Wait::of(&cell.syscall_name, cell.fd, cell.syscall) {
        Wait::Multiplex => !has_epoll || cell.syscall_name.starts_with("epoll_"),
        wait => wait == Wait::Accept,
    };
    let blocked = || thread.off_cpu.iter().filter(|cell| cell.why == OffCpu::Blocked);
    let share = |is: bool| {
        let ns = blocked().filter(|cell| rests(cell) == is).fold(0u64, |sum, cell| sum.saturating_add(cell.ns));
        ratio(ns as f64, thread.observed_ns as f64)
    };
    share(true) <= RESTS_MAX && share(false) >= BLOCKED_MIN
}
