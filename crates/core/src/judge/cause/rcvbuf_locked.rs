//! The receiver set SO_RCVBUF: its window cannot grow, and is smaller than what the path holds in one round trip.
//!
//! Look-alikes: the kernel's own limit (`buffer-sysctl-cap`), a reader that does not keep up (`slow-reader`: data waits unread).
use super::base::{Candidate, Cause, Outcome, not_lost, place_of, stalls, try_command, who};
use crate::judge::facts::{Blame, Facts};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::{stream, words};
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "rcvbuf-locked",
    title: "A fixed receive buffer is too small for the path",
    test,
    symptom: |facts| facts.share_in(&[State::PeerWindowLimited]),
    testable: record::flows,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some((lost, worst)) = stream::lost_to(facts, Blame::RcvbufLocked) else {
        return not_lost(
            facts,
            "with the peer's window full",
            &[State::PeerWindowLimited],
            "for a reason other than SO_RCVBUF, or under 1 ms each",
        );
    };
    let flow = &facts.flows[worst];
    let receiver = stream::receiver(facts, worst).unwrap_or(flow);
    let buffer = f64::from(receiver.rec.last.rcvbuf);
    let summary = format!(
        "{}: the receiver set SO_RCVBUF to {}, so its window stays at {} and the stream moves {}.",
        who(facts, &lost),
        units::bytes(buffer / 2.0),
        units::bytes(f64::from(receiver.rec.last.rcv_wnd)),
        stream::pace(flow)
    );
    let mut evidence = vec![
        stalls("waits for the window, one round trip each", &lost),
        words::valued("receive buffer, fixed by SO_RCVBUF (the kernel doubles what is asked for)", buffer, "B"),
        words::valued("receive window", f64::from(receiver.rec.last.rcv_wnd), "B"),
    ];
    evidence.extend(stream::evidence(flow));
    let limit = facts.capture.counters.as_ref().and_then(|c| c.namespace(receiver.rec.netns)?.settings);
    let grows =
        limit.map(|l| format!(" (up to tcp_rmem's {})", units::bytes(l.tcp_rmem[2] as f64))).unwrap_or_default();
    let fix = format!(
        "Remove the setsockopt(SO_RCVBUF) from the receiver: the kernel then sizes the buffer by itself{grows}. Where it must stay, give \
         it at least twice the bandwidth times the round trip.",
    );
    let mut candidate = Candidate::new(lost.clone(), place_of(facts, &lost), summary, evidence, fix);
    let end = if receiver.rec.id == flow.rec.id { Some(worst) } else { flow.pair };
    candidate.trial = end.and_then(|end| try_command(facts, end, "rcvbuf=auto"));
    candidate.holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::Role;

    use crate::testkit::{bound_by_window, capture, verdict_of};

    #[test]
    fn a_fixed_buffer_below_the_path_s_capacity() {
        let (sender, mut receiver) = bound_by_window();
        receiver.record.last.userlocks = 2;
        assert_eq!(verdict_of(&capture(vec![sender.clone(), receiver.clone()], vec![])), "rcvbuf-locked");
        // Seen from the receiver alone.
        assert_eq!(verdict_of(&capture(vec![receiver.clone()], vec![])), "rcvbuf-locked");
        // A buffer that is fixed and large enough limits nothing.
        receiver.record.last.bytes_received = receiver.record.first.bytes_received + 100_000;
        assert_eq!(verdict_of(&capture(vec![receiver], vec![])), "healthy");
        assert_eq!(sender.record.role, Role::Client);
    }

    #[test]
    fn a_reader_that_sleeps_is_not_a_small_buffer() {
        let (mut sender, mut receiver) = bound_by_window();
        receiver.record.last.userlocks = 2;
        // It takes a hundredth of what the window would let through.
        sender.record.last.bytes_acked /= 100;
        receiver.record.last.bytes_received /= 100;
        assert_eq!(verdict_of(&capture(vec![sender], vec![])), "peer-window-limited");
    }
}
