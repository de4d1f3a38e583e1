//! Hand-made scenes: who owes an answer, who holds it up, and what owes nothing.
use parshall_evidence::{
    AtListener, Capture, Counters, FdKind, FlowState, ListenerCounters, Release, Status, SyscallCell, Waiting,
    WaitingEnd, WaitingThread,
};
use proptest::prelude::*;

use crate::judge::{judge, waiting};
use crate::testkit::service::{ServiceBuilder, with};
use crate::testkit::{FlowBuilder, MS, ThreadBuilder, arb, capture as capture_of, empty_capture};

const S: u64 = 1_000_000_000;

/// An end of process 100 of the subject on port 7000, or of 200 that asks there, on which data arrived and left 9 s ago.
pub fn end(id: u64, serves: bool) -> WaitingEnd {
    let (server, client) = ("127.0.0.1:7000".parse().expect("ok"), format!("127.0.0.1:{}", 40_000 + id % 100));
    let client = client.parse().expect("an address");
    WaitingEnd {
        id,
        local: if serves { server } else { client },
        remote: if serves { client } else { server },
        netns: 1,
        serves,
        subject: true,
        accepted: true,
        state: 1,
        pids: vec![if serves { 100 } else { 200 }],
        unread_bytes: 0,
        received_ns: Some(9 * S),
        sent_ns: Some(9 * S),
        acked_ns: 9 * S,
        still_ns: 0,
    }
}

/// A request that was read 9 s ago, a second after the last reply.
fn read(id: u64) -> WaitingEnd {
    WaitingEnd { sent_ns: Some(10 * S), ..end(id, true) }
}

fn unread(id: u64) -> WaitingEnd {
    WaitingEnd { unread_bytes: 19, ..read(id) }
}

/// The client's end of a request to another server, at port 9000, sent 9 s ago; and that server's own.
fn asks(id: u64, pid: u32) -> [WaitingEnd; 2] {
    let server: std::net::SocketAddr = "127.0.0.1:9000".parse().expect("an address");
    let asks = WaitingEnd { remote: server, pids: vec![pid], received_ns: Some(10 * S), ..end(id, false) };
    let serves = WaitingEnd { id: id + 1000, local: server, remote: asks.local, subject: false, ..read(id) };
    [asks, WaitingEnd { pids: vec![300], ..serves }]
}

fn thread(pid: u32, tid: u32, syscall_name: &str) -> WaitingThread {
    WaitingThread {
        pid,
        tid,
        process: "app".into(),
        thread: "app".into(),
        state: 'S',
        still: Some(true),
        seen: true,
        syscall: 1,
        syscall_name: syscall_name.into(),
        fd: if syscall_name.starts_with("recv") { FdKind::Tcp } else { FdKind::None },
        ..WaitingThread::default()
    }
}

fn awaiting(thread: WaitingThread, ends: &[u64]) -> WaitingThread {
    WaitingThread { awaits: ends.to_vec(), ..thread }
}

fn scene(ends: Vec<WaitingEnd>, threads: Vec<WaitingThread>) -> Capture {
    let idle = FlowBuilder::new(1, parshall_evidence::Role::Server);
    let mut capture = capture_of(vec![idle], vec![]);
    capture.waiting = Some(Waiting { ends, threads, left_out: 0 });
    capture
}

fn cause(capture: &Capture) -> String {
    let report = judge(capture);
    match report.verdict.status {
        Status::Cause => report.verdict.cause.clone().expect("a cause"),
        status => format!("{status:?}"),
    }
}

#[test]
fn a_stopped_process_is_named_with_the_age() {
    let stopped = WaitingThread { state: 'T', ..thread(100, 100, "") };
    for ends in
        [vec![unread(1), unread(2), unread(3)], vec![WaitingEnd { accepted: false, ..unread(1) }], vec![read(1)]]
    {
        let report = judge(&scene(ends.clone(), vec![stopped.clone()]));
        assert_eq!(report.verdict.cause.as_deref(), Some("process-stopped"), "{report:#?}");
        assert!(
            report.verdict.summary.contains("since before the window (the longest for 9.0 s)"),
            "{}",
            report.verdict.summary
        );
        let service = report.service.expect("a service");
        assert_eq!((service.unanswered, service.port), (ends.len() as u64, 7000));
        assert!((service.outstanding - ends.len() as f64).abs() < 0.01, "{service:?}");
    }
}

/// A connection on which data lies unread since before the window, whose thread sleeps over an epoll that does not have it. `sent` are the
/// bytes that the service has sent on it, and `window` those that it still takes.
fn left_unread(sent: u64, window: u32, thread: WaitingThread) -> Capture {
    let mut flow = FlowBuilder::new(1, parshall_evidence::Role::Server).every(
        1000 * MS,
        0,
        1000 * MS,
        FlowState::RxWaiting,
        Release::Cut,
    );
    let last = &mut flow.record.last;
    (last.bytes_received, last.unread_bytes, last.rcv_wnd) = (128_204, 128_204, window);
    (last.bytes_acked, last.data_segs_out) = (sent, sent / 100);
    let asleep = ThreadBuilder::new(100).blocked(0, 1000 * MS, "epoll_wait", FdKind::Anon);
    let mut capture = capture_of(vec![flow], vec![asleep]);
    let sent_ns = (sent > 0).then_some(10 * S);
    let served = WaitingEnd { unread_bytes: 128_204, sent_ns, still_ns: S, ..end(1, true) };
    let (local, remote) = (served.remote, served.local);
    let sender = WaitingEnd { local, remote, received_ns: sent_ns, still_ns: S, ..end(2, false) };
    capture.waiting = Some(Waiting { ends: vec![served, sender], threads: vec![thread], left_out: 0 });
    capture
}

#[test]
fn a_stream_whose_window_is_shut_is_no_request_that_waits() {
    let idles = || thread(100, 100, "epoll_wait");
    assert_eq!(cause(&left_unread(0, 0, idles())), "slow-reader");
    // It has had replies, or its sender could send more: a request.
    assert_eq!(cause(&left_unread(5_000, 0, idles())), "NoDominantCause");
    assert_eq!(cause(&left_unread(0, 60_000, idles())), "NoDominantCause");
    // What holds its process up matters more than that it does not read.
    assert_eq!(cause(&left_unread(0, 0, WaitingThread { state: 'T', ..idles() })), "process-stopped");
}

#[test]
fn a_few_that_wait_are_found_among_many_that_are_answered() {
    let stopped = WaitingThread { state: 'T', ..thread(100, 100, "") };
    let busy = ServiceBuilder::new(7000).requests(1_000_000, 0.05).cpu(1.0);
    let mut capture = with(busy);
    assert_eq!(cause(&capture), "Healthy");
    capture.waiting = scene(vec![unread(1)], vec![stopped]).waiting;
    let report = judge(&capture);
    assert_eq!(report.verdict.cause.as_deref(), Some("process-stopped"), "{report:#?}");
    assert_eq!((report.services.len(), report.services[0].unanswered), (1, 1));
    assert!(report.services[0].requests_per_s > 1000.0);
}

#[test]
fn idle_connections_owe_nothing() {
    let pool = || (1..5).map(|id| end(id, true)).collect::<Vec<_>>();
    let waits = awaiting(thread(100, 100, "epoll_wait"), &[1, 2, 3, 4]);
    let report = judge(&scene(pool(), vec![waits]));
    assert_eq!(report.verdict.status, Status::Healthy, "{report:#?}");
    assert!(report.verdict.summary.starts_with("Nothing to do"), "{}", report.verdict.summary);
    // A thread for each connection, in recv(); the first one waits for them.
    let mut threads: Vec<_> = (1..5).map(|id| awaiting(thread(100, 100 + id, "recvfrom"), &[u64::from(id)])).collect();
    threads.push(thread(100, 100, "futex"));
    assert_eq!(cause(&scene(pool(), threads)), "Healthy");
    // Clients with a pool to a server elsewhere; the server's good-bye lies unread in one.
    let mut clients: Vec<_> = (1..5).map(|id| end(id, false)).collect();
    clients[0] = WaitingEnd { unread_bytes: 30, state: 8, ..clients[0].clone() };
    assert_eq!(cause(&scene(clients, vec![thread(200, 200, "epoll_wait"), thread(200, 201, "futex")])), "Healthy");
}

#[test]
fn a_long_poll_owes_nothing_and_is_mentioned() {
    let waits = awaiting(thread(100, 100, "epoll_wait"), &[1]);
    let report = judge(&scene(vec![read(1)], vec![waits]));
    assert_eq!(report.verdict.status, Status::Healthy, "{report:#?}");
    assert!(report.blind.iter().any(|note| note.contains("1 request was not answered (the longest for 9.0 s)")));
    assert!(report.verdict.confidence < parshall_evidence::Confidence::High);
    // The same, asked about its client; who serves others and is blocked in it holds them up.
    let client = WaitingEnd { pids: vec![200], received_ns: Some(10 * S), sent_ns: Some(9 * S), ..end(1, false) };
    let server = WaitingEnd { id: 2, subject: false, ..read(1) };
    let threads = vec![awaiting(thread(200, 200, "recvfrom"), &[1]), awaiting(thread(100, 100, "epoll_wait"), &[2])];
    assert_eq!(cause(&scene(vec![client, server], threads)), "Healthy");
}

#[test]
fn an_event_loop_that_happens_to_run_has_none_of_its_long_polls() {
    let runs = WaitingThread { state: 'R', still: Some(false), ..thread(100, 100, "") };
    let status = |cpu_ns: u64| {
        let mut capture = scene((1..6).map(read).collect(), vec![runs.clone()]);
        let mut record = crate::testkit::ThreadBuilder::new(100).record;
        (record.pid, record.cpu_ns) = (100, cpu_ns);
        capture.threads = vec![record];
        judge(&capture).verdict.status
    };
    assert_eq!(status(2_000_000), Status::Healthy);
    // One that computes all of the time may do so with one of them.
    assert_ne!(status(capture_of(vec![], vec![]).window_ns), Status::Healthy);
}

/// The only thread of a process answers 48 others meanwhile, 20 ms each, and five have been read before the window. It has an epoll, and is
/// asleep in each call of `sleeps` for that number of milliseconds of each 20.
fn starved(sleeps: &[(&str, u64)], threads: Vec<WaitingThread>) -> Capture {
    let mut capture = with(ServiceBuilder::new(7000).requests(48, 20.0).cpu(1.0));
    let waiting = scene((1..6).map(|id| WaitingEnd { still_ns: S, ..read(id) }).collect(), threads).waiting;
    let mut only = crate::testkit::ThreadBuilder::new(100);
    for (call, ms) in sleeps {
        only = only.sleeps(20_000_000, 0, ms * 1_000_000, call, FdKind::None);
    }
    let mut record = only.fill().record;
    record.syscalls = vec![SyscallCell { name: "epoll_wait".into(), count: 9, ..SyscallCell::default() }];
    (capture.waiting, capture.threads) = (waiting, vec![record]);
    capture
}

#[test]
fn what_the_only_thread_never_gets_to_waits_behind_others() {
    let polls = || WaitingThread { still: Some(false), ..thread(100, 100, "poll") };
    for one in [
        polls(),
        WaitingThread { state: 'R', ..polls() },
        WaitingThread { syscall_name: "clock_nanosleep".into(), ..polls() },
    ] {
        let report = judge(&starved(&[("poll", 18)], vec![one]));
        assert_eq!(report.verdict.cause.as_deref(), Some("serialized-service"), "{report:#?}");
        assert!(report.verdict.summary.contains("it answered 48 others meanwhile"), "{}", report.verdict.summary);
        assert_eq!(report.chain.expect("a chain").leaf.process, "app");
    }
    // A loop that has time lets them wait; so may a process with other threads.
    let other = |sleeps: &[(&str, u64)], threads| cause(&starved(sleeps, threads));
    assert_ne!(other(&[("epoll_wait", 18)], vec![polls()]), "serialized-service");
    assert_ne!(other(&[("poll", 17), ("epoll_wait", 1)], vec![polls()]), "serialized-service");
    assert_ne!(other(&[("poll", 18)], vec![polls(), thread(100, 101, "futex")]), "serialized-service");
    let mut loop_of_poll = starved(&[("poll", 18)], vec![polls()]);
    loop_of_poll.threads[0].syscalls.clear();
    assert_ne!(cause(&loop_of_poll), "serialized-service");
    let mut rests = starved(&[("poll", 18)], vec![polls()]);
    rests.services[0].worked_ns /= 2;
    assert_ne!(cause(&rests), "serialized-service");
    // It is watched for more.
    assert_ne!(other(&[("poll", 18)], vec![awaiting(polls(), &[1, 2, 3, 4, 5])]), "serialized-service");
}

#[test]
fn what_a_thread_at_rest_lets_wait_while_it_answers_others_owes_nothing() {
    // It watches them for the end of the connection only.
    let of = |sleeps: &[(&str, u64)], threads: Vec<WaitingThread>, request_ms: f64| {
        let mut capture = starved(sleeps, threads);
        capture.services = vec![ServiceBuilder::new(7000).requests(48, request_ms).cpu(1.0).build()];
        judge(&capture)
    };
    let waits = || WaitingThread { still: Some(false), ..thread(100, 100, "epoll_wait") };
    let rests = of(&[("epoll_wait", 19)], vec![waits()], 0.2);
    assert_eq!(rests.verdict.status, Status::Healthy, "{rests:#?}");
    assert!(rests.blind.iter().any(|note| note.contains("5 requests were not answered")), "{:?}", rests.blind);
    // It is at work for a part of the time, takes long for the others, or has a thread beside it that may have them.
    for other in [
        of(&[("epoll_wait", 15)], vec![waits()], 0.2),
        of(&[("epoll_wait", 19)], vec![waits()], 4.0),
        of(&[("epoll_wait", 19)], vec![waits(), thread(100, 101, "futex")], 0.2),
    ] {
        assert_ne!(other.verdict.status, Status::Healthy, "{other:#?}");
    }
}

#[test]
fn streams_of_a_loop_that_happens_to_run_may_have_been_answered() {
    let idle = |tid| thread(100, tid, "futex");
    let runs = WaitingThread { state: 'R', still: Some(false), ..thread(100, 103, "") };
    let of = |call: &str| {
        let mut capture = scene((1..6).map(|id| end(id, true)).collect(), vec![idle(100), idle(101), runs.clone()]);
        let sleeper = crate::testkit::ThreadBuilder::new(103).sleeps(20_000_000, 0, 19_000_000, call, FdKind::Anon);
        capture.threads = vec![sleeper.fill().record];
        cause(&capture)
    };
    assert_eq!(of("epoll_pwait"), "Healthy");
    // One that waits elsewhere is no loop that would see the next request.
    assert_eq!(of("futex"), "InsufficientEvidence");
}

#[test]
fn a_relay_that_reads_and_passes_nothing_on_is_no_long_poll() {
    let relay = || vec![awaiting(thread(100, 100, "select"), &[1, 2])];
    let with = |opened: Vec<FlowBuilder>| {
        let mut capture = scene(vec![read(1), read(2)], relay());
        capture.flows.extend(capture_of(opened, vec![]).flows);
        capture
    };
    let unused = |id| FlowBuilder::new(id, parshall_evidence::Role::Client).remote_host();
    let report = judge(&with(vec![unused(10), unused(11)]));
    assert_eq!(report.verdict.status, Status::NoDominantCause, "{report:#?}");
    let summary = &report.verdict.summary;
    assert!(summary.contains("has sent nothing on its connection to 10.0.0.2:7000"), "{summary}");
    // A pool that was used before, fewer connections than requests, and none.
    let used = |id| {
        let mut flow = unused(id);
        (flow.record.first.bytes_acked, flow.record.last.bytes_acked) = (900, 900);
        flow
    };
    assert_eq!(cause(&with(vec![used(10), used(11)])), "Healthy");
    assert_eq!(cause(&with(vec![unused(10)])), "Healthy");
    assert_eq!(cause(&with(vec![])), "Healthy");
}

#[test]
fn a_thread_that_waits_for_a_name_server_is_blocked_by_it() {
    let polls = |call, target: &str| WaitingThread { fd: FdKind::Udp, target: target.into(), ..thread(100, 101, call) };
    let report = |one: WaitingThread| judge(&scene(vec![read(1)], vec![thread(100, 100, "accept4"), one]));
    for call in ["poll", "recvfrom"] {
        let found = report(polls(call, "10.9.0.53:53"));
        assert_eq!(found.verdict.cause.as_deref(), Some("blocking-dns"), "{found:#?}");
        assert!(found.verdict.summary.contains("10.9.0.53:53"), "{}", found.verdict.summary);
    }
    // Any other datagrams may be what it serves.
    assert_ne!(report(polls("poll", "10.9.0.53:8125")).verdict.cause.as_deref(), Some("blocking-dns"));
}

#[test]
fn a_subscription_owes_nothing() {
    // The last bytes went to the subscriber.
    let subscriber = WaitingEnd { received_ns: Some(30 * S), sent_ns: Some(4 * S), ..end(1, true) };
    assert_eq!(cause(&scene(vec![subscriber], vec![thread(100, 100, "futex"), thread(100, 101, "futex")])), "Healthy");
}

#[test]
fn an_answer_within_a_tick_is_told_by_who_waits_for_the_next_request() {
    let ends = || vec![end(1, true)];
    assert_eq!(cause(&scene(ends(), vec![awaiting(thread(100, 100, "poll"), &[1])])), "Healthy");
    assert_eq!(cause(&scene(ends(), vec![thread(100, 100, "clock_nanosleep")])), "timer-wait");
}

#[test]
fn threads_in_a_lock() {
    let waits = |tid, lock_owner| WaitingThread { lock_owner, ..thread(100, tid, "futex") };
    let ends = || vec![read(1), read(2)];
    let accepts = || thread(100, 100, "accept4");
    let deadlock = judge(&scene(ends(), vec![accepts(), waits(101, 102), waits(102, 101)]));
    assert_eq!(deadlock.verdict.cause.as_deref(), Some("lock-contention"), "{deadlock:#?}");
    assert!(deadlock.verdict.summary.contains("a deadlock"), "{}", deadlock.verdict.summary);
    let holder = thread(100, 102, "clock_nanosleep");
    let held = judge(&scene(ends(), vec![accepts(), waits(101, 102), holder]));
    assert_eq!(held.verdict.cause.as_deref(), Some("lock-contention"), "{held:#?}");
    assert!(held.verdict.summary.contains("waits for a timer"), "{}", held.verdict.summary);
    let unseen = judge(&scene(ends(), vec![accepts(), waits(101, 0), waits(102, 0)]));
    assert_eq!(unseen.verdict.cause.as_deref(), Some("lock-contention"), "{unseen:#?}");
    // A thread that sleeps beside them cannot have two requests; for one, it may be either.
    let mixed =
        |ends| cause(&scene(ends, vec![accepts(), waits(101, 0), waits(102, 0), thread(100, 103, "clock_nanosleep")]));
    assert_eq!(mixed(ends()), "lock-contention");
    assert_eq!(mixed(vec![read(1)]), "InsufficientEvidence");
    // Workers of a pool that have nothing to do, beside an event loop: that cannot be told from a lock, but it is awaited.
    let pool = vec![awaiting(thread(100, 100, "epoll_wait"), &[1, 2]), waits(101, 0)];
    assert_eq!(cause(&scene(ends(), pool)), "Healthy");
}

#[test]
fn a_downstream_that_never_answers() {
    let [asks, serves] = asks(5, 100);
    let blocked = awaiting(thread(100, 100, "recvfrom"), &[5]);
    let follow = |server: WaitingEnd, does: WaitingThread| {
        cause(&scene(vec![unread(1), read(2), asks.clone(), server], vec![blocked.clone(), does]))
    };
    let unread = WaitingEnd { unread_bytes: 3, ..serves.clone() };
    assert_eq!(follow(unread.clone(), thread(300, 300, "accept4")), "blocking-downstream-call");
    assert_eq!(follow(serves.clone(), awaiting(thread(300, 300, "epoll_wait"), &[1005])), "blocking-downstream-call");
    assert_eq!(follow(serves.clone(), WaitingThread { state: 'T', ..thread(300, 300, "") }), "process-stopped");
    assert_eq!(follow(serves.clone(), WaitingThread { state: 'D', ..thread(300, 300, "fsync") }), "blocking-disk-io");
    // Elsewhere, or not seen.
    assert_eq!(cause(&scene(vec![read(2), asks.clone()], vec![blocked.clone()])), "blocking-downstream-call");
    // A relay, which is blocked in nothing, leads there too.
    let relay = awaiting(thread(100, 100, "epoll_wait"), &[2, 5]);
    let stopped = WaitingThread { state: 'T', ..thread(300, 300, "") };
    assert_eq!(
        cause(&scene(vec![read(2), asks.clone(), serves.clone()], vec![relay.clone(), stopped])),
        "process-stopped"
    );
    // Behind it a long poll is a long poll, and what is elsewhere was not seen.
    let quiet = awaiting(thread(300, 300, "epoll_wait"), &[1005]);
    assert_eq!(cause(&scene(vec![read(2), asks.clone(), serves.clone()], vec![relay.clone(), quiet])), "Healthy");
    assert_eq!(cause(&scene(vec![read(2), asks], vec![relay])), "InsufficientEvidence");
}

#[test]
fn through_a_unix_socket() {
    let relay = WaitingThread { partners: vec![300], ..awaiting(thread(100, 100, "epoll_wait"), &[2]) };
    let follow = |does| cause(&scene(vec![read(2)], vec![relay.clone(), does]));
    assert_eq!(follow(WaitingThread { state: 'T', ..thread(300, 300, "") }), "process-stopped");
    assert_eq!(follow(thread(300, 300, "clock_nanosleep")), "timer-wait");
    assert_eq!(follow(thread(300, 300, "epoll_wait")), "InsufficientEvidence");
    // The parent of workers, which steers them by it.
    assert_eq!(follow(thread(300, 300, "rt_sigsuspend")), "Healthy");
    // A worker that asks a server over one, and waits for it alone.
    for (call, fd) in [("recvfrom", FdKind::Unix), ("poll", FdKind::None)] {
        let blocked = WaitingThread { partners: vec![300], fd, ..thread(100, 100, call) };
        let stopped = WaitingThread { state: 'T', ..thread(300, 300, "") };
        assert_eq!(cause(&scene(vec![read(1)], vec![blocked, stopped])), "process-stopped", "{call}");
    }
}

#[test]
fn a_lock_of_a_file_leads_to_its_holder() {
    let waits = WaitingThread { partners: vec![300], fd: FdKind::File, ..thread(100, 101, "flock") };
    let follow = |does| cause(&scene(vec![read(1)], vec![thread(100, 100, "accept4"), waits.clone(), does]));
    assert_eq!(follow(thread(300, 300, "pause")), "lock-contention");
    assert_eq!(follow(WaitingThread { state: 'D', ..thread(300, 300, "fsync") }), "blocking-disk-io");
}

#[test]
fn what_was_busy_meanwhile_is_not_blamed() {
    // Another request's thread asks a server when it is looked at, and has run within the window.
    let [asks, serves] = asks(5, 100);
    let busy = WaitingThread { still: Some(false), ..awaiting(thread(100, 101, "recvfrom"), &[5]) };
    let stuck = WaitingThread { lock_owner: 103, ..thread(100, 102, "futex") };
    let threads = vec![thread(100, 100, "accept4"), busy, stuck, thread(100, 103, "clock_nanosleep")];
    let old = WaitingEnd { still_ns: S, ..read(1) };
    assert_eq!(cause(&scene(vec![old, asks, serves], threads)), "lock-contention");
}

#[test]
fn an_uninterruptible_sleep_is_a_disk_only_for_files() {
    let stuck = |call, fd| {
        let one = WaitingThread { state: 'D', fd, ..thread(100, 100, call) };
        cause(&scene(vec![unread(1)], vec![one]))
    };
    assert_eq!(stuck("write", FdKind::File), "blocking-disk-io");
    assert_eq!(stuck("renameat2", FdKind::None), "blocking-disk-io");
    assert_eq!(stuck("vfork", FdKind::None), "NoDominantCause");
}

#[test]
fn a_session_of_a_database_that_waits_for_another_one() {
    let [asks, serves] = asks(5, 100);
    let waits = WaitingThread { session_lock: 301, process: "postgres".into(), ..thread(300, 300, "epoll_wait") };
    let holder = WaitingThread { process: "postgres".into(), ..thread(301, 301, "epoll_wait") };
    let threads = vec![awaiting(thread(100, 100, "poll"), &[5]), waits, holder];
    let report = judge(&scene(vec![unread(1), read(2), asks, serves], threads));
    assert_eq!(report.verdict.cause.as_deref(), Some("lock-contention"), "{report:#?}");
    assert_eq!(report.findings[0].place.pid, Some(301));
}

#[test]
fn a_connection_that_nobody_accepts() {
    let queued = WaitingEnd { accepted: false, received_ns: None, sent_ns: None, ..end(1, true) };
    assert_eq!(cause(&scene(vec![queued.clone()], vec![thread(100, 100, "clock_nanosleep")])), "timer-wait");
    let mut capture = scene(vec![queued], vec![thread(100, 100, "epoll_wait")]);
    capture.counters = Some(parshall_evidence::Counters::default());
    assert_eq!(cause(&capture), "accept-queue-overflow");
}

#[test]
fn a_queue_that_nobody_takes_from_keeps_the_latest_waiting_too() {
    // Clients give up sooner than the window is long; those that wait now came a moment ago.
    let queued =
        WaitingEnd { accepted: false, received_ns: Some(S / 10), sent_ns: None, acked_ns: S / 10, ..end(1, true) };
    let of = |before, after, came| {
        let threads = vec![thread(100, 100, "rt_sigtimedwait"), thread(100, 101, "epoll_wait")];
        let mut capture = scene(vec![queued.clone()], threads);
        let listener =
            ListenerCounters { local: queued.local, netns: 1, pid: 100, drops: 0, queued: (before, after), limit: 10 };
        capture.counters = Some(Counters { listeners: vec![listener], ..Counters::default() });
        capture.net.accepted = vec![AtListener { netns: 1, port: 7000, count: came }];
        capture
    };
    let deaf = judge(&of(5, 11, 6));
    assert_eq!(deaf.verdict.cause.as_deref(), Some("accept-queue-overflow"), "{deaf:#?}");
    assert!(deaf.verdict.summary.contains("waits in epoll_wait meanwhile"), "{}", deaf.verdict.summary);
    // One was taken out, or the queue was empty when the window began.
    assert_eq!(cause(&of(5, 10, 6)), "Healthy");
    assert_eq!(cause(&of(0, 6, 6)), "Healthy");
}

#[test]
fn a_hang_is_never_healthy_whatever_is_seen_of_it() {
    let calls = ["epoll_wait", "futex", "poll", "accept4", "recvfrom", "clock_nanosleep", "ioctl", "wait4", ""];
    for syscall in calls {
        for seen in [true, false] {
            let one = WaitingThread { seen, ..thread(100, 100, syscall) };
            for ends in [vec![unread(1)], vec![WaitingEnd { accepted: false, ..unread(1) }]] {
                assert_ne!(
                    cause(&scene(ends, vec![one.clone(), thread(100, 101, "epoll_wait")])),
                    "Healthy",
                    "{syscall}"
                );
            }
        }
    }
    assert_ne!(cause(&scene(vec![unread(1)], vec![])), "Healthy");
    assert_ne!(cause(&scene(vec![read(1)], vec![])), "Healthy");
    let mut alone = empty_capture();
    alone.waiting = scene(vec![unread(1)], vec![]).waiting;
    assert_ne!(cause(&alone), "Healthy");
}

#[test]
fn one_that_began_within_the_window_counts_from_a_second_on() {
    let stopped = WaitingThread { state: 'T', ..thread(100, 100, "") };
    let since = |ns| WaitingEnd { unread_bytes: 3, received_ns: Some(ns), ..end(1, true) };
    let mut capture = scene(vec![since(2 * S)], vec![stopped]);
    capture.window_ns = 5 * S;
    let report = judge(&capture);
    assert_eq!(report.verdict.cause.as_deref(), Some("process-stopped"), "{report:#?}");
    assert!(!report.verdict.summary.contains("before the window"), "{}", report.verdict.summary);
    assert!((report.service.expect("a service").outstanding - 0.4).abs() < 0.01);
    capture.waiting.as_mut().expect("it is").ends[0] = since(S / 2);
    assert_eq!(cause(&capture), "Healthy");
}

proptest! {
    #[test]
    fn nothing_is_healthy_while_somebody_owes_an_answer(capture in arb::capture()) {
        let waited = waiting::waited(&capture, &capture.services);
        let report = judge(&capture);
        let owed: u64 = waited.services.iter().map(|s| s.unanswered).sum();
        let calm = matches!(report.verdict.status, Status::Healthy | Status::AtCapacity);
        prop_assert!(owed == 0 || !calm, "{owed} requests: {:?}", report.verdict);
        prop_assert!(waited.services.iter().all(|s| s.path.iter().all(|part| !part.hops.is_empty())));
    }

    #[test]
    fn what_is_left_out_of_a_capture_changes_nothing(capture in arb::capture()) {
        let kept = Capture { waiting: capture.waiting.clone().and_then(waiting::relevant), ..capture.clone() };
        let (all, kept) = (waiting::waited(&capture, &capture.services), waiting::waited(&kept, &kept.services));
        prop_assert_eq!(all.quiet, kept.quiet);
        prop_assert_eq!(all.services, kept.services);
    }
}
