//! Waits for a turn, for a lock, and for what a peer brings: told apart by evidence.
use super::*;

#[test]
fn who_brings_a_message_holds_no_lock() {
    // 101 waits until 201 has heard from its peer, which it answers nothing: a commit that waits for a standby.
    let mut script = sessions();
    script.timeline.slices = vec![(0, 1000)];
    let script = script
        .receives(101, 1, 100, 100)
        .sleeps(101, 110, 700, EPOLL, Waker::Thread(201))
        .sends(101, 1, 710)
        .sends(201, 2, 120)
        .sleeps(201, 130, 690, EPOLL, Waker::SoftIrq)
        .receives(201, 2, 690, 692)
        .sleeps(201, 705, 990, EPOLL, Waker::SoftIrq);
    let service = only(script);
    let all = ways(&service);
    assert!(!all.iter().any(|(way, _)| way.contains("Lock")), "{all:?}");
    has(&service, "101:Worker > 201:Reply", 560);
}

#[test]
fn a_thread_of_a_runtime_sleeps_for_no_lock() {
    // 101 reads, asks 9000 and goes on; 102 is woken by 103, which got the reply, and answers.
    let parked = |tid, begin, end, by| OffCpu { waker: by, target: u64::from(tid), ..off(tid, begin, end, end) };
    let script = || {
        Script::new()
            .socket(1, served_socket(7000), 101)
            .socket(2, client_socket(9000), 101)
            .receives(101, 1, 100, 100)
            .sends(101, 2, 120)
            .sends(102, 1, 730)
            .receives(103, 2, 690, 692)
            .sends(103, 2, 695)
            .socket(3, served_socket(7000), 103)
            .receives(103, 3, 20, 20)
            .sends(103, 3, 30)
            .sleeps(103, 130, 690, EPOLL, Waker::SoftIrq)
    };
    let service = only(script().off(parked(102, 140, 700, Waker::Thread(103))));
    let all = ways(&service);
    assert!(!all.iter().any(|(way, _)| way.contains("102:Lock") || way.contains("102:Worker")), "{all:?}");
    // Where others sleep for the same futex, it is a lock.
    let shared = off(104, 300, 800, 800);
    let same = OffCpu { target: 102, ..shared };
    let service = only(script().off(parked(102, 140, 700, Waker::Thread(103))).off(same));
    assert!(ways(&service).iter().any(|(way, _)| way.starts_with("102:Lock")), "{:?}", ways(&service));
}

/// 101 has one connection to 9000 and asks for one request of its four clients at a time, each of which takes 100. It answers a client
/// before it asks for the next one, or after it.
fn one_connection(answers_first: bool) -> Script {
    let mut script = Script::new().socket(9, client_socket(9000), 101);
    for client in 1..=4 {
        script = script.socket(client, served_socket(7000), 101);
    }
    script.timeline.slices = vec![(0, 2000)];
    let client = |n: u64| 1 + n % 4;
    script = (0..4).fold(script, |script, n| script.receives(101, client(n), 50 + n, 50 + n)).sends(101, 9, 100);
    for n in 0..16u64 {
        let at = 100 + 100 * n;
        script = script.sleeps(101, at + 4, at + 40, EPOLL, Waker::SoftIrq);
        // The one that was answered last asks again.
        script = if n > 0 { script.receives(101, client(n + 3), at + 40, at + 40) } else { script };
        script = script.sleeps(101, at + 41, at + 98, EPOLL, Waker::SoftIrq).receives(101, 9, at + 98, at + 98);
        let answered = if answers_first { at + 99 } else { at + 102 };
        script = script.sends(101, client(n), answered).sends(101, 9, at + 100);
    }
    script
}

#[test]
fn requests_that_wait_for_their_turn_on_a_connection() {
    for answers_first in [true, false] {
        let service = only(one_connection(answers_first));
        let limit = &service.limits[0];
        assert_eq!((limit.next.map(|next| next.port()), limit.most), (Some(9000), 1));
        let all = ways(&service);
        let ns_of = |begin: &str| all.iter().filter(|(way, _)| way.starts_with(begin)).map(|(_, ns)| *ns).sum::<u64>();
        let (turn, own) = (ns_of("101:Turn > 101:Reply"), ns_of("101:Reply"));
        assert!(turn > 2 * own && own > 1000, "{all:?}");
    }
}

/// 101 has a pool of two connections to 9000 for its six clients. Each has one for a question of 900, resets it, which takes 100, and is
/// answered when it has given it to the next one.
fn pool_that_is_reset() -> Script {
    let mut script = Script::new().socket(8, client_socket(9000), 101).socket(9, client_socket(9000), 101);
    script = (1..=6).fold(script, |script, client| script.socket(client, served_socket(7000), 101));
    script.timeline.slices = vec![(0, 20_000)];
    script = (1..=6).fold(script, |script, client| script.receives(101, client, client, client));
    script = script.sends(101, 8, 10).sends(101, 9, 11).sleeps(101, 12, 500, EPOLL, Waker::SoftIrq);
    // Every 500, one of the connections is given on; 400 later, the other one has the answer to its question.
    for n in 1..38u64 {
        let (at, own, other) = (500 * n, 8 + n % 2, 9 - n % 2);
        script = script.receives(101, own, at, at).sends(101, own, at + 2).sends(101, (n - 1) % 6 + 1, at + 3);
        script = script.sleeps(101, at + 4, at + 20, EPOLL, Waker::SoftIrq);
        script = script.receives(101, (n - 1) % 6 + 1, at + 20, at + 20);
        script = script.sleeps(101, at + 22, at + 400, EPOLL, Waker::SoftIrq);
        script = script.receives(101, other, at + 400, at + 400).sends(101, other, at + 401);
        script = script.sleeps(101, at + 402, at + 500, EPOLL, Waker::SoftIrq);
    }
    script
}

#[test]
fn what_another_one_does_with_a_connection_before_it_is_given_on_is_its_turn() {
    let service = only(pool_that_is_reset());
    let limit = service.limits.iter().find(|limit| limit.next.is_some()).expect("a limit");
    assert_eq!(limit.most, 2, "{limit:?}");
    let all = ways(&service);
    let ns_of = |begin: &str| all.iter().filter(|(way, _)| way.starts_with(begin)).map(|(_, ns)| *ns).sum::<u64>();
    // Of 3,000, one is for its own question.
    let (turn, own) = (ns_of("101:Turn > 101:Reply"), ns_of("101:Reply"));
    assert!(turn > 3 * own / 2 && own > 20_000, "{turn} {own} {all:?}");
}

#[test]
fn a_thread_that_is_blocked_in_its_questions_reads_no_request_meanwhile() {
    // Four clients; each of their requests lies there until the question of the one before it is answered.
    let mut script = Script::new().socket(9, client_socket(9000), 101);
    for client in 1..=4 {
        script = script.socket(client, served_socket(7000), 101);
    }
    script.timeline.slices = vec![(0, 200_000_000)];
    const MS: u64 = 1_000_000;
    for n in 0..16u64 {
        let (at, client) = ((10 + 10 * n) * MS, 1 + n % 4);
        let arrived = if n < 4 { MS } else { at - 30 * MS };
        script = script.receives(101, client, arrived, at).sends(101, 9, at + MS);
        script = script.sleeps(101, at + 2 * MS, at + 8 * MS, EPOLL, Waker::SoftIrq);
        script = script.receives(101, 9, at + 8 * MS, at + 8 * MS).sends(101, client, at + 9 * MS);
    }
    let service = only(script);
    let limit = service.limits.iter().find(|limit| limit.next.is_some()).expect("a limit");
    assert!(limit.most == 1 && limit.blocks, "{limit:?}");
    let all = ways(&service);
    let ns_of = |begin: &str| all.iter().filter(|(way, _)| way.starts_with(begin)).map(|(_, ns)| *ns).sum::<u64>();
    // They lie there for the answer to another one.
    assert!(ns_of("101:Unread > 101:Reply") > 200 * MS, "{all:?}");
    // A thread that keeps to a limit of one reads the others meanwhile.
    let service = only(one_connection(true));
    assert!(!service.limits[0].blocks, "{:?}", service.limits);
}

/// 101 reads up to six requests at a time from one connection of HTTP/2, and asks 9000 for two of them at a time, for 100 each.
fn one_connection_of_many_streams() -> Script {
    use parshall_evidence::timeline::{Frame, Op, Protocol};
    let mut script = Script::new().socket(1, served_socket(7000), 101);
    script = script.socket(8, client_socket(9000), 101).socket(9, client_socket(9000), 101);
    script.timeline.slices = vec![(0, 2000)];
    let mut streams = Vec::new();
    for n in 0..6u64 {
        (script, streams) = (script.receives(101, 1, 50 + n, 50 + n), [streams, vec![n]].concat());
    }
    script = script.sends(101, 8, 70).sends(101, 9, 71);
    for n in 0..34u64 {
        let (at, back) = (120 + 50 * n, 8 + n % 2);
        script = script.sleeps(101, at - 30, at, EPOLL, Waker::SoftIrq).receives(101, back, at, at);
        // Its stream, the next one to be asked for, and a new one.
        script = script.sends(101, 1, at + 1).sends(101, back, at + 2).receives(101, 1, at + 4, at + 5);
        streams.extend([n, n + 6]);
    }
    let calls = script.timeline.calls.get_mut(&1).expect("calls");
    for (call, n) in calls.iter_mut().zip(streams) {
        let stream = 2 * n as u32 + 1;
        let frame =
            Frame { protocol: Protocol::Http2, kind: 1, flags: u8::from(call.op == Op::Send), length: 100, stream };
        call.frame = Some(frame);
    }
    script
}

#[test]
fn requests_of_one_connection_wait_for_their_turn_too() {
    let service = only(one_connection_of_many_streams());
    let limit = service.limits.iter().find(|limit| limit.next.is_some()).expect("a limit");
    assert_eq!((limit.most, service.connections), (2, 1));
    let all = ways(&service);
    let ns_of = |begin: &str| all.iter().filter(|(way, _)| way.starts_with(begin)).map(|(_, ns)| *ns).sum::<u64>();
    // Four wait while two are asked for.
    let (turn, own) = (ns_of("101:Turn > 101:Reply"), ns_of("101:Reply"));
    assert!(turn > own && own > 1000, "{all:?}");
}

/// 101 reads the requests of six clients, and each of `workers` threads asks 9000 for one at a time, sleeps for the 100 that this takes,
/// and answers it.
fn pool_of_threads(workers: u64) -> Script {
    let mut script = (1..=6).fold(Script::new(), |script, client| script.socket(client, served_socket(7000), 101));
    script.timeline.slices = vec![(0, 2000)];
    for n in 0..6 {
        script = script.receives(101, 1 + n, 50 + n, 50 + n);
    }
    script = script.sleeps(101, 60, 1990, EPOLL, Waker::SoftIrq);
    let step = 100 / workers;
    for n in 0..1800 / step {
        let (tid, back, client) = (102 + (n % workers) as u32, 10 + n % workers, 1 + n % 6);
        let at = 70 + step * n;
        script = script.socket(back, client_socket(9000), tid).sends(tid, back, at);
        let sleep = OffCpu { syscall: RECV, waker: Waker::SoftIrq, target: back, ..off(tid, at + 1, at + 95, at + 95) };
        script = script.off(sleep).receives(tid, back, at + 95, at + 95).sends(tid, client, at + 98);
        script = script.receives(101, client, at + 99, at + 99);
    }
    script
}

#[test]
fn requests_that_wait_for_a_thread_of_a_pool_that_asks() {
    let service = only(pool_of_threads(2));
    let limit = service.limits.iter().find(|limit| limit.next.is_some()).expect("a limit");
    assert_eq!(limit.most, 2);
    let turn = |service: &Service| {
        let all = ways(service);
        all.iter().filter(|(way, _)| way.contains("Turn")).map(|(_, ns)| *ns).sum::<u64>()
    };
    assert!(turn(&service) > service.followed_ns / 2, "{:?}", ways(&service));
    // As many threads as requests: none waits for another one.
    let service = only(pool_of_threads(6));
    assert_eq!(turn(&service), 0, "{:?}", ways(&service));
}

/// 101 keeps its connection to 9000 for one of four clients at a time, each of which asks two short questions, 60 apart, while it has it. Or
/// it asks nothing for them: they wait for what comes.
fn one_session(asks: bool) -> Script {
    let mut script = Script::new().socket(9, client_socket(9000), 101);
    for client in 1..=4 {
        script = script.socket(client, served_socket(7000), 101);
    }
    script.timeline.slices = vec![(0, 2000)];
    let client = |n: u64| 1 + n % 4;
    script = (0..4).fold(script, |script, n| script.receives(101, client(n), 50 + n, 50 + n));
    for n in 0..16u64 {
        let at = 100 + 100 * n;
        for at in [at, at + 60] {
            script = script.sleeps(101, at - 30, at - 1, EPOLL, Waker::SoftIrq);
            script = if at % 100 == 60 { script.receives(101, client(n), at - 1, at - 1) } else { script };
            script = if asks { script.sends(101, 9, at).receives(101, 9, at + 4, at + 4) } else { script };
            script = script.sends(101, client(n), at + 5);
        }
        script = script.receives(101, client(n), at + 66, at + 66);
    }
    script
}

#[test]
fn a_connection_that_is_kept_for_one_client_is_a_limit() {
    let service = only(one_session(true));
    let limit = service.limits.iter().find(|limit| limit.by_connections).expect("a limit");
    assert_eq!((limit.most, limit.next.map(|next| next.port())), (1, Some(9000)));
    assert!(!only(one_session(false)).limits.iter().any(|limit| limit.by_connections));
}

#[test]
fn a_session_that_waits_in_epoll_for_a_lock_leads_to_its_holder() {
    // 201 holds the lock until 400 and 101 gets it from 300, which got it from 201; each sleeps while it has it.
    let script = sessions()
        .receives(101, 1, 100, 100)
        .sleeps(101, 110, 700, EPOLL, Waker::Thread(301))
        .sleeps(101, 710, 900, EPOLL, Waker::HardIrq)
        .sends(101, 1, 910)
        .receives(301, 3, 50, 50)
        .sleeps(301, 60, 400, EPOLL, Waker::Thread(201))
        .sleeps(301, 410, 690, EPOLL, Waker::HardIrq)
        .sends(301, 3, 705)
        .receives(201, 2, 10, 10)
        .sleeps(201, 20, 390, EPOLL, Waker::HardIrq)
        .sends(201, 2, 405);
    let service = only(script);
    let all = ways(&service);
    has(&service, "101:Lock > 301:Timer", 280);
    has(&service, "301:Lock > 201:Timer", 330);
    has(&service, "101:Lock > 301:Lock > 201:Timer", 280);
    // The three sessions' own sleeps.
    let own: u64 = all.iter().filter(|(way, _)| way.ends_with(":Timer") && !way.contains('>')).map(|(_, ns)| ns).sum();
    assert_eq!(own, 190 + 280 + 370, "{all:?}");
}

#[test]
fn a_thread_that_looks_for_a_worker_at_intervals_waits_for_it() {
    // 101 polls for 102, which sleeps for a name server and wakes it in the end.
    let script = || {
        let mut script =
            Script::new().socket(1, served_socket(7000), 101).receives(101, 1, 100, 100).sends(101, 1, 910);
        script.timeline.slices = vec![(0, 1000)];
        script.sleeps(101, 110, 400, EPOLL, Waker::HardIrq).sleeps(101, 410, 700, EPOLL, Waker::HardIrq)
    };
    let worker = |script: Script| script.sleeps(102, 50, 895, SLEEP, Waker::HardIrq);
    let woken = worker(script()).sleeps(101, 710, 900, EPOLL, Waker::Thread(102));
    has(&only(woken), "101:Worker > 102:Timer", 290 + 290 + 185);
    // Where nobody ends it, it is a timer.
    let timed = worker(script()).sleeps(101, 710, 900, EPOLL, Waker::HardIrq);
    has(&only(timed), "101:Timer", 290 + 290 + 190);
}

#[test]
fn an_interpreters_lock_that_is_asked_for_at_intervals_is_its_holders() {
    // 101 wants the lock that 102 has, asks for it every 200, and sleeps for the one or the other futex of a condition variable.
    let sleep = |begin, end, target, waker| OffCpu { waker, target, syscall: FUTEX, ..off(101, begin, end, end) };
    let script = || {
        let mut script =
            Script::new().socket(1, served_socket(7000), 101).receives(101, 1, 100, 100).sends(101, 1, 910);
        script.timeline.slices = vec![(0, 1000)];
        script.socket(2, served_socket(7000), 102).off(sleep(110, 310, 0x1000, Waker::HardIrq))
    };
    let again = script().off(sleep(320, 520, 0x1004, Waker::HardIrq)).off(sleep(530, 900, 0x1000, Waker::Thread(102)));
    has(&only(again), "101:Worker > 102:OnCpu", 200 + 200 + 370);
    // It sleeps for something else then, or does something in between: that wait had ended.
    let other = script().off(sleep(320, 900, 0x2000, Waker::Thread(102)));
    has(&only(other), "101:Timer", 200);
    let asks = script().socket(3, client_socket(9000), 101).sends(101, 3, 315);
    has(&only(asks.off(sleep(320, 900, 0x1000, Waker::Thread(102)))), "101:Timer", 200);
    // 102 gives it away as soon as it is asked, and sleeps until 101 says that it has it.
    let gives = |target, by| {
        script().off(OffCpu { waker: Waker::Thread(by), target, syscall: FUTEX, ..off(102, 312, 316, 316) })
    };
    has(&only(gives(0x1050, 101)), "101:Worker > 102:OnCpu", 200);
    // It sleeps for something else, or is woken by another one.
    has(&only(gives(0x9000, 101)), "101:Timer", 200);
    has(&only(gives(0x1050, 103)), "101:Timer", 200);
    // Nobody ends it.
    let timed = script().off(sleep(320, 900, 0x1000, Waker::HardIrq));
    has(&only(timed), "101:Timer", 200 + 580);
}

const MS: u64 = 1_000_000;

/// How the threads of [`pool`] give a connection back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gives {
    /// They wake one that waits, as soon as they have the reply.
    ToOne,
    /// They wake one, which wakes the next: all look, and all but the first find nothing.
    ToAll,
    /// They sleep for 5 ms with the reply, and wake one then.
    Late,
}

/// 101 to 104 have a client each, and `most` connections to 9000 between them, which answers after 100 ms. A thread without one sleeps in
/// futex.
fn pool(most: u64, gives: Gives) -> Script {
    let mut script = (0..most).fold(Script::new(), |script, n| script.socket(11 + n, client_socket(9000), 101));
    script.timeline.slices = vec![(0, 2000 * MS)];
    for client in 1..=4u32 {
        script = script.socket(u64::from(client), served_socket(7000), 100 + client);
        script = script.receives(100 + client, u64::from(client), 1000, 1000);
    }
    let slept = |script: Script, tid: u32, from, to, by| {
        script.off(OffCpu { waker: Waker::Thread(by), ..off(tid, from, to, to) })
    };
    let mut waits: Vec<(u32, u64)> = (1..=4).map(|n| (100 + n, 2000)).collect();
    let mut free: Vec<(u64, u64, u32)> = (0..most).map(|n| (MS + n * 50 * MS, 11 + n, 0)).collect();
    while let Some((at, socket, by)) = free.iter().copied().min().filter(|(at, ..)| *at < 1800 * MS) {
        let (tid, since) = waits.remove(0);
        script = if by == 0 { script } else { slept(script, tid, since, at, by) };
        if gives == Gives::ToAll && by != 0 {
            for (n, (other, since)) in waits.iter_mut().enumerate() {
                let until = at + 10_000 * (n as u64 + 1);
                script = slept(script, *other, *since, until, if n == 0 { tid } else { tid_before(*other) });
                *since = until + 1000;
            }
        }
        let reply = at + 100 * MS;
        let asks = OffCpu {
            syscall: RECV,
            fd: FdKind::Tcp,
            target: socket,
            waker: Waker::SoftIrq,
            ..off(tid, at + 60_000, reply, reply)
        };
        script = script.sends(tid, socket, at + 50_000).off(asks).receives(tid, socket, reply, reply + 1000);
        let back = if gives == Gives::Late { reply + 5 * MS } else { reply + 10_000 };
        script = if gives == Gives::Late {
            script.sleeps(tid, reply + 2000, back - 5000, SLEEP, Waker::HardIrq)
        } else {
            script
        };
        let client = u64::from(tid - 100);
        script = script.sends(tid, client, back + 20_000).receives(tid, client, back + 30_000, back + 30_000);
        free.retain(|slot| slot.1 != socket);
        free.push((back, socket, tid));
        waits.push((tid, back + 40_000));
    }
    script
}

fn tid_before(tid: u32) -> u32 {
    if tid == 101 { 104 } else { tid - 1 }
}

#[test]
fn who_waits_until_a_connection_is_given_back_waits_for_a_turn() {
    let of = |most, gives| {
        let service = only(pool(most, gives));
        let all = ways(&service);
        let ns_of = |what: &str| all.iter().filter(|(way, _)| way.contains(what)).map(|(_, ns)| *ns).sum::<u64>();
        let limit = service.limits.iter().find(|limit| limit.next.is_some()).map(|limit| limit.most);
        assert_eq!(limit, Some(most as u32), "{:?}", service.limits);
        (ns_of(":Turn > ") as f64 / service.followed_ns as f64, ns_of(":Lock") as f64 / service.followed_ns as f64)
    };
    for gives in [Gives::ToOne, Gives::ToAll] {
        let (turn, lock) = of(2, gives);
        assert!(turn > 0.4 && lock < 0.01, "{gives:?}: {turn} {lock}");
    }
    // One that is let in at a time holds a lock, and so does who keeps what others want when the reply has come.
    for (most, gives) in [(1, Gives::ToOne), (2, Gives::Late)] {
        let (turn, lock) = of(most, gives);
        assert!(turn < 0.01 && lock > 0.4, "{most} {gives:?}: {turn} {lock}");
    }
}

/// 101 has a client on socket 1; a connection is established at 10 ms, which it accepts at 60.
fn not_accepted() -> Script {
    let mut script = Script::new().socket(1, served_socket(7000), 101).socket(2, served_socket(7000), 101);
    script.timeline.slices = vec![(0, 100 * MS)];
    script
        .receives(101, 1, MS, MS)
        .sends(101, 1, 2 * MS)
        .accepts(101, 2, 10 * MS, 60 * MS)
        .receives(101, 2, 10 * MS, 61 * MS)
        .sends(101, 2, 62 * MS)
}

/// The same, and the thread serves another connection meanwhile.
fn not_accepted_beside_others() -> Script {
    let script = not_accepted().socket(3, served_socket(7000), 101).sleeps(101, 3 * MS, 40 * MS, EPOLL, Waker::SoftIrq);
    script.receives(101, 3, 40 * MS, 41 * MS).sends(101, 3, 42 * MS)
}

#[test]
fn who_serves_one_connection_at_a_time_waits_for_its_client_first() {
    let one = not_accepted()
        .sleeps(101, 3 * MS, 50 * MS, EPOLL, Waker::SoftIrq)
        .receives(101, 1, 50 * MS, 51 * MS)
        .sends(101, 1, 52 * MS);
    has(&only(one), "101:AcceptQueue > 101:Client", 40 * MS);
}

#[test]
fn who_sleeps_over_descriptors_beside_a_connection_does_not_watch_the_listener() {
    // One of the others is closed before it accepts again.
    has(&only(not_accepted_beside_others()), "101:AcceptQueue > 101:Idle", 30 * MS);
    // A timer ends the sleep: nobody waits for that either.
    let timed = not_accepted().sleeps(101, 3 * MS, 40 * MS, EPOLL, Waker::HardIrq);
    has(&only(timed), "101:AcceptQueue > 101:Idle", 30 * MS);
    // It is woken by the connection and has other things to do: those are what is waited for.
    let woken = not_accepted().sleeps(101, 3 * MS, 10 * MS + 50_000, EPOLL, Waker::SoftIrq);
    let all = ways(&only(woken));
    assert!(!all.iter().any(|(way, _)| way.contains("Idle")), "{all:?}");
    // A thread that waits for a disk meanwhile.
    let disk = not_accepted().sleeps(101, 12 * MS, 50 * MS, 74, Waker::HardIrq);
    has(&only(disk), "101:AcceptQueue > 101:Disk", 38 * MS);
}

#[test]
fn who_accepts_in_the_turn_of_a_timer_has_waited_for_it() {
    // It watches the listener again from the end of the timer on.
    let limited = not_accepted_beside_others().sleeps(101, 43 * MS, 60 * MS - 100_000, EPOLL, Waker::HardIrq);
    has(&only(limited), "101:AcceptQueue > 101:Timer", 46 * MS + 900_000);
    // The end of a connection lets the next one in.
    let full = not_accepted_beside_others().sleeps(101, 43 * MS, 60 * MS - 100_000, EPOLL, Waker::SoftIrq);
    has(&only(full), "101:AcceptQueue > 101:Idle", 46 * MS + 900_000);
}

#[test]
fn the_end_of_a_connection_is_not_what_a_request_waited_for() {
    // Two requests in one loop: each asks 9000, and hears a little more after the reply before it answers.
    let mut script = Script::new();
    script.timeline.slices = vec![(0, 1000)];
    for (client, server) in [(1, 8), (2, 9)] {
        script = script.socket(client, served_socket(7000), 101).socket(server, client_socket(9000), 101);
    }
    let script = script
        .receives(101, 1, 100, 100)
        .sends(101, 8, 110)
        .sleeps(101, 120, 150, EPOLL, Waker::SoftIrq)
        .receives(101, 2, 150, 150)
        .sends(101, 9, 160)
        .sleeps(101, 170, 800, EPOLL, Waker::SoftIrq)
        .receives(101, 8, 800, 800)
        .sleeps(101, 805, 830, EPOLL, Waker::SoftIrq)
        .sends(101, 1, 835)
        .sleeps(101, 840, 900, EPOLL, Waker::SoftIrq)
        .receives(101, 9, 900, 900)
        .sends(101, 2, 910);
    let service = only(script);
    let all = ways(&service);
    let network: u64 = all.iter().filter(|(way, _)| way == "101:Network").map(|(_, ns)| ns).sum();
    assert!(network < 60, "{all:?}");
    has(&service, "101:Reply", 690 + 740);
}
