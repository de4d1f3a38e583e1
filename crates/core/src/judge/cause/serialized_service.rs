//! Many requests are outstanding and one is served at a time: a single worker, or a lock that no system call shows.
//!
//! By Little's law a request then takes as many reply intervals as requests are outstanding. Look-alikes: a thread at work all of
//! the time (user-cpu-bound, or at capacity), a lock whose holder was seen (lock-contention), and timers that run side by side
//! (timer-wait: their replies come bunched or at random).
use parshall_evidence::HopKind;

use super::base::{Candidate, Cause, Outcome};
use super::common::{Waits, beyond, not_spent, outstanding};
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::facts::requests::ServiceFact;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "serialized-service",
    title: "Requests are served one at a time",
    test,
    symptom: |facts| facts.requests.share(Spent::Serial),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Serial) else { return not_spent(facts, Spent::Serial) };
    let rec = waits.service.rec;
    if rec.waited {
        return never_served(facts, waits).holds();
    }
    let did = waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default();
    // The limit may be that of a process that the service asks.
    let turn = waits.turn().filter(|turn| turn.limit.blocks);
    let blocked = rec.limits.iter().find(|limit| limit.blocks).or(turn.as_ref().map(|turn| turn.limit));
    let gap = if let Some(limit) = blocked {
        // Its replies may come together.
        limit.each_ns as f64
    } else if rec.reply_gap_p50_ns > 0 {
        rec.reply_gap_p50_ns as f64
    } else {
        ratio(rec.observed_ns as f64, rec.requests as f64)
    };
    let last = || waits.loss.chain.last().map(|last| format!("{} {}", last.process, last.pid));
    let holder = turn.as_ref().map(|turn| named(turn.hop)).or_else(last);
    let meanwhile = match (blocked.and_then(|limit| limit.next), holder) {
        (Some(next), Some(who)) => format!("{who} is blocked in each question to {next}"),
        _ => format!("{} {did}", named(waits.keeper().unwrap_or_else(|| waits.last_thread()))),
    };
    let summary = waits.summary(&format!(
        "Requests are served one after the other, with {} outstanding: a reply every {}, a request takes {}; meanwhile {meanwhile}.",
        units::decimal(waits.service.outstanding),
        units::duration(gap),
        takes(waits.service)
    ));
    let mut evidence = vec![outstanding(waits.service)];
    evidence.extend(match blocked {
        // The sentence is of its time, and not of that between replies.
        Some(_) => vec![words::valued("time of one question, mean", gap / 1e6, "ms")],
        None => vec![
            words::valued("time between replies, p10", rec.reply_gap_p10_ns as f64 / 1e6, "ms"),
            words::valued("time between replies, p90", rec.reply_gap_p90_ns as f64 / 1e6, "ms"),
        ],
    });
    evidence.push(words::valued("threads reading or answering", f64::from(rec.workers), "threads"));
    let fix = if let Some((server, most)) = waits.limit_beyond() {
        beyond(&server, most)
    } else if rec.workers <= 1 {
        format!(
            "One thread serves all, and sleeps with a request: run more workers of {}, or do not block in it. Where it is \
             a limit of the rate, raise that.",
            units::or(waits.queue().map_or(&waits.leaf.process, |(holder, _)| &holder.process), "it")
        )
    } else {
        "Find what lets in one request at a time (a mutex, a semaphore, a limit of 1 or of the rate): hold it for less, \
         or raise it."
            .to_string()
    };
    let brought = blocked.is_none() && waits.leaf.kind == HopKind::OtherRequest;
    let mut candidate = waits.candidate(summary, evidence, fix);
    // News that come at even times look the same.
    candidate.gaps.extend(brought.then_some(Gap::Inferred("who brings what they wait for was not seen")));
    candidate.requests.iter_mut().for_each(|loss| loss.of_turns(1, gap));
    candidate.holds()
}

/// The median says nothing of requests of which few wait, and these long.
fn takes(service: &ServiceFact<'_>) -> String {
    let (typical_ns, mean_ns) = (service.typical_ns(), ratio(service.time_ns, service.requests));
    if mean_ns <= 2.0 * typical_ns {
        return units::duration(typical_ns);
    }
    format!("{} on average", units::duration(mean_ns))
}

/// Requests that have had no turn: the only thread of their process has always another one to serve.
fn never_served(facts: &Facts<'_>, waits: Waits<'_, '_>) -> Candidate {
    let who = named(waits.leaf);
    let pid = waits.leaf.pid;
    let seen = facts.requests.all.iter().filter(|s| !s.waited && !s.outbound && s.pids.contains(&pid));
    let answered = seen.map(|service| service.requests).fold(0, u64::saturating_add);
    let summary = waits.summary(&format!(
        "{who} serves one request after the other with its only thread, which is blocked in each of them and never without one: it answered \
         {} meanwhile, and these had no turn.",
        units::plural(answered, "other", "others")
    ));
    let evidence = vec![outstanding(waits.service), words::counted("requests that it answered meanwhile", answered)];
    let fix = format!(
        "Run more workers of {}, or do not block in its only thread: a call that waits there (a database driver, a file, a lock) keeps \
         all others from being served.",
        units::or(&waits.leaf.process, "it")
    );
    waits.candidate(summary, evidence, fix)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, HopKind, Role};

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, verdict_of};

    fn one_worker(workers: u32) -> ServiceBuilder {
        let thread = || Hops::new().thread(100, 101, "gunicorn");
        let queue = thread().on(HopKind::AcceptQueue, "").on(HopKind::Timer, "clock_nanosleep");
        let own = thread().on(HopKind::Timer, "clock_nanosleep");
        ServiceBuilder::new(8000).requests(50, 120.0).workers(workers).part(queue, 0.83).part(own, 0.16).cpu(0.01)
    }

    #[test]
    fn behind_a_single_worker_that_sleeps() {
        let report = crate::judge::judge(&with(one_worker(1)));
        assert_eq!(report.verdict.cause.as_deref(), Some("serialized-service"));
        assert!(report.findings[0].fix.text.contains("more workers of gunicorn"), "{:#?}", report.findings[0].fix);
    }

    #[test]
    fn a_worker_that_asks_a_far_server_for_one_at_a_time() {
        let far = |queue: HopKind| {
            let asks = |hops: Hops| hops.on(HopKind::Reply, "recvfrom").target("10.9.0.2:389");
            let on_the_way = |hops: Hops| hops.thread(0, 0, "").on(HopKind::Network, "");
            let thread = || Hops::new().thread(100, 101, "auth");
            let queue = on_the_way(asks(thread().on(queue, "")));
            let own = on_the_way(asks(thread()));
            let report = crate::judge::judge(&with(
                ServiceBuilder::new(8888).requests(12, 490.0).part(queue, 0.8).part(own, 0.19).cpu(0.01),
            ));
            (report.verdict.cause.clone().unwrap_or_default(), report)
        };
        let (cause, report) = far(HopKind::AcceptQueue);
        assert_eq!(cause, "serialized-service", "{report:#?}");
        let leaf = report.chain.expect("a chain").leaf;
        assert_eq!(leaf.process, "auth");
        assert!(report.verdict.summary.contains("meanwhile auth 100"), "{}", report.verdict.summary);
        // An event loop that has taken the connections in is blocked by what it asks.
        assert_eq!(far(HopKind::Unread).0, "blocking-downstream-call");
    }

    #[test]
    fn behind_a_worker_that_waits_until_a_client_takes_its_reply() {
        let way = || Hops::new().thread(100, 101, "player").on(HopKind::AcceptQueue, "").on(HopKind::Send, "sendfile");
        let cause = |to: &str| {
            let way = way().target(to);
            let mut capture = with(ServiceBuilder::new(8200).requests(4, 300.0).workers(1).part(way, 0.99).cpu(0.001));
            let mut flow = FlowBuilder::new(1, Role::Server).owner(100, 101).streams(1000, 16_384);
            flow.record.remote = "127.0.0.1:50000".parse().unwrap();
            capture.flows = crate::testkit::capture(vec![flow], vec![]).flows;
            verdict_of(&capture)
        };
        assert_eq!(cause("127.0.0.1:50000"), "serialized-service");
        // What it sends to a server of its own is no reply.
        assert_ne!(cause("127.0.0.1:9000"), "serialized-service");
    }

    #[test]
    fn behind_two_it_is_the_workers() {
        assert_eq!(verdict_of(&with(one_worker(2))), "workers-exhausted");
    }

    #[test]
    fn results_that_a_worker_brings_through_a_queue_one_by_one() {
        let way = Hops::new().thread(100, 101, "web").on(HopKind::Reply, "recvfrom").target("127.0.0.1:6379");
        let way = way.thread(200, 200, "redis-server").on(HopKind::OtherRequest, "epoll_wait");
        let service = || ServiceBuilder::new(8080).requests(12, 490.0).workers(12).part(way.clone(), 0.99).cpu(0.01);
        let report = crate::judge::judge(&with(service().gaps(80_000_000, 82_000_000, 90_000_000)));
        assert_eq!(report.verdict.cause.as_deref(), Some("serialized-service"));
        // Whether a worker brings them, or they are news that come at even times, was not seen.
        assert_eq!(report.verdict.confidence, Confidence::Medium);
        // Messages that come for all who wait at once, or at any time, are news.
        assert_eq!(verdict_of(&with(service().gaps(0, 1_000_000, 400_000_000))), "healthy");
    }

    #[test]
    fn what_another_request_brings_is_owed_by_nobody() {
        let way = Hops::new().thread(100, 101, "redis-server").on(HopKind::OtherRequest, "epoll_wait");
        let service = ServiceBuilder::new(6379).requests(10, 500.0).gaps(99_000_000, 100_000_000, 101_000_000);
        assert_eq!(verdict_of(&with(service.part(way, 0.999).cpu(0.001))), "healthy");
    }
}
