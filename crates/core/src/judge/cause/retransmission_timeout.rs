//! Lost segments are noticed by the retransmission timer only: nothing that follows them could tell, so a loss costs 200 ms or more.
//!
//! Look-alikes: losses that fast recovery repairs (`packet-loss`), paths that lose large packets only (`pmtu-black-hole`),
//! handshakes (`syn-loss`). A cork waits 200 ms too, and retransmits nothing.

use super::base::{Candidate, Cause, Outcome, denied, place_of, stalls, who};
use crate::judge::confidence::{FEW, Gap};
use crate::judge::denial::{self, Denial};
use crate::judge::facts::{Blame, Facts, FlowFact};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "retransmission-timeout",
    title: "Losses are noticed by the timer only",
    test,
    symptom: |facts| facts.share_in(&[State::RetransmissionTimeout]),
    testable: record::flows,
};

/// With less of the lost time in timeouts, it is the loss that matters (`packet-loss`).
pub const MIN_OF_LOSS: f64 = 0.6;

/// Share of the time lost to losses that goes into the retransmission timer.
pub fn share_of_loss(facts: &Facts<'_>) -> f64 {
    let all = facts.blamed(&[Blame::Loss, Blame::Rto, Blame::Cwnd]).ns;
    ratio(facts.blamed(&[Blame::Rto]).ns, all)
}

const REPAIR: &str = "Look for the drop first: interface and qdisc counters on the path, a policer, a full queue. Shorten the wait meanwhile: \
                      `ip route change ... rto_min 50ms` for short paths, tcp_early_retrans=3 (tail loss probes) at the sender, and more \
                      than one segment under way at a time.";
const FORGOTTEN: &str = "The peer is gone, or a firewall, a NAT or a load balancer on the way has forgotten a connection that was idle for too \
                         long: compare its timeout with how long connections idle here (`ss -tino`: lastsnd). Send keepalives more often \
                         than that (SO_KEEPALIVE with TCP_KEEPIDLE, net.ipv4.tcp_keepalive_time), close connections that were idle for \
                         longer before they are used again, and give up sooner (TCP_USER_TIMEOUT).";

/// A connection that was there before the window, and on which nothing has come back in it.
fn is_silent(flow: &FlowFact<'_>) -> bool {
    let (first, last) = (&flow.rec.first, &flow.rec.last);
    flow.rec.begin_ns == 0 && flow.retransmitted > 0 && last.segs_in == first.segs_in && flow.rec.acked_bytes() == 0
}

fn test(facts: &Facts<'_>) -> Outcome {
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    let lost = facts.blamed(&[Blame::Rto, Blame::Loss, Blame::Cwnd]);
    let timeouts = facts.blamed(&[Blame::Rto]);
    let flows: Vec<_> = lost.affected(facts).into_iter().map(|i| &facts.flows[i]).collect();
    let sum = |of: fn(&FlowFact<'_>) -> u64| flows.iter().fold(0u64, |n, f| n.saturating_add(of(f)));
    let (retransmitted, sent) = (sum(|f| f.retransmitted), sum(|f| f.data_segs));
    let counted = sum(|f| f.rec.last.total_rto.saturating_sub(f.rec.first.total_rto));
    let share = share_of_loss(facts);
    if timeouts.ns == 0.0 || retransmitted == 0 || share < MIN_OF_LOSS {
        let of = facts.share_in(&[State::RetransmissionTimeout]);
        let denial = Denial::of(denial::share(of, "of the flows' time with the retransmission timer running"));
        return denied(denial.because("less than what recovery took, or of connections that were being opened"));
    }
    let forgotten = flows.iter().all(|flow| is_silent(flow));
    let what = match forgotten {
        true => "nothing of the peer has come back on them since",
        false => "little follows them that could show it",
    };
    let summary = format!(
        "{}: {} of {} lost, and {what}: each waits {} for the retransmission timer.",
        who(facts, &lost),
        units::count(retransmitted),
        units::plural(sent, "segment is", "segments are"),
        units::duration(timeouts.p50_ns)
    );
    let mut evidence = vec![
        stalls("waits for the retransmission timer", &timeouts),
        words::counted("segments retransmitted", retransmitted),
        words::valued("share of data segments retransmitted", ratio(retransmitted as f64, sent as f64).min(1.0), "1"),
        words::valued("timeouts of the time lost to losses", share, "1"),
    ];
    if counted > 0 {
        evidence.push(words::counted("retransmission timeouts counted by the kernel", counted));
    }
    if let Some(worst) = lost.worst() {
        evidence.push(words::valued(
            "retransmission timeout of the worst flow",
            f64::from(facts.flows[worst].rec.last.rto_us) / 1e3,
            "ms",
        ));
    }
    let fix = if forgotten { FORGOTTEN } else { REPAIR };
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    if retransmitted < FEW {
        candidate.gaps.push(Gap::Few(retransmitted, "segments that were sent again"));
    }
    candidate.always_wrong = true;
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, capture, verdict_of};

    #[test]
    fn the_timer_is_what_the_flow_waits_for() {
        let flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .every(250 * MS, 0, 205 * MS, FlowState::InFlight, Release::RtoTimer)
            .talks(100, 100)
            .retransmitted(4);
        assert_eq!(verdict_of(&capture(vec![flow.clone()], vec![])), "retransmission-timeout");
        let repaired = flow.every(250 * MS, 205 * MS, 40 * MS, FlowState::Recovery, Release::RxAck);
        assert_eq!(verdict_of(&capture(vec![repaired], vec![])), "retransmission-timeout");
        let recovery = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .every(100 * MS, 0, 60 * MS, FlowState::Recovery, Release::RxAck)
            .every(300 * MS, 70 * MS, 20 * MS, FlowState::InFlight, Release::RtoTimer)
            .streams(1000, 14_480)
            .retransmitted(200);
        assert_eq!(verdict_of(&capture(vec![recovery], vec![])), "packet-loss");
    }
}
