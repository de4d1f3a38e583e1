//! Requests wait in the accept queue or unread while all workers are blocked in other requests.
//!
//! Look-alikes: one worker (serialized-service), workers that wait for a disk, a lock, a name server, another server or their quota
//! (that is the cause then), and workers at work on a CPU (user-cpu-bound, or at capacity).
use super::base::{Candidate, Cause, Outcome};
use super::common::{Waits, beyond, limited, not_spent, outstanding};
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::facts::requests::{Kept, UsedUp};
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "workers-exhausted",
    title: "All workers are blocked",
    test,
    symptom: |facts| facts.requests.share(Spent::Workers),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Workers) else { return not_spent(facts, Spent::Workers) };
    if let Some(keeping) = waits.kept_by_workers() {
        return kept(waits, keeping).holds();
    }
    if let Some(UsedUp::Threads { count, syscall, on }) = waits.used_up() {
        return in_hand(waits, count, syscall, on).holds();
    }
    let did = waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default();
    let (holder, at_a_time) = waits.queue().unwrap_or((waits.leaf, waits.service.rec.workers));
    let workers = match at_a_time {
        1 => "the only worker".to_string(),
        several => format!("one of {}", units::plural(u64::from(several), "worker", "workers")),
    };
    let summary = waits.summary(&format!(
        "Requests wait {} until {workers} of {} is free; {} {did}.",
        waits.each(),
        units::or(&holder.process, "the service"),
        named(waits.last_thread())
    ));
    let mut evidence = vec![
        outstanding(waits.service),
        words::valued("requests worked on at a time, mean", waits.at_a_time(), "requests"),
        words::valued("threads reading or answering", f64::from(waits.service.rec.workers), "threads"),
    ];
    evidence.extend(waits.limit_in_hands(holder.pid).into_iter().flat_map(limited));
    let kept = waits.limit_in_hands(holder.pid).filter(|limit| limit.by_connections);
    let fix = match waits.limit_beyond() {
        Some((server, most)) => beyond(&server, most),
        None if kept.is_some() => format!(
            "Let {} serve more connections at a time (its limit of threads), or close idle ones sooner (its keep-alive timeout).",
            units::or(&holder.process, "this service")
        ),
        None => format!(
            "Run more workers of {}, or let them not block on this in a request.",
            units::or(&holder.process, "this service")
        ),
    };
    // A request takes less time than the connection on which others come behind it.
    let of_requests = waits.limit_in_hands(holder.pid).filter(|_| kept.is_none());
    let each_ns = of_requests.map_or(0.0, |limit| limit.each_ns as f64);
    let mut candidate = waits.candidate(summary, evidence, fix);
    candidate.requests.iter_mut().for_each(|loss| loss.of_turns(at_a_time, each_ns));
    candidate.holds()
}

/// The threads of a pool behind an event loop have all been blocked for the whole window, and no request is answered.
fn in_hand(waits: Waits<'_, '_>, count: u64, call: &str, on: &str) -> Candidate {
    let name = units::or(&waits.leaf.process, "the service").to_string();
    let on = if on.is_empty() { String::new() } else { format!(" ({on})") };
    let given_up = waits.given_up();
    let summary = waits.summary(&format!(
        "{name} answers nothing, and {} were given up by their clients. Its event loop is idle, and {} of it sat in {call}{on} for the whole \
         time: nobody is left to whom it could give what the requests need.",
        units::plural(given_up, "request", "requests"),
        units::plural(count, "thread", "threads"),
    ));
    let evidence = vec![
        words::counted("threads that were blocked in the same call for the whole window", count),
        words::counted("requests that their clients gave up", given_up),
    ];
    let fix = format!(
        "Do not let threads of the pool of {name} block without end on this (open it without blocking, or read it in a process of its own), \
         or give the pool more threads (UV_THREADPOOL_SIZE, the size of its executor)."
    );
    let mut candidate = waits.candidate(summary, evidence, fix);
    candidate.gaps.push(Gap::Inferred("that the requests wait for these threads was not seen"));
    candidate
}

/// Each worker keeps a connection whose client asks for nothing most of the time, and nobody is left to accept further ones.
fn kept(waits: Waits<'_, '_>, Kept { by, workers: count }: Kept<'_>) -> Candidate {
    let name = units::or(&waits.leaf.process, "the service").to_string();
    let workers = units::plural(count, "worker", "workers");
    let summary = waits.summary(&format!(
        "Each of the {workers} of {name} keeps one connection and accepts the next one when that closes. They were at work on a \
         request for {} of the time.",
        units::percent(ratio(by.worked_ns as f64, by.observed_ns as f64 * count as f64))
    ));
    let evidence = vec![words::counted("threads that keep a connection each when the window ended", count)];
    let fix = format!(
        "Run more workers of {name}, close idle connections sooner (its keep-alive timeout), or let one worker serve many connections \
         (an event loop, such as Apache's event module or a proxy in front)."
    );
    waits.candidate(summary, evidence, fix)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowRecord, HopKind, Limit, Role};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS};

    #[test]
    fn a_server_at_a_unix_socket_that_serves_one_at_a_time() {
        let verdict = |between: HopKind| {
            let way = Hops::new().thread(100, 101, "smtpd").on(HopKind::Pipe, "read");
            let way = way.thread(200, 201, "saslauthd").on(between, "");
            let way = way.on(HopKind::Reply, "select").target("127.0.0.1:1143");
            let way = way.thread(300, 301, "imapd").on(HopKind::Timer, "clock_nanosleep");
            judge(&with(ServiceBuilder::new(25).requests(60, 200.0).workers(5).part(way, 0.98).cpu(0.02)))
        };
        let report = verdict(HopKind::Unread);
        assert_eq!(report.verdict.cause.as_deref(), Some("workers-exhausted"), "{report:#?}");
        let begin = "Requests wait 196 ms until the only worker of saslauthd is free; ";
        assert!(report.verdict.summary.starts_with(begin), "{}", report.verdict.summary);
        let fix = &report.findings[0].fix.text;
        assert!(fix.starts_with("Run more workers of saslauthd"), "{fix}");
        // Nobody was before it: it waits for what its server waits for.
        assert_eq!(verdict(HopKind::Worker).verdict.cause.as_deref(), Some("timer-wait"));
    }

    #[test]
    fn workers_that_keep_idle_connections() {
        let hops = Hops::new().thread(99, 99, "apache2").on(HopKind::AcceptQueue, "pselect6");
        let spent = |flows: Vec<FlowRecord>, workers: u32| {
            let mut capture = with(ServiceBuilder::new(8080).requests(30, 0.1).workers(workers).cpu(1.0));
            let mut waited = ServiceBuilder::new(8080).unanswered(5, 900.0).part(hops.clone(), 1.0).build();
            (waited.waited, waited.pids) = (true, vec![99]);
            capture.services.push(waited);
            capture.flows = flows;
            crate::judge::facts::Facts::new(&capture, &capture.services.clone())
                .requests
                .waited()
                .flat_map(|service| service.parts.iter().map(|part| part.spent))
                .next()
        };
        let flow = |id: u64, tid: u32| {
            let mut flow = FlowBuilder::new(id, Role::Server).owner(100, tid).fill().record;
            flow.local.set_port(8080);
            flow
        };
        assert_eq!(spent((1..=3).map(|id| flow(id, 101)).collect(), 3), Some(super::Spent::Workers));
        // Workers that serve several connections each could accept more.
        assert_eq!(spent((1..=7).map(|id| flow(id, 101)).collect(), 3), Some(super::Spent::NotAccepted));
        // A thread for each connection; three closed before three others were accepted.
        let replaced = |until_ns: u64| -> Vec<FlowRecord> {
            let closed = (1..=3).map(|id| FlowRecord { end_ns: until_ns, ..flow(id, 100 + id as u32) });
            let open = (4..=6).map(|id| FlowRecord { begin_ns: 900 * MS, ..flow(id, 100 + id as u32) });
            closed.chain(open).collect()
        };
        assert_eq!(spent(replaced(800 * MS), 6), Some(super::Spent::Workers));
        assert_eq!(spent(replaced(950 * MS), 6), Some(super::Spent::NotAccepted), "six were open at a time");
        let one_thread = replaced(800 * MS).into_iter().map(|flow| FlowRecord { last_tid: 101, ..flow });
        assert_eq!(spent(one_thread.collect(), 2), Some(super::Spent::NotAccepted));
    }

    #[test]
    fn processes_that_serve_one_connection_each() {
        let client = |hops: Hops| hops.on(HopKind::Client, "poll").target("10.0.0.2:50000");
        let verdict = |processes: u32, setup: bool| {
            let waits = client(Hops::new().thread(100, 100, "smtpd").on(HopKind::AcceptQueue, ""));
            let mut capture = with(ServiceBuilder::new(7000).requests(40, 250.0).part(waits, 0.9).cpu(0.1));
            // Waits before the last request of a connection that is opened for a few.
            capture.services[0].path[0].setup = setup;
            let flow = |n: u32| FlowBuilder::new(u64::from(n), Role::Server).owner(99 + n, 99 + n).talks(3, 100);
            capture.flows = (1..=processes).map(|n| flow(n).fill().record).collect();
            judge(&capture)
        };
        for setup in [false, true] {
            let report = verdict(5, setup);
            assert_eq!(report.verdict.cause.as_deref(), Some("workers-exhausted"), "{report:#?}");
            assert!(report.verdict.summary.contains("one of 5 workers"), "{}", report.verdict.summary);
            assert_eq!(verdict(1, setup).verdict.cause.as_deref(), Some("serialized-service"));
        }
    }

    #[test]
    fn connections_that_are_served_until_they_close() {
        let verdict = |ends_seen: bool, limited: bool| {
            let waits = Hops::new().thread(100, 101, "lisp").on(HopKind::Unread, "").on(HopKind::Worker, "futex");
            let client =
                |hops: Hops| hops.thread(100, 102, "lisp").on(HopKind::Client, "poll").target("10.0.0.2:50000");
            let waits = if ends_seen { client(waits) } else { waits };
            // A thread for each connection.
            let service = ServiceBuilder::new(7000).requests(60, 60.0).workers(57).part(waits, 0.9).cpu(0.1);
            let mut capture = with(service);
            let limit = Limit {
                next: None,
                by_connections: true,
                blocks: false,
                most: 3,
                waiting: 5.0,
                reached_ns: 900_000_000,
                beyond_ns: 900_000_000,
                each_ns: 160_000_000,
            };
            capture.services[0].limits = if limited { vec![limit] } else { vec![] };
            judge(&capture)
        };
        for ends_seen in [true, false] {
            let report = verdict(ends_seen, true);
            assert_eq!(report.verdict.cause.as_deref(), Some("workers-exhausted"), "{ends_seen}: {report:#?}");
            assert!(report.verdict.summary.contains("one of 3 workers"), "{}", report.verdict.summary);
            assert!(report.findings[0].fix.text.contains("keep-alive"), "{}", report.findings[0].fix.text);
            let gain = report.findings[0].gain.expect("an account of requests");
            assert!(gain.without_ms.0 < 10.0, "a request does not take as long as a connection: {gain:?}");
        }
        assert_ne!(verdict(false, false).verdict.cause.as_deref(), Some("workers-exhausted"));
    }

    #[test]
    fn says_on_what_they_are_blocked() {
        let thread = || Hops::new().thread(100, 101, "java");
        let queue = thread().on(HopKind::Unread, "").on(HopKind::Timer, "futex");
        let own = thread().on(HopKind::Timer, "futex");
        let service =
            ServiceBuilder::new(8080).requests(66, 160.0).workers(2).part(queue, 0.8).part(own, 0.19).cpu(0.01);
        let report = crate::judge::judge(&with(service));
        assert_eq!(report.verdict.cause.as_deref(), Some("workers-exhausted"));
        assert!(report.verdict.summary.contains("2 workers"), "{}", report.verdict.summary);
        assert!(report.verdict.summary.contains("timer in futex"), "{}", report.verdict.summary);
        assert!(report.findings[0].fix.text.contains("more workers of java"), "{}", report.findings[0].fix.text);
    }

    #[test]
    fn more_workers_do_not_help_before_a_server_that_takes_no_more() {
        let report = |limited: bool| {
            let way = |hops: Hops| {
                let asks = hops.on(HopKind::Reply, "recvfrom").target("127.0.0.1:9000");
                asks.thread(200, 201, "inner").on(HopKind::Timer, "futex")
            };
            let thread = || Hops::new().thread(100, 101, "java");
            let queue = way(thread().on(HopKind::Unread, ""));
            let service =
                ServiceBuilder::new(8080).requests(66, 160.0).workers(2).part(queue, 0.8).part(way(thread()), 0.2);
            let mut capture = with(service);
            let mut inner = ServiceBuilder::new(9000).requests(66, 150.0).build();
            (inner.pids, inner.followed) = (vec![200], true);
            let limit = Limit {
                next: None,
                by_connections: false,
                blocks: false,
                most: 2,
                waiting: 3.0,
                reached_ns: 900_000_000,
                beyond_ns: 900_000_000,
                each_ns: 30_000_000,
            };
            inner.limits = if limited { vec![limit] } else { vec![] };
            capture.services.push(inner);
            crate::judge::judge(&capture)
        };
        let (free, limited) = (report(false), report(true));
        assert_eq!(limited.verdict.cause.as_deref(), Some("workers-exhausted"));
        let text = |report: &parshall_evidence::Report| report.findings[0].fix.text.clone();
        assert!(text(&free).contains("more workers of java"), "{}", text(&free));
        assert!(
            text(&limited).starts_with("inner 200 (thread 201 inner) takes no more than 2 at a time")
                || text(&limited).starts_with("inner 200 takes no more than 2 at a time"),
            "{}",
            text(&limited)
        );
    }
}
