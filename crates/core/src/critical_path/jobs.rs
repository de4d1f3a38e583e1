//! Jobs that a broker passes to workers, which are its clients too: timelines made by hand, and those beside them in which clients wait for
//! what others bring.
use parshall_evidence::timeline::{Op, Waker};
use parshall_evidence::{HopKind, Service};

use super::services;
use crate::testkit::timeline::{Script, client_socket, off, served_socket};

const EPOLL: i32 = 232;
const POLL: i32 = 7;
const MS: u64 = 1_000_000;
const US: u64 = 1_000;

/// 101 serves two clients, 201 and 211, and a worker, 301, which has one job at a time in its hands, for 50 ms each. `announced`: the broker
/// says at once that it has a job.
fn jobs(announced: bool) -> Service {
    let mut script = Script::new();
    for (served, asks, tid) in [(1, 2, 201), (3, 4, 211), (5, 6, 301)] {
        script =
            script.socket(served, served_socket(7000), 101).socket(asks, client_socket(7000), tid).pair(served, asks);
    }
    let mut calls: [Vec<(u32, Op, u64, u64)>; 3] = Default::default();
    for n in 0..20_u64 {
        let (client, done) = ((n % 2) as usize, (n + 1) * 51 * MS);
        // The worker brings a result and has the next job at once; its client hears of the result, and submits its next one.
        calls[2].extend([(101, Op::Receive, done, done), (101, Op::Send, done + 100 * US, done + 100 * US)]);
        script = script.sleeps(101, done - 49 * MS, done, EPOLL, Waker::SoftIrq);
        calls[client].push((101, Op::Send, done + 200 * US, done + 200 * US));
        calls[client].push((101, Op::Receive, done + 300 * US, done + 300 * US));
        if announced {
            calls[client].push((101, Op::Send, done + 450 * US, done + 450 * US));
        }
    }
    for (socket, calls) in [1, 3, 5].into_iter().zip(calls) {
        script = script.calls(socket, calls);
    }
    script.timeline.slices = vec![(0, 1_100 * MS)];
    script.timeline.asked_ports = vec![7000];
    services(&script.timeline).into_iter().next().expect("a service")
}

fn of(service: &Service, kind: HopKind) -> u64 {
    let parts = service.path.iter().filter(|p| p.hops.last().is_some_and(|hop| hop.kind == kind));
    parts.map(|part| part.ns / MS).sum()
}

#[test]
fn a_job_waits_for_the_worker_behind_its_broker() {
    let service = jobs(true);
    let (worker, others) = (of(&service, HopKind::Reply), of(&service, HopKind::OtherRequest));
    assert!(worker > 10 * others && worker > 1_500, "{worker} {others}: {:#?}", service.path);
    // A message that no earlier one announced may be news: nobody owes it sooner.
    let service = jobs(false);
    assert_eq!(of(&service, HopKind::Reply), 0, "{:#?}", service.path);
}

/// A connection that waits to be accepted while 101 sleeps in this call, and is answered 10 ms after 101 has had an answer from 9000.
fn kept_out(syscall: i32) -> Vec<HopKind> {
    let mut script = Script::new()
        .socket(1, served_socket(7000), 101)
        .socket(2, client_socket(9000), 101)
        .socket(3, served_socket(7000), 101)
        .receives(101, 3, MS, MS)
        .sends(101, 2, 2 * MS)
        .receives(101, 2, 92 * MS, 92 * MS)
        .sends(101, 3, 93 * MS)
        .accepts(101, 1, 4 * MS, 94 * MS)
        .receives(101, 1, 4 * MS, 95 * MS)
        .sends(101, 1, 105 * MS);
    script.timeline.syscalls.insert(POLL, "poll".to_owned());
    script = script.off(parshall_evidence::timeline::OffCpu {
        syscall,
        waker: Waker::SoftIrq,
        ..off(101, 3 * MS, 91 * MS, 91 * MS)
    });
    script.timeline.slices = vec![(0, 200 * MS)];
    script.timeline.asked_ports = vec![7000];
    let service = services(&script.timeline).into_iter().next().expect("a service");
    let queue = service.path.iter().find(|p| p.hops.len() > 1 && p.hops[0].kind == HopKind::AcceptQueue);
    queue.map_or_else(Vec::new, |part| part.hops.iter().map(|hop| hop.kind).collect())
}

#[test]
fn who_waits_for_one_answer_is_not_idle_while_others_wait_to_be_accepted() {
    assert_eq!(kept_out(POLL)[..2], [HopKind::AcceptQueue, HopKind::Reply]);
    // An event loop would be woken for its listener if it watched that: it is full.
    assert_eq!(kept_out(EPOLL), [HopKind::AcceptQueue, HopKind::Idle]);
}
