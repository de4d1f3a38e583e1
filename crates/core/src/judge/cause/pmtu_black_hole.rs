//! Large packets vanish on the way and nobody says so: handshakes and small messages pass, and the first full segment is
//! retransmitted until the connection is given up.
//!
//! Look-alikes: loss (`packet-loss`, `retransmission-timeout`), which small segments suffer too and from which flows recover; a peer
//! that is gone, from which nothing comes back.
use super::base::{Candidate, Cause, Outcome, denied, place_of, stalls, who};
use crate::judge::denial::{Denial, count_of};
use crate::judge::facts::{Blame, Facts};
use crate::judge::record;
use crate::judge::{stream, words};
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "pmtu-black-hole",
    title: "Large packets vanish on the path",
    test,
    symptom: |facts| facts.retransmitted().0 as f64,
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let (retransmitted, sent) = facts.retransmitted();
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    let Some((lost, worst)) = stream::lost_to(facts, Blame::BlackHole) else {
        let counts = count_of(retransmitted, sent, "segments", "retransmitted");
        return denied(Denial::of(counts).because("on flows whose data is acknowledged"));
    };
    let flow = &facts.flows[worst];
    let last = &flow.rec.last;
    let stuck = lost.by_flow.len() as u64;
    let pmtu = facts.figures(flow.rec.id).map(|f| f.pmtu).filter(|&pmtu| pmtu > 0);
    let sent = lost.by_flow.iter().map(|(index, _)| facts.flows[*index].rec.calls.send_max_bytes).max().unwrap_or(0);
    let segment = if sent > 0 { sent.min(last.mss) } else { last.mss };
    // A full segment fills the path MTU, with its headers and options.
    let size = match pmtu {
        Some(pmtu) if segment == last.mss => pmtu,
        _ => segment.saturating_add(40),
    };
    let summary = format!(
        "{}: handshakes and small messages pass, and segments of {} bytes are retransmitted without an answer: packets of up to {} \
         bytes do not fit the path, and the message that would say so (ICMP fragmentation needed) does not come back.",
        who(facts, &lost),
        units::count(segment.into()),
        units::count(size.into())
    );
    let mut evidence = vec![
        stalls("waits for the retransmission timer", &lost),
        words::counted("flows that are stuck", stuck),
        words::counted("segments retransmitted on the worst of them", flow.retransmitted),
        words::valued("acknowledged on it meanwhile", flow.rec.acked_bytes() as f64, "B"),
        words::valued("segment size", last.mss.into(), "B"),
    ];
    // Of calls that slices did not see, nothing is known.
    evidence.extend((sent > 0).then(|| words::valued("the longest message sent", sent.into(), "B")));
    evidence.extend(pmtu.map(|pmtu| words::valued("path MTU, as this host knows it", pmtu.into(), "B")));
    evidence.extend(
        facts.figures(flow.rec.id).map(|f| words::counted("doublings of the timeout so far", f.backoff.into())),
    );
    let to = words::host(flow.rec.remote);
    let probing = facts.settings(flow.rec.netns).is_some_and(|s| s.mtu_probing > 0);
    let until = if probing { "" } else { " Until then: `sysctl -w net.ipv4.tcp_mtu_probing=1` at the sender." };
    let fix = format!(
        "Find the size that passes: `ping -M do -s 1400 {to}`, with smaller sizes until it answers. Let ICMP type 3 code 4 (ICMPv6 packet \
         too big) through, or set a smaller MTU on the tunnel or route (`ip route change ... mtu 1400`).{until}"
    );
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    candidate.always_wrong = true;
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Counters, FlowState, Release, Role, SocketFigures};

    use crate::testkit::{FlowBuilder, MS, WINDOW_NS, capture, verdict_of};

    fn stuck() -> FlowBuilder {
        let mut flow = FlowBuilder::new(1, Role::Server)
            .remote_host()
            .stall(100 * MS, 200 * MS, FlowState::InFlight, Release::RtoTimer)
            .stall(300 * MS, 400 * MS, FlowState::Loss, Release::RtoTimer)
            .retransmitted(2);
        (flow.record.begin_ns, flow.record.end_ns) = (90 * MS, WINDOW_NS);
        let last = &mut flow.record.last;
        (last.data_segs_out, last.segs_in, last.packets_out, last.unsent_bytes) = (8, 3, 6, 0);
        last.bytes_received = 64;
        flow.record.calls.recvs = 1;
        flow.record.calls.sends = 1;
        flow
    }

    #[test]
    fn full_segments_are_never_acknowledged() {
        assert_eq!(verdict_of(&capture(vec![stuck()], vec![])), "pmtu-black-hole");
    }

    #[test]
    fn a_full_segment_is_a_packet_as_large_as_the_path() {
        let mut flow = stuck();
        // With timestamps, of 12 bytes.
        flow.record.last.mss = 1448;
        let mut capture = capture(vec![flow], vec![]);
        let summary = |capture: &parshall_evidence::Capture| crate::judge::judge(capture).verdict.summary;
        assert!(summary(&capture).contains("packets of up to 1,488 bytes"), "{}", summary(&capture));
        let figures = SocketFigures { flow: 1, pmtu: 1500, ..SocketFigures::default() };
        capture.counters = Some(Counters { sockets: vec![figures], ..Counters::default() });
        assert!(summary(&capture).contains("packets of up to 1,500 bytes"), "{}", summary(&capture));
        let report = crate::judge::judge(&capture);
        // One of few segments is no small share, and they wait for another reason.
        let loss = report.ruled_out.iter().find(|entry| entry.cause == "packet-loss").expect("it is ruled out");
        assert_eq!(loss.because.as_deref(), Some("and no flow waits for recovery"));
        let evidence = &report.findings[0].evidence;
        assert!(evidence.iter().all(|item| item.what != "the longest message sent"), "{evidence:?}");
    }

    #[test]
    fn a_flow_that_recovers_was_lossy() {
        let mut recovered = stuck();
        recovered.record.last.bytes_acked += 8000;
        assert_eq!(verdict_of(&capture(vec![recovered], vec![])), "retransmission-timeout");
    }

    #[test]
    fn a_peer_from_which_nothing_comes_is_gone() {
        let mut gone = stuck();
        gone.record.begin_ns = 0;
        gone.record.first.segs_in = 3;
        gone.record.first.bytes_received = 64;
        assert_eq!(verdict_of(&capture(vec![gone], vec![])), "retransmission-timeout");
    }

    #[test]
    fn small_requests_that_are_never_answered_are_no_sign_of_a_small_path() {
        let mut small = stuck();
        let calls = &mut small.record.calls;
        (calls.sends, calls.send_bytes, calls.send_max_bytes) = (2, 60, 30);
        assert_eq!(verdict_of(&capture(vec![small.clone()], vec![])), "retransmission-timeout");
        // A message that fills several segments, of which the sender has more to send.
        (small.record.calls.send_bytes, small.record.calls.send_max_bytes) = (20_000, 20_000);
        assert_eq!(verdict_of(&capture(vec![small], vec![])), "pmtu-black-hole");
    }

    #[test]
    fn a_message_that_does_not_fill_a_segment_may_be_too_large() {
        // As ssh has it: a line that says the version passes, and the list of algorithms does not.
        let mut login = stuck().retransmitted(4);
        (login.record.last.packets_out, login.record.last.data_segs_out) = (1, 6);
        login.record.last.bytes_acked = login.record.first.bytes_acked + 41;
        let calls = &mut login.record.calls;
        (calls.sends, calls.send_bytes, calls.send_min_bytes, calls.send_max_bytes) = (2, 1_129, 41, 1_088);
        let report = crate::judge::judge(&capture(vec![login.clone()], vec![]));
        assert_eq!(report.verdict.cause.as_deref(), Some("pmtu-black-hole"));
        assert!(report.verdict.summary.contains("1,088 bytes"), "{}", report.verdict.summary);
        // A message that every path carries is lost with the others.
        let mut short = login.clone();
        (short.record.calls.send_bytes, short.record.calls.send_max_bytes) = (541, 500);
        assert_eq!(verdict_of(&capture(vec![short], vec![])), "retransmission-timeout");
        // Twice is an accident.
        let mut lossy = login;
        lossy.record.last.total_retrans = lossy.record.first.total_retrans + 2;
        assert_eq!(verdict_of(&capture(vec![lossy], vec![])), "retransmission-timeout");
    }

    #[test]
    fn a_connection_that_a_firewall_forgot_says_that_nothing_comes_back() {
        let mut gone = stuck();
        (gone.record.begin_ns, gone.record.first.segs_in, gone.record.first.bytes_received) = (0, 3, 64);
        (gone.record.calls.sends, gone.record.calls.send_bytes, gone.record.calls.send_max_bytes) = (1, 30, 30);
        let report = crate::judge::judge(&capture(vec![gone], vec![]));
        assert_eq!(report.verdict.cause.as_deref(), Some("retransmission-timeout"));
        assert!(report.verdict.summary.contains("nothing of the peer has come back"), "{}", report.verdict.summary);
        assert!(report.findings[0].fix.text.contains("keepalive"), "{}", report.findings[0].fix.text);
    }
}
