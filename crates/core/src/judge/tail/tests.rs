//! Services whose typical request is fast: what is said of their slowest ones.
use parshall_evidence::timeline::{Names, OffCpu, Waker, Why};
use parshall_evidence::{Capture, Confidence, FdKind, Report, Status, TailReport};

use crate::critical_path::reduced;
use crate::judge::judge;
use crate::testkit::timeline::{Script, client_socket, off, served_socket};
use crate::testkit::{MS, ThreadBuilder, capture};

const EPOLL: i32 = 232;
const FUTEX: i32 = 202;
const SLEEP: i32 = 35;
const FSYNC: i32 = 74;
const US: u64 = 1_000;
const WINDOW_NS: u64 = 5_000 * MS;
/// Clients with a connection each, enough that none asks again before it was answered.
const CLIENTS: u64 = 200;

/// The work of a thread on a request.
#[derive(Debug, Clone, Copy)]
enum Does {
    /// It computes.
    Computes(u64),
    /// It waits for a CPU on which another process runs, and computes for a moment.
    Behind(u64),
    /// It sleeps in a call, and computes for a moment.
    Sleeps(u64, i32),
}

/// A thread's requests: when each arrives, on which connection, and what the thread does with it.
struct Thread {
    tid: u32,
    requests: Vec<(u64, u64, Does)>,
}

/// A request each millisecond, all of them `typical` long.
fn steady(tid: u32, first_socket: u64, typical: u64) -> Thread {
    let count = WINDOW_NS / MS - 300;
    let request = |n: u64| (n * MS + 100 * US, first_socket + n % CLIENTS, Does::Computes(typical));
    Thread { tid, requests: (0..count).map(request).collect() }
}

impl Thread {
    /// One in `every` requests does this instead.
    fn sometimes(mut self, every: usize, does: Does) -> Thread {
        self.requests.iter_mut().skip(every / 2).step_by(every).for_each(|request| request.2 = does);
        self
    }

    /// A further client asks for this every `every` nanoseconds.
    fn beside(mut self, socket: u64, every: u64, does: Does) -> Thread {
        self.requests
            .extend((1..).map(|n| n * every).take_while(|at| *at + 300 * MS < WINDOW_NS).map(|at| (at, socket, does)));
        self.requests.sort_by_key(|request| request.0);
        self
    }

    /// Serves one after the other, in the order of their arrival.
    fn run(&self, mut script: Script) -> Script {
        let tid = self.tid;
        let mut now = 0;
        let mut busy: Vec<OffCpu> = Vec::new();
        let mut calls = std::collections::BTreeMap::<u64, Vec<_>>::new();
        for &(arrived, socket, does) in &self.requests {
            if arrived > now {
                busy.push(OffCpu { syscall: EPOLL, waker: Waker::SoftIrq, ..off(tid, now, arrived, arrived) });
            }
            let read = now.max(arrived) + US;
            now = match does {
                Does::Computes(ns) => read + ns,
                Does::Behind(ns) => {
                    let begin = read + US;
                    let preempted = OffCpu { ran_instead_tid: 901, ..off(tid, begin, begin, begin + ns) };
                    busy.push(OffCpu { why: Why::Preempted, syscall: -1, ..preempted });
                    begin + ns + 100 * US
                }
                Does::Sleeps(ns, syscall) => {
                    let begin = read + US;
                    let (why, fd) =
                        if syscall == FSYNC { (Why::SleptForIo, FdKind::File) } else { (Why::Slept, FdKind::None) };
                    busy.push(OffCpu {
                        why,
                        fd,
                        syscall,
                        waker: Waker::HardIrq,
                        ..off(tid, begin, begin + ns, begin + ns)
                    });
                    begin + ns + 100 * US
                }
            };
            let own = calls.entry(socket).or_default();
            own.push((tid, parshall_evidence::timeline::Op::Receive, arrived, read));
            own.push((tid, parshall_evidence::timeline::Op::Send, now, now));
        }
        for (socket, calls) in calls {
            script = script.socket(socket, served_socket(7000), tid).calls(socket, calls);
        }
        busy.into_iter().fold(script, Script::off)
    }
}

/// A window of one slice.
fn script() -> Script {
    let mut script = Script::new();
    script.timeline.slices = vec![(0, WINDOW_NS)];
    script.timeline.asked_ports = vec![7000];
    let hog = Names { pid: 900, thread: "hog.py".to_string(), process: "hog.py".to_string() };
    script.timeline.names.insert(901, hog);
    script
}

fn seen(script: Script) -> Capture {
    let mut capture = capture(vec![], vec![ThreadBuilder::new(101).samples(100, 0)]);
    capture.window_ns = WINDOW_NS;
    capture.slices.observed_ns = WINDOW_NS;
    capture.threads[0].cpu_ns = WINDOW_NS / 5;
    (capture.threads[0].end_ns, capture.threads[0].observed_ns) = (WINDOW_NS, WINDOW_NS);
    capture.timeline = Some(script.timeline);
    capture
}

fn report(thread: &Thread) -> Report {
    judge(&seen(thread.run(script())))
}

fn tail(report: &Report) -> TailReport {
    report.service.as_ref().and_then(|s| s.tail.clone()).expect("a tail")
}

fn cause(report: &Report) -> &str {
    report.verdict.cause.as_deref().unwrap_or("none")
}

#[test]
fn behind_a_request_that_computes_on_the_only_thread() {
    let report = report(&steady(101, 1, 200 * US).beside(999, 2_000 * MS, Does::Computes(60 * MS)));
    assert_eq!((report.verdict.status, cause(&report)), (Status::Cause, "user-cpu-bound"), "{report:#?}");
    let summary = &report.verdict.summary;
    assert!(summary.contains("wait behind another request, which comes from 127.0.0.1:50000"), "{summary}");
    assert!(summary.contains("the typical one takes 201 µs"), "{summary}");
    assert!(report.findings[0].tail && report.findings[0].place.tid == Some(101), "{:?}", report.findings[0]);
    let tail = tail(&report);
    assert!(tail.notable && tail.cause.as_deref() == Some("user-cpu-bound") && tail.share < 0.051, "{tail:?}");
    assert!(tail.behind.contains("another request"), "{tail:?}");
    assert_eq!(report.verdict.confidence, Confidence::Medium, "two moments");
}

#[test]
fn a_cause_that_only_the_slowest_requests_have_is_said_of_them() {
    // It happens so often that their time is most of all time.
    let report = report(&steady(101, 1, 200 * US).beside(999, 1_300 * MS, Does::Computes(60 * MS)));
    assert_eq!((report.verdict.status, cause(&report)), (Status::Cause, "user-cpu-bound"), "{report:#?}");
    assert!(report.verdict.summary.starts_with("The slowest 4.7 % of the requests"), "{}", report.verdict.summary);
    assert!(report.findings[0].tail && report.findings.len() == 1, "{:#?}", report.findings);
    assert_eq!(report.verdict.confidence, Confidence::High);
}

#[test]
fn the_typical_request_has_a_cause_of_its_own() {
    // All of them sleep for 3 ms, and some wait behind one that computes for 60 ms.
    let mut thread = Thread { tid: 101, requests: vec![] };
    thread.requests.extend((0..470).map(|n| (n * 10 * MS + 100 * US, 1 + n % CLIENTS, Does::Sleeps(3 * MS, SLEEP))));
    let report = report(&thread.beside(999, 2_300 * MS, Does::Computes(60 * MS)));
    assert_eq!(cause(&report), "timer-wait", "{report:#?}");
    assert!(!report.verdict.summary.contains("slowest"), "{}", report.verdict.summary);
    let others: Vec<(&str, bool)> = report.findings.iter().map(|f| (f.cause.as_str(), f.tail)).collect();
    assert_eq!(others, [("timer-wait", false), ("user-cpu-bound", true)], "{report:#?}");
}

#[test]
fn a_request_that_computes_longer_is_another_request_and_not_slow() {
    // Each thread serves one connection: nobody waits for the long ones.
    let threads = (0..40).map(|n| {
        let tid = 101 + n;
        let at = u64::from(n) * 7 * MS;
        let requests = (0..40).map(|k| {
            (at + k * 100 * MS, u64::from(n) + 1, Does::Computes(if k % 13 == 5 { 60 * MS } else { 200 * US }))
        });
        Thread { tid, requests: requests.collect() }
    });
    let script = threads.fold(script(), |script, thread| thread.run(script));
    let mut capture = seen(script);
    let report = judge(&capture);
    assert!(tail(&report).time[0].state == "work", "{:?}", tail(&report));
    assert_ne!(report.verdict.status, Status::InsufficientEvidence);
    assert!(report.findings.iter().all(|finding| !finding.tail), "{report:#?}");
    // And so with one that is rare.
    capture.timeline =
        Some(steady(101, 1, 200 * US).sometimes(4_000, Does::Computes(20 * MS)).run(self::script()).timeline);
    assert_eq!(judge(&capture).verdict.status, Status::Healthy);
}

#[test]
fn in_the_run_queue_behind_another_program() {
    let report = report(&steady(101, 1, 200 * US).sometimes(200, Does::Behind(16 * MS)));
    assert_eq!((report.verdict.status, cause(&report)), (Status::Cause, "run-queue-latency"), "{report:#?}");
    assert!(report.verdict.summary.contains("on which hog.py"), "{}", report.verdict.summary);
    assert_eq!(report.verdict.confidence, Confidence::High);
    assert!(tail(&report).behind.starts_with("hog.py"), "{:?}", tail(&report));
}

#[test]
fn a_lock_that_is_held_for_long_at_times() {
    // 102 takes the lock every 2 s and computes with it for 50 ms.
    let mut script = steady(101, 1, 200 * US).run(script());
    let holder = Thread { tid: 102, requests: vec![] }.beside(999, 1_900 * MS, Does::Computes(60 * MS));
    script = holder.run(script);
    for (n, &(at, ..)) in holder.requests.iter().enumerate() {
        // Threads with a request each: all of them sleep for the lock.
        for waiter in 0..30_u64 {
            let (tid, socket) = (200 + 10 * waiter as u32 + n as u32, 2_000 + 100 * n as u64 + waiter);
            script = script
                .socket(socket, served_socket(7000), tid)
                .receives(tid, socket, at + MS, at + MS)
                .off(OffCpu {
                    syscall: FUTEX,
                    waker: Waker::Thread(102),
                    ..off(tid, at + 2 * MS, at + 55 * MS, at + 55 * MS)
                })
                .sends(tid, socket, at + 56 * MS);
        }
    }
    let report = judge(&seen(script));
    assert_eq!((report.verdict.status, cause(&report)), (Status::Cause, "lock-contention"), "{report:#?}");
    assert!(tail(&report).behind.contains("p100"), "{:?}", tail(&report));
}

#[test]
fn replies_of_another_server_that_are_slow_at_times() {
    let mut script = script().socket(9_000, client_socket(5432), 101);
    let mut socket = 0;
    for n in 0..2_000_u64 {
        socket = 1 + n % CLIENTS;
        let (at, takes) = (n * 2 * MS, if n % 50 == 7 { 60 * MS } else { 300 * US });
        // A thread for each connection.
        let (tid, asked) = (1_000 + 10 * socket as u32, 9_000 + socket);
        let recv = OffCpu {
            syscall: 45,
            fd: FdKind::Tcp,
            target: asked,
            waker: Waker::SoftIrq,
            ..off(tid, at + 20 * US, at + takes, at + takes)
        };
        script = script
            .socket(socket, served_socket(7000), tid)
            .socket(asked, client_socket(5432), tid)
            .receives(tid, socket, at, at)
            .sends(tid, asked, at + 10 * US)
            .off(recv)
            .receives(tid, asked, at + takes, at + takes)
            .sends(tid, socket, at + takes + 20 * US);
    }
    assert!(socket > 0);
    let report = judge(&seen(script));
    assert_eq!(cause(&report), "blocking-downstream-call", "{report:#?}");
    let tail = tail(&report);
    assert!(tail.notable && tail.behind == "127.0.0.1:5432", "{tail:?}");
}

#[test]
fn a_queue_at_a_server_that_is_asked_is_not_one_here() {
    // Some replies of 201 take long, because it computes for others; nothing waits unread at the service itself.
    let mut script = script();
    for n in 0..2_000_u64 {
        let (socket, slow) = (1 + n % CLIENTS, n % 50 == 7);
        let (at, read) = (n * 2 * MS, if slow { n * 2 * MS + 12 * MS } else { n * 2 * MS + 30 * US });
        let (tid, asked, served) = (1_000 + 10 * socket as u32, 9_000 + socket, 8_000 + socket);
        let recv = OffCpu {
            syscall: 45,
            fd: FdKind::Tcp,
            target: asked,
            waker: Waker::Thread(201),
            ..off(tid, at + 20 * US, read + 20 * US, read + 20 * US)
        };
        script = script
            .socket(socket, served_socket(7000), tid)
            .socket(asked, client_socket(6379), tid)
            .socket(served, served_socket(6379), 201)
            .pair(asked, served)
            .receives(tid, socket, at, at)
            .sends(tid, asked, at + 10 * US)
            .receives(201, served, at + 10 * US, read)
            .sends(201, served, read + 10 * US)
            .off(recv)
            .receives(tid, asked, read + 10 * US, read + 20 * US)
            .sends(tid, socket, read + 30 * US);
    }
    let report = judge(&seen(script));
    assert!(report.findings.iter().all(|finding| !finding.tail), "{report:#?}");
    assert!(!tail(&report).behind.contains("another request"), "{:?}", tail(&report));
}

#[test]
fn a_mild_tail_is_healthy() {
    for (what, thread) in [
        ("collects garbage for 5 ms at times", steady(101, 1, 200 * US).beside(999, 300 * MS, Does::Computes(5 * MS))),
        ("is preempted for 4 ms at times", steady(101, 1, 200 * US).sometimes(200, Does::Behind(4 * MS))),
        ("reads a file for 40 ms, once", steady(101, 1, 200 * US).sometimes(9_000, Does::Sleeps(4 * MS, FSYNC))),
        ("takes up to four times as long", steady(101, 1, 4 * MS).sometimes(10, Does::Computes(MS))),
        ("nothing", steady(101, 1, 200 * US)),
    ] {
        let report = report(&thread);
        assert!(report.findings.iter().all(|finding| !finding.tail), "{what}: {report:#?}");
        if !what.starts_with("takes") {
            assert_eq!(report.verdict.status, Status::Healthy, "{what}: {report:#?}");
        }
    }
}

#[test]
fn what_befalls_four_requests_is_an_accident() {
    // The slowest ten of 157 are the tail. `n` of them wait for a CPU for 25 ms, which is most of the time of all ten.
    let waits = |n: usize| {
        let mut thread = steady(101, 1, 200 * US);
        thread.requests.retain(|request| request.0 % (30 * MS) == 100 * US);
        for (request, typical) in thread.requests.iter_mut().zip(100 * US..) {
            request.2 = Does::Computes(typical);
        }
        for chosen in thread.requests.iter_mut().skip(1).step_by(20).take(n) {
            chosen.2 = Does::Behind(25 * MS);
        }
        report(&thread)
    };
    let (four, five) = (waits(4), waits(5));
    assert_eq!((four.verdict.status, cause(&four)), (Status::Healthy, "none"), "{four:#?}");
    assert_eq!((cause(&five), five.findings[0].tail), ("run-queue-latency", true), "{five:#?}");
}

#[test]
fn one_long_wait_for_a_cpu_is_an_accident_whatever_came_meanwhile() {
    // 40 requests come while the only thread waits for a CPU for 40 ms.
    let waits = |times: usize| {
        let mut thread = steady(101, 1, 200 * US);
        for chosen in thread.requests.iter_mut().skip(100).step_by(1_500).take(times) {
            chosen.2 = Does::Behind(40 * MS);
        }
        report(&thread)
    };
    let (once, twice) = (waits(1), waits(2));
    assert_eq!((once.verdict.status, cause(&once)), (Status::Healthy, "none"), "{once:#?}");
    assert_eq!(cause(&twice), "run-queue-latency", "{twice:#?}");
}

#[test]
fn a_first_request_on_a_cold_cache_is_no_tail() {
    // It reads a file for 20 ms, and holds up those that arrive meanwhile, once.
    let mut thread = steady(101, 1, 200 * US);
    thread.requests[0].2 = Does::Sleeps(20 * MS, FSYNC);
    let report = report(&thread);
    assert_eq!(report.verdict.status, Status::Healthy, "{report:#?}");
    assert_eq!(tail(&report).cause, None);
}

#[test]
fn a_burst_of_cheap_requests_is_nobodys_fault() {
    // Every 2 s, 100 clients ask at the same time.
    let mut thread = steady(101, 1, 100 * US);
    for burst in [1_000 * MS, 3_000 * MS] {
        thread.requests.extend((0..150).map(|n| (burst, 2_000 + n, Does::Computes(200 * US))));
    }
    thread.requests.sort_by_key(|request| request.0);
    let report = report(&thread);
    assert!(report.findings.iter().all(|finding| !finding.tail), "{report:#?}");
    assert_eq!(tail(&report).cause, None);
}

#[test]
fn what_slices_cut_counts_with_what_was_seen() {
    // Slices of 100 ms; in the third and the seventh, the thread sleeps from their middle on.
    let mut script = script();
    script.timeline.slices = (0..10).map(|n| (n * 500 * MS, n * 500 * MS + 100 * MS)).collect();
    let mut thread = Thread { tid: 101, requests: vec![] };
    for slice in 0..10_u64 {
        let count = if slice % 4 == 2 { 40 } else { 90 };
        let at = |n: u64| slice * 500 * MS + n * MS + 200 * US;
        thread.requests.extend((0..count).map(|n| (at(n), 1 + n, Does::Computes(100 * US))));
    }
    script = thread.run(script);
    for slice in [2_u64, 6] {
        let begin = slice * 500 * MS + 41 * MS;
        script = script.off(OffCpu { why: Why::Stopped, ..off(101, begin, begin + 59 * MS, begin + 59 * MS) });
        for n in 0..10_u64 {
            let socket = 500 + 10 * slice + n;
            script = script.socket(socket, served_socket(7000), 101).receives(
                101,
                socket,
                begin - MS + n * 10 * US,
                begin - 100 * US,
            );
        }
    }
    let report = judge(&seen(script));
    let tail = tail(&report);
    assert!(tail.requests >= 20 && tail.mean_ms > 50.0, "{tail:?}");
    assert_eq!(cause(&report), "process-stopped", "{report:#?}");
}

#[test]
fn a_timer_of_some_requests_is_theirs() {
    // One in 100 asks to be answered after 30 ms, on threads of their own: 60 % of the time of all. It is named, as for all requests.
    let requests =
        |k: u64| (k * 20 * MS, 1, if k % 100 == 50 { Does::Sleeps(30 * MS, SLEEP) } else { Does::Computes(2 * MS) });
    let thread = Thread { tid: 101, requests: (0..200).map(requests).collect() };
    let report = report(&thread);
    assert!(report.findings.iter().all(|finding| !finding.tail), "{report:#?}");
}

#[test]
fn a_saved_case_keeps_what_the_slowest_requests_waited_for() {
    let mut capture = seen(steady(101, 1, 200 * US).sometimes(200, Does::Behind(16 * MS)).run(script()));
    let report = judge(&capture);
    capture.timeline = capture.timeline.map(reduced);
    let left_out = |capture: &Capture| capture.timeline.as_ref().map_or(0, |timeline| timeline.left_out);
    assert!(left_out(&capture) > 1_000, "{}", left_out(&capture));
    assert_eq!(judge(&capture), report);
    // An earlier version left out what it did not follow.
    capture.timeline.iter_mut().for_each(|timeline| timeline.has_tails = false);
    assert!(judge(&capture).services.iter().all(|service| service.tail.is_none()));
}
