//! A queueing discipline of this host limits the rate: its token bucket holds packets back, so they queue before they reach the wire.
//!
//! Look-alikes: a bottleneck elsewhere (`bottleneck-bandwidth`: the queue of the local device holds nothing back), random loss
//! (`packet-loss`: the round trip stays near its minimum).
use super::base::{Candidate, Cause, Outcome, denied, place_of, stalls, who};
use crate::judge::denial::{Denial, count};
use crate::judge::facts::{Blame, Facts, network, rtt_ns};
use crate::judge::record;
use crate::judge::{stream, words};
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "local-shaper",
    title: "A queueing discipline of this host limits the rate",
    test,
    symptom: |facts| delayed(facts) as f64,
    testable: record::counters,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(counters) = &facts.capture.counters else {
        return Outcome::Untested("the queues of the devices were not read".to_string());
    };
    let Some((lost, worst)) = stream::lost_to(facts, Blame::Shaper) else {
        return denied(Denial::of(count(delayed(facts), "packets", "delayed by qdiscs")));
    };
    let flow = &facts.flows[worst];
    let Some(queue) = network::shaper(facts, flow) else {
        return denied(Denial::of(count(delayed(facts), "packets", "delayed by qdiscs")));
    };
    let seconds = counters.elapsed_ns as f64 / 1e9;
    let rate = crate::stats::ratio(queue.sent_bytes as f64, seconds);
    let summary = format!(
        "{}: the {} queue of {} lets {} ({} Mbit/s) through; data waits there, and the round trip is {} instead of {}.",
        who(facts, &lost),
        queue.kind,
        queue.device,
        words::per_second(rate),
        units::count_f(rate * 8.0 / 1e6),
        units::duration(f64::from(flow.rec.last.srtt_us) * 1e3),
        units::duration(rtt_ns(flow))
    );
    let mut evidence = vec![
        stalls("waits for the queue of the device", &lost),
        words::counted(
            format!("times the queue of {} held a packet back for its rate", queue.device),
            queue.overlimits,
        ),
        words::counted(format!("packets that it dropped ({})", queue.kind), queue.drops),
        words::valued("waiting in it at the end", queue.backlog_bytes as f64, "B"),
        words::valued("sent through it", rate, "B/s"),
    ];
    evidence.extend(stream::evidence(flow));
    let fix = format!(
        "Look at the limit with `tc -s qdisc show dev {0}` (and `tc class show dev {0}`), in the network namespace of the sender. Raise its \
         rate, or remove it with `tc qdisc del dev {0} root`, if it is not meant to be.",
        queue.device
    );
    Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix).holds()
}

/// Packets that the devices' qdiscs delayed for their rate.
fn delayed(facts: &Facts<'_>) -> u64 {
    let namespaces = facts.capture.counters.iter().flat_map(|counters| &counters.namespaces);
    namespaces.flat_map(|n| &n.queues).map(|q| q.overlimits).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{DeviceQueue, FlowState, Release};

    use crate::testkit::{MS, bound_by_send_buffer, capture, settings, verdict_of};

    #[test]
    fn a_token_bucket_that_holds_packets_back() {
        let mut flow = bound_by_send_buffer();
        flow.record.last.srtt_us = 90_000;
        let mut shaped = capture(vec![flow.clone()], vec![]);
        let mut counters = settings(|_| {});
        counters.namespaces[0].queues = vec![DeviceQueue {
            device: "eth0".into(),
            kind: "tbf".into(),
            sent_bytes: 3_000_000,
            drops: 3,
            overlimits: 9000,
            backlog_bytes: 90_000,
        }];
        shaped.counters = Some(counters.clone());
        assert_eq!(verdict_of(&shaped), "local-shaper");
        // A queue that is there and holds nothing back.
        counters.namespaces[0].queues[0].overlimits = 0;
        shaped.counters = Some(counters);
        assert_eq!(verdict_of(&shaped), "bottleneck-bandwidth");
    }

    #[test]
    fn what_is_left_of_a_closed_connection_waits_for_it() {
        let verdict = |overlimits: u64| {
            let mut flow = bound_by_send_buffer();
            flow.record.cells.clear();
            let mut shaped = capture(vec![flow.cell(FlowState::Qdisc, Release::Close, 900 * MS, 8)], vec![]);
            let mut counters = settings(|_| {});
            counters.namespaces[0].queues = vec![DeviceQueue {
                device: "eth0".into(),
                kind: "htb".into(),
                sent_bytes: 3_000_000,
                drops: 0,
                overlimits,
                backlog_bytes: 0,
            }];
            shaped.counters = Some(counters);
            verdict_of(&shaped)
        };
        assert_eq!(verdict(1_000), "local-shaper");
        // It holds back one of a hundred packets.
        assert_ne!(verdict(20), "local-shaper");
    }
}
