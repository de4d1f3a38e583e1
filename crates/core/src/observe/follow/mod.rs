//! The processes outside of the subject that are observed with it, so that a wait is followed to the thread that ends it.
//!
//! Two things lead to such a process: a descriptor of an observed process whose other end it holds ([`ends`]), and its threads
//! waking observed ones. [`Plan`] decides whom to take, within limits; the reading of /proc and of socket tables is in
//! `parshall-diagnose`.
pub mod ends;
pub mod title;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use parshall_evidence::FollowReason;

use ends::Lead;

/// Nanoseconds on any steady clock.
pub type Ns = u64;

/// The shortest time between two searches for processes to follow.
pub const EVERY_NS: Ns = 500_000_000;
/// A search waits for as many times its own duration, so that searching takes at most a twentieth of a CPU.
const DUTY: u64 = 20;
/// Share of the observed time that a waker must have ended waits of before it is followed.
const WAKER_SHARE: f64 = 0.01;

/// When to search again after a search that ended at `now` and took `took`.
pub fn next_search(now: Ns, took: Ns) -> Ns {
    now + EVERY_NS.max(took.saturating_mul(DUTY))
}

/// How far and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Processes between the subject and the last one.
    pub depth: u32,
    /// Processes at a time.
    pub processes: usize,
    /// Of them, those that were found by their descriptors: the others are left for wakers.
    pub connected: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 5, processes: 32, connected: 24 }
    }
}

/// A process that could be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The process.
    pub pid: u32,
    /// The observed process that leads to it.
    pub from: u32,
    /// How.
    pub reason: FollowReason,
    /// Its depth.
    pub depth: u32,
    /// False where it is only known to listen at the address that `from` is connected to.
    pub connected: bool,
}

impl Candidate {
    fn link(&self) -> Link {
        (self.reason == FollowReason::Waker, self.depth, !self.connected, self.reason)
    }
}

/// How good a link to a process is, the best first: not by wakes alone, near, to a holder of the other end, and by reason.
type Link = (bool, u32, bool, FollowReason);

/// Observed processes, and those that may be.
#[derive(Debug)]
pub struct Plan {
    limits: Limits,
    /// Depth of the observed processes, 0 for the subject's.
    depths: HashMap<u32, u32>,
    followed: HashMap<u32, Link>,
    refused: HashSet<u32>,
    /// Waiting that a process ended, and the process that waited: its shallowest.
    wakes: BTreeMap<u32, (u32, Ns)>,
    full: bool,
}

impl Plan {
    /// Nobody is observed yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            depths: HashMap::new(),
            followed: HashMap::new(),
            refused: HashSet::new(),
            wakes: BTreeMap::new(),
            full: false,
        }
    }

    /// A process of the subject.
    pub fn add_subject(&mut self, pid: u32) {
        self.followed.remove(&pid);
        self.depths.insert(pid, 0);
    }

    /// A process is followed from now on. Children of followed ones come whether there is a place for them or not.
    pub fn add(&mut self, candidate: &Candidate) {
        self.depths.insert(candidate.pid, candidate.depth);
        self.followed.insert(candidate.pid, candidate.link());
        self.wakes.remove(&candidate.pid);
    }

    /// A process ended.
    pub fn remove(&mut self, pid: u32) {
        self.depths.remove(&pid);
        self.followed.remove(&pid);
        self.wakes.remove(&pid);
    }

    /// A process that cannot or must not be observed is not proposed again.
    pub fn refuse(&mut self, pid: u32) {
        self.refused.insert(pid);
    }

    /// Its depth, if it is observed.
    pub fn depth(&self, pid: u32) -> Option<u32> {
        self.depths.get(&pid).copied()
    }

    /// The observed processes, in no order.
    pub fn observed(&self) -> impl Iterator<Item = u32> + '_ {
        self.depths.keys().copied()
    }

    /// Whether a candidate found no place.
    pub fn was_full(&self) -> bool {
        self.full
    }

    /// A thread of `waker` ended a wait of `ns` of an observed process.
    pub fn woke(&mut self, waker: u32, sleeper: u32, ns: Ns) {
        let Some(depth) = self.depth(sleeper) else { return };
        if self.depths.contains_key(&waker) || self.refused.contains(&waker) {
            return;
        }
        let (from, waited) = self.wakes.get(&waker).copied().unwrap_or((sleeper, 0));
        let from = if self.depth(from).is_none_or(|known| depth < known) { sleeper } else { from };
        self.wakes.insert(waker, (from, waited + ns));
    }

    /// Processes to follow next, the best first: connected ones before those that only wake, near before far, the holder of the other end
    /// itself before the listener, and among wakers those that ended most of the waiting. `clients` are served by observed processes
    /// and so not awaited, unless observed ones call them too. `observed_ns` is the time that wake-ups were seen in.
    pub fn candidates(&self, leads: &[Lead], clients: &HashSet<u32>, observed_ns: Ns) -> Vec<Candidate> {
        let mut best: BTreeMap<u32, (Rank, Candidate)> = BTreeMap::new();
        let mut propose = |candidate: Candidate, waited: Ns| {
            let pid = candidate.pid;
            if self.depths.contains_key(&pid) || self.refused.contains(&pid) {
                return;
            }
            let rank = (candidate.link(), Reverse(waited), pid);
            let slot = best.entry(pid).or_insert((rank, candidate));
            if rank < slot.0 {
                *slot = (rank, candidate);
            }
        };
        for lead in leads {
            self.candidate(lead).into_iter().for_each(|candidate| propose(candidate, 0));
        }
        let enough = (observed_ns as f64 * WAKER_SHARE) as Ns;
        for (&to, &(from, waited)) in &self.wakes {
            if waited >= enough.max(1) && !clients.contains(&to) {
                let lead = Lead { from, to, reason: FollowReason::Waker, connected: true };
                self.candidate(&lead).into_iter().for_each(|candidate| propose(candidate, waited));
            }
        }
        let mut ranked: Vec<(Rank, Candidate)> = best.into_values().collect();
        ranked.sort_unstable_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, candidate)| candidate).collect()
    }

    fn candidate(&self, lead: &Lead) -> Option<Candidate> {
        let &Lead { from, to, reason, connected } = lead;
        let depth = self.depth(from)? + 1;
        (depth <= self.limits.depth).then_some(Candidate { pid: to, from, reason, depth, connected })
    }

    /// Followed processes to which a better link leads than the one by which they were found: at the first search, a connection that is
    /// opened for each request may not have been seen, and a pipe through the process that started both ends has. They are followed by
    /// the better link from now on. A child of a followed process stays one.
    pub fn relink(&mut self, leads: &[Lead]) -> Vec<Candidate> {
        let mut relinked: BTreeMap<u32, Candidate> = BTreeMap::new();
        for lead in leads {
            let (Some(&link), Some(candidate)) = (self.followed.get(&lead.to), self.candidate(lead)) else { continue };
            if link.3 != FollowReason::Child && candidate.link() < link {
                self.add(&candidate);
                relinked.insert(candidate.pid, candidate);
            }
        }
        relinked.into_values().collect()
    }

    /// Whether there is a place for one more that was found in this way.
    pub fn has_place(&mut self, reason: FollowReason) -> bool {
        let counted = self.followed.values().filter(|(.., reason)| *reason != FollowReason::Child);
        let wakers = counted.clone().filter(|(.., reason)| *reason == FollowReason::Waker).count();
        let all = counted.count();
        let place =
            all < self.limits.processes && (reason == FollowReason::Waker || all - wakers < self.limits.connected);
        self.full |= !place;
        place
    }
}

/// The order of candidates: the link, waiting ended, the process.
type Rank = (Link, Reverse<Ns>, u32);

#[cfg(test)]
mod tests {
    use super::*;

    fn lead(from: u32, to: u32, reason: FollowReason) -> Lead {
        Lead { from, to, reason, connected: true }
    }

    fn pids(candidates: &[Candidate]) -> Vec<u32> {
        candidates.iter().map(|candidate| candidate.pid).collect()
    }

    /// Takes candidates until none is left; `leads` are all there are.
    fn follow(plan: &mut Plan, leads: &[Lead]) -> Vec<(u32, u32)> {
        let mut taken = Vec::new();
        loop {
            let known: Vec<Lead> = leads.iter().copied().filter(|lead| plan.depth(lead.from).is_some()).collect();
            let candidates = plan.candidates(&known, &HashSet::new(), 0);
            let Some(next) = candidates.into_iter().find(|candidate| plan.has_place(candidate.reason)) else {
                return taken;
            };
            plan.add(&next);
            taken.push((next.pid, next.depth));
        }
    }

    fn plan() -> Plan {
        let mut plan = Plan::new(Limits::default());
        plan.add_subject(1);
        plan
    }

    #[test]
    fn a_chain_is_followed_to_the_fifth_process() {
        let leads: Vec<Lead> = (1..9).map(|pid| lead(pid, pid + 1, FollowReason::TcpServer)).collect();
        assert_eq!(follow(&mut plan(), &leads), [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]);
    }

    #[test]
    fn a_cycle_ends() {
        let leads = [lead(1, 2, FollowReason::TcpServer), lead(2, 1, FollowReason::TcpServer)];
        assert_eq!(follow(&mut plan(), &leads), [(2, 1)]);
    }

    #[test]
    fn near_ones_first_and_places_are_left_for_wakers() {
        let mut plan = plan();
        let leads: Vec<Lead> = (100..200).map(|pid| lead(1, pid, FollowReason::TcpServer)).collect();
        assert_eq!(follow(&mut plan, &leads).len(), 24);
        assert!(plan.was_full());
        for waker in 300..320 {
            plan.woke(waker, 1, u64::from(waker));
        }
        let taken = follow(&mut plan, &leads);
        assert_eq!(taken.len(), 8);
        assert_eq!(taken[0], (319, 1), "who ended most of the waiting");
    }

    #[test]
    fn wakers_count_from_a_share_of_the_time_and_clients_never() {
        let mut plan = plan();
        plan.woke(7, 1, 5);
        plan.woke(7, 1, 5);
        plan.woke(8, 1, 1_000);
        plan.woke(9, 99, 1_000);
        let found = plan.candidates(&[], &HashSet::from([8]), 1_000);
        assert_eq!(pids(&found), [7], "8 is a client, 99 is not observed");
        assert_eq!(pids(&plan.candidates(&[], &HashSet::from([8]), 1_001)), [7]);
        assert!(plan.candidates(&[], &HashSet::from([8]), 1_200).is_empty());
    }

    #[test]
    fn a_client_that_is_called_too_is_followed() {
        let found = plan().candidates(&[lead(1, 2, FollowReason::UnixSocket)], &HashSet::from([2]), 0);
        assert_eq!(pids(&found), [2]);
    }

    #[test]
    fn the_holder_of_the_other_end_before_those_who_listen_and_pipes_last() {
        let leads = [
            lead(1, 5, FollowReason::Pipe),
            Lead { connected: false, ..lead(1, 2, FollowReason::TcpServer) },
            lead(1, 4, FollowReason::UnixSocket),
            lead(1, 3, FollowReason::TcpServer),
            Lead { connected: false, ..lead(1, 3, FollowReason::TcpServer) },
        ];
        assert_eq!(pids(&plan().candidates(&leads, &HashSet::new(), 0)), [3, 4, 5, 2]);
    }

    #[test]
    fn who_ended_or_was_refused_is_not_proposed() {
        let mut plan = plan();
        let leads = [lead(1, 2, FollowReason::Pipe), lead(1, 3, FollowReason::Pipe), lead(3, 4, FollowReason::Pipe)];
        plan.refuse(2);
        assert_eq!(follow(&mut plan, &leads), [(3, 1), (4, 2)]);
        plan.remove(3);
        assert_eq!(pids(&plan.candidates(&leads, &HashSet::new(), 0)), [3], "its number may be another process now");
        plan.woke(2, 1, 9);
        assert!(plan.candidates(&[], &HashSet::new(), 0).is_empty());
    }

    #[test]
    fn a_better_link_that_is_seen_later_replaces_the_one_on_record() {
        let mut plan = plan();
        let pipes = [lead(1, 2, FollowReason::Pipe), lead(2, 3, FollowReason::Pipe)];
        assert_eq!(follow(&mut plan, &pipes), [(2, 1), (3, 2)]);
        assert!(plan.relink(&pipes).is_empty(), "they are known");
        let closed = Lead { connected: false, ..lead(1, 3, FollowReason::TcpServer) };
        let relinked = |found: Vec<Candidate>| found.iter().map(|c| (c.pid, c.from, c.depth)).collect::<Vec<_>>();
        assert_eq!(relinked(plan.relink(&[closed, pipes[1]])), [(3, 1, 1)], "nearer, although it only listens");
        assert_eq!(plan.depth(3), Some(1));
        assert_eq!(
            relinked(plan.relink(&[closed, lead(1, 3, FollowReason::TcpServer)])),
            [(3, 1, 1)],
            "it holds the end"
        );
        assert!(plan.relink(&[lead(2, 3, FollowReason::UnixSocket), lead(3, 1, FollowReason::TcpServer)]).is_empty());
    }

    #[test]
    fn a_link_replaces_that_of_a_waker_and_never_that_of_a_child() {
        let mut plan = plan();
        plan.add(&Candidate { pid: 2, from: 1, reason: FollowReason::Waker, depth: 1, connected: true });
        plan.add(&Candidate { pid: 3, from: 2, reason: FollowReason::Child, depth: 2, connected: true });
        let leads = [lead(1, 2, FollowReason::Pipe), lead(1, 3, FollowReason::Pipe)];
        assert_eq!(pids(&plan.relink(&leads)), [2]);
    }

    #[test]
    fn searching_takes_a_twentieth_of_the_time_at_most() {
        assert_eq!(next_search(1_000, 10), 1_000 + EVERY_NS);
        assert_eq!(next_search(1_000, 100_000_000), 1_000 + 2_000_000_000);
    }
}
