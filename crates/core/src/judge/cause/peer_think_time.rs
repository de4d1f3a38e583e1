//! The peer's application takes its time: the request is acknowledged, the reply comes much later.
//!
//! Look-alikes: a late ACK of a held write (nagle-delayed-ack), loss of the reply; both have states of their own. If
//! the other end is on this host and the wait has a reason there, the reason is the cause; a hypervisor that takes the
//! CPU away is one.
use parshall_evidence::Figure;

use super::base::{Candidate, Cause, Outcome, denied, not_lost, peer_command, peer_words, place_of, stalls, who};
use crate::critical_path;
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, amount, share};
use crate::judge::facts::{Blame, Facts, Lost, Shape, rtt_ns};
use crate::judge::ledger::flow::State;
use crate::judge::ledger::thread::State as ThreadState;
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;
use crate::wait::Wait;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "peer-think-time",
    title: "The peer takes its time to answer",
    test,
    symptom: |facts| facts.share_in(&[State::PeerThinking]),
    testable: record::flows,
};

/// An upstream explains its proxy's clients when it waits for at least this much of what they do.
const UPSTREAM_SHARE: f64 = 0.3;

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = deepest(facts, facts.blamed(&[Blame::PeerThink]));
    let Some(worst) = lost.worst() else { return why_not(facts) };
    let flow = &facts.flows[worst];
    let rtt = rtt_ns(flow);
    if lost.p50_ns < 2e6 || lost.p50_ns <= 4.0 * rtt {
        let answer = amount(lost.p50_ns / 1e6, "ms", "until the peer answers, median");
        return denied(Denial::of(Figure { limit: Some(2.0_f64.max(4.0 * rtt / 1e6)), ..answer }).seen());
    }
    let stolen = facts.stolen_share();
    let command = peer_command(facts, worst);
    let on_this_host = command.host.is_none();
    if on_this_host && lost.mean_ms(facts) * 1e6 <= stolen * facts.capture.window_ns as f64 {
        let taken = share(stolen, "of the CPUs' time taken by the hypervisor");
        return denied(Denial::of(taken).because("which explains the wait").seen());
    }
    let stream = flow.shape == Shape::StreamIn;
    let verb = if stream { "supplies no data for" } else { "answers after" };
    let peer = peer_threads(facts, worst);
    let summary = format!(
        "{}: the peer has what it needs and {verb} {} (RTT {}).{}",
        who(facts, &lost),
        units::duration(lost.p50_ns),
        if rtt > 0.0 { units::duration(rtt) } else { "unknown".to_string() },
        peer.as_ref().map_or(String::new(), |(_, text)| format!(" {text}"))
    );
    let what =
        if stream { "waits for more data of the peer" } else { "waits for a reply to a request that was delivered" };
    let mut evidence = vec![stalls(what, &lost), words::valued("minimum RTT", rtt / 1e6, "ms")];
    evidence.push(words::counted("segments retransmitted on this flow", flow.retransmitted));
    if let Some((share, text)) = peer.as_ref().filter(|(share, _)| *share >= SLEEP_MIN) {
        evidence.push(words::valued(text.trim_end_matches('.'), *share, "1"));
    }
    let fix = match &peer {
        Some(_) => "The time is spent in the peer's process on this host: see what it waits for.".to_string(),
        None => format!("Look at {}: the time is spent there.", peer_words(&command)),
    };
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    candidate.peer = Some(command);
    candidate.may_be = may_be_beats(facts, &lost).then_some("signs of life that both ends send");
    if peer.is_some() || stream {
        candidate.gaps.push(Gap::Inferred("what the peer waits for meanwhile was not seen"));
    }
    candidate.holds()
}

/// Share of the waits that may be no waits before it matters.
const BEATS: f64 = 0.8;

/// Whether most of these waits may be between signs of life: a peer that answers at once and sends its own after a time looks the same as
/// one that takes its time.
fn may_be_beats(facts: &Facts<'_>, lost: &Lost) -> bool {
    let Some(timeline) = &facts.capture.timeline else { return false };
    let all: f64 = lost.by_flow.iter().map(|(_, ns)| ns).sum();
    let beats = lost.by_flow.iter().filter(|(at, _)| critical_path::may_be_beats(timeline, facts.flows[*at].rec.id));
    beats.map(|(_, ns)| ns).sum::<f64>() >= BEATS * all
}

/// Puts first the flow at which the waiting begins: a proxy keeps its clients waiting because its own upstream does.
fn deepest(facts: &Facts<'_>, mut lost: Lost) -> Lost {
    let Some((worst, ns)) = lost.by_flow.first().copied() else { return lost };
    let Some(server) = facts.flows[worst].pair.map(|end| facts.flows[end].rec.pid).filter(|pid| *pid != 0) else {
        return lost;
    };
    let upstream = |(flow, theirs): &(usize, f64)| {
        let fact = &facts.flows[*flow];
        fact.rec.pid == server && fact.pair.is_none() && *theirs >= UPSTREAM_SHARE * ns
    };
    if let Some(at) = lost.by_flow.iter().position(upstream) {
        let flow = lost.by_flow.remove(at);
        lost.by_flow.insert(0, flow);
    }
    lost
}

/// A call in which the peer's thread slept for a smaller share of the time does not explain its silence.
const SLEEP_MIN: f64 = 0.3;

/// The share of the time that a peer's thread on this host slept in one call, and a sentence about it; None without such a thread.
fn peer_threads(facts: &Facts<'_>, flow: usize) -> Option<(f64, String)> {
    let other = &facts.flows[facts.flows[flow].pair?];
    let tid = facts.server_of(other.rec, other.rec.last_tid);
    let thread = facts.thread(tid)?;
    let mut cells: Vec<(&str, Wait, u64)> = Vec::new();
    for cell in thread.rec.off_cpu.iter().filter(|c| c.why == parshall_evidence::OffCpu::Blocked) {
        cells.push((&cell.syscall_name, Wait::of(&cell.syscall_name, cell.fd, cell.syscall), cell.ns));
    }
    let (call, _, ns) = cells.into_iter().max_by_key(|c| c.2)?;
    let asleep = thread.ledger.of(ThreadState::Idle) + thread.ledger.of(ThreadState::BlockedWorkAvailable);
    let all: f64 =
        thread.rec.off_cpu.iter().filter(|c| c.why == parshall_evidence::OffCpu::Blocked).map(|c| c.ns as f64).sum();
    let share = ratio(asleep, thread.ledger.wall_ns) * ratio(ns as f64, all);
    if share < SLEEP_MIN {
        return Some((share, format!("The peer is pid {}.", other.rec.pid)));
    }
    let call = if call.is_empty() { "a page fault" } else { call };
    let text = format!(
        "The peer is pid {}; its thread {tid} slept in {call} for {} of the time.",
        other.rec.pid,
        units::percent(share)
    );
    Some((share, text))
}

fn why_not(facts: &Facts<'_>) -> Outcome {
    let otherwise = "for a reason found at the other end, under 2 ms each, or with few bytes received";
    not_lost(facts, "waiting for a reply", &[State::PeerThinking], otherwise)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FdKind, FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn client() -> FlowBuilder {
        FlowBuilder::new(1, Role::Client)
            .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks(40, 100)
    }

    fn server(client: &FlowBuilder) -> FlowBuilder {
        FlowBuilder::new(2, Role::Server)
            .to(client)
            .owner(200, 201)
            .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterRecv, Release::AppSend)
            .talks(40, 100)
    }

    #[test]
    fn a_remote_peer_thinks() {
        assert_eq!(verdict_of(&capture(vec![client()], vec![])), "peer-think-time");
    }

    #[test]
    fn a_peer_that_sends_now_and_then_may_send_signs_of_life() {
        use parshall_evidence::Status;

        use crate::testkit::timeline::{Script, client_socket};
        // Once in 600 ms the peer sends `bytes`, and the client something at once.
        let verdict = |bytes: u32, every_ms: u64| {
            let mut script = Script::new().socket(1, client_socket(5672), 101);
            for n in 0..4 {
                let at = (10 + n * every_ms) * MS;
                script = script.receives(101, 1, at, at + 10_000).sends(101, 1, at + 20_000);
            }
            script.timeline.calls.values_mut().flatten().for_each(|call| call.bytes = bytes);
            script.timeline.slices = vec![(0, 2_600 * MS)];
            let flow = FlowBuilder::new(1, Role::Client).remote_host();
            let flow = flow.every(every_ms * MS, 0, (every_ms - 1) * MS, FlowState::IdleAfterSend, Release::RxData);
            let mut capture = capture(vec![flow.talks(4, u64::from(bytes))], vec![]);
            capture.timeline = Some(script.timeline);
            crate::judge::judge(&capture).verdict
        };
        let unsure = verdict(8, 600);
        assert_eq!(unsure.status, Status::InsufficientEvidence, "{unsure:?}");
        assert!(unsure.summary.ends_with("or signs of life that both ends send, was not seen."), "{unsure:?}");
        // Messages with content, and more often than anybody looks whether the other one lives.
        for (bytes, every_ms) in [(400, 600), (8, 100)] {
            assert_eq!(verdict(bytes, every_ms).cause.as_deref(), Some("peer-think-time"));
        }
    }

    #[test]
    fn a_peer_on_this_host_is_shown_asleep() {
        let client = client();
        let thread = ThreadBuilder::new(201).of(200).sleeps(25 * MS, 0, 20 * MS, "clock_nanosleep", FdKind::None);
        let report = crate::judge::judge(&capture(vec![client.clone(), server(&client)], vec![thread]));
        assert_eq!(report.verdict.cause.as_deref(), Some("peer-think-time"));
        assert!(report.verdict.summary.contains("pid 200"), "{}", report.verdict.summary);
        assert!(report.verdict.summary.contains("clock_nanosleep"), "{}", report.verdict.summary);
    }

    #[test]
    fn a_peer_on_this_host_that_computes_is_user_cpu() {
        let client = client();
        let thread =
            ThreadBuilder::new(201).of(200).samples(95, 5).sleeps(25 * MS, 20 * MS, 5 * MS, "epoll_wait", FdKind::Anon);
        assert_eq!(verdict_of(&capture(vec![client.clone(), server(&client)], vec![thread])), "user-cpu-bound");
    }

    #[test]
    fn what_the_hypervisor_took_is_no_thinking_of_a_peer_on_this_host() {
        let thread = ThreadBuilder::new(201).of(200).sleeps(25 * MS, 0, 20 * MS, "recvfrom", FdKind::Tcp);
        let local = capture(vec![client(), server(&client())], vec![thread]);
        let stolen = |capture: &parshall_evidence::Capture, share: f64| {
            let mut capture = capture.clone();
            capture.host.stolen_ns = (capture.window_ns as f64 * f64::from(capture.host.cpus) * share) as u64;
            crate::judge::judge(&capture)
        };
        let named = |report: &parshall_evidence::Report| report.verdict.cause.as_deref() == Some("peer-think-time");
        assert!(named(&stolen(&local, 0.0)) && named(&stolen(&local, 0.5)), "half does not explain four fifths");
        let report = stolen(&local, 0.9);
        assert!(!named(&report) && report.blind.iter().any(|b| b.contains("90")), "{report:#?}");
        // The other end of a connection of this host was not seen.
        assert!(!named(&stolen(&capture(vec![client()], vec![]), 0.9)));
        let remote = capture(vec![client().remote_host()], vec![]);
        assert!(named(&stolen(&remote, 0.9)), "a remote peer does not wait for our CPUs");
    }

    #[test]
    fn the_ack_of_a_slow_server_is_late_too() {
        // The server's delayed-ACK timer acknowledges the request after 40 ms, the reply comes after 60.
        let flow = FlowBuilder::new(1, Role::Client)
            .every(65 * MS, 0, 40 * MS, FlowState::InFlight, Release::RxAckDelayed)
            .every(65 * MS, 40 * MS, 20 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks(15, 100);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "peer-think-time");
    }

    #[test]
    fn an_answer_in_one_round_trip_is_healthy() {
        let mut flow = client().remote_host();
        flow.record.last.min_rtt_us = 19_000;
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }

    #[test]
    fn a_subscriber_that_hears_little_is_idle() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(100 * MS, 0, 99 * MS, FlowState::IdleAfterRecv, Release::RxData)
            .drains(10, 200);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }

    #[test]
    fn a_client_that_pauses_is_healthy() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(50 * MS, 0, 45 * MS, FlowState::IdleAfterRecv, Release::AppSend)
            .talks(20, 100);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }
}
