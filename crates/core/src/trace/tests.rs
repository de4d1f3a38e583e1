//! Traces of captures made by hand.
use std::collections::BTreeSet;

use parshall_evidence::timeline::{OffCpu, Waker, Why};
use parshall_evidence::{Capture, FlowState, Release, Role, Timeline};
use proptest::prelude::*;

use super::*;
use crate::judge::counted::{Events, Held, Phase, RequestTimes, ThreadWait};
use crate::testkit::timeline::{Script, off, served_socket};
use crate::testkit::{FlowBuilder, MS, arb, capture, empty_capture};

fn of(timeline: Timeline) -> Capture {
    Capture { timeline: Some(timeline), window_ns: MS, ..empty_capture() }
}

fn trace(capture: &Capture) -> Trace {
    Trace::new(capture, capture.timeline.as_ref().map(Index::new).as_ref())
}

/// Thread 101 reads a request of socket 1 and sleeps for a lock, which thread 102 releases; it then waits for its CPU.
fn one_request() -> Capture {
    let sleep = OffCpu {
        waker: Waker::Thread(102),
        target: 0x7f00,
        ran_instead_tid: 102,
        ..off(101, 300_000, 700_000, 750_000)
    };
    let script = Script::new()
        .socket(1, served_socket(7000), 101)
        .receives(101, 1, 100_000, 200_000)
        .off(sleep)
        .sends(101, 1, 800_000)
        .sleeps(102, 0, 650_000, 35, Waker::HardIrq);
    of(script.timeline)
}

#[test]
fn a_request_its_thread_and_who_ended_the_wait() {
    let trace = trace(&one_request());
    let lanes: Vec<(Kind, &str, &str)> =
        trace.lanes.iter().map(|l| (l.kind, l.group.as_str(), l.name.as_str())).collect();
    assert_eq!(
        lanes,
        [
            (Kind::Requests, "requests to 127.0.0.1:7000", "127.0.0.1:50000"),
            (Kind::Thread, "p100 100", "t101 101"),
            (Kind::Thread, "p100 100", "t102 102"),
        ]
    );
    let spans = |lane: usize| -> Vec<(u64, u64, State, &str, Option<u32>)> {
        let all = trace.lanes[lane].spans.iter();
        all.map(|s| (s.begin_ns, s.end_ns, s.state, trace.text(s), s.ended_by)).collect()
    };
    assert_eq!(
        spans(0),
        [
            (100_000, 200_000, State::Unread, "700 µs in all", Some(1)),
            (200_000, 800_000, State::Working, "700 µs in all", Some(1)),
        ]
    );
    assert_eq!(
        spans(1),
        [
            (300_000, 700_000, State::Futex, "futex 0x7f00 · ended by t102 102", Some(2)),
            (700_000, 750_000, State::Ready, "t102 102 ran there", None),
        ]
    );
    assert_eq!(spans(2), [(0, 650_000, State::Timer, "nanosleep · ended by an interrupt", None)]);
    // The longest wait of a request, with a quarter of it on either side.
    assert_eq!(trace.opens_at, (50_000, 950_000));
    assert!(!trace.reduced);
}

#[test]
fn what_kept_a_thread_from_running_is_told_apart() {
    let with = |why| {
        let timeline = Script::new().off(OffCpu { why, ..off(101, 100, 100, 900) }).timeline;
        let trace = trace(&of(timeline));
        trace.lanes[0].spans.iter().map(|span| span.state).collect::<Vec<_>>()
    };
    assert_eq!(with(Why::Preempted), [State::Ready]);
    assert_eq!(with(Why::Throttled), [State::Throttled]);
    assert_eq!(with(Why::Stopped), [State::Stopped]);
    // It never slept: it was woken when it lay down.
    assert_eq!(with(Why::Slept), [State::Ready]);
}

#[test]
fn stalls_of_sockets_are_lanes_without_a_timeline_too() {
    let slow = FlowBuilder::new(1, Role::Client).stall(10 * MS, 40 * MS, FlowState::Nagle, Release::RxAckDelayed);
    let fast = FlowBuilder::new(2, Role::Client).stall(10 * MS, 2 * MS, FlowState::InFlight, Release::RxAck);
    let trace = trace(&capture(vec![fast.fill(), slow.fill()], Vec::new()));
    let sockets: Vec<&Lane> = trace.lanes.iter().filter(|lane| lane.kind == Kind::Socket).collect();
    let first = &sockets[0].spans;
    assert!(first.iter().any(|span| span.state == State::Flow(FlowState::Nagle) && span.ns() == 40 * MS), "{first:?}");
    assert_eq!(trace.opens_at, (0, 60 * MS));
}

#[test]
fn the_end_that_asked_waits_for_its_reply_and_the_other_one_rests() {
    let state = |role| {
        let flow = FlowBuilder::new(1, role).stall(10 * MS, 40 * MS, FlowState::IdleAfterSend, Release::RxData);
        let trace = trace(&capture(vec![flow.fill()], Vec::new()));
        trace.lanes[0].spans.iter().find(|span| span.ns() == 40 * MS).expect("a span").state
    };
    assert_eq!(state(Role::Client), State::Reply);
    assert_eq!(state(Role::Server), State::Flow(FlowState::IdleAfterSend));
}

#[test]
fn a_stream_waits_for_its_application_and_a_server_between_two_pushes_rests() {
    let state = |recvs| {
        let flow =
            FlowBuilder::new(1, Role::Server).stall(10 * MS, 40 * MS, FlowState::IdleAfterSend, Release::AppSend);
        let mut flow = flow.fill();
        flow.record.calls.recvs = recvs;
        let trace = trace(&capture(vec![flow], Vec::new()));
        trace.lanes[0].spans.iter().find(|span| span.ns() == 40 * MS).expect("a span").state
    };
    assert_eq!(state(0), State::Supply);
    assert_eq!(state(5), State::Flow(FlowState::IdleAfterSend));
}

#[test]
fn lanes_of_one_name_are_numbered() {
    let flow = |id| FlowBuilder::new(id, Role::Client).stall(0, 40 * MS, FlowState::Cwnd, Release::RxAck).fill();
    let mut capture = capture(vec![flow(1), flow(2)], Vec::new());
    (capture.flows[1].local, capture.flows[1].remote) = (capture.flows[0].local, capture.flows[0].remote);
    let trace = trace(&capture);
    assert_eq!(trace.lanes[1].name, format!("{} (2)", trace.lanes[0].name));
}

#[test]
fn short_waits_become_one_where_there_are_too_many() {
    let mut script = Script::new();
    script.timeline.slices = vec![(0, 1_000 * MS)];
    // A thread that sleeps for 2 µs out of 4, for 0.4 s, and one that sleeps for 100 ms.
    let busy = (0..100_000).map(|i| off(101, i * 4_000, i * 4_000 + 2_000, i * 4_000 + 2_000)).collect();
    script.timeline.off_cpu.insert(101, busy);
    let capture = Capture { window_ns: 1_000 * MS, ..of(script.off(off(102, 100 * MS, 200 * MS, 200 * MS)).timeline) };
    let trace = trace(&capture);
    assert!(trace.lanes.iter().map(|lane| lane.spans.len()).sum::<usize>() <= SPANS_MAX);
    assert!(trace.whole_from_ns > 2_000);
    let long = trace.lanes.iter().flat_map(|lane| &lane.spans).find(|span| span.ns() == 100 * MS);
    assert_eq!(long.map(|span| span.state), Some(State::Futex));
    let joined = &trace.lanes.iter().find(|lane| lane.name.ends_with("101")).unwrap().spans;
    assert!(joined.iter().any(|span| span.state == State::Many));
    assert_eq!((joined.first().unwrap().begin_ns, joined.last().unwrap().end_ns), (0, 99_999 * 4_000 + 2_000));
}

#[test]
fn lanes_beyond_the_limit_are_counted_and_every_kind_keeps_its_longest() {
    let flow = |id| FlowBuilder::new(id, Role::Client).stall(0, id * 1_000, FlowState::Cwnd, Release::RxAck).fill();
    let mut capture = capture((1..=1_500).map(flow).collect(), Vec::new());
    capture.timeline = one_request().timeline;
    let trace = trace(&capture);
    assert_eq!((trace.lanes.len(), trace.left_out), (LANES_MAX, 1_503 - LANES_MAX as u64));
    assert_eq!(trace.lanes.iter().filter(|lane| lane.kind != Kind::Socket).count(), 3);
    let shortest = trace.lanes.iter().flat_map(|lane| &lane.spans).filter(|s| s.state == State::Flow(FlowState::Cwnd));
    assert_eq!(shortest.map(Span::ns).min(), Some((1_500 - (LANES_MAX as u64 - 3) + 1) * 1_000));
}

#[test]
fn marks_are_the_spans_that_count_and_only_while_requests_are_outstanding() {
    let mut capture = one_request();
    // It sleeps in the same call once more, when nobody waits for it.
    let timeline = capture.timeline.as_mut().unwrap();
    timeline.off_cpu.get_mut(&101).unwrap().push(off(101, 850_000, 900_000, 900_000));
    let index = capture.timeline.as_ref().map(Index::new);
    let trace = Trace::new(&capture, index.as_ref());
    let marker = Marker::new(&capture, index.as_ref(), &trace);
    let times = |phase| RequestTimes {
        address: "127.0.0.1:7000".parse().unwrap(),
        outbound: false,
        least_ns: 0,
        phases: BTreeSet::from([phase]),
    };
    let futex = ThreadWait { pid: Some(100), held: None, syscall: "futex".to_owned() };
    let ready = ThreadWait { pid: Some(100), held: Some(Held::RunQueue), syscall: String::new() };
    let marks = |requests: Vec<RequestTimes>, waits: &[&ThreadWait]| {
        let waits = waits.iter().map(|wait| (*wait).clone()).collect();
        let found = marker.marks(&Events { requests, waits, stalls: BTreeSet::new() });
        found.into_iter().map(|mark| (mark.lane, mark.spans)).collect::<Vec<_>>()
    };
    assert_eq!(marks(vec![times(Phase::Worked)], &[&futex]), [(0, vec![1]), (1, vec![0])]);
    assert_eq!(marks(vec![times(Phase::Unread)], &[&ready]), [(0, vec![0]), (1, vec![1])]);
    assert_eq!(marks(Vec::new(), &[&futex]), [(1, vec![0, 2])]);
    let elsewhere = RequestTimes { address: "127.0.0.1:7001".parse().unwrap(), ..times(Phase::Worked) };
    assert_eq!(marks(vec![elsewhere], &[&futex]), []);
    assert_eq!(marks(vec![RequestTimes { least_ns: MS, ..times(Phase::Worked) }], &[&futex]), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_trace_of_any_capture_refers_to_what_it_has(capture in arb::capture()) {
        let trace = trace(&capture);
        prop_assert!(trace.lanes.len() <= LANES_MAX);
        for span in trace.lanes.iter().flat_map(|lane| &lane.spans) {
            prop_assert!(span.begin_ns <= span.end_ns);
            prop_assert!((span.text as usize) < trace.texts.len());
            prop_assert!(span.ended_by.is_none_or(|lane| (lane as usize) < trace.lanes.len()));
        }
        for lane in &trace.lanes {
            prop_assert!(lane.spans.is_sorted_by_key(|span| span.begin_ns));
        }
    }
}
