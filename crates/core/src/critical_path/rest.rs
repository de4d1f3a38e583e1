//! Requests of which a part comes late: whose time that is, told by what the client does meanwhile.
use parshall_evidence::timeline::{OffCpu, Waker};
use parshall_evidence::{FdKind, HopKind, Service};

use super::services;
use crate::testkit::timeline::{Script, client_socket, off, served_socket};

const EPOLL: i32 = 232;
const SLEEP: i32 = 35;
const RECV: i32 = 45;
const MS: u64 = 1_000_000;
const END: u64 = 3_000 * MS;

/// 101 serves socket 1, whose other end 2 is that of 201. The head comes at 10 ms and the rest at 1,010 ms, and is answered at once.
fn half_sent() -> Script {
    let mut script = Script::new()
        .socket(1, served_socket(7000), 101)
        .socket(2, client_socket(7000), 201)
        .pair(1, 2)
        .sends(201, 2, 9 * MS)
        .receives(101, 1, 10 * MS, 10 * MS)
        .sends(201, 2, 1_009 * MS)
        .receives(101, 1, 1_010 * MS, 1_011 * MS)
        .sends(101, 1, 1_012 * MS)
        .receives(201, 2, 1_012 * MS, 1_013 * MS);
    script.timeline.slices = vec![(0, END)];
    script.timeline.asked_ports = vec![7000];
    script
}

fn asleep(script: Script, syscall: i32, waker: Waker) -> Service {
    first(&script.sleeps(201, 9 * MS + 100, 1_008 * MS, syscall, waker))
}

fn first(script: &Script) -> Service {
    services(&script.timeline).into_iter().next().expect("a service")
}

/// The kinds of the hops of the largest part, and the process of its last one.
fn largest(service: &Service) -> (Vec<HopKind>, String) {
    let hops = &service.path[0].hops;
    (hops.iter().map(|hop| hop.kind).collect(), hops.last().map_or_else(String::new, |hop| hop.process.clone()))
}

#[test]
fn a_client_that_waits_for_the_service_meanwhile_is_asked() {
    let (kinds, process) = largest(&asleep(half_sent(), EPOLL, Waker::SoftIrq));
    assert_eq!((kinds, process.as_str()), (vec![HopKind::Client, HopKind::Reply], "p200"));
    let recv = OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 2, ..off(201, 9 * MS + 100, 1_008 * MS, 1_008 * MS) };
    assert_eq!(largest(&first(&half_sent().off(recv))).0, [HopKind::Client, HopKind::Reply]);
}

#[test]
fn a_timer_of_the_client_ends_its_wait_for_the_service() {
    let (kinds, process) = largest(&asleep(half_sent(), EPOLL, Waker::HardIrq));
    assert_eq!((kinds, process.as_str()), (vec![HopKind::Client, HopKind::Timer], "p200"));
}

/// Uploads over connections of their own, the rests of which come after this many ms. Their clients were not observed.
fn uploads(rests: [u64; 3]) -> Service {
    let mut script = Script::new();
    for (n, rest) in (0..).zip(rests) {
        let (socket, begin) = (10 + n, (10 + 300 * n) * MS);
        script = script
            .socket(socket, served_socket(7000), 101 + n as u32)
            .receives(101 + n as u32, socket, begin, begin)
            .receives(101 + n as u32, socket, begin + rest * MS, begin + rest * MS + 1_000)
            .sends(101 + n as u32, socket, begin + rest * MS + MS);
    }
    script.timeline.slices = vec![(0, END)];
    first(&script)
}

#[test]
fn rests_that_come_after_the_same_time_were_held_by_a_timer() {
    let of = |rests| largest(&uploads(rests)).0;
    assert_eq!(of([1_000, 1_001, 1_002]), [HopKind::Client, HopKind::Timer]);
    assert_eq!(of([800, 1_001, 1_250]), [HopKind::Client, HopKind::Unseen], "as the network or the client has it");
}

#[test]
fn a_client_with_something_else_to_do_is_its_own_matter() {
    assert_eq!(largest(&asleep(half_sent(), SLEEP, Waker::HardIrq)).0, [HopKind::Client]);
    // It computes.
    assert_eq!(largest(&first(&half_sent())).0, [HopKind::Client]);
    // It waits for somebody else.
    let recv = OffCpu { syscall: RECV, fd: FdKind::Tcp, target: 9, ..off(201, 9 * MS + 100, 1_008 * MS, 1_008 * MS) };
    assert_eq!(largest(&first(&half_sent().off(recv))).0, [HopKind::Client]);
}

#[test]
fn a_client_that_was_not_observed_cannot_be_asked() {
    let mut script = half_sent();
    script.timeline.observed_pids.remove(&200);
    assert_eq!(largest(&first(&script)).0, [HopKind::Client, HopKind::Unseen]);
}

#[test]
fn an_event_loop_that_serves_others_meanwhile_waits_for_the_rest_too() {
    let mut script = half_sent().socket(3, served_socket(7000), 101);
    for at in (20..1_000).step_by(100) {
        script = script.sleeps(101, (at - 9) * MS, at * MS, EPOLL, Waker::SoftIrq);
        script = script.receives(101, 3, at * MS, at * MS).sends(101, 3, at * MS + 1_000);
    }
    let service = asleep(script, EPOLL, Waker::SoftIrq);
    assert_eq!(largest(&service).0, [HopKind::Client, HopKind::Reply]);
    assert!(service.path[0].ns >= 990 * MS, "{service:?}");
}

#[test]
fn messages_that_are_owed_no_reply_are_no_halves() {
    // Three of them, before something is sent.
    let several = half_sent().receives(101, 1, 500 * MS, 500 * MS);
    assert_eq!(largest(&asleep(several, EPOLL, Waker::HardIrq)).0, [HopKind::OnCpu]);
    // A frame of a protocol, and a request after the client has thought.
    let mut frame = half_sent();
    frame.timeline.calls.get_mut(&1).expect("calls")[0].bytes = 35;
    assert_eq!(largest(&asleep(frame, EPOLL, Waker::HardIrq)).0, [HopKind::OnCpu]);
}

#[test]
fn data_that_is_pushed_is_no_answer_to_what_came_last() {
    // Two messages that are owed no reply, and half a second after the second something for this client.
    let mut pushed = half_sent();
    let calls = pushed.timeline.calls.get_mut(&1).expect("calls");
    calls.iter_mut().filter(|call| call.at_ns == 1_012 * MS).for_each(|call| {
        (call.since_ns, call.at_ns) = (1_500 * MS, 1_500 * MS);
    });
    let parts = largest(&asleep(pushed, EPOLL, Waker::HardIrq)).0;
    assert!(!parts.contains(&HopKind::Reply) && !parts.contains(&HopKind::Unseen), "{parts:?}");
}

#[test]
fn an_upload_that_keeps_coming_is_no_half() {
    let mut upload = half_sent();
    for at in (60..1_000).step_by(50) {
        upload = upload.receives(101, 1, at * MS, at * MS);
    }
    let parts = largest(&asleep(upload, EPOLL, Waker::HardIrq)).0;
    assert!(!parts.contains(&HopKind::Reply) && !parts.contains(&HopKind::Unseen), "{parts:?}");
}

#[test]
fn both_in_a_receive_on_one_connection_wait_for_each_other() {
    let receives =
        |tid, socket, from| OffCpu { syscall: RECV, fd: FdKind::Tcp, target: socket, ..off(tid, from, END, END) };
    let script = |client: OffCpu| {
        let mut script = Script::new()
            .socket(1, served_socket(7000), 101)
            .socket(2, client_socket(7000), 201)
            .pair(1, 2)
            .sends(201, 2, 9 * MS)
            .receives(101, 1, 10 * MS, 10 * MS)
            .off(receives(101, 1, 11 * MS))
            .off(client);
        script.timeline.slices = vec![(0, END)];
        script.timeline.asked_ports = vec![7000];
        script
    };
    assert_eq!(largest(&first(&script(receives(201, 2, 10 * MS)))).0, [HopKind::Client, HopKind::Reply]);
    // It sleeps, or watches many descriptors.
    let other = OffCpu { syscall: EPOLL, ..off(201, 10 * MS, END, END) };
    assert_eq!(largest(&first(&script(other))).0, [HopKind::Client]);
}
