//! The use of a part of the requests' time: decided by its last hop, and by the queues and locks on the way to it.
use std::collections::{BTreeMap, BTreeSet};

use parshall_evidence::{Capture, FlowRecord, Hop, HopKind, Object, PathPart, Service};

use super::code::Code;
use super::connects::{Unanswered, drops_of_others};
use super::crypto::CRYPTO_SHARE;
use super::fact::{FLOOR_NS, PartFact, ServiceFact, typical_ns};
use super::pool::{UsedUp, gives_nothing, used_up};
use super::queue::{
    accepts_at_timer, connections_of, has_several_listeners, is_full, keeps_connections, needs_what_is_scarce,
    queue_of, queued_locally, short_of_descriptors, turn_of, workers_keep_one_each,
};
use super::spent::Spent;
use crate::judge::evidence_type;
use crate::judge::facts::thread::{CHEAP_NS, CHEAP_WHEN_IDLE_NS, MOSTLY_BUSY};
use crate::judge::known_names::{COLLECTORS, INTERPRETERS, PACKETS};
use crate::judge::ledger::flow_rules::serves;
use crate::sorting::IntoOrdered as _;
use crate::stats::ratio;

/// A share of the CPU samples from which on page faults, reclaim or the kernel give their name to a process' CPU time.
const SPECIAL_SHARE: f64 = 0.30;
const KERNEL_SHARE: f64 = 0.60;
/// The same for garbage collection: most of what it computes.
const COLLECTS_SHARE: f64 = 0.50;
/// From this share of the requests' time on, what opens connections is what it is spent on.
const OPENING_SHARE: f64 = 0.5;
/// From this share of the requests on, a connection is opened for each, or for every second one.
const CONNECTING_SHARE: f64 = 0.4;
/// From this share of the time that requests wait for connections on, nobody answers them.
const UNANSWERED_SHARE: f64 = 0.5;
/// A reply that takes no longer than connecting did, by this factor, took the round trip that each question needs.
const ROUND_TRIPS: f64 = 1.5;
/// From this share of a process' CPU time on that is for no request, it computes in the background.
pub const BACKGROUND_SHARE: f64 = 0.7;
/// From this share of the connections on that several threads read, work moves between threads.
const MOVED_SHARE: f64 = 0.2;

/// A service and its processes, with all that the rules need.
pub struct Context<'c> {
    service: &'c Service,
    /// All that were found, those included that were only followed.
    services: &'c [Service],
    capture: &'c Capture,
    code: &'c Code<'c>,
    /// By process: CPU time that a request costs it, in its own turn.
    own_ns: BTreeMap<u32, f64>,
    /// Names of the processes that serve or ask, beside those of all threads.
    names: BTreeSet<&'c str>,
    requests: f64,
    outstanding: f64,
    /// Requests are served one after the other, as the spacing of their replies shows.
    serial: bool,
    observed_ns: f64,
    /// Most of the time of its requests goes into opening connections, whatever each of them did then.
    opens: bool,
    /// Mean time of connecting to a server, if most requests do.
    connect_ns: Option<f64>,
    /// The pool that a service which answers nothing has used up.
    used_up: Option<UsedUp<'c>>,
    /// Each worker of the service keeps a connection, and accepts the next one when that closes.
    one_each: bool,
}

/// Decides for each part of a service.
pub fn classify(fact: &mut ServiceFact<'_>, services: &[Service], capture: &Capture, code: &Code<'_>) {
    let context = Context::new(fact, services, capture, code);
    let decided: Vec<Spent> = fact.parts.iter().map(|part| context.spent(part)).collect();
    fact.parts.iter_mut().zip(decided).for_each(|(part, spent)| part.spent = spent);
}

impl<'c> Context<'c> {
    /// Of a service.
    pub fn new(
        fact: &ServiceFact<'c>,
        services: &'c [Service],
        capture: &'c Capture,
        code: &'c Code<'c>,
    ) -> Context<'c> {
        let service = fact.rec;
        let mut own_ns = BTreeMap::new();
        for part in &fact.parts {
            match part.rec.hops.last() {
                Some(leaf) if leaf.kind == HopKind::OnCpu && !is_queued(part) && !is_locked(part) => {
                    *own_ns.entry(leaf.pid).or_default() += ratio(part.ns, fact.requests);
                }
                _ => {}
            }
        }
        let names = service.path.iter().flat_map(|p| &p.hops).map(|h| h.process.as_str());
        Context {
            service,
            services,
            capture,
            code,
            own_ns,
            names: names.filter(|n| !n.is_empty()).into_set(),
            requests: fact.requests,
            outstanding: fact.outstanding,
            serial: is_serial(service, fact.outstanding),
            opens: opens(fact) && !shakes_hands(fact, code),
            connect_ns: connect_ns(service),
            used_up: used_up(service, capture),
            one_each: service.waited && workers_keep_one_each(service, services, capture).is_some(),
            observed_ns: capture.window_ns as f64,
        }
    }

    /// All CPU time of a process, divided by the requests.
    fn all_ns(&self, pid: u32) -> f64 {
        ratio(self.code.cpu_ns(pid), self.requests)
    }

    /// The use of this part's time.
    pub fn spent(&self, part: &PartFact<'_>) -> Spent {
        if self.opens && is_opening(self.service, part.rec) && self.may_claim(Spent::Setup, part) {
            return Spent::Setup;
        }
        match self.spent_on(part) {
            spent if self.may_claim(spent, part) => spent,
            _ if evidence_type::of_wait(&part.rec.hops) == HopKind::Unseen => Spent::Unseen,
            _ => Spent::Other,
        }
    }

    /// Whether this may be the cause of a wait of such a type. A wait in a function that only waits for a lock is one for a lock.
    fn may_claim(&self, spent: Spent, part: &PartFact<'_>) -> bool {
        let for_lock =
            || spent == Spent::Lock && part.rec.hops.last().is_some_and(|leaf| self.waits_for_row_lock(leaf));
        spent.cause().is_none_or(|cause| evidence_type::may_claim(cause, &part.rec.hops) || for_lock())
    }

    fn spent_on(&self, part: &PartFact<'_>) -> Spent {
        let hops = &part.rec.hops;
        let Some(leaf) = hops.last() else { return Spent::Unseen };
        if let Some(spent) = self.waited(part, leaf) {
            return spent;
        }
        if leaf.kind == HopKind::OtherRequest && gives_nothing(self.service, self.capture) {
            return match self.used_up {
                Some(UsedUp::Threads { .. }) => Spent::Workers,
                Some(UsedUp::Connections { .. }) => Spent::Turn,
                None => Spent::Other,
            };
        }
        if is_full(part.rec) {
            return self.full(leaf);
        }
        if hops.windows(2).any(|pair| pair[0].kind == HopKind::Client && pair[1].kind == HopKind::Reply) {
            return Spent::Mutual;
        }
        if hops.iter().skip(1).any(|h| is_collector(&h.thread)) {
            return Spent::StopTheWorld;
        }
        // The process that should read the pipe may do anything: the request waits for a write.
        if hops.iter().any(|h| h.kind == HopKind::Pipe && writes(h)) {
            return Spent::Log;
        }
        match leaf.kind {
            // The flow shows who thinks at the other end, and what the network does to it.
            HopKind::Reply | HopKind::Connect | HopKind::Send if self.service.outbound && hops.len() == 1 => {
                Spent::Flow
            }
            HopKind::OnCpu if !is_queued(part) && self.overstates(part, leaf) => Spent::Unseen,
            HopKind::Timer | HopKind::Unseen if self.waits_for_row_lock(leaf) => Spent::Lock,
            HopKind::Deadlock => Spent::Lock,
            _ if let Some(turn) = turn_of(self.services, part.rec)
                && !needs_what_is_scarce(leaf) =>
            {
                if turn.limit.blocks {
                    Spent::Serial
                } else {
                    Spent::Turn
                }
            }
            HopKind::Stopped => Spent::Stopped,
            HopKind::Throttled => Spent::Throttled,
            HopKind::NameServer => Spent::Dns,
            HopKind::Connect if drops_of_others(self.capture, part.rec).is_some() => Spent::TurnedAway,
            HopKind::Connect if self.connect_ns.is_some() && !self.is_unanswered(leaf.pid) => Spent::Setup,
            HopKind::Reply if self.connect_ns.is_some_and(|ns| each_ns(part.rec) <= ROUND_TRIPS * ns) => Spent::Work,
            // The account of the flow has what its own end holds back, and what the service's own clients do.
            HopKind::Held if leaf.object.peer().is_some_and(|to| self.code.accounts.contains(&(leaf.pid, to))) => {
                Spent::Flow
            }
            HopKind::Held if hops.len() == 2 && hops[0].kind == HopKind::Client => Spent::Work,
            HopKind::Held => Spent::Held,
            HopKind::Disk if is_log(leaf) => Spent::Log,
            // A wait that nothing has ended reads nothing back.
            HopKind::Disk if !self.service.waited && self.reads_back(leaf, part.rec.ns) => Spent::Memory,
            HopKind::Disk => Spent::Disk,
            HopKind::Memory if self.waits_for_mapping(leaf) => Spent::PageFaults,
            HopKind::Memory => Spent::Memory,
            HopKind::RunQueue if leaf.object.is_none() => Spent::Other,
            HopKind::RunQueue if !self.is_own(leaf) => Spent::RunQueue,
            HopKind::OnCpu | HopKind::RunQueue => self.computing(part, leaf),
            HopKind::Unseen if !is_locked(part) => Spent::Unseen,
            _ if is_locked(part) && !self.is_interpreter_lock(part) => Spent::Lock,
            _ => self.waiting(part, leaf),
        }
    }

    /// Of a request that did nothing but wait, where its queue says nothing of what it waited for; None where the rules for all
    /// requests tell.
    fn waited(&self, part: &PartFact<'_>, leaf: &Hop) -> Option<Spent> {
        let asked = part.rec.hops.iter().any(|h| h.kind == HopKind::Reply);
        let locked = is_locked(part);
        match leaf.kind {
            _ if !self.service.waited => None,
            _ if part.rec.hops.iter().any(|h| h.kind == HopKind::Pipe && writes(h)) => None,
            HopKind::Unseen => Some(Spent::Unseen),
            HopKind::OtherRequest => Some(Spent::Serial),
            HopKind::Lock | HopKind::Timer | HopKind::Client if locked => Some(Spent::Lock),
            HopKind::Reply | HopKind::Idle | HopKind::Unread | HopKind::AcceptQueue if asked => Some(Spent::Downstream),
            HopKind::AcceptQueue if self.one_each => Some(Spent::Workers),
            HopKind::AcceptQueue => Some(Spent::NotAccepted),
            HopKind::Idle | HopKind::Unread => Some(Spent::Other),
            HopKind::Timer => Some(Spent::Timer),
            HopKind::Connect => Some(Spent::Connect),
            HopKind::Send => Some(Spent::Network),
            // It ran or could run all the time: no request of this one was ever cheap.
            HopKind::OnCpu if !locked => Some(Spent::CpuUser),
            _ => None,
        }
    }

    /// More CPU time than the scheduler's own account has of the process: sleeps of it were not seen. A hop may stand for many
    /// processes of one kind, of which it names one; in slices, for more than were seen. Requests that a thread has in its hands at a time
    /// each have the CPU time that it spends on any of them.
    fn overstates(&self, part: &PartFact<'_>, leaf: &Hop) -> bool {
        let own = self.own_ns.get(&leaf.pid).copied().unwrap_or(0.0);
        let all = self.all_ns(leaf.pid) * alike(part, leaf) * self.at_a_time(leaf.pid);
        all > 0.0 && own > 2.0 * all + FLOOR_NS
    }

    /// How many requests a thread of this process has read and not answered while it has any.
    fn at_a_time(&self, pid: u32) -> f64 {
        let serves = |service: &&Service| !service.waited && !service.outbound && service.pids.contains(&pid);
        let service = Some(self.service).filter(serves).or_else(|| self.services.iter().find(serves));
        let worked = |s: &Service| ratio(s.worked_ns as f64, s.working_ns as f64) / f64::from(s.workers.max(1));
        service.map_or(1.0, worked).max(1.0)
    }

    /// CPU time that a request costs a process in its own turn: of several at a time no more than the scheduler's account has.
    fn cost_ns(&self, part: &PartFact<'_>, leaf: &Hop) -> f64 {
        let own = self.own_ns.get(&leaf.pid).copied().unwrap_or(0.0);
        let all = self.all_ns(leaf.pid) * alike(part, leaf);
        if all > 0.0 && self.at_a_time(leaf.pid) > 1.0 { own.min(all) } else { own }
    }

    /// Most of the time in which a process opens connections, it waits for some that nobody answers.
    fn is_unanswered(&self, pid: u32) -> bool {
        let each_ns = self.connect_ns.unwrap_or(0.0);
        Unanswered::of(self.capture, pid).is_some_and(|of| of.ns >= UNANSWERED_SHARE * each_ns * self.requests)
    }

    /// A process that has time, and accepts no further connection until it has closed one.
    fn full(&self, leaf: &Hop) -> Spent {
        if short_of_descriptors(self.capture, leaf.pid).is_some() {
            return Spent::Descriptors;
        }
        let held = connections_of(self.capture, self.service.address.port());
        match held.contains_key(&leaf.pid) {
            true => Spent::Turn,
            false => self.not_accepted().unwrap_or(Spent::Other),
        }
    }

    /// A connection that nobody accepts, although others of its port are served, waits at a listener of its own; else it waits for those
    /// to be served, and what these wait for was not seen.
    fn not_accepted(&self) -> Option<Spent> {
        let served = self.service.requests > 0 || self.services.iter().any(|s| s.requests > 0 && self.is_next(s));
        (!served || has_several_listeners(self.capture, self.service.address.port())).then_some(Spent::NotAccepted)
    }

    /// Whether the requests of this service are passed on to another one.
    fn is_next(&self, other: &Service) -> bool {
        let mut hops = self.service.path.iter().flat_map(|part| &part.hops);
        hops.any(|hop| hop.kind == HopKind::AcceptQueue && other.pids.contains(&hop.pid))
    }

    /// A wait whose last hop is neither a CPU nor a device, and that no lock stands before.
    fn waiting(&self, part: &PartFact<'_>, leaf: &Hop) -> Spent {
        if queued_locally(&part.rec.hops).is_some() && !needs_what_is_scarce(leaf) {
            return Spent::Workers;
        }
        let queued = is_queued(part);
        let at_a_time = queue_of(self.services, &part.rec.hops, self.capture)
            .map_or(self.service.workers, |(_, at_a_time)| at_a_time);
        let behind_others = if at_a_time <= 1 { Spent::Serial } else { Spent::Workers };
        match leaf.kind {
            HopKind::Timer if accepts_at_timer(&part.rec.hops) => Spent::Timer,
            HopKind::Timer if queued => behind_others,
            HopKind::Worker if queued && keeps_connections(self.services, &part.rec.hops) => behind_others,
            // Several wait for a server at a time and no more: with more of them, fewer would wait here.
            HopKind::Reply if queued && at_a_time > 1 => behind_others,
            HopKind::Timer | HopKind::Worker | HopKind::Kernel if self.serial => Spent::Serial,
            HopKind::Timer => Spent::Timer,
            HopKind::Network if asks_in_turn(&part.rec.hops) => behind_others,
            HopKind::OtherRequest if queued => behind_others,
            HopKind::OtherRequest if self.serial && self.has_work_of_its_own() => Spent::Serial,
            // Somebody brings what was asked for, such as the worker behind a queue, for one request at a time.
            HopKind::OtherRequest if self.serial && asks(&part.rec.hops) => Spent::Serial,
            HopKind::OtherRequest => Spent::Work,
            HopKind::AcceptQueue => self.not_accepted().unwrap_or(behind_others),
            HopKind::Client if part.rec.hops.len() == 1 => Spent::Work,
            HopKind::Client if queued => behind_others,
            HopKind::Send if queued && self.replies(leaf) => behind_others,
            HopKind::Reply | HopKind::Close => Spent::Downstream,
            HopKind::Connect => Spent::Connect,
            HopKind::Client | HopKind::Send | HopKind::Network => Spent::Network,
            _ => Spent::Other,
        }
    }

    /// The thread waits until a client of its process takes more of a reply.
    fn replies(&self, leaf: &Hop) -> bool {
        let to = leaf.object.peer();
        let is_reply = |flow: &FlowRecord| flow.pid == leaf.pid && Some(flow.remote) == to && serves(flow);
        to.is_some() && self.capture.flows.iter().any(is_reply)
    }

    /// A request that only waits for what another one brings is owed nothing; one that then takes as long as the replies are
    /// apart was let in one at a time.
    fn has_work_of_its_own(&self) -> bool {
        let own = self.service.path.iter().filter(|p| p.hops.last().is_some_and(|h| h.kind != HopKind::OtherRequest));
        let own: f64 = own.map(|p| p.ns as f64).sum();
        let each = ratio(own, self.service.followed_requests as f64);
        each >= 0.5 * self.service.reply_gap_p50_ns as f64
    }

    /// A CPU, or the wait for one that this service's own processes used.
    fn computing(&self, part: &PartFact<'_>, leaf: &Hop) -> Spent {
        let own_ns = self.cost_ns(part, leaf);
        let all_ns = self.all_ns(leaf.pid).max(own_ns);
        // What the thread computes for requests that a slice cut is not in their cost.
        let busy_ns = (self.requests * own_ns).max(self.code.hot.cpu_ns(leaf.tid));
        let busy = busy_ns >= MOSTLY_BUSY * self.observed_ns;
        let expensive = own_ns >= if busy { CHEAP_NS } else { CHEAP_WHEN_IDLE_NS };
        let waits_ns = ratio(part.ns, self.requests);
        let others_first = is_queued(part) || is_locked(part);
        // Behind `outstanding` cheap requests a wait is that many times as long as one of them.
        let queue_ns = 2.0 * self.outstanding.max(1.0) * all_ns;
        let explained = waits_ns <= queue_ns || waits_ns < CHEAP_NS;
        // Who holds a lock that others wait for is no busy worker unless it serves requests itself.
        if others_first && self.is_hot(leaf) && (!is_locked(part) || self.code.hot.serves(leaf.tid)) {
            return Spent::HotThread;
        }
        if leaf.kind == HopKind::RunQueue && waits_ns >= CHEAP_NS && self.crowds_itself_out(leaf.pid, waits_ns) {
            return if self.collects(leaf) { Spent::StopTheWorld } else { Spent::CpuUser };
        }
        // It lies there while the thread that should take it computes, and hardly for requests.
        let noticed_ns = || if self.is_busy(leaf.pid) { CHEAP_NS } else { CHEAP_WHEN_IDLE_NS };
        let kept_waiting = is_queued(part) && waits_ns >= noticed_ns();
        if kept_waiting && self.computes_in_background(leaf.pid, waits_ns) {
            return self.computes(leaf);
        }
        if !expensive && (!others_first || explained) {
            return Spent::Work;
        }
        if is_locked(part) && !self.is_interpreter_lock(part) {
            return Spent::Lock;
        }
        self.computes(leaf)
    }

    /// The use of a process' CPU time, by its samples.
    pub fn computes(&self, leaf: &Hop) -> Spent {
        if self.code.reclaim_share(leaf.pid) >= SPECIAL_SHARE {
            Spent::Memory
        } else if self.code.faults_share(leaf.pid) >= SPECIAL_SHARE && self.code.churns(leaf.pid) {
            // A fault that reads a page back costs its CPU time because there was no room for the page.
            if self.code.reads_back_in_faults(leaf.pid) { Spent::Memory } else { Spent::PageFaults }
        } else if self.collects(leaf) {
            Spent::StopTheWorld
        } else if self.code.kernel_share(leaf.pid).unwrap_or_else(|| self.kernel_share_by_host(leaf)) >= KERNEL_SHARE {
            Spent::CpuKernel
        } else {
            Spent::CpuUser
        }
    }

    /// Most of what the process computes is garbage collection.
    fn collects(&self, leaf: &Hop) -> bool {
        self.code.collects_share(leaf.pid) >= COLLECTS_SHARE
    }

    /// A request waits for a CPU for longer than for the requests before it, and most of what its process computes is for none: threads
    /// of its own, in the background or waiting in a loop, have the CPUs.
    fn crowds_itself_out(&self, pid: u32, waits_ns: f64) -> bool {
        self.computes_in_background(pid, waits_ns) && self.is_busy(pid)
    }

    /// A process, or those of the service together if it is one of them, is on a CPU for much of the time.
    fn is_busy(&self, pid: u32) -> bool {
        self.cpu_ns(pid) >= MOSTLY_BUSY * self.observed_ns
    }

    /// A request waits for longer than for the requests before it, and most of what its process computes is for none.
    fn computes_in_background(&self, pid: u32, waits_ns: f64) -> bool {
        let own_ns: f64 = self.with_its_like(&pid).iter().filter_map(|pid| self.own_ns.get(pid)).sum();
        let behind_requests_ns = 2.0 * self.outstanding.max(1.0) * own_ns;
        waits_ns > behind_requests_ns && self.requests * own_ns <= (1.0 - BACKGROUND_SHARE) * self.cpu_ns(pid)
    }

    /// Of a process that was not sampled, the share of its CPU time in the kernel at least: it has spent no more in user mode than all
    /// programs of the host together.
    fn kernel_share_by_host(&self, leaf: &Hop) -> f64 {
        let each = &self.capture.host.each;
        let user_ns = each.iter().fold(0u64, |ns, cpu| ns.saturating_add(cpu.user_ns)) as f64;
        let own_ns = self.own_ns.get(&leaf.pid).copied().unwrap_or(0.0) * self.requests;
        if each.is_empty() || own_ns <= user_ns { 0.0 } else { 1.0 - user_ns / own_ns }
    }

    /// CPU time of the processes of the service, if this is one of them, and else of this one.
    fn cpu_ns(&self, pid: u32) -> f64 {
        self.with_its_like(&pid).iter().map(|pid| self.code.cpu_ns(*pid)).sum()
    }

    /// The processes of the service, if this is one of them: they use the same CPUs.
    fn with_its_like<'p>(&'p self, pid: &'p u32) -> &'p [u32] {
        if self.service.pids.contains(pid) { &self.service.pids } else { std::slice::from_ref(pid) }
    }

    /// This thread is never idle, while others could serve and are. Where connections move between threads, none of them keeps the
    /// others from serving: a limit on how many run at a time does (GOMAXPROCS, a pool of workers).
    fn is_hot(&self, leaf: &Hop) -> bool {
        let moved = ratio(self.service.moved as f64, self.service.connections as f64) >= MOVED_SHARE;
        !moved && self.code.hot.is_hot(leaf.tid, self.service)
    }

    /// One of the processes that serve or ask here, or the kernel's own threads that move their packets.
    fn is_own(&self, leaf: &Hop) -> bool {
        let Object::Thread(runner) = &leaf.object else { return false };
        // Another process may have the name of this one, as all scripts of an interpreter do.
        let observed = self.capture.timeline.as_ref().map(|timeline| &timeline.observed_pids);
        let stranger = |pid: u32| observed.is_some_and(|pids| !pids.is_empty() && !pids.contains_key(&pid));
        let name = runner.process.as_str();
        let packets = PACKETS.iter().any(|thread| name.starts_with(thread));
        let known = !name.is_empty() && (self.names.contains(name) || self.code.has_name(name));
        packets || known && !(runner.pid != 0 && stranger(runner.pid))
    }

    /// The lock that lets one thread of an interpreter run at a time: it is held by whoever computes.
    pub fn is_interpreter_lock(&self, part: &PartFact<'_>) -> bool {
        const FUNCTIONS: [&str; 4] = ["take_gil", "PyEval_AcquireThread", "gvl_acquire", "thread_sched_wait"];
        let computes = part.rec.hops.last().is_some_and(|h| matches!(h.kind, HopKind::OnCpu | HopKind::RunQueue));
        let is = |hop: &Hop| {
            let frames = hop.stack.and_then(|i| self.capture.stacks.get(i as usize)).map(|s| s.frames.as_slice());
            // The functions that it runs wait for its lock wherever they are.
            let named = frames.unwrap_or(&[]).iter().filter(|f| !f.kernel && f.interpreted().is_none());
            let mut named = named.peekable();
            match named.peek() {
                Some(first) if first.is_named() => named.any(|n| FUNCTIONS.iter().any(|f| n.name.contains(f))),
                _ => INTERPRETERS.iter().any(|name| hop.process.starts_with(name)),
            }
        };
        computes && part.rec.hops.iter().filter(|h| h.kind == HopKind::Lock).all(is)
    }

    /// A database waits for a lock of its own with a timeout: only its functions tell that from a sleep. Within a storage engine of
    /// MariaDB and MySQL (`handler::ha_`), nothing else is waited for with a timeout; `MDL_wait` is their wait for a table's lock.
    fn waits_for_row_lock(&self, leaf: &Hop) -> bool {
        const FUNCTIONS: [&str; 7] = [
            "ProcSleep",
            "LockAcquire",
            "WaitOnLock",
            "lock_wait",
            "MDL_wait::",
            "handler::ha_",
            "sqlite3InvokeBusyHandler",
        ];
        let stack = leaf.stack.and_then(|i| self.capture.stacks.get(i as usize));
        let mut frames = stack.iter().flat_map(|s| &s.frames).filter(|f| !f.kernel);
        frames.any(|f| FUNCTIONS.iter().any(|name| f.name.starts_with(name)))
    }

    /// It reads a file, and most of what its control group reads was in memory before: there is no room for it.
    fn reads_back(&self, leaf: &Hop, waited_ns: u64) -> bool {
        let writes = writes(leaf) || leaf.syscall.contains("sync");
        !writes && self.code.thrashes(leaf.pid, waited_ns)
    }

    /// It waits for other threads that change the process' mappings, and not for memory.
    fn waits_for_mapping(&self, leaf: &Hop) -> bool {
        let stack = leaf.stack.and_then(|i| self.capture.stacks.get(i as usize));
        stack.is_some_and(|s| s.frames.iter().any(|f| f.kernel && f.name.starts_with("rwsem_down")))
    }
}

/// How many processes of one kind a hop stands for, by their CPU time.
fn alike(part: &PartFact<'_>, leaf: &Hop) -> f64 {
    match leaf.threads {
        0 | 1 => 1.0,
        seen => f64::from(seen) * ratio(part.ns, part.rec.ns as f64).max(1.0),
    }
}

/// The time before the request that a connection is opened for is most of the time, and not a negligible one.
fn opens(fact: &ServiceFact<'_>) -> bool {
    let ns: f64 = fact.parts.iter().filter(|part| is_opening(fact.rec, part.rec)).map(|part| part.ns).sum();
    ns >= OPENING_SHARE * fact.time_ns && ratio(ns, fact.requests) >= FLOOR_NS
}

/// It comes before the request that a connection was opened for. Unseen time tells nothing of that. A request that waits to be accepted
/// until another one is served or computed for, or until a limit allows it, would wait on a connection that is kept, too. A name server,
/// a disk or a timer that could be quick is a cause of its own.
fn is_opening(service: &Service, part: &PathPart) -> bool {
    let Some(leaf) = part.hops.last() else { return false };
    let accepts = part.hops.iter().any(|hop| hop.kind == HopKind::AcceptQueue);
    match leaf.kind {
        HopKind::Unseen | HopKind::NameServer | HopKind::Disk | HopKind::Timer => false,
        HopKind::Client | HopKind::Idle | HopKind::Network | HopKind::Reply if accepts => false,
        // A process that forks one for each connection serves none.
        HopKind::OnCpu | HopKind::RunQueue if accepts && service.pids.contains(&leaf.pid) => false,
        _ => part.setup,
    }
}

/// Another server is asked on the way.
fn asks(hops: &[Hop]) -> bool {
    hops.iter().any(|hop| hop.kind == HopKind::Reply)
}

/// Its worker accepts the next connection when it has served one, and waits for a server that answers at once and is far away: others could
/// ask it meanwhile.
fn asks_in_turn(hops: &[Hop]) -> bool {
    let far = matches!(hops, [.., asks, _] if asks.kind == HopKind::Reply);
    far && hops.iter().any(|hop| hop.kind == HopKind::AcceptQueue)
}

/// Connections are opened by a TLS handshake, whose computing is a cause of its own.
fn shakes_hands(fact: &ServiceFact<'_>, code: &Code<'_>) -> bool {
    let hops = fact.parts.iter().filter(|part| part.rec.setup).filter_map(|part| part.rec.hops.last());
    hops.into_iter().any(|hop| code.crypto.share(hop.tid) >= CRYPTO_SHARE)
}

/// How long a request waits for a connection to a server, if a large share of them does.
fn connect_ns(service: &Service) -> Option<f64> {
    let connecting = service.path.iter().filter(|p| p.hops.last().is_some_and(|h| h.kind == HopKind::Connect));
    let (requests, ns) = connecting.fold((0.0, 0.0), |sum, p| (sum.0 + p.requests as f64, sum.1 + p.ns as f64));
    let enough = ratio(requests, service.followed_requests as f64) >= CONNECTING_SHARE;
    (requests > 0.0 && enough).then(|| ratio(ns, requests))
}

fn each_ns(part: &PathPart) -> f64 {
    ratio(part.ns as f64, part.requests as f64)
}

/// The replies are evenly spaced while others wait, and a request takes as long as several of them.
fn is_serial(service: &Service, outstanding: f64) -> bool {
    let (p10, p50, p90) = (service.reply_gap_p10_ns, service.reply_gap_p50_ns, service.reply_gap_p90_ns);
    // The more are outstanding, the less likely timers that run side by side are evenly spaced by chance.
    let alike = if outstanding >= 5.0 { 0.60 } else { 0.75 };
    let even = p50 > 0 && p10 as f64 >= alike * p90 as f64;
    even && outstanding >= 2.5 && typical_ns(service) >= 1.5 * p50 as f64
}

/// Whether the request lay unread or unaccepted meanwhile, or waited for its turn.
pub fn is_queued(part: &PartFact<'_>) -> bool {
    part.rec.hops.iter().any(|h| h.kind.is_queue() || h.kind == HopKind::Turn)
}

/// Whether it waited for a lock meanwhile.
pub fn is_locked(part: &PartFact<'_>) -> bool {
    part.rec.hops.iter().any(|h| h.kind == HopKind::Lock)
}

/// The system call in which this hop waited writes.
pub fn writes(hop: &Hop) -> bool {
    matches!(hop.syscall.as_str(), "write" | "writev" | "pwrite64" | "sendto" | "sendmsg" | "splice")
}

fn is_log(hop: &Hop) -> bool {
    let path = hop.target.as_str();
    let name = path.ends_with(".log")
        || ["/var/log/", "/dev/tty", "/dev/pts/", "/dev/console"].iter().any(|p| path.starts_with(p));
    name && writes(hop)
}

/// A thread of a runtime that collects garbage while all others stand still.
pub fn is_collector(thread: &str) -> bool {
    COLLECTORS.iter().any(|name| thread.starts_with(name))
}
