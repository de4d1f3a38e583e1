//! Each message after a pause begins with a small congestion window and needs several round trips, although the connection had carried as
//! much in one before: the kernel gives a window up that was not used for a retransmission timeout.
//!
//! Look-alikes: a stream that is at its path's capacity has no pauses; a window cut by losses (`packet-loss`); a queue on the path
//! (`bottleneck-bandwidth`); the peer's window (`rtt-window-bound`); a new connection for each message (`connection-per-request`).
use super::base::{Candidate, Cause, Outcome, not_lost, place_of, stalls, who};
use crate::judge::facts::network::largest_window;
use crate::judge::facts::{Blame, Facts, rtt_ns};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::{stream, words};
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "slow-start-after-idle",
    title: "The congestion window begins again after each pause",
    test,
    symptom: |facts| facts.share_in(&[State::CwndLimited]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some((lost, worst)) = stream::lost_to(facts, Blame::Restart) else {
        let otherwise = "without pauses between messages, or with the path at its capacity";
        return not_lost(facts, "with the congestion window full", &[State::CwndLimited], otherwise);
    };
    let flow = &facts.flows[worst];
    let message = ratio(flow.rec.acked_bytes() as f64, flow.rec.calls.exchanges as f64);
    let waited_ns = ratio(flow.ledger.of(State::CwndLimited), flow.rec.calls.exchanges as f64);
    let summary = format!(
        "{}: each message of {} waits {} for the congestion window to grow, {} round trips of {}, although the window had grown to {} \
         before: it is given up after each pause.",
        who(facts, &lost),
        units::bytes(message),
        units::duration(waited_ns),
        units::decimal(waited_ns / rtt_ns(flow)),
        units::duration(rtt_ns(flow)),
        units::bytes(largest_window(flow))
    );
    let mut evidence = vec![
        stalls("waits of a message for the congestion window", &lost),
        words::valued("bytes a message", message, "B"),
        words::valued("largest congestion window that was seen", largest_window(flow), "B"),
        words::valued("retransmission timeout", f64::from(flow.rec.last.rto_us) / 1e3, "ms"),
    ];
    if facts.settings(flow.rec.netns).is_some() {
        evidence.push(words::valued("net.ipv4.tcp_slow_start_after_idle", 1.0, ""));
    }
    evidence.extend(stream::evidence(flow));
    let fix = "Let the window stay where the sender runs: `sysctl -w net.ipv4.tcp_slow_start_after_idle=0` (in its network namespace). Less \
               to send (compression, a cache at the client) and a larger initial window of the route (`ip route change … initcwnd 40`) \
               help too."
        .to_string();
    Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, capture, settings, verdict_of};

    /// Four replies of 200 kB over 50 ms in a second, each after a pause. Each waits two round trips for the window.
    fn pages() -> FlowBuilder {
        let mut flow = FlowBuilder::new(1, Role::Server)
            .remote_host()
            .cell(FlowState::Cwnd, Release::RxAck, 300 * MS, 60)
            .cell(FlowState::InFlight, Release::RxAck, 150 * MS, 12)
            .cell(FlowState::IdleAfterSend, Release::RxData, 549 * MS, 3)
            .talks(3, 200_000);
        let record = &mut flow.record;
        (record.calls.recv_bytes, record.last.bytes_received) = (300, 300);
        (record.first.min_rtt_us, record.last.min_rtt_us, record.last.srtt_us) = (50_000, 50_000, 51_000);
        (record.first.cwnd, record.last.cwnd, record.last.rto_us) = (150, 150, 150_000);
        flow
    }

    fn of(change: impl FnOnce(&mut FlowBuilder)) -> Capture {
        let mut flow = pages();
        change(&mut flow);
        capture(vec![flow], vec![])
    }

    #[test]
    fn a_window_that_begins_again_after_each_pause() {
        let report = crate::judge::judge(&of(|_| {}));
        assert_eq!(report.verdict.cause.as_deref(), Some("slow-start-after-idle"), "{report:#?}");
        assert!(report.verdict.summary.contains("2 round trips"), "{}", report.verdict.summary);
    }

    #[test]
    fn full_windows_for_other_reasons() {
        let is_other = |what: &str, capture: &Capture| {
            assert_ne!(verdict_of(capture), "slow-start-after-idle", "{what}");
        };
        is_other("pauses shorter than the timeout", &of(|flow| flow.record.last.rto_us = 300_000));
        is_other(
            "a window that never carried as much",
            &of(|flow| (flow.record.first.cwnd, flow.record.last.cwnd) = (40, 40)),
        );
        is_other("losses", &of(|flow| flow.record.last.total_retrans += 5));
        is_other("a queue on the path", &of(|flow| flow.record.last.srtt_us = 140_000));
        let mut kept = of(|_| {});
        kept.counters = Some(settings(|settings| settings.slow_start_after_idle = false));
        is_other("the setting", &kept);
    }
}
