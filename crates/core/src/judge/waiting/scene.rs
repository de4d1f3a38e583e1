//! The waits of one moment, with lookups: ends of connections, threads, and who owes an answer as far as all of it tells.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use parshall_evidence::{
    Capture, FlowId, OffCpu, OffCpuCell, Service, ThreadRecord, Waiting, WaitingEnd, WaitingThread,
};

use super::debt::{Debt, TICK_NS, debt};
use super::in_turn::{at_rest, one_at_a_time};
use crate::observe::follow::ends;
use crate::sorting::IntoOrdered as _;

/// Relays that pass a request on, at most.
const RELAYS_MAX: usize = 12;
/// A relay passes a request on within this time.
const PASSED_ON_NS: u64 = 100_000_000;

/// Lookups in what waits.
pub struct Scene<'a> {
    pub(super) ends: BTreeMap<FlowId, &'a WaitingEnd>,
    pub(super) by_addresses: HashMap<(SocketAddr, SocketAddr), Vec<&'a WaitingEnd>>,
    pub(super) by_pid: BTreeMap<u32, Vec<&'a WaitingThread>>,
    pub(super) by_tid: BTreeMap<u32, &'a WaitingThread>,
    pub(super) held: BTreeMap<u32, Vec<&'a WaitingEnd>>,
    pub(super) awaited: BTreeSet<FlowId>,
    pub(super) awaits_any: BTreeSet<u32>,
    /// Processes with a thread of which it is not known what it waits for.
    pub(super) unseen: BTreeSet<u32>,
    pub(super) debts: BTreeMap<FlowId, Debt>,
    /// Threads that slept for most of the window, whatever they do at its end.
    pub(super) mostly_asleep: BTreeSet<u32>,
    /// Processes that sleep over an epoll, and one of whose threads runs at this moment by chance: on what they wait was not seen.
    loops_that_run: BTreeSet<u32>,
    /// Processes whose only thread is blocked with one request after the other and never without work.
    pub(super) one_at_a_time: BTreeSet<u32>,
    /// Processes whose only thread rests and answers requests at once.
    pub(super) at_rest: BTreeSet<u32>,
}

impl<'a> Scene<'a> {
    /// Indexes what waits.
    pub fn new(waiting: &'a Waiting) -> Scene<'a> {
        let mut scene = Scene {
            ends: waiting.ends.iter().map(|end| (end.id, end)).into_map(),
            by_addresses: HashMap::new(),
            by_pid: BTreeMap::new(),
            by_tid: waiting.threads.iter().map(|thread| (thread.tid, thread)).into_map(),
            held: BTreeMap::new(),
            awaited: waiting.threads.iter().flat_map(|thread| thread.awaits.iter().copied()).into_set(),
            awaits_any: waiting.threads.iter().filter(|t| t.awaits_any).map(|t| t.pid).into_set(),
            unseen: waiting.threads.iter().filter(|t| !t.seen && t.state != 'T').map(|t| t.pid).into_set(),
            debts: BTreeMap::new(),
            mostly_asleep: BTreeSet::new(),
            loops_that_run: BTreeSet::new(),
            one_at_a_time: BTreeSet::new(),
            at_rest: BTreeSet::new(),
        };
        for end in &waiting.ends {
            scene.by_addresses.entry((end.local, end.remote)).or_default().push(end);
            end.pids.iter().for_each(|pid| scene.held.entry(*pid).or_default().push(end));
        }
        for thread in &waiting.threads {
            scene.by_pid.entry(thread.pid).or_default().push(thread);
        }
        scene.settle();
        scene
    }

    /// With what the accounts of the threads and of the services that the probes saw tell.
    pub fn knowing(self, capture: &Capture, found: &[Service]) -> Scene<'a> {
        let asleep = capture.threads.iter().filter(|thread| thread.cpu_ns < capture.window_ns / 2);
        let mut scene = Scene { mostly_asleep: asleep.map(|thread| thread.tid).into_set(), ..self };
        scene.one_at_a_time = one_at_a_time(capture, found);
        scene.at_rest = at_rest(capture, found);
        let runs = |t: &&&WaitingThread| t.state == 'R' && scene.mostly_asleep.contains(&t.tid);
        let running: BTreeSet<u32> = scene.by_tid.values().filter(runs).map(|thread| thread.pid).into_set();
        let loops = capture.threads.iter().filter(|thread| running.contains(&thread.pid) && sleeps_in_epoll(thread));
        scene.loops_that_run = loops.map(|thread| thread.pid).into_set();
        if !scene.loops_that_run.is_empty() {
            scene.settle();
        }
        scene
    }

    /// Tells which ends have an open request. Decides those at which a request and a reply moved in the same tick: a served connection on which its process waits for
    /// the next request has no open one, and one on which nobody waits is in somebody's hands. The end that asks follows the other one.
    /// Relays pass this on from one to the next, a step with each round.
    fn settle(&mut self) {
        self.debts = self.ends.values().map(|end| (end.id, debt(end))).into_map();
        for _ in 0..RELAYS_MAX {
            let open = self.ends.values().filter(|end| self.debt(end) == Debt::Maybe);
            let settled: Vec<(FlowId, Debt)> = open.filter_map(|end| Some((end.id, self.settled(end)?))).collect();
            if settled.is_empty() {
                return;
            }
            self.debts.extend(settled);
        }
    }

    fn settled(&self, end: &WaitingEnd) -> Option<Debt> {
        if !end.serves {
            let other = self.debt(self.other_end(end)?);
            return (other != Debt::Maybe).then_some(other);
        }
        if end.pids.iter().any(|pid| self.unseen.contains(pid)) {
            return None;
        }
        if !self.awaited(end) {
            // An event loop waits for the next request again as soon as it has nothing to do.
            let runs = end.pids.iter().any(|pid| self.loops_that_run.contains(pid));
            return (!runs).then_some(Debt::Sure);
        }
        let passed_on = |out: &&&WaitingEnd| {
            let (Some(sent), Some(received)) = (out.sent_ns, end.received_ns) else { return false };
            !out.serves && sent <= received.saturating_add(TICK_NS) && received <= sent.saturating_add(PASSED_ON_NS)
        };
        let outs = end.pids.iter().filter_map(|pid| self.held.get(pid)).flatten();
        outs.filter(passed_on).any(|out| self.debt(out) == Debt::Sure).then_some(Debt::Sure)
    }

    /// The end with this id.
    pub fn end(&self, id: FlowId) -> Option<&'a WaitingEnd> {
        self.ends.get(&id).copied()
    }

    /// Whether an end owes an answer or is owed one, as far as all that is known tells.
    pub fn debt(&self, end: &WaitingEnd) -> Debt {
        self.debts.get(&end.id).copied().unwrap_or(Debt::No)
    }

    /// It has a request that nobody has answered, or may have one, or is the other end of one.
    pub fn is_open(&self, end: &WaitingEnd) -> bool {
        let opens = |end: &WaitingEnd| self.debt(end) == Debt::Sure || !end.serves && self.debt(end) == Debt::Maybe;
        opens(end) || end.unread_bytes > 0 || self.other_end(end).is_some_and(opens)
    }

    /// Ends of the subject that serve, with a request that nobody has answered.
    pub fn served_debts(&self) -> impl Iterator<Item = &'a WaitingEnd> + '_ {
        let served = self.ends.values().filter(|end| end.subject && end.serves);
        served.filter(|end| self.debt(end) == Debt::Sure).copied()
    }

    /// The other end of a connection, where that is on this host.
    pub fn other_end(&self, end: &WaitingEnd) -> Option<&'a WaitingEnd> {
        let found = self.by_addresses.get(&(end.remote, end.local))?;
        ends::other_end(found, |other| other.netns, end.netns, end.remote).copied()
    }

    /// Its process waits for data to arrive there.
    pub(super) fn awaited(&self, end: &WaitingEnd) -> bool {
        self.awaited.contains(&end.id) || end.pids.iter().any(|pid| self.awaits_any.contains(pid))
    }
}

fn sleeps_in_epoll(thread: &ThreadRecord) -> bool {
    let is_epoll = |cell: &OffCpuCell| cell.why == OffCpu::Blocked && cell.syscall_name.starts_with("epoll_");
    thread.off_cpu.iter().any(|cell| is_epoll(cell) && cell.ns > 0)
}
