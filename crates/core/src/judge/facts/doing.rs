//! The state of a thread during a span of time: on the CPU, runnable, throttled, or asleep, and on what.
use super::prepared::Facts;
use super::thread::ThreadFact;
use crate::judge::ledger::thread::State;
use crate::stats::ratio;
use crate::wait::Wait;

/// Threads of one process that are examined when nothing shows which one was responsible.
const MAX_THREADS: usize = 64;

/// How far the chain of who-woke-whom is followed.
const DEPTH: u32 = 3;

/// Shares of a span; they sum to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Doing {
    /// Executing.
    pub on_cpu: f64,
    /// Waiting for a CPU.
    pub runnable: f64,
    /// Out of quota.
    pub throttled: f64,
    /// Asleep, or unknown.
    pub blocked: f64,
    /// The longest sleep: index into the capture.
    pub off: Option<usize>,
    /// The thread that did it, when the one asked for slept until another thread was done; 0 otherwise.
    pub tid: u32,
}

impl Doing {
    const UNKNOWN: Doing = Doing { on_cpu: 0.0, runnable: 0.0, throttled: 0.0, blocked: 1.0, off: None, tid: 0 };

    /// The state of `tid` during a span (begin, length), or on an average awake moment when the span is not known.
    pub fn of(facts: &Facts<'_>, tid: u32, span: Option<(u64, u64)>) -> Doing {
        let Some(thread) = facts.thread(tid) else { return Doing::UNKNOWN };
        match span {
            Some((begin, ns)) if ns > 0 => during(facts, thread, (begin, begin.saturating_add(ns)), DEPTH),
            _ => average(facts, thread),
        }
    }
}

impl Doing {
    /// The state of a process' threads during a span, when nothing tells which of them was in charge: the one that
    /// worked through most of it, or else the one that slept in something other than a wait for work.
    pub fn of_process(facts: &Facts<'_>, pid: u32, span: Option<(u64, u64)>) -> Doing {
        let Some((begin, ns)) = span.filter(|(_, ns)| *ns > 0) else { return busiest(facts, pid) };
        let span = (begin, begin.saturating_add(ns));
        let mut working: Option<Doing> = None;
        let mut asleep: Option<Doing> = None;
        for thread in facts.threads_of(pid).take(MAX_THREADS) {
            let doing = Doing { tid: thread.rec.tid, ..during(facts, thread, span, 0) };
            if working.is_none_or(|w| doing.blocked < w.blocked) {
                working = Some(doing);
            }
            let for_work = doing.off.map(|i| wait_of(facts, i)).is_none_or(Wait::is_for_work);
            if !for_work && asleep.is_none_or(|a| doing.blocked > a.blocked) {
                asleep = Some(doing);
            }
        }
        working.filter(|w| w.blocked < 0.5).or(asleep).unwrap_or(Doing::UNKNOWN)
    }
}

/// When there is no span either: the busiest thread, if it worked for half of its time.
fn busiest(facts: &Facts<'_>, pid: u32) -> Doing {
    let busy = |t: &ThreadFact<'_>| ratio(t.ledger.on_cpu() + t.ledger.of(State::Runnable), t.ledger.wall_ns);
    let threads = facts.threads_of(pid).filter(|t| busy(t) >= 0.5);
    let busiest = threads.max_by(|a, b| busy(a).total_cmp(&busy(b)).then(b.rec.tid.cmp(&a.rec.tid)));
    busiest.map_or(Doing::UNKNOWN, |t| Doing { tid: t.rec.tid, ..average(facts, t) })
}

/// The kind of wait of one of the capture's sleeps, by its index.
pub fn wait_of(facts: &Facts<'_>, index: usize) -> Wait {
    facts.capture.thread_stalls.get(index).map_or(Wait::Other, |s| Wait::of(&s.syscall_name, s.fd, s.syscall))
}

fn during(facts: &Facts<'_>, thread: &ThreadFact<'_>, span: (u64, u64), depth: u32) -> Doing {
    let length = span.1.saturating_sub(span.0) as f64;
    let sums = [0, 1, 2].map(|why: usize| thread.off.by_why[why].covered(span.0, span.1) as f64);
    let longest = thread.off.longest_within(span);
    let seen: f64 = sums.iter().sum();
    let rest = (1.0 - ratio(seen, length)).max(0.0);
    let fit = if seen > length { ratio(length, seen) } else { 1.0 };
    let awake = awake(facts, thread);
    let doing = Doing {
        on_cpu: rest * awake[0],
        runnable: ratio(sums[0], length) * fit + rest * awake[1],
        throttled: ratio(sums[1], length) * fit + rest * awake[2],
        blocked: ratio(sums[2], length) * fit + rest * (1.0 - awake[0] - awake[1] - awake[2]).max(0.0),
        off: longest.map(|(_, index)| index),
        tid: 0,
    };
    match longest {
        Some((ns, index)) if depth > 0 && ns as f64 >= 0.5 * length => behind(facts, thread, index, doing, span, depth),
        _ => doing,
    }
}

/// A thread that slept until another thread of its process was done inherits what that one did.
fn behind(facts: &Facts<'_>, thread: &ThreadFact<'_>, index: usize, own: Doing, span: (u64, u64), depth: u32) -> Doing {
    let stall = &facts.capture.thread_stalls[index];
    let wait = Wait::of(&stall.syscall_name, stall.fd, stall.syscall);
    let woken = matches!(wait, Wait::Futex | Wait::Multiplex | Wait::Pipe | Wait::SocketReceive);
    if !woken || stall.waker_in_irq || stall.waker_tid == 0 || stall.waker_tid == thread.rec.tid {
        return own;
    }
    let Some(waker) = facts.thread(stall.waker_tid).filter(|w| w.rec.pid == thread.rec.pid) else { return own };
    let end = stall.begin_ns.saturating_add(stall.ns).min(span.1);
    let inner = (stall.begin_ns.max(span.0), end);
    let theirs = during(facts, waker, inner, depth - 1);
    // Woken by a thread that was itself asleep (a timer tick, a signal): the chain tells nothing.
    if theirs.on_cpu + theirs.throttled + theirs.runnable < 0.5 {
        return own;
    }
    Doing {
        on_cpu: own.on_cpu + own.blocked * theirs.on_cpu,
        runnable: own.runnable + own.blocked * theirs.runnable,
        throttled: own.throttled + own.blocked * theirs.throttled,
        blocked: own.blocked * theirs.blocked,
        off: theirs.off.or(own.off),
        tid: if theirs.tid != 0 { theirs.tid } else { waker.rec.tid },
    }
}

fn average(facts: &Facts<'_>, thread: &ThreadFact<'_>) -> Doing {
    let awake = awake(facts, thread);
    let blocked = (1.0 - awake.iter().sum::<f64>()).max(0.0);
    Doing { on_cpu: awake[0], runnable: awake[1], throttled: awake[2], blocked, off: None, tid: 0 }
}

/// The thread's awake time; on a rung that cannot see threads throttled, their group tells.
fn awake(facts: &Facts<'_>, thread: &ThreadFact<'_>) -> [f64; 3] {
    let awake = thread.ledger.awake;
    let asleep = (1.0 - awake.iter().sum::<f64>()).max(0.0);
    [awake[0], awake[1], awake[2] + asleep * facts.hidden_throttling]
}
