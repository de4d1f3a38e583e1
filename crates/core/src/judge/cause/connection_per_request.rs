//! A connection is opened for each request, or for a few: each pays for a handshake, and for what a protocol asks before its first
//! request.
//!
//! Look-alikes: short connections whose opening costs next to nothing beside the request; connections that end in a reset (`resets`);
//! those whose cost is the TLS handshake's computing (`handshake-per-request`).
use parshall_evidence::HopKind;

use super::base::{Candidate, Cause, Outcome, denied, place_of, stalls};
use super::common::Waits;
use super::handshake_per_request;
use crate::judge::chain::named;
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, count, share};
use crate::judge::facts::network::OF_LIFE_MIN;
use crate::judge::facts::{Blame, Facts, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

const FIX: &str = "Keep connections open and use them again: keep-alive (`Connection: keep-alive` at both ends, a large enough limit of \
    idle connections in the client's pool), or a connection pool before a database (pgbouncer).";

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "connection-per-request",
    title: "A connection is opened for each request",
    test,
    symptom: |facts| facts.network.setup.connections as f64,
    testable: |facts| record::flows(facts) || record::requests(facts),
};

fn test(facts: &Facts<'_>) -> Outcome {
    let parts = facts.requests.counted().flat_map(|service| service.lost_to(Spent::Setup));
    let of_service_ns: f64 = parts.map(|part| part.ns).sum();
    // The serving process has a small part of it, where the distance takes most.
    let far = facts.blamed(&[Blame::Setup]).ns > of_service_ns;
    match Waits::on(facts, Spent::Setup).filter(|_| !far) {
        Some(waits) => of_requests(waits).holds(),
        None => of_flows(facts),
    }
}

/// The candidate for time that the service spends on new connections before the request that each is opened for.
fn of_requests(waits: Waits<'_, '_>) -> Candidate {
    let rec = waits.service.rec;
    if waits.leaf.kind == HopKind::Connect {
        let summary = waits.summary(&format!(
            "{} opens a connection to {} for nearly each request, which takes {}.",
            named(waits.leaf),
            units::or(&waits.leaf.target, "a server"),
            waits.each()
        ));
        return waits.candidate(summary, Vec::new(), FIX);
    }
    let did = waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default();
    let each = ratio(rec.requests as f64, rec.connections as f64);
    let summary = waits.summary(&format!(
        "Each connection is opened for {each:.1} requests, and those before the last one take {} a request; {} {did}.",
        waits.each(),
        named(waits.leaf)
    ));
    let evidence = vec![
        words::counted("connections with requests", rec.connections),
        words::counted("of them, opened within the observed time", rec.opened),
    ];
    waits.candidate(summary, evidence, FIX)
}

fn of_flows(facts: &Facts<'_>) -> Outcome {
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    let setup = &facts.network.setup;
    let opened = || count(setup.connections as u64, "connections", "opened for a few exchanges");
    if handshake_per_request::explains(facts) {
        return denied(Denial::of(opened()).because("their TLS handshakes are what costs time"));
    }
    let of_life = ratio(setup.setup_ns, setup.life_ns);
    let lost = facts.blamed(&[Blame::Setup]);
    if lost.ns == 0.0 {
        return denied(Denial::of(opened()).and(share(of_life, "of their life spent on opening them")));
    }
    let rate = ratio(setup.opened as f64, facts.window_s());
    let to = setup.service.map(|address| format!(" to {address}")).unwrap_or_default();
    let each =
        if setup.exchanges > 1.5 { format!("{:.1} exchanges", setup.exchanges) } else { "one exchange".to_string() };
    let summary = format!(
        "{} a second{to}, each for {each}: {} of the {} that one lives go into opening it.",
        units::plural_f(rate, "connection", "connections"),
        units::duration(setup.setup_ns),
        units::duration(setup.life_ns)
    );
    let evidence = vec![
        words::counted("connections opened in the window", setup.opened),
        words::valued("exchanges on each, mean of those seen whole", setup.exchanges, ""),
        words::valued("life of a connection, mean", setup.life_ns / 1e6, "ms"),
        words::valued("of it, opening: one round trip, and the exchanges before the last", setup.setup_ns / 1e6, "ms"),
        stalls("connections", &lost),
    ];
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, FIX);
    candidate.min_share = OF_LIFE_MIN;
    if setup.exchanges > 1.5 {
        candidate.gaps.push(Gap::Inferred("which of the exchanges only open a connection was not seen"));
    }
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, FlowState, HopKind, Release, Role};

    use super::CAUSE;
    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    /// Forty connections of one exchange, with a round trip of `rtt_ms` and an answer after `answer_ms` more.
    fn short(rtt_ms: u64, answer_ms: u64) -> Capture {
        let flows = (0..40).map(|i| {
            let life = (2 * rtt_ms + answer_ms).max(1) * MS;
            let mut flow = FlowBuilder::new(2 * i, Role::Client)
                .remote_host()
                .cell(FlowState::IdleAfterSend, Release::AppSend, rtt_ms * MS, 1)
                .cell(FlowState::InFlight, Release::RxData, (rtt_ms + answer_ms).max(1) * MS, 1)
                .talks(1, 64);
            (flow.record.begin_ns, flow.record.end_ns) = (i * 10 * MS + 1, i * 10 * MS + 1 + life);
            flow.record.last.min_rtt_us = (rtt_ms * 1000).max(30) as u32;
            flow.record.last.state = 7;
            // The first send of a client follows no receive.
            flow.record.calls.exchanges = 0;
            flow
        });
        capture(flows.collect(), vec![])
    }

    #[test]
    fn the_handshake_is_half_of_a_short_life() {
        assert_eq!(verdict_of(&short(10, 0)), "connection-per-request");
        assert_ne!(verdict_of(&short(10, 90)), "connection-per-request");
        assert_eq!(verdict_of(&short(0, 0)), "healthy");
    }

    /// Connections of a fraction of a millisecond, of which a third is their opening: as many a second.
    fn brief(rate: u64) -> Capture {
        let gap_ns = 1_000_000_000 / rate;
        let flows = (0..rate).map(|i| {
            let mut flow = FlowBuilder::new(2 * i, Role::Client)
                .cell(FlowState::InFlight, Release::RxData, 900_000, 2)
                .talks(2, 64);
            (flow.record.begin_ns, flow.record.end_ns) = (i * gap_ns + 1, i * gap_ns + 900_001);
            (flow.record.last.min_rtt_us, flow.record.last.state) = (30, 7);
            flow.record.calls.exchanges = 1;
            flow
        });
        capture(flows.collect(), vec![])
    }

    #[test]
    fn a_few_short_connections_to_a_service_without_work_are_no_fault() {
        let idle = judge(&brief(20));
        assert_eq!(idle.verdict.status, parshall_evidence::Status::Healthy, "{idle:#?}");
        let entry = idle.ruled_out.iter().find(|entry| entry.cause == CAUSE.id).expect("an entry");
        assert!(entry.seen && entry.why.contains("a connection"), "{}", entry.why);
        // A client that opens the next one as soon as it is answered could ask twice as often.
        assert_eq!(verdict_of(&brief(800)), CAUSE.id);
        // Nor are connections that take a few milliseconds to open, of which there are a few a second.
        let few = |count: usize| {
            let mut capture = short(2, 0);
            capture.flows.truncate(count);
            verdict_of(&capture)
        };
        assert_eq!(few(10), "healthy");
        assert_eq!(few(40), CAUSE.id);
    }

    #[test]
    fn the_larger_account_of_an_opening_counts() {
        // The service itself takes a little of each opening, the distance takes most.
        let made = |ms: f64| {
            let way = Hops::new().thread(100, 101, "daemon").on(HopKind::OnCpu, "");
            let mut capture = short(10, 0);
            capture.services = vec![ServiceBuilder::new(9418).requests(40, ms).part(way, 0.99).build()];
            capture.services[0].path[0].setup = true;
            let report = judge(&capture);
            (report.verdict.cause.clone().unwrap_or_default(), report.verdict.summary)
        };
        let (cause, summary) = made(2.0);
        assert_eq!(cause, "connection-per-request");
        assert!(summary.contains("connections a second"), "{summary}");
        let (cause, summary) = made(40.0);
        assert_eq!(cause, "connection-per-request");
        assert!(summary.contains("Each connection is opened for"), "{summary}");
    }

    #[test]
    fn a_database_makes_a_process_for_each_query() {
        let made = || Hops::new().thread(100, 101, "postgres").on(HopKind::OnCpu, "");
        let service = ServiceBuilder::new(5432).requests(900, 4.0).part(made(), 0.9).cpu(0.1);
        let mut capture = with(service);
        assert_eq!(verdict_of(&capture), "user-cpu-bound");
        capture.services[0].path[0].setup = true;
        let report = judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("connection-per-request"), "{report:#?}");
        assert!((report.findings[0].share - 0.9).abs() < 0.01);
    }

    #[test]
    fn what_a_new_connection_waits_for_may_have_a_cause_of_its_own() {
        let of = |way: Hops| {
            let mut capture = with(ServiceBuilder::new(3306).requests(60, 180.0).part(way, 0.99).cpu(0.01));
            capture.services[0].path[0].setup = true;
            verdict_of(&capture)
        };
        let made = || Hops::new().thread(100, 101, "mariadbd");
        assert_eq!(of(made().on(HopKind::OnCpu, "")), "connection-per-request");
        assert_eq!(of(made().on(HopKind::NameServer, "poll").target("127.0.0.1:53")), "blocking-dns");
        assert_eq!(of(made().on(HopKind::Disk, "fsync")), "blocking-disk-io");
        // The thread that should accept it waits for the client of another one.
        let busy = made().on(HopKind::AcceptQueue, "").thread(100, 101, "mariadbd").on(HopKind::Client, "poll");
        assert_ne!(of(busy), "connection-per-request");
        // It computes for others: it would do so before requests of a connection that is kept, too. A process that only forks would not.
        let computes = |pid| made().on(HopKind::AcceptQueue, "").thread(pid, 101, "mariadbd").on(HopKind::OnCpu, "");
        assert_eq!(of(computes(100)), "user-cpu-bound");
        assert_eq!(of(computes(99)), "connection-per-request");
    }

    #[test]
    fn each_request_waits_for_a_connection_to_a_server() {
        let to = "203.0.113.9:8000";
        let connects = || Hops::new().thread(100, 101, "app").on(HopKind::Connect, "epoll_wait").target(to);
        let replies = || Hops::new().thread(100, 101, "app").on(HopKind::Reply, "epoll_wait").target(to);
        let service =
            ServiceBuilder::new(7000).requests(200, 20.0).part(connects(), 0.55).part(replies(), 0.4).cpu(0.05);
        let mut capture = with(service);
        let report = judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("connection-per-request"));
        assert!(report.verdict.summary.contains("to 203.0.113.9:8000 for nearly each"), "{}", report.verdict.summary);
        // One of many that takes long is no habit.
        capture.services[0].path[0].requests = 5;
        assert_ne!(verdict_of(&capture), "connection-per-request");
    }

    #[test]
    fn what_explains_itself_opens_no_connection() {
        let way = |leaf: HopKind| Hops::new().thread(100, 101, "app").on(leaf, "recvfrom");
        let verdict = |leaf: HopKind, share: f64| {
            let mut capture = with(ServiceBuilder::new(7000).requests(50, 100.0).part(way(leaf), share).cpu(0.04));
            capture.services[0].path[0].setup = true;
            verdict_of(&capture)
        };
        assert_eq!(verdict(HopKind::Client, 0.96), "connection-per-request");
        assert_eq!(verdict(HopKind::NameServer, 0.96), "blocking-dns");
        assert_eq!(verdict(HopKind::Unseen, 0.96), "insufficient-evidence");
        // Most of the time was not seen: what was tells of a little only.
        assert_ne!(verdict(HopKind::Client, 0.20), "connection-per-request");
    }
}
