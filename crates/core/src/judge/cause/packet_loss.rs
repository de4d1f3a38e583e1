//! Segments are lost: the time goes into recovery, into the retransmission timer, and into a congestion window that was
//! cut for it.
//!
//! Look-alikes: Nagle's algorithm and a peer that thinks retransmit nothing. Where most of the time goes into the timer it is
//! `retransmission-timeout`; a stream that fills its path is `bottleneck-bandwidth`.
use parshall_evidence::Evidence;

use super::base::{Candidate, Cause, Outcome, denied, place_of, stalls, try_command, uses_bbr, who};
use crate::judge::confidence::{FEW, Gap};
use crate::judge::denial::{Denial, count_of};
use crate::judge::facts::{Blame, Facts, LOSSY, rtt_ns};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "packet-loss",
    title: "Segments are lost on the way",
    test,
    symptom: |facts| facts.retransmitted().0 as f64,
    testable: record::segments,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.blamed(&[Blame::Loss, Blame::Rto, Blame::Cwnd]);
    let (retransmitted, sent) = facts.retransmitted();
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    if sent == 0 && retransmitted == 0 {
        return Outcome::Untested(
            "no segment with data was sent; losses of what is received show at the sender".into(),
        );
    }
    let counts = Denial::of(count_of(retransmitted, sent, "segments", "retransmitted"));
    let flows: Vec<_> = lost.affected(facts).into_iter().map(|i| &facts.flows[i]).collect();
    let own =
        flows.iter().fold((0u64, 0u64), |(r, d), f| (r.saturating_add(f.retransmitted), d.saturating_add(f.data_segs)));
    let rate = ratio(own.0 as f64, own.1 as f64).min(1.0);
    let by_loss =
        flows.iter().filter_map(|flow| Some((flow.window_by_loss?, rtt_ns(flow)))).max_by(|a, b| a.1.total_cmp(&b.1));
    if lost.ns == 0.0 && retransmitted > 0 {
        return denied(counts.because("and no flow waits for recovery"));
    }
    if lost.ns == 0.0 || own.0 == 0 || rate < LOSSY && by_loss.is_none() {
        return denied(counts.because("too few for flows to wait for"));
    }
    if super::retransmission_timeout::share_of_loss(facts) >= super::retransmission_timeout::MIN_OF_LOSS {
        return denied(counts.because("and the time goes into timeouts"));
    }
    let timeouts = facts.blamed(&[Blame::Rto]);
    let rto_events: u64 =
        flows.iter().fold(0, |n, f| n.saturating_add(f.rec.last.total_rto.saturating_sub(f.rec.first.total_rto)));
    let waits = match by_loss.filter(|_| rate < LOSSY) {
        Some((segments, rtt_ns)) => format!(
            "each loss cuts the congestion window, and so no more than about {} are under way in a round trip of {}",
            units::plural_f(segments, "segment", "segments"),
            units::duration(rtt_ns)
        ),
        None => "the flow waits for recovery".to_string(),
    };
    let summary = format!(
        "{}: {} of the segments are lost and sent again ({} of {}); {waits}.",
        who(facts, &lost),
        units::percent(rate),
        units::count(own.0),
        units::count(own.1)
    );
    let mut evidence = vec![
        words::valued("share of data segments retransmitted", rate, "1"),
        words::counted("segments retransmitted", own.0),
        stalls("waits for recovery or for the retransmission timer", &lost),
    ];
    if timeouts.ns > 0.0 {
        evidence.push(Evidence { what: "of these, retransmission timeouts".into(), ..stalls("", &timeouts) });
    }
    if rto_events > 0 {
        evidence.push(words::counted("retransmission timeouts counted by the kernel", rto_events));
    }
    let worst = lost.worst();
    let tolerates = worst.is_some_and(|flow| uses_bbr(facts, flow));
    let mut fix = "Look for the drop: interface and qdisc counters on the path, a policer, a full queue.".to_string();
    if !tolerates {
        fix.push_str(" Congestion control that tolerates loss (BBR) helps until it is found.");
    }
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    if own.0 < FEW {
        candidate.gaps.push(Gap::Few(own.0, "segments that were sent again"));
    }
    candidate.always_wrong = true;
    candidate.trial = worst.and_then(|flow| try_command(facts, flow, "congestion=bbr"));
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role, SocketFigures};

    use crate::testkit::{FlowBuilder, MS, capture, rose, verdict_of};

    fn lossy() -> FlowBuilder {
        FlowBuilder::new(1, Role::Client)
            .remote_host()
            .every(100 * MS, 0, 60 * MS, FlowState::Recovery, Release::RxAck)
            .streams(1000, 14_480)
    }

    #[test]
    fn recovery_with_segments_resent() {
        assert_eq!(verdict_of(&capture(vec![lossy().retransmitted(200)], vec![])), "packet-loss");
    }

    #[test]
    fn few_losses_over_a_long_way_keep_the_window_small() {
        // 900 segments over 30 ms with the window full for nearly all of a second: 28 of them in each round trip.
        let far = |retransmitted: u64| {
            let mut flow = FlowBuilder::new(1, Role::Server)
                .remote_host()
                .cell(FlowState::Cwnd, Release::RxAck, 900 * MS, 200)
                .cell(FlowState::Recovery, Release::RxAck, 60 * MS, 3)
                .streams(90, 14_480)
                .retransmitted(retransmitted);
            (flow.record.last.min_rtt_us, flow.record.last.srtt_us) = (30_000, 30_500);
            flow
        };
        let report = crate::judge::judge(&capture(vec![far(3)], vec![]));
        assert_eq!(report.verdict.cause.as_deref(), Some("packet-loss"), "{report:#?}");
        assert!(report.verdict.summary.contains("cuts the congestion window"), "{}", report.verdict.summary);
        // One is chance, and over a short way the window is large again at once.
        assert_ne!(verdict_of(&capture(vec![far(1)], vec![])), "packet-loss");
        let mut near = far(3);
        (near.record.last.min_rtt_us, near.record.last.srtt_us) = (1000, 1100);
        assert_ne!(verdict_of(&capture(vec![near], vec![])), "packet-loss");
        // So few losses allow a window several times as large: something else keeps it small.
        let mut many = far(3);
        many.record.last.data_segs_out *= 40;
        assert_ne!(verdict_of(&capture(vec![many], vec![])), "packet-loss");
    }

    #[test]
    fn many_losses_at_once_cut_the_window_once() {
        // 7,000 segments over 16 ms: 124 in each round trip, where 30 losses one by one would allow 37.
        let policed = |cwnd: fn(usize) -> u32, ssthresh: u32| {
            let mut flow = FlowBuilder::new(1, Role::Server)
                .remote_host()
                .every(20 * MS, 0, 18 * MS, FlowState::Cwnd, Release::RxAck)
                .streams(700, 14_480)
                .retransmitted(30);
            let last = &mut flow.record.last;
            (last.min_rtt_us, last.srtt_us, last.ssthresh) = (16_000, 16_500, ssthresh);
            let mut capture = capture(vec![flow], vec![]);
            capture.flow_stalls.iter_mut().enumerate().for_each(|(n, stall)| stall.cwnd = cwnd(n));
            verdict_of(&capture)
        };
        let cut = |n: usize| if n < 25 { 150 + n as u32 } else { 65 + n as u32 };
        assert_eq!(policed(cut, 87), "packet-loss");
        assert_ne!(policed(|n| 100 + n as u32, 87), "packet-loss", "it was never cut");
        assert_ne!(policed(cut, 0x7fff_ffff), "packet-loss", "for another reason than loss");
    }

    #[test]
    fn bbr_is_not_proposed_to_a_flow_that_uses_it() {
        let fix = |congestion: &str| {
            let mut capture = capture(vec![lossy().retransmitted(200)], vec![]);
            capture.counters = Some(rose(&[]));
            let figures = SocketFigures { flow: 1, congestion: congestion.to_string(), ..SocketFigures::default() };
            capture.counters.as_mut().expect("just made").sockets.push(figures);
            crate::judge::judge(&capture).findings[0].fix.clone()
        };
        assert!(
            fix("cubic").text.contains("BBR") && fix("cubic").command.is_some_and(|c| c.contains("congestion=bbr"))
        );
        assert!(!fix("bbr").text.contains("BBR") && fix("bbr").command.is_none(), "{:?}", fix("bbr"));
    }

    #[test]
    fn a_window_cut_for_loss_is_loss() {
        let flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .every(10 * MS, 0, 8 * MS, FlowState::Cwnd, Release::RxAck)
            .streams(1000, 14_480);
        assert_eq!(verdict_of(&capture(vec![flow.clone().retransmitted(200)], vec![])), "packet-loss");
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "healthy");
    }

    #[test]
    fn short_recoveries_of_a_bulk_flow_count() {
        let flow = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::Recovery, Release::RxAck, 300 * MS, 10_000)
            .cell(FlowState::Cwnd, Release::RxAck, 500 * MS, 50_000)
            .streams(10_000, 14_480);
        assert_eq!(verdict_of(&capture(vec![flow.clone().retransmitted(1000)], vec![])), "packet-loss");
        assert_eq!(verdict_of(&capture(vec![flow.retransmitted(10)], vec![])), "healthy");
    }

    #[test]
    fn one_bad_flow_among_many_is_named() {
        let mut flows = vec![lossy().retransmitted(200)];
        for id in 2..15 {
            flows.push(
                FlowBuilder::new(id, Role::Client)
                    .cell(FlowState::InFlight, Release::RxAck, 990 * MS, 9000)
                    .streams(9000, 9000),
            );
        }
        assert_eq!(verdict_of(&capture(flows, vec![])), "packet-loss");
    }

    #[test]
    fn nothing_resent_is_no_loss() {
        let report = crate::judge::judge(&capture(vec![lossy()], vec![]));
        assert_eq!(report.verdict.cause, None);
        let why = &report.ruled_out.iter().find(|r| r.cause == "packet-loss").expect("ruled out").why;
        assert_eq!(why, "0 of 10,001 segments retransmitted");
    }

    #[test]
    fn a_reply_that_comes_a_timeout_late_was_lost() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(300 * MS, 0, 205 * MS, FlowState::IdleAfterSend, Release::RxData)
            .every(300 * MS, 210 * MS, 3 * MS, FlowState::IdleAfterSend, Release::RxData)
            .every(300 * MS, 220 * MS, 3 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks(100, 100)
            .retransmitted(3);
        assert_eq!(verdict_of(&capture(vec![flow], vec![])), "retransmission-timeout");
    }
}
