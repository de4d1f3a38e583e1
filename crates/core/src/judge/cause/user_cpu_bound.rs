//! The application's own code is the limit: flows wait for a thread that computes in user mode.
//!
//! Look-alikes: a copy loop (its time is in the kernel), quota and run queue (the thread is not running), and a server
//! that is saturated by cheap requests, which is healthy.
use parshall_evidence::{Evidence, Figure, Hop, HopKind, Place, is_address};

use super::base::{
    Candidate, Cause, MIN_SHARE, Outcome, ThreadLoss, denied, main_thread, place_of, shows, stalls, thread_name,
};
use super::common::{Mode, Waits, hottest, hottest_of_process, most_in};
use super::small_copy_buffer;
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, amount, share};
use crate::judge::facts::requests::BACKGROUND_SHARE;
use crate::judge::facts::{Blame, Facts, Part, Spent, ThreadFact};
use crate::judge::handshakes;
use crate::judge::ledger::thread::State;
use crate::judge::record;
use crate::judge::runtime::{self, Runtime};
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "user-cpu-bound",
    title: "The application computes",
    test,
    symptom: |facts| record::most(facts, |thread| ratio(thread.ledger.of(State::OnCpuUser), thread.ledger.wall_ns)),
    testable: record::threads,
};

/// Runs the functions of Python programs, which have names of their own.
const PYTHON_LOOP: &str = "_PyEval_EvalFrame";

const BUSIEST: &str = "of the busiest thread's time on a CPU";

/// Share of its working time that the thread runs, and of its CPU time that it runs in user mode.
const MIN_BUSY: f64 = 0.85;
const MIN_USER: f64 = 0.60;

fn test(facts: &Facts<'_>) -> Outcome {
    let held = outcome(facts);
    let Outcome::Holds(own) = &held else { return held };
    if handshakes::busy_with(facts, own.place.tid).is_ok() {
        let busy = facts.threads.iter().map(|t| ratio(t.ledger.on_cpu(), t.ledger.wall_ns)).fold(0.0, f64::max);
        return denied(Denial::of(share(busy, BUSIEST)).because("for TLS handshakes").seen());
    }
    held
}

/// The cause as it is without regard to what the thread computes.
pub fn candidate(facts: &Facts<'_>) -> Option<Candidate> {
    match outcome(facts) {
        Outcome::Holds(candidate) => Some(*candidate),
        _ => None,
    }
}

fn outcome(facts: &Facts<'_>) -> Outcome {
    match Waits::on(facts, Spent::CpuUser) {
        Some(waits) => of_requests(facts, waits),
        None => of_threads(facts),
    }
}

/// Requests whose path ends on a CPU.
fn of_requests(facts: &Facts<'_>, waits: Waits<'_, '_>) -> Outcome {
    let leaf = waits.leaf;
    let mut busy = in_vain(facts, &waits);
    if busy.is_empty() {
        busy = never_idle(facts, leaf.pid);
    }
    if leaf.kind == HopKind::RunQueue && !busy.is_empty() {
        return in_background(facts, waits, &busy);
    }
    let mut hot = hottest_of_process(facts, leaf.pid, Mode::User);
    let most = most_in(&hot);
    let (who, each) = (named(leaf), waits.each());
    let summary = waits.summary(&match leaf.kind {
        HopKind::RunQueue => format!("{who} could run and waits {each} for a CPU, which its own process has.{most}"),
        _ => format!("{who} is on a CPU for {each} a request, for those in front of it too.{most}"),
    });
    let runtime = runtime::of(facts, leaf.pid, &leaf.process);
    let fix = if runtime.is_some_and(Runtime::runs_one_thread) {
        "Spend less CPU per request, or run more processes: threads of one interpreter take turns on one CPU."
    } else {
        "Spend less CPU per request, or spread the work over more threads, as far as there are CPUs."
    };
    let unnamed = hot.first().is_some_and(|e| is_address(&e.what) || e.what.starts_with(PYTHON_LOOP));
    let names = runtime.filter(|_| unnamed).map(|r| format!(" To see them named, {}.", r.how_to_name(leaf.pid)));
    if let Some(thread) = facts.thread(leaf.tid) {
        hot.insert(0, words::valued("thread on a CPU", ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns), "1"));
    }
    let fix = format!(
        "{fix} All functions: `perf record -g -p {} sleep 5; perf report`.{}",
        leaf.pid,
        names.unwrap_or_default()
    );
    waits.candidate(summary, hot, fix).holds()
}

/// A thread that runs or could run for this share of its time never waits for work.
const NEVER_IDLE: f64 = 0.5;

/// The threads of a process that never wait for work.
fn never_idle<'a, 'c>(facts: &'a Facts<'c>, pid: u32) -> Vec<&'a ThreadFact<'c>> {
    let awake = |t: &ThreadFact<'_>| ratio(t.ledger.on_cpu() + t.ledger.of(State::Runnable), t.ledger.wall_ns);
    facts.threads_of(pid).filter(|t| awake(t) >= NEVER_IDLE).collect()
}

/// Share of the window from which on a thread has part in what is computed for no request.
const HAS_PART: f64 = 0.05;

/// The threads of the processes of a service that compute, where they hardly do so for requests: they wait for each other in a loop.
fn in_vain<'a, 'c>(facts: &'a Facts<'c>, waits: &Waits<'_, '_>) -> Vec<&'a ThreadFact<'c>> {
    let pids = &waits.service.rec.pids;
    let threads: Vec<_> = facts.threads.iter().filter(|t| pids.contains(&t.rec.pid)).collect();
    let cpu_ns: f64 = threads.iter().map(|t| t.ledger.on_cpu()).sum();
    let computes = |hop: &Hop| hop.kind == HopKind::OnCpu && pids.contains(&hop.pid);
    let parts = waits.service.parts.iter().filter(|part| part.rec.hops.last().is_some_and(computes));
    if parts.map(|part| part.ns).sum::<f64>() > (1.0 - BACKGROUND_SHARE) * cpu_ns {
        return Vec::new();
    }
    threads.into_iter().filter(|t| ratio(t.ledger.on_cpu(), t.ledger.wall_ns) >= HAS_PART).collect()
}

/// Requests that wait for a CPU which threads of their process have that never wait for work.
fn in_background(facts: &Facts<'_>, waits: Waits<'_, '_>, busy: &[&ThreadFact<'_>]) -> Outcome {
    let leaf = waits.leaf;
    let cpus = ratio(busy.iter().map(|t| t.ledger.on_cpu()).sum(), facts.capture.window_ns as f64);
    let hot = hottest_of_process(facts, leaf.pid, Mode::User);
    let at = most_in(&hot);
    let threads = units::plural(busy.len() as u64, "thread computes", "threads compute");
    let own = if busy.iter().any(|t| t.rec.pid != leaf.pid) { "processes" } else { "process" };
    let summary = waits.summary(&format!(
        "{} could run and waits {} for a CPU, while {threads} in its own {own} for no request.{at}",
        named(leaf),
        waits.each()
    ));
    let mut evidence = vec![
        words::counted("threads that compute for no request", busy.len() as u64),
        words::valued("CPUs that they use", cpus, "CPUs"),
    ];
    evidence.extend(facts.runq_p99_us().map(|p99| words::valued("run queue wait, p99 below", p99 / 1e3, "ms")));
    evidence.extend(hot);
    let fix = format!(
        "Give the background threads fewer CPUs than the host has (OMP_NUM_THREADS, the size of the pool), let them sleep rather than spin \
         while they wait (OMP_WAIT_POLICY=passive), or lower their priority (`renice -n 10 -p TID`). Which they are: `top -H -p {}`",
        leaf.pid
    );
    waits.candidate(summary, evidence, fix).holds()
}

fn of_threads(facts: &Facts<'_>) -> Outcome {
    let take = |p: &Part| p.blame == Blame::CpuUser;
    let lost = facts.lost(take);
    // The time that threads of a service cost its requests is on the account of these.
    let saturated = facts.threads.iter().filter(|t| !facts.requests.covers(t.rec.pid));
    let saturated = saturated.filter(|t| qualifies(facts, t) && busy_of_wall(facts, t) >= MIN_BUSY);
    let saturated = saturated.max_by(|a, b| a.ledger.on_cpu().total_cmp(&b.ledger.on_cpu()));
    // Flows may show the loss, and yet hardly any of what the thread spent: they had no more to lose.
    let spent = saturated.map_or(0.0, |t| t.ledger.of(State::OnCpuUser));
    let by_thread = !shows(facts, &lost) || lost.ns < MIN_SHARE * spent;
    let thread = if by_thread { saturated } else { facts.thread(main_thread(facts, take)) };
    let Some(thread) = thread.filter(|t| qualifies(facts, t)) else { return why_not(facts) };
    if small_copy_buffer::copies_in_small_pieces(thread).is_ok() {
        let busy = ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns);
        return denied(Denial::of(share(busy, BUSIEST)).because("for copies in small pieces").seen());
    }
    let cost = thread.cost_ns.map(|c| words::about(facts.scaled(), units::duration(c)));
    let cost = cost.map(|c| format!(", {c} of CPU per request")).unwrap_or_default();
    let hot = hottest(facts, |tid| tid == thread.rec.tid, Mode::User);
    let at = most_in(&hot);
    let who = words::begun(&thread_name(facts, thread.rec.tid));
    let summary = format!("{who} computes in user mode{cost}; flows wait for it.{at}");
    let mut place = if by_thread { Place::default() } else { place_of(facts, &lost) };
    (place.pid, place.tid) = (Some(thread.rec.pid), Some(thread.rec.tid));
    let evidence = evidence(facts, thread, &lost, hot);
    let runtime = runtime::of(facts, thread.rec.pid, &thread.rec.comm);
    let fix = match runtime.is_some_and(Runtime::runs_one_thread) {
        true => "Spend less CPU per request, or run more processes: threads of one interpreter take turns on one CPU.",
        false => {
            "Spend less CPU per request, or spread the work over more threads; network and kernel are not the limit."
        }
    };
    let mut candidate = Candidate::new(lost, place, summary, evidence, fix);
    if thread.ledger.user_share.is_none() {
        candidate.gaps.push(Gap::Guessed("whether it computes in user mode was not sampled"));
    }
    if by_thread {
        let (ns, wall_ns) = (thread.ledger.of(State::OnCpuUser), thread.ledger.wall_ns);
        candidate.thread = Some(ThreadLoss { ns, wall_ns, tids: vec![thread.rec.tid] });
    }
    candidate.holds()
}

fn qualifies(facts: &Facts<'_>, thread: &ThreadFact<'_>) -> bool {
    let ledger = &thread.ledger;
    let runnable = ledger.of(State::Runnable);
    let queued = if fills_cpus(facts, thread.rec.pid) { runnable } else { runnable.min(ledger.on_cpu()) };
    let at_work = ledger.on_cpu() + queued;
    let working = ledger.not_idle() - ledger.of(State::BlockedWorkAvailable);
    thread.expensive && ledger.user_share.unwrap_or(1.0) >= MIN_USER && ratio(at_work, working) >= MIN_BUSY
}

/// Time in which it ran, or waited for a CPU for no longer than it ran: or however long, if its process alone fills all CPUs.
fn busy_of_wall(facts: &Facts<'_>, thread: &ThreadFact<'_>) -> f64 {
    let (on_cpu, runnable) = (thread.ledger.on_cpu(), thread.ledger.of(State::Runnable));
    let queued = if fills_cpus(facts, thread.rec.pid) { runnable } else { runnable.min(on_cpu) };
    ratio(on_cpu + queued, thread.ledger.wall_ns)
}

fn fills_cpus(facts: &Facts<'_>, pid: u32) -> bool {
    let cpus = f64::from(facts.capture.host.cpus.max(1));
    let used: f64 = facts.threads_of(pid).map(|t| t.ledger.on_cpu()).sum();
    used >= MIN_BUSY * cpus * facts.capture.window_ns as f64
}

fn evidence(
    facts: &Facts<'_>,
    thread: &ThreadFact<'_>,
    lost: &crate::judge::facts::Lost,
    hot: Vec<Evidence>,
) -> Vec<Evidence> {
    let mut list = Vec::new();
    if lost.ns > 0.0 {
        list.push(stalls("waits of flows for a thread that computed", lost));
    }
    list.push(words::valued("thread on a CPU", ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns), "1"));
    if let Some(user) = thread.ledger.user_share {
        list.push(words::valued("of its CPU time, in user mode", user, "1"));
    }
    if let Some(cost) = thread.cost_ns {
        list.push(Evidence { scaled: facts.scaled(), ..words::valued("CPU time per request", cost / 1e6, "ms") });
    }
    if let Some(hw) = facts.capture.hardware.filter(|hw| hw.cycles > 0) {
        let ipc = hw.instructions as f64 / hw.cycles as f64;
        list.push(words::valued("instructions per cycle", ipc, "instructions"));
        let misses = ratio(hw.cache_misses as f64, hw.instructions as f64) * 1e3;
        list.push(words::valued("cache misses per 1,000 instructions", misses, "misses"));
    }
    if let Some(p99) = facts.runq_p99_us() {
        list.push(words::valued("run queue wait, p99 below", p99 / 1e3, "ms"));
    }
    list.extend(hot);
    list
}

fn why_not(facts: &Facts<'_>) -> Outcome {
    let busiest = facts.threads.iter().max_by(|a, b| a.ledger.on_cpu().total_cmp(&b.ledger.on_cpu()));
    let Some(thread) = busiest else { return Outcome::Untested("no thread was seen".to_string()) };
    let busy = Denial::of(share(ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns), BUSIEST));
    denied(match (thread.cost_ns, thread.ledger.user_share) {
        (Some(cost), _) if !thread.expensive => {
            busy.beside(Figure { scaled: facts.scaled(), ..amount(cost / 1e6, "ms", "of CPU per request") })
        }
        (_, Some(user)) => busy.beside(share(user, "of it in user mode")),
        (_, None) => busy,
    })
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, CpuSample, FdKind, FlowState, Frame, NO_SYSCALL, Release, Role, Stack};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    /// A single-threaded server that works 5 ms on each request of one flow.
    fn computing() -> Capture {
        let flow = FlowBuilder::new(1, Role::Server)
            .every(10 * MS, 0, 5 * MS, FlowState::IdleAfterRecv, Release::AppSend)
            .talks(100, 100);
        let thread = ThreadBuilder::new(101).samples(95, 5).sleeps(10 * MS, 5 * MS, 5 * MS, "epoll_wait", FdKind::Anon);
        capture(vec![flow], vec![thread])
    }

    #[test]
    fn names_thread_and_function() {
        let mut capture = computing();
        let frame = |name: &str| Frame { name: name.to_string(), module: "app".to_string(), kernel: false };
        capture.stacks = vec![Stack { frames: vec![frame("parse"), frame("main")] }];
        capture.samples = vec![CpuSample {
            tid: 101,
            user: true,
            syscall: NO_SYSCALL,
            syscall_name: String::new(),
            stack: Some(0),
            count: 95,
        }];
        let report = crate::judge::judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"));
        assert!(report.verdict.summary.contains("parse"), "{}", report.verdict.summary);
        assert_eq!(report.findings[0].place.tid, Some(101));
    }

    #[test]
    fn a_runtime_without_names_says_how_to_get_them() {
        use parshall_evidence::HopKind;

        use crate::testkit::service::{Hops, ServiceBuilder, with};
        let way = Hops::new().thread(100, 101, "shop").on(HopKind::OnCpu, "");
        let mut capture = with(ServiceBuilder::new(7000).requests(200, 20.0).part(way, 1.0));
        let frame = |name: &str, module: &str| Frame { name: name.into(), module: module.into(), kernel: false };
        capture.stacks = vec![Stack { frames: vec![frame("0x7f00", ""), frame("JavaMain", "libjvm.so")] }];
        capture.samples = vec![CpuSample {
            tid: 101,
            user: true,
            syscall: NO_SYSCALL,
            syscall_name: String::new(),
            stack: Some(0),
            count: 95,
        }];
        let report = crate::judge::judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"));
        assert!(report.findings[0].fix.text.contains("jcmd 100 Compiler.perfmap"), "{}", report.findings[0].fix.text);
    }

    #[test]
    fn a_python_function_is_hot_with_all_of_its_lines() {
        use parshall_evidence::{HopKind, Interpreted};

        use crate::testkit::service::{Hops, ServiceBuilder, with};
        let way = Hops::new().thread(100, 101, "python3").on(HopKind::OnCpu, "");
        let mut capture = with(ServiceBuilder::new(7000).requests(200, 20.0).part(way, 1.0));
        let python = |name: &str, from| Frame::of_interpreter(name.to_string(), "python3.11", from);
        let own = |name: &str| python(name, Interpreted::Application);
        let memmove = Frame { name: "memmove".to_string(), module: "libc.so.6".to_string(), kernel: false };
        let stacks = [
            (40, vec![memmove, own("price (app.py:10)"), own("main (app.py:60)")]),
            (50, vec![own("price (app.py:12)"), own("main (app.py:60)")]),
            (60, vec![python("dumps (encoder.py:200)", Interpreted::Library), own("reply (app.py:30)")]),
        ];
        capture.stacks = stacks.iter().map(|(_, frames)| Stack { frames: frames.clone() }).collect();
        let sample = |(stack, (count, _)): (usize, &(u64, Vec<Frame>))| CpuSample {
            tid: 101,
            user: true,
            syscall: NO_SYSCALL,
            syscall_name: String::new(),
            stack: Some(stack as u32),
            count: *count,
        };
        capture.samples = stacks.iter().enumerate().map(sample).collect();
        let report = crate::judge::judge(&capture);
        assert!(
            report.verdict.summary.contains(" of the samples are in price (app.py:12)."),
            "{}",
            report.verdict.summary
        );
        let hot: Vec<(&str, Option<u64>)> = report.findings[0]
            .evidence
            .iter()
            .filter(|e| e.what.contains(" ("))
            .map(|e| (e.what.as_str(), e.count))
            .collect();
        assert_eq!(hot, [("price (app.py:12)", Some(90)), ("reply (app.py:30)", Some(60))]);
        assert!(!report.findings[0].fix.text.contains("--interpreters"));
        // Without the functions, the loop that runs them.
        let eval = Frame { name: "_PyEval_EvalFrameDefault".into(), module: "python3.11".into(), kernel: false };
        capture.stacks.iter_mut().for_each(|stack| stack.frames = vec![eval.clone()]);
        let report = crate::judge::judge(&capture);
        assert!(report.findings[0].fix.text.contains("observe it with `--interpreters`"));
    }

    #[test]
    fn an_event_loop_reads_several_requests_before_it_computes_for_each() {
        use parshall_evidence::HopKind;

        use crate::testkit::service::{Hops, ServiceBuilder, with};
        // A thread with `cpu_ms` on a CPU, and `requests` that were worked on for `each_ms`, `at_a_time` of them at a time.
        let verdict = |requests: u64, each_ms: f64, at_a_time: f64, cpu_ms: u64| {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::OnCpu, "");
            let mut service = ServiceBuilder::new(7000).requests(requests, each_ms).part(way, 1.0);
            service.record.working_ns = (service.record.worked_ns as f64 / at_a_time) as u64;
            let mut capture = with(service);
            capture.threads[0].cpu_ns = cpu_ms * MS;
            verdict_of(&capture)
        };
        // 2.6 ms for each, and while it computes for one the others are in its hands, too.
        assert_eq!(verdict(228, 6.0, 2.6, 600), "user-cpu-bound");
        // One at a time, which takes more than twice the CPU time that it used: it slept, and that was not seen.
        assert_eq!(verdict(228, 6.0, 1.0, 600), "insufficient-evidence");
        // A tenth of a millisecond for each: they are in its hands for longer because there are as many.
        assert_eq!(verdict(2000, 1.0, 10.0, 200), "healthy");
    }

    #[test]
    fn what_a_thread_computes_for_requests_that_slices_cut_counts() {
        use parshall_evidence::HopKind;

        use crate::testkit::service::{Hops, ServiceBuilder, with};
        // 2.4 ms for each of 140 requests in a second, and their queue.
        let verdict = |cpu_ms: u64| {
            let queue = Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::OnCpu, "");
            let service = ServiceBuilder::new(7000).requests(140, 6.0).part(queue, 0.6);
            let mut capture = with(service.part(Hops::new().thread(100, 101, "app").on(HopKind::OnCpu, ""), 0.4));
            capture.threads[0].cpu_ns = cpu_ms * MS;
            verdict_of(&capture)
        };
        assert_eq!(verdict(700), "user-cpu-bound");
        assert_eq!(verdict(340), "healthy");
    }

    #[test]
    fn a_saturated_cheap_server_is_healthy() {
        // 12 connections, 100 us of CPU per request: each waits in a queue of several ms at times.
        let flows = (0..12).map(|i| {
            FlowBuilder::new(i, Role::Server)
                .every(5 * MS, i * MS / 4, 2 * MS, FlowState::RxWaiting, Release::AppRecv)
                .talks(800, 32)
        });
        let thread = ThreadBuilder::new(101).samples(80, 20);
        assert_eq!(verdict_of(&capture(flows.collect(), vec![thread])), "healthy");
    }

    #[test]
    fn its_clients_wait_for_a_healthy_server() {
        let mut flows = Vec::new();
        for i in 0..12 {
            let client = FlowBuilder::new(2 * i, Role::Client)
                .owner(300, 301)
                .every(5 * MS, 0, 4 * MS, FlowState::IdleAfterSend, Release::RxData)
                .talks(800, 32);
            let server = FlowBuilder::new(2 * i + 1, Role::Server)
                .to(&client)
                .every(5 * MS, 0, 4 * MS, FlowState::RxWaiting, Release::AppRecv)
                .talks(800, 32);
            flows.extend([client, server]);
        }
        let thread = ThreadBuilder::new(101).samples(80, 20);
        assert_eq!(verdict_of(&capture(flows, vec![thread])), "healthy");
    }

    #[test]
    fn work_of_another_thread_of_the_process_counts() {
        // An event loop hands the request to a worker and sleeps until it is done.
        let flow = FlowBuilder::new(1, Role::Server)
            .every(10 * MS, 0, 9 * MS, FlowState::IdleAfterRecv, Release::AppSend)
            .talks(100, 100);
        let mut front = ThreadBuilder::new(101).sleeps(10 * MS, 0, 9 * MS, "epoll_wait", FdKind::Anon);
        for stall in &mut front.stalls {
            (stall.waker_tid, stall.waker_in_irq) = (102, false);
        }
        let worker = ThreadBuilder::new(102).samples(95, 5).sleeps(10 * MS, 9 * MS, MS, "futex", FdKind::None);
        let report = crate::judge::judge(&capture(vec![flow], vec![front, worker]));
        assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"));
        assert_eq!(report.findings[0].place.tid, Some(102));
    }

    #[test]
    fn a_thread_that_talks_to_itself_leaves_its_flows_nothing_to_move() {
        // It computes between a read and the next write: what its flows wait for is a few accidents in the window.
        for accident in [500_000, 1_100_000, 1_500_000, 5 * MS] {
            let client = FlowBuilder::new(1, Role::Client)
                .cell(FlowState::InFlight, Release::RxAck, 6 * MS, 150)
                .streams(150, 1);
            let server = FlowBuilder::new(2, Role::Server)
                .to(&client)
                .cell(FlowState::RxWaiting, Release::AppRecv, 5 * MS, 150)
                .stall(20 * MS, accident, FlowState::RxWaiting, Release::AppRecv)
                .drains(150, 1);
            let report =
                crate::judge::judge(&capture(vec![client, server], vec![ThreadBuilder::new(101).samples(95, 5)]));
            assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"), "{accident}: {report:#?}");
            assert!(report.findings[0].lost_ms > 500.0, "{accident}: what the thread spent: {report:#?}");
        }
    }

    #[test]
    fn a_share_of_much_that_is_lost_is_named_by_its_flow() {
        // The thread computes for half of the time. Its flow's loss is little of what all flows could have moved, and more
        // than half of what they lost.
        let mut computing = computing();
        let peer = FlowBuilder::new(2, Role::Client)
            .owner(300, 301)
            .every(100 * MS, 0, 40 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks(10, 100);
        let busy = (3..9).map(|id| {
            let flow = FlowBuilder::new(id, Role::Client).owner(300, 301).talks(1000, 100);
            flow.cell(FlowState::IdleAfterSend, Release::RxData, 900 * MS, 1000)
        });
        let others = capture([peer].into_iter().chain(busy).collect(), vec![]);
        computing.flows.extend(others.flows);
        computing.flow_stalls.extend(others.flow_stalls);
        let report = crate::judge::judge(&computing);
        assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"), "{report:#?}");
        assert!(report.findings[0].place.flow.is_some() && report.findings[0].lost_share < 0.9, "{report:#?}");
    }

    #[test]
    fn bulk_work_shows_in_the_thread_only() {
        let flow = FlowBuilder::new(1, Role::Server)
            .cell(FlowState::RxWaiting, Release::AppRecv, 900 * MS, 1800)
            .drains(1800, 32_768);
        let thread = ThreadBuilder::new(101).samples(95, 5);
        assert_eq!(verdict_of(&capture(vec![flow], vec![thread])), "user-cpu-bound");
    }
}
