//! Lookups in a timeline: by thread, by socket, by time.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use parshall_evidence::{FlowId, HopKind, Limit};

use super::attempts::{self, Attempt};
use super::places::{self, Places};
use super::requests::{self, Request};
use super::shared::{self, Question};
use super::{ahead, computed, heartbeat, limit, one_way, paced, parts, pieces, polls};
use crate::sorting::IntoOrdered as _;
use crate::wait::Wait;
use parshall_evidence::timeline::{Holder, NAMES_PORT, Names, OffCpu, Op, Socket, SocketCall, Timeline, Waker, Why};

/// The longest time in which a runtime gives what is ready to another thread.
pub(super) const GIVEN_NS: u64 = 500_000;

/// A shorter wait for a CPU is what a turn of any other thread takes.
const LONG_WAIT_NS: u64 = 4_000_000;
/// Threads that are looked at for who had a CPU.
const RAN_BEFORE_MAX: usize = 16;

/// For so long after its reply, a thread may release what it held with a request.
pub(super) const RELEASED_NS: u64 = 1_000_000;
/// Requests before some time that are looked at to find out whether a thread was at work on one.
const AT_WORK_MAX: usize = 16;

/// A server that was asked and has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The socket of who asked.
    pub socket: FlowId,
    /// It is a name server.
    pub names: bool,
}

/// Between two parts of a message that is sent at once is less time than this.
const REST_NS: u64 = 100_000_000;
/// The wait between two parts divided by this: data that comes within that time after the second part answers it. Pushed data comes at
/// any time.
const SOON: u64 = 10;
/// A shorter message is a frame of a protocol, such as an update of a window, and not the begin of a request.
const HEAD_MIN_BYTES: u32 = 64;
/// A thread that sleeps for this share of a time waits.
pub const WAITS_SHARE: f64 = 0.9;

/// A request that came in two parts with a long time between them: the last receive of the first part, and the first of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// The first part was read with it.
    pub before: SocketCall,
    /// The data that was then awaited came with it.
    pub last: SocketCall,
    /// The write that it came from, where the sender's socket held the data.
    pub held: Option<SocketCall>,
}

impl Rest {
    /// How long it was awaited.
    pub fn ns(&self) -> u64 {
        self.last.since_ns.saturating_sub(self.before.at_ns)
    }
}

/// The state of a connection's client while the service waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// It has something else to do, or sleeps for something else.
    Works,
    /// The last call of its thread on its socket was a send, and it waits there for an answer.
    Waits {
        /// The thread.
        tid: u32,
        /// Its socket.
        socket: FlowId,
    },
    /// It is elsewhere, or was not observed.
    Unseen,
}

/// A reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answer {
    pub at_ns: u64,
    /// The served socket.
    pub socket: FlowId,
    /// The thread that sent it.
    pub tid: u32,
}

/// A sleep of a thread that another one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndedSleep {
    pub at_ns: u64,
    /// Who slept, and since when.
    pub sleep: (u32, u64),
}

/// What was found out about threads and connections so far: many sleeps ask for the same.
#[derive(Debug, Default)]
pub struct Habits {
    /// See [`Index::waits_for_others`].
    pub waits_for_others: RefCell<HashMap<u32, bool>>,
    /// See [`Index::wakes_with_each`].
    pub wakes_with_each: RefCell<HashMap<FlowId, bool>>,
}

/// A timeline and what is derived from it once.
pub struct Index<'a> {
    /// The events of the capture.
    pub timeline: &'a Timeline,
    /// Requests that arrived at served sockets, in order.
    pub requests: BTreeMap<FlowId, Vec<Request>>,
    /// Of connections on which not everything that is received is a request: all of it, until something is sent.
    exchanges: HashMap<FlowId, Vec<Request>>,
    calls: HashMap<u32, Vec<SocketCall>>,
    /// The last call on the sockets that are served at an address.
    last_served: HashMap<SocketAddr, SocketCall>,
    /// By process, its sockets that are not served and on which something moved.
    pub(super) asking: HashMap<u32, Vec<FlowId>>,
    /// Threads of each process.
    threads: HashMap<u32, usize>,
    /// By process, the connections that it opened, in the order of the first sends on them.
    first_sends: HashMap<u32, Vec<(u64, FlowId)>>,
    /// See [`attempts::attempts`].
    pub(super) attempts: HashMap<u32, Vec<Attempt>>,
    /// See [`parts::first_asked`].
    first_asked: HashMap<FlowId, u64>,
    /// See [`parts::timer_between`].
    timer_between_ns: Option<u64>,
    /// By process, the thread that ended most of the time its threads slept in futex.
    usual_wakers: BTreeMap<u32, u32>,
    /// By process and address of a futex, the first threads that slept for it, two at most, with the begin of a sleep.
    sleepers: HashMap<(u32, u64), [(u32, u64); 2]>,
    /// See [`super::local_queue`].
    pub(super) local_wakes: HashMap<u32, Vec<(u64, u32)>>,
    /// By thread, the sleeps that it ended of others that had a request, in order.
    pub(super) ended_sleeps: HashMap<u32, Vec<EndedSleep>>,
    pub(super) habits: Habits,
    /// By thread, from when to when it had a request to answer, in order.
    at_work: HashMap<u32, Vec<(u64, u64)>>,
    /// By process, when it answered requests, and on which socket.
    answers: HashMap<u32, Vec<Answer>>,
    /// Limits by what has them: the requests that arrive at a port.
    limits: HashMap<(bool, u16), Vec<Limit>>,
    /// How many requests at a time a process with a limit passes on to a server, by process and address of the server.
    pub(super) limited: HashMap<(u32, SocketAddr), u32>,
    /// See [`ahead::exchanges_each`]; of none where nobody asks for one thing at a time.
    pub(super) exchanges_each: HashMap<u32, usize>,
    /// See [`shared::questions`].
    pub(super) questions: HashMap<u32, Vec<Question>>,
    /// See [`places::places`].
    pub(super) places: HashMap<u16, Places>,
    /// Processes that were out of quota at times.
    throttled: HashSet<u32>,
    /// Times off the CPU that something was concluded from, by thread and begin; None where nobody asks for them.
    used: Option<RefCell<HashSet<(u32, u64)>>>,
}

impl<'a> Index<'a> {
    /// Cuts the requests out of the calls, and sorts the calls by thread.
    pub fn new(timeline: &'a Timeline) -> Index<'a> {
        let mut by_thread: HashMap<u32, Vec<SocketCall>> = HashMap::new();
        let mut found = BTreeMap::new();
        let mut exchanges = HashMap::new();
        let mut first_sends: HashMap<u32, Vec<(u64, FlowId)>> = HashMap::new();
        let (mut last_served, mut asking) = (HashMap::new(), HashMap::<u32, Vec<FlowId>>::new());
        for (id, calls) in &timeline.calls {
            for call in calls {
                by_thread.entry(call.tid).or_default().push(*call);
            }
            let Some(socket) = timeline.sockets.get(id) else { continue };
            if socket.serves {
                let arrived = requests::arrived(*id, socket, calls, &timeline.slices);
                found.insert(*id, arrived.requests);
                exchanges.extend(arrived.exchanges.map(|all| (*id, all)));
                let Some(last) = calls.last() else { continue };
                let known = last_served.entry(socket.local).or_insert(*last);
                if last.at_ns >= known.at_ns {
                    *known = *last;
                }
            } else {
                asking.entry(socket.pid).or_default().push(*id);
                if let Some(first) = calls.first().filter(|call| socket.opened && call.op == Op::Send) {
                    first_sends.entry(socket.pid).or_default().push((first.at_ns, *id));
                }
            }
        }
        by_thread.values_mut().for_each(|calls| calls.sort_by_key(|c| (c.at_ns, c.socket)));
        settle(&mut found, &by_thread, timeline);
        first_sends.values_mut().for_each(|sends| sends.sort_unstable());
        let mut threads: HashMap<u32, usize> = HashMap::new();
        timeline.names.values().for_each(|names| *threads.entry(names.pid).or_default() += 1);
        let mut index = Index {
            timeline,
            requests: found,
            exchanges,
            exchanges_each: HashMap::new(),
            calls: by_thread,
            last_served,
            asking,
            threads,
            first_sends,
            attempts: attempts::attempts(timeline),
            first_asked: parts::first_asked(timeline),
            timer_between_ns: None,
            usual_wakers: timeline.usual_wakers.clone(),
            sleepers: HashMap::new(),
            local_wakes: HashMap::new(),
            ended_sleeps: HashMap::new(),
            habits: Habits::default(),
            at_work: HashMap::new(),
            answers: HashMap::new(),
            limits: HashMap::new(),
            limited: HashMap::new(),
            questions: shared::questions(timeline),
            places: places::places(timeline),
            throttled: throttled(timeline),
            used: None,
        };
        index.sleepers = index.find_sleepers();
        index.local_wakes = index.find_local_wakes();
        index.at_work = index.find_work();
        index.ended_sleeps = index.find_ended_sleeps();
        index.answers = index.find_answers();
        index.find_limits();
        let rests = index.requests.values().flatten().filter_map(|request| index.rest_of(request));
        index.timer_between_ns = parts::timer_between(rests.map(|rest| rest.ns()).collect());
        if timeline.left_out == 0 {
            index.usual_wakers = index.find_usual_wakers();
        }
        index
    }

    /// As [`Index::new`], and notes which times off the CPU are used.
    pub fn noting(timeline: &'a Timeline) -> Index<'a> {
        let index = Index { used: Some(RefCell::default()), ..Index::new(timeline) };
        let decisive = [computed::decisive_sleeps(timeline), paced::decisive_sleeps(timeline)];
        decisive.into_iter().flatten().for_each(|sleep| index.note_sleep(sleep));
        index
    }

    /// Something was concluded from this time off the CPU.
    pub fn note(&self, off: &OffCpu) {
        self.note_sleep((off.tid, off.begin_ns));
    }

    pub(super) fn note_sleep(&self, sleep: (u32, u64)) {
        if let Some(used) = &self.used {
            used.borrow_mut().insert(sleep);
        }
    }

    /// The times off the CPU that were noted, by thread and begin, and who usually ends sleeps in futex.
    pub fn into_noted(self) -> (HashSet<(u32, u64)>, BTreeMap<u32, u32>) {
        (self.used.map(RefCell::into_inner).unwrap_or_default(), self.usual_wakers)
    }

    fn find_work(&self) -> HashMap<u32, Vec<(u64, u64)>> {
        let mut work: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
        for request in self.requests.values().flatten() {
            let tids = [Some(request.read_tid), request.reply_tid.filter(|tid| *tid != request.read_tid)];
            tids.into_iter()
                .flatten()
                .for_each(|tid| work.entry(tid).or_default().push((request.read_ns, request.end_ns)));
        }
        work.values_mut().for_each(|spans| spans.sort_unstable());
        work
    }

    /// Whether a thread had a request to answer at some time, or had just answered it.
    pub fn is_at_work(&self, tid: u32, at: u64) -> bool {
        let spans = self.at_work.get(&tid).map_or(&[][..], Vec::as_slice);
        let begun = &spans[..spans.partition_point(|span| span.0 <= at)];
        begun.iter().rev().take(AT_WORK_MAX).any(|span| at <= span.1.saturating_add(RELEASED_NS))
    }

    /// Whether several threads sleep for the futex of this sleep, as for a lock; one has one of its own to be woken by. None where its
    /// address is not known.
    pub fn is_shared(&self, off: &OffCpu) -> Option<bool> {
        let pid = self.names(off.tid)?.pid;
        let [first, second] = self.sleepers.get(&(pid, off.target)).filter(|_| off.target != 0)?;
        self.note_sleep(*first);
        self.note_sleep(*second);
        Some(first != second)
    }

    /// Whether a thread brought a message when it woke another one at `at`: in that turn it had received something on a served socket, and it
    /// sent nothing back. A thread that only releases a lock answers its requests.
    pub fn brings(&self, tid: u32, at: u64) -> bool {
        let begin = self.last_sleep(tid, at).map_or(0, |off| off.end_ns);
        let calls = self.calls_within(tid, begin, self.turn_end(tid, at));
        let is_answered =
            |got: &SocketCall| calls.iter().any(|c| c.op == Op::Send && c.socket == got.socket && c.at_ns >= got.at_ns);
        let serves = |call: &SocketCall| self.socket(call.socket).is_some_and(|socket| socket.serves);
        calls.iter().any(|call| call.op == Op::Receive && call.at_ns <= at && serves(call) && !is_answered(call))
    }

    fn find_answers(&self) -> HashMap<u32, Vec<Answer>> {
        let mut answers: HashMap<u32, Vec<Answer>> = HashMap::new();
        for request in self.requests.values().flatten() {
            let Some(tid) = request.reply_tid else { continue };
            if let Some(names) = self.names(tid) {
                answers.entry(names.pid).or_default().push(Answer {
                    at_ns: request.end_ns,
                    socket: request.socket,
                    tid,
                });
            }
        }
        answers.values_mut().for_each(|answers| answers.sort_unstable());
        answers
    }

    /// Requests that arrive at one port, and the processes that read them, belong together.
    fn find_limits(&mut self) {
        let mut groups: HashMap<(bool, u16), (Vec<Request>, BTreeSet<u32>)> = HashMap::new();
        for (id, requests) in &self.requests {
            let Some(socket) = self.socket(*id) else { continue };
            let (all, pids) = groups.entry((socket.udp, socket.local.port())).or_default();
            all.extend(requests);
            pids.insert(socket.pid);
            pids.extend(requests.iter().filter_map(|r| Some(self.names(r.read_tid)?.pid)));
        }
        for (group, (all, pids)) in groups {
            let asking = pids.iter().filter_map(|pid| self.asking.get(pid)).flatten().copied();
            let mut limits =
                limit::of_service(&all, asking, self.timeline, |r, next| self.is_passed_on(r, next), &self.requests);
            for limit in &mut limits {
                limit.blocks = limit.next.is_some_and(|next| self.is_blocked(limit, &all, &pids, next));
            }
            let nexts = limits.iter().filter_map(|limit| Some((limit.next?, limit.most)));
            self.limited.extend(nexts.flat_map(|(next, most)| pids.iter().map(move |pid| ((*pid, next), most))));
            self.limits.insert(group, limits);
        }
        if self.limited.values().any(|most| *most == 1) {
            self.exchanges_each = ahead::exchanges_each(&self.calls, self.timeline);
        }
    }

    /// See [`limit::is_blocked`].
    fn is_blocked(&self, limit: &Limit, all: &[Request], pids: &BTreeSet<u32>, next: SocketAddr) -> bool {
        let asking = pids.iter().filter_map(|pid| self.asking.get(pid)).flatten();
        let there = asking.filter(|id| self.socket(**id).is_some_and(|socket| socket.remote == next));
        let calls = there.filter_map(|id| self.timeline.calls.get(id)).map(Vec::as_slice);
        limit::is_blocked(limit, all, calls, |tid, from, to| !self.calls_within(tid, from, to).is_empty())
    }

    /// Whether the thread that answered a request had just received from a server what it, or another thread, had asked since the request came.
    fn is_passed_on(&self, request: &Request, next: SocketAddr) -> bool {
        let Some(tid) = request.reply_tid else { return false };
        let before = self.calls_within(tid, request.arrived_ns, request.end_ns.saturating_sub(1));
        let Some(last) = before.iter().rfind(|call| call.socket != request.socket) else { return false };
        let asks = self.socket(last.socket).is_some_and(|socket| !socket.serves && socket.remote == next);
        let asked =
            || self.last_send(last.socket, last.since_ns).is_some_and(|sent| sent.since_ns >= request.arrived_ns);
        last.op == Op::Receive && asks && asked()
    }

    /// The exchanges of a served socket: data that arrived and was answered, whether these are requests or not.
    pub fn exchanges(&self, id: FlowId) -> &[Request] {
        self.exchanges.get(&id).or_else(|| self.requests.get(&id)).map_or(&[], Vec::as_slice)
    }

    /// The limits on requests that arrive at a port.
    pub fn limits(&self, udp: bool, port: u16) -> &[Limit] {
        self.limits.get(&(udp, port)).map_or(&[], Vec::as_slice)
    }

    /// How many requests at a time the process of a thread passes on to the server that a socket is connected to, if it has a limit.
    pub fn limit(&self, tid: u32, socket: &Socket) -> Option<u32> {
        self.limited.get(&(self.names(tid)?.pid, socket.remote)).copied()
    }

    /// The answers that the process of a thread gave from one time to another to other requests than the one that came on `own` and is
    /// answered at `end_ns`: one connection may carry many at a time.
    pub fn answers_to_others(
        &self,
        tid: u32,
        (own, end_ns): (FlowId, u64),
        (from, to): (u64, u64),
    ) -> impl Iterator<Item = &Answer> {
        let all = self.names(tid).and_then(|names| self.answers.get(&names.pid)).map_or(&[][..], Vec::as_slice);
        let later = all[all.partition_point(|answer| answer.at_ns < from)..].iter();
        later
            .take_while(move |answer| answer.at_ns <= to)
            .filter(move |answer| answer.socket != own || answer.at_ns < end_ns)
    }

    fn find_usual_wakers(&self) -> BTreeMap<u32, u32> {
        let mut slept: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for off in self.timeline.off_cpu.values().flatten().filter(|off| self.wait(off) == Wait::Futex) {
            if let (Waker::Thread(by), Some(names)) = (off.waker, self.names(off.tid)) {
                *slept.entry((names.pid, by)).or_default() += off.wake_ns.saturating_sub(off.begin_ns);
            }
        }
        let mut usual: HashMap<u32, (u64, u32)> = HashMap::new();
        for ((pid, by), ns) in slept {
            let most = usual.entry(pid).or_default();
            *most = (*most).max((ns, by));
        }
        usual.into_iter().map(|(pid, (_, by))| (pid, by)).into_map()
    }

    /// The thread that would probably have ended this sleep in futex, which the end of a slice cut: it ended most of the others of the
    /// process.
    pub fn usual_waker(&self, off: &OffCpu) -> Option<u32> {
        let by = *self.usual_wakers.get(&self.names(off.tid)?.pid)?;
        (by != off.tid).then_some(by)
    }

    /// Of a thread that was made after this connection had been accepted by another one: that one, and when it was made.
    pub fn maker(&self, reader: u32, socket: FlowId) -> Option<(u32, u64)> {
        let made = *self.timeline.observed_pids.get(&self.names(reader)?.pid)?;
        let accepted = self.timeline.calls.get(&socket)?.iter().find(|c| c.op == Op::Accept)?;
        (accepted.tid != reader && accepted.at_ns < made).then_some((accepted.tid, made))
    }

    /// The connection that was established when a thread goes on at `from`: the one on which it sends for the first time next, or
    /// another thread of its process does at once, to which a runtime gave it.
    pub fn connected_by(&self, tid: u32, from: u64) -> Option<FlowId> {
        let sends = self.first_sends.get(&self.names(tid)?.pid)?;
        let next = sends.get(sends.partition_point(|(at_ns, _)| *at_ns < from))?;
        match self.next_call(tid, from) {
            Some(call) if call.op == Op::Send && call.at_ns <= next.0 => (call.socket == next.1).then_some(next.1),
            _ => (next.0 - from <= GIVEN_NS).then_some(next.1),
        }
    }

    /// Until when a client's connection was being opened from `from` on, if it was: with a handshake, for which the other end took less than
    /// half of the time, as far as that was observed.
    pub fn opens_until(&self, id: FlowId, from: u64, to: u64) -> Option<u64> {
        let until = self.first_asked.get(&id).map(|at| (*at).min(to)).filter(|until| *until > from)?;
        let end = self.socket(id).and_then(|socket| socket.other_end);
        let exchanges = end.map_or(&[][..], |end| self.exchanges(end));
        let within = |r: &Request| r.end_ns.min(until).saturating_sub(r.arrived_ns.max(from));
        let worked: u64 = exchanges.iter().map(within).sum();
        (2 * worked < until - from).then_some(until)
    }

    /// Whether a timer of its client ended the wait between two parts of a request: that of a thread of the client, if it was observed.
    pub fn is_timer_between(&self, rest: &Rest, client: Option<u32>) -> bool {
        let Some(tid) = client else {
            return self.timer_between_ns.is_some_and(|timer| parts::is_alike(rest.ns(), timer));
        };
        let offs = self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let last = offs[..offs.partition_point(|off| off.begin_ns < rest.last.since_ns)].last();
        last.inspect(|off| self.note(off)).is_some_and(|off| {
            let slept = off.wake_ns.min(rest.last.since_ns).saturating_sub(off.begin_ns.max(rest.before.at_ns));
            off.waker == Waker::HardIrq && slept as f64 >= WAITS_SHARE * rest.ns() as f64
        })
    }

    /// The thread that held the mutex for which another one slept when the window ended, if this is that sleep.
    pub fn mutex_owner(&self, off: &OffCpu) -> Option<u32> {
        let last = self.timeline.off_cpu.get(&off.tid)?.last()?;
        self.note(last);
        (last.begin_ns == off.begin_ns).then(|| self.timeline.mutex_owners.get(&off.tid).copied())?
    }

    /// The thread that had the CPU which another one waited for, 0 when unknown: the one that ran there before it. If the wait is long,
    /// and that one had waited for the CPU itself for most of it, it is the one that ran before that. Where a quota is used up, such waits
    /// do not count: all threads have them.
    pub fn ran_instead(&self, off: &OffCpu) -> u32 {
        let ready = off.wake_ns.clamp(off.begin_ns, off.end_ns);
        let (mut tid, mut until) = (off.ran_instead_tid, off.end_ns);
        let is_throttled = self.names(off.tid).is_some_and(|names| self.throttled.contains(&names.pid));
        // A case of an earlier version has no more than the waits of followed requests: who waited beside them is not known.
        let is_partial = self.timeline.left_out > 0 && !self.timeline.has_tails;
        if off.end_ns - ready < LONG_WAIT_NS || is_throttled || is_partial {
            return tid;
        }
        for _ in 0..RAN_BEFORE_MAX {
            let Some(offs) = self.timeline.off_cpu.get(&tid).filter(|_| until > ready) else { break };
            let Some(last) = offs[..offs.partition_point(|other| other.end_ns < until)].last() else { break };
            self.note(last);
            let waited_ns = last.end_ns.saturating_sub(last.wake_ns.max(ready));
            let before = last.ran_instead_tid;
            let mostly = waited_ns.saturating_mul(2) > off.end_ns - ready;
            if last.why == Why::Stopped || !mostly || before == 0 || before == off.tid {
                break;
            }
            (tid, until) = (before, last.end_ns);
        }
        tid
    }

    /// Whether a process has a single thread, as far as was seen.
    pub fn has_one_thread(&self, pid: u32) -> bool {
        self.threads.get(&pid) == Some(&1)
    }

    /// The process at the other end of a socket, if it is one of this host.
    pub fn peer(&self, id: FlowId) -> Option<Holder> {
        let observed = self.socket(id).and_then(|s| self.socket(s.other_end?)).filter(|other| other.pid != 0);
        match observed {
            Some(other) => {
                let process = self.names(other.pid).map(|n| n.process.clone()).unwrap_or_default();
                Some(Holder { pid: other.pid, process })
            }
            None => self.timeline.unobserved_ends.get(&id).cloned(),
        }
    }

    /// A thread's times off the CPU; None when it was not observed at `from`.
    pub fn off_cpu(&self, tid: u32, from: u64) -> Option<&'a [OffCpu]> {
        let since = self.timeline.observed_pids.get(&self.names(tid)?.pid)?;
        (*since <= from).then(|| self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice))
    }

    /// Whether a thread read or answered requests.
    pub fn serves(&self, tid: u32) -> bool {
        self.at_work.contains_key(&tid)
    }

    /// The names of a thread and of its process, where they are known.
    pub fn names(&self, tid: u32) -> Option<&'a Names> {
        self.timeline.names.get(&tid)
    }

    /// The record of a socket, if it was observed.
    pub fn socket(&self, id: FlowId) -> Option<&'a Socket> {
        self.timeline.sockets.get(&id)
    }

    /// The kind of wait that a sleep was, by its system call.
    pub fn wait(&self, off: &OffCpu) -> Wait {
        Wait::of(self.syscall(off), off.fd, off.syscall)
    }

    /// The name of the system call of a sleep; empty for none.
    pub fn syscall(&self, off: &OffCpu) -> &'a str {
        self.timeline.syscalls.get(&off.syscall).map_or("", String::as_str)
    }

    /// The calls of a thread that were done in a span of time, both ends included.
    pub(super) fn calls_within(&self, tid: u32, from: u64, to: u64) -> &[SocketCall] {
        let calls = self.calls.get(&tid).map_or(&[][..], Vec::as_slice);
        let begin = calls.partition_point(|c| c.at_ns < from);
        let end = calls.partition_point(|c| c.at_ns <= to);
        calls.get(begin..end).unwrap_or(&[])
    }

    /// Whether a thread, which read a request on `own` at `read_ns`, sleeps here for what it asked for another one.
    pub fn asks_for_another(&self, off: &OffCpu, (own, read_ns): (FlowId, u64)) -> bool {
        let Some(&each) = self.exchanges_each.get(&off.tid) else { return false };
        let calls = self.calls_within(off.tid, 0, u64::MAX);
        ahead::asks_for_another(self.timeline, (calls, each), (own, read_ns), off.begin_ns)
    }

    /// The server that a thread had asked last when it fell asleep, and that had not answered when the sleep ended. Data that is owed no
    /// reply (figures, lines of a log) is no question: to a server other than a name server, the thread asks again afterwards or gives
    /// the connection up, or has had answers there.
    pub fn asked_last(&self, off: &OffCpu) -> Option<Asked> {
        let call = self.calls_within(off.tid, 0, off.begin_ns).last().filter(|call| call.op == Op::Send)?;
        let socket = self.socket(call.socket).filter(|socket| !socket.serves && socket.remote.port() != 0)?;
        let calls = self.timeline.calls.get(&call.socket)?;
        let receives = |c: &SocketCall| c.op == Op::Receive;
        if calls.iter().any(|c| receives(c) && c.at_ns > call.at_ns && c.since_ns < off.end_ns) {
            return None;
        }
        let names = socket.udp && socket.remote.port() == NAMES_PORT;
        let is_same = |c: &SocketCall| self.socket(c.socket).is_some_and(|other| other.remote == socket.remote);
        let asks_again = || self.next_call(off.tid, off.end_ns).is_some_and(|c| c.op == Op::Send && is_same(c));
        let gives_up = || socket.closed_ns.is_some_and(|at_ns| at_ns >= off.end_ns && at_ns - off.end_ns <= GIVEN_NS);
        let answers = names || calls.iter().any(receives) || asks_again() || gives_up();
        answers.then_some(Asked { socket: call.socket, names })
    }

    /// The two parts of a request that its client sent with a long time between them, and that was answered soon after the second. Where
    /// messages come one by one that are owed no reply each, there are more such times, or the answer comes at a time of its own. A datagram
    /// is whole: what comes after it is another request, or the same one once more.
    pub fn rest_of(&self, request: &Request) -> Option<Rest> {
        let calls = self
            .timeline
            .calls
            .get(&request.socket)
            .filter(|_| self.socket(request.socket).is_some_and(|socket| !socket.udp))?;
        let from = calls.partition_point(|call| call.at_ns < request.read_ns);
        let to = calls.partition_point(|call| call.at_ns <= request.end_ns);
        let received: Vec<SocketCall> =
            calls.get(from..to)?.iter().filter(|call| call.op == Op::Receive).copied().collect();
        let gap = |pair: &[SocketCall]| pair[1].since_ns.saturating_sub(pair[0].at_ns);
        let mut gaps = received.windows(2).filter(|pair| gap(pair) >= REST_NS);
        let (Some(&[before, last]), None) = (gaps.next(), gaps.next()) else { return None };
        let first_part = received.iter().take_while(|call| call.at_ns <= before.at_ns);
        let bytes = first_part.fold(0u32, |sum, call| sum.saturating_add(call.bytes));
        let answered_ns = request.end_ns.saturating_sub(last.at_ns);
        let is_one = bytes >= HEAD_MIN_BYTES && answered_ns <= last.since_ns.saturating_sub(before.at_ns) / SOON;
        is_one.then_some(Rest { before, last, held: None })
    }

    /// The state of a served connection's client in a span of time in which nothing comes from it.
    pub fn client_of(&self, served: FlowId, (from, to): (u64, u64)) -> Client {
        let asked = self.socket(served).and_then(|socket| socket.other_end).and_then(|id| self.last_send(id, from));
        asked.map_or(Client::Unseen, |asked| self.waits_at(asked, (from, to)))
    }

    /// The state of a client's thread that sent something, in a span of time after it in which nothing comes back.
    pub fn waits_at(&self, asked: &SocketCall, (from, to): (u64, u64)) -> Client {
        let Some(offs) = self.off_cpu(asked.tid, from) else { return Client::Unseen };
        let waits = |off: &OffCpu| match self.wait(off) {
            Wait::Multiplex => off.why == Why::Slept,
            Wait::SocketReceive => off.target == asked.socket,
            _ => false,
        };
        let begin = offs.partition_point(|off| off.end_ns <= from);
        let mut waited = 0;
        for off in offs[begin..].iter().take_while(|off| off.begin_ns < to) {
            self.note(off);
            if waits(off) {
                waited += off.wake_ns.min(to).saturating_sub(off.begin_ns.max(from));
            }
        }
        match waited as f64 >= WAITS_SHARE * to.saturating_sub(from) as f64 {
            true => Client::Waits { tid: asked.tid, socket: asked.socket },
            false => Client::Works,
        }
    }

    /// Whether a thread sleeps in a receive on this very socket for all of a span of time.
    pub fn receives_at(&self, tid: u32, socket: FlowId, (from, to): (u64, u64)) -> bool {
        let offs = self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let last = offs[..offs.partition_point(|off| off.begin_ns < to)].last();
        last.inspect(|off| self.note(off)).is_some_and(|off| {
            let length = off.wake_ns.min(to).saturating_sub(off.begin_ns.max(from));
            let is_long = length as f64 >= WAITS_SHARE * to.saturating_sub(from) as f64;
            off.target == socket && self.wait(off) == Wait::SocketReceive && is_long
        })
    }

    /// The last receive of a thread in a span of time.
    pub fn last_receive(&self, tid: u32, from: u64, to: u64) -> Option<&SocketCall> {
        self.calls_within(tid, from, to).iter().rev().find(|c| c.op == Op::Receive)
    }

    /// The first call of a thread on any socket from some time on.
    pub fn next_call(&self, tid: u32, from: u64) -> Option<&SocketCall> {
        self.calls_within(tid, from, u64::MAX).first()
    }

    /// Whether a thread was there at a time, as far as is seen: it slept or made a call before, and another one after it.
    pub fn is_there(&self, tid: u32, at: u64) -> bool {
        let offs = self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let ends = [offs.first(), offs.last()].into_iter().flatten();
        let slept = ends
            .inspect(|off| self.note(off))
            .fold((u64::MAX, 0), |seen: (u64, u64), off| (seen.0.min(off.begin_ns), seen.1.max(off.end_ns)));
        let calls = self.calls_within(tid, 0, u64::MAX);
        let before = slept.0 <= at || calls.first().is_some_and(|call| call.at_ns <= at);
        before && (slept.1 > at || calls.last().is_some_and(|call| call.at_ns > at))
    }

    /// Whether a thread had calls on other sockets than this one in a span of time.
    pub fn serves_others(&self, tid: u32, socket: FlowId, from: u64, to: u64) -> bool {
        self.calls_within(tid, from, to).iter().any(|c| c.socket != socket)
    }

    /// Whether a thread had calls on other served sockets than this one in a span of time.
    pub fn serves_another(&self, tid: u32, socket: FlowId, from: u64, to: u64) -> bool {
        let other = |c: &SocketCall| c.socket != socket && self.socket(c.socket).is_some_and(|s| s.serves);
        self.calls_within(tid, from, to).iter().any(other)
    }

    /// The thread that should read what was sent on a socket, and what the data waits in meanwhile: whoever read from the other end
    /// before, or another thread that serves the same port.
    pub fn reader_to_be(&self, id: FlowId) -> Option<(u32, HopKind)> {
        let socket = self.socket(id)?;
        let queue = if socket.other_end.is_some() { HopKind::Unread } else { HopKind::AcceptQueue };
        let before = socket.other_end.and_then(|end| self.timeline.calls.get(&end)?.last());
        before.or_else(|| self.last_served.get(&socket.remote)).map(|call| (call.tid, queue))
    }

    /// The queue that holds data of a client which nobody has read: the accept queue, until a thread has accepted the connection.
    pub fn queue_of(&self, id: FlowId) -> HopKind {
        let end = self.socket(id).and_then(|socket| socket.other_end);
        let accepted = end.is_some_and(|end| self.timeline.calls.get(&end).is_some_and(|calls| !calls.is_empty()));
        if accepted { HopKind::Unread } else { HopKind::AcceptQueue }
    }

    /// Whether anything was received at the other end of a client's socket after `from`, as far as that end was observed.
    pub fn is_read_after(&self, id: FlowId, from: u64) -> bool {
        let end = self.socket(id).and_then(|socket| socket.other_end);
        let calls = end.and_then(|end| self.timeline.calls.get(&end)).map_or(&[][..], Vec::as_slice);
        calls.iter().any(|call| call.op == Op::Receive && call.at_ns >= from)
    }

    /// The last send on a socket that began before `before`.
    pub fn last_send(&self, socket: FlowId, before: u64) -> Option<&'a SocketCall> {
        let calls = self.timeline.calls.get(&socket)?;
        let later = calls.partition_point(|c| c.at_ns <= before);
        // A send that was under way then is the next one or later.
        let under_way = calls[later..].iter().take_while(|c| c.since_ns <= before).filter(|c| c.op == Op::Send).last();
        under_way.or_else(|| calls[..later].iter().rev().find(|c| c.op == Op::Send))
    }

    /// Whether anything was received on a socket after `from` in the slice to which `at` belongs.
    pub fn receives_after(&self, socket: FlowId, from: u64, at: u64) -> bool {
        let slices = &self.timeline.slices;
        let slice_end = slices.get(slices.partition_point(|slice| slice.1 < at)).map_or(u64::MAX, |slice| slice.1);
        let calls = self.timeline.calls.get(&socket).map_or(&[][..], Vec::as_slice);
        let later = calls[calls.partition_point(|c| c.at_ns <= from)..].iter();
        later.take_while(|c| c.at_ns <= slice_end).any(|c| c.op == Op::Receive)
    }

    /// A connection of the process of `tid` on which a request was sent after `from` and not answered by `to`.
    pub fn unanswered_send(&self, tid: u32, from: u64, to: u64) -> Option<&'a SocketCall> {
        let pid = self.names(tid)?.pid;
        let own = self.asking.get(&pid)?.iter();
        own.filter_map(|id| {
            let calls = self.timeline.calls.get(id)?;
            calls[..calls.partition_point(|c| c.at_ns <= to)].last().filter(|c| c.op == Op::Send && c.since_ns >= from)
        })
        .min_by_key(|c| (c.since_ns, c.socket))
    }

    /// When thread `tid`, which ran at `at`, was last woken by another thread before that, and by which.
    pub fn last_wake(&self, tid: u32, at: u64) -> Option<(u64, u32)> {
        let offs = self.timeline.off_cpu.get(&tid)?;
        let upto = offs.partition_point(|o| o.wake_ns <= at);
        offs[..upto].iter().rev().find_map(|off| match off.waker {
            Waker::Thread(by) => {
                self.note(off);
                Some((off.wake_ns, by))
            }
            _ => None,
        })
    }

    /// The end of what a thread did without sleeping from `from` on.
    pub fn turn_end(&self, tid: u32, from: u64) -> u64 {
        let offs = self.timeline.off_cpu.get(&tid).map_or(&[][..], Vec::as_slice);
        let next = &offs[offs.partition_point(|o| o.begin_ns < from)..];
        let sleep = next.iter().find(|o| self.wait(o) == Wait::Multiplex || o.wake_ns > o.begin_ns);
        sleep.inspect(|off| self.note(off)).map_or(u64::MAX, |off| off.begin_ns)
    }
}

/// What more than one request, or another end, says of each.
fn settle(found: &mut BTreeMap<FlowId, Vec<Request>>, by_thread: &HashMap<u32, Vec<SocketCall>>, timeline: &Timeline) {
    polls::settle(found, timeline);
    heartbeat::settle(found, timeline);
    pieces::settle(found, timeline);
    computed::settle(found, by_thread, timeline);
    paced::settle(found, timeline);
    one_way::add(found, by_thread, timeline);
}

fn throttled(timeline: &Timeline) -> HashSet<u32> {
    let out_of_quota = timeline.off_cpu.values().flatten().filter(|off| off.why == Why::Throttled);
    out_of_quota.filter_map(|off| timeline.names.get(&off.tid)).map(|names| names.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::timeline::{Script, off};

    const US: u64 = 1_000;

    #[test]
    fn a_cpu_is_had_by_who_ran_on_it_for_most_of_the_wait() {
        // 901 has the CPU; then 102, which had waited for it, runs, and 101 next, which had waited since 200.
        let waits =
            |tid, end_us: u64, ran_instead_tid| OffCpu { ran_instead_tid, ..off(tid, 200 * US, 200 * US, end_us * US) };
        let of = |ran_from: u64, until: u64, change: &dyn Fn(&mut Timeline)| {
            let wait = waits(101, until, 102);
            let mut timeline = Script::new().off(wait).off(waits(102, ran_from, 901)).timeline;
            change(&mut timeline);
            Index::new(&timeline).ran_instead(&wait)
        };
        let nothing = |_: &mut Timeline| {};
        assert_eq!(of(7_000, 8_000, &nothing), 901);
        assert_eq!(of(4_000, 8_000, &nothing), 102, "it ran for most of the wait");
        assert_eq!(of(3_000, 3_500, &nothing), 102, "a short wait");
        let throttled = |timeline: &mut Timeline| {
            let out = OffCpu { why: Why::Throttled, ..off(102, 0, 100 * US, 100 * US) };
            timeline.off_cpu.entry(102).or_default().insert(0, out);
        };
        assert_eq!(of(7_000, 8_000, &throttled), 102, "its quota is used up at times");
        assert_eq!(of(7_000, 8_000, &|timeline: &mut Timeline| timeline.left_out = 1), 102, "an earlier version");
    }
}
