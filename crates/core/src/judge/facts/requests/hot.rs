//! Finds threads that are never idle while idle ones could serve: those that serve connections of a service, and threads of the same
//! kind that wait for events.
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use parshall_evidence::{Capture, Service, ThreadRecord};

use super::served::ByService;
use crate::judge::ledger::flow_rules::serves;
use crate::stats::ratio;
use crate::wait::{Wait, blocked_share};

/// A thread that sleeps for this share of the time in wait for events is idle.
const IDLE_SHARE: f64 = 0.7;
/// A thread that is awake for this share of its time is never idle.
const HOT_SHARE: f64 = 0.9;
/// One that is awake for less has time left.
const LEFT_SHARE: f64 = 0.3;

/// Up to two different threads of several: enough to know of any thread whether there is another one.
#[derive(Debug, Default, Clone, Copy)]
struct Two([u32; 2]);

impl AddAssign for Two {
    fn add_assign(&mut self, more: Two) {
        for tid in more.0.into_iter().filter(|tid| *tid != 0) {
            if !self.0.contains(&tid)
                && let Some(free) = self.0.iter_mut().find(|tid| **tid == 0)
            {
                *free = tid;
            }
        }
    }
}

impl Two {
    fn beside(self, tid: u32) -> bool {
        self.0.iter().any(|other| *other != 0 && *other != tid)
    }
}

/// Threads that could serve.
#[derive(Debug, Default, Clone, Copy)]
struct Others {
    all: Two,
    /// Those that have no time left, or of which nothing is known.
    busy: Two,
}

impl AddAssign for Others {
    fn add_assign(&mut self, more: Others) {
        self.all += more.all;
        self.busy += more.busy;
    }
}

impl Others {
    fn one(tid: u32, thread: Option<&ThreadRecord>) -> Others {
        let has_time = thread.is_some_and(|thread| awake(thread) < LEFT_SHARE);
        Others { all: Two([tid, 0]), busy: Two([if has_time { 0 } else { tid }, 0]) }
    }
}

/// The threads of a capture: those that serve connections, and idle workers.
#[derive(Debug, Default)]
pub struct Hot<'a> {
    by_tid: BTreeMap<u32, &'a ThreadRecord>,
    /// Threads that serve connections.
    serving: ByService<Others>,
    /// All of these threads.
    serves: BTreeSet<u32>,
    /// Idle workers by process and name.
    idle: BTreeMap<(u32, &'a str), Others>,
    cpus: u32,
}

impl<'a> Hot<'a> {
    /// Of a capture.
    pub fn new(capture: &'a Capture) -> Hot<'a> {
        let mut hot = Hot { cpus: capture.host.cpus, ..Hot::default() };
        for thread in &capture.threads {
            hot.by_tid.entry(thread.tid).or_insert(thread);
            if is_worker(thread) && waits_for_events(thread) {
                *hot.idle.entry((thread.pid, name(thread))).or_default() += Others::one(thread.tid, Some(thread));
            }
        }
        for flow in capture.flows.iter().filter(|flow| flow.last_tid != 0) {
            let thread = hot.by_tid.get(&flow.last_tid).copied();
            hot.serves.extend(serves(flow).then_some(flow.last_tid));
            hot.serving.add(flow, Others::one(flow.last_tid, thread));
        }
        hot
    }

    /// CPU time of a thread in the window, nanoseconds.
    pub fn cpu_ns(&self, tid: u32) -> f64 {
        self.by_tid.get(&tid).map_or(0.0, |thread| thread.cpu_ns as f64)
    }

    /// Whether a thread reads or answers requests.
    pub fn serves(&self, tid: u32) -> bool {
        self.serves.contains(&tid)
    }

    /// This thread is never idle, while others could serve the service and are.
    pub fn is_hot(&self, tid: u32, service: &Service) -> bool {
        let Some(thread) = self.by_tid.get(&tid).filter(|thread| self.cpus >= 2 && awake(thread) >= HOT_SHARE) else {
            return false;
        };
        let mut others = self.serving.of(service);
        let alike = self.idle.get(&(thread.pid, name(thread))).filter(|_| is_worker(thread));
        // A thread that serves nothing and is like none that could holds what the others need.
        if alike.is_none() && !self.serves.contains(&tid) {
            return false;
        }
        others += alike.copied().unwrap_or_default();
        others.all.beside(tid) && !others.busy.beside(tid)
    }
}

/// The first thread of a process is none of its workers: with the same name, runtimes have threads beside it that wait for events of
/// other kinds.
fn is_worker(thread: &ThreadRecord) -> bool {
    thread.tid != thread.pid
}

fn name(thread: &ThreadRecord) -> &str {
    thread.comm.trim_end_matches(|c: char| c.is_ascii_digit())
}

fn waits_for_events(thread: &ThreadRecord) -> bool {
    blocked_share(thread, |wait, _| wait == Wait::Multiplex) >= IDLE_SHARE
}

/// Share of its time in which a thread did not sleep: it ran, or could have.
fn awake(thread: &ThreadRecord) -> f64 {
    if thread.observed_ns == 0 {
        return ratio(thread.cpu_ns as f64, thread.end_ns.saturating_sub(thread.begin_ns) as f64);
    }
    1.0 - blocked_share(thread, |_, _| true).min(1.0)
}
