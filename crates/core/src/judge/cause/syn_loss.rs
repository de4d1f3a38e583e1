//! SYNs, or the answers to them, are lost: opening a connection takes 1 s, 3 s, 7 s.
//!
//! Look-alikes: a listener that drops them for lack of room (`accept-queue-overflow`: its drops are counted), a host that does not
//! answer at all.
use parshall_evidence::ShareOf;

use super::base::{Candidate, Cause, Outcome, Refused, denied, place_of, stalls, who};
use crate::judge::denial::{Denial, count};
use crate::judge::facts::{Blame, Facts, network};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "syn-loss",
    title: "Segments that open connections are lost",
    test,
    symptom: |facts| record::rose(facts, REPEATED) as f64,
    testable: |facts| record::counters(facts) || record::flows(facts),
};

/// How often a SYN, or the answer to one, was sent again.
const REPEATED: &str = "TcpExt.TCPSynRetrans";

fn test(facts: &Facts<'_>) -> Outcome {
    let counters = facts.capture.counters.as_ref();
    let repeated = record::rose(facts, REPEATED);
    let overflows = counters.map_or(0, |c| c.rose("TcpExt.ListenOverflows"));
    let opened =
        facts.capture.net.opened.max(counters.map_or(0, |c| c.rose("Tcp.ActiveOpens").max(c.rose("Tcp.PassiveOpens"))));
    let lost = facts.blamed(&[Blame::Syn]);
    if lost.ns == 0.0 && counters.is_none() {
        return Outcome::Untested("the counters of repeated SYNs were not read".to_string());
    }
    if overflows > 0 || (lost.ns == 0.0 && repeated < 3) {
        let denial = Denial::of(count(repeated, "SYNs", "repeated, answers to them included")).beside(count(
            opened,
            "connections",
            "opened",
        ));
        let because = if overflows > 0 { "and a listen queue overflowed" } else { "too few to matter" };
        let denial = denial.because(because);
        return denied(if lost.ns > 0.0 { denial.seen() } else { denial });
    }
    let seen = lost.by_flow.len() as u64;
    let all = repeated.max(seen);
    let opening = match lost.worst() {
        Some(_) => format!("{}: opening the connection", who(facts, &lost)),
        None => "Opening a connection".to_string(),
    };
    let wait = if lost.p50_ns > 0.0 { lost.p50_ns } else { network::SYN_TIMEOUT_NS };
    let summary = format!(
        "{opening} takes {} longer each time a SYN or its answer is lost: {} were repeated, while {} connections were opened.",
        units::duration(wait.max(network::SYN_TIMEOUT_NS)),
        units::count(all),
        units::count(opened)
    );
    let mut evidence =
        vec![words::counted("SYNs and answers to them repeated", all), words::counted("connections opened", opened)];
    if lost.ns > 0.0 {
        evidence.push(stalls("waits of connections for an answer to their SYN", &lost));
    }
    evidence.push(words::counted("overflows of listen queues meanwhile", overflows));
    let fix = "Look for what drops SYNs on the path: a firewall or load balancer with a rate limit or a full connection table \
               (`conntrack -S`, nf_conntrack_max), a lossy link (`mtr`). `tcpdump 'tcp[tcpflags] & tcp-syn != 0'` at both ends shows where \
               they are missing. Kept connections need fewer of them.";
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    candidate.always_wrong = true;
    if counters.is_some() {
        // Each of them is a second at least, also where the connections' own time was not seen.
        let wait_ns = (all as f64 * network::SYN_TIMEOUT_NS).max(lost.ns);
        candidate.refused = Some(Refused { of_what: ShareOf::Connections, count: all, of: opened.max(all), wait_ns });
    }
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, capture, rose, verdict_of};

    #[test]
    fn connections_that_wait_for_an_answer_to_their_syn() {
        let mut flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .stall(0, 900 * MS, FlowState::Other, Release::RtoTimer)
            .talks(1, 64)
            .retransmitted(1);
        flow.stalls[0].snd_wnd = 0;
        let mut lossy = capture(vec![flow], vec![]);
        assert_eq!(verdict_of(&lossy), "syn-loss");
        lossy.counters = Some(rose(&[("TcpExt.TCPSynRetrans", 8), ("Tcp.ActiveOpens", 20)]));
        assert_eq!(verdict_of(&lossy), "syn-loss");
    }

    #[test]
    fn a_server_counts_the_answers_that_it_repeats() {
        let mut lossy = capture(vec![FlowBuilder::new(1, Role::Server).remote_host().talks(10, 100)], vec![]);
        lossy.counters = Some(rose(&[("TcpExt.TCPSynRetrans", 40), ("Tcp.PassiveOpens", 100)]));
        assert_eq!(verdict_of(&lossy), "syn-loss");
        lossy.counters = Some(rose(&[("TcpExt.TCPSynRetrans", 40), ("Tcp.PassiveOpens", 100_000)]));
        assert_eq!(verdict_of(&lossy), "healthy");
    }
}
