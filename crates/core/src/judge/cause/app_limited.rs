//! The local application has the network to itself and does not use it: it supplies a stream slowly, or it sleeps with
//! a request to answer.
//!
//! Look-alikes: CPU work (user-cpu-bound), quota (cpu-throttled). A client's pause between a reply and its next request
//! is not counted as lost, nor is a connection that sends less than ten times a second, or messages of less
//! than a segment.
use parshall_evidence::Figure;

use super::base::{Candidate, Cause, Outcome, denied, main_sleep, main_thread, place_of, stalls, thread_name, who};
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, count, share};
use crate::judge::facts::{Blame, Facts, Part};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "app-limited",
    title: "The local application supplies data slowly",
    test,
    symptom: |facts| facts.raw_share(ASLEEP),
    testable: record::flows,
};

/// Time in which an application was asleep.
const ASLEEP: &[Blame] = &[Blame::SupplyBlocked, Blame::SenderPauses, Blame::AppBlocked];

fn test(facts: &Facts<'_>) -> Outcome {
    let take = |p: &Part| ASLEEP.contains(&p.blame);
    let lost = facts.lost(take);
    if lost.worst().is_none() {
        return why_not(facts);
    }
    if lost.seen < 2 {
        let pauses = Figure { limit: Some(2.0), ..count(lost.seen, "pauses", "of the application") };
        return denied(Denial::of(pauses).seen());
    }
    let supply = facts.blamed(&[Blame::SupplyBlocked, Blame::SenderPauses]).ns * 2.0 >= lost.ns;
    let tid = main_thread(facts, take);
    let sleep = main_sleep(facts, take);
    let thread = if tid != 0 { thread_name(facts, tid) } else { "the application".to_string() };
    let asleep = match &sleep {
        Some((call, _, share)) => format!("{thread} sleeps in {call} ({} of it)", units::percent(*share)),
        None if tid == 0 => "what the application did meanwhile was not seen".to_string(),
        None => format!("{thread} is off the CPU"),
    };
    let wait = units::duration(lost.p50_ns);
    let summary = if supply {
        format!(
            "{}: nothing was left to send for {wait} at a time; the network waits, and {asleep}.",
            who(facts, &lost)
        )
    } else {
        format!("{}: a request waits {wait} for its answer; {asleep}.", who(facts, &lost))
    };
    let what = if supply {
        "gaps with nothing to send, ended by the application"
    } else {
        "requests read and not answered, thread asleep"
    };
    let mut evidence = vec![stalls(what, &lost)];
    if let Some((call, _, share)) = &sleep {
        evidence.push(words::valued(format!("of this time, thread in {call}"), *share, "1"));
    }
    if let Some(thread) = facts.thread(tid) {
        let busy = crate::stats::ratio(thread.ledger.on_cpu(), thread.ledger.wall_ns);
        evidence.push(words::valued("thread on a CPU", busy, "1"));
    }
    let mut place = place_of(facts, &lost);
    place.tid = (tid != 0).then_some(tid);
    let fix =
        "The network is not the limit: look at what this thread waits for, prepare data ahead, or do it concurrently.";
    let mut candidate = Candidate::new(lost, place, summary, evidence, fix);
    if supply {
        candidate.min_share = 0.30;
    }
    if sleep.is_none() {
        candidate.gaps.push(match tid {
            0 => Gap::Guessed("whose thread it is was not seen"),
            _ => Gap::Inferred("what the thread waits for was not seen"),
        });
    }
    candidate.holds()
}

/// Time that the other end shows better is on its account: a client that waits for the answer, an upstream that owes one.
fn why_not(facts: &Facts<'_>) -> Outcome {
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    let asleep = facts.raw_share(ASLEEP);
    let what = "of the flows' time with the application asleep over an answer (2 ms or more) or over data to send";
    let why = match 2.0 * facts.raw_share(&[Blame::SenderPauses]) > asleep {
        true => "its client pauses by a timer, and sends what it wants",
        false => "counted at the flow that waited for it or that it waited for",
    };
    denied(Denial::of(share(asleep, what)).because(why))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::Timeline;
    use parshall_evidence::{FdKind, FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn slow_supply() -> FlowBuilder {
        FlowBuilder::new(1, Role::Client)
            .every(20 * MS, 0, 18 * MS, FlowState::IdleAfterSend, Release::AppSend)
            .streams(50, 8192)
    }

    #[test]
    fn a_client_sends_when_it_wants() {
        let sends = |asked: u32| {
            let mut sender = slow_supply();
            sender.record.pid = 200;
            let thread = ThreadBuilder::new(201).of(200).sleeps(20 * MS, 0, 18 * MS, "clock_nanosleep", FdKind::None);
            let mut capture = capture(vec![sender.owner(200, 201)], vec![thread]);
            (capture.subject.pids, capture.timeline) = (vec![asked], Some(Timeline::default()));
            verdict_of(&capture)
        };
        assert_eq!(sends(100), "healthy");
        // It is the client that the user asked about.
        assert_eq!(sends(200), "app-limited");
    }

    #[test]
    fn who_passes_a_stream_on_waits_for_it() {
        let mut source = FlowBuilder::new(2, Role::Server).drains(50, 8192);
        source.record.pid = slow_supply().record.pid;
        assert_eq!(verdict_of(&capture(vec![slow_supply(), source], vec![])), "healthy");
        assert_eq!(verdict_of(&capture(vec![slow_supply()], vec![])), "app-limited");
    }

    #[test]
    fn a_stream_with_gaps() {
        let thread = ThreadBuilder::new(101).sleeps(20 * MS, 0, 18 * MS, "read", FdKind::File);
        let report = crate::judge::judge(&capture(vec![slow_supply()], vec![thread]));
        assert_eq!(report.verdict.cause.as_deref(), Some("app-limited"));
        assert!(report.verdict.summary.contains("sleeps in read"), "{}", report.verdict.summary);
    }

    #[test]
    fn a_stream_that_is_computed_is_user_cpu() {
        let thread = ThreadBuilder::new(101).samples(100, 2);
        assert_eq!(verdict_of(&capture(vec![slow_supply()], vec![thread])), "user-cpu-bound");
    }

    #[test]
    fn a_sparse_stream_is_healthy() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(200 * MS, 0, 190 * MS, FlowState::IdleAfterSend, Release::AppSend)
            .streams(5, 8192);
        let thread = ThreadBuilder::new(101).sleeps(200 * MS, 0, 190 * MS, "clock_nanosleep", FdKind::None);
        assert_eq!(verdict_of(&capture(vec![flow], vec![thread])), "healthy");
    }

    #[test]
    fn a_server_asleep_with_a_request() {
        let flow = FlowBuilder::new(1, Role::Server)
            .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterRecv, Release::AppSend)
            .talks(40, 100);
        let thread = ThreadBuilder::new(101).sleeps(25 * MS, 0, 20 * MS, "fsync", FdKind::File);
        assert_eq!(verdict_of(&capture(vec![flow], vec![thread])), "app-limited");
    }

    #[test]
    fn a_client_that_pauses_before_it_reads_its_reply_lets_nobody_wait() {
        let verdict = |role: Role, call: &str, fd: FdKind| {
            let flow = FlowBuilder::new(1, role)
                .every(50 * MS, 0, 45 * MS, FlowState::RxWaiting, Release::AppRecv)
                .talks(20, 8);
            let thread = ThreadBuilder::new(101).sleeps(50 * MS, 0, 45 * MS, call, fd);
            verdict_of(&capture(vec![flow], vec![thread]))
        };
        assert_eq!(verdict(Role::Client, "clock_nanosleep", FdKind::None), "healthy");
        assert_ne!(verdict(Role::Client, "fsync", FdKind::File), "healthy");
        assert_ne!(verdict(Role::Server, "clock_nanosleep", FdKind::None), "healthy");
    }

    #[test]
    fn a_server_that_asks_another_host_waits_for_that_host() {
        let flow = FlowBuilder::new(1, Role::Server)
            .every(25 * MS, 0, 20 * MS, FlowState::IdleAfterRecv, Release::AppSend)
            .talks(40, 100);
        let mut upstream = FlowBuilder::new(2, Role::Client).remote_host();
        upstream = upstream.every(25 * MS, MS, 18 * MS, FlowState::IdleAfterSend, Release::RxData).talks(40, 100);
        let thread = ThreadBuilder::new(101).sleeps(25 * MS, 0, 20 * MS, "epoll_wait", FdKind::Anon);
        let report = crate::judge::judge(&capture(vec![flow, upstream], vec![thread]));
        assert_eq!(report.verdict.cause.as_deref(), Some("peer-think-time"));
        assert_eq!(report.findings[0].place.flow.as_deref(), Some("10.0.0.1:50002->10.0.0.2:7000"));
    }
}
