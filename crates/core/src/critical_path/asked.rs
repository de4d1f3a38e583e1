//! Waits for an answer that a timer ended, or that nothing ended in the slice: timelines made by hand, and those beside them in which a
//! timer is a timer.
use parshall_evidence::timeline::{OffCpu, Socket, Waker};
use parshall_evidence::{HopKind, Service};

use super::{reduced, services};
use crate::testkit::timeline::{Script, client_socket, off, served_socket};

const EPOLL: i32 = 232;
const END: u64 = 1_000_000;

fn name_server() -> Socket {
    Socket { udp: true, ..client_socket(53) }
}

/// 101 has read a request at 100.
fn served() -> Script {
    Script::new().socket(1, served_socket(7000), 101).receives(101, 1, 100, 100)
}

fn first(script: &Script) -> Service {
    services(&script.timeline).into_iter().next().expect("a service")
}

/// Time of the parts that end in a kind of hop, and the target of one of them.
fn spent(script: &Script, kind: HopKind) -> (u64, String) {
    let service = first(script);
    let parts = || service.path.iter().filter(|part| part.hops.last().is_some_and(|hop| hop.kind == kind));
    let target = parts().filter_map(|part| part.hops.last()).map(|hop| hop.target.clone()).next();
    (parts().map(|part| part.ns).sum(), target.unwrap_or_default())
}

#[test]
fn a_name_server_that_does_not_answer_is_waited_for() {
    let tries = |script: Script| {
        let script = script.socket(3, name_server(), 101).sends(101, 3, 120);
        script.sleeps(101, 130, 400, EPOLL, Waker::HardIrq).sends(101, 3, 410)
    };
    let gives_up = tries(served()).sleeps(101, 420, 800, EPOLL, Waker::HardIrq).sends(101, 1, 850);
    assert_eq!(spent(&gives_up, HopKind::NameServer), (270 + 380, "127.0.0.1:53".to_owned()));
    assert_eq!(spent(&gives_up, HopKind::Timer).0, 0);
    // The second try is answered, and with it the first one was a wait for the same.
    let answered = tries(served()).sleeps(101, 420, 800, EPOLL, Waker::SoftIrq).receives(101, 3, 790, 810);
    assert_eq!(spent(&answered.sends(101, 1, 850), HopKind::NameServer).0, 270 + 390);
    // The slice ends within the wait.
    let open = tries(served()).off(OffCpu { syscall: EPOLL, ..off(101, 420, END, END) });
    assert_eq!(spent(&open, HopKind::NameServer).0, 270 + END - 410);
}

#[test]
fn an_event_loop_that_a_name_server_blocks_waits_for_it_with_each_request() {
    // The loop serves another request meanwhile: the wait is that of a function that does nothing else.
    let script = served()
        .socket(2, served_socket(7000), 101)
        .socket(3, name_server(), 101)
        .receives(101, 2, 110, 110)
        .sends(101, 3, 120)
        .sleeps(101, 130, 800, EPOLL, Waker::HardIrq)
        .sends(101, 2, 810)
        .sends(101, 1, 850);
    let (ns, target) = spent(&script, HopKind::NameServer);
    assert!(ns >= 2 * 670 && target == "127.0.0.1:53", "{ns} {target}");
}

#[test]
fn a_server_that_does_not_answer_in_time_is_waited_for() {
    let asks = |socket: Socket| {
        let script = served().socket(3, socket, 101).sends(101, 3, 120);
        script.sleeps(101, 130, 800, EPOLL, Waker::HardIrq)
    };
    // It closes the connection then, or asks again.
    let gives_up = asks(Socket { closed_ns: Some(820), ..client_socket(5432) }).sends(101, 1, 850);
    assert_eq!(spent(&gives_up, HopKind::Reply), (670, "127.0.0.1:5432".to_owned()));
    let again = asks(client_socket(5432)).sends(101, 3, 810).sends(101, 1, 850);
    assert_eq!(spent(&again, HopKind::Reply).0, 670);
    // It has had answers there.
    let late = asks(client_socket(5432)).sends(101, 1, 850).receives(101, 3, 900, 910);
    assert_eq!(spent(&late, HopKind::Reply).0, 670);
}

#[test]
fn a_connection_that_is_given_up_when_a_timer_ends_is_waited_for() {
    let tries = |opened_ns, closed_ns| {
        let socket =
            Socket { opened: true, opened_ns: Some(opened_ns), closed_ns: Some(closed_ns), ..client_socket(443) };
        let script = served().socket(3, socket, 101).socket(4, client_socket(443), 101);
        let script = script.sleeps(101, 105, 110, EPOLL, Waker::SoftIrq).sleeps(101, 130, 800, EPOLL, Waker::HardIrq);
        script.sends(101, 4, 830).receives(101, 4, 835, 840).sends(101, 1, 850).sleeps(
            101,
            860,
            870,
            EPOLL,
            Waker::SoftIrq,
        )
    };
    let given_up = tries(120, 810);
    assert_eq!(spent(&given_up, HopKind::Connect), (670, "127.0.0.1:443".to_owned()));
    assert_eq!(first(&given_up), services(&reduced(given_up.timeline.clone())).remove(0));
    // It was begun before the thread slept for something else, or was closed much later: it did not wait for that one.
    for (opened_ns, closed_ns) in [(107, 810), (120, 900_000), (120, 700)] {
        let other = tries(opened_ns, closed_ns);
        assert_eq!(
            (spent(&other, HopKind::Connect).0, spent(&other, HopKind::Timer).0),
            (0, 670),
            "{opened_ns} {closed_ns}"
        );
    }
    // A connection on which something was sent was opened, and whatever the timer ended, it was no attempt.
    assert!(spent(&tries(120, 810).sends(101, 3, 125), HopKind::Connect).0 < 670);
}

#[test]
fn a_server_on_this_host_that_does_not_answer_in_time_is_followed() {
    let script = served()
        .socket(3, Socket { closed_ns: Some(820), ..client_socket(5432) }, 101)
        .socket(4, served_socket(5432), 201)
        .pair(3, 4)
        .sends(101, 3, 120)
        .sleeps(101, 130, 800, EPOLL, Waker::HardIrq)
        .sends(101, 1, 850)
        .receives(201, 4, 120, 130)
        .sleeps(201, 140, 900, 35, Waker::HardIrq);
    assert_eq!(spent(&script, HopKind::Timer).0, 660);
    assert_eq!(first(&script).path[0].hops[0].kind, HopKind::Reply);
}

#[test]
fn what_is_owed_no_answer_leaves_a_timer_a_timer() {
    let sleep = |script: Script| script.sleeps(101, 130, 800, EPOLL, Waker::HardIrq).sends(101, 1, 850);
    // Figures are sent to a collector, which never answers.
    let figures = sleep(served().socket(3, Socket { udp: true, ..client_socket(8125) }, 101).sends(101, 3, 120));
    assert_eq!(spent(&figures, HopKind::Timer).0, 670);
    assert_eq!(spent(&figures, HopKind::Reply).0, 0);
    // The last question was answered before the sleep.
    let answered = served().socket(3, name_server(), 101).sends(101, 3, 110).receives(101, 3, 115, 120);
    assert_eq!(spent(&sleep(answered), HopKind::Timer).0, 670);
    // An event loop asks for another request, and its timer is this one's.
    let other = served()
        .socket(2, served_socket(7000), 101)
        .socket(3, client_socket(5432), 101)
        .receives(101, 2, 110, 110)
        .sends(101, 3, 120)
        .sleeps(101, 130, 800, EPOLL, Waker::HardIrq)
        .sends(101, 1, 850)
        .receives(101, 3, 900, 910)
        .sends(101, 2, 950);
    assert!(spent(&other, HopKind::Timer).0 >= 670, "{:?}", first(&other));
}
