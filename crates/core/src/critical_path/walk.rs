//! The critical path of one request: backwards from its reply, on the thread that replied; where that thread slept, on to
//! whoever ended the sleep and to what that one did meanwhile.
//!
//! The pieces found partition the request's time. A sleep of a thread that holds the request (for a lock, a disk, a reply)
//! is a step inwards for as long as it lasted. A sleep that began before the thread had anything to do with the request is
//! none: there the request was handed over, and the walk goes on at the thread that did that.
use parshall_evidence::{FlowId, HopKind};

use super::index::{Client, Index};
use super::requests::Request;
use super::step::{Next, Piece, Step, Target, Task};
use crate::wait::Wait;
use parshall_evidence::timeline::{NAMES_PORT, OffCpu, Op, SocketCall, Waker, Why};

/// Steps of one path at most.
const DEPTH_MAX: usize = 12;
/// Threads visited for one request at most.
const VISITS_MAX: u32 = 4_000;
/// A thread that has slept for a shorter time may not have been woken yet.
const NOTICED_NS: u64 = 1_000_000;
/// How often one request is handed over at most.
const NESTED_MAX: u32 = 48;

/// A walk in progress.
pub struct Walk<'a> {
    pub(super) index: &'a Index<'a>,
    steps: Vec<Step>,
    pieces: Vec<Piece>,
    visits: u32,
    nested: u32,
    /// Sleeps on the way to where the walk is, by thread and begin.
    asleep: Vec<(u32, u64)>,
    /// The walked time is that of a job, or of work for one.
    job: bool,
    /// The connection to a server that the walked request had got from another one.
    pub(super) given: Option<FlowId>,
}

/// The pieces of a request at a served socket.
pub fn served(index: &Index<'_>, request: &Request) -> Vec<Piece> {
    let mut walk = Walk::new(index);
    walk.request(request, request.arrived_ns, request.end_ns);
    walk.pieces
}

/// The pieces of a request that a client sent.
pub fn sent(index: &Index<'_>, request: &Request) -> Vec<Piece> {
    let mut walk = Walk::new(index);
    if request.polls {
        let other = Step::new(request.read_tid, HopKind::OtherRequest).to(Target::Remote(request.socket));
        walk.emit(other, request.ns());
        return walk.pieces;
    }
    walk.reply(Step::new(request.read_tid, HopKind::Reply), request.socket, request.arrived_ns, request.end_ns);
    walk.pieces
}

/// The pieces of a request that its client gave up before anybody had read it. The thread that should have read it is walked, unless it was
/// idle, or served others meanwhile: then the time is in the queue that nobody empties.
pub fn never_read(index: &Index<'_>, request: &Request, queue: HopKind) -> Vec<Piece> {
    let (from, to) = (request.arrived_ns, request.end_ns);
    let mut walk = Walk::new(index);
    let step = Step::new(request.read_tid, queue);
    let lives = index.is_there(request.read_tid, from);
    if lives && !index.serves_others(request.read_tid, request.socket, from, to) {
        walk.within(step, |w| w.thread(request.read_tid, from, to, Task::Unread { socket: request.socket }));
    }
    let idle: u64 = walk.pieces.iter().filter(|piece| piece.is_idle()).map(|piece| piece.ns).sum();
    if walk.pieces.is_empty() || 2 * idle > to - from {
        return vec![Piece { steps: vec![step], ns: to - from }];
    }
    walk.pieces
}

impl<'a> Walk<'a> {
    fn new(index: &'a Index<'a>) -> Walk<'a> {
        Walk {
            index,
            steps: Vec::new(),
            pieces: Vec::new(),
            visits: 0,
            nested: 0,
            asleep: Vec::new(),
            job: false,
            given: None,
        }
    }

    pub(super) fn emit(&mut self, step: Step, ns: u64) {
        if ns > 0 {
            let mut steps = self.steps.clone();
            steps.push(step);
            self.pieces.push(Piece { steps, ns });
        }
    }

    /// Time of the step that was entered last.
    pub(super) fn emit_here(&mut self, ns: u64) {
        if ns > 0 {
            self.pieces.push(Piece { steps: self.steps.clone(), ns });
        }
    }

    pub(super) fn within(&mut self, step: Step, inner: impl FnOnce(&mut Self)) {
        self.steps.push(step);
        inner(self);
        self.steps.pop();
    }

    /// Walks the time of a request between `lo` and `hi`.
    pub(super) fn request(&mut self, request: &Request, lo: u64, hi: u64) {
        let given = self.given.take();
        self.request_from(request, lo, hi);
        self.given = given;
    }

    fn request_from(&mut self, request: &Request, lo: u64, hi: u64) {
        let socket = request.socket;
        let mut from = lo.max(request.arrived_ns);
        if let Some((at_ns, tid)) = request.accepted {
            let until = at_ns.clamp(from, hi);
            self.within(Step::new(tid, HopKind::AcceptQueue), |w| w.thread(tid, from, until, Task::Unread { socket }));
            from = until;
        }
        let read = request.read_ns.clamp(from, hi);
        let reader = request.read_tid;
        // A process that was made for this connection: until then its maker had it.
        if let Some((maker, made)) = self.index.maker(reader, socket).filter(|(_, made)| *made > from) {
            let made = made.min(read);
            let step = Step::new(maker, HopKind::Unread);
            self.within(step, |w| w.thread(maker, from, made, Task::Unread { socket }));
            from = made;
        }
        let held = if self.is_spent() { None } else { self.index.held_back(request) };
        if let Some(held) = held.filter(|held| held.until_ns > from) {
            self.visits += 1;
            let until = held.until_ns.min(read);
            self.reply(Step::new(reader, HopKind::Reply), held.socket, from, until);
            from = until;
        }
        self.within(Step::new(reader, HopKind::Unread), |w| w.thread(reader, from, read, Task::Unread { socket }));
        if request.polls {
            return self.emit(Step::new(reader, HopKind::OtherRequest), hi.saturating_sub(read));
        }
        let turn_end = self.index.turn_end(reader, request.read_ns);
        let task = Task::Request { socket, reader, turn_end, end_ns: request.end_ns };
        self.job = request.job;
        match (
            request.reply_tid,
            self.index
                .held_part(request)
                .or_else(|| self.index.rest_of(request))
                .filter(|rest| read <= rest.before.at_ns && rest.last.at_ns <= hi),
        ) {
            (Some(tid), Some(rest)) => {
                self.thread(reader, read, rest.before.at_ns, task);
                self.rest(&rest);
                let (reader, turn_end) = (rest.last.tid, self.index.turn_end(rest.last.tid, rest.last.at_ns));
                self.thread(
                    tid,
                    rest.last.at_ns,
                    hi,
                    Task::Request { socket, reader, turn_end, end_ns: request.end_ns },
                );
            }
            (Some(tid), None) => match self.index.maker(tid, socket).filter(|(_, made)| read < *made && *made < hi) {
                // The server spoke first, in a process that was made for this connection.
                Some((_, made)) => {
                    let turn_end = self.index.turn_end(tid, made);
                    self.thread(tid, made, hi, Task::Request { socket, reader: tid, turn_end, end_ns: request.end_ns });
                    self.thread(reader, read, made, task);
                }
                None => self.thread(tid, read, hi, task),
            },
            (None, _) => self.unanswered(request, read, hi, task),
        }
    }

    /// A request without a reply. A thread that went on to others left it to something: a request sent elsewhere, or what
    /// another request will bring.
    fn unanswered(&mut self, request: &Request, lo: u64, hi: u64, task: Task) {
        let reader = request.read_tid;
        if !self.index.serves_others(reader, request.socket, lo.saturating_add(1), hi) {
            return self.thread(reader, lo, hi, task);
        }
        let turn_end = self.index.turn_end(reader, request.read_ns).clamp(lo, hi);
        match self.index.unanswered_send(reader, lo, hi) {
            Some(call) => {
                let from = call.since_ns.clamp(lo, hi);
                self.reply(Step::new(call.tid, HopKind::Reply), call.socket, from, hi);
                self.thread(call.tid, lo, from, task);
            }
            None if self.index.serves_another(reader, request.socket, lo.saturating_add(1), hi) => {
                self.emit(Step::new(reader, HopKind::OtherRequest), hi - turn_end);
                self.thread(reader, lo, turn_end, task);
            }
            // It asked for this one, and has its answer.
            None => self.thread(reader, lo, hi, task),
        }
    }

    /// Walks the activity of a thread between `lo` and `hi`, as far as it served `task`.
    pub(super) fn thread(&mut self, tid: u32, lo: u64, hi: u64, task: Task) {
        if hi <= lo {
            return;
        }
        self.visits += 1;
        let offs = if self.is_spent() { None } else { self.index.off_cpu(tid, lo) };
        match offs {
            Some(offs) => {
                self.nested += 1;
                self.observed_thread(tid, offs, (lo, hi), task);
                self.nested -= 1;
            }
            None => self.emit(Step::new(tid, HopKind::Unseen).to(Target::Thread(tid)), hi - lo),
        }
    }

    fn is_spent(&self) -> bool {
        self.steps.len() >= DEPTH_MAX || self.visits >= VISITS_MAX || self.nested >= NESTED_MAX
    }

    fn observed_thread(&mut self, tid: u32, offs: &[OffCpu], (lo, hi): (u64, u64), task: Task) {
        let (mut at, mut turn) = (hi, hi);
        for off in offs[..offs.partition_point(|o| o.begin_ns < hi)].iter().rev() {
            if at <= lo || off.end_ns <= lo {
                break;
            }
            if off.begin_ns >= at {
                continue;
            }
            self.index.note(off);
            let end = off.end_ns.clamp(lo, at);
            self.emit(Step::new(tid, HopKind::OnCpu), at - end);
            let ready = off.wake_ns.clamp(off.begin_ns, off.end_ns).clamp(lo, end);
            self.ready(off, end - ready);
            at = ready;
            let begin = off.begin_ns.max(lo);
            if at <= begin {
                continue;
            }
            match self.sleep(off, (begin, at), lo, turn, task) {
                Next::Before(next) => at = next.clamp(lo, at),
                Next::Turn(next) => {
                    at = next.clamp(lo, at);
                    turn = at;
                }
                Next::Done => return,
            }
        }
        self.emit(Step::new(tid, HopKind::OnCpu), at - lo);
    }

    /// Time in which a thread could run and did not.
    fn ready(&mut self, off: &OffCpu, ns: u64) {
        let step = match off.why {
            Why::Throttled => Step::new(off.tid, HopKind::Throttled),
            Why::Stopped => Step::new(off.tid, HopKind::Stopped),
            _ => Step::new(off.tid, HopKind::RunQueue).to(match self.index.ran_instead(off) {
                0 => Target::None,
                other => Target::Thread(other),
            }),
        };
        self.emit(step, ns);
    }

    /// A sleep of a thread, cut to `span`. `turn` is the end of what the thread did for the task after it.
    fn sleep(&mut self, off: &OffCpu, span: (u64, u64), lo: u64, turn: u64, task: Task) -> Next {
        let this = (off.tid, off.begin_ns);
        if off.is_open() && self.asleep.contains(&this) {
            self.emit(Step::of(off, HopKind::Deadlock), span.1 - span.0);
            return Next::Before(span.0);
        }
        self.asleep.push(this);
        let next = self.slept(off, span, lo, turn, task);
        self.asleep.pop();
        next
    }

    fn slept(&mut self, off: &OffCpu, span: (u64, u64), lo: u64, turn: u64, task: Task) -> Next {
        let (begin, wake) = span;
        if let Some(next) = self.answer(off, span).or_else(|| self.until_closed(off, span)) {
            return next;
        }
        let kind = match (off.why, self.index.wait(off)) {
            (Why::Stopped, _) => HopKind::Stopped,
            (Why::Throttled, _) => HopKind::Throttled,
            (_, Wait::Multiplex) => return self.event(off, span, lo, turn, task),
            (_, Wait::Futex) => return self.futex(off, span, lo, task),
            (_, Wait::SocketReceive) => return self.receive(off, span, lo, turn, task),
            (_, Wait::Sleep) => HopKind::Timer,
            (_, Wait::Connect) => HopKind::Connect,
            (_, Wait::PageFault) => HopKind::Memory,
            (_, Wait::File) | (Why::SleptForIo, _) => HopKind::Disk,
            (_, Wait::SocketSend) if off.fd != parshall_evidence::FdKind::Unix => HopKind::Send,
            (_, Wait::SocketSend | Wait::Pipe) => return self.woken(off, HopKind::Pipe, span),
            (_, Wait::Accept) => HopKind::Client,
            (_, Wait::Other) => match (self.index.syscall(off), off.waker) {
                ("flock" | "fcntl" | "semop" | "semtimedop", _) => return self.woken(off, HopKind::Lock, span),
                (_, Waker::Thread(_)) => return self.woken(off, HopKind::Worker, span),
                _ => return self.timed(off, span, lo, task),
            },
        };
        let step = match kind {
            HopKind::Connect | HopKind::Send => Step::of(off, kind).to(Target::Remote(off.target)),
            // Its next call does not matter: the thread that stopped it does.
            HopKind::Stopped => Step::of(off, kind),
            _ => Step::over_descriptor(off, kind),
        };
        self.emit(step, wake - begin);
        Next::Before(begin)
    }

    /// A sleep over many descriptors. Its purpose is the data that the thread received next; if there is none, the waker shows it.
    fn event(&mut self, off: &OffCpu, (begin, wake): (u64, u64), lo: u64, turn: u64, task: Task) -> Next {
        // The walked time may end within the sleep, before the data came that it was for.
        let received = if off.end_ns > turn {
            self.index.next_call(off.tid, off.end_ns).filter(|call| call.op == Op::Receive)
        } else {
            self.index.awaited_receive(off.tid, off.end_ns, turn)
        }
        .copied();
        let socket = received.and_then(|call| Some((call, self.index.socket(call.socket)?)));
        match (socket, task) {
            // All clients of a UDP service use one socket: what came next there is another request.
            (Some((call, from)), Task::Request { socket, .. }) if call.socket == socket && !from.udp => {
                self.emit(Step::of(off, HopKind::Client).to(Target::Remote(socket)), wake - begin);
                Next::Before(begin)
            }
            (Some((call, socket)), Task::Request { .. } | Task::Other) if !socket.serves => {
                let Some(sent) = self.index.last_send(call.socket, call.since_ns) else {
                    if let Some(opened_ns) = socket.opened_ns.filter(|at| (lo..=wake).contains(at)) {
                        // Its server speaks first: it was asked when the connection was opened.
                        self.reply(Step::of(off, HopKind::Reply), call.socket, opened_ns, wake);
                        return Next::Turn(opened_ns);
                    }
                    // Data that nobody asked for: whatever it was, it came over this connection.
                    self.emit(Step::of(off, HopKind::Reply).to(Target::Remote(call.socket)), wake - begin);
                    return Next::Before(begin);
                };
                let from = sent.since_ns.clamp(lo, wake);
                let reply = Step::of(off, HopKind::Reply);
                if self.is_for_another(off.tid, &call, socket, turn, task) {
                    self.given = Some(call.socket);
                    let turn_step = Step::of(off, HopKind::Turn).to(Target::Remote(call.socket));
                    self.within(turn_step, |w| w.reply(reply, call.socket, from, wake));
                } else {
                    self.reply(reply, call.socket, from, wake);
                }
                if sent.tid == off.tid {
                    return Next::Turn(from);
                }
                self.thread(sent.tid, lo, from, task);
                Next::Done
            }
            // A thread that waits for this one waits for the data of its peer, unless this one holds something.
            (Some((call, _)), Task::Other) if self.steps.last().is_some_and(|step| step.kind == HopKind::Worker) => {
                self.reply(Step::of(off, HopKind::Reply), call.socket, begin, wake);
                Next::Before(begin)
            }
            (Some((call, _)), Task::Other) => {
                self.emit(Step::of(off, HopKind::Client).to(Target::Remote(call.socket)), wake - begin);
                Next::Before(begin)
            }
            (Some((call, socket)), Task::Request { .. }) if self.job && socket.serves => {
                self.job(off, &call, (begin, wake), lo, task)
            }
            (Some((call, socket)), Task::Request { .. }) if socket.serves => {
                let step = Step::of(off, HopKind::OtherRequest).to(Target::Remote(call.socket));
                if self.has_heard(off, begin, task) {
                    self.emit(step, wake - begin);
                    return Next::Before(begin);
                }
                self.set_aside(off, step, (begin, wake), lo, task)
            }
            _ => self.other(off, (begin, wake), lo, task),
        }
    }

    /// A sleep that ended with data of a client that works for a broker: the client has worked on the job that the broker sent it last.
    /// Waits of the job before that are jobs of others.
    fn job(&mut self, off: &OffCpu, call: &SocketCall, (begin, wake): (u64, u64), lo: u64, task: Task) -> Next {
        let step = Step::of(off, HopKind::Reply).to(Target::Remote(call.socket));
        let Some(sent) = self.index.last_send(call.socket, call.since_ns) else {
            return self.set_aside(off, Step { kind: HopKind::OtherRequest, ..step }, (begin, wake), lo, task);
        };
        let from = sent.since_ns.clamp(lo, wake);
        self.emit(step, wake - from);
        if sent.tid == off.tid {
            return Next::Turn(from);
        }
        self.thread(sent.tid, lo, from, task);
        Next::Done
    }

    /// A sleep over many descriptors about which only the waker tells.
    fn other(&mut self, off: &OffCpu, (begin, wake): (u64, u64), lo: u64, task: Task) -> Next {
        let alone = self.has_nothing_else(off, lo, task);
        let holder = self.index.timeline.lock_holders.get(&off.tid);
        if let (Some(&holder), true, false) =
            (holder, alone || matches!(task, Task::Other), matches!(off.waker, Waker::Thread(_)))
        {
            let step = Step::of(off, HopKind::Lock);
            self.within(step, |w| w.emit(Step::new(holder, HopKind::Client), wake - begin));
            return Next::Before(begin);
        }
        if let Some(socket) = self.index.attempted_in(off) {
            self.emit(Step::of(off, HopKind::Connect).to(Target::Remote(socket)), wake - begin);
            return Next::Before(begin);
        }
        if let Some(socket) = self.index.awaited_answer(off, alone, matches!(task, Task::Other)) {
            self.reply(Step::of(off, HopKind::Reply), socket, begin, wake);
            return Next::Before(begin);
        }
        if let Some(socket) = self.index.closes_after(off, task) {
            self.emit(Step::of(off, HopKind::Client).to(Target::Remote(socket)), wake - begin);
            return Next::Before(begin);
        }
        if alone && let Some(next) = self.brought(off, (begin, wake)) {
            return next;
        }
        match (off.waker, task) {
            (Waker::Thread(by), _) if alone => self.woken_by(off, self.kind_by_waker(off, by, lo), by, (begin, wake)),
            (Waker::SoftIrq | Waker::HardIrq, _) if alone => {
                let step = self.irq_step(off);
                if let Some(by) = self.index.awaited_at_intervals(off).filter(|_| step.kind == HopKind::Timer) {
                    return self.woken_by(off, self.kind_by_waker(off, by, lo), by, (begin, wake));
                }
                self.emit(step, wake - begin);
                Next::Before(begin)
            }
            (Waker::Thread(by), Task::Unread { .. }) => {
                self.thread(by, begin, wake, Task::Other);
                Next::Before(begin)
            }
            (Waker::Thread(by), _) => self.worker(off, by, (begin, wake), lo, task),
            (Waker::SoftIrq | Waker::HardIrq, Task::Unread { .. })
                if wake - begin >= NOTICED_NS
                    && let Some(socket) = self.index.asks_in(off, !self.is_before_accept()) =>
            {
                self.reply(Step::of(off, HopKind::Reply), socket, begin, wake);
                Next::Before(begin)
            }
            (Waker::SoftIrq | Waker::HardIrq, Task::Unread { socket }) if self.leaves_waiting(wake - begin) => {
                let step = match self.index.serves_in(off) {
                    _ if self.index.timer_lets_in(off.tid, socket) => Step::of(off, HopKind::Timer),
                    Some(socket) => Step::of(off, HopKind::Client).to(Target::Remote(socket)),
                    None => Step::of(off, HopKind::Idle),
                };
                self.emit(step, wake - begin);
                Next::Before(begin)
            }
            (Waker::SoftIrq, Task::Unread { .. }) => {
                self.emit(Step::of(off, HopKind::Network), wake - begin);
                Next::Before(begin)
            }
            (Waker::SoftIrq | Waker::HardIrq, _) => {
                let step = self.irq_step(off);
                if step.kind == HopKind::Network && self.has_heard(off, begin, task) {
                    // A small message came, such as the end of a connection. The data that the request waited for came before that.
                    self.emit(step, wake - begin);
                    return Next::Before(begin);
                }
                self.set_aside(off, step, (begin, wake), lo, task)
            }
            _ => self.timed(off, (begin, wake), lo, task),
        }
    }

    /// Whether a thread that accepts a connection later sleeps over descriptors while that waits. It would be woken at once if it watched
    /// the listener: it serves another connection first, or a limit on its connections is reached.
    fn leaves_waiting(&self, ns: u64) -> bool {
        ns >= NOTICED_NS && self.is_before_accept()
    }

    fn is_before_accept(&self) -> bool {
        self.steps.last().is_some_and(|step| step.kind == HopKind::AcceptQueue)
    }

    /// Whether the thread received a reply of a server between the turn in which it read the request and this sleep.
    fn has_heard(&self, off: &OffCpu, begin: u64, task: Task) -> bool {
        let Task::Request { reader, turn_end, .. } = task else { return false };
        let received = self.index.last_receive(off.tid, turn_end, begin);
        reader == off.tid
            && received.and_then(|call| self.index.socket(call.socket)).is_some_and(|socket| !socket.serves)
    }

    /// The purpose of a sleep over descriptors that an interrupt ended: the timeouts of epoll, poll and select are high-resolution
    /// timers, which run in the hardware interrupt, and packets come in the softirq.
    fn irq_step(&self, off: &OffCpu) -> Step {
        if off.waker == Waker::HardIrq {
            return Step::of(off, HopKind::Timer);
        }
        if let Some(socket) = self.index.connected_by(off.tid, off.end_ns) {
            return Step::of(off, HopKind::Connect).to(Target::Remote(socket));
        }
        let client = self.index.woken_by_client(off);
        let other = client.map(|socket| Step::of(off, HopKind::OtherRequest).to(Target::Remote(socket)));
        other.unwrap_or(Step::of(off, HopKind::Network))
    }

    /// Whether the thread read this request and served no other one until the end of this sleep, so that it slept for this one.
    fn has_nothing_else(&self, off: &OffCpu, lo: u64, task: Task) -> bool {
        let Task::Request { socket, reader, .. } = task else { return false };
        reader == off.tid && !self.index.serves_another(off.tid, socket, lo, off.end_ns)
    }

    fn is_same_process(&self, one: u32, other: u32) -> bool {
        self.index.names(one).map(|n| n.pid) == self.index.names(other).map(|n| n.pid)
    }

    /// Classifies a wait by its waker. A thread that serves requests of its own, and was not woken for this one, released something that
    /// both want.
    fn kind_by_waker(&self, off: &OffCpu, by: u32, lo: u64) -> HopKind {
        let given = self.index.last_wake(by, off.wake_ns).is_some_and(|(at, giver)| giver == off.tid && at >= lo);
        let same = self.is_same_process(off.tid, by);
        match (self.index.serves(by) && !given, same) {
            (true, _) if !self.index.brings(by, off.wake_ns) => HopKind::Lock,
            (true, false) | (_, true) => HopKind::Worker,
            (false, false) => HopKind::Pipe,
        }
    }

    /// A sleep that no thread ended. A thread that did not read the request may have slept for any of them.
    fn timed(&mut self, off: &OffCpu, (begin, wake): (u64, u64), lo: u64, task: Task) -> Next {
        let step = match off.waker {
            Waker::KernelThread(by) => Step::of(off, HopKind::Kernel).to(Target::Thread(by)),
            Waker::SoftIrq | Waker::HardIrq => Step::of(off, HopKind::Timer),
            Waker::Unknown | Waker::Thread(_) => Step::of(off, HopKind::Unseen),
        };
        match task {
            Task::Request { reader, .. } if reader != off.tid && step.kind == HopKind::Timer => {
                self.set_aside(off, step, (begin, wake), lo, task)
            }
            _ => {
                self.emit(step, wake - begin);
                Next::Before(begin)
            }
        }
    }

    /// The request was set aside at the end of the turn in which it was read, and taken up again at the end of this sleep. The
    /// thread may have slept for others in between.
    fn set_aside(&mut self, off: &OffCpu, step: Step, (begin, wake): (u64, u64), lo: u64, task: Task) -> Next {
        let Task::Request { reader, turn_end, .. } = task else {
            self.emit(step, wake - begin);
            return Next::Before(begin);
        };
        let from = turn_end.clamp(lo, begin);
        self.emit(step, wake - from);
        if reader == off.tid {
            return Next::Turn(from);
        }
        self.thread(reader, lo, from, task);
        Next::Done
    }

    /// A thread that waits for events was woken by another one: that one had something to do for it.
    fn worker(&mut self, off: &OffCpu, by: u32, (begin, wake): (u64, u64), lo: u64, task: Task) -> Next {
        let kind = if self.is_same_process(off.tid, by) { HopKind::Worker } else { self.kind_by_waker(off, by, lo) };
        let step = Step::of(off, kind);
        // When it was given its work, and by whom.
        let given = self.index.last_wake(by, wake).filter(|&(at, _)| at > lo && at < wake);
        if let (Some((at, giver)), Task::Request { .. }) = (given, task) {
            self.within(step, |w| w.thread(by, at, wake, Task::Other));
            if giver == off.tid {
                return Next::Turn(at);
            }
            self.thread(giver, lo, at, task);
            return Next::Done;
        }
        let (reader, from) = match task {
            Task::Request { reader, turn_end, .. } => (reader, turn_end.clamp(lo, begin)),
            _ => (off.tid, begin),
        };
        self.within(step, |w| w.thread(by, from, wake, Task::Other));
        if reader == off.tid {
            return Next::Turn(from);
        }
        self.thread(reader, lo, from, task);
        Next::Done
    }

    /// A sleep in futex: for a lock, for a worker's result, for work, or for a timeout.
    fn futex(&mut self, off: &OffCpu, span: (u64, u64), lo: u64, task: Task) -> Next {
        let (begin, wake) = span;
        let by = match off.waker {
            Waker::Thread(by) => by,
            _ if off.is_open() => {
                if let Some(owner) = self.index.mutex_owner(off) {
                    return self.woken_by(off, HopKind::Lock, owner, span);
                }
                match self.index.usual_waker(off) {
                    Some(by) => by,
                    None => {
                        self.emit(Step::of(off, HopKind::Lock), wake - begin);
                        return Next::Before(begin);
                    }
                }
            }
            _ => match self.index.awaited_at_intervals(off) {
                Some(by) => by,
                None => return self.timed(off, span, lo, task),
            },
        };
        if let Some(kept) = self.index.place_given(off, by, task) {
            self.kept_out(off, kept, span);
            return Next::Before(begin);
        }
        if let Some((socket, heard_ns)) = self.index.asks_meanwhile(off, task) {
            self.reply(Step::of(off, HopKind::Reply), socket, begin, heard_ns.clamp(begin, wake));
            self.within(Step::of(off, HopKind::Worker), |w| {
                w.thread(by, heard_ns.clamp(begin, wake), wake, Task::Other)
            });
            return Next::Before(begin);
        }
        // A thread that this very thread had woken before worked for it, and so does one that never serves a request of its own.
        let given = self.index.last_wake(by, wake).filter(|&(at, giver)| giver == off.tid && at >= lo);
        let is_runtime = given.is_none() && self.is_parked(off, task);
        if is_runtime || self.is_handover(off, by, lo, task) {
            self.thread(by, lo, wake, task);
            return Next::Done;
        }
        if let Some(next) = self.brought(off, span) {
            return next;
        }
        if let Some(turn) = self.index.turn_given(off, by) {
            let step = Step::of(off, HopKind::Turn).to(Target::Remote(turn.socket));
            self.within(step, |w| w.reply(Step::new(turn.tid, HopKind::Reply), turn.socket, begin, wake));
            return Next::Before(begin);
        }
        let works = given.is_some() || self.index.off_cpu(by, begin).is_some() && !self.holds(off, by);
        let kind = if works { HopKind::Worker } else { HopKind::Lock };
        self.woken_by(off, kind, by, span)
    }

    /// Whether the thread slept for want of work, in a runtime that moves requests between its threads: it did not read the request, and
    /// nobody else ever sleeps for this futex. Its waker had something of the request for it.
    fn is_parked(&self, off: &OffCpu, task: Task) -> bool {
        let reads = matches!(task, Task::Request { reader, .. } if reader != off.tid);
        reads && self.index.is_shared(off) == Some(false)
    }

    /// Whether the thread that ended a sleep in futex held a lock: it serves, and where no other thread sleeps for this futex, as none does
    /// who has one of its own to be woken by, it was at work on a request then.
    fn holds(&self, off: &OffCpu, by: u32) -> bool {
        self.index.serves(by) && (self.index.is_shared(off) != Some(false) || self.index.is_at_work(by, off.wake_ns))
    }

    /// Whether the thread slept for want of work, and was given this request by its waker.
    fn is_handover(&self, off: &OffCpu, by: u32, lo: u64, task: Task) -> bool {
        match task {
            Task::Request { reader, .. } => off.tid != reader && (off.begin_ns < lo || by == reader),
            Task::Unread { socket } => {
                off.begin_ns < lo && self.index.next_call(off.tid, off.end_ns).is_some_and(|c| c.socket == socket)
            }
            Task::Other => false,
        }
    }

    /// A sleep in a receive on one socket.
    fn receive(&mut self, off: &OffCpu, span: (u64, u64), lo: u64, turn: u64, task: Task) -> Next {
        let (begin, wake) = span;
        let Some(socket) = self.index.socket(off.target) else {
            return self.woken(off, HopKind::Pipe, span);
        };
        let step = Step::of(off, HopKind::Client).to(Target::Remote(off.target));
        match task {
            Task::Request { socket: own, .. } if socket.serves && (own != off.target || socket.udp) => {
                return self.set_aside(off, Step { kind: HopKind::OtherRequest, ..step }, span, lo, task);
            }
            Task::Request { socket: own, .. } if own == off.target && off.is_open() => {
                match self.index.client_of(own, span) {
                    // Each of them waits for the other, and neither will do anything.
                    Client::Waits { tid, socket } if self.index.receives_at(tid, socket, span) => {
                        let waits = Step::new(tid, HopKind::Reply).to(Target::Remote(socket));
                        self.within(Step { target: Target::None, ..step }, |w| w.emit(waits, wake - begin));
                    }
                    _ => self.emit(step, wake - begin),
                }
            }
            _ if socket.serves => self.emit(step, wake - begin),
            _ if self.works_for_another(off.tid, socket, (wake, turn), task)
                || self.reads_ahead(off, socket, lo, task) =>
            {
                let step = Step { kind: HopKind::Turn, ..step };
                self.within(step, |w| w.reply(Step::of(off, HopKind::Reply), off.target, begin, wake));
            }
            _ => self.reply(Step::of(off, HopKind::Reply), off.target, begin, wake),
        }
        Next::Before(begin)
    }

    /// A sleep that ended when another thread did something.
    fn woken(&mut self, off: &OffCpu, kind: HopKind, span: (u64, u64)) -> Next {
        match off.waker {
            Waker::Thread(by) if kind == HopKind::Pipe && self.queued_locally(off, by, span) => Next::Before(span.0),
            Waker::Thread(by) => self.woken_by(off, kind, by, span),
            _ => {
                self.emit(Step::over_descriptor(off, kind), span.1 - span.0);
                Next::Before(span.0)
            }
        }
    }

    fn woken_by(&mut self, off: &OffCpu, kind: HopKind, by: u32, (begin, wake): (u64, u64)) -> Next {
        self.within(Step::over_descriptor(off, kind), |w| w.thread(by, begin, wake, Task::Other));
        Next::Before(begin)
    }

    /// The rest of a wait for a reply, after the last request that the other end read until `hi`.
    fn after_last_request(
        &mut self,
        id: FlowId,
        other_end: Option<FlowId>,
        span: (u64, u64),
        read_until: u64,
        read: bool,
    ) {
        let (at, hi) = span;
        let pid = other_end.and_then(|end| self.index.socket(end)).map(|socket| socket.pid);
        if let Some(waits) = pid.filter(|_| !read).and_then(|pid| self.only_thread_waits(pid, hi)) {
            return self.emit(Step::new(waits, HopKind::Deadlock), hi.saturating_sub(at));
        }
        // Sent, and neither read nor answered by anybody since.
        let unread = |since: &u64| (!read || *since > read_until) && !self.index.receives_after(id, *since, hi);
        let sent = self.index.last_send(id, hi).map(|call| call.since_ns).filter(unread);
        let (Some(sent), Some((reader, queue))) = (sent, self.index.reader_to_be(id)) else {
            let step = self
                .index
                .held_reply(id, hi)
                .filter(|_| read)
                .map_or(Step::new(0, HopKind::Network), |sent| Step::held(&sent));
            return if read { self.emit(step, hi.saturating_sub(at)) } else { self.emit_here(hi.saturating_sub(at)) };
        };
        let from = sent.clamp(at, hi);
        self.emit(Step::new(0, HopKind::Network), from - at);
        let socket = other_end.unwrap_or(0);
        self.within(Step::new(reader, queue), |w| w.thread(reader, from, hi, Task::Unread { socket }));
    }

    /// The only thread of a process, if it waits itself for what led here, and still does at `hi`: it cannot answer before it is
    /// answered.
    fn only_thread_waits(&self, pid: u32, hi: u64) -> Option<u32> {
        let of_pid = |step: &&Step| self.index.names(step.tid).is_some_and(|n| n.pid == pid);
        let tid = self.steps.iter().find(of_pid)?.tid;
        let offs = self.index.off_cpu(tid, 0)?;
        let last = offs[..offs.partition_point(|off| off.begin_ns < hi)].last();
        let sleeps = last.inspect(|off| self.index.note(off)).is_some_and(OffCpu::is_open);
        (sleeps && self.index.has_one_thread(pid)).then_some(tid)
    }

    /// A wait for the reply to what was sent on a socket, between `lo` and `hi`.
    fn reply(&mut self, step: Step, id: FlowId, lo: u64, hi: u64) {
        if let Some(until) = self.index.opens_until(id, lo, hi) {
            self.emit(Step { kind: HopKind::Connect, ..step }.to(Target::Remote(id)), until - lo);
            return self.reply(step, id, until, hi);
        }
        let socket = self.index.socket(id);
        let kind = if socket.is_some_and(|s| s.udp && s.remote.port() == NAMES_PORT) {
            HopKind::NameServer
        } else {
            HopKind::Reply
        };
        let step = Step { kind, ..step }.to(Target::Remote(id));
        // Two processes may ask each other in a circle.
        let other_end = socket.and_then(|s| s.other_end).filter(|_| self.steps.len() < DEPTH_MAX);
        self.within(step, |w| {
            let index = w.index;
            let requests = other_end.map_or(&[][..], |end| index.exchanges(end));
            let (at, read_until) = w.one_after_the_other(requests, lo, hi);
            w.after_last_request(id, other_end, (at, hi), read_until, at > lo);
        });
    }

    /// The requests of a connection in a span of time. Returns until when they go, and when the last of them was read.
    fn one_after_the_other(&mut self, requests: &[Request], lo: u64, hi: u64) -> (u64, u64) {
        let (mut at, mut read_until) = (lo, lo);
        let from = requests.partition_point(|r| r.end_ns <= lo);
        for request in requests[from..].iter().take_while(|r| r.arrived_ns < hi) {
            let arrived = request.arrived_ns.clamp(at, hi);
            self.emit(Step::new(0, HopKind::Network), arrived - at);
            let end = request.end_ns.clamp(arrived, hi);
            self.request(request, arrived, end);
            (at, read_until) = (end, request.read_ns);
        }
        (at, read_until)
    }
}
