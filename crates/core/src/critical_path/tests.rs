//! Critical paths of small timelines made by hand.
mod sleeps;
mod turns;

use parshall_evidence::{FdKind, HopKind, PathPart, Service, Stopper};

use super::{clipped, reduced, services};
use crate::testkit::timeline::{Script, client_socket, off, served_socket};
use parshall_evidence::timeline::{Holder, Names, OffCpu, Socket, Waker, Why};

const EPOLL: i32 = 232;
const FUTEX: i32 = 202;
const SLEEP: i32 = 35;
const FSYNC: i32 = 74;
const RECV: i32 = 45;

/// A way as `process: kind > kind`, with its time.
fn ways(service: &Service) -> Vec<(String, u64)> {
    let hop = |h: &parshall_evidence::Hop| format!("{}:{:?}", h.tid, h.kind);
    let way = |p: &PathPart| (p.hops.iter().map(hop).collect::<Vec<_>>().join(" > "), p.ns);
    service.path.iter().map(way).collect()
}

fn only(script: Script) -> Service {
    let services = services(&script.timeline);
    let first = services.into_iter().next().expect("a service");
    assert_eq!(first.path.iter().map(|p| p.ns).sum::<u64>(), first.followed_ns);
    first
}

fn has(service: &Service, way: &str, ns: u64) {
    let all = ways(service);
    assert!(all.contains(&(way.to_string(), ns)), "no {way} of {ns} in {all:?}");
}

/// Thread 101 of process 100 serves socket 1.
fn served() -> Script {
    Script::new().socket(1, served_socket(7000), 101)
}

/// As [`served`], with another thread that serves requests of another port, which nobody asks about.
fn serving(tid: u32) -> Script {
    let mut script = served().socket(99, served_socket(9), tid).receives(tid, 99, 0, 0);
    script.timeline.asked_ports = vec![7000];
    script
}

#[test]
fn work_on_the_cpu_and_a_disk() {
    let fsync = OffCpu {
        syscall: FSYNC,
        fd: FdKind::File,
        fd_number: 5,
        why: Why::SleptForIo,
        waker: Waker::HardIrq,
        ..off(101, 200, 700, 750)
    };
    let mut script = served().receives(101, 1, 90, 100).off(fsync).sends(101, 1, 800);
    script.timeline.files.insert((100, 5), "/data/log".to_string());
    let service = only(script);
    assert_eq!((service.requests, service.p50_ns, service.followed_ns), (1, Some(710), 710));
    has(&service, "101:Disk", 500);
    has(&service, "101:RunQueue", 50);
    has(&service, "101:OnCpu", 150);
    has(&service, "101:Unread > 101:OnCpu", 10);
    assert_eq!(service.path[0].hops[0].target, "/data/log");
}

#[test]
fn a_lock_leads_to_what_its_holder_does() {
    // Thread 102 holds the lock and sleeps; 101 waits for it.
    let service = only(
        serving(102)
            .receives(101, 1, 100, 100)
            .sleeps(101, 200, 700, FUTEX, Waker::Thread(102))
            .sends(101, 1, 800)
            .sleeps(102, 150, 650, SLEEP, Waker::HardIrq),
    );
    has(&service, "101:Lock > 102:Timer", 450);
    has(&service, "101:Lock > 102:OnCpu", 50);
    has(&service, "101:OnCpu", 200);
}

#[test]
fn a_queue_for_a_lock_leads_to_its_holder() {
    // 103 held the lock until 400 and 102 from then until 700.
    let service = only(
        serving(102)
            .socket(98, served_socket(9), 103)
            .receives(103, 98, 0, 0)
            .receives(101, 1, 100, 100)
            .sleeps(101, 200, 700, FUTEX, Waker::Thread(102))
            .sends(101, 1, 800)
            .sleeps(102, 150, 400, FUTEX, Waker::Thread(103))
            .sleeps(102, 420, 680, SLEEP, Waker::HardIrq)
            .sleeps(103, 110, 390, SLEEP, Waker::HardIrq),
    );
    has(&service, "101:Lock > 102:Timer", 450);
    assert_eq!(service.path.iter().map(|p| p.hops.len()).max(), Some(2), "{:?}", ways(&service));
}

#[test]
fn what_the_end_of_a_slice_cut_is_left_out_where_it_is_the_lesser_part() {
    let mut script = served()
        .accepts(101, 1, 50, 50)
        .receives(101, 1, 100, 100)
        .sends(101, 1, 900)
        .receives(101, 1, 999_900, 999_900);
    script.timeline.slices = vec![(0, 1_000_000), (2_000_000, 3_000_000)];
    let service = only(script);
    assert_eq!((service.requests, service.outstanding_ns, service.followed_ns), (1, 900, 800));
}

#[test]
fn a_long_request_counts_although_the_end_of_a_slice_cut_it() {
    // Answered after 800 each; then stopped for longer than the slice.
    let stopped = OffCpu { why: Why::Stopped, ..off(101, 8_000, 9_700, 9_700) };
    let mut script = served()
        .accepts(101, 1, 50, 50)
        .receives(101, 1, 100, 100)
        .sends(101, 1, 900)
        .receives(101, 1, 1_000, 1_000)
        .sends(101, 1, 1_800)
        .receives(101, 1, 1_900, 1_900)
        .sends(101, 1, 2_700)
        .receives(101, 1, 8_000, 8_000)
        .off(stopped);
    script.timeline.slices = vec![(0, 9_700), (2_000_000, 3_000_000)];
    let service = only(script);
    assert_eq!((service.requests, service.followed_requests, service.followed_ns), (3, 4, 4_100));
    has(&service, "101:Stopped", 1_700);
}

#[test]
fn what_is_unread_when_a_slice_ends_may_be_answered_in_the_next_one() {
    // 101 asks 201, which is stopped for the whole first slice and answers in the second.
    let waits = OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 3, ..off(101, 160, 1_000_000, 1_000_000) };
    let stopped = OffCpu { why: Why::Stopped, ..off(201, 0, 1_000_000, 1_000_000) };
    let mut script = Script::new()
        .socket(1, served_socket(7000), 101)
        .socket(3, client_socket(6379), 101)
        .socket(4, served_socket(6379), 201)
        .pair(3, 4)
        .receives(101, 1, 100, 100)
        .sends(101, 3, 150)
        .off(waits)
        .off(stopped)
        .receives(201, 4, 150, 2_000_100)
        .sends(201, 4, 2_000_200)
        .receives(101, 3, 2_000_200, 2_000_300)
        .sends(101, 1, 2_000_400);
    script.timeline.slices = vec![(0, 1_000_000), (2_000_000, 3_000_000)];
    has(&services(&script.timeline)[0], "101:Reply > 201:Unread > 201:Stopped", 999_850);
}

#[test]
fn a_worker_that_is_given_the_request_is_no_step() {
    // 101 reads, wakes 102 which was idle, and 102 computes and replies.
    let service = only(
        served()
            .receives(101, 1, 100, 100)
            .sleeps(101, 150, 990, EPOLL, Waker::SoftIrq)
            .sleeps(102, 10, 140, FUTEX, Waker::Thread(101))
            .sends(102, 1, 500),
    );
    // 360 ns of 102 and 40 of 101: their names differ in a number only.
    assert_eq!(ways(&service), [("102:OnCpu".to_string(), 400)]);
    assert_eq!(service.path[0].hops[0].threads, 2);
}

#[test]
fn a_result_that_is_awaited_is_a_workers() {
    let service = only(
        served()
            .receives(101, 1, 100, 100)
            .sleeps(101, 150, 600, FUTEX, Waker::Thread(102))
            .sleeps(102, 10, 140, FUTEX, Waker::Thread(101))
            .sleeps(102, 200, 500, SLEEP, Waker::HardIrq)
            .sends(101, 1, 700),
    );
    has(&service, "101:Worker > 102:Timer", 300);
    has(&service, "101:Worker > 102:OnCpu", 150);
}

#[test]
fn a_thread_that_serves_nobody_is_a_worker() {
    // 102 looks for work every 500 ns.
    let service = only(
        served()
            .receives(101, 1, 100, 100)
            .sleeps(101, 150, 600, FUTEX, Waker::Thread(102))
            .sleeps(102, 90, 590, SLEEP, Waker::HardIrq)
            .sends(101, 1, 700),
    );
    has(&service, "101:Worker > 102:Timer", 440);
}

#[test]
fn a_timed_sleep_of_the_reader_hides_no_other_wait() {
    let service = only(
        serving(102)
            .receives(101, 1, 100, 100)
            .sleeps(101, 150, 600, FUTEX, Waker::Thread(102))
            .sleeps(101, 610, 700, FUTEX, Waker::HardIrq)
            .sends(101, 1, 800),
    );
    has(&service, "101:Timer", 90);
    has(&service, "101:Lock > 102:OnCpu", 450);
}

#[test]
fn an_event_loop_is_attributed_by_what_released_the_reply() {
    // The timer of this request was set at 120; in between the loop served another connection.
    let service = only(
        served()
            .socket(2, served_socket(7000), 101)
            .receives(101, 1, 100, 100)
            .sleeps(101, 120, 300, EPOLL, Waker::SoftIrq)
            .receives(101, 2, 290, 310)
            .sends(101, 2, 320)
            .sleeps(101, 330, 800, EPOLL, Waker::HardIrq)
            .sends(101, 1, 820),
    );
    has(&service, "101:Timer", 680);
    assert_eq!(service.requests, 2);
}

#[test]
fn a_reply_of_another_process_is_followed_into_it() {
    let script = served()
        .socket(3, client_socket(5432), 101)
        .socket(4, served_socket(5432), 201)
        .pair(3, 4)
        .receives(101, 1, 100, 100)
        .sends(101, 3, 120)
        .sleeps(101, 130, 800, EPOLL, Waker::SoftIrq)
        .receives(101, 3, 790, 810)
        .sends(101, 1, 850)
        .receives(201, 4, 130, 150)
        .sleeps(201, 10, 140, RECV, Waker::SoftIrq)
        .off(OffCpu { syscall: FSYNC, fd: FdKind::File, why: Why::SleptForIo, ..off(201, 200, 700, 700) })
        .sends(201, 4, 780);
    let services = services(&script.timeline);
    assert_eq!(
        services.iter().map(|s| (s.address.port(), s.followed)).collect::<Vec<_>>(),
        [(7000, false), (5432, true)]
    );
    has(&services[0], "101:Reply > 201:Disk", 500);
    has(&services[0], "101:Reply > 0:Network", 30);
    has(&services[0], "101:OnCpu", 70);
    assert_eq!(services[0].path.iter().map(|p| p.ns).sum::<u64>(), 750);
}

#[test]
fn a_blocking_call_to_an_unseen_service_ends_at_its_address() {
    let recv = OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 3, waker: Waker::SoftIrq, ..off(101, 130, 800, 800) };
    let service = only(
        served()
            .socket(3, client_socket(5432), 101)
            .receives(101, 1, 100, 100)
            .sends(101, 3, 120)
            .off(recv)
            .receives(101, 3, 790, 810)
            .sends(101, 1, 850),
    );
    has(&service, "101:Reply", 670);
    assert_eq!(service.path[0].hops[0].target, "127.0.0.1:5432");
}

#[test]
fn a_holder_that_waits_for_its_client_is_named_with_it() {
    // 301 holds a lock while its client sends nothing.
    let idle = OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 9, waker: Waker::SoftIrq, ..off(301, 50, 690, 690) };
    let service = only(
        served()
            .socket(9, served_socket(5432), 301)
            .receives(101, 1, 100, 100)
            .sleeps(101, 200, 700, FUTEX, Waker::Thread(301))
            .sends(101, 1, 800)
            .off(idle)
            .receives(301, 9, 680, 691),
    );
    has(&service, "101:Lock > 301:Client", 490);
}

#[test]
fn unread_data_is_explained_by_what_the_reader_does() {
    let service = only(
        served()
            .socket(2, served_socket(7000), 101)
            .receives(101, 2, 0, 10)
            .sleeps(101, 20, 400, SLEEP, Waker::HardIrq)
            .sends(101, 2, 410)
            .receives(101, 1, 100, 420)
            .sends(101, 1, 430),
    );
    has(&service, "101:Unread > 101:Timer", 300);
    has(&service, "101:Timer", 380);
    assert_eq!(service.outstanding_ns, 410 + 330);
}

#[test]
fn a_request_that_waits_for_another_ones_data_is_owed_by_nobody() {
    // 1 waits in BRPOP; 2 pushes.
    let service = only(
        served()
            .socket(2, served_socket(7000), 101)
            .receives(101, 1, 100, 100)
            .sleeps(101, 120, 700, EPOLL, Waker::SoftIrq)
            .receives(101, 2, 690, 710)
            .sends(101, 1, 720)
            .sends(101, 2, 730),
    );
    has(&service, "101:OtherRequest", 580);
}

#[test]
fn an_unanswered_request_ends_in_the_sleep_that_nobody_ended() {
    let service = only(served().receives(101, 1, 100, 100).sleeps(101, 200, 1_000_000, FUTEX, Waker::Unknown));
    assert_eq!((service.requests, service.unanswered, service.unanswered_longest_ns), (0, 1, 999_900));
    has(&service, "101:Lock", 999_800);
}

#[test]
fn a_wait_that_the_slice_cut_leads_to_who_ended_the_others() {
    let service = only(
        serving(301)
            .receives(101, 1, 100, 100)
            .sleeps(101, 200, 700, FUTEX, Waker::Thread(301))
            .sends(101, 1, 800)
            .receives(101, 1, 900, 900)
            .sleeps(101, 910, 1_000_000, FUTEX, Waker::Unknown)
            .sleeps(301, 950, 1_000_000, SLEEP, Waker::Unknown),
    );
    has(&service, "101:Lock > 301:Timer", 999_050);
}

#[test]
fn a_client_is_about_the_requests_it_sends() {
    let script = Script::new()
        .socket(3, client_socket(5432), 101)
        .sends(101, 3, 100)
        .receives(101, 3, 600, 610)
        .sends(101, 3, 700)
        .receives(101, 3, 900, 910);
    let service = only(script);
    assert!(service.outbound);
    assert_eq!((service.requests, service.p50_ns, service.p99_ns), (2, Some(200), Some(500)));
    has(&service, "101:Reply", 700);
}

#[test]
fn threads_that_were_not_observed_end_the_path() {
    let service =
        only(served().receives(101, 1, 100, 100).sleeps(101, 200, 700, FUTEX, Waker::Thread(999)).sends(101, 1, 800));
    has(&service, "101:Lock > 999:Unseen", 500);
    assert_eq!(service.path[0].hops[1].kind, HopKind::Unseen);
}

/// Sessions 101, 201 and 301 of a database, a process each, with a connection each.
fn sessions() -> Script {
    let mut script = Script::new();
    for (socket, tid) in [(1, 101), (2, 201), (3, 301)] {
        script = script.socket(socket, served_socket(5432), tid);
    }
    script.timeline.asked_ports = vec![5432];
    script
}

#[test]
fn a_request_waits_for_the_fork_that_makes_its_reader() {
    // 101 accepts at 100 and computes until it has made 201 at 500, which reads at 600.
    let mut script = Script::new()
        .socket(1, served_socket(7000), 101)
        .accepts(101, 1, 100, 100)
        .receives(201, 1, 150, 600)
        .sends(201, 1, 700);
    script.timeline.observed_pids.insert(200, 500);
    let service = only(script);
    has(&service, "101:Unread > 101:OnCpu", 350);
    has(&service, "201:Unread > 201:OnCpu", 100);
    has(&service, "201:OnCpu", 100);
}

#[test]
fn a_client_that_gives_up_ends_its_request() {
    let socket = Socket { closed_ns: Some(700), ..served_socket(7000) };
    let script = Script::new().socket(1, socket, 101).receives(101, 1, 100, 100);
    let service = only(script.sleeps(101, 200, 1_000_000, FUTEX, Waker::Unknown));
    assert_eq!((service.requests, service.unanswered, service.abandoned), (0, 0, 1));
    assert_eq!(service.outstanding_ns, 600);
    has(&service, "101:Lock", 500);
}

#[test]
fn a_client_that_has_closed_its_end_gets_no_reply() {
    let script = || {
        let script = Script::new().socket(1, served_socket(7000), 101).receives(101, 1, 100, 100).sends(101, 1, 900);
        script.sleeps(101, 200, 800, FUTEX, Waker::Unknown)
    };
    let left = |closed_ns| {
        let client = Socket { closed_ns, ..client_socket(7000) };
        only(script().socket(2, client, 301).pair(1, 2))
    };
    assert_eq!((left(Some(700)).requests, left(Some(700)).abandoned), (0, 1));
    assert_eq!((left(Some(900)).requests, left(Some(900)).abandoned), (1, 0));
    assert_eq!((left(None).requests, left(None).abandoned), (1, 0));
}

#[test]
fn what_comes_before_the_last_request_of_a_short_connection_opens_it() {
    let script = |opened| {
        let socket = Socket { opened, closed_ns: Some(2_000), ..served_socket(5432) };
        let script = Script::new().socket(1, socket, 101);
        script.receives(101, 1, 100, 100).sends(101, 1, 900).receives(101, 1, 1_000, 1_000).sends(101, 1, 1_050)
    };
    let times = |service: Service| service.path.iter().map(|part| (part.setup, part.ns)).collect::<Vec<_>>();
    assert_eq!(times(only(script(true))), [(true, 800), (false, 50)]);
    assert_eq!(times(only(script(false))), [(false, 850)]);
}

#[test]
fn a_reply_that_comes_after_the_client_gave_up_was_awaited() {
    // 101 polls for the reply of 201, which comes at 800; the client of 101 left at 700.
    let socket = Socket { closed_ns: Some(700), ..served_socket(7000) };
    let script = Script::new()
        .socket(1, socket, 101)
        .socket(3, client_socket(5432), 101)
        .socket(4, served_socket(5432), 201)
        .pair(3, 4)
        .receives(101, 1, 100, 100)
        .sends(101, 3, 120)
        .sleeps(101, 130, 800, EPOLL, Waker::SoftIrq)
        .receives(101, 3, 790, 810)
        .receives(201, 4, 120, 150)
        .sleeps(201, 200, 780, SLEEP, Waker::HardIrq)
        .sends(201, 4, 785);
    has(&only(script), "101:Reply > 201:Timer", 500);
}

#[test]
fn a_session_that_says_it_waits_for_a_lock_leads_to_the_idle_one() {
    let mut script = sessions().receives(101, 1, 100, 100).sleeps(101, 110, 700, EPOLL, Waker::HardIrq).sleeps(
        101,
        710,
        1_000_000,
        EPOLL,
        Waker::Unknown,
    );
    script.timeline.lock_holders.insert(101, 400);
    script.timeline.names.insert(400, Names { pid: 400, thread: "postgres".into(), process: "postgres".into() });
    script.timeline.titles.insert(400, "postgres: a b [local] idle in transaction".into());
    let service = only(script);
    has(&service, "101:Lock > 400:Client", 590 + 999_290);
    assert_eq!(service.path[0].hops[1].title, "postgres: a b [local] idle in transaction");
}

#[test]
fn an_event_loop_slept_until_another_client_sent_what_it_reads_after_its_reply() {
    for (came, way) in [(590, "101:OtherRequest"), (610, "101:Network")] {
        let script = served().socket(2, served_socket(7000), 101).receives(101, 1, 100, 100);
        let script = script.sleeps(101, 130, 600, EPOLL, Waker::SoftIrq).sends(101, 1, 620);
        let service =
            only(script.receives(101, 2, came, 630).sends(101, 2, 640).sleeps(101, 650, 900, EPOLL, Waker::SoftIrq));
        has(&service, way, 470);
    }
}

#[test]
fn data_that_nobody_reads_waits_for_who_should() {
    // 101 asks 201 over 3-4, and 201 sleeps for something else until the end.
    let script = served()
        .socket(3, client_socket(5432), 101)
        .socket(4, served_socket(5432), 201)
        .pair(3, 4)
        .receives(201, 4, 5, 5)
        .sends(201, 4, 6)
        .receives(101, 1, 100, 100)
        .sends(101, 3, 120)
        .off(OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 3, ..off(101, 130, 1_000_000, 1_000_000) })
        .sleeps(201, 10, 1_000_000, SLEEP, Waker::Unknown);
    has(&only(script), "101:Reply > 201:Unread > 201:Timer", 999_880);
}

#[test]
fn a_connection_that_nobody_accepts_waits_for_who_should() {
    let script = served()
        .socket(3, client_socket(5432), 101)
        .socket(4, served_socket(5432), 201)
        .receives(201, 4, 5, 5)
        .sends(201, 4, 6)
        .receives(101, 1, 100, 100)
        .sends(101, 3, 120)
        .off(OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 3, ..off(101, 130, 1_000_000, 1_000_000) })
        .sleeps(201, 10, 1_000_000, SLEEP, Waker::Unknown);
    has(&only(script), "101:Reply > 201:AcceptQueue > 201:Timer", 999_880);
}

mod properties {
    use proptest::prelude::*;

    use super::*;
    use parshall_evidence::timeline::{Op, Timeline};

    fn waker() -> impl Strategy<Value = Waker> {
        prop_oneof![
            Just(Waker::Unknown),
            Just(Waker::SoftIrq),
            Just(Waker::HardIrq),
            Just(Waker::KernelThread(9)),
            prop::sample::select(vec![101_u32, 102, 201, 202, 999]).prop_map(Waker::Thread),
        ]
    }

    type Sleep = (u32, u64, u64, u64, i32, Waker, bool);

    fn sleep() -> impl Strategy<Value = Sleep> {
        let tid = prop::sample::select(vec![101_u32, 102, 201, 202]);
        let syscall = prop::sample::select(vec![EPOLL, FUTEX, SLEEP, FSYNC, RECV, 0, -1, 999]);
        (tid, 0..900_000_u64, 0..100_000_u64, 0..10_000_u64, syscall, waker(), any::<bool>())
    }

    fn call() -> impl Strategy<Value = (u32, u64, u8, u64, u64)> {
        let tid = prop::sample::select(vec![101_u32, 102, 201, 202]);
        (tid, 1..6_u64, 0..3_u8, 0..1_000_000_u64, 0..50_000_u64)
    }

    fn script(sleeps: Vec<Sleep>, calls: Vec<(u32, u64, u8, u64, u64)>) -> Script {
        let mut script = Script::new();
        for (id, port, tid, serves) in [
            (1, 7000, 101, true),
            (2, 7000, 102, true),
            (3, 5432, 101, false),
            (4, 5432, 201, true),
            (5, 53, 201, false),
        ] {
            let socket = if serves { served_socket(port) } else { client_socket(port) };
            script = script.socket(id, socket, tid);
        }
        script = script.pair(3, 4);
        let mut free: std::collections::HashMap<u32, u64> = std::collections::HashMap::new();
        let mut sleeps = sleeps;
        sleeps.sort_by_key(|s| s.1);
        for (tid, begin, slept, waited, syscall, waker, io) in sleeps {
            // A thread is off the CPU once at a time.
            let begin = begin.max(free.get(&tid).copied().unwrap_or(0));
            let end = begin + slept + waited;
            free.insert(tid, end + 1);
            let why = if io { Why::SleptForIo } else { Why::Slept };
            script = script.off(OffCpu { syscall, waker, why, target: 3, ..off(tid, begin, begin + slept, end) });
        }
        for (tid, socket, op, since, length) in calls {
            let op = [Op::Receive, Op::Send, Op::Accept][usize::from(op)];
            script = match op {
                Op::Receive => script.receives(tid, socket, since, since + length),
                Op::Send => script.sends(tid, socket, since),
                Op::Accept => script.accepts(tid, socket, since, since + length),
            };
        }
        script
    }

    fn hostile_number() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(1), Just(u64::from(u32::MAX)), Just(u64::MAX), Just(1 << 47), 0..2_000_000_u64]
    }

    fn collect_numbers<'v>(value: &'v mut serde_json::Value, numbers: &mut Vec<&'v mut serde_json::Value>) {
        match value {
            serde_json::Value::Number(_) => numbers.push(value),
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| collect_numbers(item, numbers)),
            serde_json::Value::Object(fields) => fields.values_mut().for_each(|field| collect_numbers(field, numbers)),
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2 * ProptestConfig::default().cases))]
        #[test]
        fn a_saved_timeline_shows_the_same_services(
            sleeps in prop::collection::vec(sleep(), 0..60),
            calls in prop::collection::vec(call(), 0..60),
            titled in any::<bool>(),
        ) {
            let mut timeline = script(sleeps, calls).timeline;
            timeline.files.insert((100, 5), "/data/log".to_string());
            if titled {
                timeline.mutex_owners.extend([(101, 102), (102, 201)]);
            }
            let found = services(&timeline);
            let saved = serde_json::to_string(&timeline).unwrap();
            let read = serde_json::from_str::<Timeline>(&saved).unwrap();
            prop_assert_eq!(&read, &timeline);
            let small = reduced(timeline.clone());
            prop_assert_eq!(small.left_out as usize, timeline.events() - small.events());
            prop_assert_eq!(&services(&small), &found);
            prop_assert_eq!(&reduced(small.clone()), &small);
        }

        #[test]
        fn a_hostile_timeline_is_no_panic(
            sleeps in prop::collection::vec(sleep(), 0..30),
            calls in prop::collection::vec(call(), 1..30),
            changes in prop::collection::vec((any::<prop::sample::Index>(), hostile_number()), 1..8),
        ) {
            let mut json = serde_json::to_value(script(sleeps, calls).timeline).unwrap();
            let mut numbers = Vec::new();
            collect_numbers(&mut json, &mut numbers);
            for (which, value) in changes {
                let number = which.index(numbers.len());
                *numbers[number] = value.into();
            }
            if let Ok(timeline) = serde_json::from_value::<Timeline>(json) {
                services(&timeline);
                let events = timeline.events();
                prop_assert!(reduced(timeline).events() <= events);
            }
        }

        #[test]
        fn a_timeline_that_ends_sooner_is_still_one(
            sleeps in prop::collection::vec(sleep(), 0..60),
            calls in prop::collection::vec(call(), 0..60),
            until in 0..1_100_000_u64,
        ) {
            let short = clipped(script(sleeps, calls).timeline, until);
            for service in services(&short) {
                let parts: u64 = service.path.iter().map(|p| p.ns).sum();
                prop_assert_eq!(parts, service.followed_ns);
                prop_assert!(service.observed_ns <= until);
            }
        }

        #[test]
        fn parts_add_up_to_the_time_of_the_requests(
            sleeps in prop::collection::vec(sleep(), 0..60),
            calls in prop::collection::vec(call(), 0..60),
        ) {
            for service in services(&script(sleeps, calls).timeline) {
                let parts: u64 = service.path.iter().map(|p| p.ns).sum();
                prop_assert_eq!(parts, service.followed_ns);
                // Without those that were not answered, where these are the lesser part.
                prop_assert!(service.followed_ns <= service.outstanding_ns);
                prop_assert!(service.followed_ns * 2 >= service.outstanding_ns);
                prop_assert!(service.path.iter().all(|p| !p.hops.is_empty() && p.longest_ns <= p.ns));
                prop_assert!(service.p99_ns.is_none_or(|p99| service.p50_ns <= Some(p99)));
                prop_assert!(service.worked_ns <= service.outstanding_ns);
            }
        }
    }
}

/// A request that 101 read and left when it slept for a mutex of 102, which sleeps for one of 101.
fn deadlocked() -> Script {
    let mut script = serving(102).receives(101, 1, 100, 100).sleeps(101, 200, 1_000_000, FUTEX, Waker::Unknown).sleeps(
        102,
        50,
        1_000_000,
        FUTEX,
        Waker::Unknown,
    );
    script.timeline.mutex_owners.extend([(101, 102), (102, 101)]);
    script
}

#[test]
fn threads_that_hold_what_the_other_sleeps_for_are_in_a_deadlock() {
    let service = only(deadlocked());
    has(&service, "101:Lock > 102:Lock > 101:Deadlock", 999_800);
}

#[test]
fn a_mutex_whose_owner_sleeps_for_something_else_is_no_deadlock() {
    let mut script = serving(102).receives(101, 1, 100, 100).sleeps(101, 200, 1_000_000, FUTEX, Waker::Unknown).sleeps(
        102,
        50,
        1_000_000,
        SLEEP,
        Waker::Unknown,
    );
    script.timeline.mutex_owners.insert(101, 102);
    has(&only(script), "101:Lock > 102:Timer", 999_800);
}

#[test]
fn servers_with_one_thread_that_ask_each_other_are_in_a_deadlock() {
    // 101 asks 111 over 2-3, and 111 asks 101 over 4-5, which 101 never reads.
    let waits = |tid, from, socket| OffCpu {
        syscall: RECV,
        fd: FdKind::Tcp,
        target: socket,
        ..off(tid, from, 1_000_000, 1_000_000)
    };
    let script = served()
        .socket(2, client_socket(7001), 101)
        .socket(3, served_socket(7001), 111)
        .socket(4, client_socket(7000), 111)
        .socket(5, served_socket(7000), 101)
        .pair(2, 3)
        .pair(4, 5)
        .receives(101, 1, 100, 100)
        .sends(101, 2, 200)
        .off(waits(101, 200, 2))
        .receives(111, 3, 300, 300)
        .sends(111, 4, 400)
        .off(waits(111, 400, 4));
    let service = only(script);
    has(&service, "101:Reply > 111:Reply > 101:Deadlock", 999_600);
}

#[test]
fn a_holders_client_has_a_name() {
    let mut script = serving(102)
        .receives(101, 1, 100, 100)
        .sleeps(101, 200, 700, FUTEX, Waker::Thread(102))
        .sends(101, 1, 800)
        .off(OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 99, ..off(102, 150, 650, 650) });
    script.timeline.unobserved_ends.insert(99, Holder { pid: 1200, process: "psql".to_string() });
    let service = only(script);
    let leaf = service.path.iter().filter_map(|p| p.hops.last()).find(|h| h.kind == HopKind::Client);
    assert!(leaf.expect("the client is waited for").target.ends_with(" (psql 1200)"), "{service:?}");
}

/// The target of the leaf with the most time of a kind.
fn target_of(service: &Service, kind: HopKind) -> &str {
    let leaves = service.path.iter().filter_map(|part| part.hops.last());
    leaves.filter(|hop| hop.kind == kind).map(|hop| hop.target.as_str()).next().expect("it occurs")
}

/// Requests of which 101 waited for a CPU while each of `others` ran.
fn preempted_by(others: &[u32]) -> Script {
    let mut script = served();
    for (i, other) in others.iter().enumerate() {
        let at = i as u64 * 1_000;
        let waits = OffCpu { why: Why::Preempted, ran_instead_tid: *other, ..off(101, at + 200, at + 200, at + 700) };
        script = script.receives(101, 1, at + 100, at + 100).off(waits).sends(101, 1, at + 800);
    }
    script
}

#[test]
fn who_runs_instead_has_a_name_and_a_number() {
    use parshall_evidence::timeline::Names;
    let named = |others: &[(u32, u32, &str)]| {
        let tids: Vec<u32> = others.iter().map(|other| other.0).collect();
        let mut script = preempted_by(&tids);
        for &(tid, pid, thread) in others {
            let names = Names { pid, thread: thread.to_string(), process: "sh".to_string() };
            script.timeline.names.insert(tid, names);
        }
        target_of(&only(script), HopKind::RunQueue).to_string()
    };
    assert_eq!(named(&[(900, 900, "sh")]), "sh 900");
    assert_eq!(named(&[(900, 900, "sh"), (900, 900, "sh")]), "sh 900");
    assert_eq!(named(&[(901, 900, "worker-3")]), "worker-3 of sh 900");
    assert_eq!(named(&[(901, 900, "worker-3"), (902, 900, "worker-4")]), "worker-# of sh 900");
    assert_eq!(named(&[(900, 900, "sh"), (910, 910, "sh")]), "sh");
    assert_eq!(target_of(&only(preempted_by(&[900])), HopKind::RunQueue), "other processes");
}

#[test]
fn who_stopped_a_process_is_the_target_of_its_wait() {
    let stopped = || {
        let stopped = OffCpu { why: Why::Stopped, fd_number: 3, ..off(101, 200, 700, 700) };
        let mut script = served().receives(101, 1, 100, 100).off(stopped).sends(101, 1, 800);
        script.timeline.files.insert((100, 3), "/data".to_string());
        script
    };
    assert_eq!(target_of(&only(stopped()), HopKind::Stopped), "", "not what it was about to read");
    let mut script = stopped();
    let kill = Stopper::Sender { signal: "SIGSTOP".into(), comm: "kill".into(), pid: 812 };
    script.timeline.stopped_by.insert(100, kill);
    assert_eq!(target_of(&only(script), HopKind::Stopped), "kill 812 (SIGSTOP)");
}
