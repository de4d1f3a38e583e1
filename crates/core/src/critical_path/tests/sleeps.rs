//! The purpose of a sleep over descriptors, where the data that came next had not been asked for then.
use super::*;

/// 101 has accepted a connection at 10. It opens one to 22 at `opened`, hears from there at 2030, and passes that on.
fn greets(opened: u64) -> Script {
    let mut script = Script::new()
        .socket(1, served_socket(7000), 101)
        .socket(2, Socket { opened: true, opened_ns: Some(opened), ..client_socket(22) }, 101)
        .accepts(101, 1, 10, 12)
        .sleeps(101, 20, 2010, EPOLL, Waker::HardIrq)
        .sleeps(101, 2016, 2030, EPOLL, Waker::SoftIrq)
        .receives(101, 2, 2030, 2031)
        .sends(101, 1, 2040)
        .receives(101, 1, 2050, 2050)
        .sends(101, 1, 2060);
    script.timeline.slices = vec![(0, 3000)];
    script
}

#[test]
fn a_timer_after_which_the_next_server_is_asked_is_waited_for() {
    // It waits for its client to speak, for 2 ms, and then asks the server that speaks first.
    let service = only(greets(2012));
    has(&service, "101:Timer", 1990);
    has(&service, "101:Reply", 18);
    // It had asked at once: the timer only looks whether the greeting is there.
    let service = only(greets(16));
    let all = ways(&service);
    assert!(!all.iter().any(|(way, _)| way.contains("Timer")), "{all:?}");
    has(&service, "101:Reply", 2014);
}

#[test]
fn who_was_made_for_a_connection_waits_until_its_client_speaks() {
    // 101 accepts, and 201, which is made for the connection at 30, waits for a timer before it asks the server that speaks first.
    let mut script = Script::new()
        .socket(1, served_socket(7000), 101)
        .socket(2, Socket { opened: true, opened_ns: Some(2012), ..client_socket(22) }, 201)
        .accepts(101, 1, 10, 12)
        .sleeps(101, 40, 2900, 43, Waker::SoftIrq)
        .sleeps(201, 50, 2010, EPOLL, Waker::HardIrq)
        .sleeps(201, 2016, 2030, EPOLL, Waker::SoftIrq)
        .receives(201, 2, 2030, 2031)
        .sends(201, 1, 2040)
        .receives(201, 1, 2050, 2050)
        .sends(201, 1, 2060);
    script.timeline.slices = vec![(0, 3000)];
    script.timeline.syscalls.insert(43, "accept".to_string());
    script.timeline.observed_pids.insert(200, 30);
    script.timeline.asked_ports = vec![7000];
    let service = only(script);
    has(&service, "201:Timer", 1960);
    has(&service, "201:Reply", 18);
}

#[test]
fn a_sleep_before_a_question_is_not_for_its_answer() {
    // A pause made with select(), and a question that is waited for in recv().
    let asks = |asked: u64| {
        let recv = OffCpu { syscall: RECV, target: 2, waker: Waker::SoftIrq, ..off(101, asked.max(530) + 2, 600, 600) };
        let mut script = served()
            .socket(2, client_socket(9000), 101)
            .receives(101, 1, 10, 10)
            .sleeps(101, 20, 520, EPOLL, Waker::HardIrq)
            .sends(101, 2, asked)
            .off(recv)
            .receives(101, 2, 600, 602)
            .sends(101, 1, 610);
        script.timeline.slices = vec![(0, 1000)];
        only(script)
    };
    has(&asks(530), "101:Timer", 500);
    // It had asked before: the timer ended a part of the wait for the answer.
    let service = asks(15);
    assert!(!ways(&service).iter().any(|(way, _)| way.contains("Timer")), "{:?}", ways(&service));
}
