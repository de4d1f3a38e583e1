//! One answer after the other: a client that has one small request under way at a time over a distance, or a service that asks
//! another one many times in each of its own requests, where one question would do.
//!
//! Look-alikes: a peer that takes its time to answer (`peer-think-time`: longer than the round trip), a client that pauses between
//! requests (its time is idle), a connection for each request (`connection-per-request`).
use parshall_evidence::{Evidence, PeerCommand};

use super::base::{Candidate, Cause, Outcome, not_lost, place_of, stalls};
use crate::judge::facts::network::Chatter;
use crate::judge::facts::{Blame, Facts, Lost, rtt_ns};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "serial-protocol",
    title: "Many round trips, one after the other",
    test,
    symptom: |facts| facts.share_in(&[State::InFlight]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::RoundTrips]);
    let Some(worst) = lost.worst() else {
        let otherwise = "with pauses between the requests, or with a short RTT";
        return not_lost(facts, "with a message in flight", &[State::InFlight], otherwise);
    };
    let pid = facts.flows[worst].rec.pid;
    match facts.network.chatter.iter().filter(|c| c.pid == pid).max_by(|a, b| a.share.total_cmp(&b.share)) {
        Some(chatter) => many_questions(facts, chatter, &lost),
        None => one_at_a_time(facts, worst, &lost),
    }
}

fn many_questions(facts: &Facts<'_>, chatter: &Chatter, lost: &Lost) -> Outcome {
    let name = facts.capture.subject.pids.iter().position(|&pid| pid == chatter.pid);
    let name =
        name.and_then(|i| facts.capture.subject.comms.get(i)).map(|comm| format!(" ({comm})")).unwrap_or_default();
    let summary = format!(
        "Process {}{name} asks {} {} in each of its requests, one after the other, {} each.",
        chatter.pid,
        chatter.asked,
        units::plural_f(chatter.per_request, "time", "times"),
        units::duration(chatter.each_ns)
    );
    let evidence = vec![
        words::valued("questions per request", chatter.per_request, ""),
        words::valued("time of one question, mean", chatter.each_ns / 1e6, "ms"),
        words::valued("share of the requests' time", chatter.share, "1"),
        Evidence { scaled: lost.scaled, ..words::counted("questions", chatter.questions.round() as u64) },
    ];
    let fix = format!(
        "Ask once: a join or `WHERE id IN (...)` instead of a query per row, a batch call (mget, multi-get), or a pipeline; or ask \
         concurrently. `parshall attach --port {}` shows the other end.",
        chatter.asked.port()
    );
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, lost), summary, evidence, fix);
    candidate.peer =
        Some(PeerCommand { command: format!("parshall attach --port {}", chatter.asked.port()), host: None });
    candidate.holds()
}

fn one_at_a_time(facts: &Facts<'_>, worst: usize, lost: &Lost) -> Outcome {
    let flow = &facts.flows[worst];
    let rtt = rtt_ns(flow);
    let rate = ratio(flow.rec.calls.exchanges as f64 * flow.ledger.scale, flow.ledger.wall_ns / 1e9);
    let summary = format!(
        "{}: one request is under way at a time, and the next one follows the reply: {} a second, each a round trip of {}.",
        super::base::who(facts, lost),
        words::about(flow.ledger.scaled, units::count_f(rate)),
        units::duration(rtt)
    );
    let evidence = vec![
        stalls("round trips", lost),
        words::valued("requests a second on this flow", rate, ""),
        words::valued("least round trip", rtt / 1e6, "ms"),
        words::valued("flow in flight, of its time", ratio(flow.ledger.of(State::InFlight), flow.ledger.wall_ns), "1"),
    ];
    let fix = "Send several requests before the first reply is there (a pipeline, a batch, HTTP/2 streams), ask for more with each \
               (mget, IN (...)), use several connections, or move the client nearer.";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, lost), summary, evidence, fix);
    candidate.min_share = 0.5;
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use crate::testkit::service::ServiceBuilder;
    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    fn distant(in_flight_ms: u64, exchanges: u64) -> FlowBuilder {
        let mut flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .cell(FlowState::InFlight, Release::RxData, in_flight_ms * MS, exchanges)
            .talks(exchanges, 64);
        flow.record.last.min_rtt_us = 4000;
        flow
    }

    #[test]
    fn one_small_request_at_a_time_over_a_distance() {
        assert_eq!(verdict_of(&capture(vec![distant(970, 240)], vec![])), "serial-protocol");
        // It pauses between requests.
        assert_eq!(verdict_of(&capture(vec![distant(300, 75)], vec![])), "healthy");
        // Many requests share a round trip.
        assert_eq!(verdict_of(&capture(vec![distant(970, 5000)], vec![])), "healthy");
    }

    #[test]
    fn large_answers_one_at_a_time_that_come_in_one_round_trip_each() {
        // The server's end, whose client was not observed: each of its answers of 32 KiB is on the way for `each_ms`, of 4 ms of distance.
        let blocks = |each_ms: u64, exchanges: u64, requests: u64| {
            let mut flow = FlowBuilder::new(1, Role::Server)
                .remote_host()
                .cell(FlowState::InFlight, Release::RxAck, each_ms * exchanges * MS, exchanges)
                .talks(exchanges, 100);
            flow.record.calls.send_bytes = exchanges * 32_768;
            flow.record.last.min_rtt_us = 4000;
            let mut capture = capture(vec![flow], vec![]);
            capture.services = vec![ServiceBuilder::new(7000).requests(requests, 0.1).cpu(1.0).build()];
            verdict_of(&capture)
        };
        assert_eq!(blocks(4, 240, 240), "serial-protocol");
        // The rate of the path, or a window, takes most of the time: with several at a time each would take longer.
        assert_ne!(blocks(8, 120, 120), "serial-protocol");
        // It has time between them.
        assert_eq!(blocks(4, 100, 100), "healthy");
        // Three requests: what comes between is told to the sender so that it goes on.
        assert_ne!(blocks(4, 240, 3), "serial-protocol");
    }

    #[test]
    fn a_service_that_asks_thirty_times_in_each_request() {
        let served = FlowBuilder::new(2, Role::Server)
            .cell(FlowState::IdleAfterRecv, Release::AppSend, 900 * MS, 200)
            .talks(200, 100);
        let asks = |times: u64| {
            let mut flow = FlowBuilder::new(5, Role::Client)
                .cell(FlowState::InFlight, Release::RxData, 600 * MS, 200 * times)
                .talks(200 * times, 80);
            flow.record.remote.set_port(5432);
            flow
        };
        let report = crate::judge::judge(&capture(vec![served.clone(), asks(30)], vec![]));
        assert_eq!(report.verdict.cause.as_deref(), Some("serial-protocol"));
        assert!(report.verdict.summary.contains("asks 127.0.0.1:5432 30 times"), "{}", report.verdict.summary);
        assert_ne!(verdict_of(&capture(vec![served, asks(1)], vec![])), "serial-protocol");
    }

    #[test]
    fn questions_over_a_distance_take_no_longer_than_their_round_trips() {
        let asks = |rtt_us: u32| {
            let served = FlowBuilder::new(2, Role::Server)
                .cell(FlowState::IdleAfterRecv, Release::AppSend, 900 * MS, 8)
                .talks(8, 100);
            let mut flow = FlowBuilder::new(5, Role::Client)
                .remote_host()
                .cell(FlowState::InFlight, Release::RxData, 800 * MS, 48)
                .talks(48, 80);
            flow.record.last.min_rtt_us = rtt_us;
            verdict_of(&capture(vec![served, flow], vec![]))
        };
        assert_eq!(asks(16_000), "serial-protocol");
        // Its answers are slow.
        assert_ne!(asks(2_000), "serial-protocol");
    }

    #[test]
    fn a_round_trip_that_was_seen_in_slices_has_its_own_length() {
        let mut capture = capture(vec![distant(970, 240)], vec![]);
        for flow in &mut capture.flows {
            flow.cells.iter_mut().for_each(|cell| (cell.ns, cell.count) = (cell.ns / 5, cell.count / 5));
            (flow.observed_ns, flow.calls.exchanges) = (flow.observed_ns / 5, flow.calls.exchanges / 5);
        }
        let report = crate::judge::judge(&capture);
        let trips = report.findings[0].evidence.iter().find(|e| e.what == "round trips").expect("they are counted");
        assert_eq!((trips.count, trips.p50_ms.map(|ms| ms.round())), (Some(240), Some(4.0)), "{trips:?}");
    }

    #[test]
    fn questions_that_were_seen_in_slices_are_scaled_once() {
        let served = FlowBuilder::new(2, Role::Server)
            .cell(FlowState::IdleAfterRecv, Release::AppSend, 900 * MS, 200)
            .talks(200, 100);
        let mut asks = FlowBuilder::new(5, Role::Client)
            .cell(FlowState::InFlight, Release::RxData, 500 * MS, 6000)
            .cell(FlowState::IdleAfterSend, Release::RxData, 200 * MS, 6000)
            .talks(6000, 80);
        asks.record.remote.set_port(5432);
        let mut capture = capture(vec![served, asks], vec![]);
        // A fifth of the window was observed.
        for flow in &mut capture.flows {
            flow.cells.iter_mut().for_each(|cell| (cell.ns, cell.count) = (cell.ns / 5, cell.count / 5));
            (flow.observed_ns, flow.calls.exchanges) = (flow.observed_ns / 5, flow.calls.exchanges / 5);
        }
        let report = crate::judge::judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("serial-protocol"), "{:#?}", report.verdict);
        let counted = |what: &str| report.findings[0].evidence.iter().find(|e| e.what == what).and_then(|e| e.count);
        assert_eq!(counted("questions"), Some(6000), "{:#?}", report.findings[0].evidence);
    }
}
