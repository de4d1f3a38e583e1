//! A window that is used up once in each round trip: the stream moves one window per round trip, however fast the link is. It is TCP's, or
//! that of a protocol above it (HTTP/2).
//!
//! Look-alikes: a window that is small since its owner fixed it (`rcvbuf-locked`) or the host does (`buffer-sysctl-cap`); one that
//! is shut by a reader that does not keep up (`peer-window-limited`: it carries far less than itself in a round trip).
use parshall_evidence::timeline::Protocol;

use super::base::{Candidate, Cause, Outcome, not_lost, peer_command, place_of, stalls, who};
use crate::judge::facts::{Blame, Facts, Lost};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::{stream, words};
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "rtt-window-bound",
    title: "One window per round trip",
    test,
    symptom: |facts| facts.share_in(&[State::PeerWindowLimited]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some((lost, worst)) = stream::lost_to(facts, Blame::WindowPerRtt) else {
        let otherwise = "for a reason of the reader, or under 1 ms each";
        return not_lost(facts, "with the peer's window full", &[State::PeerWindowLimited], otherwise);
    };
    let flow = &facts.flows[worst];
    if facts.lost(|p| p.blame == Blame::WindowPerRtt && p.state == State::InFlight && p.flow == worst).ns > 0.0 {
        return of_protocol(facts, &lost, worst);
    }
    let scales = facts.figures(flow.rec.id).map(|figures| figures.window_scales);
    let unscaled = scales == Some(None);
    let window = f64::from(flow.rec.last.snd_wnd.max(flow.rec.first.snd_wnd));
    let why = if unscaled { "window scaling was not agreed on, so " } else { "" };
    let summary = format!(
        "{}: {why}the window is {} and is used up in each round trip: {}.",
        who(facts, &lost),
        units::bytes(window),
        stream::pace(flow)
    );
    let mut evidence =
        vec![stalls("waits for the window, one round trip each", &lost), words::valued("peer's window", window, "B")];
    if let Some(Some((theirs, own))) = scales {
        evidence.push(words::valued("window scale of the peer (as a shift)", f64::from(theirs), ""));
        evidence.push(words::valued("own window scale", f64::from(own), ""));
    }
    evidence.push(words::valued("window that would carry twice this rate", 2.0 * stream::per_round_trip(flow), "B"));
    evidence.extend(stream::evidence(flow));
    let fix = if unscaled {
        "Turn window scaling on at both ends (`sysctl -w net.ipv4.tcp_window_scaling=1`), and look for a middlebox that removes the \
         option from the SYN."
            .to_string()
    } else {
        format!(
            "Let the receiver announce more: remove SO_RCVBUF from its program, raise net.ipv4.tcp_rmem there to {} or more. Several \
             connections, or a copy nearer to the reader, help too.",
            units::bytes((4.0 * window).max(4e6))
        )
    };
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    if !unscaled {
        candidate.peer = Some(peer_command(facts, worst));
    }
    candidate.holds()
}

/// The sender's protocol has a window of its own: TCP would take more.
fn of_protocol(facts: &Facts<'_>, lost: &Lost, worst: usize) -> Outcome {
    let flow = &facts.flows[worst];
    let window = stream::per_round_trip(flow);
    let frames = facts.capture.timeline.as_ref().and_then(|timeline| timeline.calls.get(&flow.rec.id));
    let mut frames = frames.into_iter().flatten().filter_map(|call| call.frame);
    let (protocol, setting, others) = match frames.any(|frame| frame.protocol == Protocol::Http2) {
        true => (
            "HTTP/2",
            "the receiver's initial window of a stream (haproxy: tune.h2.fe.initial-window-size; nginx: http2_body_preread_size; Go: \
             MaxUploadBufferPerStream; Envoy: initial_stream_window_size)",
            "Several streams at a time, or HTTP/1.1, which has no such window, help too.",
        ),
        false => (
            "the protocol above TCP",
            "the amount that the receiver allows to be under way",
            "Several transfers at a time help too.",
        ),
    };
    let summary = format!(
        "{}: about {} are under way, and more is sent when a message of the receiver allows it, a round trip later: {}. This is the window \
         of {protocol}; TCP's would take more.",
        who(facts, lost),
        units::bytes(window),
        stream::pace(flow)
    );
    let mut evidence = vec![
        stalls("waits with all data sent and not acknowledged", lost),
        words::valued("under way in a round trip", window, "B"),
        words::valued("TCP's window of the peer", flow.rec.last.snd_wnd.into(), "B"),
    ];
    evidence.extend(stream::evidence(flow));
    let fix = format!(
        "Raise {setting} to what the path holds in a round trip at the rate that is wanted: {} carry twice as much. {others}",
        units::bytes(2.0 * window)
    );
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, lost), summary, evidence, fix);
    candidate.peer = Some(peer_command(facts, worst));
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::Timeline;
    use parshall_evidence::{Capture, FlowState, Release, Role};

    use crate::testkit::timeline::{Script, client_socket};
    use crate::testkit::{FlowBuilder, MS, WINDOW_NS, bound_by_window, capture, verdict_of};

    /// An upload over 40 ms, of which all is under way for nearly all of the time. It is sent this long after a message of the receiver.
    fn upload(after_ns: u64) -> Capture {
        let turns = WINDOW_NS / (40 * MS);
        let mut flow = FlowBuilder::new(1, Role::Client)
            .remote_host()
            .cell(FlowState::InFlight, Release::RxAck, 9 * WINDOW_NS / 10, 3 * turns)
            .talks(turns, 65_536);
        let record = &mut flow.record;
        (record.calls.recv_bytes, record.last.bytes_received) = (26 * turns, 26 * turns);
        (record.first.min_rtt_us, record.last.min_rtt_us, record.last.srtt_us) = (40_000, 40_000, 40_500);
        (record.last.app_limited, record.last.packets_out, record.last.snd_wnd) = (true, 45, 400_000);
        let script = (0..turns).fold(Script::new().socket(1, client_socket(7000), 101), |script, n| {
            let at = n * 40 * MS;
            script.receives(101, 1, at, at + 10_000).sends(101, 1, at + 10_000 + after_ns)
        });
        let mut capture = capture(vec![flow], vec![]);
        capture.timeline = Some(Timeline { slices: vec![(0, WINDOW_NS)], ..script.timeline });
        capture
    }

    #[test]
    fn a_window_above_tcp_is_used_up_once_in_a_round_trip() {
        let report = crate::judge::judge(&upload(20_000));
        assert_eq!(report.verdict.cause.as_deref(), Some("rtt-window-bound"), "{report:#?}");
        assert!(report.verdict.summary.contains("TCP's would take more"), "{}", report.verdict.summary);
        assert!(
            !report.findings[0].fix.text.contains("HTTP"),
            "its protocol is not known: {:?}",
            report.findings[0].fix
        );
        // Data that is sent as soon as it is there, as changes to a replica are, waits for no window.
        assert_ne!(verdict_of(&upload(9 * MS)), "rtt-window-bound");
    }

    #[test]
    fn the_peer_s_window_carries_itself_once_in_a_round_trip() {
        let (sender, _) = bound_by_window();
        assert_eq!(verdict_of(&capture(vec![sender.clone()], vec![])), "rtt-window-bound");
        let mut slow_reader = sender;
        slow_reader.record.last.bytes_acked /= 20;
        assert_eq!(verdict_of(&capture(vec![slow_reader], vec![])), "peer-window-limited");
    }
}
