//! The stream fills the slowest link of its path: its data queues in front of that link, and the round trip grows far above its
//! minimum, until something is lost.
//!
//! Look-alikes: random loss (`packet-loss`) and a policer, where the round trip stays near its minimum; a limit of the local device
//! (`local-shaper`).
use super::base::{Candidate, Cause, Outcome, denied, place_of, uses_bbr, who};
use crate::judge::denial::{Denial, amount};
use crate::judge::facts::network::{QUEUE_MIN_NS, adds_delay};
use crate::judge::facts::{Blame, Facts, FlowFact, Lost, rtt_ns};
use crate::judge::record;
use crate::judge::{stream, words};
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "bottleneck-bandwidth",
    title: "The slowest link of the path is full",
    test,
    symptom: largest_rise,
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some((lost, worst)) = stream::lost_to(facts, Blame::Bottleneck) else {
        return why_not(facts);
    };
    let flow = &facts.flows[worst];
    let (rate, srtt) = (path_rate(facts, &lost, flow), f64::from(flow.rec.last.srtt_us) * 1e3);
    let summary = format!(
        "{}: the path carries {} ({} Mbit/s); the stream's own data queues in front of its slowest link, and the round trip is {} instead \
         of {}.",
        who(facts, &lost),
        words::per_second(rate),
        units::count_f(rate * 8.0 / 1e6),
        units::duration(srtt),
        units::duration(rtt_ns(flow))
    );
    let mut evidence = stream::evidence(flow);
    evidence.push(words::valued("round trip over its minimum", ratio(srtt, rtt_ns(flow)), "times"));
    evidence.push(words::valued(
        "congestion window",
        f64::from(flow.rec.last.cwnd) * f64::from(flow.rec.last.mss.max(1)),
        "B",
    ));
    evidence.push(words::counted("segments retransmitted", flow.retransmitted));
    if let Some(figures) = facts.figures(flow.rec.id).filter(|f| f.delivery_bytes_per_s > 0) {
        evidence.push(words::valued("delivery rate of the last sample", figures.delivery_bytes_per_s as f64, "B/s"));
    }
    let bbr = if uses_bbr(facts, worst) { "" } else { ", or BBR at the sender," };
    let fix = format!(
        "Send less (compress, cache, a nearer copy), or get a faster link. Other traffic on this path is late by the same queue: fair \
         queueing or a smaller buffer at the bottleneck (fq_codel, CAKE){bbr} shortens it."
    );
    Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix).holds()
}

/// Bytes per second that the path of a flow carries: of those whose data queues on the way to the same host, all of the window's.
fn path_rate(facts: &Facts<'_>, lost: &Lost, flow: &FlowFact<'_>) -> f64 {
    let queued = lost.by_flow.iter().map(|(index, _)| facts.flows[*index].rec);
    let beside = queued.filter(|other| other.remote.ip() == flow.rec.remote.ip());
    let bytes: f64 = beside.map(|other| other.acked_bytes() as f64).sum();
    stream::rate(flow).max(ratio(bytes, facts.window_s()))
}

fn why_not(facts: &Facts<'_>) -> Outcome {
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    let rise = largest_rise(facts);
    let times = amount(rise, "times", "the least round trip at most");
    let why = match facts.flows.iter().any(adds_delay) {
        true => "of a flow that sends no stream, or to this very host".to_owned(),
        false if rise >= 2.0 => {
            format!("which is less than {} more, too little for a queue", units::duration(QUEUE_MIN_NS))
        }
        false => "too little for a queue".to_owned(),
    };
    denied(Denial::of(times).because(why))
}

/// The largest round trip of a flow at the end, in units of its least one; 0 where no flow has one.
fn largest_rise(facts: &Facts<'_>) -> f64 {
    let over = |f: &crate::judge::facts::FlowFact<'_>| ratio(f64::from(f.rec.last.srtt_us) * 1e3, rtt_ns(f));
    facts.flows.iter().filter(|f| rtt_ns(f) > 0.0).map(over).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    #[test]
    fn a_stream_that_queues_on_its_path() {
        let mut flow = FlowBuilder::new(1, Role::Server)
            .remote_host()
            .cell(FlowState::Cwnd, Release::RxAck, 950 * MS, 800)
            .streams(40, 65_536);
        (flow.record.last.min_rtt_us, flow.record.last.srtt_us) = (10_000, 85_000);
        assert_eq!(verdict_of(&capture(vec![flow.clone()], vec![])), "bottleneck-bandwidth");
        let lossy = flow.clone().retransmitted(40);
        assert_eq!(verdict_of(&capture(vec![lossy.clone()], vec![])), "bottleneck-bandwidth");
        // Random loss leaves the round trip alone.
        let mut random = lossy;
        random.record.last.srtt_us = 10_400;
        assert_eq!(verdict_of(&capture(vec![random], vec![])), "packet-loss");
        // Many times next to nothing.
        let mut near = flow.clone();
        (near.record.last.min_rtt_us, near.record.last.srtt_us) = (30, 3000);
        let report = crate::judge::judge(&capture(vec![near], vec![]));
        let denied = report.ruled_out.iter().find(|entry| entry.cause == "bottleneck-bandwidth").expect("it is denied");
        let why = crate::report::why(denied);
        assert_eq!(
            why,
            "100 times the least round trip at most, which is less than 5.0 ms more, too little for a queue"
        );
        // A full window without a queue is a path at its capacity.
        flow.record.last.srtt_us = 10_400;
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }

    #[test]
    fn long_replies_on_kept_connections_fill_the_path_together() {
        // Two connections with ten replies of 320 kB each, a few segments of which are lost at the full queue.
        let report = |bytes: u64, srtt_us: u32| {
            let flow = |id| {
                let flow = FlowBuilder::new(id, Role::Server).remote_host();
                let flow = flow.cell(FlowState::Cwnd, Release::RxAck, 600 * MS, 500);
                let mut flow =
                    flow.cell(FlowState::Recovery, Release::RxAck, 20 * MS, 10).talks(10, bytes / 10).retransmitted(4);
                let rec = &mut flow.record;
                (rec.last.min_rtt_us, rec.last.srtt_us, rec.last.mss) = (8_100, srtt_us, 1448);
                rec.last.bytes_acked = rec.first.bytes_acked + bytes;
                rec.last.bytes_received = rec.first.bytes_received + 520;
                flow
            };
            crate::judge::judge(&capture(vec![flow(1), flow(2)], vec![])).verdict
        };
        let full = report(1_250_000, 44_000);
        assert_eq!(full.cause.as_deref(), Some("bottleneck-bandwidth"), "{full:?}");
        assert!(full.summary.contains("the path carries 2.5 MB/s (20 Mbit/s)"), "{full:?}");
        // The round trip is as ever: what is lost is lost elsewhere.
        assert_eq!(report(1_250_000, 8_300).cause.as_deref(), Some("packet-loss"));
    }

    #[test]
    fn connections_for_one_long_reply_fill_the_path_as_a_stream_does() {
        let replies = |bytes: u64, srtt_us: u32| {
            let flow = |id| {
                let mut flow = FlowBuilder::new(id, Role::Server)
                    .remote_host()
                    .cell(FlowState::Cwnd, Release::RxAck, 80 * MS, 3)
                    .talks(1, bytes / 3);
                let rec = &mut flow.record;
                (rec.calls.sends, rec.calls.recvs, rec.calls.exchanges) = (3, 1, 1);
                (rec.last.min_rtt_us, rec.last.srtt_us, rec.last.mss) = (20_000, srtt_us, 1448);
                rec.last.bytes_acked = rec.first.bytes_acked + bytes;
                rec.last.bytes_received = rec.first.bytes_received + 60;
                flow
            };
            verdict_of(&capture((1..9).map(flow).collect(), vec![]))
        };
        assert_eq!(replies(90_000, 70_000), "bottleneck-bandwidth");
        // Its first windows take several round trips of a path that is not full; and a small page has none to fill.
        assert_eq!(replies(90_000, 21_000), "healthy");
        assert_eq!(replies(6_000, 70_000), "healthy");
    }
}
