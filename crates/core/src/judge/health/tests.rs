//! Captures in which somebody waits and today's causes do not say so, and beside each one a capture in which nobody is owed anything.
use parshall_evidence::timeline::{OffCpu, Socket, Waker};
use parshall_evidence::{
    Capture, Confidence, Counters, CpuSample, FdKind, FlowState, Frame, HopKind, NO_SYSCALL, Release, Role, Stack,
    Status,
};

use super::{Fate, fate};
use crate::judge::facts::Spent;
use crate::judge::judge;
use crate::testkit::service::{Hops, ServiceBuilder, with};
use crate::testkit::timeline::{Script, client_socket, off, served_socket};
use crate::testkit::{FlowBuilder, MS, ThreadBuilder, WINDOW_NS, capture, empty_capture, listener, verdict_of};

const EPOLL: i32 = 232;
const SLEEP: i32 = 35;
const RECV: i32 = 45;

#[test]
fn the_table_and_the_causes_agree_on_what_is_lost() {
    let all = [
        Spent::Work,
        Spent::Flow,
        Spent::Unseen,
        Spent::Lock,
        Spent::Disk,
        Spent::Downstream,
        Spent::Dns,
        Spent::Timer,
        Spent::Serial,
        Spent::Workers,
        Spent::StopTheWorld,
        Spent::HotThread,
        Spent::RunQueue,
        Spent::Throttled,
        Spent::CpuUser,
        Spent::CpuKernel,
        Spent::PageFaults,
        Spent::Memory,
        Spent::Log,
        Spent::Stopped,
        Spent::Connect,
        Spent::Setup,
        Spent::Descriptors,
        Spent::NotAccepted,
        Spent::TurnedAway,
        Spent::Mutual,
        Spent::Network,
        Spent::Other,
    ];
    for spent in all {
        let (fate, why) = fate(spent);
        assert_eq!(fate == Fate::Lost, spent.is_lost(), "{spent:?}");
        assert!(!why.is_empty());
    }
}

#[test]
fn a_listener_whose_connections_others_accept_is_not_idle() {
    let one = |state| FlowBuilder::new(1, Role::Server).cell(state, Release::Cut, WINDOW_NS, 1);
    let status = |flows| judge(&capture(flows, vec![])).verdict.status;
    assert_eq!(status(vec![one(FlowState::Other)]), Status::InsufficientEvidence);
    assert_eq!(status(vec![one(FlowState::IdleAfterSend)]), Status::Healthy);
    // It serves others itself.
    assert_eq!(
        status(vec![one(FlowState::Other), FlowBuilder::new(2, Role::Server).talks(100, 100).fill()]),
        Status::Healthy
    );
}

fn of(script: Script) -> Capture {
    let mut capture = empty_capture();
    capture.timeline = Some(script.timeline);
    capture
}

fn begun() -> Script {
    let mut script = Script::new();
    script.timeline.slices = vec![(0, WINDOW_NS)];
    script.timeline.asked_ports = vec![7000];
    script
}

/// Five requests of which the rest comes 150 ms after the head or a little later; the client sleeps in `syscall` meanwhile.
fn half_sent(syscall: i32, waker: Waker) -> Script {
    let mut script = begun().socket(1, served_socket(7000), 101).socket(2, client_socket(7000), 201).pair(1, 2);
    for n in 0..5 {
        let at = n * 180 * MS + MS;
        let rest = at + (150 + 5 * n) * MS;
        script = script
            .sends(201, 2, at)
            .receives(101, 1, at, at + 1_000)
            .sleeps(201, at + 2_000, rest, syscall, waker)
            .sends(201, 2, rest + 1_000)
            .receives(101, 1, rest + 1_000, rest + 2_000)
            .sends(101, 1, rest + MS)
            .receives(201, 2, rest + MS, rest + MS + 1_000);
    }
    script
}

#[test]
fn a_client_that_waits_for_an_interim_answer_is_no_health() {
    let report = judge(&of(half_sent(EPOLL, Waker::SoftIrq)));
    assert_eq!(report.verdict.status, Status::NoDominantCause, "{report:#?}");
    let summary = &report.verdict.summary;
    assert!(summary.contains("100 Continue") && summary.contains("p200 200 waits for a reply"), "{summary}");
    // It sleeps between the parts by itself.
    assert_eq!(verdict_of(&of(half_sent(SLEEP, Waker::HardIrq))), "healthy");
    // It gives up waiting for the answer.
    assert_eq!(verdict_of(&of(half_sent(EPOLL, Waker::HardIrq))), "timer-wait");
}

#[test]
fn a_client_that_was_not_observed_is_not_called_well_served() {
    let mut script = half_sent(EPOLL, Waker::HardIrq);
    script.timeline.observed_pids.remove(&200);
    let report = judge(&of(script));
    assert_eq!(report.verdict.status, Status::InsufficientEvidence, "{report:#?}");
    assert!(report.verdict.summary.contains("between two parts of a request"), "{}", report.verdict.summary);
}

/// Two connections of a request each; their client sleeps in `syscall` from the reply to the end of the connection, 400 ms later.
fn until_closed(syscall: i32) -> Script {
    let mut script = begun();
    for n in 0..2 {
        let (server, client, at) = (10 + n, 20 + n, n * 450 * MS + MS);
        let ends = Some(at + 402 * MS);
        let sleep = OffCpu {
            syscall,
            fd: FdKind::Tcp,
            target: client,
            waker: if syscall == RECV { Waker::SoftIrq } else { Waker::HardIrq },
            ..off(201, at + 2 * MS + 1, at + 402 * MS, at + 402 * MS)
        };
        script = script
            .socket(server, Socket { opened: true, closed_ns: ends, ..served_socket(7000) }, 101)
            .socket(client, Socket { opened: true, closed_ns: ends, ..client_socket(7000) }, 201)
            .pair(server, client)
            .sends(201, client, at)
            .receives(101, server, at, at + 1_000)
            .sends(101, server, at + MS)
            .receives(201, client, at + MS, at + 2 * MS)
            .off(sleep);
    }
    script
}

#[test]
fn exchanges_of_which_no_request_was_made_are_no_health() {
    let judged = |requests: u64, exchanges: u64| {
        let waits = Hops::new().thread(100, 101, "app").on(HopKind::OtherRequest, "epoll_wait");
        let service = ServiceBuilder::new(7000).requests(requests, 0.4).unanswered(4, 800.0).part(waits, 1.0);
        let mut capture = with(service);
        let flows = capture_of(exchanges);
        (capture.flows, capture.flow_stalls) = (flows.flows, flows.flow_stalls);
        let report = judge(&capture);
        (report.verdict.status, report.verdict.confidence)
    };
    assert_eq!(judged(0, 66).0, Status::InsufficientEvidence);
    // Some of them were, or there are hardly any.
    assert_eq!(judged(4, 66), (Status::Healthy, Confidence::Medium));
    assert_eq!(judged(60, 66), (Status::Healthy, Confidence::High));
    assert_eq!(judged(0, 3).0, Status::Healthy);
}

fn capture_of(exchanges: u64) -> Capture {
    capture(vec![FlowBuilder::new(1, Role::Server).talks(exchanges, 100)], vec![])
}

#[test]
fn a_client_that_reads_until_the_close_waits_for_it() {
    let report = judge(&of(until_closed(RECV)));
    assert_eq!(report.verdict.status, Status::NoDominantCause, "{report:#?}");
    let summary = &report.verdict.summary;
    assert!(summary.contains("p200 200 has its reply") && summary.contains("2 times, 400 ms on average"), "{summary}");
    assert_eq!(verdict_of(&of(until_closed(SLEEP))), "healthy");
}

/// 101 serves a connection all the time. On another one a request is sent that nobody accepts, and its client gives up at `closed_ms`.
fn not_accepted(closed_ms: u64, syscall: i32) -> Script {
    let mut script = begun().socket(1, served_socket(7000), 101);
    for at in (0..1_000).step_by(50) {
        script = script.receives(101, 1, at * MS, at * MS).sends(101, 1, at * MS + 10_000);
    }
    for n in 0..6 {
        let client = Socket { opened: true, closed_ns: Some(closed_ms * MS), ..client_socket(7000) };
        let tid = 201 + 10 * n;
        let id = 30 + 2 * u64::from(n);
        let sleep = off(tid, 11 * MS, closed_ms * MS - 1_000, closed_ms * MS - 1_000);
        script = script
            .socket(id, client, tid)
            .socket(id + 1, Socket { opened: true, ..served_socket(7000) }, 0)
            .pair(id, id + 1)
            .sends(tid, id, 10 * MS)
            .off(OffCpu { syscall, fd: FdKind::Tcp, target: id, waker: Waker::HardIrq, ..sleep });
    }
    script
}

#[test]
fn a_listener_from_which_nobody_accepts_is_found_beside_one_that_is_served() {
    let listeners = |count: usize| {
        let mut capture = of(not_accepted(510, RECV));
        capture.counters = Some(Counters { listeners: vec![listener(7000, 0); count], ..Counters::default() });
        judge(&capture)
    };
    let report = listeners(2);
    assert_eq!(report.verdict.cause.as_deref(), Some("accept-queue-overflow"), "{report:#?}");
    let summary = &report.verdict.summary;
    assert!(summary.contains("gave up after 50") && summary.contains("SO_REUSEPORT"), "{summary}");
    // With one listener they wait behind those that are served.
    assert_eq!(listeners(1).verdict.cause.as_deref(), Some("serialized-service"));
    // A process that sleeps for something else does not wait for an answer, and neither does one that goes at once.
    assert_eq!(verdict_of(&of(not_accepted(510, SLEEP))), "healthy");
    assert_eq!(verdict_of(&of(not_accepted(40, RECV))), "healthy");
}

#[test]
fn a_connection_that_is_never_established_is_no_health() {
    let opening = |state: u8, begin_ns: u64| {
        let mut flow = FlowBuilder::new(1, Role::Client).remote_host();
        (flow.record.begin_ns, flow.record.last.state) = (begin_ns, state);
        let idle = FlowBuilder::new(2, Role::Server);
        judge(&capture(vec![flow, idle], vec![]))
    };
    let report = opening(2, 100 * MS);
    assert_eq!(report.verdict.status, Status::NoDominantCause, "{report:#?}");
    assert!(report.verdict.summary.contains("10.0.0.2:7000 being opened"), "{}", report.verdict.summary);
    assert_eq!(opening(2, 990 * MS).verdict.status, Status::Healthy, "it was begun just now");
    assert_eq!(opening(1, 100 * MS).verdict.status, Status::Healthy);
}

#[test]
fn a_service_that_opens_a_connection_for_itself_lets_nobody_wait() {
    let mut capture = with(ServiceBuilder::new(7000).requests(1_000, 0.05).cpu(1.0));
    let mut flow = FlowBuilder::new(1, Role::Client).remote_host();
    (flow.record.begin_ns, flow.record.last.state) = (100 * MS, 2);
    capture.flows = crate::testkit::capture(vec![flow], vec![]).flows;
    capture.subject.ports = Vec::new();
    assert_eq!(verdict_of(&capture), "healthy");
    // Of a port that was asked for, it is a client's.
    capture.subject.ports = vec![7000];
    assert_eq!(verdict_of(&capture), "no-dominant-cause");
}

/// A stream of 1 MB in 1,000 reads, whose reader is on a CPU for `busy_ms`; its sender waits for it.
fn read_by(busy_ms: u64, bytes: u64) -> Capture {
    let from = FlowBuilder::new(1, Role::Server)
        .cell(FlowState::RxWaiting, Release::AppRecv, 900 * MS, 1_000_000)
        .drains(1_000, bytes / 1_000);
    let idle = (1_000 - busy_ms).max(1);
    capture(vec![from], vec![ThreadBuilder::new(101).samples(50, 50).blocked(0, idle * MS, "pselect6", FdKind::None)])
}

#[test]
fn a_reader_without_time_left_that_spends_much_on_each_byte_is_no_health() {
    let report = judge(&read_by(990, 80_000_000));
    assert_eq!(report.verdict.status, Status::NoDominantCause, "{report:#?}");
    assert!(report.verdict.summary.contains("thread 101"), "{}", report.verdict.summary);
    // It has time left, or reads as much as a CPU can.
    assert_eq!(verdict_of(&read_by(500, 80_000_000)), "healthy");
    assert_eq!(verdict_of(&read_by(990, 3_000_000_000)), "healthy");
    // A process for one short request is busy for most of its life.
    let mut short = read_by(990, 80_000_000);
    short.window_ns *= 20;
    assert_eq!(verdict_of(&short), "healthy");
}

/// Requests that cost 0.1 ms of CPU time and wait for a CPU for 6 ms, while threads of their own process compute for `background_ms`.
fn crowded(background_ms: u64) -> Capture {
    let way = Hops::new().thread(100, 101, "app").on(HopKind::RunQueue, "").runs("app", 0);
    let mut capture = with(ServiceBuilder::new(7000).requests(50, 6.0).part(way, 0.98).cpu(0.02));
    for tid in 102..106 {
        let rest = (1_000 - background_ms / 4).max(1) * MS;
        let thread = ThreadBuilder::new(tid).samples(90, 0).runnable(WINDOW_NS, 0, rest).fill();
        capture.threads.push(thread.record);
    }
    capture
}

#[test]
fn threads_of_its_own_process_keep_a_service_from_a_cpu() {
    let report = judge(&crowded(1_900));
    assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"), "{report:#?}");
    assert!(report.verdict.summary.contains("4 threads compute in its own process"), "{}", report.verdict.summary);
    assert_eq!(verdict_of(&crowded(100)), "healthy", "they do next to nothing");
}

/// The same in two processes of two threads each.
#[test]
fn threads_of_its_other_processes_do_too() {
    let in_two = |background_ms| {
        let mut capture = crowded(background_ms);
        capture.services[0].pids = vec![100, 110];
        capture.threads.iter_mut().filter(|thread| thread.tid >= 104).for_each(|thread| thread.pid = 110);
        judge(&capture)
    };
    // Of these, either process computes for less than a fifth of the time of two CPUs.
    let report = in_two(760);
    assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"), "{report:#?}");
    assert!(report.verdict.summary.contains("4 threads compute in its own processes"), "{}", report.verdict.summary);
    assert_eq!(in_two(100).verdict.status, Status::Healthy);
}

/// Requests that cost 0.1 ms of CPU time each, and lie unread for `unread_ms` while the thread that reads them is on a CPU, which it is for
/// `busy_ms` in all, in this function.
fn unread_while(requests: u64, function: &str, unread_ms: f64, busy_ms: u64) -> Capture {
    let way = Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::OnCpu, "");
    let share = unread_ms / (unread_ms + 0.1);
    let service = ServiceBuilder::new(7000).requests(requests, unread_ms + 0.1).part(way, share).cpu(1.0 - share);
    let mut capture = with(service);
    let thread =
        ThreadBuilder::new(101).samples(busy_ms / 10, 0).blocked(0, (1_000 - busy_ms) * MS, "epoll_wait", FdKind::Anon);
    capture.threads = vec![thread.fill().record];
    capture.stacks = vec![Stack { frames: vec![Frame { name: function.into(), module: "app".into(), kernel: false }] }];
    let sample = CpuSample {
        tid: 101,
        user: true,
        syscall: NO_SYSCALL,
        syscall_name: String::new(),
        stack: Some(0),
        count: busy_ms / 10,
    };
    capture.samples = vec![sample];
    capture
}

#[test]
fn a_thread_that_computes_for_no_request_lets_them_lie() {
    assert_eq!(verdict_of(&unread_while(5, "rebuild_index", 90.0, 500)), "user-cpu-bound");
    let report = judge(&unread_while(5, "scavenge_block1", 90.0, 500));
    assert_eq!(report.verdict.cause.as_deref(), Some("stop-the-world"), "{report:#?}");
    assert!(report.verdict.summary.contains("collects garbage"), "{}", report.verdict.summary);
    // They lie there for as long as the requests before them take, or for next to nothing.
    assert_eq!(verdict_of(&unread_while(5, "rebuild_index", 0.15, 500)), "healthy");
    assert_eq!(verdict_of(&unread_while(5, "rebuild_index", 2.0, 500)), "healthy");
    // Of a thread that computes all the time, a shorter wait is one for that, too.
    assert_eq!(verdict_of(&unread_while(200, "sign", 3.5, 990)), "user-cpu-bound");
    assert_eq!(verdict_of(&unread_while(200, "sign", 3.5, 380)), "healthy");
}

#[test]
fn threads_that_take_turns_on_all_cpus_are_full_together() {
    // Four threads on two CPUs: each is on one for half of the time, and ready for the rest.
    let spinning = |runnable_ms: u64| {
        let flow = FlowBuilder::new(1, Role::Server)
            .cell(FlowState::RxWaiting, Release::AppRecv, 900 * MS, 100)
            .talks(100, 100);
        let thread = |tid| ThreadBuilder::new(tid).samples(95, 5).runnable(WINDOW_NS, 0, runnable_ms * MS);
        capture(vec![flow], (101..105).map(thread).collect())
    };
    assert_eq!(verdict_of(&spinning(520)), "user-cpu-bound");
}

/// A client asks four times over a connection of its own and has a reply to its first message each time, not to the second one: its thread
/// sleeps in poll until a timer of its own or data ends that (`waker`), closes the connection, and tries again.
fn given_up(waker: Waker) -> Capture {
    let mut script = begun();
    script.timeline.slices = vec![(0, 9_000 * MS)];
    script.timeline.syscalls.insert(7, "poll".to_string());
    for n in 0..4_u64 {
        let (served, client, tid, at) = (10 + n, 20 + n, 101 + n as u32, n * 2_100 * MS + MS);
        let closed_ns = Some(at + 2_040 * MS);
        script = script
            .socket(served, Socket { closed_ns, ..served_socket(7000) }, tid)
            .socket(client, Socket { closed_ns, ..client_socket(7000) }, 201)
            .pair(served, client)
            .sends(201, client, at)
            .receives(tid, served, at, at + MS)
            .sends(tid, served, at + 2 * MS)
            .receives(201, client, at + 2 * MS, at + 3 * MS)
            .sends(201, client, at + 4 * MS)
            .receives(tid, served, at + 4 * MS, at + 5 * MS)
            .off(OffCpu {
                syscall: RECV,
                fd: FdKind::Tcp,
                target: served,
                ..off(tid, at + 6 * MS, at + 2_040 * MS, at + 2_040 * MS)
            })
            .off(OffCpu { syscall: 7, waker, ..off(201, at + 5 * MS, at + 2_039 * MS, at + 2_039 * MS) });
    }
    let mut capture = of(script);
    capture.window_ns = 9_000 * MS;
    capture
}

#[test]
fn requests_that_clients_gave_up_waiting_for_are_no_health() {
    let report = judge(&given_up(Waker::HardIrq));
    assert_eq!(report.verdict.status, Status::NoDominantCause, "{report:#?}");
    assert!(report.verdict.summary.contains("gave up waiting for replies of 127.0.0.1:7000: 4 times"), "{report:#?}");
    // The service ends the connection of a subscriber.
    assert_eq!(verdict_of(&given_up(Waker::SoftIrq)), "healthy");
}

#[test]
fn datagrams_of_clients_elsewhere_do_not_tell_how_far_away_these_are() {
    let quick = |clients: &[u64]| {
        let served = Socket { udp: true, ..served_socket(7000) };
        let mut script = begun().socket(1, served, 101);
        for id in clients {
            script = script.socket(*id, Socket { udp: true, ..client_socket(7000) }, 201);
        }
        for n in 0..50 {
            script = script.receives(101, 1, n * 10 * MS, n * 10 * MS + 50_000).sends(101, 1, n * 10 * MS + 100_000);
        }
        judge(&of(script)).verdict
    };
    let (far, near) = (quick(&[]), quick(&[2]));
    assert_eq!((far.status, far.confidence), (Status::Healthy, Confidence::Medium), "{far:?}");
    assert_eq!(far.gaps[0].link, "round-trip");
    assert_eq!((near.status, near.confidence), (Status::Healthy, Confidence::High), "{near:?}");
}
