//! From an end with a request that nobody has answered to whoever holds it up: across threads, locks, processes and the
//! connections between them.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::socket::selection::state::SYN_SENT;
use parshall_evidence::{FlowId, Hop, HopKind, Object, WaitingEnd, WaitingThread};

use super::debt::{Debt, TICK_NS};
use super::doing::{Doing, doing, waits_for_signals};
use super::scene::Scene;
use crate::sorting::{IntoOrdered as _, StableSort as _};
use crate::wait::Wait;

/// Steps of one way at most.
const DEPTH_MAX: usize = 12;

/// The classes of requests that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Somebody owes an answer, or has not even taken it in.
    Owed,
    /// It is in the hands of a process, and what that waits for was not seen.
    Unclear,
    /// The process lets it wait: none of its threads is blocked.
    Quiet,
}

/// The way to whoever holds a request up.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// From the end inwards.
    pub hops: Vec<Hop>,
    /// The class of the request.
    pub class: Class,
}

/// Finds the thread of some processes that has a request.
enum Pick<'a> {
    This(&'a WaitingThread, Doing<'a>),
    /// One of several that do different things, such as this one.
    One(&'a WaitingThread),
    Nobody,
}

/// A hop of which nothing is known.
pub fn nobody(kind: HopKind) -> Hop {
    Hop {
        pid: 0,
        tid: 0,
        threads: 0,
        thread: String::new(),
        process: String::new(),
        title: String::new(),
        kind,
        syscall: String::new(),
        target: String::new(),
        object: Object::None,
        stack: None,
    }
}

fn hop(thread: &WaitingThread, kind: HopKind) -> Hop {
    Hop {
        pid: thread.pid,
        tid: thread.tid,
        threads: 1,
        thread: thread.thread.clone(),
        process: thread.process.clone(),
        title: thread.title.clone(),
        syscall: thread.syscall_name.clone(),
        stack: thread.stack,
        ..nobody(kind)
    }
}

/// The hop as a wait for this peer.
pub fn to(peer: SocketAddr, hop: Hop) -> Hop {
    Hop { target: peer.to_string(), object: Object::Peer(peer), ..hop }
}

impl Way {
    fn end(hop: Hop, class: Class) -> Way {
        Way { hops: vec![hop], class }
    }

    fn behind(mut self, hop: Hop) -> Way {
        self.hops.insert(0, hop);
        self
    }
}

impl<'a> Scene<'a> {
    /// The way to the thread that holds up a request which has arrived at this end.
    pub fn served(&self, end: &'a WaitingEnd) -> Way {
        self.at_server(end, &mut Vec::new())
    }

    /// The way to the thread that holds up a request which was sent from this end; None where it is known to be answered.
    pub fn asked(&self, end: &'a WaitingEnd) -> Option<Way> {
        if self.debt(end) != Debt::Sure {
            return None;
        }
        let threads = || end.pids.iter().filter_map(|pid| self.by_pid.get(pid)).flatten().copied();
        let alone = |t: &&WaitingThread| matches!(doing(self, t), Doing::Reply(to) if to.id == end.id);
        let asker = threads().find(alone);
        let from = asker.or_else(|| threads().find(|t| t.awaits.contains(&end.id))).or_else(|| threads().next());
        let first = from.map_or_else(|| nobody(HopKind::Reply), |thread| hop(thread, HopKind::Reply));
        let first = to(end.remote, first);
        if end.state == SYN_SENT {
            return Some(Way::end(Hop { kind: HopKind::Connect, ..first }, Class::Owed));
        }
        // For itself: where the server lets it wait, nobody owes anything.
        let served = self.other_end(end).filter(|other| !other.pids.is_empty()).map(|other| self.served(other));
        Some(match served {
            Some(Way { class: Class::Quiet, .. }) => Way { hops: Vec::new(), class: Class::Quiet },
            _ => self.reply(first, end, asker.is_some(), &mut Vec::new()),
        })
    }

    fn at_server(&self, end: &'a WaitingEnd, way: &mut Vec<u64>) -> Way {
        if way.len() >= DEPTH_MAX || way.contains(&end.id) {
            let thread = end.pids.iter().filter_map(|pid| self.by_pid.get(pid)?.first()).next();
            return Way::end(
                thread.map_or_else(|| nobody(HopKind::Deadlock), |t| hop(t, HopKind::Deadlock)),
                Class::Owed,
            );
        }
        way.push(end.id);
        let queue = match end {
            _ if !end.accepted => Some(HopKind::AcceptQueue),
            _ if end.unread_bytes > 0 => Some(HopKind::Unread),
            _ => None,
        };
        let awaited = queue.is_none() && self.awaited(end);
        if let Some(thread) = self.serves_others(end).filter(|_| !awaited) {
            let found = Way::end(hop(thread, HopKind::OtherRequest), Class::Owed);
            return match queue {
                Some(kind) => found.behind(hop(thread, kind)),
                None => found,
            };
        }
        match self.pick(&end.pids, awaited, queue.is_some(), end.still_ns > 0) {
            Pick::This(thread, doing) => {
                let found = self.thread(thread, doing, way, &mut Vec::new());
                match queue {
                    Some(kind) => found.behind(hop(thread, kind)),
                    None => found,
                }
            }
            Pick::One(thread) => Way::end(hop(thread, queue.unwrap_or(HopKind::Unseen)), Class::Unclear),
            Pick::Nobody => match queue {
                Some(kind) => Way::end(self.taker_hop(end, kind), Class::Owed),
                None => self.passed_on(end, awaited, way),
            },
        }
    }

    /// The only thread of the process that has taken this end in, if it serves others one by one and has no time left.
    fn serves_others(&self, end: &WaitingEnd) -> Option<&'a WaitingThread> {
        let &[pid] = end.pids.as_slice() else { return None };
        let busy = end.accepted && self.one_at_a_time.contains(&pid);
        self.by_pid.get(&pid)?.first().copied().filter(|thread| busy && thread.still != Some(true))
    }

    /// A request that no thread of its process is blocked for: the process has asked somebody else, or lets it wait.
    fn passed_on(&self, end: &'a WaitingEnd, awaited: bool, way: &mut Vec<u64>) -> Way {
        let own = || end.pids.iter().filter_map(|pid| self.held.get(pid)).flatten().copied().filter(|e| !e.serves);
        let later = |age: Option<u64>| age.is_some_and(|ns| ns <= end.received_ns.unwrap_or(0).saturating_add(TICK_NS));
        if let Some(unread) = own().find(|e| e.unread_bytes > 0 && !self.awaited(e) && later(e.received_ns)) {
            // The reply is there, and the relay does not take it.
            return Way::end(self.any_hop(unread, HopKind::Unread), Class::Owed);
        }
        let asks = own().filter(|e| self.debt(e) == Debt::Sure && later(e.sent_ns)).max_by_key(|e| (e.sent_ns, e.id));
        match asks {
            Some(to) => {
                let first = self::to(to.remote, self.any_hop(to, HopKind::Reply));
                self.reply(first, to, false, way)
            }
            None if self.partner_of_loop(end).is_some() => self.through_partner(end, way),
            None if awaited || self.has_a_loop_that_runs(end) || self.is_at_rest(end) => {
                Way { hops: Vec::new(), class: Class::Quiet }
            }
            None => Way::end(self.any_hop(end, HopKind::Unseen), Class::Unclear),
        }
    }

    /// It runs at this moment, and slept for most of the window.
    fn runs_by_chance(&self, thread: &WaitingThread, doing: Doing<'_>) -> bool {
        matches!(doing, Doing::Running) && self.mostly_asleep.contains(&thread.tid)
    }

    fn has_a_loop_that_runs(&self, end: &WaitingEnd) -> bool {
        let mut threads = end.pids.iter().filter_map(|pid| self.by_pid.get(pid)).flatten();
        threads.any(|thread| self.runs_by_chance(thread, doing(self, thread)))
    }

    fn is_at_rest(&self, end: &WaitingEnd) -> bool {
        matches!(end.pids.as_slice(), [pid] if self.at_rest.contains(pid))
    }

    /// An event loop of the processes that hold an end, and waits for the other end of a UNIX socket on which nobody waits there. A parent
    /// that only waits for signals answers nothing: the socket is the one by which it steers its workers.
    fn partner_of_loop(&self, end: &WaitingEnd) -> Option<&'a WaitingThread> {
        let answers = |pid: &u32| self.by_pid.get(pid).is_none_or(|all| !all.iter().all(|t| waits_for_signals(t)));
        let mut threads = end.pids.iter().filter_map(|pid| self.by_pid.get(pid)).flatten();
        threads.find(|t| t.partners.iter().any(answers) && matches!(doing(self, t), Doing::Events)).copied()
    }

    fn through_partner(&self, end: &WaitingEnd, way: &mut Vec<u64>) -> Way {
        let Some(from) = self.partner_of_loop(end) else { return Way { hops: Vec::new(), class: Class::Quiet } };
        let first = Hop { target: from.target.clone(), ..hop(from, HopKind::Pipe) };
        match self.pick(&from.partners, false, false, false) {
            Pick::This(thread, doing) => self.thread(thread, doing, way, &mut vec![from.tid]).behind(first),
            Pick::One(_) | Pick::Nobody => Way::end(nobody(HopKind::Unseen), Class::Unclear).behind(first),
        }
    }

    /// A wait for the reply at the other end of `end`. A thread that does nothing else is blocked, whoever lets it wait.
    fn reply(&self, first: Hop, end: &'a WaitingEnd, blocked: bool, way: &mut Vec<u64>) -> Way {
        let Some(other) = self.other_end(end).filter(|other| !other.pids.is_empty()) else {
            if blocked {
                return Way::end(first, Class::Owed);
            }
            return Way::end(nobody(HopKind::Unseen), Class::Unclear).behind(first);
        };
        let found = self.at_server(other, way);
        match (found.class, blocked) {
            (Class::Quiet | Class::Unclear, true) => {
                Way::end(self.any_hop(other, HopKind::Idle), Class::Owed).behind(first)
            }
            _ => found.behind(first),
        }
    }

    /// A hop of a thread that would take in what nobody has, if the processes that hold an end have one: it waits for work.
    fn taker_hop(&self, end: &'a WaitingEnd, kind: HopKind) -> Hop {
        let takes = |t: &&WaitingThread| Wait::of(&t.syscall_name, t.fd, t.syscall).is_for_new_work();
        let mut threads = end.pids.iter().filter_map(|pid| self.by_pid.get(pid)).flatten().copied();
        threads.find(takes).map_or_else(|| self.any_hop(end, kind), |thread| hop(thread, kind))
    }

    /// A hop of some thread of the processes that hold an end.
    pub fn any_hop(&self, end: &WaitingEnd, kind: HopKind) -> Hop {
        let mut threads = end.pids.iter().filter_map(|pid| self.by_pid.get(pid)).flatten();
        threads.next().map_or_else(|| nobody(kind), |thread| hop(thread, kind))
    }

    /// The thread of these processes that has a request. One on which its process still waits for data is in no thread's hands: only
    /// a thread that was blocked all the time holds it up. One that was not taken in yet waits for the thread that would do it.
    fn pick(&self, pids: &[u32], awaited: bool, queued: bool, still: bool) -> Pick<'a> {
        let mut found: Vec<(&'a WaitingThread, Doing<'a>)> = Vec::new();
        for pid in pids {
            let all: Vec<_> = self.by_pid.get(pid).into_iter().flatten().map(|t| (*t, doing(self, t))).collect();
            let takes_in = all.iter().any(|(_, d)| matches!(d, Doing::Events));
            let mut working: Vec<_> = all.into_iter().filter(|(_, d)| d.may_work()).collect();
            // The first thread of a process with others waits for them, as a rule.
            if working.len() > 1 {
                working.retain(|(t, d)| t.tid != t.pid || d.is_blocked());
            }
            if awaited || queued && takes_in {
                working.retain(|(t, d)| d.is_blocked() && (!awaited || t.still != Some(false)));
            }
            found.extend(working);
        }
        // A thread that has had it all the time has not run since.
        if still && found.iter().any(|(t, _)| t.still != Some(false)) {
            found.retain(|(t, _)| t.still != Some(false));
        }
        found.stable_sort_by_key(|(t, d)| (d.rank(), t.tid));
        match found.first().copied() {
            Some((thread, doing)) if doing.is_blocked() => Pick::This(thread, doing),
            Some(_) => self.explaining(pids, &found),
            None => Pick::Nobody,
        }
    }

    /// Of threads of which none is blocked for sure, one of a kind that can explain all requests that are in the hands of their
    /// processes: each of these has a thread of its own.
    fn explaining(&self, pids: &[u32], found: &[(&'a WaitingThread, Doing<'a>)]) -> Pick<'a> {
        let taken = |end: &&&WaitingEnd| {
            end.serves && end.accepted && end.unread_bytes == 0 && self.debt(end) == Debt::Sure && !self.awaited(end)
        };
        let ends: BTreeSet<FlowId> =
            pids.iter().filter_map(|pid| self.held.get(pid)).flatten().filter(taken).map(|end| end.id).into_set();
        let mut kinds: BTreeMap<u32, (usize, &'a WaitingThread, Doing<'a>)> = BTreeMap::new();
        for (thread, doing) in found {
            kinds.entry(doing.rank()).or_insert((0, thread, *doing)).0 += 1;
        }
        let only = |mut kinds: Vec<(usize, &'a WaitingThread, Doing<'a>)>| kinds.pop().filter(|_| kinds.is_empty());
        let enough = kinds.values().copied().filter(|(count, ..)| *count >= ends.len()).collect();
        match (only(enough), found.first()) {
            (Some((_, thread, doing)), _) => Pick::This(thread, doing),
            // They have more in hands than they can work on, and ran at that moment by chance: they go from one to the next.
            (None, Some(_))
                if found.iter().all(|(t, d)| matches!(d, Doing::Running) && self.mostly_asleep.contains(&t.tid)) =>
            {
                Pick::Nobody
            }
            (None, Some((thread, _))) => Pick::One(thread),
            (None, None) => Pick::Nobody,
        }
    }

    /// The way from a thread that has a request, or holds something that another one waits for. `tids` are those on the way.
    fn thread(&self, thread: &'a WaitingThread, doing: Doing<'a>, way: &mut Vec<u64>, tids: &mut Vec<u32>) -> Way {
        if tids.contains(&thread.tid) {
            return Way::end(hop(thread, HopKind::Deadlock), Class::Owed);
        }
        tids.push(thread.tid);
        let peer = thread.target.parse().map_or(Object::None, Object::Peer);
        let this = Hop { target: thread.target.clone(), object: peer, ..hop(thread, doing.kind()) };
        match doing {
            Doing::Stopped => {
                let target = thread.stopped_by.as_ref().map(ToString::to_string).unwrap_or_default();
                let object = thread.stopped_by.clone().map_or(Object::None, Object::Stopper);
                Way::end(Hop { target, object, ..this }, Class::Owed)
            }
            Doing::Mutex(owner) => match self.by_tid.get(&owner) {
                Some(holder) => self.thread(holder, self::doing(self, holder), way, tids).behind(this),
                None => Way::end(this, Class::Owed),
            },
            Doing::Session(pid) => match self.by_pid.get(&pid).and_then(|threads| threads.first()) {
                Some(holder) => Way::end(hop(holder, HopKind::Client), Class::Owed).behind(this),
                None => Way::end(this, Class::Owed),
            },
            Doing::Reply(end) | Doing::Receive(end) => self.reply(to(end.remote, this), end, true, way),
            Doing::Partner | Doing::FileLock => match self.pick(&thread.partners, false, false, false) {
                Pick::This(next, doing) => self.thread(next, doing, way, tids).behind(this),
                Pick::One(_) | Pick::Nobody => Way::end(this, Class::Owed),
            },
            Doing::Unknown => Way::end(this, Class::Unclear),
            _ => Way::end(this, Class::Owed),
        }
    }
}
