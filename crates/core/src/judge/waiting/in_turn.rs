//! Processes with one thread, by what it does all the time. One that is blocked with one request after the other and never without work has
//! everything else that it has taken in wait behind these. One that rests has no request that is ready: what it lets wait, while it answers
//! others at once, is a long poll or a subscription.
use std::collections::BTreeSet;

use parshall_evidence::{Capture, Service, ThreadRecord};

use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;
use crate::wait::{Wait, blocked_share};

/// A thread that waits for work for a larger share of its time than this has time.
const RESTS_MAX: f64 = 0.02;
/// One that does so for a larger share than this is at rest.
const RESTS_MIN: f64 = 0.9;
/// So many requests are worked on at a time by a process that answers at once.
const AT_ONCE_MAX: f64 = 0.1;
/// From this share of its time on, what a thread does is to be blocked.
const BLOCKED_MIN: f64 = 0.5;
/// So many requests are worked on at a time by each process that serves them one by one, those between two of them left out.
const AT_A_TIME: (f64, f64) = (0.75, 1.2);
/// Fewer that were answered meanwhile do not tell how a process serves.
const ANSWERED_MIN: u64 = 8;

/// The processes of which this was seen.
pub fn one_at_a_time(capture: &Capture, found: &[Service]) -> BTreeSet<u32> {
    let serves = found.iter().filter(|service| serves_in_turn(service)).flat_map(|service| &service.pids).copied();
    serves.filter(|pid| only_thread(capture, *pid).is_some_and(never_rests)).into_set()
}

/// The processes whose only thread rests, and that answer requests at once.
pub fn at_rest(capture: &Capture, found: &[Service]) -> BTreeSet<u32> {
    let at_once = found.iter().filter(|service| at_a_time(service).is_some_and(|n| n <= AT_ONCE_MAX));
    let serves = at_once.flat_map(|service| &service.pids).copied();
    serves.filter(|pid| only_thread(capture, *pid).is_some_and(|thread| rests_share(thread) >= RESTS_MIN)).into_set()
}

fn serves_in_turn(service: &Service) -> bool {
    at_a_time(service).is_some_and(|n| (AT_A_TIME.0..=AT_A_TIME.1).contains(&n))
}

/// How many requests each process of a service works on at a time; None where too few were answered to tell.
fn at_a_time(service: &Service) -> Option<f64> {
    let serves = !service.waited && !service.outbound && service.requests >= ANSWERED_MIN;
    let processes = service.pids.len() as f64;
    serves.then(|| ratio(service.worked_ns as f64, service.observed_ns as f64 * processes))
}

fn only_thread(capture: &Capture, pid: u32) -> Option<&ThreadRecord> {
    let mut seen = capture.waiting.iter().flat_map(|waiting| &waiting.threads).filter(|thread| thread.pid == pid);
    let thread = seen.next().filter(|_| seen.next().is_none())?;
    capture.threads.iter().find(|record| record.tid == thread.tid)
}

/// It is blocked most of the time, and next to never waits for work.
fn never_rests(thread: &ThreadRecord) -> bool {
    let rests = rests_share(thread);
    rests <= RESTS_MAX && blocked_share(thread, |_, _| true) - rests >= BLOCKED_MIN
}

/// The share of its time in which a thread waits for work. A thread that has an epoll waits for it there: a poll beside it watches one
/// thing.
fn rests_share(thread: &ThreadRecord) -> f64 {
    let has_epoll = thread.syscalls.iter().any(|cell| cell.name.starts_with("epoll_"));
    blocked_share(thread, |wait, call| match wait {
        Wait::Multiplex => !has_epoll || call.starts_with("epoll_"),
        wait => wait == Wait::Accept,
    })
}
