//! A window that is used up once in each round trip: the stream moves one window per round trip, however fast the link is.
//!
//! Look-alikes: a window that is small since its owner fixed it (`rcvbuf-locked`) or the host does (`buffer-sysctl-cap`); one that
//! is shut by a reader that does not keep up (`peer-window-limited`: it carries far less than itself in a round trip).
use super::base::{Candidate, Cause, Outcome, not_lost, peer_command, place_of, stalls, who};
use crate::judge::facts::{Blame, Facts};
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

#[cfg(test)]
mod tests {
    use crate::testkit::{bound_by_window, capture, verdict_of};

    #[test]
    fn the_peer_s_window_carries_itself_once_in_a_round_trip() {
        let (sender, _) = bound_by_window();
        assert_eq!(verdict_of(&capture(vec![sender.clone()], vec![])), "rtt-window-bound");
        let mut slow_reader = sender;
        slow_reader.record.last.bytes_acked /= 20;
        assert_eq!(verdict_of(&capture(vec![slow_reader], vec![])), "peer-window-limited");
    }
}
