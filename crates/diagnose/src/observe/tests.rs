//! Windows of one session, one after the other, on a real service. Says so where a rung is not possible.
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parshall_evidence::{Capture, FlowRecord, Role, ThreadRecord};
use parshall_testkit::skip;

use super::*;
use crate::event;
use crate::subject::resolve;
use crate::testkit::child::{self, REPLY_BYTES, REQUEST_BYTES, Running};
use crate::testkit::session::{self, Loaded, Never};

const WINDOW_MS: u64 = 700;

/// A window in which the child does what it is told, and which ends when that is done, [`WINDOW_MS`] after its begin at the earliest.
pub(super) fn window(session: &mut Session, child: &mut Running, orders: &[&str]) -> Capture {
    let done = AtomicBool::new(false);
    let done = &done;
    thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        scope.spawn(move || {
            begins.recv().expect("the window begins");
            let begun = Instant::now();
            thread::sleep(Duration::from_millis(100));
            orders.iter().for_each(|order| child.tell(order));
            thread::sleep(Duration::from_millis(WINDOW_MS).saturating_sub(begun.elapsed()));
            done.store(true, Ordering::Release);
        });
        let on_begin = || begun.send(()).map_err(anyhow::Error::from);
        session.window(Duration::from_secs(60), &Loaded(done), on_begin).expect("a capture")
    })
}

/// The ends of a connection, the service's first, by the number of requests that went over it.
fn served(capture: &Capture, requests: u64) -> Vec<&FlowRecord> {
    let (asked, replied) = (requests * REQUEST_BYTES as u64, requests * REPLY_BYTES as u64);
    // Received data: the acknowledgement of the last reply before a window may come within it.
    let got = |bytes: u64| capture.flows.iter().filter(move |flow| flow.received_bytes() == bytes);
    let mut found: Vec<&FlowRecord> = got(asked).collect();
    assert!(found.iter().all(|flow| flow.role == Role::Server), "{found:?}");
    found.extend(got(replied));
    found
}

/// Accounts sum to the part of the window that they cover.
fn ledgers_sum_up(capture: &Capture) {
    let sliced = capture.slices.observed_ns as f64 / capture.window_ns as f64;
    let sliced_flows = if capture.rung == Rung::Btf { sliced } else { 1.0 };
    for flow in &capture.flows {
        assert_eq!(flow.cells.iter().map(|cell| cell.ns).sum::<u64>(), flow.observed_ns);
    }
    let flows = capture
        .flows
        .iter()
        .map(|flow| (flow.observed_ns, (flow.end_ns - flow.begin_ns) as f64 * sliced_flows, format!("{flow:?}")));
    let threads = capture.threads.iter().map(|thread| {
        let off: u64 = thread.off_cpu.iter().map(|cell| cell.ns).sum();
        assert_eq!(thread.on_cpu_ns + off, thread.observed_ns, "{thread:?}");
        (thread.observed_ns, (thread.end_ns - thread.begin_ns) as f64 * sliced, format!("{thread:?}"))
    });
    for (observed_ns, covered_ns, what) in flows.chain(threads) {
        let error = (observed_ns as f64 - covered_ns).abs() / capture.window_ns as f64;
        assert!(error < 0.01, "{error} of {:?}: {what}", capture.slices);
    }
    let end = |stall: &parshall_evidence::ThreadStall| stall.begin_ns + stall.ns;
    let late = capture.thread_stalls.iter().find(|stall| end(stall) > capture.window_ns + 1_000_000);
    assert_eq!(late, None, "a stall outside of the window");
}

/// Bytes that all serving threads received, by the results of their calls.
fn received_by_servers(capture: &Capture) -> u64 {
    let serves = |thread: &&ThreadRecord| thread.comm == "serves";
    let calls = capture.threads.iter().filter(serves).flat_map(|thread| &thread.syscalls);
    calls.filter(|call| ["read", "recvfrom"].contains(&call.name.as_str())).map(|call| call.bytes).sum()
}

fn two_windows(rung: Rung) {
    let _turn = session::turn();
    let mut child = child::start("obeys");
    let mut session = session::open(&Select::Pids(vec![child.pid()]), Some(rung));
    let first = window(&mut session, &mut child, &["ask 0 40"]);
    if first.rung != rung {
        return skip("two windows", &format!("not on the {} rung: {:?}", rung.as_str(), first.blind));
    }
    child.tell("ask 0 17");
    child.tell("open");
    child.tell("ask 1 5");
    let second = window(&mut session, &mut child, &["ask 0 20", "ask 1 30"]);
    assert_eq!(second.rung, rung, "{:?}", second.blind);
    for capture in [&first, &second] {
        assert!(capture.window_ns >= WINDOW_MS * 1_000_000);
        ledgers_sum_up(capture);
    }
    assert_eq!((first.flows.len(), served(&first, 40).len()), (2, 2), "{:?}", first.flows);
    let counts = (second.flows.len(), served(&second, 20).len(), served(&second, 30).len());
    assert_eq!(
        counts,
        (4, 2, 2),
        "a connection that was opened between the windows is in the second: {:?}",
        second.flows
    );
    assert!(second.flows.iter().all(|flow| flow.begin_ns == 0), "{:?}", second.flows);
    assert_eq!((second.net.opened, second.net.closed), (0, 0), "{:?}", second.net);
    // Events between the slices of a busy host's window cannot be counted.
    let whole = |capture: &Capture| rung > Rung::Procfs && capture.slices.count == 1 && capture.probe.lost_events == 0;
    // The first receive of each connection is not counted where it was called before the window, as it is unless the host is busy.
    for (capture, requests, connections) in [(&first, 40, 1), (&second, 20 + 30, 2)] {
        let received = received_by_servers(capture);
        let bytes = |requests| requests * REQUEST_BYTES as u64;
        let range = bytes(requests - connections)..=bytes(requests);
        assert!(!whole(capture) || range.contains(&received), "{received}, not {range:?}: {:?}", capture.threads);
    }
    for (capture, requests) in [(&first, 40), (&second, 20), (&second, 30)] {
        if rung == Rung::Btf && whole(capture) {
            let calls: Vec<_> =
                served(capture, requests).iter().map(|flow| (flow.calls.sends, flow.calls.recvs)).collect();
            assert_eq!(calls, [(requests, requests); 2], "{:?}", capture.flows);
        }
    }
}

#[test]
fn windows_of_the_btf_rung_do_not_know_of_each_other() {
    two_windows(Rung::Btf);
}

#[test]
fn windows_of_the_tracepoint_rung_do_not_know_of_each_other() {
    two_windows(Rung::Tracepoint);
}

#[test]
fn windows_of_the_procfs_rung_do_not_know_of_each_other() {
    two_windows(Rung::Procfs);
}

#[test]
fn a_process_that_is_started_between_windows_is_in_the_second() {
    let _turn = session::turn();
    let mut child = child::start("obeys");
    let mut session = session::open(&Select::Pids(vec![child.pid()]), None);
    let first = window(&mut session, &mut child, &[]);
    assert_eq!(first.subject.pids, [child.pid()]);
    child.tell("fork");
    let second = window(&mut session, &mut child, &[]);
    assert_eq!(second.subject.pids.len(), 2, "{:?}", second.subject);
    let theirs = |thread: &&ThreadRecord| thread.pid == second.subject.pids[1];
    let sleeps = second.threads.iter().find(theirs).expect("its thread");
    assert_eq!((sleeps.comm.as_str(), sleeps.begin_ns), ("sleep", 0), "{sleeps:?}");
    ledgers_sum_up(&second);
}

#[test]
fn who_is_followed_stays_followed_until_it_ends() {
    let _turn = session::turn();
    let (mut child, mut upstream) = (child::start("obeys"), child::start("idle"));
    child.tell(&format!("connect {}", upstream.port));
    let mut session = session::open(&Select::Pids(vec![child.pid()]), Some(Rung::Btf));
    // On a busy host it connects, and is looked for, only within one of the first windows.
    for _ in 0..10 {
        let capture = session::window(&mut session, 300, &Never);
        if capture.followed.iter().any(|of| of.since_ns == 0) {
            break;
        }
    }
    for _ in 0..2 {
        let capture = session::window(&mut session, 300, &Never);
        if capture.rung != Rung::Btf {
            return skip("followed processes of two windows", &format!("{:?}", capture.blind));
        }
        let followed: Vec<(u32, u64)> = capture.followed.iter().map(|of| (of.pid, of.since_ns)).collect();
        assert_eq!(followed, [(upstream.pid(), 0)], "from the begin of each window");
        assert!(capture.threads.iter().all(|thread| thread.pid == child.pid()), "{:?}", capture.threads);
    }
    upstream.end();
    let capture = session::window(&mut session, 300, &Never);
    assert!(capture.followed.is_empty(), "{:?}", capture.followed);
}

#[test]
fn a_subject_that_ends_between_windows_ends_the_next_one_at_once() {
    let _turn = session::turn();
    for rung in [Rung::Btf, Rung::Tracepoint, Rung::Procfs] {
        let mut child = child::start("obeys");
        let resolved = resolve(&Select::Pids(vec![child.pid()])).expect("it runs");
        let stop = Until::new(&resolved).expect("signals can be taken");
        let mut session = session::open(&Select::Pids(vec![child.pid()]), Some(rung));
        let first = session::window(&mut session, 300, &stop);
        assert!(!stop.subject_gone() && !first.threads.is_empty(), "{first:?}");
        child.end();
        for _ in 0..2 {
            let began = Instant::now();
            let nothing = session::window(&mut session, 60_000, &stop);
            assert!(stop.subject_gone() && began.elapsed() < Duration::from_secs(20));
            assert!(nothing.threads.is_empty() && nothing.flows.is_empty() && nothing.window_ns < 20_000_000_000);
            assert_eq!(nothing.rung, first.rung, "{:?}", nothing.blind);
        }
    }
}

#[test]
fn an_error_at_the_begin_ends_the_window() {
    let _turn = session::turn();
    let child = child::start("idle");
    let mut session = session::open(&Select::Pids(vec![child.pid()]), None);
    let refused = session.window(Duration::from_secs(60), &Never, || anyhow::bail!("the gate is shut"));
    assert_eq!(refused.expect_err("it cannot begin").to_string(), "the gate is shut");
    assert!(session::window(&mut session, 200, &Never).window_ns >= 200_000_000, "the next one can");
}

/// Counts calls of the subject by event, in two windows of one session.
fn events_of(rung: Rung) {
    let _turn = session::turn();
    let mut child = child::start("obeys");
    let events = event::find(&["raw_syscalls:sys_enter".to_owned()]).expect("every kernel has it");
    let mut session = session::open_with(&Select::Pids(vec![child.pid()]), Some(rung), events);
    for requests in [40, 15] {
        let capture = window(&mut session, &mut child, &[&format!("ask 0 {requests}")]);
        if capture.rung != rung {
            return skip("events", &format!("not on the {} rung: {:?}", rung.as_str(), capture.blind));
        }
        let [counts] = &capture.events[..] else { panic!("{:?}", capture.blind) };
        assert!(counts.cells.is_sorted_by(|a, b| a.count >= b.count));
        assert!(counts.cells.iter().all(|cell| cell.pid != proc_fs::own_pid()), "our own calls are not the host's");
        let own: Vec<_> = counts.cells.iter().filter(|cell| cell.pid == child.pid()).collect();
        // Each request is sent, received, answered and received again.
        let calls: u64 = own.iter().map(|cell| cell.count).sum();
        assert!((4 * requests..40 * requests).contains(&calls), "{calls} calls: {own:?}");
        let serves = own.iter().find(|cell| cell.thread == "serves").expect("its thread");
        let stack = &capture.stacks[serves.stack.expect("calls come from a program") as usize];
        assert!(stack.frames.iter().any(|frame| frame.is_named()), "{stack:?}");
        let report = parshall_core::judge::judge(&capture);
        assert!(report.events[0].of_subject > 0.0 && report.events[0].callers.iter().any(|caller| caller.subject));
    }
}

#[test]
fn events_are_counted_on_the_btf_rung() {
    if parshall_testkit::root("events on the btf rung") {
        events_of(Rung::Btf);
    }
}

#[test]
fn events_are_counted_on_the_tracepoint_rung() {
    if parshall_testkit::root("events on the tracepoint rung") {
        events_of(Rung::Tracepoint);
    }
}

#[test]
fn a_rung_without_probes_says_that_it_counts_no_events() {
    if !parshall_testkit::root("events on the procfs rung") {
        return;
    }
    let _turn = session::turn();
    let mut child = child::start("obeys");
    let events = event::find(&["page-faults".to_owned()]).expect("every kernel has it");
    let mut session = session::open_with(&Select::Pids(vec![child.pid()]), Some(Rung::Procfs), events);
    let capture = window(&mut session, &mut child, &["ask 0 3"]);
    assert!(capture.events.is_empty());
    assert!(
        capture.blind.iter().any(|sentence| sentence.contains("events that were asked for")),
        "{:?}",
        capture.blind
    );
}
