//! The sentences of a report about the causes that it does not name: over any capture, each ruled-out claim has figures, none denies
//! what is on record (and so none contradicts a finding, which rests on what is), and evidence that was not seen is not claimed.
use parshall_evidence::{Capture, FdKind, FlowState, OffCpu, Release, Report, Role, RuledOut, Rung, Status};
use proptest::prelude::*;

use crate::judge::cause::CAUSES;
use crate::judge::check::denials;
use crate::judge::facts::Facts;
use crate::judge::judge;
use crate::testkit::service::{ServiceBuilder, with};
use crate::testkit::{FlowBuilder, MS, ThreadBuilder, arb, capture};

fn check(capture: &Capture, report: &Report) -> Result<(), TestCaseError> {
    if report.verdict.status == Status::InsufficientEvidence {
        prop_assert!(report.findings.is_empty() && report.ruled_out.is_empty() && report.not_tested.is_empty());
        return Ok(());
    }
    let waited = crate::judge::waiting::waited(capture, &capture.services).services;
    let capture = &Capture { services: [capture.services.clone(), waited].concat(), ..capture.clone() };
    let facts = Facts::new(capture, &capture.services);
    let named = report.findings.iter().map(|f| &f.cause);
    let mut all: Vec<&String> = named.chain(report.ruled_out.iter().map(|r| &r.cause)).collect();
    all.extend(report.not_tested.iter().map(|n| &n.cause));
    all.sort();
    let mut known: Vec<&str> = CAUSES.iter().map(|c| c.id).collect();
    known.sort_unstable();
    prop_assert_eq!(all, known, "each cause once");
    for claim in &report.ruled_out {
        for figure in [&claim.first].into_iter().chain(&claim.also) {
            prop_assert!(figure.figure.is_finite() && figure.figure.is_sign_positive(), "{:?}", claim);
            prop_assert!(!figure.unit.is_empty() && !figure.what.is_empty(), "a figure of nothing: {:?}", claim);
            prop_assert!(figure.unit != "1" || figure.figure <= 1.0 + 1e-9, "more than all: {:?}", claim);
        }
        prop_assert!(claim.seen || claim.first.figure == 0.0 && claim.because.is_none(), "{:?}", claim);
        prop_assert_eq!(&claim.why, &crate::report::why(claim));
    }
    prop_assert_eq!(denials(&facts, &report.ruled_out), Vec::<String>::new());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2 * ProptestConfig::default().cases))]

    #[test]
    fn no_claim_without_a_figure_or_against_the_record(mut capture in arb::capture(), blinded in 0..5) {
        match blinded {
            0 => capture.threads.clear(),
            1 => capture.flows.iter_mut().for_each(|f| (f.cells, f.observed_ns) = (Vec::new(), 0)),
            2 => (capture.cgroups, capture.threads) = (Vec::new(), Vec::new()),
            3 => capture.counters = None,
            _ => {}
        }
        check(&capture, &judge(&capture))?;
    }
}

fn ruled_out<'a>(report: &'a Report, cause: &str) -> &'a RuledOut {
    report.ruled_out.iter().find(|r| r.cause == cause).expect("ruled out")
}

#[test]
fn what_is_denied_against_the_record_is_noticed() {
    let held =
        FlowBuilder::new(1, Role::Client).cell(FlowState::Corked, Release::AppSend, 2 * MS, 20).streams(100, 16_384);
    let capture = capture(vec![held], vec![]);
    let facts = Facts::new(&capture, &capture.services);
    let mut claims = judge(&capture).ruled_out;
    assert!(ruled_out(&judge(&capture), "cork-held").seen);
    claims.retain(|claim| claim.cause == "cork-held");
    assert_eq!(denials(&facts, &claims), Vec::<String>::new());
    claims[0].seen = false;
    assert_eq!(denials(&facts, &claims), ["nothing was seen of cork-held, and it is on record"]);
    claims[0].cause = "small-copy-buffer".to_string();
    assert_eq!(denials(&facts, &claims), ["small-copy-buffer is ruled out, and what tells of it was not seen"]);
}

#[test]
fn a_thread_that_slept_is_not_denied_beside_the_client_that_waited_for_it() {
    let client = FlowBuilder::new(1, Role::Client)
        .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterSend, Release::RxData)
        .talks(40, 100);
    let server = FlowBuilder::new(2, Role::Server)
        .to(&client)
        .owner(200, 201)
        .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterRecv, Release::AppSend)
        .talks(40, 100);
    let thread = ThreadBuilder::new(201).of(200).sleeps(25 * MS, 0, 20 * MS, "clock_nanosleep", FdKind::None);
    let report = judge(&capture(vec![client, server], vec![thread]));
    assert!(report.verdict.summary.contains("slept in clock_nanosleep"), "{}", report.verdict.summary);
    let claim = ruled_out(&report, "app-limited");
    assert!(claim.seen && claim.because.is_some(), "{claim:?}");
    assert!((claim.first.figure - 0.4).abs() < 0.001 && claim.first.unit == "1", "{claim:?}");
    let peer = report.findings[0].fix.peer.as_ref().expect("the peer is on this host");
    assert_eq!((peer.command.as_str(), peer.host.as_deref()), ("parshall attach --pid 200", None));
}

#[test]
fn what_was_not_seen_is_not_ruled_out() {
    let flow = || FlowBuilder::new(1, Role::Server).drains(1000, 1000);
    let untested = |capture: &Capture| {
        let report = judge(capture);
        check(capture, &report).expect("no false claim");
        let (of_requests, others): (Vec<_>, Vec<_>) =
            report.not_tested.into_iter().partition(|n| n.why == "single requests were not seen");
        assert_eq!(of_requests.len(), 16, "{of_requests:#?}");
        others.into_iter().map(|n| n.cause).collect::<Vec<_>>()
    };
    let mut blind = capture(vec![flow()], vec![]);
    assert_eq!(
        untested(&blind),
        ["packet-loss", "cpu-throttled", "handshake-per-request", "user-cpu-bound", "small-copy-buffer"]
    );
    let healthy = judge(&blind).verdict.summary;
    assert!(healthy.contains("no thread was seen"), "{healthy}");
    blind = capture(vec![flow().streams(10, 1000)], vec![ThreadBuilder::new(101)]);
    assert!(untested(&blind).is_empty());
    blind.counters = None;
    let counted = ["accept-queue-overflow", "fd-limit", "port-exhaustion", "udp-rcvbuf-overflow", "local-shaper"];
    assert!(counted.iter().all(|cause| untested(&blind).contains(&(*cause).to_string())));
    blind.counters = capture(vec![], vec![]).counters;
    blind.rung = Rung::Procfs;
    assert_eq!(untested(&blind), ["small-copy-buffer"]);
    // Throttled threads are evidence without any flow.
    let throttled = ThreadBuilder::new(101).throttled(100 * MS, 20 * MS, 60 * MS);
    blind = capture(vec![], vec![throttled]);
    assert!(blind.threads[0].off_cpu.iter().all(|cell| cell.why == OffCpu::Throttled));
    assert!(untested(&blind).contains(&"peer-window-limited".to_string()));
}

#[test]
fn what_can_be_tried_is_a_command() {
    let command = |flows: Vec<FlowBuilder>, threads: Vec<ThreadBuilder>| {
        judge(&capture(flows, threads)).findings[0].fix.command.clone()
    };
    let held =
        |flow: FlowBuilder| flow.every(41 * MS, 0, 40 * MS, FlowState::Nagle, Release::RxAckDelayed).talks_in_parts(24);
    let client = held(FlowBuilder::new(1, Role::Client));
    let server = FlowBuilder::new(2, Role::Server).to(&client).owner(200, 201).talks(24, 100);
    // Of a client of this host's own service the port is as good and reaches later connections, too.
    let by_port = Some("parshall try nodelay --port 7000".to_string());
    let typed_in = |observer_netns| {
        let mut capture = capture(vec![client.clone(), server.clone()], vec![]);
        capture.subject.observer_netns = observer_netns;
        judge(&capture).findings[0].fix.command.clone()
    };
    assert_eq!(typed_in(1), by_port);
    assert_eq!(typed_in(2).as_deref(), Some("parshall try nodelay --port 7000 --netns 1"));
    assert_eq!(command(vec![client.clone(), server.clone()], vec![]), by_port);
    assert_eq!(command(vec![client], vec![]).as_deref(), Some("parshall try nodelay --pid 100"));
    // A socket whose process is not known, and a peer's socket on another host, cannot be changed.
    assert_eq!(command(vec![held(FlowBuilder::new(1, Role::Client)).owner(0, 0)], vec![]), None);
    let waits = FlowBuilder::new(1, Role::Client)
        .remote_host()
        .every(41 * MS, 0, 40 * MS, FlowState::IdleAfterSend, Release::RxDataAfterOwnDelack)
        .talks(24, 100);
    assert_eq!(command(vec![waits], vec![]), None);
    let throttled = ThreadBuilder::new(101).throttled(100 * MS, 20 * MS, 60 * MS);
    assert_eq!(command(vec![], vec![throttled]).as_deref(), Some("parshall try quota=max --pid 100"));
    let lossy = FlowBuilder::new(1, Role::Client)
        .remote_host()
        .every(100 * MS, 0, 60 * MS, FlowState::Recovery, Release::RxAck)
        .streams(1000, 14_480)
        .retransmitted(200);
    assert_eq!(command(vec![lossy], vec![]).as_deref(), Some("parshall try congestion=bbr --pid 100"));
}

#[test]
fn a_peer_is_looked_at_by_a_command() {
    let full = |flow: FlowBuilder| {
        let flow = flow.every(10 * MS, 0, 9 * MS, FlowState::PeerWindow, Release::RxAck).streams(1000, 16_384);
        let report = judge(&capture(vec![flow], vec![]));
        let fix = report.findings[0].fix.clone();
        let peer = fix.peer.expect("a peer");
        (peer.command, peer.host, fix.text)
    };
    let (command, host, text) = full(FlowBuilder::new(1, Role::Client));
    assert_eq!((command.as_str(), host), ("parshall attach --port 7000", None));
    assert!(text.starts_with("Look at the peer on this host:"), "{text}");
    let (command, host, text) = full(FlowBuilder::new(1, Role::Server).remote_host());
    assert_eq!((command.as_str(), host.as_deref()), ("parshall attach --port 7000", Some("10.0.0.2")));
    assert!(text.starts_with("Look at the peer at 10.0.0.2:"), "{text}");
}

#[test]
fn what_slices_measured_is_marked() {
    let thread = ThreadBuilder::new(101).blocked(0, 900 * MS, "epoll_wait", FdKind::Anon);
    let mut sliced = capture(vec![FlowBuilder::new(1, Role::Server).talks(500, 100)], vec![thread]);
    let exact = judge(&sliced);
    assert!(exact.verdict.summary.contains(" carried 500 exchanges a second"), "{}", exact.verdict.summary);
    for cell in &mut sliced.flows[0].cells {
        cell.ns /= 20;
    }
    sliced.flows[0].observed_ns /= 20;
    let report = judge(&sliced);
    assert!(report.verdict.summary.contains(" carried ≈10,000 exchanges a second"), "{}", report.verdict.summary);
    let sends = &ruled_out(&report, "nagle-delayed-ack").also[0];
    assert_eq!((sends.figure, sends.of, sends.scaled), (0.0, Some(10_000.0), true));
    assert!(ruled_out(&report, "user-cpu-bound").also.iter().any(|cost| cost.scaled), "{:?}", report.ruled_out);
}

#[test]
fn a_healthy_service_has_the_figures_of_the_head() {
    let mut capture = with(ServiceBuilder::new(7000).requests(200, 1.0).cpu(1.0));
    (capture.services[0].p50_ns, capture.services[0].p99_ns) = (Some(43_600), Some(1_153_000));
    let summary = |capture: &Capture| judge(capture).verdict.summary;
    assert!(summary(&capture).contains(" requests/s, p50 43.6 µs, p99 1.15 ms."), "{}", summary(&capture));
    capture.slices.count = 5;
    let figures = summary(&capture);
    assert!(figures.contains(": ≈") && figures.ends_with("p50 ≈43.6 µs, p99 ≈1.15 ms."), "{figures}");
}
