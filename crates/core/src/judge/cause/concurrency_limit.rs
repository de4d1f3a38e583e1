//! A process on the way of the requests passes no more than a few at a time on to the server that it asks: a pool of connections, a
//! semaphore, `maxSockets`, a limit of streams. The others wait in the process for their turn.
//!
//! So do connections that are all in hand while nobody answers (they were not given back), and a limit on the connections that it has
//! at a time, which keeps it from accepting further ones.
//!
//! Look-alikes: a server that is slow because what it needs is scarce, a CPU, a disk, a lock: more at a time would wait there instead,
//! and that is the cause; and a limit on what a process takes in at all (workers-exhausted, serialized-service).
use super::base::{Candidate, Cause, Outcome};
use super::common::{Waits, limited, not_spent, outstanding};
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::facts::requests::{Turn, UsedUp};
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "concurrency-limit",
    title: "Too few requests are passed on at a time",
    test,
    symptom: |facts| facts.requests.share(Spent::Turn),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Turn) else { return not_spent(facts, Spent::Turn) };
    if let Some(UsedUp::Connections { next, count }) = waits.used_up() {
        return unused(waits, &next.to_string(), count).holds();
    }
    if let Some(connections) = waits.full() {
        return full(waits, connections).holds();
    }
    let Some(Turn { hop: holder, limit, helper }) = waits.turn() else { return not_spent(facts, Spent::Turn) };
    let next = limit.next.map_or_else(String::new, |next| next.to_string());
    let most = units::plural(u64::from(limit.most), "request", "requests");
    let who = named(holder);
    let kept = format!(
        "{who} has {} to {next}, each of which it keeps for one client at a time; {} more wait in it for theirs, {} a request.",
        units::plural(u64::from(limit.most), "connection", "connections"),
        units::decimal(limit.waiting),
        waits.each()
    );
    let passed = format!(
        "{who} passes no more than {most} at a time on to {next}, for {} each; {} more wait in it for their turn, {} a request.",
        units::duration(limit.each_ns as f64),
        units::decimal(limit.waiting),
        waits.each()
    );
    let helper = helper.map(|helper| &helper.process);
    let through = |helper: &String| {
        format!(
            "{who} has {helper} ask {next} for no more than {most} at a time, for {} each; {} more wait in front of it for their turn, {} a \
             request.",
            units::duration(limit.each_ns as f64),
            units::decimal(limit.waiting),
            waits.each()
        )
    };
    let summary = waits.summary(&match helper {
        Some(helper) => through(helper),
        None if limit.by_connections => kept,
        None => passed,
    });
    let mut evidence = vec![outstanding(waits.service)];
    evidence.extend(limited(limit));
    let what = match helper {
        Some(helper) => format!("more processes of {helper}, or more threads that ask it"),
        None => "the size of its connection pool, a semaphore, maxSockets, a limit of streams".to_string(),
    };
    let fix = format!("Let {who} ask {next} for more than {} at a time ({what}).", limit.most);
    let place = (holder.pid, holder.tid);
    let mut candidate = waits.candidate(summary, evidence, fix);
    (candidate.place.pid, candidate.place.tid) = (Some(place.0), Some(place.1));
    candidate.requests.iter_mut().for_each(|loss| loss.of_turns(limit.most, limit.each_ns as f64));
    candidate.holds()
}

/// The connections of a pool are open and idle, and no request is answered: whoever had them has not given them back.
fn unused(waits: Waits<'_, '_>, next: &str, count: u64) -> Candidate {
    let who = named(waits.leaf);
    let given_up = waits.given_up();
    let summary = waits.summary(&format!(
        "{who} answers nothing, and {} were given up by their clients. It waits for nobody, and all of its {} to {next} are \
         open and idle: they are taken, and were not given back.",
        units::plural(given_up, "request", "requests"),
        units::plural(count, "connection", "connections"),
    ));
    let evidence = vec![
        words::counted("connections of its pool on which nothing moved", count),
        words::counted("requests that their clients gave up", given_up),
    ];
    let fix = format!(
        "Find where {who} does not give a connection back (rows, a statement or a transaction that is not closed, also after an \
         error). Restart it now; a larger pool only delays this."
    );
    let mut candidate = waits.candidate(summary, evidence, fix);
    candidate.gaps.push(Gap::Inferred("what the requests wait for inside of the process was not seen"));
    candidate
}

/// A process that has time, and watches its listener no longer until a connection is closed.
fn full(waits: Waits<'_, '_>, connections: u64) -> Candidate {
    let who = named(waits.leaf);
    let summary = waits.summary(&format!(
        "{who} has {} open, and accepts no further one until one of them is closed, although it has time: new ones wait {} in its \
         listen queue.",
        units::plural(connections, "connection", "connections"),
        waits.each()
    ));
    let evidence = vec![words::counted("connections that it has open when the window ends", connections)];
    let fix = format!(
        "Raise the limit on the connections of {who} (maxconn, max_connections, worker_connections, max clients), or close idle ones sooner."
    );
    let min_share = waits.min_kept_out_share();
    let mut candidate = waits.candidate(summary, evidence, fix);
    candidate.min_share = min_share;
    candidate
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, HopKind, Limit};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::verdict_of;

    /// Eight clients of a proxy that asks a server, which takes 50 ms with each, for `most` at a time.
    fn proxy(most: u32, leaf: HopKind) -> ServiceBuilder {
        let asks = |hops: Hops| {
            hops.on(HopKind::Reply, "epoll_wait").target("127.0.0.1:9000").thread(200, 201, "app").on(leaf, "")
        };
        let turn = Hops::new().thread(100, 101, "node").on(HopKind::Turn, "epoll_wait").target("127.0.0.1:9000");
        let turn = asks(turn.thread(100, 101, "node"));
        let own = asks(Hops::new().thread(100, 101, "node"));
        let mut service = ServiceBuilder::new(8080).requests(80, 400.0).part(turn, 0.85).part(own, 0.14).cpu(0.01);
        service.record.limits = vec![Limit {
            next: Some("127.0.0.1:9000".parse().expect("an address")),
            by_connections: false,
            blocks: false,
            most,
            waiting: 8.0 - f64::from(most),
            reached_ns: 1_900_000_000,
            beyond_ns: 2_000_000_000,
            each_ns: 50_000_000,
        }];
        service
    }

    /// Sixteen clients of a name server whose three scripts ask a server, which takes 25 ms, for `each_ms` with all that lay before.
    fn scripts(before: Hops, each_ms: f64) -> ServiceBuilder {
        let way = before.thread(100, 101, "pdns").on(HopKind::Pipe, "poll").thread(300, 300, "zones.py");
        let way = way.on(HopKind::Reply, "recvfrom").target("127.0.0.1:9000").thread(200, 201, "app");
        let way = way.on(HopKind::Timer, "epoll_wait");
        let mut service = ServiceBuilder::new(53).requests(220, each_ms).part(way, 0.99).cpu(0.01);
        service.record.limits = vec![Limit {
            most: 3,
            waiting: 13.0,
            each_ns: 25_000_000,
            ..proxy(3, HopKind::Timer).record.limits[0].clone()
        }];
        service
    }

    #[test]
    fn helpers_that_ask_for_a_few_at_a_time() {
        let report = judge(&with(scripts(Hops::new(), 130.0)));
        assert_eq!(report.verdict.cause.as_deref(), Some("concurrency-limit"), "{report:#?}");
        let summary = &report.verdict.summary;
        assert!(summary.contains("has zones.py ask 127.0.0.1:9000 for no more than 3 requests at a time"), "{summary}");
        let chain = report.chain.expect("a chain");
        let [hop] = chain.hops.as_slice() else { panic!("{chain:#?}") };
        assert_eq!((hop.process.as_str(), hop.waits_on.as_str()), ("pdns", "zones.py"));
        // Each has a helper at once, and waits for what that asks.
        assert_eq!(verdict_of(&with(scripts(Hops::new(), 26.0))), "timer-wait");
        // One asks them at a time, under a lock that others wait for.
        let locked = Hops::new().thread(100, 102, "pdns").on(HopKind::Lock, "futex");
        assert_eq!(verdict_of(&with(scripts(locked, 130.0))), "lock-contention");
    }

    #[test]
    fn who_has_the_limit_is_named_and_what_one_more_would_give() {
        let report = judge(&with(proxy(1, HopKind::Timer)));
        assert_eq!(report.verdict.cause.as_deref(), Some("concurrency-limit"));
        assert_eq!(report.verdict.confidence, Confidence::High);
        let finding = &report.findings[0];
        assert_eq!(finding.place.pid, Some(100));
        assert!(
            finding.summary.contains("no more than 1 request at a time on to 127.0.0.1:9000"),
            "{}",
            finding.summary
        );
        // A request that is passed on still takes its own time, and one more at a time does not give all.
        let gain = finding.gain.expect("an account of requests");
        assert!((gain.now_ms - 400.0).abs() < 1.0 && (gain.without_ms.0 - 60.0).abs() < 1.0, "{gain:?}");
        assert!((gain.without_ms.1 - 230.0).abs() < 1.0, "{gain:?}");
        let leaf = report.chain.expect("a chain").leaf;
        assert_eq!((leaf.process.as_str(), leaf.cause.as_str()), ("node", "concurrency-limit"));
    }

    #[test]
    fn the_limit_of_a_process_that_another_one_asks() {
        // A proxy waits for the service, which has not asked for the request yet: it does so for six others.
        let asks = || Hops::new().thread(50, 51, "haproxy").on(HopKind::Reply, "epoll_wait").target("127.0.0.1:8081");
        let behind = asks().thread(100, 101, "shelves").on(HopKind::OtherRequest, "poll");
        let mut inner = proxy(6, HopKind::Timer).build();
        inner.followed = true;
        inner.address.set_port(8081);
        let front = || {
            let mut front = ServiceBuilder::new(8080).requests(80, 230.0).part(behind.clone(), 1.0);
            front.record.pids = vec![50];
            front
        };
        let judged = |limited: bool| {
            let mut capture = with(front());
            capture.services.extend(limited.then(|| inner.clone()));
            judge(&capture)
        };
        let report = judged(true);
        assert_eq!(report.verdict.cause.as_deref(), Some("concurrency-limit"), "{report:#?}");
        assert_eq!(report.findings[0].place.pid, Some(100));
        let chain = report.chain.expect("a chain");
        assert_eq!((chain.hops[0].process.as_str(), chain.leaf.process.as_str()), ("haproxy", "shelves"));
        assert_ne!(judged(false).verdict.cause.as_deref(), Some("concurrency-limit"));
        // A thread of it that is blocked in each question has no limit to raise.
        inner.limits[0].blocks = true;
        let mut capture = with(front());
        capture.services.push(inner);
        let report = judge(&capture);
        assert_eq!(
            (report.verdict.cause.as_deref(), report.verdict.confidence),
            (Some("serialized-service"), Confidence::High)
        );
        let summary = &report.verdict.summary;
        assert!(summary.contains("shelves 100 is blocked in each question to 127.0.0.1:9000"), "{summary}");
    }

    #[test]
    fn a_thread_that_is_blocked_in_each_question_has_no_limit_to_raise() {
        let mut service = proxy(1, HopKind::Timer);
        service.record.limits[0].blocks = true;
        let report = judge(&with(service));
        assert_eq!(report.verdict.cause.as_deref(), Some("serialized-service"));
        let summary = &report.verdict.summary;
        assert!(
            summary.contains("a reply every 50.0 ms")
                && summary.contains("is blocked in each question to 127.0.0.1:9000"),
            "{summary}"
        );
        let chain = report.chain.expect("a chain");
        assert_eq!((chain.hops[0].waits_on.as_str(), chain.leaf.process.as_str()), ("127.0.0.1:9000", "node"));
    }

    #[test]
    fn connections_that_are_kept_for_one_client_each() {
        let waits = Hops::new().thread(100, 101, "pgbouncer").on(HopKind::OtherRequest, "epoll_wait");
        let service = |by_connections| {
            let mut service = ServiceBuilder::new(6432).requests(500, 30.0).part(waits.clone(), 0.92).cpu(0.08);
            service.record.limits = proxy(2, HopKind::Timer).record.limits;
            service.record.limits[0].by_connections = by_connections;
            service
        };
        let report = judge(&with(service(true)));
        assert_eq!(report.verdict.cause.as_deref(), Some("concurrency-limit"));
        assert!(report.verdict.summary.contains("has 2 connections to 127.0.0.1:9000"), "{}", report.verdict.summary);
        // Without a limit, what another request brings is owed by nobody.
        let mut unlimited = service(true);
        unlimited.record.limits.clear();
        assert_eq!(verdict_of(&with(unlimited)), "healthy");
    }

    #[test]
    fn what_is_scarce_behind_it_is_the_cause() {
        for (leaf, cause) in [
            (HopKind::Disk, "blocking-disk-io"),
            (HopKind::Throttled, "cpu-throttled"),
            (HopKind::NameServer, "blocking-dns"),
            (HopKind::OnCpu, "user-cpu-bound"),
        ] {
            assert_eq!(verdict_of(&with(proxy(2, leaf))), cause);
        }
    }

    #[test]
    fn threads_that_wait_for_a_connection_of_a_pool() {
        let asks = |hops: Hops| {
            hops.on(HopKind::Reply, "recvfrom").target("127.0.0.1:9000").thread(200, 201, "app").on(HopKind::Timer, "")
        };
        let pool = Hops::new().thread(100, 101, "python3").on(HopKind::Lock, "futex").thread(100, 102, "python3");
        let service = |most| {
            let own = asks(Hops::new().thread(100, 101, "python3"));
            let mut service = ServiceBuilder::new(8080).requests(80, 200.0).workers(8);
            service.record.limits = proxy(most, HopKind::Timer).record.limits;
            service.part(asks(pool.clone()), 0.75).part(own, 0.25)
        };
        assert_eq!(verdict_of(&with(service(2))), "concurrency-limit");
        // One at a time is a lock, whose holder waits for a server.
        assert_eq!(verdict_of(&with(service(1))), "lock-contention");
    }
}
